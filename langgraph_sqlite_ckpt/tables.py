"""Every SQL statement that touches the tables, one named function each: rows in, rows out.

This module knows `sqlite3` and nothing of LangGraph. Values are always bound. Where a statement takes many keys they are
bound as one JSON array, so that SQLite's limit on variables is never met and the statement is prepared once.

Encryption ends here: rows are sealed on the way in, opened on the way out (see `sealing.py`). What does not open comes out
as `Unopened`, so that only who needs it fails.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar, Union

from langgraph_sqlite_ckpt import sealing
from langgraph_sqlite_ckpt.errors import DamagedError
from langgraph_sqlite_ckpt.keys import Keyring
from langgraph_sqlite_ckpt.sealing import Names

Version = Union[str, int, float]
Row = TypeVar("Row")


class BlobName(NamedTuple):
    """What a checkpoint calls a value; its state version is the greatest that the value may have."""

    namespace: int
    channel: str
    version: Version
    state_version: int


class CheckpointRow(NamedTuple):
    """`parent_id` is None where the parent is hidden: only `ancestors` go on through it."""

    seq: int
    namespace: int
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str
    has_child: int
    state_version: int
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
    state_version: int
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


NO_VALUE = "(no value)"
"""The type of a blob whose version was put again without a value: only what was compressed against it needs its bytes."""


class BlobHead(NamedTuple):
    """A blob without its bytes."""

    id: int
    namespace: int
    channel: str
    version: Version | None
    state_version: int
    type: str
    position: int
    size: int


class BlobRow(NamedTuple):
    id: int
    namespace: int
    channel: str
    version: Version | None
    state_version: int
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
    state_version: int
    type: str
    codec: int
    base: int | None
    position: int
    size: int
    checksum: int
    data: bytes


class WriteRow(NamedTuple):
    id: int
    namespace: int
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


class ChannelWrite(NamedTuple):
    """What was written to one of the channels that were asked for; `checkpoint` and `channel` count from 0 in the lists."""

    checkpoint: int
    channel: int
    task_id: str
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
    """Where a new checkpoint would stand: its namespace, its parent, and the state version that it has there already."""

    namespace: int
    state_version: int | None
    parent_run: str | None
    parent_has_child: bool


class OwnerRow(NamedTuple):
    """A saver that wrote: the process it lives in, and until when."""

    id: int
    host: str
    boot: str
    space: str
    pid: int
    started: str
    opened_at: str
    beat_at: str
    ended: str | None


class NewOwner(NamedTuple):
    id: int
    host: str
    boot: str
    space: str
    pid: int
    started: str
    opened_at: str


class Custody(NamedTuple):
    """Who answers for a thread: `owner` wrote to it last, `holder` has claimed it."""

    owner: int
    holder: int | None = None
    claim: int | None = None
    claimed_at: str | None = None
    attempts: int = 0
    mark: str | None = None
    abandoned: int = 0


class EffectRow(NamedTuple):
    """What a task does outside, with its result where it is done."""

    id: int
    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    name: str
    node: str
    key: str
    owner: int
    started_at: str
    finished_at: str | None
    error: str | None
    type: str | None
    codec: int | None
    size: int | None
    checksum: int | None
    data: bytes | None


class EffectTask(NamedTuple):
    """Whose it is."""

    id: int
    task_id: str
    node: str


class EffectHead(NamedTuple):
    """The same without its result, and with what has become of it."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    node: str
    name: str
    key: str
    status: str
    started_at: str
    finished_at: str | None
    error: str | None
    number: int


class NewEffect(NamedTuple):
    namespace: int
    checkpoint_id: str
    task_id: str
    name: str
    node: str
    key: str
    owner: int
    call: int
    started_at: str


class EffectResult(NamedTuple):
    """What an effect gave, packed."""

    finished_at: str
    type: str
    codec: int
    size: int
    checksum: int
    data: bytes


class Judged(NamedTuple):
    """The owners that have not signed off, by what a look at their processes says."""

    alive: Sequence[int]
    gone: Sequence[int]


# `r` is the row as the table has it. SQLite takes a column of `c` from the index where it can, and would not see when a
# damaged index leads to another row: such a row has no checksum here, which makes it damaged.
_COLUMNS = """c.seq, c.namespace, n.thread_id, n.checkpoint_ns, c.checkpoint_id,
    nullif(c.parent_id, (SELECT p.checkpoint_id FROM checkpoint p
        WHERE p.namespace = c.namespace AND p.checkpoint_id = c.parent_id AND p.hidden)) AS parent_id,
    c.run_id, c.has_child, c.state_version, c.metadata, c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside,
    c.rest_type, c.rest_codec, c.rest_size, c.rest,
    (SELECT r.checksum FROM checkpoint r
        WHERE r.seq = c.seq AND +r.namespace = c.namespace AND +r.checkpoint_id = c.checkpoint_id) AS checksum, c.key_id"""
_CHECKPOINT = f"SELECT {_COLUMNS} FROM checkpoint c JOIN namespace n ON n.id = c.namespace "
_BLOB_HEAD = "SELECT b.id, b.namespace, b.channel, b.version, b.state_version, b.type, b.position, b.size"
_WRITE = (
    "SELECT w.id, w.namespace, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
    " w.checksum, w.data, w.key_id"
)
_BLOB = """SELECT b.id, b.namespace, b.channel, b.version, b.state_version, b.type, b.position, b.size, b.codec, b.base,
    b.checksum, b.data, b.key_id FROM """


# --- sealed rows ---


class Connection(sqlite3.Connection):
    """To a file whose rows may be sealed."""

    keyring: Keyring


_PLAIN = Keyring()
_PLAIN.fits = True  # nobody opened the file as a saver does


def _keyring(db: sqlite3.Connection) -> Keyring:
    keyring: Keyring = getattr(db, "keyring", _PLAIN)
    return keyring


