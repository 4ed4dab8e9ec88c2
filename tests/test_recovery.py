"""`recover` and `arecover`: what a crash left unfinished goes on, each run once, and a person's part is left to persons."""

import asyncio
import gc
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from conftest import config
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from scripts import crash
from sqlfile import sql
from threads import stored
from typing_extensions import TypedDict

from langgraph_sqlite_ckpt import InvalidRequest, Recovered, SqliteSaver

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="crashes are forked processes"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def add(left: list[Any], right: list[Any]) -> list[Any]:
    return left + right


class State(TypedDict):
    done: Annotated[list[str], add]


class Fate:
    """What happens in which node, in this process."""

    def __init__(self) -> None:
        self.kills: set[str] = set()
        self.begun: Callable[[], bool] = lambda: True
        self.fails: set[str] = set()
        self.ran: list[str] = []
        self.running = self.most = 0

    def meet(self, node: str) -> None:
        self.ran.append(node)
        if node in self.kills:
            while not self.begun():  # even with durability "sync" LangGraph does not wait for the input to be stored
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        if node in self.fails:
            raise RuntimeError(f"{node} went wrong")


@pytest.fixture
def fate() -> Fate:
    return Fate()


def node(fate: Fate, name: str) -> Callable[[State], Any]:
    def run(state: State) -> Any:
        fate.meet(name)
        return {"done": [name]}

    return run


def line(fate: Fate, saver: SqliteSaver, names: str = "abc", **compiled: Any) -> Any:
    graph = StateGraph(State)
    for name in names:
        graph.add_node(name, node(fate, name))
    for one, next_ in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(one, next_)
    return graph.compile(checkpointer=saver, **compiled)


Build = Callable[[SqliteSaver], Any]


def crashed(path: Path, fate: Fate, build: Build, *, at: str = "b", threads: Any = "t") -> None:
    def work(saver: SqliteSaver) -> None:
        fate.kills, fate.begun = {at}, lambda: saver.get_tuple(config(thread_id)) is not None
        build(saver).invoke({"done": []}, config(thread_id), durability="sync")

    for thread_id in threads:
        crash(path, work)


def status(saver: SqliteSaver) -> dict[str, str]:
    return {thread.thread_id: thread.status for thread in saver.threads()}


@pytest.fixture(params=["sync", "async"])
def recover(request: pytest.FixtureRequest) -> Callable[..., list[Recovered]]:
    async def collect(saver: SqliteSaver, *args: Any, **options: Any) -> list[Recovered]:
        return [each async for each in saver.arecover(*args, **options)]

    if request.param == "sync":
        return lambda saver, *args, **options: list(saver.recover(*args, **options))
    return lambda *args, **options: asyncio.run(collect(*args, **options))


@pytest.fixture
def build(fate: Fate) -> Build:
    return lambda saver: line(fate, saver)


# --- which ---


def test_what_has_crashed_goes_on_where_it_was(path: Path, fate: Fate, build: Build, recover: Any) -> None:
    crashed(path, fate, build)
    with SqliteSaver(path) as saver:
        [recovered] = recover(saver, build(saver))

        assert recovered == Recovered("t", saver.runs("t")[0].run_id, "completed", 1, {"done": ["a", "b", "c"]})
        assert fate.ran == ["b", "c"]
        assert status(saver) == {"t": "completed"}
        assert recover(saver, build(saver)) == []


def test_only_what_has_crashed_and_is_of_this_graph_the_oldest_first(
    path: Path, fate: Fate, build: Build, recover: Any
) -> None:
    crashed(path, fate, build, threads=["2", "1"])
    crashed(path, fate, lambda saver: line(fate, saver, "xyz"), at="y", threads=["another graph's"])
    with SqliteSaver(path) as saver:
        fate.fails = {"b"}
        with pytest.raises(RuntimeError):
            build(saver).invoke({"done": []}, config("failed"))
        fate.fails = set()
        build(saver).invoke({"done": []}, config("completed"))
        last = stored(saver, "interrupted", values={"branch:to:b": None})
        saver.put_writes(last, [("__interrupt__", ["well?"])], "task")
        stored(saver, "running", values={"branch:to:b": None})
        before = status(saver)

        assert {each.thread_id for each in recover(saver, build(saver), only=lambda thread: thread.thread_id == "1")} == {
            "1"
        }
        assert [each.thread_id for each in recover(saver, build(saver))] == ["2"]
        assert status(saver) == {**before, "1": "completed", "2": "completed"}


