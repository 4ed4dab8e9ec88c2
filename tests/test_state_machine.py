"""Random histories of calls, on SqliteSaver and on InMemorySaver: both must tell the same story afterwards.

The model is InMemorySaver with what it lacks (`Model`). Where we mean to differ from it, no history goes there, or `Model`
says what we mean:

- a value that no version covers comes back (InMemorySaver drops it);
- a scalar is kept beside its checkpoint, as PostgresSaver does: no history names one by its version alone;
- order is the order of commits, also over namespaces and threads. Ids are made in that order here, so within a namespace
  it is InMemorySaver's order too.

`STATE_MACHINE_EXAMPLES=2000 pytest tests/test_state_machine.py` looks longer, with other seeds each time, and shortens the
history that it fails on.
"""

import asyncio
import os
import random
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Face
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, SCHEDULED, _DeltaSnapshot

from langgraph_sqlite_ckpt import Flush, InvalidRequest, SqliteSaver, tables
from langgraph_sqlite_ckpt.blobs import Chain, Limits, Recent
from langgraph_sqlite_ckpt.flush import Course
from langgraph_sqlite_ckpt.overview import STATUSES

EXAMPLES = int(os.environ.get("STATE_MACHINE_EXAMPLES", "0"))
TINY = Limits(compress_from=1, delta_from=8, cache=1)  # chains, cache misses and new chains all the time
COUNTERS = "counters_since_delta_snapshot"

# --- what there is to store ---

CHANNELS = ("items", "tree", "text", "count", "branch:to:node")
DELTAS = ("log", "notes")  # as LangGraph's DeltaChannels: mostly a version without a value
THREADS, COPIES = ("a", "b"), ("copy 1", "copy 2")
NAMESPACES = ("", "call:1", "call:2|1", "kept", "kept|deep:3")  # a call carries its task's id; the other goes on


SCALARS = (None, False, 0, -0.0, 1, True, 1.5, -(2**63), 2**63 - 1, "", "é\0'", "x" * 200)
LARGER = (
    [],
    {},
    b"",
    [1, 2, 3],
    {"p": {"q": {"r": [1]}, "": {}}},
    "x" * 201,
    *(f"{n} the same line again\n" * 30 for n in range(3)),
    *([f"message {n} {i * 7919}" for i in range(30)] for n in range(3)),
    *({f"key {i}": [{"n": n, "i": i * 7919}] for i in range(20)} for n in range(3)),
    *(bytes([n, 0]) * 400 for n in range(3)),
    *(random.Random(n).randbytes(600) for n in range(3)),
)
scalars, larger = st.sampled_from(SCALARS), st.sampled_from(LARGER)


def is_scalar(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) <= 200)


class Change(NamedTuple):
    """What a step does to a channel: `make` gets the old value."""

    kind: str  # set, empty (a new version, no value), remove (no version either), leave out (named by its version alone)
    make: Callable[[Any], Any] = lambda old: old


def assigned(value: Any) -> Change:
    return Change("set", lambda old: value)


def grown(chunk: Any) -> Change:
    return Change("set", lambda old: [*old, chunk] if isinstance(old, list) else [chunk])


def trimmed(count: int) -> Change:
    return Change("set", lambda old: old[count:] if isinstance(old, (list, bytes)) else [count])


OTHER = (Change("empty"), Change("remove"), Change("leave out"), Change("leave out"), trimmed(1), trimmed(2))


def changes(values: Sequence[Any]) -> st.SearchStrategy[Change]:
    several = [[assigned(value) for value in values], [grown(chunk) for chunk in [1, *LARGER]], OTHER, OTHER]
    return st.one_of([st.sampled_from(some) for some in several])


TAGS = (None, False, 0, True, 1, 1.0, 2.5, "ü'\"", "", "a.b", [1, (2, "x")], {"k": (1,)})
metadatas = st.fixed_dictionaries(
    {"source": st.sampled_from(["input", "loop", "update", "fork"]), "step": st.integers(-1, 3)},
    optional={"tag": st.sampled_from(TAGS), "run_id": st.sampled_from(["run 1", "run 2"])},
)
FILTERS = (
    None,
    None,
    {},
    {"source": "input"},
    {"source": "loop", "step": 1.0},
    {"source": "nothing"},
    {"step": 0},
    {"step": None},
    {"run_id": "run 1"},
    {"run_id": None},
    {"no such key": None},
    {"parents": {}},
    {"tag": "a.b", "source": "loop"},
    *({"tag": tag} for tag in TAGS),
)
written = st.tuples(
    st.lists(
        st.tuples(st.sampled_from([*CHANNELS, *DELTAS, *DELTAS, ERROR, SCHEDULED, INTERRUPT, RESUME]), scalars | larger),
        max_size=4,
    ),
    st.sampled_from(["task 1", "task 2"]),
    st.sampled_from(["", "~a", "~b"]),
)


