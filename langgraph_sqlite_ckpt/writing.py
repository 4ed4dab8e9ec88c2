"""`put` and `put_writes` as operations: encoded without any lock, then applied in one transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt import retention, tables
from langgraph_sqlite_ckpt.blobs import (
    Ahead,
    Chain,
    Damaged,
    Key,
    Limits,
    Packed,
    Recent,
    Value,
    base_position,
    checksum_of,
    pack,
    pack_against,
    still_needed,
)
from langgraph_sqlite_ckpt.custody import Owner
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.encoding import encode, encode_metadata, encode_packed, encode_parts, is_inline, storable_text
from langgraph_sqlite_ckpt.errors import EncodeError, Place, StorageError
from langgraph_sqlite_ckpt.migrations import Migrations
from langgraph_sqlite_ckpt.operations import Operation, Stale
from langgraph_sqlite_ckpt.runs import NOTHING_NEXT, named_run, next_nodes, run_of
from langgraph_sqlite_ckpt.tables import NO_VALUE, BlobHead, BlobName, NewBlob, NewCheckpoint, NewWrite, Version


class Settled:
    """The last checkpoints that were stored with every value at today's state version, or known to be equal to it.

    What a child of theirs leaves unchanged is stored already, under its version. Others' children are compared with what
    the file has, once. Thread-safe: each step is one operation on a dict.
    """

    _MOST = 10_000

    def __init__(self) -> None:
        self._latest: dict[tuple[str, str], str | None] = {}

    def latest(self, place: Place) -> str | None:
        return self._latest.get((place.thread_id, place.checkpoint_ns))

    def remember(self, place: Place) -> None:
        if len(self._latest) >= self._MOST:
            self._latest.clear()
        self._latest[place.thread_id, place.checkpoint_ns] = place.checkpoint_id

    def forget(self, place: Place) -> None:
        self._latest.pop((place.thread_id, place.checkpoint_ns), None)


@dataclass(frozen=True)
class Store:
    """What every operation needs of its saver."""

    database: Database
    recent: Recent
    limits: Limits
    owner: Owner
    trimmer: retention.Trimmer | None = None
    migrations: Migrations = field(default_factory=lambda: Migrations(()))
    settled: Settled = field(default_factory=Settled)
    inside: sqlite3.Connection | None = None  # the transaction in which this is used, if it is

    def read(self) -> AbstractContextManager[sqlite3.Connection]:
        """What is committed; inside a transaction also what that has written."""
        return self.database.read() if self.inside is None else nullcontext(self.inside)

    def within(self, db: sqlite3.Connection, ahead: Ahead) -> Store:
        """The same, for several operations in one transaction: `ahead` remembers what is not committed yet."""
        return replace(self, inside=db, recent=ahead)


class Put(Operation[None]):
    """An operation on one thread. Once encoded it may wait in memory, and is then applied after others (see `flush.py`)."""

    store: Store
    place: Place

    @property
    def follows(self) -> str | None:
        """The checkpoint that it comes after."""
        raise NotImplementedError

    @property
    def weight(self) -> int:
        """Bytes that wait."""
        raise NotImplementedError

    @property
    def promises(self) -> Mapping[Key, Version]:
        """The values that the file holds once this is applied."""
        return {}

    def encode(self, promised: Mapping[Key, Version]) -> None:
        """As it is at this moment; nothing of the caller's is looked at later. `promised`: values that come before it."""
        raise NotImplementedError

    def apply_after(self, db: sqlite3.Connection, store: Store) -> None:
        """Apply what was encoded, in a transaction in which others went before: `store` is `within` it."""
        raise NotImplementedError

    def on_disk(self) -> None:
        """The transaction was committed; the owner takes note."""
        self.store.owner.wrote()


class Draft(NamedTuple):
    """A blob that is ready to be stored. `fresh`: it replaces what its version meant; else it only fills a gap."""

    blob: NewBlob
    raw: bytes
    fresh: bool


_TRIES = 3  # in a transaction, where nobody else deletes: the second one fits


