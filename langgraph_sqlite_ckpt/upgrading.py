"""Stored states brought up to date: with the next write, where that write needs it, or all of a file (`migrate_all`).

Reading migrates in memory and writes nothing. A new checkpoint is stored at today's version as a matter of course; but what
is written *to* an older one (a task's result, the answer to its question) has today's names, so that one is brought up to
date first, in the same transaction: its values, its writes, and the namespaces of the subgraphs that it called. The user's
functions run before it, with no lock held.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import INTERRUPT, TASKS

from langgraph_sqlite_ckpt import retention, tables
from langgraph_sqlite_ckpt.blobs import Packed, pack
from langgraph_sqlite_ckpt.encoding import encode
from langgraph_sqlite_ckpt.errors import CheckpointError, ClosedError, DamagedError, InvalidRequest, Place, StorageError
from langgraph_sqlite_ckpt.migrations import ERROR_SOURCE, JOIN, graph_of
from langgraph_sqlite_ckpt.operations import Operation, Stale, Statement
from langgraph_sqlite_ckpt.reading import Asked, One, decode_one, fetch_one
from langgraph_sqlite_ckpt.renaming import PULL, caller_of, stored_name
from langgraph_sqlite_ckpt.tables import ChangedWrite, CheckpointRow, EffectTask, WriteRow
from langgraph_sqlite_ckpt.writing import PutCheckpoint, PutWrites, Store

T = TypeVar("T")
_FATAL = (StorageError, ClosedError)  # these are not about one checkpoint


class Migrated(NamedTuple):
    """What `migrate_all` rewrote, or would: checkpoints. `errors`: one for each that it had to leave as it is."""

    checkpoints: int
    errors: tuple[CheckpointError, ...] = ()


@dataclass
class Upgrade(Operation[int]):
    """One stored checkpoint, brought up to date where it is. Gives how many were, with those below it."""

    store: Store
    serde: SerializerProtocol
    place: Place  # as the file has it
    known_as: str  # its namespace's name of today
    alone: bool = False  # somebody else looks after the namespaces below
    _one: One | None = field(init=False, default=None)
    _put: PutCheckpoint = field(init=False)
    _writes: Sequence[ChangedWrite] = field(init=False)
    _effects: Sequence[EffectTask] = field(init=False)
    _below: Sequence[Adoption] = field(init=False)
    _applied: bool = field(init=False, default=False)

    # --- before the transaction ---

    def prepare(self) -> None:
        migrations, recent = self.store.migrations, self.store.recent
        asked = Asked(migrations, None if self.known_as == self.place.checkpoint_ns else self.known_as, hidden=True)
        with self.store.database.read() as db:
            self._one = one = fetch_one(db, recent, self.place, self.place.checkpoint_id, asked)
        if one is None or (self._row.state_version == migrations.version and asked.known_as is None):
            self._one = None
            return
        today = decode_one(self.serde, recent, one, migrations)
        parent_id = self._row.parent_id
        place = self.place._replace(checkpoint_ns=self.known_as)
        self._put = PutCheckpoint(
            self.store, self.serde, place, parent_id, today.checkpoint, today.metadata, {}, self._row.namespace
        )
        self._put.prepare()
        self._writes = list(self._changed_writes(one.fetched.writes, today.pending_writes or ()))
        self._effects = list(self._changed_effects(one))
        self._below = () if self.alone else tuple(self._adoptions(one))
        for adoption in self._below:
            adoption.prepare()

    @property
    def _row(self) -> CheckpointRow:
        assert self._one is not None  # only asked for where there is one
        return self._one.fetched.row

    def _changed_writes(self, rows: Sequence[WriteRow], today: Sequence[tuple[str, str, Any]]) -> Iterator[ChangedWrite]:
        for row, (task_id, channel, value) in zip(rows, today, strict=True):
            path = row.task_path if self._row.has_child else self._path(row.task_path)
            packed = Packed(row.codec, row.size, row.checksum, row.data)
            stored = ChangedWrite(row.id, row.task_id, row.task_path, row.channel, row.type, *packed)
            changed = stored._replace(task_id=task_id, task_path=path, channel=channel)
            if channel in (INTERRUPT, TASKS, ERROR_SOURCE) or channel.startswith(JOIN):
                kind, raw = encode(self.serde, self.place._replace(channel=channel), value)
                changed = ChangedWrite(row.id, task_id, path, channel, kind, *pack(raw, self.store.limits))
            if changed != stored:
                yield changed

    def _changed_effects(self, one: One) -> Iterator[EffectTask]:
        """An effect of `once` is its task's, whatever its node is called: it must not be called again."""
        family = one.fetched.family
        if family is None:
            return
        tasks = one.fetched.renaming(self.serde, self.store.migrations).tasks
        graph, version = graph_of(self.place.checkpoint_ns), self._row.state_version
        for effect in family.head.effects:
            if effect.task_id in tasks:
                yield EffectTask(effect.id, tasks[effect.task_id], self.store.migrations.node(effect.node, graph, version))

    def _path(self, path: str) -> str:
        """Of a task that is still due. What finished steps wrote keeps its path: DeltaChannels replay it in that order."""
        parts = path.split(", ")
        graph, version = graph_of(self.place.checkpoint_ns), self._row.state_version
        for at, part in enumerate(parts[1:], start=1):
            if parts[at - 1] == "~" + PULL:
                parts[at] = self.store.migrations.node(part, graph, version)
        return ", ".join(parts)

    def _adoptions(self, one: One) -> Iterator[Adoption]:
        namespaces = one.fetched.renaming(self.serde, self.store.migrations).namespaces
        for old, new in namespaces.items():
            if old != self.place.checkpoint_ns:
                yield Adoption(self.store, self.serde, self.place._replace(checkpoint_ns=old, checkpoint_id=None), new)

    # --- in the transaction ---

    def apply(self, db: sqlite3.Connection) -> int:
        self._applied = False
        if self._one is None:
            return 0
        now = tables.find_checkpoint(db, self._row.namespace, self._row.checkpoint_id)
        if now is None:
            raise Stale
        if now.state_version == self.store.migrations.version and now.checkpoint_ns == self.known_as and self._is_done(now):
            return 0
        writes = tables.writes_of(db, now.namespace, now.checkpoint_id)
        if now.state_version != self._row.state_version or [w.id for w in writes] != self._read_writes:
            raise Stale
        self._applied = True
        self._put.apply(db)
        tables.change_writes(db, self._writes)
        tables.change_effects(db, self._effects)
        return 1 + sum(adoption.apply(db) for adoption in self._below)

    def _is_done(self, now: CheckpointRow) -> bool:
        """Somebody else brought it up to date meanwhile; a namespace that was renamed just now is not yet that."""
        return now.state_version != self._row.state_version

    @property
    def _read_writes(self) -> Sequence[int]:
        assert self._one is not None
        return [write.id for write in self._one.fetched.writes]

    def committed(self) -> None:
        if self._applied:
            self._put.committed()
            for adoption in self._below:
                adoption.committed()