class Step(NamedTuple):
    """What one superstep puts."""

    changes: dict[str, Change]
    deltas: dict[str, bool]  # the DeltaChannels that were written to; True: with a snapshot
    metadata: dict[str, Any]
    extra: list[Any]  # values that no version covers


def steps(values: Sequence[Any]) -> st.SearchStrategy[Step]:
    changed = st.dictionaries(st.sampled_from(CHANNELS), changes(values), max_size=3)
    deltas = st.dictionaries(st.sampled_from(DELTAS), st.sampled_from([False, False, False, True]))
    return st.builds(Step, changed, deltas, metadatas, st.lists(larger, max_size=1))


picks = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 5, 8, 13, 21, 34])  # which one, of those that are there; 0 is the newest
threads, namespaces = st.sampled_from(["a", *THREADS]), st.sampled_from(["", "", *NAMESPACES])

# --- the model ---


class Key(NamedTuple):
    thread: str
    ns: str
    id: str

    def config(self) -> Any:
        return config(*self)


def config(thread: str, ns: str | None = None, id: str | None = None) -> Any:
    named = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}
    return {"configurable": {name: value for name, value in named.items() if value is not None}}


def key_of(config: Any) -> Key:
    configurable = config["configurable"]
    return Key(configurable["thread_id"], configurable.get("checkpoint_ns", ""), configurable["checkpoint_id"])


def story(found: CheckpointTuple, extra: dict[str, Any] | None = None) -> str:
    """All that a tuple says, as text: 1 is not True there, and 0.0 not -0.0."""
    checkpoint = dict(found.checkpoint)
    values = {**checkpoint.pop("channel_values"), **(extra or {})}
    parent = key_of(found.parent_config) if found.parent_config else None
    return repr(
        (key_of(found.config), parent, _sorted(values), _sorted(checkpoint), _sorted(found.metadata), found.pending_writes)
    )


def _sorted(fields: Any) -> Any:
    return sorted(fields.items())


