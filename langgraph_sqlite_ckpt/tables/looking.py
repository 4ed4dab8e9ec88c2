"""Rows by their numbers, a batch at a time, with a weight for each: for who goes through all of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

from langgraph_sqlite_ckpt.tables.opening import Opener
from langgraph_sqlite_ckpt.tables.rows import BLOB, CHECKPOINT, EFFECT, WRITE, BlobRow, CheckpointRow, EffectRow, WriteRow


class Weight(NamedTuple):
    """A row by its key, and about how many bytes it takes to load it."""

    key: int
    bytes: int


def weights_of_checkpoints(db: sqlite3.Connection, namespace: int) -> Sequence[Weight]:
    rows = db.execute(
        "SELECT seq, coalesce(length(body), 0) + coalesce(length(rest), 0) + coalesce(length(metadata), 0)"
        " FROM checkpoint WHERE namespace = ? ORDER BY seq",
        (namespace,),
    )
    return [Weight._make(row) for row in rows]


def weights_of_writes(db: sqlite3.Connection, namespace: int) -> Sequence[Weight]:
    rows = db.execute("SELECT id, coalesce(length(data), 0) FROM write WHERE namespace = ? ORDER BY id", (namespace,))
    return [Weight._make(row) for row in rows]


def weights_of_effects(db: sqlite3.Connection, namespace: int) -> Sequence[Weight]:
    rows = db.execute("SELECT id, coalesce(length(data), 0) FROM effect WHERE namespace = ? ORDER BY id", (namespace,))
    return [Weight._make(row) for row in rows]


def weights_of_blobs(db: sqlite3.Connection, namespace: int) -> Sequence[Weight]:
    """Channel by channel, bases first."""
    rows = db.execute(
        "SELECT id, coalesce(length(data), 0) FROM blob WHERE namespace = ? ORDER BY channel, id", (namespace,)
    )
    return [Weight._make(row) for row in rows]


def checkpoints_at(db: sqlite3.Connection, seqs: Sequence[int]) -> Sequence[CheckpointRow]:
    rows = db.execute(CHECKPOINT + "JOIN json_each(?) j ON c.seq = j.value ORDER BY j.key", (json.dumps(seqs),))
    return list(map(Opener(db).checkpoint, rows))


def writes_at(db: sqlite3.Connection, ids: Sequence[int]) -> Sequence[WriteRow]:
    rows = db.execute(
        WRITE + " FROM json_each(?) j CROSS JOIN write w ON w.id = j.value ORDER BY j.key", (json.dumps(ids),)
    )
    return list(map(Opener(db).write, rows))


def effects_at(db: sqlite3.Connection, ids: Sequence[int]) -> Sequence[EffectRow]:
    rows = db.execute(EFFECT + " CROSS JOIN json_each(?) j ON e.id = j.value ORDER BY j.key", (json.dumps(ids),))
    return list(map(Opener(db).effect, rows))


def blobs_at(db: sqlite3.Connection, ids: Sequence[int]) -> Sequence[BlobRow]:
    rows = db.execute(
        BLOB + "json_each(?) j CROSS JOIN blob b ON b.id = j.value ORDER BY j.key",
        (json.dumps(ids),),
    )
    return list(map(Opener(db).blob, rows))
