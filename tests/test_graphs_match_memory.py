"""Real graphs on SqliteSaver and on InMemorySaver: what they return, their history, time travel and forks are the same.

Each graph tells its story (`Teller`): every result, every state, the whole history, what happens when it goes on from each
earlier checkpoint, and after each was changed. Ids and times are left out: they differ in every run.
"""

import operator
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, StateSnapshot, interrupt
from sqlfile import sql
from typing_extensions import TypedDict

from langgraph_sqlite_ckpt import SqliteSaver

# --- telling ---


@dataclass
class Teller:
    """One thread of a graph, through its sync or its async methods, with everything that it shows written down."""

    graph: Any
    face: str
    durability: Any = "async"
    thread: str = "t"

    def __post_init__(self) -> None:
        self.config: Any = {"configurable": {"thread_id": self.thread}}
        self.story: list[Any] = []

    async def call(self, method: str, *args: Any, **options: Any) -> Any:
        if self.face == "sync":
            return getattr(self.graph, method)(*args, **options)
        return await getattr(self.graph, "a" + method)(*args, **options)

    async def run(self, input: Any, config: Any = None) -> Any:
        try:
            result = await self.call("invoke", input, config or self.config, durability=self.durability)
        except Exception as error:  # a node's own, or LangGraph's where there is nothing to go on with
            result = repr(error)
        self.story.append(("result", told_result(result)))
        return result

    async def state(self, config: Any = None) -> StateSnapshot:
        found: StateSnapshot = await self.call("get_state", config or self.config, subgraphs=True)
        self.story.append(("state", told(found)))
        return found

    async def history(self) -> list[StateSnapshot]:
        if self.face == "sync":
            found = list(self.graph.get_state_history(self.config))
        else:
            found = [snapshot async for snapshot in self.graph.aget_state_history(self.config)]
        self.story.append(("history", [told(snapshot) for snapshot in found]))
        return found

    async def turn(self, turn: Any) -> None:
        """A function makes the input from the state, an answer to a question for example."""
        await self.run(turn(await self.state()) if callable(turn) else turn)
        await self.state()

    async def travel(self) -> None:
        """From each checkpoint once more, which forks the thread each time."""
        for snapshot in await self.history():
            await self.state(snapshot.config)
            await self.run(None, snapshot.config)
        await self.history()

    async def change(self, update: Any) -> None:
        """Each checkpoint changed, which forks the thread, and gone on with."""
        for snapshot in await self.history():
            node = snapshot.next[0] if snapshot.next else None
            changed = await self.call("update_state", snapshot.config, update, None if node == START else node)
            await self.state(changed)
            await self.run(None, changed)
        await self.history()


def told(snapshot: StateSnapshot) -> Any:
    metadata = snapshot.metadata or {}
    counters = metadata.get("counters_since_delta_snapshot")
    tasks = [
        (task.name, str(task.error), [one.value for one in task.interrupts], task.result, told_state(task.state))
        for task in snapshot.tasks
    ]
    where = (metadata.get("source"), metadata.get("step"), counters, snapshot.parent_config is not None)
    return snapshot.values, snapshot.next, where, tasks, [one.value for one in snapshot.interrupts]


def told_state(state: Any) -> Any:
    return told(state) if isinstance(state, StateSnapshot) else None


def told_result(result: Any) -> Any:
    if isinstance(result, dict) and "__interrupt__" in result:
        return {**result, "__interrupt__": sorted(one.value for one in result["__interrupt__"])}
    return result


# --- graphs ---


def joined(state: Any, writes: Sequence[Any]) -> Any:
    return [*(state or []), *(item for write in writes for item in write)]


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]
    answers: Annotated[dict[str, Any], operator.or_]


def step(name: str) -> Callable[[Any], Any]:
    """A node that counts and writes its name, with the turn, and something long."""
    return lambda state: {"n": state.get("n", 0) + 1, "log": [f"{name} {state.get('n', 0)} " + "and so on, " * 40]}


def note(name: str) -> Callable[[Any], Any]:
    """A node for a branch beside others: the counter is not its."""
    return lambda state: {"log": [f"{name} {len(state['log'])}"]}


def line(saver: Any, **options: Any) -> Any:
    builder = StateGraph(State)
    for before, name in (START, "a"), ("a", "b"), ("b", "c"):
        builder.add_node(name, step(name))
        builder.add_edge(before, name)
    return builder.compile(checkpointer=saver, **options)