@dataclass
class PutCheckpoint(Put):
    """One checkpoint with the values that changed."""

    store: Store
    serde: SerializerProtocol
    place: Place
    parent_id: str | None
    checkpoint: Checkpoint
    metadata: Mapping[str, Any]
    new_versions: ChannelVersions
    upgraded_in: int | None = None  # the namespace of a stored checkpoint that only changes its shape, and perhaps its name
    _fresh: Mapping[str, Version] = field(init=False)  # channels with a new value
    _unchanged: Mapping[str, Version] = field(init=False)  # channels whose value the file should have
    _values: dict[str, tuple[str, bytes]] = field(init=False, default_factory=dict)  # serialised, each once
    _apart: Mapping[str, Any] = field(init=False)  # values that differ from what their version means to others
    _row: NewCheckpoint = field(init=False)
    _drafts: Sequence[Draft] = field(init=False)
    _kept: Mapping[str, Version] = field(init=False)  # channels whose value the file has under that version
    _same: dict[str, int] = field(init=False)  # those of them that were put again as they were: in this very blob
    _stored: list[tuple[int, Draft]] = field(init=False)

    # --- before the transaction ---

    def prepare(self) -> None:
        beside, self._fresh, self._unchanged = self._sort()
        self._pack_values(compare=not self.is_settled)
        self._row = self._encode_row({**beside, **self._apart})

    @property
    def _state_version(self) -> int:
        return self.store.migrations.version

    @property
    def is_settled(self) -> bool:
        """Whether what is unchanged can only be what the file has under its version."""
        if not self._state_version:
            return True
        latest = self.store.settled.latest(self.place)
        return self.upgraded_in is None and latest is not None and latest == self.parent_id

    def _compare(self) -> None:
        """The unchanged values with what the file has: migrations may have changed some."""
        with self.store.read() as db:
            heads = tables.blobs_named(db, self._names(self._found_namespace(db), self._unchanged))
            chain = Chain(tables.chain(db, [head.id for head in heads]))
        for head in (head for head in heads if head.type != NO_VALUE):
            value = self.checkpoint["channel_values"][head.channel]
            if self._value(head.channel) == (head.type, _raw(chain, head)):
                self._kept = {**self._kept, head.channel: self._unchanged[head.channel]}
                self._same[head.channel] = head.id
            elif head.state_version == self._state_version:
                self._apart = {**self._apart, head.channel: value}

    def _found_namespace(self, db: sqlite3.Connection) -> int:
        if self.upgraded_in is not None:
            return self.upgraded_in
        return tables.find_namespace(db, self.place.thread_id, self.place.checkpoint_ns) or 0

    def _names(self, namespace: int, versions: Mapping[str, Version]) -> Sequence[BlobName]:
        return [BlobName(namespace, *item, self._state_version) for item in versions.items()]

    def encode(self, promised: Mapping[Key, Version]) -> None:
        beside, self._fresh, self._unchanged = self._sort()
        unsure = {name: version for name, version in self._unchanged.items() if promised.get(self._key(name)) != version}
        for channel in [*self._fresh, *(unsure.keys() - dict(self._already_stored(unsure)).keys())]:
            self._value(channel)
        self._row = self._encode_row(beside)
        if self._state_version:
            self.store.settled.remember(self.place)

    def _pack_values(self, *, compare: bool) -> None:
        """Against those that the file holds now."""
        self._kept, self._same, self._apart = {}, {}, {}
        if compare:
            self._compare()
        else:
            self._kept = dict(self._already_stored(self._unchanged))
        there = self._kept.keys() | self._apart.keys()
        gaps = {channel: version for channel, version in self._unchanged.items() if channel not in there}
        self._drafts = [*self._draft(self._fresh, fresh=True), *self._draft(gaps, fresh=False)]

    def _value(self, channel: str) -> tuple[str, bytes]:
        if channel not in self._values:
            value = self.checkpoint["channel_values"][channel]
            self._values[channel] = encode(self.serde, self.place._replace(channel=channel), value)
        return self._values[channel]

    def _sort(self) -> tuple[Mapping[str, Any], dict[str, Version], dict[str, Version]]:
        """The values by where they go: beside the body, into new blobs, or where they are already."""
        versions = self.checkpoint["channel_versions"]
        beside: dict[str, Any] = {}
        fresh: dict[str, Version] = {}
        unchanged: dict[str, Version] = {}
        for channel, value in self.checkpoint["channel_values"].items():
            version = versions.get(channel)
            if version is None or is_inline(value):
                beside[channel] = value
            elif self.new_versions.get(channel) == version:
                fresh[channel] = version
            else:
                unchanged[channel] = version
        return beside, fresh, unchanged

    def _already_stored(self, unchanged: Mapping[str, Version]) -> Iterator[tuple[str, Version]]:
        """The unchanged values that the file holds: by memory where possible, else by a look."""
        unsure: dict[str, Version] = {}
        for channel, version in unchanged.items():
            newest = self.store.recent.newest(self._key(channel))
            if newest is not None and newest.version == version:
                yield channel, version
            else:
                unsure[channel] = version
        if unsure:
            with self.store.read() as db:
                heads = tables.blobs_named(db, self._names(self._found_namespace(db), unsure))
            yield from ((head.channel, unsure[head.channel]) for head in heads if head.type != NO_VALUE)

    def _draft(self, versions: Mapping[str, Version], *, fresh: bool) -> Iterator[Draft]:
        for channel, version in versions.items():
            kind, raw = self._value(channel)
            newest = self.store.recent.newest(self._key(channel))
            if newest is not None and (newest.version, newest.type, newest.raw) == (version, kind, raw):
                self._kept, self._same[channel] = {**self._kept, channel: version}, newest.blob  # put again, as it was
                continue
            packed, base, position = self._pack(channel, raw)
            if len(packed.data) > self.store.limits.value:
                place = self.place._replace(channel=channel)
                raise EncodeError(place, f"{len(raw)} bytes ({len(packed.data)} packed) are too large for a row")
            yield Draft(
                NewBlob(
                    channel, version, self._state_version, kind, packed.codec, base, position, *packed[1:3], packed.data
                ),
                raw,
                fresh,
            )

    def _pack(self, channel: str, raw: bytes) -> tuple[Packed, int | None, int]:
        """Against the version that the chain's rule names, or as the first of a new chain."""
        base = self._base(channel) if len(raw) >= self.store.limits.delta_from else None
        if base is not None:
            value, position = base
            packed = pack_against(raw, value.raw, self.store.limits)
            if packed is not None:
                return packed, value.blob, position
        return pack(raw, self.store.limits), None, 0

    def _base(self, channel: str) -> tuple[Value, int] | None:
        """The version to lean on, and the place in the chain of the one that does. None: a chain begins."""
        key, recent = self._key(channel), self.store.recent
        newest = recent.newest(key) or (recall(self.store, key) if self.parent_id is not None else None)
        if newest is None:
            return None
        position = newest.position + 1
        base = recent.at(key, base_position(position))
        if base is None and recall(self.store, key) is not None:
            base = recent.at(key, base_position(position))
        return None if base is None else (base, position)

    def _encode_row(self, beside: Mapping[str, Any]) -> NewCheckpoint:
        metadata = encode_metadata(self.serde, self.place, self.metadata)
        body, names, rest_type, rest = encode_parts(self.serde, self.store.limits, self.place, self.checkpoint, beside)
        checksum = checksum_of(
            metadata.text.encode(),
            metadata.exact or b"",
            body.data,
            (names or "").encode(),
            rest.data if rest is not None else b"",
        )
        step, source, created_at = self.metadata.get("step"), self.metadata.get("source"), self.checkpoint.get("ts")
        return NewCheckpoint(
            checkpoint_id=self.place.checkpoint_id or "",
            parent_id=self.parent_id,
            step=_number(step),
            source=storable_text(source) if isinstance(source, str) else None,
            next=next_nodes(self.checkpoint["channel_values"]),
            created_at=_utc(created_at),
            state_version=self._state_version,
            metadata=metadata.text,
            exact_type=metadata.exact_type,
            exact=metadata.exact,
            body_codec=body.codec,
            body_size=body.size,
            body=body.data,
            beside=names,
            rest_type=rest_type,
            rest_codec=None if rest is None else rest.codec,
            rest_size=None if rest is None else rest.size,
            rest=None if rest is None else rest.data,
            checksum=checksum,
        )

    def _key(self, channel: str) -> Key:
        return self.place.thread_id, self.place.checkpoint_ns, channel

    # --- while it waits ---

    @property
    def follows(self) -> str | None:
        return self.parent_id

    @property
    def source(self) -> str | None:
        return self._row.source

    @property
    def next(self) -> Sequence[str]:
        """The nodes due after it."""
        names: Sequence[str] = json.loads(self._row.next)
        return names

    @property
    def weight(self) -> int:
        return len(self._row.body) + len(self._row.rest or b"") + sum(len(raw) for _, raw in self._values.values())

    @property
    def promises(self) -> Mapping[Key, Version]:
        versions = self.checkpoint["channel_versions"]
        return {self._key(channel): versions[channel] for channel in self._values}

    # --- in the transaction ---

    def apply_after(self, db: sqlite3.Connection, store: Store) -> None:
        own, self.store = self.store, store
        try:
            self._apply_packed(db)
            self._remember()
        finally:
            self.store = own

    def _apply_packed(self, db: sqlite3.Connection) -> None:
        for _ in range(_TRIES):
            self._pack_values(compare=False)
            with suppress(Stale):  # memory was wrong about the file, and has forgotten it
                return self.apply(db)
        raise StorageError(f"{self.store.database.path}: values do not fit those that are stored; see verify()")

    def apply(self, db: sqlite3.Connection) -> None:
        row, place = self._row, self.place
        if self.upgraded_in is None:
            self.store.owner.hold(db, place.thread_id)
        standing = tables.find_standing(db, place.thread_id, place.checkpoint_ns, row.checkpoint_id, row.parent_id)
        if standing.state_version is not None:
            self.store.migrations.require_known(standing.state_version, place)
        self._store_blobs(db, standing.namespace)
        if standing.state_version is not None:
            shows = self.upgraded_in is None
            tables.replace_checkpoint(db, standing.namespace, named_run(self.metadata), row, shows=shows)
        else:
            tables.insert_checkpoint(db, standing.namespace, run_of(db, place, self.metadata, row, standing), row)
            if self.store.trimmer is not None and not place.checkpoint_ns:
                self.store.trimmer.trim(db, place.thread_id, standing.namespace)

    def _store_blobs(self, db: sqlite3.Connection, namespace: int) -> None:
        there = self._there(db, namespace)
        present = {head.channel: head for head in there if head.type != NO_VALUE}
        self._require_what_it_leans_on(db, present)
        replaced = self._replaced(there)
        for blob in replaced:
            tables.retire_blob(db, blob)
        for blob in self._emptied(present):
            tables.empty_blob(db, blob)
        at_today = {channel for channel, head in present.items() if head.state_version == self._state_version}
        self._stored = [
            (tables.insert_blob(db, namespace, draft.blob), draft)
            for draft in self._drafts
            if draft.fresh or draft.blob.channel not in at_today
        ]
        if replaced:
            tables.delete_unneeded_blobs(db, namespace)

    def _there(self, db: sqlite3.Connection, namespace: int) -> Sequence[BlobHead]:
        """What the file holds under the versions that this checkpoint names anew or counts on."""
        drafted = {draft.blob.channel: draft.blob.version for draft in self._drafts}
        names = {**self.new_versions, **self._kept, **drafted}
        if not names:
            return ()
        return tables.blobs_named(db, self._names(namespace, names))

    def _require_what_it_leans_on(self, db: sqlite3.Connection, present: Mapping[str, BlobHead]) -> None:
        """Somebody may have deleted or replaced it since: a thread, pruned by another process in the middle of its run."""
        bases = {draft.blob.base for draft in self._drafts if draft.blob.base is not None}
        ids = {channel: head.id for channel, head in present.items()}
        there = self._kept.keys() <= ids.keys() and self._same.items() <= ids.items() and not self._filled(present)
        if not there or (bases and tables.missing_blobs(db, bases)):
            self.store.settled.forget(self.place)
            for channel in self.checkpoint["channel_values"]:
                self.store.recent.forget(self._key(channel))
            raise Stale

    def _filled(self, present: Mapping[str, BlobHead]) -> bool:
        """Whether somebody else stored a migrated value meanwhile, perhaps another one: it has to be compared."""
        gaps = {draft.blob.channel for draft in self._drafts if not draft.fresh}
        version = self._state_version
        return version > 0 and any(head.channel in gaps and head.state_version == version for head in present.values())

    def _replaced(self, there: Sequence[BlobHead]) -> Sequence[int]:
        """A new version means what this checkpoint says; where one had no value, this one fills the gap."""
        fresh = {draft.blob.channel: draft.fresh for draft in self._drafts}
        return [
            head.id
            for head in there
            if head.state_version == self._state_version
            and (fresh.get(head.channel, False) or (head.type == NO_VALUE and head.channel in fresh))
        ]

    def _emptied(self, present: Mapping[str, BlobHead]) -> Sequence[int]:
        """It may also say that there is no value any more, or a scalar, which stands beside the body."""
        filled = {draft.blob.channel for draft in self._drafts} | self._kept.keys()
        return [head.id for channel, head in present.items() if channel not in filled]

    # --- after it ---

    def committed(self) -> None:
        if self.upgraded_in is None:
            self.on_disk()
        self._remember()
        if self._state_version and not self._apart:
            self.store.settled.remember(self.place)
        elif self._state_version:
            self.store.settled.forget(self.place)

    def on_disk(self) -> None:
        super().on_disk()
        if not self.place.checkpoint_ns:
            self.store.owner.reached(self.place.thread_id, the_end=self._row.next == NOTHING_NEXT)

    def _remember(self) -> None:
        for blob, draft in self._stored:
            value = Value(blob, draft.blob.version, draft.blob.position, draft.blob.type, draft.raw)
            self.store.recent.remember(self._key(draft.blob.channel), value)