def test_the_oldest_first(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build, threads="bca")
    with SqliteSaver(path) as saver:
        assert [each.thread_id for each in saver.recover(build(saver))] == ["b", "c", "a"]


def test_other_states_by_name(path: Path, fate: Fate, build: Build, recover: Any) -> None:
    with SqliteSaver(path) as saver:
        fate.fails = {"b"}
        with pytest.raises(RuntimeError):
            build(saver).invoke({"done": []}, config("failed"))
        fate.fails = set()
        stored(saver, "stopped", values={"branch:to:b": None, "done": ["a"]})
    with SqliteSaver(path) as saver:
        assert recover(saver, build(saver)) == []
        [stopped] = recover(saver, build(saver), statuses=["stopped"])
        assert (stopped.thread_id, stopped.outcome) == ("stopped", "completed")
        [failed] = recover(saver, build(saver), statuses=("failed", "crashed"))
        assert (failed.thread_id, failed.outcome) == ("failed", "completed")


@pytest.mark.parametrize(
    "wrong",
    [{"statuses": "crashed"}, {"statuses": ["running"]}, {"statuses": []}, {"max_attempts": 0}, {"max_attempts": None}],
)
def test_what_makes_no_sense_is_refused(saver: SqliteSaver, build: Build, wrong: Any) -> None:
    for method in (saver.recover, saver.arecover):
        with pytest.raises(InvalidRequest):
            method(build(saver), **wrong)


def test_a_graph_of_another_saver_is_refused(path: Path, saver: SqliteSaver, build: Build, fate: Fate) -> None:
    with SqliteSaver(path) as other:
        for graph in (build(other), line(fate, None), object()):
            with pytest.raises(InvalidRequest, match="compiled with this saver"):
                saver.recover(graph)
        with pytest.raises(InvalidRequest, match="concurrency"):
            saver.arecover(build(saver), concurrency=0)


def test_a_copy_of_the_saver_is_the_same_saver(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build)
    with SqliteSaver(path) as saver:
        graph = build(saver.with_allowlist([("decimal", "Decimal")]))

        assert [each.outcome for each in saver.recover(graph)] == ["completed"]


# --- several at once ---


def test_several_recoverers_share_the_work(path: Path, fate: Fate, build: Build, tmp_path: Path) -> None:
    crashed(path, fate, build, threads="12345678")
    log = tmp_path / "log"

    def work() -> None:
        with SqliteSaver(path, synchronous="normal") as saver:
            time.sleep(0.02)
            for each in saver.recover(build(saver)):
                with log.open("a") as file:
                    file.write(f"{each.thread_id} {each.outcome} {each.attempts}\n")

    children = []
    for _ in range(3):
        child = os.fork()
        if not child:
            failed = 1
            try:
                work()
                failed = 0
            finally:
                os._exit(failed)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]

    assert sorted(log.read_text().splitlines()) == [f"{number} completed 1" for number in range(1, 9)]
    with SqliteSaver(path) as saver:
        assert [build(saver).get_state(config(n)).values["done"] for n in "12345678"] == [["a", "b", "c"]] * 8


def test_what_somebody_has_claimed_is_left_to_them(path: Path, fate: Fate, build: Build, recover: Any) -> None:
    crashed(path, fate, build)
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        with other.claim("t"):
            assert recover(saver, build(saver), statuses=["crashed", "stopped"]) == []
        assert [each.outcome for each in recover(saver, build(saver))] == ["completed"]


def test_what_went_on_since_the_look_is_left_alone(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build, threads="12")
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        recovering = saver.recover(build(saver))
        assert next(recovering).thread_id == "1"
        assert [each.thread_id for each in other.recover(build(other))] == ["2"]

        assert list(recovering) == []


def test_a_living_run_is_not_taken_though_it_has_been_silent(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build, threads="12")
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        recovering = saver.recover(build(saver))
        next(recovering)
        last = other.get_tuple(config("2")).config
        other.put_writes(last, [("x", 1)], "task")  # it goes on there, and is in for a long step
        sql(path, "UPDATE owner SET beat_at = '2020-01-01'")

        assert list(recovering) == []


# --- attempts ---


def recover_and_die(path: Path, build: Build, **options: Any) -> None:
    crash(path, lambda saver: list(saver.recover(build(saver), durability="sync", **options)))