class _Opener:
    """Rows as others know them, from those that end with the id of their key."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db, self._keyring = db, _keyring(db)
        self._takes_plain = None in self._keyring
        self._names: dict[int, Names] = {}

    def _is_plain(self, row: Sequence[Any]) -> bool:
        return row[-1] is None and self._takes_plain

    def _of(self, namespace: int) -> Names:
        names = self._names.get(namespace)
        if names is None:
            names = self._names[namespace] = _names_of(self._db, namespace)
        return names

    def checkpoint(self, row: Sequence[Any], names: Names | None = None) -> CheckpointRow:
        made = CheckpointRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_checkpoint(self._keyring, row[-1], names or (made.thread_id, made.checkpoint_ns), made)

    def metadata(self, row: Sequence[Any]) -> MetadataRow:
        made = MetadataRow._make(row[:-1])
        return made if self._is_plain(row) else sealing.open_metadata(self._keyring, row[-1], made)

    def blob(self, row: Sequence[Any], names: Names | None = None) -> BlobRow:
        made = BlobRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_blob(self._keyring, row[-1], names or self._of(made.namespace), made)

    def write(self, row: Sequence[Any], names: Names | None = None) -> WriteRow:
        made = WriteRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_write(self._keyring, row[-1], names or self._of(made.namespace), made)

    def effect(self, row: Sequence[Any], names: Names | None = None) -> EffectRow:
        made = EffectRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_effect(self._keyring, row[-1], names or (made.thread_id, made.checkpoint_ns), made)

    def effect_head(self, row: Sequence[Any]) -> EffectHead:
        made = EffectHead._make(row[:-1])
        if self._is_plain(row):
            return made
        names = made.thread_id, made.checkpoint_ns
        return made._replace(error=sealing.open_error(self._keyring, row[-1], names, made))

    # Rows that leave the file have to be open.

    def blob_of(self, thread_id: str, row: Sequence[Any]) -> BlobOfThread:
        made = BlobOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_blob(self._keyring, row[-1], names, made)
        sealing.require_open(names, made.data)
        return made

    def checkpoint_of(self, thread_id: str, row: Sequence[Any]) -> CheckpointOfThread:
        made = CheckpointOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_checkpoint(self._keyring, row[-1], names, made)
        sealing.require_open(names, made.exact, made.body, made.rest)
        return made

    def write_of(self, thread_id: str, row: Sequence[Any]) -> WriteOfThread:
        made = WriteOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_write(self._keyring, row[-1], names, made)
        sealing.require_open(names, made.data)
        return made

    def effect_of(self, thread_id: str, row: Sequence[Any]) -> EffectOfThread:
        made = EffectOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_effect(self._keyring, row[-1], names, made)
        sealing.require_open(names, made.data, made.error)
        return made


class _Sealer:
    """Rows for one namespace as the file gets them: sealed with the first key, if that is one."""

    def __init__(self, db: sqlite3.Connection, names: Names) -> None:
        self._keyring, self._names = _keyring(db), names
        self.key_id = self._keyring.key_id
        _require_the_key_of_the_file(db, self._keyring)

    @classmethod
    def of(cls, db: sqlite3.Connection, namespace: int) -> _Sealer:
        return cls(db, ("", "") if _keyring(db).key_id is None else _names_of(db, namespace))

    def checkpoint(self, row: sealing.Checkpoint) -> sealing.Checkpoint:
        sealing.require_open(self._names, row.exact, row.body, row.rest)
        return row if self.key_id is None else sealing.seal_checkpoint(self._keyring, self._names, row)

    def blob(self, row: sealing.Blob) -> sealing.Blob:
        sealing.require_open(self._names, row.data)
        return row if self.key_id is None else sealing.seal_blob(self._keyring, self._names, row)

    def write(self, checkpoint_id: str, row: NewWrite) -> NewWrite:
        sealing.require_open(self._names, row.data)
        return row if self.key_id is None else sealing.seal_write(self._keyring, self._names, checkpoint_id, row)

    def effect(self, row: sealing.Effect) -> sealing.Effect:
        sealing.require_open(self._names, row.data, row.error)
        return row if self.key_id is None else sealing.seal_effect(self._keyring, self._names, row)


def _names_of(db: sqlite3.Connection, namespace: int) -> Names:
    return name_of_namespace(db, namespace) or ("", "")


def _require_the_key_of_the_file(db: sqlite3.Connection, keyring: Keyring) -> None:
    """Once: who forgot the key, or has another, must not go on without."""
    if keyring.fits:
        return
    row = db.execute(
        "SELECT c.key_id, n.thread_id FROM checkpoint c JOIN namespace n ON n.id = c.namespace ORDER BY c.seq DESC LIMIT 1"
    ).fetchone()
    if row is not None:
        sealing.require_key(keyring, row[0], (row[1], ""))
    keyring.fits = True


def _reseal_checkpoint(db: sqlite3.Connection, names: Names, row: CheckpointRow) -> None:
    sealer = _Sealer(db, names)
    sealed = sealer.checkpoint(row)
    db.execute(
        "UPDATE checkpoint SET metadata = ?, exact = ?, body = ?, rest = ?, checksum = ?, key_id = ? WHERE seq = ?",
        (sealed.metadata, sealed.exact, sealed.body, sealed.rest, sealed.checksum, sealer.key_id, row.seq),
    )


def _reseal_blob(db: sqlite3.Connection, names: Names, row: BlobRow) -> None:
    sealer = _Sealer(db, names)
    sealed = sealer.blob(row)
    db.execute(
        "UPDATE blob SET checksum = ?, data = ?, key_id = ? WHERE id = ?",
        (sealed.checksum, sealed.data, sealer.key_id, row.id),
    )


def _reseal_write(db: sqlite3.Connection, names: Names, row: WriteRow) -> None:
    sealer = _Sealer(db, names)
    sealed = sealer.write(row.checkpoint_id, NewWrite(*row[3:]))
    db.execute(
        "UPDATE write SET checksum = ?, data = ?, key_id = ? WHERE id = ?",
        (sealed.checksum, sealed.data, sealer.key_id, row.id),
    )


def _reseal_effect(db: sqlite3.Connection, names: Names, row: EffectRow) -> None:
    sealer = _Sealer(db, names)
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
        _reseal_blob(db, _names_of(db, row.namespace), row)


def reseal_writes(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    for row in writes_at(db, ids):
        _reseal_write(db, _names_of(db, row.namespace), row)


def reseal_effects(db: sqlite3.Connection, ids: Sequence[int]) -> None:
    for row in effects_at(db, ids):
        _reseal_effect(db, (row.thread_id, row.checkpoint_ns), row)


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
    names, opener = _names_of(db, namespace), _Opener(db)
    require_keys(db, namespace)
    for seq in db.execute("SELECT seq FROM checkpoint WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            sealed = db.execute(_CHECKPOINT + "WHERE c.seq = ?", seq).fetchone()
            _reseal_checkpoint(db, names, opener.checkpoint(sealed, was))
    for id_ in db.execute("SELECT id FROM blob WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            _reseal_blob(db, names, opener.blob(db.execute(_BLOB + "blob b WHERE b.id = ?", id_).fetchone(), was))
    for id_ in db.execute("SELECT id FROM write WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            _reseal_write(db, names, opener.write(db.execute(_WRITE + " FROM write w WHERE w.id = ?", id_).fetchone(), was))
    for id_ in db.execute("SELECT id FROM effect WHERE namespace = ? AND key_id IS NOT NULL", (namespace,)).fetchall():
        with suppress(DamagedError):
            _reseal_effect(db, names, opener.effect(db.execute(_EFFECT + " WHERE e.id = ?", id_).fetchone(), was))


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
        sealing.require_key(_keyring(db), key_id, _names_of(db, namespace))


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
    was = _names_of(db, namespace)
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


# --- checkpoints ---


def newest_of(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str) -> CheckpointRow | None:
    row = db.execute(
        _CHECKPOINT + "WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND c.hidden = 0 ORDER BY c.seq DESC LIMIT 1",
        (thread_id, checkpoint_ns),
    ).fetchone()
    return _Opener(db).checkpoint(row) if row else None


def named_of(
    db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str, *, hidden: bool
) -> CheckpointRow | None:
    """`hidden`: also where it is."""
    row = db.execute(
        _CHECKPOINT + "WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND c.checkpoint_id = ? AND c.hidden <= ?",
        (thread_id, checkpoint_ns, checkpoint_id, hidden),
    ).fetchone()
    return _Opener(db).checkpoint(row) if row else None


def latest_checkpoint(db: sqlite3.Connection, namespace: int) -> CheckpointRow | None:
    row = db.execute(
        _CHECKPOINT + "WHERE c.namespace = ? AND c.hidden = 0 ORDER BY c.seq DESC LIMIT 1", (namespace,)
    ).fetchone()
    return _Opener(db).checkpoint(row) if row else None


def find_checkpoint(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> CheckpointRow | None:
    """Hidden or not."""
    row = db.execute(_CHECKPOINT + "WHERE c.namespace = ? AND c.checkpoint_id = ?", (namespace, checkpoint_id)).fetchone()
    return _Opener(db).checkpoint(row) if row else None


def select_checkpoints(
    db: sqlite3.Connection, where: str, parameters: Sequence[object], limit: int
) -> Sequence[CheckpointRow]:
    """`where` is composed by `listing.py` from literals of its own; every value in it is bound."""
    rows = db.execute(_CHECKPOINT + where + " ORDER BY c.seq DESC LIMIT ?", (*parameters, limit))
    return list(map(_Opener(db).checkpoint, rows))


def select_metadata(db: sqlite3.Connection, where: str, parameters: Sequence[object], limit: int) -> Sequence[MetadataRow]:
    """Like `select_checkpoints`, of the metadata alone: to look through many rows and load few."""
    rows = db.execute(
        "SELECT c.seq, n.thread_id, n.checkpoint_ns, c.checkpoint_id, c.metadata, c.exact_type, c.exact, c.key_id"
        " FROM checkpoint c JOIN namespace n ON n.id = c.namespace " + where + " ORDER BY c.seq DESC LIMIT ?",
        (*parameters, limit),
    )
    return list(map(_Opener(db).metadata, rows))


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
        _CHECKPOINT + "WHERE c.state_version < ? AND c.seq > ? ORDER BY c.seq LIMIT ?", (state_version, after, limit)
    )
    return list(map(_Opener(db).checkpoint, rows))


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
    sealer = _Sealer.of(db, namespace)
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
    sealer = _Sealer.of(db, namespace)
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


# --- blobs ---


def blobs_named(db: sqlite3.Connection, names: Iterable[BlobName]) -> Sequence[BlobHead]:
    """The blobs of these names; no bytes are read."""
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
    return list(map(_Opener(db).blob, rows))


def chain_named(db: sqlite3.Connection, names: Iterable[BlobName]) -> Sequence[BlobRow]:
    """The same for the blobs of these names."""
    rows = db.execute(
        "WITH RECURSIVE wanted (id) AS (SELECT b.id FROM json_each(?) j CROSS JOIN blob b" + _NAMED + _AND_THEIR_BASES,
        (json.dumps(list(names)),),
    )
    return list(map(_Opener(db).blob, rows))


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
    sealer = _Sealer.of(db, namespace)
    return _new_id(
        db.execute(
            "INSERT INTO blob (namespace, channel, version, state_version, type, codec, base, position, size, checksum,"
            " data, key_id) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (namespace, *sealer.blob(new), sealer.key_id),
        )
    )


def repack_blob(db: sqlite3.Connection, blob: int, new: NewBlob) -> None:
    """The same value, packed otherwise."""
    sealer = _Sealer.of(db, db.execute("SELECT namespace FROM blob WHERE id = ?", (blob,)).fetchone()[0])
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
        _reseal_blob(db, _names_of(db, sealed.namespace), sealed._replace(type=NO_VALUE))


def retire_blob(db: sqlite3.Connection, blob: int) -> None:
    """No version means this value any more. It stays, for what was compressed against it."""
    sealed = _sealed_blob(db, blob)
    db.execute("UPDATE blob SET version = NULL WHERE id = ?", (blob,))
    if sealed is not None:
        _reseal_blob(db, _names_of(db, sealed.namespace), sealed._replace(version=None))


def _sealed_blob(db: sqlite3.Connection, blob: int) -> BlobRow | None:
    """Opened, to be sealed again under another name; None where it is plain, or damaged."""
    row = db.execute(_BLOB + "blob b WHERE b.id = ? AND b.key_id IS NOT NULL", (blob,)).fetchone()
    if row is None:
        return None
    opened = _Opener(db).blob(row)
    names = _names_of(db, opened.namespace)
    sealing.require_key(_keyring(db), row[-1], names)
    return None if sealing.is_damaged(opened.data) else opened


def release_blobs(db: sqlite3.Connection, namespace: int, ids: Iterable[int]) -> None:
    """They go, or stay as the base of others."""
    ids = list(ids)
    for (key_id,) in db.execute(
        "SELECT DISTINCT b.key_id FROM json_each(?) j CROSS JOIN blob b ON b.id = j.value WHERE b.key_id IS NOT NULL",
        (json.dumps(ids),),
    ).fetchall():
        sealing.require_key(_keyring(db), key_id, _names_of(db, namespace))  # before the first of them
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
        _BLOB_HEAD + " FROM json_each(?) j CROSS JOIN blob b ON b.base = j.value ORDER BY b.id",
        (json.dumps(list(ids)),),
    )
    return [BlobHead._make(row) for row in rows]


def copy_blob(db: sqlite3.Connection, blob: int, target: int, base: int | None) -> int:
    return _new_id(
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


# --- writes ---


def writes_of(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Sequence[WriteRow]:
    """In the order in which LangGraph applies them (`writes_sort_key`)."""
    rows = db.execute(
        _WRITE + " FROM write w WHERE w.namespace = ? AND w.checkpoint_id = ? ORDER BY w.task_path, w.task_id, w.idx",
        (namespace, checkpoint_id),
    )
    return list(map(_Opener(db).write, rows))


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
    return list(map(_Opener(db).write, rows))


def writes_to_channels(
    db: sqlite3.Connection, namespace: int, checkpoint_ids: Sequence[str], channels: Sequence[str]
) -> Iterator[ChannelWrite]:
    """Last checkpoint first, in order within each."""
    opener = _Opener(db)
    rows = db.execute(
        _WRITE + ", j.key, k.key FROM json_each(?) j CROSS JOIN write w ON w.namespace = ? AND w.checkpoint_id = j.value"
        " CROSS JOIN json_each(?) k ON k.value = w.channel ORDER BY j.key DESC, w.task_path, w.task_id, w.idx",
        (json.dumps(checkpoint_ids), namespace, json.dumps(channels)),
    )
    for row in rows:
        write = opener.write(row[:-2])
        packed = write.type, write.codec, write.size, write.checksum, write.data
        checkpoint, channel = row[-2:]
        yield ChannelWrite(checkpoint, channel, write.task_id, *packed)


def keep_first_writes(db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]) -> None:
    """Only what is there already is skipped: whatever else SQLite refuses is an error."""
    first = "INSERT" + _INTO_WRITE + " ON CONFLICT (namespace, checkpoint_id, task_id, idx) DO NOTHING"
    db.executemany(first, _sealed_writes(db, namespace, checkpoint_id, new))


def replace_writes(db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]) -> None:
    """The new rows get new ids: they count as written now."""
    db.executemany("INSERT OR REPLACE" + _INTO_WRITE, _sealed_writes(db, namespace, checkpoint_id, new))


def _sealed_writes(
    db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]
) -> Sequence[tuple[object, ...]]:
    new = list(new)
    if not new:
        return ()
    sealer = _Sealer.of(db, namespace)
    return [(namespace, checkpoint_id, *sealer.write(checkpoint_id, write), sealer.key_id) for write in new]


_INTO_WRITE = (
    " INTO write (namespace, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum, data, key_id)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class ChangedWrite(NamedTuple):
    """A stored write under other names, or with another value; its place among the others is kept."""

    id: int
    task_id: str
    task_path: str
    channel: str
    type: str
    codec: int
    size: int
    checksum: int
    data: bytes


def change_writes(db: sqlite3.Connection, changed: Sequence[ChangedWrite]) -> None:
    """First out of each other's way: two tasks may swap their ids."""
    db.executemany("UPDATE write SET task_id = 'changing ' || id WHERE id = ?", [(write.id,) for write in changed])
    for write in changed:
        namespace, checkpoint_id, idx = db.execute(
            "SELECT namespace, checkpoint_id, idx FROM write WHERE id = ?", (write.id,)
        ).fetchone()
        sealer = _Sealer.of(db, namespace)
        new = sealer.write(checkpoint_id, NewWrite(write.task_id, idx, *write[2:]))
        db.execute(
            "UPDATE write SET task_id = ?, task_path = ?, channel = ?, type = ?, codec = ?, size = ?, checksum = ?,"
            " data = ?, key_id = ? WHERE id = ?",
            (new.task_id, *new[2:], sealer.key_id, write.id),
        )


