"""Rows sealed anew: with another key, or for another place."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

from langgraph_sqlite_ckpt import sealing
from langgraph_sqlite_ckpt.errors import DamagedError
from langgraph_sqlite_ckpt.sealing import Names
from langgraph_sqlite_ckpt.tables.looking import Weight, blobs_at, checkpoints_at, effects_at, writes_at
from langgraph_sqlite_ckpt.tables.opening import Opener, Sealer, keyring_of, names_of
from langgraph_sqlite_ckpt.tables.rows import (
    BLOB,
    CHECKPOINT,
    EFFECT,
    WRITE,
    BlobRow,
    CheckpointRow,
    EffectRow,
    NewWrite,
    WriteRow,
)


def _reseal_checkpoint(db: sqlite3.Connection, names: Names, row: CheckpointRow) -> None:
    sealer = Sealer(db, names)
    sealed = sealer.checkpoint(row)
    db.execute(
        "UPDATE checkpoint SET metadata = ?, exact = ?, body = ?, rest = ?, checksum = ?, key_id = ? WHERE seq = ?",
        (sealed.metadata, sealed.exact, sealed.body, sealed.rest, sealed.checksum, sealer.key_id, row.seq),
    )


def reseal_blob(db: sqlite3.Connection, names: Names, row: BlobRow) -> None:
    sealer = Sealer(db, names)
    sealed = sealer.blob(row)
    db.execute(
        "UPDATE blob SET checksum = ?, data = ?, key_id = ? WHERE id = ?",
        (sealed.checksum, sealed.data, sealer.key_id, row.id),
    )


def _reseal_write(db: sqlite3.Connection, names: Names, row: WriteRow) -> None:
    sealer = Sealer(db, names)
    sealed = sealer.write(row.checkpoint_id, NewWrite(*row[3:]))
    db.execute(
        "UPDATE write SET checksum = ?, data = ?, key_id = ? WHERE id = ?",
        (sealed.checksum, sealed.data, sealer.key_id, row.id),
    )


def reseal_effect(db: sqlite3.Connection, names: Names, row: EffectRow) -> None:
    sealer = Sealer(db, names)
    sealed = sealer.effect(row)
    db.execute(
        "UPDATE effect SET finished_at = ?, error = ?, type = ?, codec = ?, size = ?, checksum = ?, data = ?, key_id = ?"
        " WHERE id = ?",
        (*sealed[10:], sealer.key_id, row.id),
    )


def reseal_checkpoints(db: sqlite3.Connection, seqs: Sequence[int]) -> None:
    """With the key of today; here as in the following ones."""
    for row in checkpoints_at(db, seqs):
        _reseal_checkpoint(db, (row.thread_id, row.checkpoint_ns), row)


def reseal_blobs(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    for row in blobs_at(db, ids):
        reseal_blob(db, names_of(db, row.namespace), row)


def reseal_writes(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    for row in writes_at(db, ids):
        _reseal_write(db, names_of(db, row.namespace), row)


def reseal_effects(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    for row in effects_at(db, ids):
        reseal_effect(db, (row.thread_id, row.checkpoint_ns), row)


def checkpoints_of_other_keys(db: sqlite3.Connection, key_id: int | None, after: int) -> Sequence[Weight]:
    """The next ones that are not sealed with this key; here as in the following ones."""
    rows = db.execute(
        "SELECT seq, length(body) + coalesce(length(rest), 0) FROM checkpoint WHERE key_id IS NOT ? AND seq > ?"
        " ORDER BY seq LIMIT 500",
        (key_id, after),
    )
    return [Weight._make(row) for row in rows]


def blobs_of_other_keys(db: sqlite3.Connection, key_id: int | None, after: int) -> Sequence[Weight]:
    rows = db.execute(
        "SELECT id, length(data) FROM blob WHERE key_id IS NOT ? AND id > ? ORDER BY id LIMIT 500", (key_id, after)
    )
    return [Weight._make(row) for row in rows]


def writes_of_other_keys(db: sqlite3.Connection, key_id: int | None, after: int) -> Sequence[Weight]:
    rows = db.execute(
        "SELECT id, length(data) FROM write WHERE key_id IS NOT ? AND id > ? ORDER BY id LIMIT 500", (key_id, after)
    )
    return [Weight._make(row) for row in rows]


def effects_of_other_keys(db: sqlite3.Connection, key_id: int | None, after: int) -> Sequence[Weight]:
    """One that has no end yet has nothing to seal."""
    rows = db.execute(
        "SELECT id, coalesce(length(data), 0) FROM effect WHERE key_id IS NOT ? AND id > ?"
        " AND (data IS NOT NULL OR error IS NOT NULL) ORDER BY id LIMIT 500",
        (key_id, after),
    )
    return [Weight._make(row) for row in rows]


def count_of_other_keys(db: sqlite3.Connection, key_id: int | None) -> int:
    """Rows of all tables."""
    count: int = db.execute(
        "SELECT (SELECT count(*) FROM checkpoint WHERE key_id IS NOT :key)"
        " + (SELECT count(*) FROM blob WHERE key_id IS NOT :key) + (SELECT count(*) FROM write WHERE key_id IS NOT :key)"
        " + (SELECT count(*) FROM effect WHERE key_id IS NOT :key AND (data IS NOT NULL OR error IS NOT NULL))",
        {"key": key_id},
    ).fetchone()[0]
    return count


def overwrite_what_is_freed(db: sqlite3.Connection) -> None:
    """From now on: what was written before a row was sealed must not stay in a free page."""
    db.execute("PRAGMA secure_delete = ON").fetchall()


def move_seals(db: sqlite3.Connection, namespace: int, was: Names) -> None:
    """Of rows that were sealed for another thread or namespace. One that is damaged stays so."""
    names, opener = names_of(db, namespace), Opener(db)
    require_keys(db, namespace)
    for seq in db.execute("SELECT seq FROM checkpoint WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            sealed = db.execute(CHECKPOINT + "WHERE c.seq = ?", seq).fetchone()
            _reseal_checkpoint(db, names, opener.checkpoint(sealed, was))
    for id_ in db.execute("SELECT id FROM blob WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            reseal_blob(db, names, opener.blob(db.execute(BLOB + "blob b WHERE b.id = ?", id_).fetchone(), was))
    for id_ in db.execute("SELECT id FROM write WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            _reseal_write(db, names, opener.write(db.execute(WRITE + " FROM write w WHERE w.id = ?", id_).fetchone(), was))
    for id_ in db.execute("SELECT id FROM effect WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            reseal_effect(db, names, opener.effect(db.execute(EFFECT + " WHERE e.id = ?", id_).fetchone(), was))


def require_keys(db: sqlite3.Connection, namespace: int) -> None:
    """Raises `KeyNeeded` unless all rows that are sealed here can be sealed anew."""
    rows = db.execute(
        "SELECT key_id FROM checkpoint WHERE namespace = :namespace AND key_id IS NOT NULL UNION"
        " SELECT key_id FROM blob WHERE namespace = :namespace AND key_id IS NOT NULL UNION"
        " SELECT key_id FROM write WHERE namespace = :namespace AND key_id IS NOT NULL UNION"
        " SELECT key_id FROM effect WHERE namespace = :namespace AND key_id IS NOT NULL",
        {"namespace": namespace},
    )
    for (key_id,) in rows.fetchall():
        sealing.require_key(keyring_of(db), key_id, names_of(db, namespace))