def _raw(chain: Chain, head: BlobHead) -> bytes | None:
    try:
        return chain.raw(head.id)
    except Damaged:  # it equals nothing
        return None


@dataclass
class PutWrites(Put):
    """What one task wrote. Special channels replace, ordinary ones keep the first, row by row."""

    expects_company = True
    store: Store
    serde: SerializerProtocol
    place: Place
    checkpoint_id: str
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str
    _rows: Sequence[NewWrite] = field(init=False)

    def prepare(self) -> None:
        self._rows = [self._encode(idx, channel, value) for idx, (channel, value) in enumerate(self.writes)]

    def encode(self, promised: Mapping[Key, Version]) -> None:  # noqa: ARG002  # a write stands for itself
        self.prepare()

    @property
    def follows(self) -> str | None:
        return self.checkpoint_id

    @property
    def weight(self) -> int:
        return sum(len(row.data) for row in self._rows)

    @property
    def is_settled(self) -> bool:
        """Whether the checkpoint that it belongs to is known to be up to date."""
        return not self.store.migrations.version or self.store.settled.latest(self.place) == self.checkpoint_id

    def apply_after(self, db: sqlite3.Connection, store: Store) -> None:  # noqa: ARG002  # likewise
        self.apply(db)

    def _encode(self, idx: int, channel: str, value: Any) -> NewWrite:
        place = self.place._replace(channel=channel)
        kind, packed = encode_packed(self.serde, self.store.limits, place, value)
        idx = WRITES_IDX_MAP.get(channel, idx)
        return NewWrite(self.task_id, idx, self.task_path, channel, kind, packed.codec, *packed[1:3], packed.data)

    def apply(self, db: sqlite3.Connection) -> None:
        if not self._rows:
            return
        self.store.owner.hold(db, self.place.thread_id)
        thread_id, checkpoint_ns = self.place.thread_id, self.place.checkpoint_ns
        namespace, state_version = tables.find_target(db, thread_id, checkpoint_ns, self.checkpoint_id)
        if state_version is not None:
            self.store.migrations.require_known(state_version, self.place)
        if namespace is None:
            namespace = tables.intern_namespace(db, thread_id, checkpoint_ns)
        tables.keep_first_writes(db, namespace, self.checkpoint_id, [row for row in self._rows if row.idx >= 0])
        tables.replace_writes(db, namespace, self.checkpoint_id, [row for row in self._rows if row.idx < 0])

    def committed(self) -> None:
        self.on_disk()

    def on_disk(self) -> None:
        if self._rows:
            super().on_disk()
            self.store.owner.reached(self.place.thread_id, the_end=False)


