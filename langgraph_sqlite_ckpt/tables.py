"""Every SQL statement that touches the tables, one named function each: rows in, rows out.

This module knows `sqlite3` and nothing of LangGraph. Values are always bound. Where a statement takes many keys they are
bound as one JSON array, so that SQLite's limit on variables is never met and the statement is prepared once.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Union

Version = Union[str, int, float]


class CheckpointRow(NamedTuple):
    seq: int
    namespace: int
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str
    metadata: str
    exact_type: str | None
    exact: bytes | None
    body_codec: int
    body_size: int
    body: bytes
    beside: str | None
    rest_type: str | None
    rest_codec: int | None
    rest_size: int | None
    rest: bytes | None
    checksum: int


class MetadataRow(NamedTuple):
    seq: int
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    metadata: str
    exact_type: str | None
    exact: bytes | None


class NewCheckpoint(NamedTuple):
    """A checkpoint as `put` stores it; its namespace and its place in the order are the transaction's to give."""

    checkpoint_id: str
    parent_id: str | None
    step: int | float | None
    source: str | None
    next: str
    created_at: str
    metadata: str
    exact_type: str | None
    exact: bytes | None
    body_codec: int
    body_size: int
    body: bytes
    beside: str | None
    rest_type: str | None
    rest_codec: int | None
    rest_size: int | None
    rest: bytes | None
    checksum: int


class BlobHead(NamedTuple):
    """A blob without its bytes."""

    id: int
    namespace: int
    channel: str
    version: Version | None
    type: str
    position: int
    size: int


class BlobRow(NamedTuple):
    id: int
    namespace: int
    channel: str
    version: Version | None
    type: str
    position: int
    size: int
    codec: int
    base: int | None
    checksum: int
    data: bytes


class NewBlob(NamedTuple):
    channel: str
    version: Version
    type: str
    codec: int
    base: int | None
    position: int
    size: int
    checksum: int
    data: bytes


class WriteRow(NamedTuple):
    namespace: int
    checkpoint_id: str
    task_id: str
    channel: str
    type: str
    codec: int
    size: int
    checksum: int
    data: bytes


class NewWrite(NamedTuple):
    task_id: str
    idx: int
    task_path: str
    channel: str
    type: str
    codec: int
    size: int
    checksum: int
    data: bytes


class Standing(NamedTuple):
    """Where a new checkpoint would stand: its namespace, whether it is there already, and its parent."""

    namespace: int
    present: bool
    parent_run: str | None
    parent_has_child: bool


_CHECKPOINT = """
    SELECT c.seq, c.namespace, n.thread_id, n.checkpoint_ns, c.checkpoint_id, c.parent_id, c.run_id, c.metadata,
        c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside, c.rest_type, c.rest_codec, c.rest_size, c.rest,
        c.checksum
    FROM checkpoint c JOIN namespace n ON n.id = c.namespace
"""
_BLOB_HEAD = "SELECT b.id, b.namespace, b.channel, b.version, b.type, b.position, b.size"
_WRITE = "SELECT w.namespace, w.checkpoint_id, w.task_id, w.channel, w.type, w.codec, w.size, w.checksum, w.data"


# --- namespaces ---


def find_namespace(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str) -> int | None:
    row = db.execute(
        "SELECT id FROM namespace WHERE thread_id = ? AND checkpoint_ns = ?", (thread_id, checkpoint_ns)
    ).fetchone()
    return row[0] if row else None


def intern_namespace(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str) -> int:
    found = find_namespace(db, thread_id, checkpoint_ns)
    if found is not None:
        return found
    return _new_id(db.execute("INSERT INTO namespace (thread_id, checkpoint_ns) VALUES (?, ?)", (thread_id, checkpoint_ns)))


def namespaces_of(db: sqlite3.Connection, thread_id: str) -> Sequence[tuple[int, str]]:
    return db.execute("SELECT id, checkpoint_ns FROM namespace WHERE thread_id = ? ORDER BY id", (thread_id,)).fetchall()


def name_of_namespace(db: sqlite3.Connection, namespace: int) -> tuple[str, str] | None:
    """Its thread_id and checkpoint_ns; None where somebody deleted it."""
    row: tuple[str, str] | None = db.execute(
        "SELECT thread_id, checkpoint_ns FROM namespace WHERE id = ?", (namespace,)
    ).fetchone()
    return row


