"""Rows to LangGraph's tuples: fetched in one consistent read, decoded after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import INTERRUPT

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain, Key, Named, Recent, Value
from langgraph_sqlite_ckpt.encoding import Body, decode, decode_metadata, decode_writes, opened, place_of
from langgraph_sqlite_ckpt.errors import DamagedError, Place
from langgraph_sqlite_ckpt.migrations import Migrations, Snapshot, Write, interrupts_renamed
from langgraph_sqlite_ckpt.renaming import NOTHING, Family, Renaming, fetch_family, renamed_parents
from langgraph_sqlite_ckpt.tables import NO_VALUE, BlobHead, BlobRow, CheckpointRow, WriteRow


def configuration(place: Place, checkpoint_id: str | None) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": place.thread_id,
            "checkpoint_ns": place.checkpoint_ns,
            "checkpoint_id": checkpoint_id,
        }
    }


class Asked(NamedTuple):
    """What of today is asked for: the states' version, and the name of a namespace that the file calls otherwise."""

    migrations: Migrations
    known_as: str | None = None
    hidden: bool = False  # such a checkpoint too, where its id is given


class Fetched(NamedTuple):
    """A checkpoint with all that belongs to it, still as stored."""

    row: CheckpointRow
    body: Body | DamagedError
    blobs: Sequence[BlobHead | BlobRow]
    writes: Sequence[WriteRow]
    family: Family | None = None  # where names of tasks may have changed since
    known_as: str | None = None  # what its namespace is called today

    @property
    def valued(self) -> Sequence[BlobHead | BlobRow]:
        return [blob for blob in self.blobs if blob.type != NO_VALUE]

    def decoded(self, serde: SerializerProtocol, chain: Chain, migrations: Migrations) -> CheckpointTuple:
        """Brought up to date. Raises `DamagedError`, `DecodeError`, `MigrationError` or `NewerStateError`."""
        if isinstance(self.body, DamagedError):
            raise self.body
        row, place = self.row, place_of(self.row)
        migrations.require_known(row.state_version, place)
        self.body.require_stored({blob.channel for blob in self.blobs})
        values = {blob.channel: decode_blob(serde, place, blob, chain) for blob in self.valued}
        stored = CheckpointTuple(
            config=configuration(place, row.checkpoint_id),
            checkpoint=self.body.checkpoint(serde, values),
            metadata=decode_metadata(serde, row),
            parent_config=configuration(place, row.parent_id) if row.parent_id else None,
            pending_writes=decode_writes(serde, place, self.writes),
        )
        if row.state_version == migrations.version and self.known_as is None:
            return stored
        return self._up_to_date(stored, migrations, self.renaming(serde, migrations))

    @property
    def _today(self) -> str:
        return self.row.checkpoint_ns if self.known_as is None else self.known_as

    def renaming(self, serde: SerializerProtocol, migrations: Migrations) -> Renaming:
        return NOTHING if self.family is None else self.family.renaming(serde, migrations, self._today)

    def _up_to_date(self, stored: CheckpointTuple, migrations: Migrations, renaming: Renaming) -> CheckpointTuple:
        row, place = self.row, place_of(self.row)
        fields: dict[str, Any] = dict(stored.checkpoint)
        metadata: dict[str, Any] = dict(stored.metadata)
        writes = [Write(*write) for write in stored.pending_writes or ()]
        snapshot = Snapshot(place, fields.pop("channel_values"), fields, metadata, writes)
        migrations.apply(snapshot, row.state_version)
        today = place._replace(checkpoint_ns=self._today)
        renamed_parents(snapshot.metadata, row.checkpoint_ns, today.checkpoint_ns)
        return CheckpointTuple(
            config=configuration(today, row.checkpoint_id),
            checkpoint={**snapshot.fields, "channel_values": snapshot.values},  # type: ignore[typeddict-item]  # as above
            metadata=snapshot.metadata,  # type: ignore[arg-type]  # likewise
            parent_config=configuration(today, row.parent_id) if row.parent_id else None,
            pending_writes=[_renamed(write, renaming) for write in writes],
        )


def _renamed(write: Write, renaming: Renaming) -> tuple[str, str, Any]:
    value = interrupts_renamed(write.value, renaming.interrupts) if write.channel == INTERRUPT else write.value
    return renaming.tasks.get(write.task_id, write.task_id), write.channel, value


def _family(db: sqlite3.Connection, body: Body | DamagedError, writes: Sequence[WriteRow], asked: Asked) -> Family | None:
    if isinstance(body, DamagedError):
        return None
    if asked.known_as is None and not asked.migrations.renames_nodes(body.row.state_version):
        return None
    return fetch_family(db, body, writes)