def stops(saver: Any) -> Any:
    return line(saver, interrupt_before=["b"], interrupt_after=["c"])


def loop(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("again", step("again"))
    builder.add_edge(START, "again")
    builder.add_conditional_edges("again", lambda state: "again" if state["n"] % 5 else END)
    return builder.compile(checkpointer=saver)


def join(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("left", note("left"))
    builder.add_node("right", note("right"))
    builder.add_node("right 2", note("right 2"))
    builder.add_node("both", step("both"))
    builder.add_node("last", step("last"), defer=True)
    for before, name in (
        (START, "left"),
        (START, "right"),
        ("right", "right 2"),
        (["left", "right 2"], "both"),
        ("left", "last"),
        ("both", "last"),
    ):
        builder.add_edge(before, name)
    return builder.compile(checkpointer=saver)


def fan_out(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("plan", step("plan"))
    builder.add_node("work", lambda item: {"log": [f"work on {item}"]})
    builder.add_node("sum", step("sum"))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"part": part}) for part in range(4)], ["work"])
    builder.add_edge("work", "sum")
    return builder.compile(checkpointer=saver)


def jumps(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node(
        "choose",
        lambda state: Command(update={"n": state.get("n", 0) + 1}, goto=["x", Send("y", {"part": 1})]),
        destinations=("x", "y"),
    )
    builder.add_node("x", note("x"))
    builder.add_node("y", lambda item: {"log": [f"y {item}"]})
    builder.add_edge(START, "choose")
    return builder.compile(checkpointer=saver)


def inner(**options: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("in 1", step("in 1"))
    builder.add_node("in 2", step("in 2"))
    builder.add_edge(START, "in 1")
    builder.add_edge("in 1", "in 2")
    return builder.compile(**options)


def around(subgraph: Any, saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("before", step("before"))
    builder.add_node("sub", subgraph)
    builder.add_node("after", step("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "sub")
    builder.add_edge("sub", "after")
    return builder.compile(checkpointer=saver)


def subgraph(saver: Any) -> Any:
    return around(inner(), saver)


def subgraph_in_subgraph(saver: Any) -> Any:
    return around(around(inner(), None), saver)


def persistent_subgraph(saver: Any) -> Any:
    """It has its own state, which goes on from turn to turn; the outer graph hands it nothing but the turn."""
    sub = inner(checkpointer=True)

    def call(state: Any) -> Any:
        return {"answers": {f"turn {state['n']}": len(sub.invoke({"log": [f"turn {state['n']}"]})["log"])}}

    return around(call, saver)


def asking(name: str, ran: list[str]) -> Callable[[Any], Any]:
    def ask(state: Any) -> Any:
        ran.append(name)
        answer = interrupt(f"{name}?")
        return {"answers": {name: answer}}

    return ask


def questions(saver: Any, ran: list[str] | None = None) -> Any:
    """Two questions and a task without one, beside each other; then a node that asks twice."""
    ran = [] if ran is None else ran

    def quick(state: Any) -> Any:
        ran.append("quick")
        return {"log": ["quick"]}

    def twice(state: Any) -> Any:
        ran.append("twice")
        return {"answers": {"twice": [interrupt("first?"), interrupt("second?")]}}

    builder = StateGraph(State)
    for name, node in ("one", asking("one", ran)), ("two", asking("two", ran)), ("quick", quick):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    builder.add_node("twice", twice)
    builder.add_edge(["one", "two", "quick"], "twice")
    return builder.compile(checkpointer=saver)


def question_in_subgraph(saver: Any, ran: list[str] | None = None) -> Any:
    builder = StateGraph(State)
    builder.add_node("in 1", step("in 1"))
    builder.add_node("ask", asking("ask", [] if ran is None else ran))
    builder.add_edge(START, "in 1")
    builder.add_edge("in 1", "ask")
    return around(builder.compile(), saver)


def answer_all(state: StateSnapshot) -> Any:
    return Command(resume={one.id: f"yes to {one.value}" for one in state.interrupts})


def answer_first(state: StateSnapshot) -> Any:
    return Command(resume={state.interrupts[0].id: "yes"})


def fails(saver: Any) -> Any:
    """The first time; then it goes on from there."""
    failed: list[str] = []

    def fail(state: Any) -> Any:
        if not failed:
            failed.append("once")
            raise RuntimeError("the machine says no")
        return {"log": ["went well"]}

    builder = StateGraph(State)
    builder.add_node("fine", note("fine"))
    builder.add_node("fail", fail)
    builder.add_node("end", step("end"))
    builder.add_edge(START, "fine")
    builder.add_edge("fine", "fail")
    builder.add_edge("fail", "end")
    return builder.compile(checkpointer=saver)


def functional(saver: Any) -> Any:
    @task
    def double(n: int) -> int:
        return 2 * n

    @entrypoint(checkpointer=saver)
    def workflow(n: int, *, previous: Any = None) -> Any:
        doubled = [double(item) for item in range(n)]
        total = sum(future.result() for future in doubled) + (previous or 0)
        return entrypoint.final(value=f"{total} and {interrupt('more?')}", save=total)

    return workflow


def delta_loop(snapshot_frequency: int) -> Callable[[Any], Any]:
    class Delta(TypedDict, total=False):
        n: int
        log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=snapshot_frequency)]
        seldom: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=snapshot_frequency)]
        never: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=snapshot_frequency)]

    def again(state: Any) -> Any:
        seldom = {"seldom": [f"at {state['n']}"]} if state["n"] % 4 == 2 else {}
        return {**step("again")(state), **seldom}

    def build(saver: Any) -> Any:
        builder = StateGraph(Delta)
        builder.add_node("again", again)
        builder.add_node("beside", note("beside"))
        builder.add_edge(START, "again")
        builder.add_edge(START, "beside")
        builder.add_conditional_edges("again", lambda state: "again" if state["n"] % 4 else END)
        return builder.compile(checkpointer=saver)

    return build