@dataclass
class Model:
    """InMemorySaver with the order of commits, values that no version covers, copying and pruning."""

    memory: InMemorySaver = field(default_factory=InMemorySaver)
    commits: dict[Key, int] = field(default_factory=dict)
    extra: dict[Key, dict[str, Any]] = field(default_factory=dict)
    hidden: set[Key] = field(default_factory=set)  # pruned, but there for the DeltaChannels of others

    def put(self, at: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> None:
        key = key_of(self.memory.put(at, checkpoint, metadata, new_versions))
        self.commits.setdefault(key, len(self.commits) + max(self.commits.values(), default=0))
        values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
        self.extra[key] = {channel: value for channel, value in values.items() if channel not in versions}
        self.hidden.discard(key)

    def keys(self, thread: str | None = None, ns: str | None = None) -> list[Key]:
        """Of what is shown, newest commit first."""
        return [key for key in self.keys_with_hidden(thread, ns) if key not in self.hidden]

    def keys_with_hidden(self, thread: str | None = None, ns: str | None = None) -> list[Key]:
        chosen = [key for key in self.commits if (thread is None or key.thread == thread) and (ns is None or key.ns == ns)]
        return sorted(chosen, key=self.commits.__getitem__, reverse=True)

    def namespaces(self, thread: str) -> set[str]:
        """Also those that only have writes."""
        return {key.ns for key in self.keys(thread)} | {ns for of, ns, _ in self.memory.writes if of == thread}

    def get(self, key: Key) -> CheckpointTuple:
        found = self.memory.get_tuple(key.config())
        assert found is not None
        return found

    def story(self, key: Key) -> str:
        found = self.get(key)
        if found.parent_config and key_of(found.parent_config) in self.hidden:
            found = found._replace(parent_config=None)
        return story(found, self.extra[key])

    def listed(self, config: Any, filter: Any, before: Key | None, limit: int | None) -> list[Key]:
        found = self.listed_by_memory(config, filter, None, None)
        if before is not None:
            bound = self.commits.get(before) if self._in_scope(config, before) else None
            found = [key for key in found if (key.id < before.id if bound is None else self.commits[key] < bound)]
        return sorted(found, key=self.commits.__getitem__, reverse=True)[:limit]

    def listed_by_memory(self, config: Any, filter: Any, before: Any, limit: int | None) -> list[Key]:
        found = [key_of(item.config) for item in self.memory.list(config, filter=filter, before=before)]
        return [key for key in found if key not in self.hidden][:limit]

    def _in_scope(self, config: Any, key: Key) -> bool:
        scope = config["configurable"] if config else {}
        return scope.get("thread_id", key.thread) == key.thread and scope.get("checkpoint_ns", key.ns) == key.ns

    # --- deleting and copying ---

    def keep_only(self, thread: str, ns: str, kept: Iterable[Key], needed: Iterable[Key] = ()) -> None:
        """What is named, its writes and its values; a parent that is gone is no parent. What is only needed is hidden."""
        stored = self.memory.storage[thread][ns]
        self.hidden |= set(needed) - set(kept)
        for key in set(self.keys_with_hidden(thread, ns)) - set(kept) - set(needed):
            self.hidden.discard(key)
            del stored[key.id], self.commits[key], self.extra[key]
            self.memory.writes.pop(key, None)
        for id, (checkpoint, metadata, parent) in stored.items():
            stored[id] = (checkpoint, metadata, parent if parent in stored else None)
        named = self.named(thread, ns)
        for of_thread, of_ns, channel, version in list(self.memory.blobs):
            if (of_thread, of_ns) == (thread, ns) and (channel, version) not in named:
                del self.memory.blobs[of_thread, of_ns, channel, version]

    def delete_namespace(self, thread: str, ns: str) -> None:
        self.keep_only(thread, ns, ())
        for outer in [outer for outer in self.memory.writes if outer[:2] == (thread, ns)]:
            del self.memory.writes[outer]

    def drop_late_writes(self, thread: str, count: int) -> None:
        """Their checkpoint is not there, and older than all that stay: it is not still to come."""
        oldest = min((key.id for key in self.keys(thread, "")[:count]), default="")
        for at in [Key(*at) for at in self.memory.writes if at[0] == thread]:
            if at.id < oldest and at not in self.commits:
                del self.memory.writes[at]

    def delete_thread(self, thread: str) -> None:
        for ns in self.namespaces(thread):
            self.delete_namespace(thread, ns)

    def copy_thread(self, source: str, target: str) -> None:
        last = max(self.commits.values(), default=0)
        for number, key in enumerate(reversed(self.keys_with_hidden(source)), start=1):
            copy = key._replace(thread=target)
            self.hidden |= {copy} if key in self.hidden else set()
            self.memory.storage[target][key.ns][key.id] = self.memory.storage[source][key.ns][key.id]
            self.commits[copy], self.extra[copy] = last + number, self.extra[key]
        for stored in (self.memory.writes, self.memory.blobs):
            stored.update(
                {
                    (target, *key[1:]): dict(value) if isinstance(value, dict) else value
                    for key, value in stored.items()
                    if key[0] == source
                }
            )

    def named(self, thread: str, ns: str) -> set[tuple[str, Any]]:
        return {
            item
            for key in self.keys_with_hidden(thread, ns)
            for item in self.get(key).checkpoint["channel_versions"].items()
        }

    # --- what must stay ---

    def needed(self, kept: Iterable[Key], *, at_least: bool = False) -> set[Key]:
        """With the ancestors from which LangGraph rebuilds their DeltaChannels, back to the nearest stored value.

        `at_least`: no further than to where the channel has no version; before that nobody wrote to it.
        """
        needed = set(kept)
        for key in kept:
            found = self.get(key)
            for channel in found.metadata.get(COUNTERS, ()):
                if channel in found.checkpoint["channel_versions"] and channel not in found.checkpoint["channel_values"]:
                    needed |= set(self._line_to_value(found, channel, at_least))
        return needed

    def _line_to_value(self, found: CheckpointTuple, channel: str, at_least: bool) -> Iterator[Key]:
        while found.parent_config and (parent := key_of(found.parent_config)) in self.commits:
            yield parent
            found = self.get(parent)
            unwritten = channel not in found.checkpoint["channel_versions"]
            if channel in found.checkpoint["channel_values"] or (at_least and unwritten):
                return

    def deltas(self, key: Key) -> str:
        """What LangGraph rebuilds of them."""
        checkpoint = self.get(key).checkpoint
        rebuilt = [
            channel
            for channel in DELTAS
            if channel in checkpoint["channel_versions"] and channel not in checkpoint["channel_values"]
        ]
        return repr(self.memory.get_delta_channel_history(config=key.config(), channels=rebuilt))


# --- the machine ---


class OneLoop(Face):
    """The async face on one event loop for all calls: quicker than one for each."""

    def __init__(self, saver: SqliteSaver, name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(saver, name)
        self.loop = loop

    def _run(self, call: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(call)


class History(RuleBasedStateMachine):
    """Two saver objects on one file take turns, as two processes would; memory runs beside them."""

    def __init__(
        self, face: str, limits: Limits | None, versions: str, flush: Flush | None = None, key: bytes | None = None
    ) -> None:
        super().__init__()
        self.face, self.limits, self.versions, self.flush, self.key = face, limits, versions, flush, key
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.path = Path(self.folder.name) / "agent.db"
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        self.puts: dict[Key, Any] = {}
        self.clock = 0
        self.open()

    def open(self) -> None:
        self.savers = [OneLoop(self.opened(), self.face, self.loop) for _ in range(2)]
        self.saver = self.savers[0]

    def opened(self) -> SqliteSaver:
        saver = SqliteSaver(self.path, synchronous="normal", flush=self.flush, key=self.key)
        if self.limits is not None:
            shared = saver._shared
            shared.store = replace(shared.store, recent=Recent(self.limits.cache), limits=self.limits)
        return saver

    def write_all(self) -> None:
        """What one of them buffers, the other does not see."""
        for face in self.savers:
            face.saver.flush()

    def close(self) -> None:
        for face in self.savers:
            face.saver.close()

    # One rule, because Hypothesis has no weights for several: most histories would hardly put anything.
    ACTIONS = (
        ["begin_or_go_on"] * 5
        + ["go_on", "fork", "put_again", "put_writes", "writes_come_first", "copy_thread"] * 2
        + ["list", "list", "list_one_namespace", "list_one_namespace", "get_tuple", "get_delta_channel_history", "reopen"]
        + ["prune", "prune", "sweep", "delete_for_runs", "delete_thread", "delete_in_between", "delete_in_between"]
    )

    @rule(action=st.sampled_from(ACTIONS), saver=st.sampled_from([0, 1]), data=st.data())
    def act(self, action: str, saver: int, data: Any) -> None:
        self.draw, self.saver = data.draw, self.savers[saver]
        self.write_all()
        if self.model.commits or action in ("begin_or_go_on", "writes_come_first"):
            getattr(self, "do_" + action)()

    def draw_key(self, keys: Sequence[Key] | None = None) -> Key:
        keys = self.model.keys() if keys is None else keys
        return keys[self.draw(picks) % len(keys)]

    def latest(self, thread: str, ns: str) -> Key | None:
        return next(iter(self.model.keys(thread, ns)), None)

    def rows(self, sql: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute(sql).fetchall()

    # --- putting ---

    def do_begin_or_go_on(self) -> None:
        thread, ns = self.draw(threads), self.draw(namespaces)
        self.take_steps(thread, ns, self.latest(thread, ns))

    def do_go_on(self) -> None:
        thread, ns, _ = self.draw_key()
        self.take_steps(thread, ns, self.latest(thread, ns))

    def do_fork(self) -> None:
        """From any checkpoint, or from one that is not there."""
        parent = self.draw_key()
        gone = self.draw(st.sampled_from([False] * 7 + [True]))
        self.take_steps(parent.thread, parent.ns, parent._replace(id="gone") if gone else parent)

    def take_steps(self, thread: str, ns: str, parent: Key | None) -> None:
        """By one process, or by both in turn."""
        values = SCALARS + LARGER if self.versions == "text" else LARGER
        in_turn = self.draw(st.booleans())
        for step in self.draw(st.lists(steps(values), min_size=1, max_size=6)):
            parent = self.step(Key(thread, ns, self.next_id()), parent, step)
            if in_turn and self.flush is None:
                self.take_turns()
            if self.flush is None:  # looking would write what waits
                self.require_same(parent)
        if self.flush is not None and parent is not None:
            self.require_same(parent)

    def take_turns(self) -> None:
        self.write_all()
        self.saver = self.savers[self.savers.index(self.saver) - 1]

    def next_id(self) -> str:
        self.clock += 1
        return f"1f000000-0000-6000-8000-{self.clock:012}"

    def step(self, key: Key, parent: Key | None, step: Step) -> Key:
        """As LangGraph does it: on what it loaded of the parent, all values given, new versions for what changed."""
        loaded = self.model.get(parent) if parent in self.model.commits else None
        values = dict(loaded.checkpoint["channel_values"]) if loaded else {}
        old = loaded.checkpoint["channel_versions"] if loaded else {}
        versions = dict(old)
        for channel in DELTAS:  # their values are not carried along
            values.pop(channel, None)
        for channel, change in step.changes.items():
            self.change(channel, change, values, versions)
        for channel, snapshot in step.deltas.items():
            versions[channel] = self.version(versions.get(channel))
            if snapshot:
                values[channel] = _DeltaSnapshot([f"all until {self.clock}"])
            elif loaded:
                self.write(key_of(loaded.config), [(channel, [self.clock])], f"task {self.clock}", "")
        counters = self.counters(loaded, step)
        values |= {f"extra {channel}": value for channel, value in enumerate(step.extra)}
        metadata = {"parents": self.parents(key), **step.metadata, **({COUNTERS: counters} if counters else {})}
        new = {channel: version for channel, version in versions.items() if version != old.get(channel)}
        seen = {"node": dict(old)} if old else {}
        checkpoint = {"v": 4, "id": key.id, "ts": "2026", "channel_values": values, "channel_versions": versions}
        checkpoint |= {"versions_seen": seen, "updated_channels": sorted(step.changes)}
        self.put(config(key.thread, key.ns, parent.id if parent else None), checkpoint, metadata, new)
        return key

    def change(self, channel: str, change: Change, values: dict[str, Any], versions: dict[str, Any]) -> None:
        if change.kind == "set":
            versions[channel] = self.version(versions.get(channel))
            values[channel] = change.make(values.get(channel))
        elif change.kind == "empty" and self.versions == "text":
            versions[channel] = self.version(versions.get(channel))
            values.pop(channel, None)
        elif change.kind == "remove":
            versions.pop(channel, None)
            values.pop(channel, None)
        elif change.kind == "leave out" and not is_scalar(values.get(channel)):
            del values[channel]

    def version(self, current: Any) -> Any:
        """LangGraph's are unique; plain numbers, as other savers make them, mean something else on each fork."""
        if self.versions == "numbers":
            return (current or 0) + 1
        return f"{int(current.split('.')[0] if current else 0) + 1:032}.{self.clock:016}"

    def counters(self, loaded: CheckpointTuple | None, step: Step) -> dict[str, tuple[int, int]]:
        """LangGraph's count, per DeltaChannel, of updates and supersteps since its last snapshot."""
        counted = loaded.metadata.get(COUNTERS, {}) if loaded else {}
        counters = {}
        for channel in DELTAS:
            updates, supersteps = counted.get(channel, (0, 0))
            if not step.deltas.get(channel):
                counters[channel] = (updates + (channel in step.deltas), supersteps + 1)
        return counters

    def parents(self, key: Key) -> dict[str, str]:
        root = self.latest(key.thread, "")
        return {"": root.id} if key.ns and root else {}

    def put(self, at: Any, checkpoint: Any, metadata: Any, new: Any) -> None:
        key = key_of(self.saver.put(at, checkpoint, metadata, new))
        self.model.put(at, checkpoint, metadata, new)
        self.puts[key] = (at, checkpoint, metadata, new)

    def do_put_again(self) -> None:
        """The same id: as it was, with other metadata, or with another value for the same version."""
        keys = [key for key in self.model.keys_with_hidden() if key in self.puts]
        if not keys:
            return
        key, metadata, value = self.draw_key(keys), self.draw(st.none() | metadatas), self.draw(st.none() | larger)
        at, checkpoint, old, new = self.puts[key]
        values = checkpoint["channel_values"]
        changed = [
            channel for channel in CHANNELS if channel in new and channel in values and not is_scalar(values[channel])
        ]
        if value is not None and changed:
            checkpoint = {**checkpoint, "channel_values": {**values, changed[0]: value}}
        if metadata is not None:
            metadata = {name: old[name] for name in ("parents", COUNTERS) if name in old} | metadata
        self.put(at, checkpoint, metadata or old, new)
        self.require_same(key)

    # --- writes ---

    def do_put_writes(self) -> None:
        key = self.draw_key()
        for _ in range(2):  # often the same task again
            self.write(key, *self.draw(written))
        self.require_same(key)

    def do_writes_come_first(self) -> None:
        """Before their checkpoint, which may never come."""
        key = Key(self.draw(threads), self.draw(namespaces), self.next_id())
        self.write(key, *self.draw(written))
        step = self.draw(st.none() | steps(LARGER))
        if step is not None:
            self.step(key, self.latest(key.thread, key.ns), step)
            self.require_same(key)

    def write(self, key: Key, writes: Any, task: str, task_path: str) -> None:
        self.saver.put_writes(key.config(), writes, task, task_path)
        self.model.memory.put_writes(key.config(), writes, task, task_path)

    # --- reading ---

    def require_same(self, key: Key) -> None:
        found = self.saver.get_tuple(key.config())
        assert found is not None, key
        assert story(found) == self.model.story(key)

    def do_get_tuple(self) -> None:
        key = self.draw_key()
        latest = self.latest(key.thread, key.ns)
        assert latest is not None
        at = config(key.thread, key.ns or None)  # no namespace is the root's
        assert story(self.saver.get_tuple(at)) == self.model.story(latest)
        assert latest == key_of(self.model.memory.get_tuple(at).config)
        assert self.saver.get_tuple(key._replace(thread="nobody").config()) is None
        for each in self.draw(st.sampled_from([self.model.keys(), self.model.keys()[::-1], [key]])):
            self.require_same(each)

    def do_list(self) -> None:
        key = self.draw_key()
        at = self.draw(st.sampled_from([None, config(key.thread), config(key.thread, None, key.id), config("nobody")]))
        self.list(at)

    def do_list_one_namespace(self) -> None:
        """Here InMemorySaver's order is ours."""
        key = self.draw_key()
        at = self.draw(st.sampled_from([config(key.thread, key.ns)] * 3 + [key.config()]))
        keys, asked = self.list(at)
        assert keys == self.model.listed_by_memory(at, **asked)

    def list(self, at: Any) -> Any:
        bound = self.draw_key() if self.draw(st.booleans()) else None
        filter, limit = self.draw(st.sampled_from(FILTERS)), self.draw(st.none() | st.integers(0, 12))
        asked = {"filter": filter, "before": bound and bound.config(), "limit": limit}

        found = [story(item) for item in self.saver.list(at, **asked)]

        keys = self.model.listed(at, filter, bound, limit)
        assert found == [self.model.story(key) for key in keys]
        return keys, asked

    def do_get_delta_channel_history(self) -> None:
        key = self.draw_key()
        at = self.draw(st.sampled_from([key.config(), config(key.thread, key.ns)]))
        asked = {"config": at, "channels": [*DELTAS, *CHANNELS, "no such"]}
        found = self.saver.get_delta_channel_history(**asked)
        assert repr(found) == repr(self.model.memory.get_delta_channel_history(**asked))

    # --- deleting, copying, pruning ---

    def do_delete_thread(self) -> None:
        thread = self.draw_key().thread
        self.saver.delete_thread(thread)
        self.model.delete_thread(thread)
        self.require_the_same_is_left()

    def do_delete_in_between(self) -> None:
        """One process deletes what the other leans on: new values lean on nothing that is gone."""
        key = self.draw_key()
        step = Step({"items": grown("x" * 400), "tree": grown(1)}, {}, {"source": "loop", "step": 0}, [])
        for _ in range(3):
            key = self.step(Key(key.thread, key.ns, self.next_id()), self.latest(key.thread, key.ns), step)
        mine = self.saver
        self.take_turns()
        self.draw(st.sampled_from([self.do_delete_thread, self.do_prune, self.do_sweep, self.do_delete_for_runs]))()
        self.saver = mine
        items = {"items": assigned(["x" * 400] * 6)}
        self.require_same(
            self.step(
                Key(key.thread, key.ns, self.next_id()), self.latest(key.thread, key.ns), step._replace(changes=items)
            )
        )

    def do_copy_thread(self) -> None:
        source, copy = self.draw_key().thread, self.draw(st.sampled_from(COPIES))
        if self.model.namespaces(copy):
            with pytest.raises(InvalidRequest):
                self.saver.copy_thread(source, copy)
            self.saver.delete_thread(copy)
            self.model.delete_thread(copy)
        if source != copy:
            self.saver.copy_thread(source, copy)
            self.model.copy_thread(source, copy)
        with pytest.raises(InvalidRequest):
            self.saver.copy_thread("nobody", "somebody")
        self.require_the_same_is_left()
        assert [story(item) for item in self.saver.list(config(copy))] == [
            self.model.story(key) for key in self.model.keys(copy)
        ]

    def do_prune(self) -> None:
        pruned = [self.draw_key().thread for _ in range(self.draw(st.integers(1, 2)))] + ["nobody"]
        strategy = self.draw(st.sampled_from(["keep_latest"] * 4 + ["delete"]))
        self.saver.prune(pruned, strategy=strategy)
        for thread in set(pruned):
            if strategy == "delete":
                self.model.delete_thread(thread)
            else:
                self.keep_last(thread, 1)
            for ns in self.model.namespaces(thread):
                self.require_no_unmeant_blob(thread, ns)
        self.require_the_same_is_left()

    def do_sweep(self) -> None:
        """Whatever their state, all threads are shortened; a dry run says by how much."""
        count, batch = self.draw(st.integers(1, 5)), self.draw(st.sampled_from([1, 20]))
        asked = {"keep_last": count, "statuses": STATUSES, "batch": batch}
        before = len(self.model.keys())
        foretold = self.saver.sweep(dry_run=True, **asked)
        assert self.kept() == self.model.keys()

        swept = self.saver.sweep(**asked)

        for (thread,) in self.rows("SELECT thread_id FROM threads"):
            self.keep_last(thread, count)
            for ns in self.model.namespaces(thread):
                self.require_no_unmeant_blob(thread, ns)
        self.require_the_same_is_left()
        assert (swept.threads, swept.checkpoints, swept.damaged) == (0, before - len(self.model.keys()), 0)
        assert foretold == swept

    def keep_last(self, thread: str, count: int) -> None:
        """Of each namespace, but for subgraph calls whose root checkpoint is gone."""
        self.model.drop_late_writes(thread, count)
        roots: Sequence[Key] = ()
        for ns in sorted(self.model.namespaces(thread)):  # the root's first
            last = self.model.keys(thread, ns)[:count]
            if ":" in ns and last and not self.belongs_to(last[0], roots):
                self.model.delete_namespace(thread, ns)
            else:
                self.keep(thread, ns, last)
                roots = roots if ns else last

    def belongs_to(self, key: Key, roots: Iterable[Key]) -> bool:
        """Whether this subgraph call was started by one of these, or by one that is still to come."""
        root = self.model.get(key).metadata["parents"].get("")
        kept = {key.id for key in roots}
        return root is None or root in kept or root > max(kept, default="")

    def keep(self, thread: str, ns: str, chosen: Sequence[Key]) -> None:
        """What is chosen stays; what LangGraph needs to rebuild its DeltaChannels is hidden."""
        needed = {key for key in [*self.kept(), *self.hidden()] if (key.thread, key.ns) == (thread, ns)}
        assert self.model.needed(chosen, at_least=True) <= needed <= self.model.needed(chosen)
        before = [self.model.deltas(key) for key in chosen]
        self.model.keep_only(thread, ns, chosen, needed)
        if len(chosen) == 1:  # several keep less: what its parent rebuilds is enough for a child
            assert [self.model.deltas(key) for key in chosen] == before

    def do_delete_for_runs(self) -> None:
        runs = {
            Key(*key): run
            for *key, run in self.rows("SELECT thread_id, checkpoint_ns, checkpoint_id, run_id FROM checkpoints")
        }
        for key, run in runs.items():
            assert self.model.get(key).metadata.get("run_id", run) == run
        going = {runs[self.draw_key()] for _ in range(self.draw(st.integers(0, 2)))}

        self.saver.delete_for_runs(sorted(going))

        for thread, ns in {(key.thread, key.ns) for key, run in runs.items() if run in going}:
            others = [key for key in self.model.keys(thread, ns) if runs[key] not in going]
            self.keep(thread, ns, others)
            self.require_no_unmeant_blob(thread, ns)
        self.require_the_same_is_left()

    def kept(self) -> Sequence[Key]:
        return [
            Key(*row)
            for row in self.rows("SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints ORDER BY seq DESC")
        ]

    def hidden(self) -> Sequence[Key]:
        of = "FROM checkpoint c JOIN namespace n ON n.id = c.namespace WHERE c.hidden"
        return [Key(*row) for row in self.rows(f"SELECT n.thread_id, n.checkpoint_ns, c.checkpoint_id {of}")]

    def require_the_same_is_left(self) -> None:
        assert self.kept() == self.model.keys()
        assert set(self.hidden()) == self.model.hidden
        of = "FROM namespace n"
        assert set(self.rows(f"SELECT n.thread_id, n.checkpoint_ns {of}")) == {
            (thread, ns) for thread in (*THREADS, *COPIES) for ns in self.model.namespaces(thread)
        }
        of += " JOIN write w ON w.namespace = n.id"
        assert (
            set(self.rows(f"SELECT n.thread_id, n.checkpoint_ns, w.checkpoint_id {of}")) == self.model.memory.writes.keys()
        )

    def require_no_unmeant_blob(self, thread: str, ns: str) -> None:
        sql = "SELECT thread_id, checkpoint_ns, channel, version FROM blob b JOIN namespace n ON n.id = b.namespace"
        blobs = {(channel, version) for *of, channel, version in self.rows(sql) if of == [thread, ns]}
        assert blobs <= self.model.named(thread, ns)

    # --- processes ---

    def do_reopen(self) -> None:
        self.close()
        self.open()

    def teardown(self) -> None:
        """Whatever happened, all of it can be read by a new process, and the file is sound."""
        try:
            self.do_reopen()
            found = [story(item) for item in self.saver.list(None)]
            assert found == [self.model.story(key) for key in self.model.keys()]
            for key in self.model.keys():
                self.require_same(key)
            self.require_sound_file()
        finally:
            self.close()
            self.loop.close()
            self.folder.cleanup()

    def require_sound_file(self) -> None:
        assert self.rows("PRAGMA integrity_check") == [("ok",)]
        with self.savers[0].saver._shared.database.read() as db:
            blobs = [id for (id,) in db.execute("SELECT id FROM blob")]
            rows = {row.id: row for row in tables.chain(db, blobs)}
        assert rows.keys() == set(blobs)
        for row in rows.values():
            assert row.base is None or rows[row.base][1:3] == row[1:3], "a base of another channel, or none"
            assert len(Chain(tuple(rows.values())).raw(row.id)) == row.size
        assert [*self.saver.verify()] == []
        for table in ("checkpoint", "blob", "write"):
            assert self.rows(f"SELECT 1 FROM {table} WHERE namespace NOT IN (SELECT id FROM namespace)") == []


profile = settings(
    max_examples=EXAMPLES or 16,
    stateful_step_count=30,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
    suppress_health_check=[*HealthCheck],
)


@pytest.mark.timeout(0 if EXAMPLES else 170)
@pytest.mark.parametrize(
    ("face", "limits", "versions", "flush", "key"),
    [
        pytest.param("sync", None, "text", None, None, id="sync"),
        pytest.param("sync", TINY, "text", None, None, id="sync, tiny limits"),
        pytest.param("sync", TINY, "numbers", None, None, id="sync, tiny limits, versions that recur on forks"),
        pytest.param("async", None, "numbers", None, None, id="async, versions that recur on forks"),
        pytest.param("async", TINY, "text", None, None, id="async, tiny limits"),
        pytest.param("sync", TINY, "text", Flush(steps=4), None, id="sync, tiny limits, buffered"),
        pytest.param(
            "async", TINY, "numbers", Flush(steps=4), None, id="async, tiny limits, versions that recur, buffered"
        ),
        pytest.param("sync", TINY, "text", None, bytes(range(32)), id="sync, tiny limits, encrypted"),
    ],
)
def test_any_history_of_calls_reads_as_in_memory(
    monkeypatch: pytest.MonkeyPatch,
    face: str,
    limits: Limits | None,
    versions: str,
    flush: Flush | None,
    key: bytes | None,
) -> None:
    monkeypatch.setattr(
        Course, "is_urgent", lambda course, put: False
    )  # only reads, steps and other operations end the wait
    run_state_machine_as_test(lambda: History(face, limits, versions, flush, key), settings=profile)


def test_a_version_that_recurs_on_a_fork_means_what_it_was_given_last(path: Path) -> None:
    """Found above: the memory of the one does not know what the other has stored since."""

    def put(saver: SqliteSaver, id: str, value: Any) -> None:
        checkpoint: Any = {"v": 4, "id": id, "ts": "2026", "versions_seen": {}, "updated_channels": None}
        checkpoint |= {"channel_values": {"items": value}, "channel_versions": {"items": 1}}
        saver.put(config("a", ""), checkpoint, {"source": "loop", "step": 0, "parents": {}}, {"items": 1})

    with SqliteSaver(path) as one, SqliteSaver(path) as other:
        put(one, "1", ["one"])
        put(other, "2", ["other"])
        put(one, "1", ["one"])

        assert [item.checkpoint["channel_values"] for item in other.list(None)] == [{"items": ["one"]}] * 2
