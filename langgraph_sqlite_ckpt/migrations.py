"""Older states in today's shape: an append-only list of functions, and what else of a checkpoint they concern.

    SqliteSaver("agent.db", migrations=[add_tool_calls, rename_channel("notes", "remarks"), rename_node("plan", "planner")])

A function gets the values of a checkpoint's channels as a dict, and returns those of the next version. It is called for
every namespace, so also with the states of subgraphs; one that takes a second argument is told the graph: "" is the
root, "research" the graph that node calls, "research|inner" one below it. A channel that was never written is not in the
dict, and a checkpoint without any value of the state's is not passed at all: nothing in it has a shape yet.

What a function does not see: the channels that LangGraph keeps for itself (`branch:to:...`, `join:...`, Sends, the input),
and writes. A write is not a value but an update, for a reducer that only the graph knows: what an unfinished step, or a
DeltaChannel, has been written arrives as it was, under its new name where `rename_channel` renamed it. A channel that a
function adds gets the newest version of its checkpoint; one that it takes away leaves the versions too. For DeltaChannels,
whose value is mostly nowhere, rename with `rename_channel`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

from langgraph.checkpoint.serde.types import INTERRUPT, TASKS, _DeltaSnapshot
from langgraph.types import Interrupt, Send

from langgraph_sqlite_ckpt.errors import InvalidRequest, MigrationError, NewerStateError, Place

Values = dict[str, Any]
Migration = Union[Callable[[Values], Values], Callable[[Values, str], Values]]
"""From the values of one version to those of the next."""

BRANCH, JOIN, START = "branch:to:", "join:", "__start__"
ERROR_SOURCE, BUMPS = "__error_source_node__", "__snapshot_bumps__"
COUNTERS = "counters_since_delta_snapshot"
SEPARATOR, TASK_MARK = "|", ":"  # in a namespace: between graphs, and between a node's name and its task's id


@dataclass
class Write:
    """What a task wrote: a channel and an update for it."""

    task_id: str
    channel: str
    value: Any


@dataclass
class Snapshot:
    """A checkpoint with its writes, changed in place from version to version."""

    place: Place
    values: Values
    fields: dict[str, Any]
    metadata: dict[str, Any]
    writes: Sequence[Write] = ()
    graph: str = field(init=False)

    def __post_init__(self) -> None:
        self.graph = graph_of(self.place.checkpoint_ns)

    @property
    def versions(self) -> dict[str, Any]:
        versions: dict[str, Any] = self.fields["channel_versions"]
        return versions

    @property
    def seen(self) -> dict[str, dict[str, Any]]:
        seen: dict[str, dict[str, Any]] = self.fields["versions_seen"]
        return seen

    def rename(self, channel: Callable[[str], str], node: Callable[[str], str]) -> None:
        """Everywhere in what LangGraph keeps beside the values."""
        self.values = _renamed(self.values, channel)
        self.fields["channel_versions"] = _renamed(self.versions, channel)
        self.fields["versions_seen"] = {
            node(name): _renamed(seen, lambda key: _bump(key, channel, node)) if name == BUMPS else _renamed(seen, channel)
            for name, seen in self.seen.items()
        }
        if self.fields.get("updated_channels"):
            self.fields["updated_channels"] = sorted(map(channel, self.fields["updated_channels"]))
        if isinstance(self.metadata.get(COUNTERS), dict):
            self.metadata[COUNTERS] = _renamed(self.metadata[COUNTERS], channel)
        for write in self.writes:
            write.channel = channel(write.channel)


def _renamed(mapping: Mapping[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    return {rename(key): value for key, value in mapping.items()}


def _bump(key: str, channel: Callable[[str], str], node: Callable[[str], str]) -> str:
    """A key of LangGraph's `__snapshot_bumps__`: a node, one of the two marks, and a channel."""
    marks = [position for position in map(key.find, (SEPARATOR, TASK_MARK)) if position >= 0]
    if not marks:
        return key
    at = min(marks)
    return node(key[:at]) + key[at] + channel(key[at + 1 :])


