"""Real graphs, and everything that deletes or copies, in random order: what stays is what it was.

Whatever is put into the file is put into an InMemorySaver too, which never forgets anything: each checkpoint that is kept
must show the state that it has there, a person must be waited for where one is there, and what had finished must not run again.

`RETENTION_EXAMPLES=1000 pytest tests/test_retention_of_graphs.py` looks longer, with other seeds each time, and shortens
the story that it fails on.
"""

import asyncio
import operator
import os
import tempfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from conftest import Face, config
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from threads import STATUSES
from typing_extensions import TypedDict

from langgraph_sqlite_ckpt import SqliteSaver

EXAMPLES = int(os.environ.get("RETENTION_EXAMPLES", "0"))
THREADS = ("delta a", "delta b", "plain")
REMEMBERS = "remembers"  # a node, and the namespace that it has for all turns

# --- a saver that tells memory ---


class Telling(SqliteSaver):
    memory: InMemorySaver

    def put(self, *call: Any) -> Any:
        stored = super().put(*call)
        self.memory.put(*call)
        return stored

    async def aput(self, *call: Any) -> Any:
        stored = await super().aput(*call)
        self.memory.put(*call)
        return stored

    def put_writes(self, *call: Any) -> None:
        super().put_writes(*call)
        self.memory.put_writes(*call)

    async def aput_writes(self, *call: Any) -> None:
        await super().aput_writes(*call)
        self.memory.put_writes(*call)


def copy_in(memory: InMemorySaver, source: str, target: str) -> None:
    """What `copy_thread` means, in the memory's own terms."""
    memory.storage[target] = deepcopy(memory.storage[source])
    for stored in (memory.writes, memory.blobs):
        stored.update({(target, *key[1:]): deepcopy(value) for key, value in list(stored.items()) if key[0] == source})


# --- the graphs ---


def joined(state: Any, writes: Sequence[Any]) -> Any:
    return [*(state or []), *(item for write in writes for item in write)]


Added = Annotated[list[str], operator.add]
Delta = Annotated[list[str], DeltaChannel(joined, snapshot_frequency=3)]
Seldom = Annotated[list[str], DeltaChannel(joined, snapshot_frequency=1000)]


class WithDelta(TypedDict, total=False):
    turn: int
    steps: int
    ask: bool
    log: Added
    short: Delta
    long: Seldom
    answers: Annotated[dict[str, Any], operator.or_]


class Plain(TypedDict, total=False):
    turn: int
    steps: int
    ask: bool
    log: Added
    short: Added
    long: Added
    answers: Annotated[dict[str, Any], operator.or_]


class Inner(TypedDict, total=False):
    turn: int
    own: Added
    own_delta: Delta
    answers: Annotated[dict[str, Any], operator.or_]


class Remembered(TypedDict, total=False):
    """All but what the outer graph has too goes on from turn to turn."""

    turn: int
    ask: bool
    own: Added
    own_delta: Delta
    own_seldom: Seldom
    answers: Annotated[dict[str, Any], operator.or_]


def line(name: str, state: Any) -> str:
    return f"{name} in turn {state['turn']}, " + "and so on, " * 20


def inner(ran: list[str]) -> Any:
    """Two nodes, the second of which may be asked to ask."""

    def first(state: Any) -> Any:
        ran.append("in first")
        return {"own": [line("first", state)], "own_delta": [f"first {state['turn']}"]}

    def second(state: Any) -> Any:
        ran.append("in second")
        answer = interrupt("inside?") if state["turn"] % 5 == 4 else "not asked"
        return {"answers": {f"inside {state['turn']}": answer}, "own_delta": ["second"]}

    builder = StateGraph(Inner)
    builder.add_node("in first", first)
    builder.add_node("in second", second)
    builder.add_edge(START, "in first")
    builder.add_edge("in first", "in second")
    return builder.compile()