def test_a_run_that_keeps_killing_its_process_is_given_up(path: Path, fate: Fate, build: Build, recover: Any) -> None:
    crashed(path, fate, build)
    fate.kills = {"b"}
    for _ in range(2):
        recover_and_die(path, build, max_attempts=2)
    with SqliteSaver(path) as saver:
        [recovered] = recover(saver, build(saver), max_attempts=2)

        assert (recovered.outcome, recovered.attempts, recovered.values) == ("abandoned", 2, None)
        assert status(saver) == {"t": "abandoned"}
        assert recover(saver, build(saver)) == []

        fate.kills = set()
        [recovered] = recover(saver, build(saver), statuses=["abandoned"])
        assert (recovered.outcome, recovered.attempts) == ("completed", 3)


def test_attempts_start_anew_with_progress(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build, at="a")
    fate.kills = {"a"}
    recover_and_die(path, build, max_attempts=2)
    fate.kills = {"b"}
    for _ in range(3):  # the second attempt at "a", and two at "b"
        recover_and_die(path, build, max_attempts=2)
    fate.kills = set()
    with SqliteSaver(path) as saver:
        assert [each.outcome for each in saver.recover(build(saver), max_attempts=2)] == ["abandoned"]
        assert [each.attempts for each in saver.recover(build(saver), statuses=["abandoned"])] == [3]


def wait_for_write(saver: SqliteSaver, channel: str) -> None:
    """LangGraph stores it from another thread, while nodes run."""
    deadline, path = time.monotonic() + 10, Path(saver._shared.database.path)
    latest = "(SELECT checkpoint_id FROM checkpoint ORDER BY seq DESC LIMIT 1)"
    while time.monotonic() < deadline and not sql(
        path, f"SELECT 1 FROM write WHERE channel = ? AND checkpoint_id = {latest}", channel
    ):
        time.sleep(0.005)


def parallel(fate: Fate, saver: SqliteSaver) -> Any:
    """`quick` is done, and its writes are stored, before `slow` does anything."""

    def slow(state: State) -> Any:
        wait_for_write(saver, "done")
        return node(fate, "slow")(state)

    graph = StateGraph(State).add_node("quick", node(fate, "quick")).add_node("slow", slow)
    graph.add_edge(START, "quick").add_edge(START, "slow").add_edge("quick", END).add_edge("slow", END)
    return graph.compile(checkpointer=saver)


def test_a_pending_write_is_progress_and_a_finished_task_does_not_run_again(path: Path, fate: Fate, recover: Any) -> None:
    def build(saver: SqliteSaver) -> Any:
        return parallel(fate, saver)

    crashed(path, fate, build, at="slow")
    with SqliteSaver(path) as saver:
        [recovered] = recover(saver, build(saver))

    assert (recovered.outcome, recovered.values) == ("completed", {"done": ["quick", "slow"]})
    assert fate.ran == ["slow"]


def test_a_pending_write_more_starts_attempts_anew(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build)
    fate.kills = {"b"}
    recover_and_die(path, build, max_attempts=1)

    def write(saver: SqliteSaver) -> None:
        saver.put_writes(saver.get_tuple(config()).config, [("x", 1)], "task")

    crash(path, write)
    fate.kills = set()
    with SqliteSaver(path) as saver:
        assert [each.outcome for each in saver.recover(build(saver), max_attempts=1)] == ["completed"]


def test_an_error_again_and_again_is_no_progress(path: Path, fate: Fate, build: Build, recover: Any) -> None:
    crashed(path, fate, build)
    fate.fails = {"b"}
    with SqliteSaver(path) as saver:
        outcomes = [
            (each.outcome, each.attempts)
            for _ in range(3)
            for each in recover(saver, build(saver), statuses=["crashed", "failed"], max_attempts=2)
        ]
    assert outcomes == [("failed", 1), ("failed", 2), ("abandoned", 2)]


def test_an_abandoned_run_that_is_resumed_by_hand_is_like_any_other(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build)
    fate.kills = {"b"}
    recover_and_die(path, build, max_attempts=1)
    with SqliteSaver(path) as saver:
        list(saver.recover(build(saver), max_attempts=1))
        assert status(saver) == {"t": "abandoned"}
    fate.kills = {"c"}
    crash(path, lambda saver: build(saver).invoke(None, config(), durability="sync"))
    fate.kills = set()
    with SqliteSaver(path) as saver:
        assert status(saver) == {"t": "crashed"}
        assert [(each.outcome, each.attempts) for each in saver.recover(build(saver), max_attempts=1)] == [("completed", 1)]