def _utc(moment: Any) -> str:
    """LangGraph's time stamp in one form, so that text order is time order; else the time of this write."""
    try:
        parsed = datetime.fromisoformat(moment.replace("Z", "+00:00")).astimezone(timezone.utc)
    except (AttributeError, TypeError, ValueError, OverflowError):
        parsed = datetime.now(timezone.utc)
    return parsed.isoformat(timespec="microseconds")


def _number(step: Any) -> int | float | None:
    """A step as a number that SQLite compares as Python does; None where it is none."""
    try:
        number = float(step)
        exact = number == step and abs(number) < 2**53
    except (TypeError, ValueError, OverflowError):
        return None
    return (int(number) if number.is_integer() else number) if exact else None


def recall(store: Store, key: Key) -> Value | None:
    """The newest stored value of a channel with what later versions may lean on, from the file into memory."""
    thread_id, checkpoint_ns, channel = key
    with store.read() as db:
        namespace = tables.find_namespace(db, thread_id, checkpoint_ns)
        head = tables.newest_blob(db, namespace, channel) if namespace is not None else None
        rows = tables.chain(db, [head.id]) if head is not None else ()
    if head is None:
        return None
    chain, needed = Chain(rows), still_needed(head.position)
    try:
        for row in rows:
            if row.position in needed:
                store.recent.remember(key, Value(row.id, row.version, row.position, row.type, chain.raw(row.id)))
    except Damaged:  # reading that value will say so; new ones start a chain of their own
        return None
    return store.recent.newest(key)
