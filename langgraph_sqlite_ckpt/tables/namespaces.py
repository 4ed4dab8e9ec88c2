"""Threads and their namespaces."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from langgraph_sqlite_ckpt.tables.opening import names_of
from langgraph_sqlite_ckpt.tables.resealing import move_seals
from langgraph_sqlite_ckpt.tables.rows import new_id


def find_namespace(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str) -> int | None:
    row = db.execute(
        "SELECT id FROM namespace WHERE thread_id = ? AND checkpoint_ns = ?", (thread_id, checkpoint_ns)
    ).fetchone()
    return row[0] if row else None


def intern_namespace(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str) -> int:
    found = find_namespace(db, thread_id, checkpoint_ns)
    if found is not None:
        return found
    return new_id(db.execute("INSERT INTO namespace (thread_id, checkpoint_ns) VALUES (?, ?)", (thread_id, checkpoint_ns)))


def namespaces_of(db: sqlite3.Connection, thread_id: str) -> Sequence[tuple[int, str]]:
    return db.execute("SELECT id, checkpoint_ns FROM namespace WHERE thread_id = ? ORDER BY id", (thread_id,)).fetchall()


def namespaces_called_by(db: sqlite3.Connection, thread_id: str, prefix: str, checkpoint_id: str) -> Sequence[int]:
    """Those whose names begin so, with a checkpoint whose metadata names this one as its parent in a graph above."""
    rows = db.execute(
        "SELECT n.id FROM namespace n WHERE n.thread_id = :thread AND n.checkpoint_ns <> ''"
        " AND substr(n.checkpoint_ns, 1, length(:prefix)) = :prefix AND EXISTS ("
        " SELECT 1 FROM checkpoint c WHERE c.namespace = n.id AND instr(c.metadata, :parent) > 0) ORDER BY n.id",
        {"thread": thread_id, "prefix": prefix, "parent": json.dumps(checkpoint_id)},
    )
    return [row[0] for row in rows]


def rename_namespace(db: sqlite3.Connection, namespace: int, checkpoint_ns: str) -> None:
    was = names_of(db, namespace)
    db.execute("UPDATE namespace SET checkpoint_ns = ? WHERE id = ?", (checkpoint_ns, namespace))
    move_seals(db, namespace, was)


def thread_ids(db: sqlite3.Connection) -> Sequence[str]:
    """Oldest first."""
    return [row[0] for row in db.execute("SELECT thread_id FROM namespace GROUP BY thread_id ORDER BY min(id)")]


def delete_namespace(db: sqlite3.Connection, namespace: int) -> None:
    for statement in (
        "DELETE FROM effect WHERE namespace = ?",
        "DELETE FROM write WHERE namespace = ?",
        "DELETE FROM blob WHERE namespace = ?",
        "DELETE FROM checkpoint WHERE namespace = ?",
        "DELETE FROM namespace WHERE id = ?",
    ):
        db.execute(statement, (namespace,))


def namespace_is_empty(db: sqlite3.Connection, namespace: int) -> bool:
    row = db.execute(
        "SELECT EXISTS (SELECT 1 FROM checkpoint WHERE namespace = :namespace)"
        " OR EXISTS (SELECT 1 FROM write WHERE namespace = :namespace)",
        {"namespace": namespace},
    ).fetchone()
    return not row[0]
