"""Deterministic resume, tried: every shape of graph, killed with SIGKILL at every point, goes on to the same end.

    python -m tests.kill_matrix [--minutes M] [--shape NAME ...]

In each case a process runs a graph and is killed at one *point*: before or after a `put` or a `put_writes`, at the entry or the
end of a node, within an effect. (With --minutes, at random moments, too, until the time is over.) New processes then go on as
a service would: `recover` what crashed, answer where a person is waited for, give the input again where nothing was stored.
When the run has ended,

- the state is that of an undisturbed run in memory,
- each finished node's effect (through `once`) happened once; one that was killed half-way is in doubt, and is looked up,
- each checkpoint whose `put` had returned is there,
- `verify()` finds nothing.

The processes are forked from one without threads, so a case takes a twentieth of a second. What was done and what was
acknowledged stands in files written with O_SYNC.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import operator
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

from langgraph_sqlite_ckpt import EffectInDoubt, SqliteSaver

AT: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Case(NamedTuple):
    shape: str
    face: str
    durability: str
    point: int
    """Which of the points that the process passes is its last; 0: none."""
    seconds: float | None = None
    """Or the moment."""


class Result(NamedTuple):
    killed: bool
    doubts: int
    """Effects that were killed half-way."""
    fault: str | None


# --- what a process does, where another can read it ---


class Journal:
    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, line: str) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_SYNC)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines() if self._path.exists() else []


class Points:
    """Counts the points that this process passes, and kills it at one."""

    def __init__(self, fatal: int = 0) -> None:
        self._fatal, self._lock = fatal, threading.Lock()
        self.passed = 0

    def __call__(self) -> None:
        with self._lock:
            self.passed += 1
            if self.passed == self._fatal:
                os.kill(os.getpid(), signal.SIGKILL)


class Watched(SqliteSaver):
    """Writes down what it acknowledged."""

    points: Points
    acknowledged: Journal

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.points()
        stored = super().put(config, checkpoint, metadata, new_versions)
        self.acknowledged.write(checkpoint["id"])
        self.points()
        return stored

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.points()
        super().put_writes(config, writes, task_id, task_path)
        self.points()

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        self.points()
        stored = await super().aput(config, checkpoint, metadata, new_versions)
        self.acknowledged.write(checkpoint["id"])
        self.points()
        return stored

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self.points()
        await super().aput_writes(config, writes, task_id, task_path)
        self.points()


# --- nodes ---


class World:
    """What the nodes of a graph need: a saver, the points, and an outside where effects happen."""

    def __init__(self, saver: Any, points: Points, outside: Journal | None, *, once: bool) -> None:
        self.saver, self._points, self._outside, self._once = saver, points, outside, once

    def node(self, name: str, update: Callable[[Any], Any]) -> Any:
        """Has one effect, then returns its update; on both faces."""

        def sync(state: Any, config: RunnableConfig) -> Any:
            self._points()
            returned = update(state)
            if self._once:
                self.saver.once(name, lambda key: self._happen(key, name), config=config)
            self._points()
            return returned

        async def unsync(state: Any, config: RunnableConfig) -> Any:
            self._points()
            returned = update(state)
            if self._once:
                await self.saver.aonce(name, lambda key: self._happen(key, name), config=config)
            self._points()
            return returned

        return RunnableLambda(sync, unsync)

    def _happen(self, key: str, name: str) -> str:
        self._points()
        if self._outside is not None:
            self._outside.write(f"{key} {name}")
        self._points()
        return name


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]


def folded(state: Any, writes: Sequence[Any]) -> Any:
    return [*(state or []), *(item for write in writes for item in write)]


class DeltaState(TypedDict, total=False):
    n: int
    log: Annotated[list[str], DeltaChannel(folded, snapshot_frequency=4)]


def logs(name: str) -> Callable[[Any], Any]:
    return lambda _: {"log": [name]}


def counts(state: Any) -> Any:
    return {"n": state.get("n", 0) + 1, "log": [f"step {state.get('n', 0)}"]}


def line(world: World, *names: str, checkpointer: Any = None, state: Any = State) -> Any:
    builder, last = StateGraph(state), START
    for name in names:
        builder.add_node(name, world.node(name, logs(name)))
        builder.add_edge(last, name)
        last = name
    return builder.compile(checkpointer=checkpointer)


def loop(world: World, state: Any = State) -> Any:
    builder = StateGraph(state).add_node("again", world.node("again", counts)).add_edge(START, "again")
    builder.add_conditional_edges("again", lambda now: "again" if now["n"] < 5 else END, ["again", END])
    return builder.compile(checkpointer=world.saver)


def parallel(world: World) -> Any:
    builder = StateGraph(State).add_node("join", world.node("join", logs("join")))
    for name in ("a", "b", "c"):
        builder.add_node(name, world.node(name, logs(name)))
        builder.add_edge(START, name)
    builder.add_edge(["a", "b", "c"], "join")
    return builder.compile(checkpointer=world.saver)


def fan_out(world: World) -> Any:
    builder = StateGraph(State).add_node("each", world.node("each", lambda sent: {"log": [sent["word"]]}))
    builder.add_node("last", world.node("last", logs("last")))
    builder.add_conditional_edges(START, lambda _: [Send("each", {"word": word}) for word in "xyz"], ["each"])
    builder.add_edge("each", "last")
    return builder.compile(checkpointer=world.saver)


def around(world: World, checkpointer: Any) -> Any:
    builder = StateGraph(State).add_node("first", world.node("first", logs("first")))
    builder.add_node("within", line(world, "in 1", "in 2", checkpointer=checkpointer))
    builder.add_node("last", world.node("last", logs("last")))
    builder.add_edge(START, "first").add_edge("first", "within").add_edge("within", "last")
    return builder.compile(checkpointer=world.saver)


def asks(world: World) -> Any:
    """Two tasks at once: one asks, the other has finished before."""
    builder = StateGraph(State).add_node("asks", world.node("asks", lambda _: {"log": [interrupt("well?")]}))
    builder.add_node("works", world.node("works", logs("works")))
    builder.add_node("last", world.node("last", logs("last")))
    builder.add_edge(START, "asks").add_edge(START, "works").add_edge(["asks", "works"], "last")
    return builder.compile(checkpointer=world.saver)


def functional(world: World) -> Any:
    node = world.node("task", lambda word: [word])

    @task
    def work(word: str, *, config: RunnableConfig) -> Any:
        return node.invoke(word, config)

    @task
    async def awork(word: str, *, config: RunnableConfig) -> Any:
        return await node.ainvoke(word, config)

    @entrypoint(checkpointer=world.saver)
    def sync(_: Any) -> State:
        return {"log": [*work("one").result(), *work("two").result()]}

    @entrypoint(checkpointer=world.saver)
    async def unsync(_: Any) -> State:
        return {"log": [*await awork("one"), *await awork("two")]}

    return sync, unsync


SHAPES: dict[str, Callable[[World], Any]] = {
    "line": lambda world: line(world, "a", "b", "c", checkpointer=world.saver),
    "loop": loop,
    "parallel": parallel,
    "fan-out": fan_out,
    "subgraph": lambda world: around(world, None),
    "subgraph with a memory": lambda world: around(world, True),
    "functional": functional,
    "delta channel": lambda world: loop(world, DeltaState),
    "interrupt": asks,
}


def graph_of(case: Case, world: World) -> Any:
    graph = SHAPES[case.shape](world)
    return graph[case.face == "async"] if isinstance(graph, tuple) else graph


class Folder(NamedTuple):
    """All that the processes of a case share."""

    path: Path

    @property
    def outside(self) -> Journal:
        return Journal(self.path / "outside")

    def saver(self, points: Points) -> Watched:
        saver = Watched(self.path / "agent.db", synchronous="normal")  # a SIGKILL loses nothing of it
        saver.points, saver.acknowledged = points, Journal(self.path / "acknowledged")
        return saver


# --- a run, from wherever it stands to its end ---


async def step(case: Case, graph: Any, given: Any) -> None:
    if case.face == "async":
        await graph.ainvoke(given, AT, durability=case.durability)
    else:
        graph.invoke(given, AT, durability=case.durability)


async def run(case: Case, graph: Any, saver: Any) -> Any:
    """As a service does it: no more is known than what the saver says."""
    for _ in range(20):
        stored = await saver.aget_tuple(AT)
        state = await graph.aget_state(AT)
        if stored is None:
            await step(case, graph, {"log": ["input"]})
        elif state.interrupts:
            await step(case, graph, Command(resume="yes"))
        elif state.next:
            await step(case, graph, None)
        else:
            return state.values
    raise AssertionError("it does not end")


async def go_on(case: Case, graph: Any, saver: Watched, folder: Folder) -> Any:
    """After a crash. A doubt is resolved by asking the outside."""
    while True:
        try:
            recovered = [one async for one in saver.arecover(graph, durability=case.durability)]
            for one in recovered:
                if one.error is not None:
                    raise one.error
            return await run(case, graph, saver)
        except EffectInDoubt as doubt:
            Journal(folder.path / "doubts").write(doubt.key)
            happened = dict(line.split(" ", 1) for line in folder.outside.lines()).get(doubt.key)
            await saver.aresolve(doubt.key, happened=happened is not None, result=happened)


# --- a case ---


def disturbed(case: Case, folder: Folder) -> None:
    points = Points(case.point)
    saver = folder.saver(points)
    graph = graph_of(case, World(saver, points, folder.outside, once=case.durability != "exit"))
    if case.seconds is not None:
        threading.Timer(case.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()
    asyncio.run(run(case, graph, saver))
    Journal(folder.path / "points").write(str(points.passed))


def resumed(case: Case, folder: Folder, expected: Any) -> None:
    """Raises where the end is another, or something was lost."""
    with folder.saver(Points()) as saver:
        graph = graph_of(case, World(saver, Points(), folder.outside, once=case.durability != "exit"))
        values = asyncio.run(go_on(case, graph, saver, folder))
        assert normal(values) == expected, f"state {normal(values)}, expected {expected}"
        for checkpoint_id in saver.acknowledged.lines():
            assert exists(saver, checkpoint_id), f"checkpoint {checkpoint_id} was acknowledged, and is gone"
        twice = [name for name, times in Counter(folder.outside.lines()).items() if times > 1]
        assert not twice, f"effects that happened twice: {twice}"
        assert saver.verify() == []
        assert saver.effects(status="in_doubt") == []


def exists(saver: SqliteSaver, checkpoint_id: str) -> bool:
    return any(item.checkpoint["id"] == checkpoint_id for item in saver.list({"configurable": {"thread_id": "t"}}))


def normal(values: Any) -> Any:
    """Parallel tasks may end in any order."""
    return {**values, "log": sorted(values["log"])}


def in_a_process(work: Callable[[], object]) -> int:
    """How it ended: 0, 1 after an exception, or minus the signal that killed it."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class Undisturbed(NamedTuple):
    values: Any
    effects: int
    points: int
    seconds: float


