"""What LangGraph calls a task, and what it will call it once nodes are renamed.

A task's id is LangGraph's hash of its checkpoint, its namespace, the step, the node's name and what triggered it
(`langgraph/pregel/_algo.py`). No name can be read out of it, but one can be tried: an id that comes out equal is
recognised, and made again with today's names. With it change the namespace of a subgraph that the task called, all ids
below it, and the ids of the questions asked there.
"""

from __future__ import annotations

import binascii
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha1
from itertools import chain as chained
from itertools import combinations
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import TASKS
from xxhash import xxh3_128_hexdigest  # LangGraph itself needs it, to make these very ids

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain, Damaged
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.encoding import Body, decode, readable_metadata
from langgraph_sqlite_ckpt.errors import CheckpointError, Place
from langgraph_sqlite_ckpt.migrations import BRANCH, JOIN, SEPARATOR, START, TASK_MARK, Migrations, graph_of
from langgraph_sqlite_ckpt.tables import BlobRow, CheckpointRow, EffectTask, WriteRow

PULL, PUSH = "__pregel_pull", "__pregel_push"
_ANSWERS = 32  # questions of one task that are recognised
_CALLS = 32  # `@task` calls of one task whose effects are recognised
_JOINS = 6  # joins into one node of which every combination is tried


@dataclass(frozen=True)
class Renaming:
    """What is called otherwise from now on, by what it was called."""

    tasks: Mapping[str, str] = field(default_factory=dict)
    namespaces: Mapping[str, str] = field(default_factory=dict)
    interrupts: Mapping[str, str] = field(default_factory=dict)


NOTHING = Renaming()


class Member(NamedTuple):
    """The latest checkpoint of a namespace, as far as its tasks' names depend on it."""

    body: Body
    writes: Sequence[WriteRow]
    effects: Sequence[EffectTask]
    sends: Sequence[BlobRow]


class Family(NamedTuple):
    """A checkpoint, the namespaces that its tasks called, and those below them."""

    head: Member
    called: Sequence[Member]

    def renaming(self, serde: SerializerProtocol, migrations: Migrations, known_as: str) -> Renaming:
        """`known_as`: what the head's own namespace is called from now on."""
        found = _Found(migrations, {self.head.body.row.checkpoint_ns: known_as})
        members = {member.body.row.checkpoint_ns: member for member in self.called}
        members[self.head.body.row.checkpoint_ns] = self.head
        for namespace in sorted(members, key=lambda name: name.count(SEPARATOR) + bool(name)):
            found.look(serde, members[namespace], [name for name in members if _parent(name) == namespace])
        own = found.tasks.get(self.head.body.row.checkpoint_ns, {})
        return Renaming(own, {old: new for old, new in found.namespaces.items() if old != new}, found.interrupts)


def fetch_family(db: sqlite3.Connection, body: Body, writes: Sequence[WriteRow]) -> Family:
    row = body.row
    prefix = row.checkpoint_ns + SEPARATOR if row.checkpoint_ns else ""
    called = []
    for namespace in tables.namespaces_called_by(db, row.thread_id, prefix, row.checkpoint_id):
        latest = tables.latest_checkpoint(db, namespace)
        if latest is None or latest.checkpoint_ns == row.checkpoint_ns:
            continue
        try:
            below = Body.of(latest)
        except CheckpointError:  # who reaches it will be told
            continue
        called.append(_member(db, below, tables.writes_of(db, namespace, latest.checkpoint_id)))
    return Family(_member(db, body, writes), called)


def _member(db: sqlite3.Connection, body: Body, writes: Sequence[WriteRow]) -> Member:
    sends = tables.chain_named(db, [name for name in body.names if name.channel == TASKS])
    return Member(body, writes, tables.effects_of_checkpoint(db, body.row.namespace, body.row.checkpoint_id), sends)