def thread_ids(db: sqlite3.Connection) -> Sequence[str]:
    """Oldest first."""
    return [row[0] for row in db.execute("SELECT thread_id FROM namespace GROUP BY thread_id ORDER BY min(id)")]


def delete_namespace(db: sqlite3.Connection, namespace: int) -> None:
    for statement in (
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


# --- checkpoints ---


def newest_of(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str) -> CheckpointRow | None:
    row = db.execute(
        _CHECKPOINT + "WHERE n.thread_id = ? AND n.checkpoint_ns = ? ORDER BY c.seq DESC LIMIT 1",
        (thread_id, checkpoint_ns),
    ).fetchone()
    return CheckpointRow._make(row) if row else None


def named_of(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> CheckpointRow | None:
    row = db.execute(
        _CHECKPOINT + "WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND c.checkpoint_id = ?",
        (thread_id, checkpoint_ns, checkpoint_id),
    ).fetchone()
    return CheckpointRow._make(row) if row else None


def latest_checkpoint(db: sqlite3.Connection, namespace: int) -> CheckpointRow | None:
    row = db.execute(_CHECKPOINT + "WHERE c.namespace = ? ORDER BY c.seq DESC LIMIT 1", (namespace,)).fetchone()
    return CheckpointRow._make(row) if row else None


def find_checkpoint(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> CheckpointRow | None:
    row = db.execute(_CHECKPOINT + "WHERE c.namespace = ? AND c.checkpoint_id = ?", (namespace, checkpoint_id)).fetchone()
    return CheckpointRow._make(row) if row else None


def select_checkpoints(
    db: sqlite3.Connection, where: str, parameters: Sequence[object], limit: int
) -> Sequence[CheckpointRow]:
    """`where` is composed by `listing.py` from literals of its own; every value in it is bound."""
    rows = db.execute(_CHECKPOINT + where + " ORDER BY c.seq DESC LIMIT ?", (*parameters, limit))
    return [CheckpointRow._make(row) for row in rows]


def select_metadata(db: sqlite3.Connection, where: str, parameters: Sequence[object], limit: int) -> Sequence[MetadataRow]:
    """Like `select_checkpoints`, of the metadata alone: to look through many rows and load few."""
    rows = db.execute(
        "SELECT c.seq, n.thread_id, n.checkpoint_ns, c.checkpoint_id, c.metadata, c.exact_type, c.exact"
        " FROM checkpoint c JOIN namespace n ON n.id = c.namespace " + where + " ORDER BY c.seq DESC LIMIT ?",
        (*parameters, limit),
    )
    return [MetadataRow._make(row) for row in rows]


def ids_of(db: sqlite3.Connection, namespace: int) -> Sequence[tuple[str, str]]:
    """(checkpoint_id, run_id) of every checkpoint, oldest first."""
    return db.execute(
        "SELECT checkpoint_id, run_id FROM checkpoint WHERE namespace = ? ORDER BY seq", (namespace,)
    ).fetchall()


def ancestors(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Iterator[CheckpointRow]:
    """The checkpoint, its parent, its parent's parent, ..., read as they are asked for, in one statement.

    A chain that loops never ends: the caller stops at an id that it has seen. CROSS JOIN keeps `line` outside, so that
    each step is one look-up.
    """
    rows = db.execute(
        "WITH RECURSIVE line (seq, parent_id) AS ("
        " SELECT seq, parent_id FROM checkpoint WHERE namespace = :namespace AND checkpoint_id = :checkpoint_id"
        " UNION ALL SELECT p.seq, p.parent_id FROM line CROSS JOIN checkpoint p"
        " ON p.namespace = :namespace AND p.checkpoint_id = line.parent_id)"
        " SELECT c.seq, c.namespace, n.thread_id, n.checkpoint_ns, c.checkpoint_id, c.parent_id, c.run_id, c.metadata,"
        " c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside, c.rest_type, c.rest_codec, c.rest_size,"
        " c.rest, c.checksum"
        " FROM line CROSS JOIN checkpoint c ON c.seq = line.seq CROSS JOIN namespace n ON n.id = c.namespace",
        {"namespace": namespace, "checkpoint_id": checkpoint_id},
    )
    return (CheckpointRow._make(row) for row in rows)


def find_standing(
    db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str, parent_id: str | None
) -> Standing:
    """In one statement; the namespace is made where it is new."""
    row = db.execute(
        "SELECT n.id, EXISTS (SELECT 1 FROM checkpoint c WHERE c.namespace = n.id AND c.checkpoint_id = ?),"
        " p.run_id, p.has_child FROM namespace n"
        " LEFT JOIN checkpoint p ON p.namespace = n.id AND p.checkpoint_id = ?"
        " WHERE n.thread_id = ? AND n.checkpoint_ns = ?",
        (checkpoint_id, parent_id, thread_id, checkpoint_ns),
    ).fetchone()
    if row is None:
        namespace = intern_namespace(db, thread_id, checkpoint_ns)
        return Standing(namespace, present=False, parent_run=None, parent_has_child=False)
    return Standing(row[0], bool(row[1]), row[2], bool(row[3]))


def run_of_checkpoint(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> str | None:
    row = db.execute(
        "SELECT c.run_id FROM namespace n JOIN checkpoint c ON c.namespace = n.id"
        " WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND c.checkpoint_id = ?",
        (thread_id, checkpoint_ns, checkpoint_id),
    ).fetchone()
    return row[0] if row else None


def insert_checkpoint(db: sqlite3.Connection, namespace: int, run_id: str, new: NewCheckpoint) -> None:
    db.execute(
        "INSERT INTO checkpoint (namespace, run_id, checkpoint_id, parent_id, step, source, next, created_at, metadata,"
        " exact_type, exact, body_codec, body_size, body, beside, rest_type, rest_codec, rest_size, rest, checksum)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (namespace, run_id, *new),
    )


def replace_checkpoint(db: sqlite3.Connection, namespace: int, run_id: str | None, new: NewCheckpoint) -> None:
    """A checkpoint that is put again keeps its place in the order, and its run unless it names one."""
    db.execute(
        "UPDATE checkpoint SET run_id = coalesce(?, run_id), checkpoint_id = ?, parent_id = ?, step = ?, source = ?,"
        " next = ?, created_at = ?, metadata = ?, exact_type = ?, exact = ?, body_codec = ?, body_size = ?, body = ?,"
        " beside = ?, rest_type = ?, rest_codec = ?, rest_size = ?, rest = ?, checksum = ?"
        " WHERE namespace = ? AND checkpoint_id = ?",
        (run_id, *new, namespace, new.checkpoint_id),
    )


def delete_checkpoints(db: sqlite3.Connection, namespace: int, checkpoint_ids: Iterable[str]) -> None:
    """With their writes; children of theirs become checkpoints without a parent, parents ones without a child."""
    keys = [(namespace, checkpoint_id) for checkpoint_id in checkpoint_ids]
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


def namespaces_of_runs(db: sqlite3.Connection, run_ids: Sequence[str]) -> Sequence[int]:
    rows = db.execute(
        "SELECT DISTINCT c.namespace FROM json_each(?) j CROSS JOIN checkpoint c ON c.run_id = j.value",
        (json.dumps(run_ids),),
    )
    return [row[0] for row in rows]


def copy_checkpoints(db: sqlite3.Connection, source: str, target: str) -> None:
    """Of a whole thread, in its order, so that the copy has the same latest and the same history."""
    db.execute(
        "INSERT INTO checkpoint (namespace, checkpoint_id, parent_id, run_id, step, source, next, created_at, has_child,"
        " state_version, metadata, exact_type, exact, body_codec, body_size, body, beside, rest_type, rest_codec,"
        " rest_size, rest, checksum, key_id)"
        " SELECT t.id, c.checkpoint_id, c.parent_id, c.run_id, c.step, c.source, c.next, c.created_at, c.has_child,"
        " c.state_version, c.metadata, c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside, c.rest_type,"
        " c.rest_codec, c.rest_size, c.rest, c.checksum, c.key_id"
        " FROM namespace s JOIN checkpoint c ON c.namespace = s.id"
        " JOIN namespace t ON t.thread_id = ? AND t.checkpoint_ns = s.checkpoint_ns"
        " WHERE s.thread_id = ? ORDER BY c.seq",
        (target, source),
    )


# --- blobs ---


def blobs_named(db: sqlite3.Connection, names: Iterable[tuple[int, str, Version]]) -> Sequence[BlobHead]:
    """The blobs that (namespace, channel, version) triples name; no bytes are read."""
    rows = db.execute(_BLOB_HEAD + " FROM json_each(?) j CROSS JOIN blob b" + _NAMED, (json.dumps(list(names)),))
    return [BlobHead._make(row) for row in rows]


def newest_blob(db: sqlite3.Connection, namespace: int, channel: str) -> BlobHead | None:
    row = db.execute(
        _BLOB_HEAD + " FROM blob b WHERE b.namespace = ? AND b.channel = ? AND b.version IS NOT NULL"
        " ORDER BY b.id DESC LIMIT 1",
        (namespace, channel),
    ).fetchone()
    return BlobHead._make(row) if row else None


def blobs_of_channels(db: sqlite3.Connection, namespace: int, channels: Iterable[str]) -> Sequence[BlobHead]:
    rows = db.execute(
        _BLOB_HEAD + " FROM json_each(?) j CROSS JOIN blob b ON b.namespace = ? AND b.channel = j.value"
        " AND b.version IS NOT NULL",
        (json.dumps(list(channels)), namespace),
    )
    return [BlobHead._make(row) for row in rows]


def blobs_of(db: sqlite3.Connection, namespace: int) -> Sequence[BlobHead]:
    """Every blob of a namespace, bases before what was compressed against them; no bytes are read."""
    rows = db.execute(_BLOB_HEAD + " FROM blob b WHERE b.namespace = ? ORDER BY b.id", (namespace,))
    return [BlobHead._make(row) for row in rows]


def chain(db: sqlite3.Connection, ids: Iterable[int]) -> Sequence[BlobRow]:
    """These blobs and everything that they were compressed against, bases first. A forged loop ends where it closes."""
    rows = db.execute(
        "WITH RECURSIVE wanted (id) AS (SELECT value FROM json_each(?)" + _AND_THEIR_BASES, (json.dumps(list(ids)),)
    )
    return [BlobRow._make(row) for row in rows]


def chain_named(db: sqlite3.Connection, names: Iterable[tuple[int, str, Version]]) -> Sequence[BlobRow]:
    """The same for the blobs that (namespace, channel, version) triples name."""
    rows = db.execute(
        "WITH RECURSIVE wanted (id) AS (SELECT b.id FROM json_each(?) j CROSS JOIN blob b" + _NAMED + _AND_THEIR_BASES,
        (json.dumps(list(names)),),
    )
    return [BlobRow._make(row) for row in rows]


_NAMED = """ ON b.namespace = json_extract(j.value, '$[0]') AND b.channel = json_extract(j.value, '$[1]')
    AND b.version = json_extract(j.value, '$[2]')"""
_AND_THEIR_BASES = """
    UNION SELECT b.base FROM wanted CROSS JOIN blob b ON b.id = wanted.id WHERE b.base IS NOT NULL)
    SELECT b.id, b.namespace, b.channel, b.version, b.type, b.position, b.size, b.codec, b.base, b.checksum, b.data
    FROM wanted CROSS JOIN blob b ON b.id = wanted.id ORDER BY b.id"""


def missing_blobs(db: sqlite3.Connection, ids: Iterable[int]) -> Sequence[int]:
    rows = db.execute(
        "SELECT j.value FROM json_each(?) j WHERE NOT EXISTS (SELECT 1 FROM blob b WHERE b.id = j.value)",
        (json.dumps(list(ids)),),
    )
    return [row[0] for row in rows]


def insert_blob(db: sqlite3.Connection, namespace: int, new: NewBlob) -> int:
    return _new_id(
        db.execute(
            "INSERT INTO blob (namespace, channel, version, type, codec, base, position, size, checksum, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (namespace, *new),
        )
    )


def repack_blob(db: sqlite3.Connection, blob: int, new: NewBlob) -> None:
    """The same value, packed otherwise."""
    db.execute(
        "UPDATE blob SET codec = ?, base = ?, position = ?, size = ?, checksum = ?, data = ? WHERE id = ?",
        (new.codec, new.base, new.position, new.size, new.checksum, new.data, blob),
    )


def retire_blob(db: sqlite3.Connection, blob: int) -> None:
    """No version means this value any more. It stays, for what was compressed against it."""
    db.execute("UPDATE blob SET version = NULL WHERE id = ?", (blob,))


def release_blobs(db: sqlite3.Connection, namespace: int, ids: Iterable[int]) -> None:
    """They go, or stay as the base of others."""
    db.executemany("UPDATE blob SET version = NULL WHERE id = ?", [(blob,) for blob in ids])
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
        _BLOB_HEAD + " FROM json_each(?) j CROSS JOIN blob b ON b.base = j.value ORDER BY b.id",
        (json.dumps(list(ids)),),
    )
    return [BlobHead._make(row) for row in rows]


def copy_blob(db: sqlite3.Connection, blob: int, target: int, base: int | None) -> int:
    return _new_id(
        db.execute(
            "INSERT INTO blob (namespace, channel, version, type, codec, base, position, size, checksum, key_id, data)"
            " SELECT ?, channel, version, type, codec, ?, position, size, checksum, key_id, data FROM blob WHERE id = ?",
            (target, base, blob),
        )
    )


def bases_of(db: sqlite3.Connection, namespace: int) -> dict[int, int | None]:
    """Each blob of a namespace with what it was compressed against, bases first."""
    return dict(db.execute("SELECT id, base FROM blob WHERE namespace = ? ORDER BY id", (namespace,)))


# --- writes ---


def writes_of(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Sequence[WriteRow]:
    """In the order in which LangGraph applies them (`writes_sort_key`)."""
    rows = db.execute(
        _WRITE + " FROM write w WHERE w.namespace = ? AND w.checkpoint_id = ? ORDER BY w.task_path, w.task_id, w.idx",
        (namespace, checkpoint_id),
    )
    return [WriteRow._make(row) for row in rows]


def task_paths(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> Mapping[str, str]:
    """By task, of the writes of one checkpoint."""
    return dict(
        db.execute(
            "SELECT w.task_id, w.task_path FROM namespace n JOIN write w ON w.namespace = n.id"
            " WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND w.checkpoint_id = ?",
            (thread_id, checkpoint_ns, checkpoint_id),
        )
    )


def counts_of_writes(db: sqlite3.Connection, namespace: int) -> Sequence[tuple[str, int]]:
    """Each checkpoint of a namespace with how many writes it has."""
    return db.execute(
        "SELECT c.checkpoint_id, (SELECT count(*) FROM write w WHERE w.namespace = c.namespace"
        " AND w.checkpoint_id = c.checkpoint_id) FROM checkpoint c WHERE c.namespace = ?",
        (namespace,),
    ).fetchall()


def writes_of_many(db: sqlite3.Connection, keys: Iterable[tuple[int, str]]) -> Sequence[WriteRow]:
    """The writes of (namespace, checkpoint id) pairs, in order within each."""
    rows = db.execute(
        _WRITE + " FROM json_each(?) j CROSS JOIN write w ON w.namespace = json_extract(j.value, '$[0]')"
        " AND w.checkpoint_id = json_extract(j.value, '$[1]') ORDER BY w.task_path, w.task_id, w.idx",
        (json.dumps(list(keys)),),
    )
    return [WriteRow._make(row) for row in rows]


def writes_of_namespace(db: sqlite3.Connection, namespace: int) -> Iterator[WriteRow]:
    rows = db.execute(_WRITE + " FROM write w WHERE w.namespace = ? ORDER BY w.id", (namespace,))
    return (WriteRow._make(row) for row in rows)


def writes_to_channels(
    db: sqlite3.Connection, namespace: int, checkpoint_ids: Iterable[str], channels: Iterable[str]
) -> Sequence[WriteRow]:
    rows = db.execute(
        _WRITE + " FROM json_each(?) j CROSS JOIN write w ON w.namespace = ? AND w.checkpoint_id = j.value"
        " WHERE w.channel IN (SELECT value FROM json_each(?)) ORDER BY w.task_path, w.task_id, w.idx",
        (json.dumps(list(checkpoint_ids)), namespace, json.dumps(list(channels))),
    )
    return [WriteRow._make(row) for row in rows]


def keep_first_writes(db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]) -> None:
    db.executemany("INSERT OR IGNORE" + _INTO_WRITE, [(namespace, checkpoint_id, *write) for write in new])


def replace_writes(db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]) -> None:
    """The new rows get new ids: they count as written now."""
    db.executemany("INSERT OR REPLACE" + _INTO_WRITE, [(namespace, checkpoint_id, *write) for write in new])


_INTO_WRITE = (
    " INTO write (namespace, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum, data)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def copy_writes(db: sqlite3.Connection, source: int, target: int) -> None:
    db.execute(
        "INSERT INTO write (namespace, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum,"
        " key_id, data) SELECT ?, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum, key_id,"
        " data FROM write WHERE namespace = ? ORDER BY id",
        (target, source),
    )


def _new_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # an INSERT that did not raise made a row
    return cursor.lastrowid


# --- overviews: through the views, which name what people see; no value is read ---

_OVERVIEW = ("thread_id", "status", "next", "step", "run_id", "created_at", "updated_at", "checkpoints", "number")


class Pages(NamedTuple):
    page_size: int
    pages: int
    free: int


def threads(db: sqlite3.Connection, wanted: Mapping[str, object]) -> Sequence[dict[str, Any]]:
    """Keyset pages: those numbered below `:number`. A null bound is no bound."""
    rows = db.execute(
        "SELECT t.thread_id, t.status, t.next, t.step, t.run_id, t.created_at, t.updated_at, t.checkpoints, n.id"
        " FROM namespace n JOIN threads t ON t.thread_id = n.thread_id"
        " WHERE n.checkpoint_ns = '' AND n.id < :number AND (:status IS NULL OR t.status = :status)"
        " AND (:before IS NULL OR t.updated_at < :before) AND (:after IS NULL OR t.updated_at > :after)"
        " ORDER BY n.id DESC LIMIT :limit",
        wanted,
    )
    return [dict(zip(_OVERVIEW, row, strict=True)) for row in rows]


def runs(db: sqlite3.Connection, wanted: Mapping[str, object]) -> Sequence[dict[str, Any]]:
    """Keyset pages: those numbered below `:number`. Without "or null", so that SQLite starts from the thread."""
    of_thread = " AND r.thread_id = :thread_id" if wanted["thread_id"] is not None else ""
    rows = db.execute(
        "SELECT r.thread_id, r.status, r.next, r.step, r.run_id, r.created_at, r.updated_at, r.checkpoints, r.seq"
        " FROM runs r WHERE r.seq < :number AND (:status IS NULL OR r.status = :status)"
        + of_thread
        + " ORDER BY r.seq DESC LIMIT :limit",
        wanted,
    )
    return [dict(zip(_OVERVIEW, row, strict=True)) for row in rows]


def idle_threads(
    db: sqlite3.Connection, statuses: Sequence[str], updated_before: str | None, after: int, limit: int
) -> Sequence[tuple[int, str]]:
    """(namespace, thread_id) of threads in one of these states, oldest first, from a namespace on."""
    return db.execute(
        "SELECT n.id, t.thread_id FROM namespace n JOIN threads t ON t.thread_id = n.thread_id"
        " WHERE n.checkpoint_ns = '' AND n.id > ? AND t.status IN (SELECT value FROM json_each(?))"
        " AND (? IS NULL OR t.updated_at < ?) ORDER BY n.id LIMIT ?",
        (after, json.dumps(statuses), updated_before, updated_before, limit),
    ).fetchall()


def is_still(db: sqlite3.Connection, thread_id: str, statuses: Sequence[str], updated_before: str | None) -> bool:
    """Whether a thread is in one of these states, and as idle as that."""
    found: int = db.execute(
        "SELECT EXISTS (SELECT 1 FROM threads t WHERE t.thread_id = ?"
        " AND t.status IN (SELECT value FROM json_each(?)) AND (? IS NULL OR t.updated_at < ?))",
        (thread_id, json.dumps(statuses), updated_before, updated_before),
    ).fetchone()[0]
    return bool(found)


def page_counts(db: sqlite3.Connection) -> Pages:
    return Pages(*(db.execute("PRAGMA " + name).fetchone()[0] for name in ("page_size", "page_count", "freelist_count")))


def count_threads(db: sqlite3.Connection) -> int:
    count: int = db.execute("SELECT count(DISTINCT thread_id) FROM namespace").fetchone()[0]
    return count


def count_checkpoints(db: sqlite3.Connection) -> int:
    count: int = db.execute("SELECT count(*) FROM checkpoint").fetchone()[0]
    return count


def sizes_by_thread(db: sqlite3.Connection, top: int) -> Sequence[tuple[str, int, int]]:
    return db.execute(
        "SELECT n.thread_id, sum(s.stored), sum(s.size) FROM ("
        " SELECT namespace, length(data) AS stored, size FROM blob"
        " UNION ALL SELECT namespace, length(data), size FROM write) s"
        " JOIN namespace n ON n.id = s.namespace GROUP BY n.thread_id ORDER BY 2 DESC, 1 LIMIT ?",
        (top,),
    ).fetchall()


def sizes_by_channel(db: sqlite3.Connection, top: int) -> Sequence[tuple[str, int, int]]:
    return db.execute(
        "SELECT s.channel, sum(s.stored), sum(s.size) FROM ("
        " SELECT channel, length(data) AS stored, size FROM blob UNION ALL SELECT channel, length(data), size FROM write) s"
        " GROUP BY s.channel ORDER BY 2 DESC, 1 LIMIT ?",
        (top,),
    ).fetchall()


def stored_bytes(db: sqlite3.Connection, thread_id: str) -> int:
    """What the rows of a thread take, without the pages' own overhead."""
    total: int = db.execute(
        "SELECT coalesce(sum(bytes), 0) FROM ("
        " SELECT length(data) AS bytes, namespace FROM blob UNION ALL SELECT length(data), namespace FROM write"
        " UNION ALL SELECT length(body) + length(metadata) + coalesce(length(rest), 0), namespace FROM checkpoint)"
        " WHERE namespace IN (SELECT id FROM namespace WHERE thread_id = ?)",
        (thread_id,),
    ).fetchone()[0]
    return total


def count_of_namespace(db: sqlite3.Connection, namespace: int) -> int:
    count: int = db.execute("SELECT count(*) FROM checkpoint WHERE namespace = ?", (namespace,)).fetchone()[0]
    return count


def count_of_thread(db: sqlite3.Connection, thread_id: str) -> int:
    count: int = db.execute(
        "SELECT count(*) FROM checkpoint WHERE namespace IN (SELECT id FROM namespace WHERE thread_id = ?)", (thread_id,)
    ).fetchone()[0]
    return count


# --- what `verify` looks for ---


def all_namespaces(db: sqlite3.Connection) -> Sequence[int]:
    return [row[0] for row in db.execute("SELECT id FROM namespace ORDER BY id")]


def blob_rows_of(db: sqlite3.Connection, namespace: int) -> Iterator[BlobRow]:
    """Bases first."""
    rows = db.execute(
        "SELECT b.id, b.namespace, b.channel, b.version, b.type, b.position, b.size, b.codec, b.base, b.checksum, b.data"
        " FROM blob b WHERE b.namespace = ? ORDER BY b.channel, b.id",
        (namespace,),
    )
    return (BlobRow._make(row) for row in rows)


def orphans(db: sqlite3.Connection) -> Sequence[tuple[str, int]]:
    """(kind, id) of rows that belong to no namespace, lean on nothing that is there, or are needed by nobody."""
    return db.execute(
        "SELECT 'checkpoint without a namespace', seq FROM checkpoint WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'write without a namespace', id FROM write WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'value without a namespace', id FROM blob WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'value whose base is gone', id FROM blob"
        "  WHERE base IS NOT NULL AND base NOT IN (SELECT id FROM blob)"
        " UNION ALL SELECT 'value that nothing needs', id FROM blob"
        "  WHERE version IS NULL AND id NOT IN (SELECT base FROM blob WHERE base IS NOT NULL)"
    ).fetchall()


def objects(db: sqlite3.Connection) -> Sequence[tuple[str, str]]:
    """(type, name) of everything in the schema."""
    return db.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY 1, 2").fetchall()


def give_back_pages(db: sqlite3.Connection, pages: int) -> None:
    """Free pages, back to the disk."""
    db.executescript(f"PRAGMA incremental_vacuum({int(pages)})")  # `execute` would only take its first step


def copy_wal_back(db: sqlite3.Connection) -> None:
    """The -wal into the main file, and cut to nothing where no reader is in the way."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def integrity_check(db: sqlite3.Connection) -> Sequence[str]:
    """SQLite's own complaints; none where all is well."""
    return [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]


# --- whole threads, out of one file and into another ---


class BlobOfThread(NamedTuple):
    """`id` and `base` name blobs of the same thread."""

    checkpoint_ns: str
    id: int
    base: int | None
    channel: str
    version: Union[str, int, float, None]
    type: str
    codec: int
    position: int
    size: int
    checksum: int
    data: bytes


class CheckpointOfThread(NamedTuple):
    checkpoint_ns: str
    run_id: str
    checkpoint_id: str
    parent_id: Union[str, None]
    step: Union[int, float, None]
    source: Union[str, None]
    next: str
    created_at: str
    metadata: str
    exact_type: Union[str, None]
    exact: Union[bytes, None]
    body_codec: int
    body_size: int
    body: bytes
    beside: Union[str, None]
    rest_type: Union[str, None]
    rest_codec: Union[int, None]
    rest_size: Union[int, None]
    rest: Union[bytes, None]
    checksum: int


class WriteOfThread(NamedTuple):
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    idx: int
    task_path: str
    channel: str
    type: str
    codec: int
    size: int
    checksum: int
    data: bytes


def blobs_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[BlobOfThread]:
    """Bases before what was compressed against them."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, b.id, b.base, b.channel, b.version, b.type, b.codec, b.position, b.size, b.checksum,"
        " b.data FROM namespace n JOIN blob b ON b.namespace = n.id WHERE n.thread_id = ? ORDER BY b.id",
        (thread_id,),
    )
    return map(BlobOfThread._make, rows)


def checkpoints_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[CheckpointOfThread]:
    """In the order of commits."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, c.run_id, c.checkpoint_id, c.parent_id, c.step, c.source, c.next, c.created_at,"
        " c.metadata, c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside, c.rest_type, c.rest_codec,"
        " c.rest_size, c.rest, c.checksum"
        " FROM namespace n JOIN checkpoint c ON c.namespace = n.id WHERE n.thread_id = ? ORDER BY c.seq",
        (thread_id,),
    )
    return map(CheckpointOfThread._make, rows)


def writes_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[WriteOfThread]:
    """In the order in which they were written."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data FROM namespace n JOIN write w ON w.namespace = n.id WHERE n.thread_id = ? ORDER BY w.id",
        (thread_id,),
    )
    return map(WriteOfThread._make, rows)


def insert_blob_of_thread(db: sqlite3.Connection, namespace: int, row: BlobOfThread, base: int | None) -> int:
    return _new_id(
        db.execute(
            "INSERT INTO blob (namespace, base, channel, version, type, codec, position, size, checksum, data)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (namespace, base, *row[3:]),
        )
    )


def insert_checkpoint_of_thread(db: sqlite3.Connection, namespace: int, row: CheckpointOfThread) -> None:
    insert_checkpoint(db, namespace, row.run_id, NewCheckpoint(*row[2:]))


def insert_write_of_thread(db: sqlite3.Connection, namespace: int, row: WriteOfThread) -> None:
    db.execute("INSERT" + _INTO_WRITE, (namespace, *row[1:]))


# --- what people look at: the course of a thread ---


class StepRow(NamedTuple):
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str
    step: int | float | None
    source: str | None
    next: str
    status: str
    created_at: str
    metadata: str


def steps_of_thread(db: sqlite3.Connection, thread_id: str) -> Sequence[StepRow]:
    """Every checkpoint without its values, in the order of commits."""
    rows = db.execute(
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, step, source, next, status, created_at,"
        " metadata FROM checkpoints WHERE thread_id = ? ORDER BY seq",
        (thread_id,),
    )
    return [StepRow._make(row) for row in rows]


def special_writes_of_thread(db: sqlite3.Connection, thread_id: str) -> Sequence[WriteOfThread]:
    """Questions and errors, in the order in which they were written."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data FROM namespace n JOIN write w ON w.namespace = n.id"
        " WHERE n.thread_id = ? AND w.channel IN ('__interrupt__', '__error__') ORDER BY w.id",
        (thread_id,),
    )
    return [WriteOfThread._make(row) for row in rows]


def waiting_writes(db: sqlite3.Connection, thread_id: str) -> Sequence[WriteOfThread]:
    """The questions of a thread's latest checkpoint that are not answered: as the view `checkpoints` understands it."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data FROM namespace n JOIN checkpoint c ON c.namespace = n.id"
        " JOIN write w ON w.namespace = n.id AND w.checkpoint_id = c.checkpoint_id"
        " WHERE n.thread_id = ? AND n.checkpoint_ns = '' AND w.channel = '__interrupt__'"
        " AND c.seq = (SELECT max(seq) FROM checkpoint WHERE namespace = n.id) AND NOT EXISTS ("
        " SELECT 1 FROM write later WHERE later.namespace = w.namespace AND later.checkpoint_id = w.checkpoint_id"
        " AND later.id > w.id AND ((later.task_id = w.task_id AND later.channel <> '__resume__')"
        " OR (later.channel = '__resume__' AND later.task_id = '00000000-0000-0000-0000-000000000000')))"
        " ORDER BY w.task_path, w.task_id, w.idx",
        (thread_id,),
    )
    return [WriteOfThread._make(row) for row in rows]
