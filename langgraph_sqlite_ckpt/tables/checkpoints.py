"""Checkpoints, in the order of their commits."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from langgraph_sqlite_ckpt.tables.namespaces import intern_namespace
from langgraph_sqlite_ckpt.tables.opening import Opener, Sealer
from langgraph_sqlite_ckpt.tables.rows import CHECKPOINT, CheckpointRow, MetadataRow, NewCheckpoint, Standing


def newest_of(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str) -> CheckpointRow | None:
    row = db.execute(
        CHECKPOINT + "WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND c.hidden = 0 ORDER BY c.seq DESC LIMIT 1",
        (thread_id, checkpoint_ns),
    ).fetchone()
    return Opener(db).checkpoint(row) if row else None


def named_of(
    db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str, *, hidden: bool
) -> CheckpointRow | None:
    """`hidden`: also where it is."""
    row = db.execute(
        CHECKPOINT + "WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND c.checkpoint_id = ? AND c.hidden <= ?",
        (thread_id, checkpoint_ns, checkpoint_id, hidden),
    ).fetchone()
    return Opener(db).checkpoint(row) if row else None


def latest_checkpoint(db: sqlite3.Connection, namespace: int) -> CheckpointRow | None:
    row = db.execute(
        CHECKPOINT + "WHERE c.namespace = ? AND c.hidden = 0 ORDER BY c.seq DESC LIMIT 1", (namespace,)
    ).fetchone()
    return Opener(db).checkpoint(row) if row else None


def find_checkpoint(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> CheckpointRow | None:
    """Hidden or not."""
    row = db.execute(CHECKPOINT + "WHERE c.namespace = ? AND c.checkpoint_id = ?", (namespace, checkpoint_id)).fetchone()
    return Opener(db).checkpoint(row) if row else None


def select_checkpoints(
    db: sqlite3.Connection, where: str, parameters: Sequence[object], limit: int
) -> Sequence[CheckpointRow]:
    """`where` is composed by `listing.py` from literals of its own; every value in it is bound."""
    rows = db.execute(CHECKPOINT + where + " ORDER BY c.seq DESC LIMIT ?", (*parameters, limit))
    return list(map(Opener(db).checkpoint, rows))


def select_metadata(db: sqlite3.Connection, where: str, parameters: Sequence[object], limit: int) -> Sequence[MetadataRow]:
    """Like `select_checkpoints`, of the metadata alone: to look through many rows and load few."""
    rows = db.execute(
        "SELECT c.seq, n.thread_id, n.checkpoint_ns, c.checkpoint_id, c.metadata, c.exact_type, c.exact, c.key_id"
        " FROM checkpoint c JOIN namespace n ON n.id = c.namespace " + where + " ORDER BY c.seq DESC LIMIT ?",
        (*parameters, limit),
    )
    return list(map(Opener(db).metadata, rows))


def ids_of(db: sqlite3.Connection, namespace: int) -> Sequence[tuple[str, str]]:
    """(checkpoint_id, run_id) of every checkpoint that is shown, oldest first."""
    return db.execute(
        "SELECT checkpoint_id, run_id FROM checkpoint WHERE namespace = ? AND hidden = 0 ORDER BY seq", (namespace,)
    ).fetchall()


def ids_with_hidden(db: sqlite3.Connection, namespace: int) -> Sequence[str]:
    rows = db.execute("SELECT checkpoint_id FROM checkpoint WHERE namespace = ?", (namespace,))
    return [row[0] for row in rows]


def ancestors(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Iterator[tuple[int, str, str | None, int]]:
    """(seq, checkpoint_id, beside, state_version) of a checkpoint that is shown, its parent, its parent's parent, ...,
    hidden or not, read as they are asked for, in one statement.

    A chain that loops never ends: the caller stops at an id that it has seen. CROSS JOIN keeps `line` outside, so that
    each step is one look-up.
    """
    return db.execute(
        "WITH RECURSIVE line (seq, checkpoint_id, parent_id, beside, state_version) AS ("
        " SELECT seq, checkpoint_id, parent_id, beside, state_version FROM checkpoint"
        "  WHERE namespace = :namespace AND checkpoint_id = :checkpoint_id AND hidden = 0"
        " UNION ALL SELECT p.seq, p.checkpoint_id, p.parent_id, p.beside, p.state_version"
        "  FROM line CROSS JOIN checkpoint p ON p.namespace = :namespace AND p.checkpoint_id = line.parent_id)"
        " SELECT seq, checkpoint_id, beside, state_version FROM line",
        {"namespace": namespace, "checkpoint_id": checkpoint_id},
    )


def find_standing(
    db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str, parent_id: str | None
) -> Standing:
    """In one statement; the namespace is made where it is new."""
    row = db.execute(
        "SELECT n.id, (SELECT c.state_version FROM checkpoint c WHERE c.namespace = n.id AND c.checkpoint_id = ?),"
        " p.run_id, p.has_child FROM namespace n"
        " LEFT JOIN checkpoint p ON p.namespace = n.id AND p.checkpoint_id = ?"
        " WHERE n.thread_id = ? AND n.checkpoint_ns = ?",
        (checkpoint_id, parent_id, thread_id, checkpoint_ns),
    ).fetchone()
    if row is None:
        namespace = intern_namespace(db, thread_id, checkpoint_ns)
        return Standing(namespace, state_version=None, parent_run=None, parent_has_child=False)
    return Standing(row[0], row[1], row[2], bool(row[3]))


def find_target(
    db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str
) -> tuple[int | None, int | None]:
    """The namespace, and the state version of the checkpoint there, as far as they are there."""
    row = db.execute(
        "SELECT n.id, (SELECT c.state_version FROM checkpoint c WHERE c.namespace = n.id AND c.checkpoint_id = ?)"
        " FROM namespace n WHERE n.thread_id = ? AND n.checkpoint_ns = ?",
        (checkpoint_id, thread_id, checkpoint_ns),
    ).fetchone()
    return (row[0], row[1]) if row else (None, None)


def newest_state_version(db: sqlite3.Connection) -> int:
    """The greatest in the file; from its index alone."""
    row = db.execute("SELECT max(state_version) FROM checkpoint WHERE state_version > 0").fetchone()
    return int(row[0] or 0)


def older_checkpoints(db: sqlite3.Connection, state_version: int, after: int, limit: int) -> Sequence[CheckpointRow]:
    """Those at an older state version, in their order, from a place in it on."""
    rows = db.execute(
        CHECKPOINT + "WHERE c.state_version < ? AND c.seq > ? ORDER BY c.seq LIMIT ?", (state_version, after, limit)
    )
    return list(map(Opener(db).checkpoint, rows))


def has_older_checkpoints(db: sqlite3.Connection, namespace: int, state_version: int) -> bool:
    found: int = db.execute(
        "SELECT EXISTS (SELECT 1 FROM checkpoint WHERE namespace = ? AND state_version < ?)", (namespace, state_version)
    ).fetchone()[0]
    return bool(found)


def count_older_checkpoints(db: sqlite3.Connection, state_version: int) -> int:
    count: int = db.execute("SELECT count(*) FROM checkpoint WHERE state_version < ?", (state_version,)).fetchone()[0]
    return count


def run_of_checkpoint(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> str | None:
    row = db.execute(
        "SELECT c.run_id FROM namespace n JOIN checkpoint c ON c.namespace = n.id"
        " WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND c.checkpoint_id = ?",
        (thread_id, checkpoint_ns, checkpoint_id),
    ).fetchone()
    return row[0] if row else None


def insert_checkpoint(db: sqlite3.Connection, namespace: int, run_id: str, new: NewCheckpoint) -> None:
    sealer = Sealer.of(db, namespace)
    db.execute(
        "INSERT INTO checkpoint (namespace, run_id, checkpoint_id, parent_id, step, source, next, created_at,"
        " state_version, metadata, exact_type, exact, body_codec, body_size, body, beside, rest_type, rest_codec,"
        " rest_size, rest, checksum, key_id)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (namespace, run_id, *sealer.checkpoint(new), sealer.key_id),
    )


def replace_checkpoint(
    db: sqlite3.Connection, namespace: int, run_id: str | None, new: NewCheckpoint, *, shows: bool
) -> None:
    """A checkpoint that is put again keeps its place in the order, and its run unless it names one; without a parent it
    keeps one that is hidden. `shows`: also where it was hidden.
    """
    sealer = Sealer.of(db, namespace)
    db.execute(
        "UPDATE checkpoint SET run_id = coalesce(?, run_id), checkpoint_id = ?, parent_id = coalesce(?, (SELECT"
        " p.checkpoint_id FROM checkpoint p WHERE p.namespace = checkpoint.namespace"
        "  AND p.checkpoint_id = checkpoint.parent_id AND p.hidden)), step = ?, source = ?,"
        " next = ?, created_at = ?, state_version = ?, metadata = ?, exact_type = ?, exact = ?, body_codec = ?,"
        " body_size = ?, body = ?, beside = ?, rest_type = ?, rest_codec = ?, rest_size = ?, rest = ?, checksum = ?,"
        " key_id = ?, hidden = hidden AND NOT ? WHERE namespace = ? AND checkpoint_id = ?",
        (run_id, *sealer.checkpoint(new), sealer.key_id, shows, namespace, new.checkpoint_id),
    )


def delete_checkpoints(db: sqlite3.Connection, namespace: int, checkpoint_ids: Iterable[str]) -> None:
    """With their writes and effects; their children become checkpoints without a parent, parents ones without a child."""
    keys = [(namespace, checkpoint_id) for checkpoint_id in checkpoint_ids]
    db.executemany("DELETE FROM effect WHERE namespace = ? AND checkpoint_id = ?", keys)
    db.executemany("DELETE FROM write WHERE namespace = ? AND checkpoint_id = ?", keys)
    db.executemany("DELETE FROM checkpoint WHERE namespace = ? AND checkpoint_id = ?", keys)
    db.execute(
        "UPDATE checkpoint SET parent_id = NULL WHERE namespace = :namespace AND parent_id IS NOT NULL AND NOT EXISTS"
        " (SELECT 1 FROM checkpoint p WHERE p.namespace = :namespace AND p.checkpoint_id = checkpoint.parent_id)",
        {"namespace": namespace},
    )
    db.execute(
        "UPDATE checkpoint SET has_child = 0 WHERE namespace = :namespace AND has_child AND checkpoint_id NOT IN"
        " (SELECT parent_id FROM checkpoint WHERE namespace = :namespace AND parent_id IS NOT NULL)",
        {"namespace": namespace},
    )


def hide_all_but(db: sqlite3.Connection, namespace: int, checkpoint_ids: Iterable[str]) -> None:
    db.execute(
        "UPDATE checkpoint SET hidden = 1 WHERE namespace = ? AND hidden = 0"
        " AND checkpoint_id NOT IN (SELECT value FROM json_each(?))",
        (namespace, json.dumps(list(checkpoint_ids))),
    )


def namespaces_of_runs(db: sqlite3.Connection, run_ids: Sequence[str]) -> Sequence[int]:
    rows = db.execute(
        "SELECT DISTINCT c.namespace FROM json_each(?) j CROSS JOIN checkpoint c ON c.run_id = j.value AND c.hidden = 0",
        (json.dumps(run_ids),),
    )
    return [row[0] for row in rows]


def copy_checkpoints(db: sqlite3.Connection, source: str, target: str) -> None:
    """Of a whole thread, hidden or not, in its order, so that the copy has the same latest and the same history."""
    db.execute(
        "INSERT INTO checkpoint (namespace, checkpoint_id, parent_id, run_id, step, source, next, created_at, has_child,"
        " hidden, state_version, metadata, exact_type, exact, body_codec, body_size, body, beside, rest_type, rest_codec,"
        " rest_size, rest, checksum, key_id)"
        " SELECT t.id, c.checkpoint_id, c.parent_id, c.run_id, c.step, c.source, c.next, c.created_at, c.has_child,"
        " c.hidden, c.state_version, c.metadata, c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside,"
        " c.rest_type, c.rest_codec, c.rest_size, c.rest, c.checksum, c.key_id"
        " FROM namespace s JOIN checkpoint c ON c.namespace = s.id"
        " JOIN namespace t ON t.thread_id = ? AND t.checkpoint_ns = s.checkpoint_ns"
        " WHERE s.thread_id = ? ORDER BY c.seq",
        (target, source),
    )