def _parent(namespace: str) -> str | None:
    """The namespace that called this one; the root has none. Numbers tell the calls of one task apart."""
    if not namespace:
        return None
    parts = namespace.split(SEPARATOR)
    while parts and parts[-1].isdigit():
        parts.pop()
    return SEPARATOR.join(parts[:-1])


class _Found:
    """What has been recognised so far, from the head downwards."""

    def __init__(self, migrations: Migrations, namespaces: dict[str, str]) -> None:
        self._migrations = migrations
        self.namespaces = namespaces
        self.tasks: dict[str, dict[str, str]] = {}
        self.interrupts: dict[str, str] = {}

    def look(self, serde: SerializerProtocol, member: Member, called: Sequence[str]) -> None:
        row = member.body.row
        old_ns = row.checkpoint_ns
        new_ns = self.namespaces.setdefault(old_ns, old_ns)
        namer = _Namer(member, self._migrations, _sent_to(serde, member))
        ids: dict[str, str] = {}
        effects = [(effect.node, effect.task_id) for effect in member.effects]
        for name, task_id in {*_of_writes(member.writes, namer.sent), *map(_task_of, called), *effects}:
            task = namer.recognised(name, task_id)
            if task is not None:
                ids[task_id] = namer.renamed(task, new_ns)
                self._ask(_below(old_ns, f"{task.name}:{task_id}"), _below(new_ns, f"{namer.name(name)}:{ids[task_id]}"))
        for name, task_id in effects:
            if task_id not in ids:
                ids[task_id] = namer.renamed_call(name, task_id, new_ns) or task_id
        self.tasks[old_ns] = {old: new for old, new in ids.items() if old != new}
        for namespace in called:
            self.namespaces[namespace] = self._namespace(namespace, namer, ids, new_ns)

    def _ask(self, old_ns: str, new_ns: str) -> None:
        if old_ns != new_ns:
            for answered in range(_ANSWERS):
                self.interrupts[_interrupt_id(old_ns, answered)] = _interrupt_id(new_ns, answered)

    def _namespace(self, namespace: str, namer: _Namer, ids: Mapping[str, str], new_ns: str) -> str:
        name, task_id = _task_of(namespace)
        call = _call(namespace)
        if not task_id:  # `checkpointer=True`: one namespace for all of the node's tasks
            return _below(new_ns, namer.name(name) + call)
        known = ids.get(task_id)
        return _below(new_ns, (f"{namer.name(name)}:{known}" if known else f"{name}:{task_id}") + call)


def _below(namespace: str, part: str) -> str:
    return namespace + SEPARATOR + part if namespace else part


def _task_of(namespace: str) -> tuple[str, str]:
    """The name and the id of the task that a namespace is of."""
    parent = _parent(namespace) or ""
    part = namespace[len(parent) + bool(parent) :].split(SEPARATOR, maxsplit=1)[0]
    name, _, task_id = part.partition(TASK_MARK)
    return name, task_id


def _call(namespace: str) -> str:
    """The numbers at its end."""
    parent = _parent(namespace) or ""
    own = namespace[len(parent) + bool(parent) :]
    return own[len(own.split(SEPARATOR)[0]) :]