def delete_late_writes(db: sqlite3.Connection, namespaces: Iterable[int], oldest: str) -> None:
    """Those whose checkpoint is gone: it is not there, and older than one that is, so it is not still to come.

    Only ids that are ordered by time (UUIDs of version 6, LangGraph's own) can tell.
    """
    db.execute(
        "DELETE FROM write WHERE namespace IN (SELECT value FROM json_each(:namespaces))"
        " AND checkpoint_id < :oldest AND checkpoint_id GLOB :by_time AND :oldest GLOB :by_time AND NOT EXISTS (SELECT 1"
        " FROM checkpoint c WHERE c.namespace = write.namespace AND c.checkpoint_id = write.checkpoint_id)",
        {"namespaces": json.dumps(list(namespaces)), "oldest": oldest, "by_time": "????????-????-6???-????-????????????"},
    )


def copy_writes(db: sqlite3.Connection, source: int, target: int) -> None:
    db.execute(
        "INSERT INTO write (namespace, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum,"
        " key_id, data) SELECT ?, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum, key_id,"
        " data FROM write WHERE namespace = ? ORDER BY id",
        (target, source),
    )


# --- effects ---

_EFFECT = """
    SELECT e.id, n.thread_id, n.checkpoint_ns, e.checkpoint_id, e.task_id, e.name, e.node, e.key, e.owner, e.started_at,
        e.finished_at, e.error, e.type, e.codec, e.size, e.checksum, e.data, e.key_id
    FROM effect e JOIN namespace n ON n.id = e.namespace
"""


