"""Whole threads, out of one file and into another."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from langgraph_sqlite_ckpt.tables.checkpoints import insert_checkpoint
from langgraph_sqlite_ckpt.tables.opening import Opener, Sealer
from langgraph_sqlite_ckpt.tables.rows import (
    BlobOfThread,
    CheckpointOfThread,
    EffectOfThread,
    NewCheckpoint,
    NewWrite,
    Row,
    WriteOfThread,
    new_id,
)
from langgraph_sqlite_ckpt.tables.writes import INTO_WRITE, sealed_writes


def blobs_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[BlobOfThread]:
    """Bases before what was compressed against them."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, b.id, b.base, b.channel, b.version, b.state_version, b.type, b.codec, b.position, b.size,"
        " b.checksum, b.data, b.key_id"
        " FROM namespace n JOIN blob b ON b.namespace = n.id WHERE n.thread_id = ? ORDER BY b.id",
        (thread_id,),
    )
    return _streamed(rows, partial(Opener(db).blob_of, thread_id))


def checkpoints_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[CheckpointOfThread]:
    """In the order of commits."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, c.run_id, c.hidden, c.checkpoint_id, c.parent_id, c.step, c.source, c.next, c.created_at,"
        " c.state_version, c.metadata, c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside, c.rest_type,"
        " c.rest_codec, c.rest_size, c.rest, c.checksum, c.key_id"
        " FROM namespace n JOIN checkpoint c ON c.namespace = n.id WHERE n.thread_id = ? ORDER BY c.seq",
        (thread_id,),
    )
    return _streamed(rows, partial(Opener(db).checkpoint_of, thread_id))


def writes_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[WriteOfThread]:
    """In the order in which they were written."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data, w.key_id"
        " FROM namespace n JOIN write w ON w.namespace = n.id WHERE n.thread_id = ? ORDER BY w.id",
        (thread_id,),
    )
    return _streamed(rows, partial(Opener(db).write_of, thread_id))


def effects_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[EffectOfThread]:
    """In the order in which they were begun."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, e.checkpoint_id, e.task_id, e.name, e.node, e.key, e.started_at, e.finished_at, e.error,"
        " e.type, e.codec, e.size, e.checksum, e.data, e.key_id FROM namespace n JOIN effect e ON e.namespace = n.id"
        " WHERE n.thread_id = ? ORDER BY e.id",
        (thread_id,),
    )
    return _streamed(rows, partial(Opener(db).effect_of, thread_id))


def _streamed(rows: sqlite3.Cursor, made: Callable[[Sequence[Any]], Row]) -> Iterator[Row]:
    """One that does not open must leave no statement behind: it would keep its connection at this moment of the file."""
    with closing(rows):
        yield from map(made, rows)


def insert_blob_of_thread(db: sqlite3.Connection, namespace: int, row: BlobOfThread, base: int | None) -> int:
    sealer = Sealer.of(db, namespace)
    return new_id(
        db.execute(
            "INSERT INTO blob (namespace, base, channel, version, state_version, type, codec, position, size, checksum,"
            " data, key_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (namespace, base, *sealer.blob(row)[3:], sealer.key_id),
        )
    )


def insert_checkpoint_of_thread(db: sqlite3.Connection, namespace: int, row: CheckpointOfThread) -> None:
    insert_checkpoint(db, namespace, row.run_id, NewCheckpoint(*row[3:]))
    if row.hidden:
        db.execute(
            "UPDATE checkpoint SET hidden = 1 WHERE namespace = ? AND checkpoint_id = ?", (namespace, row.checkpoint_id)
        )


def insert_write_of_thread(db: sqlite3.Connection, namespace: int, row: WriteOfThread) -> None:
    [write] = sealed_writes(db, namespace, row.checkpoint_id, [NewWrite(*row[2:])])
    db.execute("INSERT" + INTO_WRITE, write)


def insert_effect_of_thread(db: sqlite3.Connection, namespace: int, row: EffectOfThread) -> None:
    """Its caller is elsewhere."""
    sealer = Sealer.of(db, namespace)
    db.execute(
        "INSERT INTO effect (namespace, owner, call, checkpoint_id, task_id, name, node, key, started_at, finished_at,"
        " error, type, codec, size, checksum, data, key_id)"
        " VALUES (?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (namespace, *sealer.effect(row)[1:], sealer.key_id),
    )