def start(text: str) -> dict[str, Any]:
    return {"n": 0, "log": [text]}


TURNS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "line": (line, [start("first"), {"log": ["second"]}, start("third")]),
    "loop": (loop, [start("first"), start("second")]),
    "parallel branches and a join": (join, [start("first"), start("second")]),
    "fan-out": (fan_out, [start("first"), start("second")]),
    "jumps": (jumps, [start("first"), start("second")]),
    "subgraph": (subgraph, [start("first"), start("second")]),
    "subgraph in a subgraph": (subgraph_in_subgraph, [start("first"), start("second")]),
    "subgraph that persists": (persistent_subgraph, [start("first"), start("second"), start("third")]),
    "static interrupts": (stops, [start("first"), None, None, start("second"), None]),
    "questions": (questions, [start("first"), answer_first, answer_all, answer_all, answer_all]),
    "question in a subgraph": (question_in_subgraph, [start("first"), answer_all, start("second")]),
    "failure": (fails, [start("first"), None, start("second")]),
    "functional": (functional, [3, Command(resume="no"), 2, Command(resume="no")]),
    "delta, snapshots always": (delta_loop(1), [start("first"), start("second")]),
    "delta, snapshots at times": (delta_loop(3), [start("first"), start("second"), {"log": ["third"]}]),
    "delta, no snapshots": (delta_loop(1000), [start("first"), start("second"), start("third")]),
}

# LangGraph hands savers the very set in which a join counts, and goes on counting: what is stored in the background (by
# whatever saver) depends on who is first.
JOINS = {"parallel branches and a join", "questions"}

graphs = pytest.mark.parametrize("name", TURNS)
faces = pytest.mark.parametrize("face", ["sync", "async"])


def ways(*ways: tuple[str, str]) -> pytest.MarkDecorator:
    """Every graph through these faces, with these durabilities."""
    every = [(name, face, durability) for name in TURNS for face, durability in ways]
    sure = [way for way in every if way[0] not in JOINS or way[2] != "async"]
    return pytest.mark.parametrize(("name", "face", "durability"), sure)


async def told_twice(
    name: str, face: str, durability: str, path: Path, more: Callable[[Teller], Awaitable[None]]
) -> tuple[Any, Any]:
    """The story on a file, and in memory."""
    build, turns = TURNS[name]
    with SqliteSaver(path, synchronous="normal") as saver:
        tellers = [Teller(build(saver), face, durability), Teller(build(InMemorySaver()), face, durability)]
        for teller in tellers:
            for turn in turns:
                await teller.turn(turn)
            await more(teller)
    return tellers[0].story, tellers[1].story


def require_same(stories: tuple[list[Any], list[Any]]) -> None:
    for on_file, in_memory in zip(*stories, strict=True):
        assert on_file == in_memory


