"""The views that people read: which runs there are, where each stands, and what is due next."""

import asyncio
import json
import operator
import sys
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from conftest import checkpoint, config, put
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from scripts import run
from sqlfile import sql

from langgraph_sqlite_ckpt import SqliteSaver


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def say(word: str) -> Callable[[Any], Any]:
    return lambda state: {"log": [word]}


def linear(saver: Any, *names: str, **nodes: Any) -> Any:
    builder = StateGraph(State)
    previous = START
    for name in names:
        builder.add_node(name, nodes.get(name) or say(name))
        builder.add_edge(previous, name)
        previous = name
    return builder.compile(checkpointer=saver)


class Views:
    def __init__(self, path: Path) -> None:
        self.path = path

    def status(self, thread: str = "t") -> str:
        [(status,)] = sql(self.path, "SELECT status FROM threads WHERE thread_id = ?", thread)
        assert sql(self.path, "SELECT status FROM runs WHERE thread_id = ? ORDER BY created_at DESC LIMIT 1", thread) == [
            (status,)
        ]
        return str(status)

    def next(self, thread: str = "t") -> list[str]:
        [(text,)] = sql(self.path, "SELECT next FROM threads WHERE thread_id = ?", thread)
        return list(json.loads(text))

    def runs(self, thread: str = "t") -> list[tuple[str, int]]:
        """(run_id, number of root checkpoints), oldest run first."""
        return sql(self.path, "SELECT run_id, checkpoints FROM runs WHERE thread_id = ? ORDER BY created_at", thread)


@pytest.fixture
def views(saver: SqliteSaver, path: Path) -> Views:
    return Views(path)


BEFORE_3_11 = pytest.mark.skipif(sys.version_info < (3, 11), reason="LangGraph cannot interrupt under ainvoke there")


@pytest.fixture(params=["invoke", pytest.param("ainvoke", marks=BEFORE_3_11)])
def invoke(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A graph's call, by either face."""
    if request.param == "invoke":
        return lambda app, *args, **kwargs: app.invoke(*args, **kwargs)
    return lambda app, *args, **kwargs: asyncio.run(app.ainvoke(*args, **kwargs))


# --- status ---


def test_a_run_that_reached_its_end_is_completed_and_each_of_its_steps_tells_its_own(
    saver: SqliteSaver, views: Views, invoke: Any
) -> None:
    invoke(linear(saver, "one", "two"), {"log": ["in"]}, config())
    assert views.status() == "completed"
    assert sql(views.path, "SELECT step, source, next, status FROM checkpoints ORDER BY seq") == [
        (-1, "input", '["__start__"]', "running"),
        (0, "loop", '["one"]', "running"),
        (1, "loop", '["two"]', "running"),
        (2, "loop", "[]", "completed"),
    ]


def test_a_run_that_waits_for_a_person_is_interrupted_until_it_is_answered(
    saver: SqliteSaver, views: Views, invoke: Any
) -> None:
    def ask(state: State) -> State:
        return {"log": [interrupt("first?"), interrupt("second?")]}

    app = linear(saver, "one", "ask", "two", ask=ask)
    invoke(app, {"log": []}, config())
    assert (views.status(), views.next()) == ("interrupted", ["ask"])
    invoke(app, Command(resume="a"), config())
    assert views.status() == "interrupted"
    invoke(app, Command(resume="b"), config())
    assert (views.status(), views.next()) == ("completed", [])
    assert [status for (status,) in sql(views.path, "SELECT status FROM checkpoints ORDER BY seq")] == ["running"] * 4 + [
        "completed"
    ]


def test_of_two_questions_asked_at_once_one_answer_leaves_the_run_interrupted(
    saver: SqliteSaver, views: Views, invoke: Any
) -> None:
    builder = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, lambda state, name=name: {"log": [interrupt(name)]})
        builder.add_edge(START, name)
    app = builder.compile(checkpointer=saver)
    asked = invoke(app, {"log": []}, config())["__interrupt__"]
    assert views.status() == "interrupted"
    assert set(views.next()) == {"left", "right"}
    invoke(app, Command(resume={asked[0].id: "answer"}), config())
    assert views.status() == "interrupted"
    invoke(app, Command(resume={asked[1].id: "answer"}), config())
    assert views.status() == "completed"