def graph_of(checkpoint_ns: str) -> str:
    """The path of nodes that leads to a namespace's graph, whichever task of theirs called it."""
    parts = (part.partition(TASK_MARK)[0] for part in checkpoint_ns.split(SEPARATOR))
    return SEPARATOR.join(part for part in parts if not part.isdigit())


def is_langgraphs(channel: str) -> bool:
    """Whether a channel is none of the state's."""
    return channel in (START, TASKS) or channel.startswith((BRANCH, JOIN))


# --- the steps from one version to the next ---


class Step(Protocol):
    """One entry of the list."""

    @property
    def name(self) -> str: ...

    def apply(self, snapshot: Snapshot) -> None: ...


@dataclass(frozen=True)
class Function:
    """A function of the user's."""

    function: Callable[..., Any]
    takes_graph: bool

    @classmethod
    def of(cls, function: Any) -> Function:
        if not callable(function):
            raise InvalidRequest(
                f"a migration is a function from a dict of values to a dict of values, not {function!r:.80}"
            )
        try:
            needed = [
                parameter
                for parameter in inspect.signature(function).parameters.values()
                if parameter.default is parameter.empty and parameter.kind in (0, 1)
            ]
        except (TypeError, ValueError):  # built in, and silent about it
            needed = []
        return cls(function, len(needed) == 2)

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", repr(self.function))

    def apply(self, snapshot: Snapshot) -> None:
        own = {channel: value for channel, value in snapshot.values.items() if is_langgraphs(channel)}
        given = {name: _bare(value) for name, value in snapshot.values.items() if name not in own}
        if not given:
            return
        snapshots = {name for name, value in snapshot.values.items() if isinstance(value, _DeltaSnapshot)}
        made = self.function(given, snapshot.graph) if self.takes_graph else self.function(given)
        _require_values(made)
        before, newest = snapshot.values.keys() - own.keys(), max(snapshot.versions.values(), default=None)
        snapshot.values = own | {name: _DeltaSnapshot(v) if name in snapshots else v for name, v in made.items()}
        _take_away(snapshot, before - made.keys())
        if newest is not None:
            _add(snapshot, made.keys() - snapshot.versions.keys(), newest)


def _bare(value: Any) -> Any:
    return value.value if isinstance(value, _DeltaSnapshot) else value


def _require_values(made: Any) -> None:
    if not isinstance(made, dict):
        raise TypeError(f"it returned {type(made).__name__}, not a dict of values")
    for channel in made:
        if not isinstance(channel, str) or is_langgraphs(channel):
            raise TypeError(f"it returned a channel {channel!r:.80}, which is no name for one of a state's")


def _take_away(snapshot: Snapshot, channels: Iterable[str]) -> None:
    for channel in channels:
        for versions in (snapshot.versions, *snapshot.seen.values()):
            versions.pop(channel, None)
    if snapshot.fields.get("updated_channels"):
        there = snapshot.values.keys() | snapshot.versions.keys()
        snapshot.fields["updated_channels"] = [name for name in snapshot.fields["updated_channels"] if name in there]


def _add(snapshot: Snapshot, channels: Iterable[str], newest: Any) -> None:
    """With the newest version there is, seen by whoever asks what is new since a breakpoint: nobody wrote it."""
    for channel in channels:
        snapshot.versions[channel] = newest
        if INTERRUPT in snapshot.seen:
            snapshot.seen[INTERRUPT][channel] = newest


@dataclass(frozen=True)
class RenameChannel:
    """Made by `rename_channel`. Called as a function, it renames a key."""

    old: str
    new: str
    within: str | None = None

    @property
    def name(self) -> str:
        return f"rename_channel({self.old!r}, {self.new!r})"

    def __call__(self, values: Values) -> Values:
        if self.old in values and self.new in values:
            raise ValueError(f"there is a channel {self.new!r} already")
        return _renamed(values, self.renamed)

    def renamed(self, channel: str) -> str:
        return self.new if channel == self.old else channel

    def concerns(self, graph: str) -> bool:
        return self.within is None or self.within == graph

    def apply(self, snapshot: Snapshot) -> None:
        if not self.concerns(snapshot.graph):
            return
        for names in (snapshot.values, snapshot.versions):
            if self.old in names and self.new in names:
                raise ValueError(f"there is a channel {self.new!r} already")
        snapshot.rename(self.renamed, str)
        if isinstance(snapshot.values.get(START), dict):
            snapshot.values[START] = _renamed(snapshot.values[START], self.renamed)