@ways(("sync", "sync"), ("async", "sync"), ("sync", "async"), ("async", "async"), ("sync", "exit"))
async def test_results_history_and_time_travel_are_those_of_memory(
    name: str, face: str, durability: str, path: Path
) -> None:
    stories = await told_twice(name, face, durability, path, Teller.travel)

    require_same(stories)
    assert len(stories[0]) > 5


@faces
@pytest.mark.parametrize("name", [name for name in TURNS if name != "functional"])
async def test_changed_and_forked_checkpoints_are_those_of_memory(name: str, face: str, path: Path) -> None:
    async def change(teller: Teller) -> None:
        await teller.change({"log": ["changed by a person"]})

    require_same(await told_twice(name, face, "sync", path, change))


# --- what retention leaves is enough ---


def namespaces(saver: SqliteSaver) -> list[str]:
    return sorted(
        {item.config["configurable"]["checkpoint_ns"] for item in saver.list({"configurable": {"thread_id": "t"}})}
    )


@pytest.fixture
def file(path: Path) -> Any:
    with SqliteSaver(path, synchronous="normal") as saver:
        yield saver


@ways(("sync", "sync"), ("async", "exit"))
async def test_a_thread_that_is_pruned_after_every_turn_goes_on_as_in_memory(
    name: str, face: str, durability: str, file: SqliteSaver
) -> None:
    build, turns = TURNS[name]
    pruned, whole = Teller(build(file), face, durability), Teller(build(InMemorySaver()), face, durability)
    for turn in [*turns, *turns]:
        for teller in (pruned, whole):
            await teller.turn(turn)
        before = pruned.story[-1]

        if face == "sync":
            file.prune(["t"])
        else:
            await file.aprune(["t"])

        await pruned.state()
        assert without_parent(pruned.story.pop()) == without_parent(before)
        require_same(([without_parent(item) for item in pruned.story], [without_parent(item) for item in whole.story]))


def without_parent(item: Any) -> Any:
    """A state with all but whether its checkpoint has a parent, which pruning may take."""
    if item[0] != "state":
        return item
    values, next, where, tasks, interrupts = item[1]
    inside = [(*task[:-1], task[-1] and without_parent(("state", task[-1]))) for task in tasks]
    return values, next, where[:3], inside, interrupts


@faces
@pytest.mark.parametrize("snapshot_frequency", [1, 3, 1000])
async def test_pruning_keeps_of_a_delta_thread_what_lies_after_the_last_snapshot(
    snapshot_frequency: int, face: str, file: SqliteSaver, path: Path
) -> None:
    teller = Teller(delta_loop(snapshot_frequency)(file), face)
    for turn in range(5):
        await teller.run(start(f"turn {turn}"))
    state = await teller.state()
    whole = len(await teller.history())

    file.prune(["t"])

    assert (await teller.state()).values == state.values
    assert len(await teller.history()) == 1
    [[kept]] = sql(path, "SELECT count(*) FROM checkpoint")
    assert kept <= {1: 1, 3: 12, 1000: whole}[snapshot_frequency]
    assert (kept == whole) == (snapshot_frequency == 1000)


async def test_a_delta_channel_that_was_never_written_keeps_no_history(file: SqliteSaver, path: Path) -> None:
    class Delta(TypedDict, total=False):
        n: int
        never: Annotated[list[str], DeltaChannel(joined)]

    builder = StateGraph(Delta)
    builder.add_node("again", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "again")
    graph = builder.compile(checkpointer=file)
    teller = Teller(graph, "sync")
    for _ in range(5):
        await teller.run({"n": 0})

    file.prune(["t"])

    assert sql(path, "SELECT count(*) FROM checkpoint") == [(1,)]


@faces
async def test_deleting_earlier_runs_leaves_a_delta_thread_its_state(face: str, file: SqliteSaver) -> None:
    file_teller, memory = Teller(delta_loop(1000)(file), face), Teller(delta_loop(1000)(InMemorySaver()), face)
    runs = [str(uuid4()) for _ in range(3)]
    for teller in (file_teller, memory):
        for run in runs:
            teller.config = {"configurable": {"thread_id": "t"}, "metadata": {"run_id": run}}
            await teller.run(start(run))

    file.delete_for_runs(runs[:2])

    for teller in (file_teller, memory):
        await teller.run(start("once more"))
    assert (await file_teller.state()).values == (await memory.state()).values