def test_a_question_from_inside_a_subgraph_makes_the_whole_run_interrupted(
    saver: SqliteSaver, views: Views, invoke: Any
) -> None:
    inner = linear(None, "inner_one", "ask", ask=lambda state: {"log": [interrupt("?")]})
    app = linear(saver, "one", "inner", inner=inner)
    invoke(app, {"log": []}, config())
    assert (views.status(), views.next()) == ("interrupted", ["inner"])
    invoke(app, Command(resume="x"), config())
    assert views.status() == "completed"


def test_a_node_that_raises_makes_the_run_failed_until_it_succeeds(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    broken = [True]

    def fragile(state: State) -> State:
        if broken:
            raise RuntimeError("broken")
        return {"log": ["mended"]}

    app = linear(saver, "one", "fragile", "two", fragile=fragile)
    for given in ({"log": []}, None):
        with pytest.raises(RuntimeError, match="broken"):
            invoke(app, given, config())
        assert (views.status(), views.next()) == ("failed", ["fragile"])
    broken.clear()
    invoke(app, None, config())
    assert views.status() == "completed"
    assert sql(views.path, "SELECT count(*) FROM checkpoints WHERE status = 'failed'") == [(0,)]


def test_an_answer_after_which_the_node_raises_makes_the_run_failed(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    def ask(state: State) -> State:
        raise RuntimeError(interrupt("?"))

    app = linear(saver, "ask", ask=ask)
    invoke(app, {"log": []}, config())
    assert views.status() == "interrupted"
    with pytest.raises(RuntimeError, match="answer"):
        invoke(app, Command(resume="answer"), config())
    assert views.status() == "failed"


def test_a_run_at_work_says_running_and_so_does_one_at_a_breakpoint(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    seen: list[Any] = []
    app = linear(saver, "one", "two", two=lambda state: seen.append((views.status(), views.next())))
    invoke(app, {"log": []}, config(), durability="sync")
    assert seen == [("running", ["two"])]
    stopped = linear(saver, "one", "two")
    invoke(stopped, {"log": []}, config("stopped"), interrupt_before=["two"])
    assert (views.status("stopped"), views.next("stopped")) == ("running", ["two"])
    invoke(stopped, None, config("stopped"))
    assert views.status("stopped") == "completed"


def test_a_run_whose_process_was_killed_says_running_and_what_was_due(path: Path) -> None:
    script = """
        from langgraph.graph import START, StateGraph
        from typing import TypedDict
        class State(TypedDict): n: int
        builder = StateGraph(State)
        builder.add_node("one", lambda state: {"n": 1})
        builder.add_node("two", lambda state: os._exit(0))
        builder.add_edge(START, "one"); builder.add_edge("one", "two")
        builder.compile(checkpointer=SqliteSaver(PATH)).invoke({"n": 0}, config(), durability="sync")
    """
    run(script, path)
    assert sql(path, "SELECT status, next, step FROM threads") == [("running", '["two"]', 1)]


def test_with_durability_exit_the_one_checkpoint_tells_how_it_ended(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    invoke(linear(saver, "one", "two"), {"log": []}, config("well"), durability="exit")
    assert views.status("well") == "completed"
    asking = linear(saver, "one", "ask", ask=lambda state: {"log": [interrupt("?")]})
    invoke(asking, {"log": []}, config("asked"), durability="exit")
    assert views.status("asked") == "interrupted"


# --- runs ---


def test_a_run_begins_with_its_input_and_ends_before_the_next_one(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    app = linear(saver, "one", "two")
    for _ in range(3):
        invoke(app, {"log": ["in"]}, config())
    inputs = [id for (id,) in sql(views.path, "SELECT checkpoint_id FROM checkpoints WHERE source = 'input' ORDER BY seq")]
    assert views.runs() == [(id, 4) for id in inputs]
    assert sql(views.path, "SELECT DISTINCT run_id FROM checkpoints ORDER BY 1") == [(id,) for id in sorted(inputs)]


def test_a_run_goes_on_across_failures_questions_breakpoints_and_updates(
    saver: SqliteSaver, views: Views, invoke: Any
) -> None:
    broken = [True]

    def fragile(state: State) -> State:
        if broken:
            raise RuntimeError("broken")
        return {"log": [interrupt("?")]}

    app = linear(saver, "one", "fragile", "two", "three", fragile=fragile)
    with pytest.raises(RuntimeError):
        invoke(app, {"log": []}, config())
    broken.clear()
    invoke(app, None, config())
    invoke(app, Command(resume="yes"), config(), interrupt_before=["three"])
    app.update_state(config(), {"log": ["by hand"]})
    invoke(app, None, config())
    assert views.status() == "completed"
    [(_, count)] = views.runs()
    assert count == len(list(saver.list(config()))) == 7


def test_who_names_a_run_in_the_metadata_is_believed(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    app = linear(saver, "one", "ask", ask=lambda state: {"log": [interrupt("?")]})
    invoke(app, {"log": []}, {**config(), "metadata": {"run_id": "order 7"}})
    invoke(app, Command(resume="x"), {**config(), "metadata": {"run_id": "order 7"}})
    assert views.runs() == [("order 7", 4)]
    saver.delete_for_runs(["order 7"])
    assert views.runs() == []
    assert list(saver.list(None)) == []


def test_the_same_named_run_in_two_threads_is_listed_once_for_each(saver: SqliteSaver, views: Views) -> None:
    for thread in ("a", "b"):
        put(saver, at=config(thread), run_id="nightly")
    assert views.runs("a") == views.runs("b") == [("nightly", 1)]


def test_a_fork_begins_a_new_run_and_leaves_the_old_one_as_it_was(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    app = linear(saver, "one", "two")
    invoke(app, {"log": ["in"]}, config())
    [(first, count)] = views.runs()
    before_two = next(each for each in app.get_state_history(config()) if each.next == ("two",))
    forked = app.update_state(before_two.config, {"log": ["otherwise"]})
    assert invoke(app, None, forked)["log"] == ["in", "one", "otherwise", "two"]
    assert views.runs() == [(first, count), (forked["configurable"]["checkpoint_id"], 2)]
    invoke(app, None, before_two.config)  # a replay is a fork too
    assert [number for _, number in views.runs()][:2] == [4, 2]
    assert len(views.runs()) == 3


def test_checkpoints_of_subgraphs_belong_to_the_run_of_their_root(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    innermost = linear(None, "deep")
    inner = linear(None, "middle", "innermost", innermost=innermost)
    app = linear(saver, "one", "inner", inner=inner)
    for _ in range(2):
        invoke(app, {"log": []}, config())
    runs = [run_id for run_id, _ in views.runs()]
    assert len(runs) == 2
    namespaces = sql(
        views.path,
        "SELECT checkpoint_ns, count(DISTINCT run_id), min(run_id) FROM checkpoints WHERE checkpoint_ns <> '' GROUP BY 1",
    )
    assert len(namespaces) == 4
    assert {count for _, count, _ in namespaces} == {1}
    assert {run_id for _, _, run_id in namespaces} == set(runs)
    assert sql(views.path, "SELECT count(*) FROM threads") == [(1,)]


def test_a_subgraph_that_remembers_belongs_to_each_run_in_turn(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    builder = StateGraph(State)
    builder.add_node("remember", say("turn"))
    builder.add_edge(START, "remember")
    app = linear(saver, "inner", inner=builder.compile(checkpointer=True))
    for _ in range(2):
        invoke(app, {"log": []}, config())
    runs = [run_id for run_id, _ in views.runs()]
    found = sql(views.path, "SELECT DISTINCT checkpoint_ns, run_id FROM checkpoints WHERE checkpoint_ns <> '' ORDER BY seq")
    assert found == [("inner", run_id) for run_id in runs]


def test_named_runs_are_inherited_by_subgraphs(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    app = linear(saver, "inner", inner=linear(None, "deep"))
    invoke(app, {"log": []}, {**config(), "metadata": {"run_id": "order 7"}})
    assert sql(views.path, "SELECT DISTINCT run_id FROM checkpoints") == [("order 7",)]


# --- next ---


def branching(saver: Any) -> Any:
    builder = StateGraph(State)
    for name in ("choose", "left", "right"):
        builder.add_node(name, say(name))
    builder.add_edge(START, "choose")
    builder.add_conditional_edges(
        "choose", lambda state: ["left", "right"] if "both" in state["log"] else "left", ["left", "right"]
    )
    return builder.compile(checkpointer=saver)


def sending(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node("plan", say("plan"))
    builder.add_node("work", say("work"))
    builder.add_node("sum", say("sum"))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("work", {"log": [str(each)]}) for each in range(3)], ["work"])
    builder.add_edge("work", "sum")
    return builder.compile(checkpointer=saver)


def joining(saver: Any) -> Any:
    builder = StateGraph(State)
    for name in ("fast", "slow one", "slow two", "join", "end"):
        builder.add_node(name, say(name))
    builder.add_edge(START, "fast")
    builder.add_edge(START, "slow one")
    builder.add_edge("slow one", "slow two")
    builder.add_edge(["fast", "slow two"], "join")
    builder.add_edge("join", "end")
    return builder.compile(checkpointer=saver)


def deferring(saver: Any) -> Any:
    builder = StateGraph(State)
    for name in ("a", "b", "c"):
        builder.add_node(name, say(name))
    builder.add_node("last", say("last"), defer=True)
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge("b", "c")
    builder.add_edge("a", "last")
    builder.add_edge("c", "last")
    return builder.compile(checkpointer=saver)


def commanding(saver: Any) -> Any:
    builder = StateGraph(State)
    builder.add_node(
        "boss",
        lambda state: Command(goto=["one", Send("two", {"log": []})], update={"log": ["boss"]}),
        destinations=("one", "two"),
    )
    builder.add_node("one", say("one"))
    builder.add_node("two", say("two"))
    builder.add_edge(START, "boss")
    return builder.compile(checkpointer=saver)


def nested(saver: Any) -> Any:
    return linear(saver, "one", "inner", "two", inner=linear(None, "deep", "deeper"))


def functional(saver: Any) -> Any:
    @task
    def double(number: int) -> int:
        return 2 * number

    @entrypoint(checkpointer=saver)
    def workflow(given: Any) -> Any:
        return sum(each.result() for each in [double(1), double(2)])

    return workflow


GRAPHS = [branching, sending, joining, deferring, commanding, nested, functional]


@pytest.mark.parametrize("make", GRAPHS)
def test_next_of_every_checkpoint_is_what_langgraph_says_is_next(
    saver: SqliteSaver, views: Views, invoke: Any, make: Any
) -> None:
    app = make(saver)
    if make is functional and "run" in invoke.__code__.co_names:
        pytest.skip("a synchronous workflow of the functional API has no async call")
    for given in ({"log": ["in"]}, {"log": ["both"]}):
        # "sync": with LangGraph's default a join's live set may be stored as a later step has changed it, by any saver
        invoke(app, given, config(), durability="sync")
    told = dict(sql(views.path, "SELECT checkpoint_id, next FROM checkpoints WHERE checkpoint_ns = ''"))
    history = list(app.get_state_history(config()))
    assert len(history) == len(told)
    for snapshot in history:
        # a checkpoint of the functional API does not tell how its workflow is called
        expected = {"__start__" if name == "workflow" else name for name in snapshot.next}
        assert sorted(json.loads(told[snapshot.config["configurable"]["checkpoint_id"]])) == sorted(expected), snapshot
    assert views.status() == "completed"


@pytest.mark.parametrize("make", [branching, sending, joining, deferring, commanding, nested])
def test_next_is_right_wherever_a_run_stops(saver: SqliteSaver, views: Views, make: Any) -> None:
    app = make(saver)
    app.invoke({"log": ["both"]}, config(), interrupt_before="*")
    for _ in range(10):
        snapshot = app.get_state(config())
        assert sorted(views.next()) == sorted(set(snapshot.next))
        assert views.status() == ("running" if snapshot.next else "completed")
        if not snapshot.next:
            break
        app.invoke(None, config(), interrupt_before="*")
    assert not snapshot.next


def test_an_interrupted_workflow_of_the_functional_api_says_so(saver: SqliteSaver, views: Views) -> None:
    @entrypoint(checkpointer=saver)
    def workflow(given: int) -> Any:
        return interrupt("?")

    workflow.invoke(1, config())
    assert views.status() == "interrupted"
    assert workflow.invoke(Command(resume="x"), config()) == "x"
    assert views.status() == "completed"


# --- for people ---

COLUMNS = {
    "checkpoints": [
        "run_id",
        "thread_id",
        "checkpoint_ns",
        "checkpoint_id",
        "parent_checkpoint_id",
        "step",
        "source",
        "next",
        "status",
        "created_at",
        "metadata",
    ],
    "runs": ["run_id", "thread_id", "status", "next", "step", "created_at", "updated_at", "checkpoints"],
    "threads": ["thread_id", "status", "next", "step", "run_id", "created_at", "updated_at", "checkpoints"],
}


@pytest.mark.parametrize("view", COLUMNS)
def test_the_views_keep_their_columns(saver: SqliteSaver, views: Views, view: str) -> None:
    put(saver, {"a": 1})
    names = [name for _, name, *_ in sql(views.path, f"PRAGMA table_info({view})")]
    assert set(COLUMNS[view]) <= set(names)
    assert len(sql(views.path, f"SELECT {', '.join(COLUMNS[view])} FROM {view}")) == 1


def test_what_the_readers_of_the_article_type_prints_what_they_expect(
    saver: SqliteSaver, views: Views, invoke: Any
) -> None:
    invoke(linear(saver, "one"), {"log": []}, {**config(), "metadata": {"run_id": "r"}})
    assert sql(views.path, "SELECT run_id, step, status FROM checkpoints ORDER BY step") == [
        ("r", -1, "running"),
        ("r", 0, "running"),
        ("r", 1, "completed"),
    ]


def test_times_are_when_it_happened(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    begun = datetime.now(timezone.utc)
    invoke(linear(saver, "one", "two"), {"log": []}, config())
    times = [datetime.fromisoformat(each) for (each,) in sql(views.path, "SELECT created_at FROM checkpoints ORDER BY seq")]
    assert times == sorted(times)
    assert begun <= times[0]
    assert times[-1] <= datetime.now(timezone.utc)
    [(created, updated)] = sql(views.path, "SELECT created_at, updated_at FROM threads")
    assert [datetime.fromisoformat(created), datetime.fromisoformat(updated)] == [times[0], times[-1]]
    assert sql(views.path, "SELECT created_at, updated_at FROM runs") == [(created, updated)]


def test_a_copied_thread_has_the_same_runs_and_states(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    app = linear(saver, "one", "ask", ask=lambda state: {"log": [interrupt("?")]})
    for _ in range(2):
        invoke(app, {"log": []}, config())
    saver.copy_thread("t", "copy")
    assert views.runs("copy") == views.runs("t")
    assert (views.status("copy"), views.next("copy")) == ("interrupted", ["ask"])
    invoke(app, Command(resume="x"), config("copy"))
    assert (views.status("copy"), views.status("t")) == ("completed", "interrupted")


def test_deleted_threads_are_in_no_view(saver: SqliteSaver, views: Views, invoke: Any) -> None:
    app = linear(saver, "one", "inner", inner=linear(None, "deep"))
    for thread in ("t", "u"):
        invoke(app, {"log": []}, config(thread))
    saver.delete_thread("t")
    for view in COLUMNS:
        assert {thread for (thread,) in sql(views.path, f"SELECT DISTINCT thread_id FROM {view}")} == {"u"}


def test_writes_without_a_checkpoint_make_no_thread(saver: SqliteSaver, views: Views) -> None:
    saver.put_writes(config("t", "", "not yet"), [("a", 1)], "task")
    assert sql(views.path, "SELECT * FROM threads") == []


def test_the_views_answer_while_a_run_is_writing(saver: SqliteSaver, views: Views) -> None:
    stop, errors = threading.Event(), []

    def work() -> None:
        try:
            while not stop.is_set():
                linear(saver, "one").invoke({"log": []}, config())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not sql(views.path, "SELECT 1 FROM threads"):
        pass
    for _ in range(30):
        for view in COLUMNS:
            assert sql(views.path, f"SELECT * FROM {view}")
    stop.set()
    thread.join(20)
    assert not errors


def test_step_may_be_anything_that_metadata_holds(saver: SqliteSaver, views: Views) -> None:
    for number, step in enumerate([3, -1, 2.5, "five", None, [1], 2**60]):
        saver.put(config(f"t{number}"), checkpoint(), {"step": step}, {})
    assert len(sql(views.path, "SELECT step FROM threads")) == 7
