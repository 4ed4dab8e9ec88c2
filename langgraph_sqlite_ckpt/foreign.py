"""Files of langgraph-checkpoint-sqlite and of its LangGraph.js sibling: every statement on their tables.

The two differ in little: the sibling has no `task_path` column, nor had old releases of the Python package, and it writes
JSON where Python writes msgpack. A file is never written to, not even beside.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple


class Listed(NamedTuple):
    """A checkpoint without its content. `row` grows with each commit."""

    row: int
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None


class Stored(NamedTuple):
    type: str | None
    checkpoint: bytes | str
    metadata: bytes | str | None


class StoredWrite(NamedTuple):
    task_id: str
    task_path: str
    idx: int
    channel: str
    type: str | None
    value: bytes | str | None


def is_of_official_saver(db: sqlite3.Connection) -> bool:
    names = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return {"checkpoints", "writes"} <= names


def checkpoints(db: sqlite3.Connection) -> Sequence[Listed]:
    """In the order of commits, thread by thread, the oldest thread first. Values are not read for it."""
    rows = [
        Listed(*row)
        for row in db.execute(
            "SELECT rowid, thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints ORDER BY rowid"
        )
    ]
    by_thread: dict[str, list[Listed]] = {}
    for row in rows:
        by_thread.setdefault(row.thread_id, []).append(row)
    return [row for of_thread in by_thread.values() for row in of_thread]


def checkpoint(db: sqlite3.Connection, row: int) -> Stored:
    return Stored(*db.execute("SELECT type, checkpoint, metadata FROM checkpoints WHERE rowid = ?", (row,)).fetchone())


def writes(db: sqlite3.Connection, listed: Listed) -> Sequence[StoredWrite]:
    """In the order in which they were written."""
    known = {row[1] for row in db.execute("PRAGMA table_info(writes)")}
    path = "task_path" if "task_path" in known else "''"
    rows = db.execute(
        f"SELECT task_id, {path}, idx, channel, type, value FROM writes"
        " WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ? ORDER BY rowid",
        listed[1:4],
    )
    return [StoredWrite(*row) for row in rows]