@dataclass(frozen=True)
class RenameNode:
    """Made by `rename_node`. Its tasks' ids are `renaming.py`'s to find."""

    old: str
    new: str
    within: str | None = None

    @property
    def name(self) -> str:
        return f"rename_node({self.old!r}, {self.new!r})"

    def __call__(self, values: Values) -> Values:
        return _renamed(values, self.channel)

    def renamed(self, node: str) -> str:
        return self.new if node == self.old else node

    def channel(self, channel: str) -> str:
        """`branch:to:plan` and `join:a+plan:next` have nodes in their names."""
        if channel.startswith(BRANCH):
            return BRANCH + self.renamed(channel[len(BRANCH) :])
        if channel.startswith(JOIN):
            starts, mark, end = channel[len(JOIN) :].rpartition(":")
            return JOIN + "+".join(map(self.renamed, starts.split("+"))) + mark + self.renamed(end)
        return channel

    def concerns(self, graph: str) -> bool:
        return self.within is None or self.within == graph

    def apply(self, snapshot: Snapshot) -> None:
        if self.concerns(snapshot.graph):
            snapshot.rename(self.channel, self.renamed)
            for channel, value in snapshot.values.items():
                snapshot.values[channel] = self._in_value(channel, value)
            for write in snapshot.writes:
                write.value = self._in_value(write.channel, write.value)
        snapshot.graph = self.in_graph(snapshot.graph)

    def in_graph(self, graph: str) -> str:
        """A path with this node renamed in it."""
        nodes = graph.split(SEPARATOR) if graph else []
        return SEPARATOR.join(
            self.renamed(node) if self.concerns(SEPARATOR.join(nodes[:depth])) else node for depth, node in enumerate(nodes)
        )

    def _in_value(self, channel: str, value: Any) -> Any:
        if channel == TASKS:
            return self._in_sends(value)
        if channel.startswith(JOIN) or channel == ERROR_SOURCE:
            return self._in_names(value)
        return value

    def _in_sends(self, value: Any) -> Any:
        if isinstance(value, Send):
            sent = copy.copy(value)
            sent.node = self.renamed(value.node)
            return sent
        return type(value)(map(self._in_sends, value)) if type(value) in (list, tuple) else value

    def _in_names(self, value: Any) -> Any:
        """Names that a join has seen: a set, or a pair of it and of whether its turn has come."""
        if isinstance(value, str):
            return self.renamed(value)
        return type(value)(map(self._in_names, value)) if type(value) in (set, frozenset, list, tuple) else value


def rename_channel(old: str, new: str, *, within: str | None = None) -> RenameChannel:
    """A migration that renames a channel: its value, its versions, and what pending writes and DeltaChannels call it.

    Args:
        old: The name until now.
        new: The name from now on.
        within: Only in this graph: "" is the root, "research" the one that this node calls, "research|inner" one below it.
            Default: in every graph that has such a channel.
    """
    return RenameChannel(*_names("channel", old, new, within))


def rename_node(old: str, new: str, *, within: str | None = None) -> RenameNode:
    """A migration that renames a node, so that a thread which waits in it, or for it, goes on.

    What it has written already, its questions, its effects (`once`) and the subgraph that it called are found under its new
    name. The ids of those questions change, as they are LangGraph's hash of the name: list them again before answering by
    id. `threads()`, `runs()` and the views go on showing the old name until the thread's next write, or `migrate_all`.

    Not recognised, and run again: `@task` calls of the node that have no effects, a node with an edge from several others
    of which none has ended yet, the error handler of a node. Earlier calls of a subgraph that have ended keep their
    names until `migrate_all`.

    Args:
        old: The name until now.
        new: The name from now on.
        within: As in `rename_channel`. Default: in every graph that has such a node.
    """
    return RenameNode(*_names("node", old, new, within))