@dataclass
class Adoption(Operation[int]):
    """A namespace under its name of today, with all its checkpoints: their tasks' ids depend on it."""

    store: Store
    serde: SerializerProtocol
    place: Place  # as the file has it
    known_as: str
    _namespace: int | None = field(init=False, default=None)
    _upgrades: Sequence[Upgrade] = field(init=False, default=())
    _applied: bool = field(init=False, default=False)

    def prepare(self) -> None:
        with self.store.database.read() as db:
            self._namespace = tables.find_namespace(db, *self.place[:2])
            ids = tables.ids_with_hidden(db, self._namespace) if self._namespace is not None else ()
        self._upgrades = [
            Upgrade(self.store, self.serde, self.place._replace(checkpoint_id=id_), self.known_as, alone=True)
            for id_ in ids
        ]
        for upgrade in self._upgrades:
            upgrade.prepare()

    def apply(self, db: sqlite3.Connection) -> int:
        self._applied = False
        found = tables.find_namespace(db, *self.place[:2])
        if found is None or tables.find_namespace(db, self.place.thread_id, self.known_as) is not None:
            return 0  # gone, or under its new name already
        if found != self._namespace:
            raise Stale
        self._applied = True
        tables.rename_namespace(db, found, self.known_as)
        return sum(upgrade.apply(db) for upgrade in self._upgrades)

    def committed(self) -> None:
        for upgrade in self._upgrades if self._applied else ():
            upgrade.committed()


# --- before a write ---


def _needed(store: Store, serde: SerializerProtocol, place: Place, *, to_it: bool) -> Iterator[Upgrade | Adoption]:
    """What has to be brought up to date before a checkpoint is stored, or something is written `to_it`."""
    latest = store.settled.latest(place)
    if latest is not None and (not to_it or latest == place.checkpoint_id):
        return
    with store.database.read() as db:
        namespace, version = tables.find_target(db, *place[:2], place.checkpoint_id or "")
    if namespace is None:
        yield from _adopting(store, serde, place)
    elif version is not None and version < store.migrations.version and to_it:
        yield Upgrade(store, serde, place, place.checkpoint_ns)