def try_out(case: Case, folder: Folder, expected: Undisturbed) -> Result:
    ended = in_a_process(lambda: disturbed(case, folder))
    if ended not in (0, -signal.SIGKILL):
        return Result(killed=False, doubts=0, fault=f"the first process ended with {ended}")
    fault = None
    if in_a_process(lambda: resumed(case, folder, expected.values)):
        fault = "see the traceback above"
    elif case.durability != "exit" and len(folder.outside.lines()) != expected.effects:
        fault = f"{expected.effects} effects expected: {folder.outside.lines()}"
    return Result(killed=ended != 0, doubts=len(Journal(folder.path / "doubts").lines()), fault=fault)


# --- all cases ---


def undisturbed(case: Case, folder: Folder) -> Undisturbed:
    """In memory, for the state; on a file, for the points that it passes."""
    memory = InMemorySaver()
    graph = graph_of(case, World(memory, Points(), None, once=False))
    values = normal(asyncio.run(run(case, graph, memory)))
    began = time.monotonic()
    assert in_a_process(lambda: disturbed(case._replace(point=0), folder)) == 0
    seconds = time.monotonic() - began
    return Undisturbed(values, len(folder.outside.lines()), int(Journal(folder.path / "points").lines()[0]), seconds)


def kinds(shapes: Sequence[str]) -> Iterator[Case]:
    for shape in shapes:
        for face in ("sync", "async"):
            for durability in ("sync", "async", "exit"):
                case = Case(shape, face, durability, 0)
                if is_told(case):
                    yield case