def _names(kind: str, old: str, new: str, within: str | None) -> tuple[str, str, str | None]:
    for name in (old, new):
        if not isinstance(name, str) or not name or (kind == "node" and (SEPARATOR in name or TASK_MARK in name)):
            raise InvalidRequest(f"not the name of a {kind}: {name!r:.80}")
    if old == new or not isinstance(within, (str, type(None))):
        raise InvalidRequest(f"nothing to rename: {kind} {old!r} to {new!r} within {within!r:.80}")
    return old, new, within


# --- the list ---


class Migrations:
    """The whole list. Its length is the version of today's states."""

    def __init__(self, entries: Sequence[Migration]) -> None:
        if isinstance(entries, (str, bytes)) or not isinstance(entries, Sequence):
            raise InvalidRequest(f"migrations is a list of functions, not {entries!r:.80}")
        self._steps: tuple[Step, ...] = tuple(
            entry if isinstance(entry, (RenameChannel, RenameNode)) else Function.of(entry) for entry in entries
        )
        self.version = len(self._steps)

    def renames_nodes(self, version: int) -> bool:
        return any(isinstance(step, RenameNode) for step in self._steps[version:])

    def only_rename(self, version: int) -> bool:
        """Whether no function since that version can have made a value."""
        return not any(isinstance(step, Function) for step in self._steps[version:])

    def apply(self, snapshot: Snapshot, version: int) -> None:
        """From that version to today's. Raises `MigrationError`, naming the function."""
        if not snapshot.versions and not snapshot.values:
            return  # as LangGraph itself says: an empty checkpoint has nothing to migrate
        for number, step in enumerate(self._steps[version:], start=version + 1):
            try:
                step.apply(snapshot)
            except Exception as error:  # whatever the user's function raises
                cause = f"{type(error).__name__}: {error}"
                raise MigrationError(snapshot.place, f"migration {number}, {step.name}: {cause}") from error

    def require_known(self, version: int, where: object) -> None:
        if version > self.version:
            raise NewerStateError(
                f"{where}: its states are at version {version}, and this program's migrations go up to {self.version}. "
                "Use the newer program, or give SqliteSaver(path, migrations=[...]) the whole list"
            )

    def node(self, name: str, graph: str, version: int) -> str:
        """What a node of that graph is called today; both are names of that version."""
        for step in self._renames(version):
            if step.concerns(graph):
                name = step.renamed(name)
            graph = step.in_graph(graph)
        return name

    def trigger(self, channel: str, graph: str, version: int) -> str:
        """Likewise a channel that triggers nodes."""
        for step in self._renames(version):
            if step.concerns(graph):
                channel = step.channel(channel)
            graph = step.in_graph(graph)
        return channel

    def _renames(self, version: int) -> Iterator[RenameNode]:
        return (step for step in self._steps[version:] if isinstance(step, RenameNode))

    @property
    def renamed_nodes(self) -> set[str]:
        """Every name that a node does not have any more."""
        return {step.old for step in self._renames(0)}

    def channel_before(self, channel: str, graph: str, version: int) -> str:
        """What a channel of today's was called at that version; the graph by its name of then."""
        concerned: list[RenameChannel] = []
        for step in self._steps[version:]:
            if isinstance(step, RenameChannel) and step.concerns(graph):
                concerned.append(step)
            elif isinstance(step, RenameNode):
                graph = step.in_graph(graph)
        for rename in reversed(concerned):
            channel = rename.old if channel == rename.new else channel
        return channel


def interrupts_renamed(value: Any, ids: Mapping[str, str]) -> Any:
    """What a task asked, under the ids that its questions have now."""
    if isinstance(value, Interrupt):
        asked = copy.copy(value)
        asked.id = ids.get(value.id, value.id)
        return asked
    return type(value)(interrupts_renamed(item, ids) for item in value) if type(value) in (list, tuple) else value
