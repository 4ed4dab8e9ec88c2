"""Threads from one saver to another, whatever the two are, through their public contract.

The work is written once, as a generator that says which call it wants made and is given the answer; a driver for each
face makes the calls. Nothing but ids is kept of a thread while it is copied.

A checkpoint is put after its writes: what is there is whole, so a copy that was cut short goes on where it was.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.encoding import is_plain
from langgraph_sqlite_ckpt.errors import CheckpointError, CopyError, InvalidRequest, Place
from langgraph_sqlite_ckpt.opaque import OpaqueSerializer, as_data
from langgraph_sqlite_ckpt.reading import configuration
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.serde import SafeSerializer
from langgraph_sqlite_ckpt.verification import Problem
from langgraph_sqlite_ckpt.wholefile import Progress

Saver = BaseCheckpointSaver[Any]
T = TypeVar("T")

_RESUME, _INTERRUPT, _JOIN = "__resume__", "__interrupt__", "join:"
_NULL_TASK = "00000000-0000-0000-0000-000000000000"


class Copied(NamedTuple):
    """What a copy did. `skipped`: checkpoints that were there already. `problems`: what does not read back the same."""

    threads: int
    checkpoints: int
    writes: int
    skipped: int
    problems: Sequence[Problem]

    def plus(self, more: Copied) -> Copied:
        return Copied(
            self.threads + more.threads,
            self.checkpoints + more.checkpoints,
            self.writes + more.writes,
            self.skipped + more.skipped,
            [*self.problems, *more.problems],
        )


def copy_threads(
    source: Saver, target: Saver, *, thread_ids: Iterable[object] | None = None, progress: Progress | None = None
) -> Copied:
    """Copy threads with all they have: order, parents, namespaces, metadata, pending writes; they go on in the target.

    What is there already is skipped, so a copy that was cut short is simply started again. Each checkpoint is read back
    and compared. Where both savers use LangGraph's own serializer, values are copied as the bytes that they are: no class
    is needed. Nobody else may write to these threads meanwhile.

    Args:
        source: Any checkpointer; it is only read.
        target: Any checkpointer, set up.
        thread_ids: Which ones. Default: all.
        progress: Called with the checkpoints done and those to do.

    Raises:
        CopyError: A saver refused; what was copied before stays, and names the place.
        InvalidRequest: There is no such thread.
    """
    return _drive(_copy(*_as_bytes(source, target), _named(thread_ids), progress))


async def acopy_threads(
    source: Saver, target: Saver, *, thread_ids: Iterable[object] | None = None, progress: Progress | None = None
) -> Copied:
    """`copy_threads` through the async methods of both savers."""
    return await _adrive(_copy(*_as_bytes(source, target), _named(thread_ids), progress))


def _named(thread_ids: Iterable[object] | None) -> Sequence[str] | None:
    if isinstance(thread_ids, (str, bytes)):
        raise InvalidRequest(f"thread_ids is a list of ids, not one: [{thread_ids!r}]")
    return None if thread_ids is None else list(dict.fromkeys(map(str, thread_ids)))


def _as_bytes(source: Saver, target: Saver) -> tuple[Saver, Saver]:
    """Both savers, reading and writing values as they are stored, where they store them alike."""
    kinds = [type(saver.serde) for saver in (source, target)]
    if all(kind in (JsonPlusSerializer, SafeSerializer, OpaqueSerializer) for kind in kinds):
        return with_serde(source, OpaqueSerializer()), with_serde(target, OpaqueSerializer())
    if OpaqueSerializer in kinds:
        raise InvalidRequest("one of the savers has a serializer of its own: pass the other with one that rebuilds values")
    return source, target


def with_serde(saver: T, serde: OpaqueSerializer) -> T:
    """A saver on the same storage: what `with_allowlist` of any saver does."""
    clone = copy.copy(saver)
    clone.serde = serde  # type: ignore[attr-defined]  # every saver has one
    return clone


# --- the driver of each face ---


class Call(NamedTuple):
    """A call that the work wants made. Of a `list`, what `each` makes of its items is the answer."""

    saver: Saver
    method: str
    arguments: tuple[Any, ...]
    each: Callable[[CheckpointTuple], Any] | None = None

    def run(self) -> Any:
        answer = getattr(self.saver, self.method)(*self.arguments)
        return [self.each(item) for item in answer] if self.each else answer

    async def arun(self) -> Any:
        answer = getattr(self.saver, "a" + self.method)(*self.arguments)
        return [self.each(item) async for item in answer] if self.each else await answer


Work = Generator[Call, Any, T]


def _drive(work: Work[T]) -> T:
    try:
        call = next(work)
        while True:
            try:
                answer = call.run()
            except Exception as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


async def _adrive(work: Work[T]) -> T:
    try:
        call = next(work)
        while True:
            try:
                answer = await call.arun()
            except Exception as error:
                call = work.throw(error)
            else:
                call = work.send(answer)
    except StopIteration as done:
        result: T = done.value
        return result


# --- the work ---


class Entry(NamedTuple):
    """A checkpoint to copy: where it is, and which (task, channel) pairs wrote to it."""

    place: Place
    parent_id: str | None
    writes: frozenset[tuple[str, str]]

    @property
    def config(self) -> RunnableConfig:
        return configuration(self.place, self.place.checkpoint_id)

    @property
    def key(self) -> tuple[str, str | None]:
        return self.place.checkpoint_ns, self.place.checkpoint_id

    @property
    def parent_key(self) -> tuple[str, str | None]:
        return self.place.checkpoint_ns, self.parent_id


def _copy(source: Saver, target: Saver, thread_ids: Sequence[str] | None, progress: Progress | None) -> Work[Copied]:
    report = progress or (lambda _done, _total: None)
    plans = []
    for thread_id in (yield from _all_threads(source)) if thread_ids is None else thread_ids:
        plans.append((yield from _plan(source, target, thread_id)))
        report(0, sum(len(plan.entries) for plan in plans))
    total, done = sum(len(plan.entries) for plan in plans), 0
    copied = Copied(len(plans), 0, 0, 0, [])
    for plan in plans:
        state = Namespaces()
        for entry in plan.entries:
            if plan.has(entry):
                copied = copied.plus(Copied(0, 0, 0, 1, ()))
            else:
                copied = copied.plus((yield from _copy_one(source, target, entry, state)))
            done += 1
            report(done, total)
        copied = copied.plus(Copied(0, 0, 0, 0, (yield from _latest(target, plan))))
    return copied


class Plan(NamedTuple):
    """The checkpoints of a thread, oldest first, and what of them the target has."""

    entries: Sequence[Entry]
    present: Mapping[tuple[str, str | None], Entry]

    def has(self, entry: Entry) -> bool:
        """All of it; it may have more, where the thread has gone on there."""
        there = self.present.get(entry.key)
        return there is not None and entry.writes <= there.writes


def _all_threads(source: Saver) -> Work[Sequence[str]]:
    if isinstance(source, SqliteSaver):
        with source._shared.read() as db:
            return tables.thread_ids(db)
    listed = yield Call(source, "list", (None,), lambda item: _place(item).thread_id)
    return list(dict.fromkeys(reversed(listed)))


def _plan(source: Saver, target: Saver, thread_id: str) -> Work[Plan]:
    config = {"configurable": {"thread_id": thread_id}}
    try:
        entries = yield Call(source, "list", (config,), _entry)
        present = yield Call(target, "list", (config,), _entry)
    except Exception as error:
        raise CopyError(Place(thread_id), error) from error
    if not entries:
        raise InvalidRequest(f"there is no thread {thread_id!r} to copy")
    ordered = parents_first(
        entries[::-1], lambda entry: entry.key, lambda entry: (entry.place.checkpoint_ns, entry.parent_id)
    )
    return Plan(ordered, {entry.key: entry for entry in present})


def _place(item: CheckpointTuple) -> Place:
    configurable = item.config["configurable"]
    return Place(
        str(configurable["thread_id"]), configurable.get("checkpoint_ns") or "", str(configurable["checkpoint_id"])
    )


def _entry(item: CheckpointTuple) -> Entry:
    parent = item.parent_config["configurable"].get("checkpoint_id") if item.parent_config else None
    writes = frozenset((task_id, channel) for task_id, channel, _ in item.pending_writes or ())
    return Entry(_place(item), parent, writes)


def parents_first(items: Sequence[T], key: Callable[[T], Any], parent: Callable[[T], Any]) -> Sequence[T]:
    """In the order given, but for parents that come after a child of theirs: ids of a clock that stepped back."""
    waiting = {key(item): item for item in items}
    ordered: list[T] = []
    for item in items:
        line: list[T] = []
        current = waiting.pop(key(item), None)
        while current is not None:
            line.append(current)
            current = waiting.pop(parent(current), None)
        ordered.extend(reversed(line))
    return ordered


class Namespaces:
    """The versions of values that the target was given, by namespace: each value is put once."""

    def __init__(self) -> None:
        self._put: dict[str, set[tuple[str, Any]]] = {}

    def new(self, checkpoint_ns: str, checkpoint: Mapping[str, Any]) -> dict[str, Any]:
        put = self._put.setdefault(checkpoint_ns, set())
        versions = checkpoint["channel_versions"]
        new = {
            channel: versions[channel]
            for channel in checkpoint["channel_values"]
            if channel in versions and (channel, versions[channel]) not in put
        }
        put.update(new.items())
        return new

    def knows(self, checkpoint_ns: str, channel: str, version: Any) -> bool:
        return (channel, version) in self._put.get(checkpoint_ns, ())


def _copy_one(source: Saver, target: Saver, entry: Entry, namespaces: Namespaces) -> Work[Copied]:
    place = entry.place
    try:
        found = yield Call(source, "get_tuple", (entry.config,))
        if found is None:
            return Copied(0, 0, 0, 0, [Problem("copy", f"{place}: deleted meanwhile")])
        writes = found.pending_writes or []
        for task in tasks_of(writes, _paths(source, place)):
            yield Call(target, "put_writes", (entry.config, task.writes, task.task_id, task.task_path))
        new = namespaces.new(place.checkpoint_ns, found.checkpoint)
        metadata = found.metadata if _takes_anything(target) or is_plain(found.metadata) else as_data(found.metadata)
        yield Call(target, "put", (configuration(place, entry.parent_id), found.checkpoint, metadata, new))
        back = yield Call(target, "get_tuple", (entry.config,))
    except CheckpointError:
        raise
    except Exception as error:
        raise CopyError(place, error) from error
    return Copied(0, 1, len(writes), 0, [*differences(found, back, place, namespaces)])


def _takes_anything(saver: Saver) -> bool:
    return isinstance(saver, (SqliteSaver, InMemorySaver))


# --- writes ---


class Task(NamedTuple):
    """What one task wrote, for one call of `put_writes`."""

    task_id: str
    task_path: str
    writes: Sequence[tuple[str, Any]]


def tasks_of(writes: Sequence[tuple[str, str, Any]], paths: Mapping[str, str], order: Sequence[str] = ()) -> Sequence[Task]:
    """The calls that store these writes, in an order that tells again what was answered: interrupts before answers.

    `order`: the tasks in the order in which they last wrote, where it is known.
    LangGraph numbers ordinary writes by their place in a call.
    """
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task_id, channel, value in writes:
        by_task.setdefault(task_id, []).append((channel, value))
    paths = paths or _paths_that_keep(list(by_task))
    if order:
        ordered = sorted(by_task, key=order.index)
    else:
        ordered = sorted(by_task, key=lambda task_id: task_id == _NULL_TASK and _is_answer(by_task))
    return [Task(task_id, paths.get(task_id, ""), part) for task_id in ordered for part in _calls(by_task[task_id]) if part]


def _calls(writes: Sequence[tuple[str, Any]]) -> Sequence[Sequence[tuple[str, Any]]]:
    """As LangGraph makes them: what a task was answered goes with what it wrote then."""
    special = [write for write in writes if write[0] in WRITES_IDX_MAP and write[0] != _RESUME]
    return special, [write for write in writes if write[0] not in WRITES_IDX_MAP or write[0] == _RESUME]


def _is_answer(by_task: Mapping[str, Sequence[tuple[str, Any]]]) -> bool:
    """Whether the resume that is for whichever task waits came after an interrupt: its task has not taken it yet."""
    channels = [{channel for channel, _ in writes} for task_id, writes in by_task.items() if task_id != _NULL_TASK]
    return any(_INTERRUPT in of_task and _RESUME not in of_task for of_task in channels)


def _paths(saver: Saver, place: Place) -> Mapping[str, str]:
    """By task, from savers that tell: the contract itself does not show paths."""
    if isinstance(saver, SqliteSaver):
        with saver._shared.read() as db:
            return tables.task_paths(db, place.thread_id, place.checkpoint_ns, place.checkpoint_id or "")
    if isinstance(saver, InMemorySaver):
        stored = saver.writes.get((place.thread_id, place.checkpoint_ns, place.checkpoint_id or ""), {})
        return {task_id: path for task_id, _, _, path in stored.values()}
    return {}


def _paths_that_keep(task_ids: Sequence[str]) -> Mapping[str, str]:
    """Paths that keep these tasks in this order where their ids alone would not; before those of LangGraph ("~...")."""
    if list(task_ids) == sorted(task_ids):
        return {}
    return {task_id: f"{number:010}" for number, task_id in enumerate(task_ids)}


# --- reading back ---


def differences(
    found: CheckpointTuple, back: CheckpointTuple | None, place: Place, namespaces: Namespaces | None = None
) -> Iterable[Problem]:
    """What is not the same on the other side."""
    if back is None:
        yield Problem("copy", f"{place}: not there when read back")
        return
    if _parent(found) != _parent(back):
        yield Problem("copy", f"{place}: its parent is {_parent(back)!r}, was {_parent(found)!r}")
    was, now = dict(found.checkpoint), dict(back.checkpoint)
    values: Any = was.pop("channel_values")
    values_now: Any = now.pop("channel_values")
    versions = found.checkpoint["channel_versions"]
    for channel in values.keys() | values_now.keys():
        known = namespaces is not None and namespaces.knows(place.checkpoint_ns, channel, versions.get(channel))
        if known and (channel not in values or channel.startswith(_JOIN)):
            continue  # left out here, or stored while it changed: what its version first meant is known there
        if channel not in values or channel not in values_now or not _same(values[channel], values_now[channel]):
            yield Problem("copy", f"{place._replace(channel=channel)}: its value is not the same")
    for name, before, after in (
        ("versions", was, now),
        ("metadata", _metadata(found, back), back.metadata),
        ("writes", list(found.pending_writes or ()), list(back.pending_writes or ())),
    ):
        if not _same(before, after):
            yield Problem("copy", f"{place}: its {name} are not the same")


def _parent(item: CheckpointTuple) -> str | None:
    return item.parent_config["configurable"].get("checkpoint_id") if item.parent_config else None


def _metadata(found: CheckpointTuple, back: CheckpointTuple) -> Mapping[str, Any]:
    """PostgresSaver leaves out "writes", which old releases of LangGraph kept there."""
    return {key: value for key, value in found.metadata.items() if key != "writes" or key in back.metadata}


def _same(one: Any, other: Any) -> bool:
    serde = OpaqueSerializer()
    with suppress(Exception):  # an array, or whatever a user's class does
        if bool(one == other):
            return True
    with suppress(Exception):
        return bool(serde.loads_typed(serde.dumps_typed(one)) == serde.loads_typed(serde.dumps_typed(other)))
    return False


def _latest(target: Saver, plan: Plan) -> Work[Sequence[Problem]]:
    """Savers that order by id call another checkpoint the latest where a clock was wrong: that must be known."""
    problems = []
    last = {entry.place.checkpoint_ns: entry for entry in plan.entries}
    for entry in last.values():
        if entry.place.checkpoint_ns or entry.key in plan.present:
            continue
        back = yield Call(target, "get_tuple", (configuration(entry.place, None),))
        if back is not None and _place(back).checkpoint_id != entry.place.checkpoint_id:
            problems.append(
                Problem("order", f"{entry.place}: is the latest, but the target orders by id and takes another")
            )
    return problems