def is_told(case: Case) -> bool:
    """Whether LangGraph itself promises that the end is the same."""
    if case.shape in ("interrupt", "functional") and case.face == "async" and sys.version_info < (3, 11):
        return False  # its async nodes do not know their config there
    # With "exit" such a subgraph is stored when it ends, the graph around it later: in between, only one of them remembers.
    return (case.shape, case.durability) != ("subgraph with a memory", "exit")


def at_every_point(kind: Case, expected: Undisturbed) -> Iterator[Case]:
    """The other face of parallel tasks passes its points in another order each time: all the better."""
    return (kind._replace(point=point) for point in range(1, expected.points + 1))


def at_random_moments(kind: Case, expected: Undisturbed) -> Iterator[Case]:
    while True:
        yield kind._replace(seconds=random.uniform(0, expected.seconds))


class Totals(NamedTuple):
    cases: int = 0
    kills: int = 0
    doubts: int = 0
    faults: int = 0

    def plus(self, result: Result) -> Totals:
        return Totals(
            self.cases + 1, self.kills + result.killed, self.doubts + result.doubts, self.faults + bool(result.fault)
        )


def matrix(root: Path, wanted: Sequence[Case], every: int = 1, until: float = 0.0) -> Iterator[tuple[Case, Result]]:
    """Each point (or every so many of them) of each kind; then random moments of all in turn, until that time."""
    folders = (Folder(root / str(number)) for number in range(sys.maxsize))
    known = {kind: undisturbed(kind, made(next(folders))) for kind in wanted}
    for number, case in enumerate(case for kind in wanted for case in at_every_point(kind, known[kind])):
        if number % every == 0:
            yield case, try_out(case, made(next(folders)), known[case._replace(point=0)])
    endless = {kind: at_random_moments(kind, known[kind]) for kind in wanted}
    while time.monotonic() < until:
        for kind, moments in endless.items():
            case = next(moments)
            yield case, try_out(case, made(next(folders)), known[kind])


def made(folder: Folder) -> Folder:
    folder.path.mkdir()
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=0, help="of kills at random moments, after those at every point")
    parser.add_argument("--shape", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--every", type=int, default=1, help="only every so many of the points")
    options = parser.parse_args()
    logging.getLogger("langgraph_sqlite_ckpt").setLevel(logging.ERROR)  # `recover` warns of each doubt
    totals: dict[str, Totals] = {}
    until = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as root:
        for case, result in matrix(Path(root), list(kinds(options.shape)), options.every, until):
            totals[case.shape] = totals.get(case.shape, Totals()).plus(result)
            if result.fault:
                print(f"{case}: {result.fault}", flush=True)
    print(f"{'shape':24}{'cases':>8}{'kills':>8}{'in doubt':>10}{'faults':>8}")
    for shape, total in {**totals, "all": Totals(*map(sum, zip(*totals.values(), strict=True)))}.items():
        print(f"{shape:24}{total.cases:8}{total.kills:8}{total.doubts:10}{total.faults:8}")
    return 1 if any(total.faults for total in totals.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
