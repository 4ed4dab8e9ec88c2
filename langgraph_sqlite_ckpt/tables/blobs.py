"""Values, each with what it was compressed against."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from langgraph_sqlite_ckpt import sealing
from langgraph_sqlite_ckpt.tables.opening import Opener, Sealer, keyring_of, names_of
from langgraph_sqlite_ckpt.tables.resealing import reseal_blob
from langgraph_sqlite_ckpt.tables.rows import BLOB, BLOB_HEAD, NO_VALUE, BlobHead, BlobName, BlobRow, NewBlob, new_id


def blobs_named(db: sqlite3.Connection, names: Iterable[BlobName]) -> Sequence[BlobHead]:
    """The blobs of these names; no bytes are read."""
    rows = db.execute(BLOB_HEAD + " FROM json_each(?) j CROSS JOIN blob b" + _NAMED, (json.dumps(list(names)),))
    return [BlobHead._make(row) for row in rows]


def newest_blob(db: sqlite3.Connection, namespace: int, channel: str) -> BlobHead | None:
    row = db.execute(
        BLOB_HEAD + " FROM blob b WHERE b.namespace = ? AND b.channel = ? AND b.version IS NOT NULL"
        " ORDER BY b.id DESC LIMIT 1",
        (namespace, channel),
    ).fetchone()
    return BlobHead._make(row) if row else None


def blobs_of_channels(db: sqlite3.Connection, namespace: int, channels: Iterable[str]) -> Sequence[BlobHead]:
    rows = db.execute(
        BLOB_HEAD + " FROM json_each(?) j CROSS JOIN blob b ON b.namespace = ? AND b.channel = j.value"
        " AND b.version IS NOT NULL",
        (json.dumps(list(channels)), namespace),
    )
    return [BlobHead._make(row) for row in rows]


def blobs_of(db: sqlite3.Connection, namespace: int) -> Sequence[BlobHead]:
    """Every blob of a namespace, bases before what was compressed against them; no bytes are read."""
    rows = db.execute(BLOB_HEAD + " FROM blob b WHERE b.namespace = ? ORDER BY b.id", (namespace,))
    return [BlobHead._make(row) for row in rows]


def chain(db: sqlite3.Connection, ids: Iterable[int]) -> Sequence[BlobRow]:
    """These blobs and everything that they were compressed against, bases first. A forged loop ends where it closes."""
    rows = db.execute(
        "WITH RECURSIVE wanted (id) AS (SELECT value FROM json_each(?)" + _AND_THEIR_BASES, (json.dumps(list(ids)),)
    )
    return list(map(Opener(db).blob, rows))


def chain_named(db: sqlite3.Connection, names: Iterable[BlobName]) -> Sequence[BlobRow]:
    """The same for the blobs of these names."""
    rows = db.execute(
        "WITH RECURSIVE wanted (id) AS (SELECT b.id FROM json_each(?) j CROSS JOIN blob b" + _NAMED + _AND_THEIR_BASES,
        (json.dumps(list(names)),),
    )
    return list(map(Opener(db).blob, rows))


_NAMED = """ ON b.id = (SELECT x.id FROM blob x WHERE x.namespace = json_extract(j.value, '$[0]')
    AND x.channel = json_extract(j.value, '$[1]') AND x.version = json_extract(j.value, '$[2]')
    AND x.state_version <= json_extract(j.value, '$[3]') ORDER BY x.state_version DESC LIMIT 1)"""


_AND_THEIR_BASES = """
    UNION SELECT b.base FROM wanted CROSS JOIN blob b ON b.id = wanted.id WHERE b.base IS NOT NULL)
    SELECT b.id, b.namespace, b.channel, b.version, b.state_version, b.type, b.position, b.size, b.codec, b.base,
    b.checksum, b.data, b.key_id FROM wanted CROSS JOIN blob b ON b.id = wanted.id ORDER BY b.id"""


def missing_blobs(db: sqlite3.Connection, ids: Iterable[int]) -> Sequence[int]:
    rows = db.execute(
        "SELECT j.value FROM json_each(?) j WHERE NOT EXISTS (SELECT 1 FROM blob b WHERE b.id = j.value)",
        (json.dumps(list(ids)),),
    )
    return [row[0] for row in rows]


def insert_blob(db: sqlite3.Connection, namespace: int, new: NewBlob) -> int:
    sealer = Sealer.of(db, namespace)
    return new_id(
        db.execute(
            "INSERT INTO blob (namespace, channel, version, state_version, type, codec, base, position, size, checksum,"
            " data, key_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (namespace, *sealer.blob(new), sealer.key_id),
        )
    )


def repack_blob(db: sqlite3.Connection, blob: int, new: NewBlob) -> None:
    """The same value, packed otherwise."""
    sealer = Sealer.of(db, db.execute("SELECT namespace FROM blob WHERE id = ?", (blob,)).fetchone()[0])
    new = sealer.blob(new)
    db.execute(
        "UPDATE blob SET codec = ?, base = ?, position = ?, size = ?, checksum = ?, data = ?, key_id = ? WHERE id = ?",
        (new.codec, new.base, new.position, new.size, new.checksum, new.data, sealer.key_id, blob),
    )


def empty_blob(db: sqlite3.Connection, blob: int) -> None:
    """Its version has no value any more, and other checkpoints that name it must not miss one."""
    sealed = _sealed_blob(db, blob)
    db.execute("UPDATE blob SET type = ? WHERE id = ?", (NO_VALUE, blob))
    if sealed is not None:
        reseal_blob(db, names_of(db, sealed.namespace), sealed._replace(type=NO_VALUE))


def retire_blob(db: sqlite3.Connection, blob: int) -> None:
    """No version means this value any more. It stays, for what was compressed against it."""
    sealed = _sealed_blob(db, blob)
    db.execute("UPDATE blob SET version = NULL WHERE id = ?", (blob,))
    if sealed is not None:
        reseal_blob(db, names_of(db, sealed.namespace), sealed._replace(version=None))


def _sealed_blob(db: sqlite3.Connection, blob: int) -> BlobRow | None:
    """Opened, to be sealed again under another name; None where it is plain, or damaged."""
    row = db.execute(BLOB + "blob b WHERE b.id = ? AND b.key_id IS NOT NULL", (blob,)).fetchone()
    if row is None:
        return None
    opened = Opener(db).blob(row)
    names = names_of(db, opened.namespace)
    sealing.require_key(keyring_of(db), row[-1], names)
    return None if sealing.is_damaged(opened.data) else opened


def release_blobs(db: sqlite3.Connection, namespace: int, ids: Iterable[int]) -> None:
    """They go, or stay as the base of others."""
    ids = list(ids)
    for (key_id,) in db.execute(
        "SELECT DISTINCT b.key_id FROM json_each(?) j CROSS JOIN blob b ON b.id = j.value WHERE b.key_id IS NOT NULL",
        (json.dumps(ids),),
    ).fetchall():
        sealing.require_key(keyring_of(db), key_id, names_of(db, namespace))  # before the first of them
    for blob in ids:
        retire_blob(db, blob)
    delete_unneeded_blobs(db, namespace)


def delete_unneeded_blobs(db: sqlite3.Connection, namespace: int) -> None:
    """Those that no version means and nothing leans on, and then those that only they leaned on."""
    unneeded = (
        "DELETE FROM blob WHERE namespace = ? AND version IS NULL AND id NOT IN"
        " (SELECT base FROM blob WHERE namespace = ? AND base IS NOT NULL)"
    )
    while db.execute(unneeded, (namespace, namespace)).rowcount > 0:
        pass


def delete_blobs(db: sqlite3.Connection, ids: Iterable[int]) -> None:
    db.executemany("DELETE FROM blob WHERE id = ?", [(blob,) for blob in ids])


def blobs_leaning_on(db: sqlite3.Connection, ids: Iterable[int]) -> Sequence[BlobHead]:
    rows = db.execute(
        BLOB_HEAD + " FROM json_each(?) j CROSS JOIN blob b ON b.base = j.value ORDER BY b.id",
        (json.dumps(list(ids)),),
    )
    return [BlobHead._make(row) for row in rows]


def copy_blob(db: sqlite3.Connection, blob: int, target: int, base: int | None) -> int:
    return new_id(
        db.execute(
            "INSERT INTO blob (namespace, channel, version, state_version, type, codec, base, position, size, checksum,"
            " key_id, data) SELECT ?, channel, version, state_version, type, codec, ?, position, size, checksum, key_id,"
            " data FROM blob WHERE id = ?",
            (target, base, blob),
        )
    )


def bases_of(db: sqlite3.Connection, namespace: int) -> dict[int, int | None]:
    """Each blob of a namespace with what it was compressed against, bases first."""
    return dict(db.execute("SELECT id, base FROM blob WHERE namespace = ? ORDER BY id", (namespace,)))