def remembering(ran: list[str]) -> Any:
    """What it has of its own is kept in one namespace for all turns."""

    def recall(state: Any) -> Any:
        ran.append("recall")
        turn = state["turn"]
        return {"own": [line("recall", state)], "own_delta": [f"recall {turn}"], "own_seldom": [f"recall {turn}"]}

    def settle(state: Any) -> Any:
        ran.append("settle")
        answer = interrupt("settle?") if state["turn"] % 3 == 2 and not state["ask"] else "not asked"
        known = [len(state[channel]) for channel in ("own", "own_delta", "own_seldom")]
        return {"answers": {f"settled {state['turn']}": [answer, *known]}, "own_seldom": ["settle"]}

    builder = StateGraph(Remembered)
    builder.add_node("recall", recall)
    builder.add_node("settle", settle)
    builder.add_edge(START, "recall")
    builder.add_edge("recall", "settle")
    return builder.compile(checkpointer=True)


def graph(saver: Any, schema: Any, ran: list[str]) -> Any:
    """A loop, a subgraph, then four tasks beside each other: one may ask, one is a subgraph that goes on from turn to turn."""

    def again(state: Any) -> Any:
        ran.append("again")
        return {"steps": state["steps"] + 1, "log": [line("again", state)], "short": [f"step {state['steps']}"]}

    def ask(state: Any) -> Any:
        ran.append("ask")
        answer = interrupt("well?") if state["ask"] else "not asked"
        return {"answers": {f"ask {state['turn']}": answer}, "long": [f"asked in {state['turn']}"]}

    def quick(name: str) -> Callable[[Any], Any]:
        def work(state: Any) -> Any:
            ran.append(name)
            return {"log": [line(name, state)], "long": [name], "short": [name]}

        return work

    builder = StateGraph(schema)
    builder.add_node("again", again)
    builder.add_node("sub", inner(ran))
    builder.add_node("ask", ask)
    builder.add_node("quick 1", quick("quick 1"))
    builder.add_node("quick 2", quick("quick 2"))
    builder.add_edge(START, "again")
    builder.add_conditional_edges("again", lambda state: "again" if state["steps"] % 3 else "sub", ["again", "sub"])
    builder.add_node(REMEMBERS, remembering(ran))
    for name in ("ask", "quick 1", "quick 2", REMEMBERS):
        builder.add_edge("sub", name)
        builder.add_edge(name, END)
    return builder.compile(checkpointer=saver)


# --- the story ---