# --- people ---


@pytest.mark.parametrize(
    "breakpoints",
    [{"interrupt_before": ["b"]}, {"interrupt_after": ["a"]}, {"interrupt_before": "*"}, {"interrupt_after": "*"}],
)
def test_a_run_at_a_breakpoint_is_left_to_people(path: Path, fate: Fate, recover: Any, breakpoints: Any) -> None:
    def stop(saver: SqliteSaver) -> None:
        graph = line(fate, saver, **breakpoints)
        graph.invoke({"done": []}, config())
        if breakpoints.get("interrupt_before") == "*":
            graph.invoke(None, config())

    crash(path, stop)
    with SqliteSaver(path) as saver:
        for _ in range(4):  # and it is no attempt
            [recovered] = recover(saver, line(fate, saver, **breakpoints))
            assert (recovered.outcome, recovered.attempts) == ("interrupted", 0)
        assert fate.ran == []


@pytest.mark.parametrize("breakpoints", [{"interrupt_before": ["c"]}, {"interrupt_after": ["b"]}])
def test_a_run_before_a_breakpoint_goes_on_up_to_it(path: Path, fate: Fate, recover: Any, breakpoints: Any) -> None:
    def build(saver: SqliteSaver) -> Any:
        return line(fate, saver, **breakpoints)

    crashed(path, fate, build)
    with SqliteSaver(path) as saver:
        assert [each.outcome for each in recover(saver, build(saver))] == ["interrupted"]
        assert fate.ran == ["b"]
        assert status(saver) == {"t": "stopped"}  # nobody runs it


def test_one_that_came_to_a_breakpoint_since_the_look_is_left_there(path: Path, fate: Fate) -> None:
    def build(saver: SqliteSaver) -> Any:
        return line(fate, saver, interrupt_before=["c"])

    crashed(path, fate, build, threads="12")
    with SqliteSaver(path) as saver:
        recovering = saver.recover(build(saver))
        next(recovering)

        def up_to_it(other: SqliteSaver) -> None:
            build(other).invoke(None, config("2"))

        crash(path, up_to_it)
        fate.ran.clear()

        assert [each.outcome for each in recovering] == ["interrupted"]
        assert fate.ran == []


def asking(fate: Fate, saver: SqliteSaver) -> Any:
    def ask(state: State) -> Any:
        answer = interrupt("well?")
        wait_for_write(saver, "__resume__")
        fate.meet("ask")
        return {"done": [answer]}

    graph = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").add_edge("ask", END)
    return graph.compile(checkpointer=saver)


def test_an_answer_that_was_being_worked_on_is_not_asked_for_again(path: Path, fate: Fate, recover: Any) -> None:
    with SqliteSaver(path) as saver:
        asking(fate, saver).invoke({"done": []}, config())
        assert status(saver) == {"t": "interrupted"}

    def answer(saver: SqliteSaver) -> None:
        assert list(saver.recover(asking(fate, saver))) == []
        fate.kills = {"ask"}
        asking(fate, saver).invoke(Command(resume="yes"), config(), durability="sync")

    crash(path, answer)
    with SqliteSaver(path) as saver:
        assert status(saver) == {"t": "crashed"}
        [recovered] = recover(saver, asking(fate, saver))
        assert (recovered.outcome, recovered.values) == ("completed", {"done": ["yes"]})


def test_a_run_that_comes_to_a_question_waits_there(path: Path, fate: Fate, recover: Any) -> None:
    def build(saver: SqliteSaver) -> Any:
        graph = StateGraph(State).add_node("a", node(fate, "a")).add_node("ask", lambda state: {"done": [interrupt("?")]})
        return graph.add_edge(START, "a").add_edge("a", "ask").add_edge("ask", END).compile(checkpointer=saver)

    crashed(path, fate, build, at="a")
    with SqliteSaver(path) as saver:
        [recovered] = recover(saver, build(saver))
        assert recovered.outcome == "interrupted"
        assert status(saver) == {"t": "interrupted"}


# --- what goes wrong ---