def namespace_with_checkpoint(
    db: sqlite3.Connection, thread_id: str, namespaces: Sequence[str], checkpoint_id: str
) -> int | None:
    """Which of these namespaces of the thread has the checkpoint."""
    row = db.execute(
        "SELECT n.id FROM json_each(?) j CROSS JOIN namespace n ON n.thread_id = ? AND n.checkpoint_ns = j.value"
        " CROSS JOIN checkpoint c ON c.namespace = n.id AND c.checkpoint_id = ?",
        (json.dumps(namespaces), thread_id, checkpoint_id),
    ).fetchone()
    return row[0] if row else None


def find_effect(db: sqlite3.Connection, namespace: int, checkpoint_id: str, task_id: str, named: str) -> EffectRow | None:
    row = db.execute(
        _EFFECT + " WHERE e.namespace = ? AND e.checkpoint_id = ? AND e.task_id = ? AND e.name = ?",
        (namespace, checkpoint_id, task_id, named),
    ).fetchone()
    return _Opener(db).effect(row) if row else None


def effect_of_key(db: sqlite3.Connection, key: str) -> EffectRow | None:
    row = db.execute(_EFFECT + " WHERE e.key = ? ORDER BY e.id LIMIT 1", (key,)).fetchone()
    return _Opener(db).effect(row) if row else None