class Story:
    """Two savers on one file take turns, as two processes would; the second one keeps few checkpoints, in some stories."""

    def __init__(self, face: str, keep_last: int | None, folder: Path) -> None:
        self.name, self.keep_last = face, keep_last
        self.memory, self.ran, self.turns, self.retained = InMemorySaver(), list[str](), 0, 0
        self.savers = [Telling(folder / "agent.db", synchronous="normal", keep_last=kept) for kept in (None, keep_last)]
        for saver in self.savers:
            saver.memory = self.memory
        self.faces = [Face(saver, face) for saver in self.savers]

    def close(self) -> None:
        for saver in self.savers:
            saver.close()

    def graph(self, saver: Any, thread: str) -> Any:
        return graph(saver, Plain if thread.startswith("plain") else WithDelta, self.ran)

    def run(self, saver: int, thread: str, input: Any, durability: str, at: Any = None, run_id: str | None = None) -> None:
        options = {"durability": durability}
        at = dict(at or config(thread)) | ({"metadata": {"run_id": run_id}} if run_id else {})
        built = self.graph(self.savers[saver], thread)
        self.ran.clear()
        if self.name == "sync":
            built.invoke(input, at, **options)
        else:
            asyncio.run(built.ainvoke(input, at, **options))
        if saver == 1 and self.keep_last is not None:
            assert len(self.kept(thread)) <= self.keep_last

    # --- what happens ---

    def turn(self, saver: int, thread: str, ask: bool, durability: str, names_run: bool, at: Any = None) -> None:
        self.turns += 1
        input = {"turn": self.turns, "steps": 0, "ask": ask, "log": [f"turn {self.turns}"], "short": [f"turn {self.turns}"]}
        self.run(saver, thread, input, durability, at, f"run {self.turns}" if names_run else None)

    def go_on(self, saver: int, thread: str, durability: str) -> None:
        """The answer to what is asked; of the rest only what comes after it runs."""
        state = self.graph(self.savers[saver], thread).get_state(config(thread))
        if not state.interrupts:
            return
        [asked] = state.interrupts
        self.run(saver, thread, Command(resume="yes"), durability)
        if asked.value == "inside?":
            assert self.ran[0] == "in second"
            assert set(self.ran) <= {"in second", "ask", "quick 1", "quick 2", "recall", "settle"}
        else:
            assert self.ran == [{"well?": "ask", "settle?": "settle"}[asked.value]]

    def fork(self, saver: int, thread: str, number: int, durability: str) -> None:
        """Another turn, from an earlier checkpoint that was kept."""
        kept = self.kept(thread)
        if kept:
            self.turn(saver, thread, False, durability, False, config(thread, "", kept[number % len(kept)]))

    def update(self, saver: int, thread: str) -> None:
        if self.kept(thread):
            self.graph(self.savers[saver], thread).update_state(
                config(thread), {"log": ["changed"], "short": ["changed"]}, as_node="quick 1"
            )

    # --- what is deleted ---

    def prune(self, saver: int, threads: Sequence[str], strategy: str) -> None:
        count = 1 if strategy == "keep_latest" else 0
        remembered = self.remembered()
        self.retaining(
            lambda: self.faces[saver].prune(threads, strategy=strategy),
            {thread: self.kept(thread)[:count] for thread in threads},
        )
        assert self.remembered() == {
            thread: latest for thread, latest in remembered.items() if count or thread not in threads
        }

    def sweep(self, saver: int, keep_last: int, dry_run: bool) -> None:
        def call() -> Any:
            return self.faces[saver].sweep(keep_last=keep_last, statuses=STATUSES, dry_run=dry_run)

        if dry_run:
            self.retaining(call, {})
        else:
            remembered = self.remembered()
            self.retaining(call, {thread: self.kept(thread)[:keep_last] for thread in self.threads()})
            assert self.remembered() == remembered

    def sweep_idle(self, saver: int, statuses: Sequence[str]) -> None:
        gone = {row.thread_id: list[str]() for row in self.savers[0].threads() if row.status in statuses}
        self.retaining(lambda: self.faces[saver].sweep(idle_for=timedelta(0), statuses=statuses), gone)

    def delete_for_runs(self, saver: int, numbers: Sequence[int]) -> None:
        runs = self.savers[0].runs()
        going = {runs[number % len(runs)].run_id for number in numbers if runs}
        rows = {thread: self.runs_of(thread) for thread in self.threads()}
        kept = {
            thread: [id for id, run in of.items() if run not in going]
            for thread, of in rows.items()
            if going & set(of.values())
        }
        self.retaining(lambda: self.faces[saver].delete_for_runs(sorted(going)), kept)

    def copy(self, saver: int, source: str, target: str) -> None:
        if self.kept(source) and not self.kept(target) and source.startswith("plain") == target.startswith("plain"):
            kept = self.kept(source)
            self.savers[saver].delete_thread(target)  # writes alone may be left of it
            self.faces[saver].copy_thread(source, target)
            copy_in(self.memory, source, target)
            assert self.kept(target) == kept
            self.require_what_is_kept_to_be_right()

    def retaining(self, call: Callable[[], Any], kept: dict[str, list[str]]) -> None:
        """Of these threads these root checkpoints are kept, and no other is seen; of the others all."""
        before = {thread: self.kept(thread) for thread in self.threads()}
        call()
        self.retained += 1
        for thread, ids in before.items():
            assert self.kept(thread) == kept.get(thread, ids)
        self.require_what_is_kept_to_be_right()

    # --- what must be true ---

    def threads(self) -> list[str]:
        return [row.thread_id for row in self.savers[0].threads()]

    def kept(self, thread: str) -> list[str]:
        return [item.config["configurable"]["checkpoint_id"] for item in self.savers[0].list(config(thread))]

    def remembered(self) -> dict[str, str]:
        """By thread, the latest checkpoint of the subgraph that goes on from turn to turn."""
        found = {thread: self.savers[0].get_tuple(config(thread, REMEMBERS)) for thread in self.threads()}
        return {thread: item.config["configurable"]["checkpoint_id"] for thread, item in found.items() if item is not None}

    def runs_of(self, thread: str) -> dict[str, str]:
        with self.savers[0]._shared.database.read() as db:
            rows = db.execute(
                "SELECT checkpoint_id, run_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = '' ORDER BY seq DESC",
                (thread,),
            )
            return dict(rows.fetchall())

    def require_what_is_kept_to_be_right(self) -> None:
        for thread in self.threads():
            ours, memorys = self.graph(self.savers[0], thread), self.graph(self.memory, thread)
            for checkpoint_id in self.kept(thread):
                at = config(thread, "", checkpoint_id)
                assert told(ours.get_state(at)) == told(memorys.get_state(at)), (thread, checkpoint_id)
        for item in self.savers[0].list(None):
            if item.config["configurable"]["checkpoint_ns"]:
                in_memory = self.memory.get_tuple(item.config)
                assert in_memory is not None
                assert item.checkpoint == in_memory.checkpoint
                assert item.pending_writes == in_memory.pending_writes
                assert self.history(self.savers[0], item) == self.history(self.memory, item)

    def history(self, saver: Any, item: Any) -> Any:
        """What the DeltaChannels of a checkpoint are rebuilt from."""
        checkpoint = item.checkpoint
        rebuilt = checkpoint["channel_versions"].keys() & item.metadata.get("counters_since_delta_snapshot", {}).keys()
        return saver.get_delta_channel_history(
            config=item.config, channels=sorted(rebuilt - checkpoint["channel_values"].keys())
        )

    def end(self) -> None:
        self.require_what_is_kept_to_be_right()
        for saver in self.savers:
            assert list(saver.verify()) == []