def _of_writes(writes: Sequence[WriteRow], sent: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(name, id) of the tasks that have written something: their path says who they are."""
    for write in writes:
        path = write.task_path.removeprefix("~").split(", ")
        if path[0] == PULL and len(path) == 2:
            yield path[1], write.task_id
        elif path[0] == PUSH and len(path) > 1 and path[1].isdigit() and int(path[1]) < len(sent):
            yield sent[int(path[1])], write.task_id


def _sent_to(serde: SerializerProtocol, member: Member) -> Sequence[str]:
    """The nodes that the pending Sends are for, in order."""
    chain = Chain(member.sends)
    row = member.body.row
    place = Place(row.thread_id, row.checkpoint_ns, row.checkpoint_id, TASKS)
    for blob in member.sends:
        if (blob.channel, blob.version) == (TASKS, member.body.versions.get(TASKS)):
            try:
                value = decode(serde, place, blob.type, chain.raw(blob.id))
            except (CheckpointError, Damaged):
                return ()
            return [str(getattr(send, "node", "")) for send in value] if isinstance(value, (list, tuple)) else ()
    return ()


# --- one checkpoint's tasks ---


class Task(NamedTuple):
    name: str
    cause: tuple[str, ...]


class _Namer:
    """Makes the ids of one checkpoint's tasks, as LangGraph does."""

    def __init__(self, member: Member, migrations: Migrations, sent: Sequence[str]) -> None:
        self.sent = sent
        self._row = member.body.row
        self._fields = member.body.fields
        self._migrations = migrations
        self._graph = graph_of(self._row.checkpoint_ns)

    def recognised(self, name: str, task_id: str) -> Task | None:
        for cause in self._causes(name):
            if self._id(self._row.checkpoint_ns, name, cause) == task_id:
                return Task(name, cause)
        return None

    def renamed(self, task: Task, new_ns: str) -> str:
        """The id of today."""
        kind, *others = task.cause
        if kind == PULL:
            version = self._row.state_version
            others = sorted(self._migrations.trigger(trigger, self._graph, version) for trigger in others)
        return self._id(new_ns, self.name(task.name), (kind, *others)) or ""

    def renamed_call(self, name: str, task_id: str, new_ns: str) -> str | None:
        """The id of today of a `@task` that a node of this checkpoint called."""
        for caller in self._callers():
            old_id, new_id = self._id(self._row.checkpoint_ns, *caller), self.renamed(caller, new_ns)
            old_task_ns = _below(self._row.checkpoint_ns, f"{caller.name}:{old_id}")
            for number in range(_CALLS):
                if self._id(old_task_ns, name, (PUSH, _path(caller.name, caller.cause), str(number))) == task_id:
                    today = self.name(caller.name)
                    cause = (PUSH, _path(today, caller.cause), str(number))
                    return self._id(_below(new_ns, f"{today}:{new_id}"), name, cause)
        return None

    def _callers(self) -> Iterator[Task]:
        """Every task that a renamed node, or one that has run here, may be."""
        for name in sorted({*self._migrations.renamed_nodes, *self._fields["versions_seen"], *self.sent, *self._triggered}):
            for cause in self._causes(name):
                yield Task(name, cause)

    @property
    def _triggered(self) -> set[str]:
        return {name[len(BRANCH) :] for name in self._fields["channel_versions"] if name.startswith(BRANCH)}

    def name(self, node: str) -> str:
        return self._migrations.node(node, self._graph, self._row.state_version)

    def _causes(self, name: str) -> Iterator[tuple[str, ...]]:
        joins = [channel for channel in self._fields["channel_versions"] if _joins(channel, name)][:_JOINS]
        for some in chained.from_iterable(combinations(joins, count) for count in range(len(joins) + 1)):
            yield (PULL, *sorted((BRANCH + name, *some)))
        yield (PULL, START)
        yield from ((PUSH, str(number)) for number, node in enumerate(self.sent) if node == name)

    def _id(self, checkpoint_ns: str, name: str, cause: Sequence[str]) -> str | None:
        if self._step is None or self._checkpoint is None:
            return None
        parts = (_below(checkpoint_ns, name), str(self._step), name, *cause)
        digest = self._digest(self._checkpoint + "".join(parts).encode())
        return f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def _digest(self, data: bytes) -> str:
        return xxh3_128_hexdigest(data) if self._fields.get("v", 0) > 1 else sha1(data, usedforsecurity=False).hexdigest()

    @cached_property
    def _checkpoint(self) -> bytes | None:
        try:
            return binascii.unhexlify(self._row.checkpoint_id.replace("-", ""))
        except ValueError:  # no id of LangGraph's
            return None

    @cached_property
    def _step(self) -> int | None:
        step = readable_metadata(self._row).get("step", -2)
        return step + 1 if isinstance(step, int) else None


def _path(name: str, cause: Sequence[str]) -> str:
    """A task's path as LangGraph writes it."""
    return f"~{PULL}, {name}" if cause[0] == PULL else f"~{PUSH}, {int(cause[1]):010d}, {0:010d}"


def _joins(channel: str, name: str) -> bool:
    return channel.startswith(JOIN) and channel.endswith(":" + name)


def _interrupt_id(namespace: str, answered: int) -> str:
    return xxh3_128_hexdigest((f"{namespace}{SEPARATOR}{answered}" if answered else namespace).encode())


def renamed_parents(metadata: dict[str, Any], old_ns: str, new_ns: str) -> None:
    """The namespaces above, in the metadata of a checkpoint below."""
    parents = metadata.get("parents")
    if old_ns == new_ns or not isinstance(parents, dict):
        return
    old, new = old_ns.split(SEPARATOR), new_ns.split(SEPARATOR)
    names = {SEPARATOR.join(old[:depth]): SEPARATOR.join(new[:depth]) for depth in range(len(old) + 1)}
    metadata["parents"] = {names.get(namespace, namespace): parent for namespace, parent in parents.items()}


# --- a namespace that is asked for by its name of today ---


class Caller(NamedTuple):
    """The latest checkpoint of the namespace above."""

    row: CheckpointRow
    family: Family
    known_as: str

    def renaming(self, serde: SerializerProtocol, migrations: Migrations) -> Renaming:
        return self.family.renaming(serde, migrations, self.known_as)


def stored_name(database: Database, serde: SerializerProtocol, migrations: Migrations, place: Place) -> str:
    """What the file calls this namespace: the same, or what it was called before its nodes were renamed."""
    wanted = place.checkpoint_ns
    if not wanted or not migrations.renames_nodes(0):
        return wanted
    with database.read() as db:
        if tables.find_namespace(db, place.thread_id, wanted) is not None:
            return wanted
    caller = caller_of(database, serde, migrations, place)
    if caller is not None:
        for old, new in caller.renaming(serde, migrations).namespaces.items():
            if new == wanted:
                return old
    return _plain_name(database, migrations, place)


def caller_of(database: Database, serde: SerializerProtocol, migrations: Migrations, place: Place) -> Caller | None:
    """None where it is up to date: then so are the names of all that it called."""
    known_as = _parent(place.checkpoint_ns) or ""
    above = place._replace(checkpoint_ns=known_as)
    stored = stored_name(database, serde, migrations, above)
    with database.read() as db:
        latest = tables.newest_of(db, place.thread_id, stored)
        if latest is None or (latest.state_version >= migrations.version and stored == known_as):
            return None
        try:
            body = Body.of(latest)
        except CheckpointError:  # who reaches it will be told
            return None
        writes = tables.writes_of(db, latest.namespace, latest.checkpoint_id)
        return Caller(latest, fetch_family(db, body, writes), known_as)


def _plain_name(database: Database, migrations: Migrations, place: Place) -> str:
    """Of a `checkpointer=True` subgraph, whose namespace is the names of nodes."""
    if TASK_MARK in place.checkpoint_ns:
        return place.checkpoint_ns
    with database.read() as db:
        names = [name for _, name in tables.namespaces_of(db, place.thread_id)]
    renamed = (n for n in names if n and TASK_MARK not in n and _nodes(migrations, n) == place.checkpoint_ns)
    return next(renamed, place.checkpoint_ns)


def _nodes(migrations: Migrations, stored: str) -> str:
    """A path of nodes by today's names."""
    parts = stored.split(SEPARATOR)
    return SEPARATOR.join(
        part if part.isdigit() else migrations.node(part, graph_of(SEPARATOR.join(parts[:depth])), 0)
        for depth, part in enumerate(parts)
    )