def effects_of_checkpoint(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Sequence[EffectTask]:
    rows = db.execute(
        "SELECT id, task_id, node FROM effect WHERE namespace = ? AND checkpoint_id = ? ORDER BY id",
        (namespace, checkpoint_id),
    )
    return [EffectTask._make(row) for row in rows]


def change_effects(db: sqlite3.Connection, changed: Sequence[EffectTask]) -> None:
    """Their tasks are called otherwise now; first out of each other's way, as two may swap their names."""
    found = {row.id: row for row in effects_at(db, [effect.id for effect in changed])}
    db.executemany("UPDATE effect SET task_id = 'changing ' || id WHERE id = ?", [(effect.id,) for effect in changed])
    db.executemany("UPDATE effect SET task_id = ?, node = ? WHERE id = ?", [(e.task_id, e.node, e.id) for e in changed])
    for effect in changed:
        row = found[effect.id]._replace(task_id=effect.task_id)
        _reseal_effect(db, (row.thread_id, row.checkpoint_ns), row)


def begin_effect(db: sqlite3.Connection, new: NewEffect) -> None:
    db.execute(
        "INSERT INTO effect (namespace, checkpoint_id, task_id, name, node, key, owner, call, started_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        new,
    )


def begin_effect_again(db: sqlite3.Connection, key: str, owner: int, call: int, started_at: str) -> None:
    db.execute(
        "UPDATE effect SET owner = ?, call = ?, started_at = ?, finished_at = NULL, error = NULL WHERE key = ?",
        (owner, call, started_at, key),
    )


def finish_effect(db: sqlite3.Connection, key: str, call: int, result: EffectResult) -> None:
    """Nothing happens where the thread was deleted, or somebody else took over."""
    for row in _effects_being_called(db, key, call):
        _end_effect(db, row, None, result)


def doubt_effect(db: sqlite3.Connection, key: str, call: int, now: str, error: str) -> None:
    for row in _effects_being_called(db, key, call):
        _reseal_effect(db, (row.thread_id, row.checkpoint_ns), row._replace(finished_at=now, error=error))


def _effects_being_called(db: sqlite3.Connection, key: str, call: int) -> Sequence[EffectRow]:
    """The entry, and those of a thread's copies."""
    rows = db.execute(_EFFECT + " WHERE e.key = ? AND e.call = ? AND e.finished_at IS NULL ORDER BY e.id", (key, call))
    return list(map(_Opener(db).effect, rows))


def _end_effect(db: sqlite3.Connection, row: EffectRow, error: str | None, result: EffectResult) -> None:
    ended = row._replace(error=error, **result._asdict())
    _reseal_effect(db, (row.thread_id, row.checkpoint_ns), ended)


def withdraw_effect(db: sqlite3.Connection, key: str, call: int) -> None:
    db.execute("DELETE FROM effect WHERE key = ? AND call = ? AND finished_at IS NULL", (key, call))


def resolve_effect(db: sqlite3.Connection, key: str, result: EffectResult) -> None:
    """It happened, whatever stood in doubt."""
    rows = db.execute(_EFFECT + " WHERE e.key = ? ORDER BY e.id", (key,)).fetchall()
    for row in map(_Opener(db).effect, rows):
        _end_effect(db, row, None, result)


def forget_effect(db: sqlite3.Connection, key: str) -> None:
    db.execute("DELETE FROM effect WHERE key = ?", (key,))


def copy_effects(db: sqlite3.Connection, source: int, target: int) -> None:
    db.execute(
        "INSERT INTO effect (namespace, checkpoint_id, task_id, name, node, key, owner, call, started_at, finished_at,"
        " error, type, codec, size, checksum, key_id, data)"
        " SELECT ?, checkpoint_id, task_id, name, node, key, owner, call, started_at, finished_at, error, type, codec,"
        " size, checksum, key_id, data FROM effect WHERE namespace = ? ORDER BY id",
        (target, source),
    )


# Of this saver itself it is known which effects are running; of others, whether they are there.
_EFFECT_STATUS = """CASE
    WHEN e.error IS NOT NULL THEN 'in_doubt'
    WHEN e.finished_at IS NOT NULL THEN 'done'
    WHEN e.owner = :own THEN CASE WHEN e.key IN (SELECT value FROM json_each(:running)) THEN 'running' ELSE 'in_doubt' END
    WHEN e.owner IN (SELECT value FROM json_each(:alive)) THEN 'running'
    ELSE 'in_doubt' END"""


def effects(db: sqlite3.Connection, wanted: Mapping[str, object]) -> Sequence[EffectHead]:
    """Keyset pages: those numbered below `:number`. A null thread or status is any."""
    rows = db.execute(
        "SELECT * FROM (SELECT n.thread_id, n.checkpoint_ns, e.checkpoint_id, e.task_id, e.node, e.name, e.key, "
        + _EFFECT_STATUS
        + " AS status, e.started_at, e.finished_at, e.error, e.id, e.key_id"
        " FROM effect e JOIN namespace n ON n.id = e.namespace"
        " WHERE e.id < :number AND (:thread_id IS NULL OR n.thread_id = :thread_id) ORDER BY e.id DESC)"
        " WHERE :status IS NULL OR status = :status LIMIT :limit",
        wanted,
    )
    return list(map(_Opener(db).effect_head, rows))


def _new_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # an INSERT that did not raise made a row
    return cursor.lastrowid


# --- owners and custody ---

_OWNER = "SELECT id, host, boot, space, pid, started, opened_at, beat_at, ended FROM owner"


def set_owner(db: sqlite3.Connection, new: NewOwner) -> None:
    """It is there now, also if somebody had taken it for gone."""
    db.execute(
        "INSERT INTO owner (id, host, boot, space, pid, started, opened_at, beat_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, ended = NULL, ended_at = NULL",
        (*new, new.opened_at),
    )


def beat_of(db: sqlite3.Connection, owner: int) -> str | None:
    """When it last said that it is there; None: for the file it is not."""
    row = db.execute("SELECT beat_at FROM owner WHERE id = ? AND ended IS NULL", (owner,)).fetchone()
    return row[0] if row else None


def open_owners(db: sqlite3.Connection) -> Sequence[OwnerRow]:
    return [OwnerRow._make(row) for row in db.execute(_OWNER + " WHERE ended IS NULL")]


def owner_of_id(db: sqlite3.Connection, owner: int) -> OwnerRow | None:
    row = db.execute(_OWNER + " WHERE id = ?", (owner,)).fetchone()
    return OwnerRow._make(row) if row else None


def end_owners(db: sqlite3.Connection, owners: Iterable[int], ended: str, now: str) -> None:
    """What ended first stands."""
    db.executemany(
        "UPDATE owner SET ended = ?, ended_at = ? WHERE id = ? AND ended IS NULL", [(ended, now, id_) for id_ in owners]
    )


def forget_owners(db: sqlite3.Connection) -> None:
    """Those that have ended and answer for no thread any more."""
    db.execute(
        "DELETE FROM owner WHERE ended IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM custody h WHERE h.owner = owner.id)"
        " AND NOT EXISTS (SELECT 1 FROM custody h WHERE h.holder = owner.id)"
    )


def custody_of(db: sqlite3.Connection, thread_id: str) -> Custody | None:
    row = db.execute(
        "SELECT owner, holder, claim, claimed_at, attempts, mark, abandoned FROM custody WHERE thread_id = ?", (thread_id,)
    ).fetchone()
    return Custody._make(row) if row else None


def set_custody(db: sqlite3.Connection, thread_id: str, new: Custody) -> None:
    db.execute(
        "INSERT OR REPLACE INTO custody (thread_id, owner, holder, claim, claimed_at, attempts, mark, abandoned)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (thread_id, *new),
    )


def end_claim(db: sqlite3.Connection, thread_id: str, claim: int) -> None:
    """What its saver wrote and left unfinished runs no more; where it wrote nothing all is as it was before."""
    db.execute(
        "UPDATE custody SET owner = CASE WHEN owner = holder THEN 0 ELSE owner END, holder = NULL, claim = NULL,"
        " claimed_at = NULL WHERE thread_id = ? AND claim = ?",
        (thread_id, claim),
    )
    db.execute(
        "DELETE FROM custody WHERE thread_id = :thread_id AND claim IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM namespace n WHERE n.thread_id = :thread_id)",
        {"thread_id": thread_id},
    )


def drop_custody(db: sqlite3.Connection, thread_id: str) -> None:
    """Of a thread that was deleted; a claim on it goes on."""
    db.execute("DELETE FROM custody WHERE thread_id = ? AND claim IS NULL", (thread_id,))


def progress_of(db: sqlite3.Connection, thread_id: str) -> str:
    """Where a thread stands: this changes with every checkpoint and every write in it, but an error is no progress."""
    row = db.execute(
        "WITH own AS (SELECT id FROM namespace WHERE thread_id = :thread_id)"
        " SELECT (SELECT max(seq) FROM own CROSS JOIN checkpoint ON namespace = own.id),"
        " (SELECT max(w.id) FROM own CROSS JOIN write w ON w.namespace = own.id WHERE w.channel <> '__error__')",
        {"thread_id": thread_id},
    ).fetchone()
    return json.dumps(row)


# --- overviews: through the views, which name what people see; no value is read ---


class OverviewRow(NamedTuple):
    """A thread or a run."""

    thread_id: str
    status: str
    next: str
    step: int | None
    run_id: str
    created_at: str
    updated_at: str
    checkpoints: int
    number: int


class WalFrames(NamedTuple):
    """Pages in the -wal, and how many of them are in the main file too."""

    all: int
    copied: int


class Pages(NamedTuple):
    page_size: int
    pages: int
    free: int


# A view cannot look at processes: what it takes for running or crashed is corrected by who has looked.
_JUDGED = """CASE
    WHEN v.status = 'running' AND coalesce(h.holder, h.owner) IN (SELECT value FROM json_each(:gone)) THEN 'crashed'
    WHEN v.status = 'crashed' AND coalesce(h.holder, h.owner) IN (SELECT value FROM json_each(:alive)) THEN 'running'
    ELSE v.status END"""


def threads(db: sqlite3.Connection, judged: Judged, wanted: Mapping[str, object]) -> Sequence[OverviewRow]:
    """Keyset pages: those numbered below `:number`. A null bound is no bound."""
    rows = db.execute(
        "SELECT * FROM (SELECT v.thread_id, "
        + _JUDGED
        + " AS status, v.next, v.step, v.run_id, v.created_at, v.updated_at, v.checkpoints, n.id"
        " FROM namespace n JOIN threads v ON v.thread_id = n.thread_id LEFT JOIN custody h ON h.thread_id = n.thread_id"
        " WHERE n.checkpoint_ns = '' AND n.id < :number"
        " AND (:before IS NULL OR v.updated_at < :before) AND (:after IS NULL OR v.updated_at > :after)"
        " ORDER BY n.id DESC) WHERE :status IS NULL OR status = :status LIMIT :limit",
        {**wanted, **_as_json(judged)},
    )
    return [OverviewRow._make(row) for row in rows]


def runs(db: sqlite3.Connection, judged: Judged, wanted: Mapping[str, object]) -> Sequence[OverviewRow]:
    """Keyset pages: those numbered below `:number`. Without "or null", so that SQLite starts from the thread."""
    of_thread = " AND v.thread_id = :thread_id" if wanted["thread_id"] is not None else ""
    rows = db.execute(
        "SELECT * FROM (SELECT v.thread_id, "
        + _JUDGED
        + " AS status, v.next, v.step, v.run_id, v.created_at, v.updated_at, v.checkpoints, v.seq"
        " FROM runs v LEFT JOIN custody h ON h.thread_id = v.thread_id WHERE v.seq < :number"
        + of_thread
        + " ORDER BY v.seq DESC) WHERE :status IS NULL OR status = :status LIMIT :limit",
        {**wanted, **_as_json(judged)},
    )
    return [OverviewRow._make(row) for row in rows]


def _as_json(judged: Judged) -> dict[str, str]:
    return {"alive": json.dumps(judged.alive), "gone": json.dumps(judged.gone)}


def status_of(db: sqlite3.Connection, judged: Judged, thread_id: str) -> str | None:
    row = db.execute(
        "SELECT "
        + _JUDGED
        + " FROM threads v LEFT JOIN custody h ON h.thread_id = v.thread_id WHERE v.thread_id = :thread_id",
        {"thread_id": thread_id, **_as_json(judged)},
    ).fetchone()
    return row[0] if row else None


def may_be_running(db: sqlite3.Connection, thread_id: str, owner: int) -> bool:
    """Whether an owner, which is there, answers for a thread that has not come to an end or to a question."""
    found: int = db.execute(
        "SELECT EXISTS (SELECT 1 FROM custody h JOIN threads t ON t.thread_id = h.thread_id"
        " WHERE h.thread_id = ? AND h.owner = ? AND t.status IN ('running', 'crashed'))",
        (thread_id, owner),
    ).fetchone()[0]
    return bool(found)


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
    count: int = db.execute("SELECT count(*) FROM checkpoint WHERE hidden = 0").fetchone()[0]
    return count


def sizes_by_thread(db: sqlite3.Connection, top: int) -> Sequence[tuple[str, int, int]]:
    return db.execute(
        "SELECT n.thread_id, sum(s.stored), sum(s.size) FROM ("
        " SELECT namespace, length(data) AS stored, size FROM blob"
        " UNION ALL SELECT namespace, length(data), size FROM write"
        " UNION ALL SELECT namespace, length(data), size FROM effect WHERE data IS NOT NULL) s"
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
        " UNION ALL SELECT length(data), namespace FROM effect WHERE data IS NOT NULL"
        " UNION ALL SELECT length(body) + length(metadata) + coalesce(length(rest), 0), namespace FROM checkpoint)"
        " WHERE namespace IN (SELECT id FROM namespace WHERE thread_id = ?)",
        (thread_id,),
    ).fetchone()[0]
    return total


def count_of_namespace(db: sqlite3.Connection, namespace: int) -> int:
    count: int = db.execute("SELECT count(*) FROM checkpoint WHERE namespace = ? AND hidden = 0", (namespace,)).fetchone()[
        0
    ]
    return count


def count_of_thread(db: sqlite3.Connection, thread_id: str) -> int:
    count: int = db.execute(
        "SELECT count(*) FROM checkpoint WHERE namespace IN (SELECT id FROM namespace WHERE thread_id = ?) AND hidden = 0",
        (thread_id,),
    ).fetchone()[0]
    return count


# --- what `verify` looks for ---


def all_namespaces(db: sqlite3.Connection) -> Sequence[int]:
    return [row[0] for row in db.execute("SELECT id FROM namespace ORDER BY id")]


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
    rows = db.execute(_CHECKPOINT + "JOIN json_each(?) j ON c.seq = j.value ORDER BY j.key", (json.dumps(seqs),))
    return list(map(_Opener(db).checkpoint, rows))


def writes_at(db: sqlite3.Connection, ids: Sequence[int]) -> Sequence[WriteRow]:
    rows = db.execute(
        _WRITE + " FROM json_each(?) j CROSS JOIN write w ON w.id = j.value ORDER BY j.key", (json.dumps(ids),)
    )
    return list(map(_Opener(db).write, rows))


def effects_at(db: sqlite3.Connection, ids: Sequence[int]) -> Sequence[EffectRow]:
    rows = db.execute(_EFFECT + " CROSS JOIN json_each(?) j ON e.id = j.value ORDER BY j.key", (json.dumps(ids),))
    return list(map(_Opener(db).effect, rows))


def blobs_at(db: sqlite3.Connection, ids: Sequence[int]) -> Sequence[BlobRow]:
    rows = db.execute(
        _BLOB + "json_each(?) j CROSS JOIN blob b ON b.id = j.value ORDER BY j.key",
        (json.dumps(ids),),
    )
    return list(map(_Opener(db).blob, rows))


def orphans(db: sqlite3.Connection) -> Sequence[tuple[str, int]]:
    """(kind, id) of rows that belong to no namespace, lean on nothing that is there, or are needed by nobody."""
    return db.execute(
        "SELECT 'checkpoint without a namespace', seq FROM checkpoint WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'hidden checkpoint that nobody needs', c.seq FROM checkpoint c WHERE c.hidden AND NOT EXISTS"
        "  (SELECT 1 FROM checkpoint s WHERE s.namespace = c.namespace AND s.hidden = 0)"
        " UNION ALL SELECT 'write without a namespace', id FROM write WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'effect without a checkpoint', e.id FROM effect e WHERE NOT EXISTS (SELECT 1 FROM checkpoint c"
        "  JOIN namespace n ON n.id = c.namespace WHERE c.namespace = e.namespace AND c.checkpoint_id = e.checkpoint_id)"
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


def wal_frames(db: sqlite3.Connection) -> WalFrames:
    """After all were copied into the main file that no reader is in the way of. Waits for nobody."""
    _, frames, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return WalFrames(frames, copied)


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
    state_version: int
    type: str
    codec: int
    position: int
    size: int
    checksum: int
    data: bytes


class CheckpointOfThread(NamedTuple):
    checkpoint_ns: str
    run_id: str
    hidden: int
    checkpoint_id: str
    parent_id: Union[str, None]
    step: Union[int, float, None]
    source: Union[str, None]
    next: str
    created_at: str
    state_version: int
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


class EffectOfThread(NamedTuple):
    """What a task did outside; without a result it is in doubt wherever it comes."""

    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    name: str
    node: str
    key: str
    started_at: str
    finished_at: Union[str, None]
    error: Union[str, None]
    type: Union[str, None]
    codec: Union[int, None]
    size: Union[int, None]
    checksum: Union[int, None]
    data: Union[bytes, None]


def blobs_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[BlobOfThread]:
    """Bases before what was compressed against them."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, b.id, b.base, b.channel, b.version, b.state_version, b.type, b.codec, b.position, b.size,"
        " b.checksum, b.data, b.key_id"
        " FROM namespace n JOIN blob b ON b.namespace = n.id WHERE n.thread_id = ? ORDER BY b.id",
        (thread_id,),
    )
    return _streamed(rows, partial(_Opener(db).blob_of, thread_id))


def checkpoints_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[CheckpointOfThread]:
    """In the order of commits."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, c.run_id, c.hidden, c.checkpoint_id, c.parent_id, c.step, c.source, c.next, c.created_at,"
        " c.state_version, c.metadata, c.exact_type, c.exact, c.body_codec, c.body_size, c.body, c.beside, c.rest_type,"
        " c.rest_codec, c.rest_size, c.rest, c.checksum, c.key_id"
        " FROM namespace n JOIN checkpoint c ON c.namespace = n.id WHERE n.thread_id = ? ORDER BY c.seq",
        (thread_id,),
    )
    return _streamed(rows, partial(_Opener(db).checkpoint_of, thread_id))


def writes_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[WriteOfThread]:
    """In the order in which they were written."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data, w.key_id"
        " FROM namespace n JOIN write w ON w.namespace = n.id WHERE n.thread_id = ? ORDER BY w.id",
        (thread_id,),
    )
    return _streamed(rows, partial(_Opener(db).write_of, thread_id))


def effects_of_thread(db: sqlite3.Connection, thread_id: str) -> Iterator[EffectOfThread]:
    """In the order in which they were begun."""
    rows = db.execute(
        "SELECT n.checkpoint_ns, e.checkpoint_id, e.task_id, e.name, e.node, e.key, e.started_at, e.finished_at, e.error,"
        " e.type, e.codec, e.size, e.checksum, e.data, e.key_id FROM namespace n JOIN effect e ON e.namespace = n.id"
        " WHERE n.thread_id = ? ORDER BY e.id",
        (thread_id,),
    )
    return _streamed(rows, partial(_Opener(db).effect_of, thread_id))


def _streamed(rows: sqlite3.Cursor, made: Callable[[Sequence[Any]], Row]) -> Iterator[Row]:
    """One that does not open must leave no statement behind: it would keep its connection at this moment of the file."""
    with closing(rows):
        yield from map(made, rows)


def insert_blob_of_thread(db: sqlite3.Connection, namespace: int, row: BlobOfThread, base: int | None) -> int:
    sealer = _Sealer.of(db, namespace)
    return _new_id(
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
    [write] = _sealed_writes(db, namespace, row.checkpoint_id, [NewWrite(*row[2:])])
    db.execute("INSERT" + _INTO_WRITE, write)


def insert_effect_of_thread(db: sqlite3.Connection, namespace: int, row: EffectOfThread) -> None:
    """Its caller is elsewhere."""
    sealer = _Sealer.of(db, namespace)
    db.execute(
        "INSERT INTO effect (namespace, owner, call, checkpoint_id, task_id, name, node, key, started_at, finished_at,"
        " error, type, codec, size, checksum, data, key_id)"
        " VALUES (?, 0, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (namespace, *sealer.effect(row)[1:], sealer.key_id),
    )


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
    opener = _Opener(db)
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data, w.key_id FROM namespace n JOIN write w ON w.namespace = n.id"
        " WHERE n.thread_id = ? AND w.channel IN ('__interrupt__', '__error__') ORDER BY w.id",
        (thread_id,),
    )
    return [opener.write_of(thread_id, row) for row in rows]


def waiting_writes(db: sqlite3.Connection, thread_id: str) -> Sequence[WriteOfThread]:
    """The questions of a thread's latest checkpoint that are not answered: as the view `checkpoints` understands it."""
    opener = _Opener(db)
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data, w.key_id FROM namespace n JOIN checkpoint c ON c.namespace = n.id"
        " JOIN write w ON w.namespace = n.id AND w.checkpoint_id = c.checkpoint_id"
        " WHERE n.thread_id = ? AND n.checkpoint_ns = '' AND w.channel = '__interrupt__'"
        " AND c.seq = (SELECT max(seq) FROM checkpoint WHERE namespace = n.id AND hidden = 0) AND NOT EXISTS ("
        " SELECT 1 FROM write later WHERE later.namespace = w.namespace AND later.checkpoint_id = w.checkpoint_id"
        " AND later.id > w.id AND ((later.task_id = w.task_id AND later.channel <> '__resume__')"
        " OR (later.channel = '__resume__' AND later.task_id = '00000000-0000-0000-0000-000000000000')))"
        " ORDER BY w.task_path, w.task_id, w.idx",
        (thread_id,),
    )
    return [opener.write_of(thread_id, row) for row in rows]