def test_a_run_that_fails_says_why_and_the_others_go_on(
    path: Path, fate: Fate, build: Build, recover: Any, caplog: pytest.LogCaptureFixture
) -> None:
    crashed(path, fate, build, threads="1")
    crashed(path, fate, build, at="c", threads="2")
    fate.fails = {"b"}
    done: list[tuple[int, int]] = []
    with SqliteSaver(path) as saver, caplog.at_level(logging.INFO, "langgraph_sqlite_ckpt"):
        failed, fine = sorted(recover(saver, build(saver), progress=lambda *counts: done.append(counts)))
        run_id = saver.runs("2")[0].run_id

        assert (failed.outcome, str(failed.error), failed.values) == ("failed", "b went wrong", None)
        assert (fine.outcome, fine.error) == ("completed", None)
        assert status(saver) == {"1": "failed", "2": "completed"}
    assert done == [(1, 2), (2, 2)]
    assert f"thread '2', run {run_id}: completed after attempt 1 of 3" in caplog.messages
    [warning] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.getMessage().endswith("failed after attempt 1 of 3 (RuntimeError: b went wrong)")


def test_a_thread_that_cannot_be_read_does_not_keep_the_others_from_going_on(path: Path, fate: Fate, recover: Any) -> None:
    def build(saver: SqliteSaver) -> Any:
        return line(fate, saver, interrupt_after=["c"])

    crashed(path, fate, build, threads="12")
    sql(path, "UPDATE blob SET data = x'00' WHERE namespace = 1")
    sql(path, "UPDATE checkpoint SET body = x'00' WHERE namespace = 1")
    with SqliteSaver(path) as saver:
        assert {(each.thread_id, each.outcome) for each in recover(saver, build(saver))} == {
            ("1", "failed"),
            ("2", "completed"),
        }


# --- leaving, and being cancelled ---


def test_leaving_the_loop_leaves_no_claim(path: Path, fate: Fate, build: Build) -> None:
    crashed(path, fate, build, threads="123")
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        for _ in saver.recover(build(saver)):
            break
        for thread_id in "123":
            with other.claim(thread_id):
                pass
        assert status(saver) == {"1": "completed", "2": "crashed", "3": "crashed"}


def slow(fate: Fate, saver: SqliteSaver) -> Any:
    """Its second node takes a while, for which others may run."""

    async def second(state: State) -> Any:
        fate.running += 1
        fate.most = max(fate.most, fate.running)
        try:
            await asyncio.sleep(0.05 * fate.running)
            if "wait" in fate.ran:
                await asyncio.sleep(60)
        finally:
            fate.running -= 1
        return {"done": ["second"]}

    graph = StateGraph(State).add_node("first", node(fate, "first")).add_node("second", second)
    return graph.add_edge(START, "first").add_edge("first", "second").add_edge("second", END).compile(checkpointer=saver)


def crashed_slow(path: Path, fate: Fate, threads: str) -> None:
    def work(saver: SqliteSaver) -> None:
        fate.kills = {"first"}
        asyncio.run(slow(fate, saver).ainvoke({"done": []}, config(thread_id), durability="sync"))

    for thread_id in threads:
        crash(path, work)


@pytest.mark.parametrize("concurrency", [1, 3])
def test_never_more_at_a_time_than_told(path: Path, fate: Fate, concurrency: int) -> None:
    crashed_slow(path, fate, "123456")

    async def main(saver: SqliteSaver) -> list[str]:
        return [each.outcome async for each in saver.arecover(slow(fate, saver), concurrency=concurrency)]

    with SqliteSaver(path) as saver:
        assert asyncio.run(main(saver)) == ["completed"] * 6
    assert fate.most == concurrency


@pytest.mark.parametrize("how", ["cancelled", "left"])
def test_a_consumer_that_goes_leaves_no_run_and_no_claim(path: Path, fate: Fate, how: str) -> None:
    crashed_slow(path, fate, "1234")

    async def consume(saver: SqliteSaver) -> None:
        async for _ in saver.arecover(slow(fate, saver), concurrency=2):
            fate.ran.append("wait")
            if how == "left":
                break

    async def main(saver: SqliteSaver) -> None:
        consumer = asyncio.create_task(consume(saver))
        if how == "cancelled":
            while not fate.running:
                await asyncio.sleep(0.005)
            fate.ran.append("wait")
            await asyncio.sleep(0.02)
            consumer.cancel()
        await asyncio.wait([consumer])
        del consumer
        gc.collect()
        deadline = time.monotonic() + 5
        while fate.running and time.monotonic() < deadline:
            await asyncio.sleep(0.005)

    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        asyncio.run(main(saver))
        assert fate.running == 0
        for thread_id in "1234":
            with other.claim(thread_id, timeout=2):
                pass
        assert "running" not in status(other).values()
        fate.ran.clear()

        async def again() -> list[str]:
            graph, unfinished = slow(fate, other), ["crashed", "stopped", "failed"]
            return [each.outcome async for each in other.arecover(graph, statuses=unfinished)]

        assert set(asyncio.run(again())) == {"completed"}
        assert set(status(other).values()) == {"completed"}