def decode_blob(serde: SerializerProtocol, place: Place, blob: BlobHead | BlobRow, chain: Chain) -> Any:
    at = place._replace(channel=blob.channel)
    return decode(serde, at, blob.type, opened(at, lambda: chain.raw(blob.id)))


def body_or_damage(row: CheckpointRow) -> Body | DamagedError:
    """Damage is kept for the moment when somebody reaches this row: it harms no other."""
    try:
        return Body.of(row)
    except DamagedError as error:
        return error


# --- one ---


class One(NamedTuple):
    """A fetched checkpoint, the values of it that memory held, and the rows of those that it did not."""

    fetched: Fetched
    held: Sequence[Value]
    rows: Sequence[BlobRow]


def fetch_one(db: sqlite3.Connection, recent: Recent, place: Place, checkpoint_id: str | None, asked: Asked) -> One | None:
    """The checkpoint of that id, or the latest of the namespace."""
    row = (
        tables.named_of(db, place.thread_id, place.checkpoint_ns, checkpoint_id, hidden=asked.hidden)
        if checkpoint_id
        else tables.newest_of(db, place.thread_id, place.checkpoint_ns)
    )
    if row is None:
        return None
    body = body_or_damage(row)
    heads = tables.blobs_named(db, body.names) if isinstance(body, Body) else ()
    held = [value for head in heads if (value := _held(recent, row, head)) is not None]
    wanted = {head.id for head in heads} - {value.blob for value in held}
    rows = tables.chain(db, wanted) if wanted else ()
    if not _are_those(rows, heads):
        body = DamagedError(place_of(row), "the index of its values leads to others")
    writes = tables.writes_of(db, row.namespace, row.checkpoint_id)
    return One(Fetched(row, body, heads, writes, _family(db, body, writes, asked), asked.known_as), held, rows)


def _are_those(rows: Sequence[BlobRow], heads: Sequence[BlobHead]) -> bool:
    """Whether the rows are of the channels and versions that an index said they are."""
    found = {row.id: row for row in rows}
    met = [(head, found[head.id]) for head in heads if head.id in found]
    return all((row.channel, row.version) == (head.channel, head.version) for head, row in met)


def _held(recent: Recent, row: CheckpointRow, head: BlobHead) -> Value | None:
    value = recent.at(_key(row, head), head.position)
    return value if value is not None and value.blob == head.id else None


def decode_one(serde: SerializerProtocol, recent: Recent, one: One, migrations: Migrations) -> CheckpointTuple:
    """What was read is remembered: the next step will be stored against it."""
    chain = Chain(one.rows, one.held)
    decoded = one.fetched.decoded(serde, chain, migrations)
    for head in one.fetched.valued:
        if not isinstance(head.position, int):
            continue  # damage that does not keep the value from being read
        newest = recent.newest(_key(one.fetched.row, head))
        if newest is not None and newest.blob > head.id:
            continue  # somebody looks at an old checkpoint: the next version still leans on the newest
        value = Value(head.id, head.version, head.position, head.type, chain.raw(head.id))
        recent.remember(_key(one.fetched.row, head), value)
    return decoded


def _key(row: CheckpointRow, blob: BlobHead | BlobRow) -> Key:
    return row.thread_id, row.checkpoint_ns, blob.channel


# --- many ---


class Page(NamedTuple):
    fetched: Sequence[Fetched]
    chain: Chain


def fetch_page(db: sqlite3.Connection, rows: Sequence[CheckpointRow], asked: Asked) -> Page:
    """A page of checkpoints in a constant number of statements."""
    bodies = [body_or_damage(row) for row in rows]
    names = {name for body in bodies if isinstance(body, Body) for name in body.names}
    blobs = tables.chain_named(db, names) if names else ()
    keys = [(row.namespace, row.checkpoint_id) for row in rows if isinstance(row.checkpoint_id, str)]  # else it is damage
    writes = _by_checkpoint(tables.writes_of_many(db, keys))
    named = Named(blobs)
    fetched = []
    for row, body in zip(rows, bodies, strict=True):
        own = writes.get((row.namespace, row.checkpoint_id), ())
        fetched.append(Fetched(row, body, _of(body, named), own, _family(db, body, own, asked), asked.known_as))
    return Page(fetched, Chain(blobs))


def _of(body: Body | DamagedError, named: Named[BlobRow]) -> Sequence[BlobRow]:
    if isinstance(body, DamagedError):
        return ()
    return [blob for name in body.names if (blob := named.get(name)) is not None]


def _by_checkpoint(writes: Iterable[WriteRow]) -> Mapping[tuple[int, str], Sequence[WriteRow]]:
    grouped: dict[tuple[int, str], list[WriteRow]] = {}
    for write in writes:
        grouped.setdefault((write.namespace, write.checkpoint_id), []).append(write)
    return grouped
