"""What the statements take and give: a named tuple for each kind of row, and its columns."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple, TypeVar, Union

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


CHECKPOINT = f"SELECT {_COLUMNS} FROM checkpoint c JOIN namespace n ON n.id = c.namespace "


BLOB_HEAD = "SELECT b.id, b.namespace, b.channel, b.version, b.state_version, b.type, b.position, b.size"


WRITE = (
    "SELECT w.id, w.namespace, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
    " w.checksum, w.data, w.key_id"
)


BLOB = """SELECT b.id, b.namespace, b.channel, b.version, b.state_version, b.type, b.position, b.size, b.codec, b.base,
    b.checksum, b.data, b.key_id FROM """


EFFECT = """
    SELECT e.id, n.thread_id, n.checkpoint_ns, e.checkpoint_id, e.task_id, e.name, e.node, e.key, e.owner, e.started_at,
        e.finished_at, e.error, e.type, e.codec, e.size, e.checksum, e.data, e.key_id
    FROM effect e JOIN namespace n ON n.id = e.namespace
"""


def new_id(cursor: sqlite3.Cursor) -> int:
    assert cursor.lastrowid is not None  # an INSERT that did not raise made a row
    return cursor.lastrowid


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
