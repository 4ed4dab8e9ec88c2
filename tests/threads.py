"""Threads in every state, without a graph: quick to make, with the times that a test needs."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from conftest import checkpoint, config

from langgraph_sqlite_ckpt import SqliteSaver

STATUSES = ("completed", "interrupted", "failed", "running")
NOW = datetime.now(timezone.utc)
DAY = timedelta(days=1)


@pytest.fixture
def saver(path: Path) -> Iterator[SqliteSaver]:
    """In the place of conftest's, also under `face`: nothing here depends on a disk that is waited for."""
    with SqliteSaver(path, synchronous="normal") as saver:
        yield saver


def stored(
    face: Any,
    thread_id: object,
    *,
    parent: Any = None,
    at: datetime = NOW,
    due: bool = False,
    values: Any = None,
    **metadata: Any,
) -> Any:
    """One checkpoint of that time; `due`: a node is to run next."""
    made = checkpoint({**({} if values is None else values), **({"branch:to:node": None} if due else {})})
    made["ts"] = at.isoformat()
    whole = {"source": "loop" if parent else "input", "step": 0, "parents": {}} | metadata
    return face.put(parent or config(thread_id), made, whole, dict(made["channel_versions"]))


def thread(
    face: Any, thread_id: object, status: str = "completed", *, at: datetime = NOW, checkpoints: int = 2, values: Any = None
) -> Any:
    """A thread whose last checkpoint is of that time, and in that state. Returns the config of that checkpoint."""
    parent = None
    for step in range(checkpoints):
        due = step < checkpoints - 1 or status != "completed"
        parent = stored(
            face,
            thread_id,
            parent=parent,
            at=at - timedelta(seconds=checkpoints - 1 - step),
            due=due,
            values=values,
            step=step,
        )
    if status in ("interrupted", "failed"):
        face.put_writes(parent, [("__interrupt__", ["well?"]) if status == "interrupted" else ("__error__", "no")], "task")
    return parent


def names(rows: Any) -> list[str]:
    return [row.thread_id for row in rows]


def multiply(path: Path, count: int, *, step: str = "i", source: str = "'loop'", run_id: str = "run_id") -> None:
    """So many more checkpoints in the first one's namespace, each the child of the one before; in SQL, which is quick."""
    with closing(sqlite3.connect(path)) as db, db:
        own = {"seq", "checkpoint_id", "parent_id", "step", "source", "run_id"}
        columns = ", ".join(name for (_, name, *_) in db.execute("PRAGMA table_info(checkpoint)") if name not in own)
        db.execute(
            "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            f" INSERT INTO checkpoint (checkpoint_id, parent_id, step, source, run_id, {columns})"
            " SELECT printf('copy %08d', i), iif(i = 1, checkpoint_id, printf('copy %08d', i - 1)),"
            f" {step}, {source}, {run_id}, {columns} FROM n CROSS JOIN checkpoint WHERE seq = 1 ORDER BY i",
            (count,),
        )