@faces
async def test_after_pruning_a_pending_interrupt_only_what_had_not_finished_runs(face: str, file: SqliteSaver) -> None:
    ran: list[str] = []
    teller = Teller(questions(file, ran), face)
    await teller.run(start("go"))
    assert sorted(ran) == ["one", "quick", "two"]
    await teller.run(answer_first(await teller.state()))
    ran.clear()

    file.prune(["t"])
    state = await teller.state()
    result = await teller.run(answer_all(state))

    assert ran == ["two", "twice"] or ran == ["one", "twice"]
    assert result["answers"].keys() == {"one", "two"}
    assert result["log"] == ["go", "quick"]


@faces
async def test_after_pruning_a_subgraph_that_waits_goes_on_where_it_was(face: str, file: SqliteSaver) -> None:
    ran: list[str] = []
    teller = Teller(question_in_subgraph(file, ran), face)
    for turn in range(3):
        await teller.run(start(f"turn {turn}"))
        file.prune(["t"])
        result = await teller.run(answer_all(await teller.state()))
        assert result["answers"] == {"ask": "yes to ask?"}
        assert [entry.split(" ")[0] for entry in result["log"][-3:]] == ["before", "in", "after"]
    assert ran == ["ask"] * 6


class Count(TypedDict):
    n: int


def counting(saver: Any = None, *, within: int = 0, **options: Any) -> Any:
    """Adds one, in so many subgraphs in each other too."""
    builder = StateGraph(Count)
    builder.add_node("add", lambda state: {"n": state["n"] + 1})
    builder.add_edge(START, "add")
    if within:
        builder.add_node("sub", counting(within=within - 1))
        builder.add_edge("add", "sub")
    return builder.compile(checkpointer=saver, **options)


@faces
@pytest.mark.parametrize("within", [1, 2], ids=["one subgraph", "one in another"])
async def test_twenty_turns_with_a_subgraph_leave_two_namespaces_at_most(within: int, face: str, file: SqliteSaver) -> None:
    teller = Teller(counting(file, within=within), face)
    for _ in range(20):
        await teller.run({"n": 0})
    assert len(namespaces(file)) == 1 + 20 * within

    file.prune(["t"])

    assert "" in namespaces(file)
    assert len(namespaces(file)) <= 2
    assert (await teller.state()).values == {"n": 1 + within}
    assert await teller.run({"n": 10}) == {"n": 11 + within}


async def test_a_subgraph_that_a_node_calls_twice_leaves_no_namespace_behind(file: SqliteSaver) -> None:
    sub = counting()
    builder = StateGraph(Count)
    builder.add_node("twice", lambda state: sub.invoke(sub.invoke({"n": state["n"]})))
    builder.add_edge(START, "twice")
    teller = Teller(builder.compile(checkpointer=file), "sync")
    for _ in range(5):
        assert await teller.run({"n": 0}) == {"n": 2}
    assert len([ns for ns in namespaces(file) if ns.endswith("|1")]) == 5

    file.prune(["t"])

    assert namespaces(file) == [""]


async def test_a_call_inside_of_a_subgraph_that_persists_goes_with_its_turn(file: SqliteSaver) -> None:
    builder = StateGraph(Count)
    builder.add_node("persists", counting(True, within=1))
    builder.add_edge(START, "persists")
    teller = Teller(builder.compile(checkpointer=file), "sync")
    for _ in range(5):
        assert await teller.run({"n": 0}) == {"n": 2}
    assert len([ns for ns in namespaces(file) if ns.startswith("persists|sub:")]) == 5

    file.prune(["t"])

    assert namespaces(file) == ["", "persists"]


@faces
async def test_a_subgraph_that_persists_keeps_its_newest(face: str, file: SqliteSaver) -> None:
    teller = Teller(persistent_subgraph(file), face)
    for _ in range(3):
        await teller.run(start("turn"))

    file.prune(["t"])
    result = await teller.run(start("turn"))

    assert list(result["answers"].values()) == [12]  # four turns of three entries


@graphs
async def test_a_copy_tells_what_its_source_tells_and_goes_on_alone(name: str, file: SqliteSaver) -> None:
    build, turns = TURNS[name]
    graph = build(file)
    source, copy = Teller(graph, "async", "sync"), Teller(graph, "async", "sync", thread="copy")
    for turn in turns:
        await source.turn(turn)

    await file.acopy_thread("t", "copy")
    for teller in (source, copy):
        teller.story.clear()
        await teller.history()
        await teller.turn(turns[0])

    assert copy.story == source.story
    assert len(source.story[0][1]) < len([*file.list(source.config)])  # it went on after that