def _adopting(store: Store, serde: SerializerProtocol, place: Place) -> Iterator[Upgrade | Adoption]:
    """For a namespace that the file does not know by this name: from the topmost one that has another."""
    stored = stored_name(store.database, serde, store.migrations, place)
    if stored == place.checkpoint_ns:
        return
    caller = caller_of(store.database, serde, store.migrations, place)
    if caller is None or stored not in caller.renaming(serde, store.migrations).namespaces:
        yield Adoption(store, serde, place._replace(checkpoint_ns=stored), place.checkpoint_ns)
    elif caller.row.checkpoint_ns != caller.known_as:
        yield from _adopting(store, serde, place._replace(checkpoint_ns=caller.known_as))
    else:
        above = Place(place.thread_id, caller.row.checkpoint_ns, caller.row.checkpoint_id)
        yield Upgrade(store, serde, above, caller.known_as)


def bring_up_to_date(store: Store, serde: SerializerProtocol, place: Place) -> None:
    """A checkpoint that somebody is about to write to, and look at, under today's names of its tasks."""
    for upgrade in _needed(store, serde, place, to_it=True):
        store.database.write(upgrade)


class UpToDate(Operation[T]):
    """A write to what may be older: that is brought up to date first, or neither happens."""

    def __init__(self, write: PutCheckpoint | PutWrites) -> None:
        self.expects_company = write.expects_company
        self._write = write
        self._first: Sequence[Upgrade | Adoption] = ()

    def prepare(self) -> None:
        write = self._write
        self._first = tuple(_needed(write.store, write.serde, write.place, to_it=isinstance(write, PutWrites)))
        for upgrade in self._first:
            upgrade.prepare()
        self._write.prepare()

    def apply(self, db: sqlite3.Connection) -> T:
        for upgrade in self._first:
            upgrade.apply(db)
        written: Any = self._write.apply(db)
        return written  # type: ignore[no-any-return]  # what the write itself gives

    def committed(self) -> None:
        for upgrade in self._first:
            upgrade.committed()
        self._write.committed()


# --- all of a file ---


@dataclass(frozen=True)
class MigrateAll:
    """Every older checkpoint, in batches; what fails is left as it is, and the rest goes on."""

    store: Store
    serde: SerializerProtocol
    dry_run: bool
    batch: int

    def run(self, progress: Any) -> Migrated:
        if not isinstance(self.batch, int) or self.batch < 1:
            raise InvalidRequest(f"batch is at least 1 checkpoint, not {self.batch!r}")
        version, database = self.store.migrations.version, self.store.database
        with database.read() as db:
            self.store.migrations.require_known(tables.newest_state_version(db), database.path)
            total = tables.count_older_checkpoints(db, version)
        done, errors, last = 0, list[CheckpointError](), 0
        while rows := self._older(last):
            found = self._tried(rows) if self.dry_run else self._migrated(rows)
            last = rows[-1].seq
            done, errors = done + found.checkpoints, [*errors, *found.errors]
            if progress is not None:
                progress(min(total, done + len(errors)), total)
        return Migrated(done, tuple(errors))

    def _older(self, last: int) -> Sequence[CheckpointRow]:
        with self.store.database.read() as db:
            return tables.older_checkpoints(db, self.store.migrations.version, last, self.batch)

    def _upgrade(self, row: CheckpointRow) -> Upgrade:
        place = Place(row.thread_id, row.checkpoint_ns, row.checkpoint_id)
        return Upgrade(self.store, self.serde, place, row.checkpoint_ns)

    def _tried(self, rows: Sequence[CheckpointRow]) -> Migrated:
        errors = []
        for row in rows:
            try:
                self._upgrade(row).prepare()
            except CheckpointError as error:
                errors.append(error)
        return Migrated(len(rows) - len(errors), tuple(errors))

    def _migrated(self, rows: Sequence[CheckpointRow]) -> Migrated:
        tickets = self.store.database.write_all([self._upgrade(row) for row in rows])
        errors = [ticket.error for ticket in tickets if ticket.error is not None]
        for error in errors:
            if not isinstance(error, CheckpointError) or isinstance(error, _FATAL):
                raise error
        for namespace in {row.namespace for row in rows}:
            self._tidy(namespace)
        done = sum(ticket.result() for ticket in tickets if ticket.error is None)
        return Migrated(done, tuple(error for error in errors if isinstance(error, CheckpointError)))

    def _tidy(self, namespace: int) -> None:
        """The values of before, once no checkpoint there means them any more."""
        with self.store.database.read() as db:
            if tables.has_older_checkpoints(db, namespace, self.store.migrations.version):
                return
        try:
            self.store.database.write(Statement(lambda db: retention.drop_unmeant(db, namespace)))
        except DamagedError:  # it keeps its namespace as it is
            return