# --- what reaches the graph ---


class Context(TypedDict):
    name: str


def test_config_context_and_durability_reach_the_graph(path: Path, fate: Fate, recover: Any) -> None:
    seen: list[Any] = []

    def build(saver: SqliteSaver) -> Any:
        from langgraph.runtime import Runtime

        def told(state: State, config: Any, runtime: Runtime[Context]) -> Any:
            fate.meet("told")
            seen.append((config["tags"], config["configurable"]["user"], runtime.context["name"]))
            return {"done": ["told"]}

        graph = StateGraph(State, context_schema=Context).add_node("told", _untyped(told))
        graph.add_node("last", node(fate, "last"))
        return graph.add_edge(START, "told").add_edge("told", "last").add_edge("last", END).compile(checkpointer=saver)

    def work(saver: SqliteSaver) -> None:
        fate.kills = {"told"}
        build(saver).invoke({"done": []}, config(), context={"name": "n"}, durability="sync")

    crash(path, work)
    with SqliteSaver(path) as saver:
        before = saver.threads()[0].checkpoints
        own = {"tags": ["tag"], "configurable": {"user": "u"}}
        [recovered] = recover(saver, build(saver), config=own, context={"name": "n"}, durability="exit")

        assert (recovered.outcome, recovered.error) == ("completed", None)
        assert seen == [(["tag"], "u", "n")]
        assert saver.threads()[0].checkpoints == before + 1


def _untyped(function: Any) -> Any:
    """LangGraph looks at annotations, which name local classes here."""
    from langchain_core.runnables import RunnableConfig
    from langgraph.runtime import Runtime

    function.__annotations__ = {"state": State, "config": RunnableConfig, "runtime": Runtime[Context], "return": Any}
    return function


# --- shapes: as if nothing had happened ---


def subgraph(fate: Fate, saver: Any) -> Any:
    inner = StateGraph(State).add_node("i", node(fate, "i")).add_node("dies", node(fate, "dies"))
    inner = inner.add_edge(START, "i").add_edge("i", "dies").add_edge("dies", END).compile()
    graph = StateGraph(State).add_node("sub", inner).add_node("after", node(fate, "after"))
    return graph.add_edge(START, "sub").add_edge("sub", "after").add_edge("after", END).compile(checkpointer=saver)


def fan_out(fate: Fate, saver: Any) -> Any:
    def one(given: Any) -> Any:
        fate.meet("dies" if given == 3 else "lives")
        return {"done": [str(given)]}

    graph = (
        StateGraph(State).add_node("plan", node(fate, "plan")).add_node("one", one).add_node("after", node(fate, "after"))
    )
    graph.add_edge(START, "plan").add_conditional_edges("plan", lambda state: [Send("one", n) for n in range(5)], ["one"])
    return graph.add_edge("one", "after").add_edge("after", END).compile(checkpointer=saver)


def functional(fate: Fate, saver: Any) -> Any:
    @task
    def part(name: str) -> str:
        fate.meet(name)
        return name

    @entrypoint(checkpointer=saver)
    def whole(given: dict[str, Any]) -> Any:
        return {"done": [part("first").result(), part("dies").result(), part("last").result()]}

    return whole


@pytest.mark.parametrize("shape", [subgraph, fan_out, functional])
def test_the_state_is_as_if_nothing_had_happened(path: Path, fate: Fate, recover: Any, shape: Any) -> None:
    def build(saver: SqliteSaver) -> Any:
        return shape(fate, saver)

    crashed(path, fate, build, at="dies")
    with SqliteSaver(path) as saver, SqliteSaver(":memory:") as undisturbed:
        expected = build(undisturbed).invoke({"done": []}, config())
        [recovered] = recover(saver, build(saver))

        assert (recovered.outcome, recovered.error, recovered.values) == ("completed", None, expected)
        assert build(saver).get_state(config()).values == build(undisturbed).get_state(config()).values
        assert saver.verify() == []