def told(state: Any) -> Any:
    tasks = [(task.name, [one.value for one in task.interrupts], str(task.error), task.result) for task in state.tasks]
    return state.values, state.next, tasks, state.metadata


# --- random stories ---

savers, threads = st.sampled_from([0, 0, 1]), st.sampled_from(THREADS)
durabilities = st.sampled_from(["sync", "async", "exit"])
numbers = st.integers(0, 40)
turns = st.tuples(st.just("turn"), savers, threads, st.booleans(), durabilities, st.booleans())
doings = st.one_of(
    turns,
    turns,
    st.tuples(st.just("go_on"), savers, threads, durabilities),
    st.tuples(st.just("fork"), savers, threads, numbers, durabilities),
    st.tuples(st.just("update"), savers, threads),
    st.tuples(
        st.just("prune"),
        savers,
        st.lists(threads, min_size=1, max_size=2, unique=True),
        st.sampled_from(["keep_latest"] * 4 + ["delete"]),
    ),
    st.tuples(st.just("sweep"), savers, st.integers(1, 6), st.sampled_from([False, False, True])),
    st.tuples(st.just("sweep_idle"), savers, st.lists(st.sampled_from(STATUSES), max_size=2, unique=True)),
    st.tuples(st.just("delete_for_runs"), savers, st.lists(numbers, max_size=3)),
    st.tuples(st.just("copy"), savers, threads, threads),
)

profile = settings(
    max_examples=EXAMPLES or 25,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=False,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink] if EXAMPLES else [Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(170 if not EXAMPLES else 0)
@pytest.mark.parametrize("keep_last", [None, 2])
@pytest.mark.parametrize("face", ["sync", "async"])
def test_whatever_is_deleted_and_copied_in_whatever_order_what_stays_is_what_it_was(
    face: str, keep_last: int | None
) -> None:
    retained = 0

    @profile
    @given(st.lists(doings, min_size=4, max_size=14))
    def tell(story: list[Any]) -> None:
        nonlocal retained
        with tempfile.TemporaryDirectory() as folder:
            told = Story(face, keep_last, Path(folder))
            try:
                told.turn(0, "delta a", True, "sync", False)
                told.turn(0, "plain", False, "async", True)
                for what, *how in story:
                    getattr(told, what)(*how)
                told.end()
            finally:
                told.close()
            retained += told.retained

    tell()
    assert retained > 40


@pytest.mark.parametrize("retain", ["prune", "sweep"])
def test_a_checkpoint_that_is_kept_for_others_is_not_shown_with_half_its_state(retain: str, tmp_path: Path) -> None:
    """The latest one's DeltaChannel needs its ancestors. They have DeltaChannels too, which need more of them."""
    story = Story("sync", None, tmp_path)
    try:
        story.turn(0, "delta a", True, "sync", False)
        for _ in range(3):
            story.turn(0, "delta a", False, "sync", False)
        if retain == "prune":
            story.prune(0, ["delta a"], "keep_latest")
        else:
            story.sweep(0, 2, False)
        story.turn(0, "delta a", False, "sync", False)
        story.end()
    finally:
        story.close()
