"""Order is the order of commits, whatever the clock and the ids say; and what belongs to a checkpoint stays with it."""

import asyncio
import operator
import random
import threading
import time
import uuid
from typing import Annotated, Any, TypedDict

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP, writes_sort_key
from langgraph.checkpoint.base import id as ids
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_sqlite_ckpt import CheckpointError, InvalidRequest, SqliteSaver


def put_as(face: Any, id: str, *, parent: Any = None, at: Any = None, **metadata: Any) -> Any:
    return face.put(parent or at or config(), checkpoint({"id": id}, id=id), {"source": "loop"} | metadata, {})


def listed(face: Any, *args: Any, **kwargs: Any) -> list[str]:
    return [item.config["configurable"]["checkpoint_id"] for item in face.list(*args, **kwargs)]


# --- latest and history ---


@pytest.mark.parametrize(
    "made",
    [
        ["1", "2", "10", "9", "100"],
        ["b", "a", "c"],
        ["1f0f0000-0000-6000-8000-000000000000", "1f0e0000-0000-6000-8000-000000000000"],
        [str(uuid.UUID(int=random.Random(number).getrandbits(128))) for number in range(12)],
        ["é", "z", "Z", "日本", "🎉", " ", "-1", "'"],
    ],
)
def test_the_latest_is_the_last_commit_and_history_is_the_order_of_commits_whatever_the_ids(
    face: Face, made: list[str]
) -> None:
    at = config()
    for number, id in enumerate(made):
        at = put_as(face, id, parent=at)
        assert face.get_tuple(config()).config == at
        assert listed(face, config()) == made[number::-1]
    assert listed(face, None) == made[::-1]


def test_a_clock_that_steps_back_an_hour_between_two_turns_loses_no_turn(
    saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    builder = StateGraph(State)
    builder.add_node("agent", lambda state: {"log": [f"answer {len(state['log'])}"]})
    builder.add_edge(START, "agent")
    builder.add_edge("agent", END)
    app = builder.compile(checkpointer=saver)
    real, hour = time.time_ns, 3600 * 10**9
    for turn, hours in enumerate((0, 1, -1, 2, -2)):
        monkeypatch.setattr(time, "time_ns", lambda hours=hours: real() + hours * hour)
        monkeypatch.setattr(ids, "_last_v6_timestamp", None)  # another process, another host
        if turn % 2:
            asyncio.run(app.ainvoke({"log": [f"question {turn}"]}, config()))
        else:
            app.invoke({"log": [f"question {turn}"]}, config())
    history = listed(saver, config())
    assert history != sorted(history, reverse=True)  # the ids do tell another order
    assert app.get_state(config()).values["log"] == [
        word for turn in range(5) for word in (f"question {turn}", f"answer {2 * turn + 1}")
    ]
    assert len(history) == 15


def test_a_checkpoint_that_is_put_again_keeps_its_place_and_its_writes_and_has_the_new_content(face: Face) -> None:
    for id in ("c", "a", "b"):
        put_as(face, id)
    face.put_writes(config("t", "", "a"), [("x", 1), ("y", 2)], "task")
    again = checkpoint({"id": "new content"}, id="a")
    face.put(config("t", "", "c"), again, {"source": "update", "step": 7}, {})
    assert listed(face, config()) == ["b", "a", "c"]
    found = face.get_tuple(config("t", "", "a"))
    assert found.checkpoint == again
    assert found.metadata == {"source": "update", "step": 7}
    assert found.parent_config == config("t", "", "c")
    assert found.pending_writes == [("task", "x", 1), ("task", "y", 2)]


def test_the_same_id_in_two_namespaces_and_two_threads_is_four_checkpoints(face: Face) -> None:
    places = [(thread, namespace) for thread in ("t", "u") for namespace in ("", "sub")]
    for thread, namespace in places:
        face.put(config(thread, namespace), checkpoint({"at": [thread, namespace] * 100}, id="1"), {}, {})
        face.put_writes(config(thread, namespace, "1"), [("x", [thread, namespace])], "task")
    for thread, namespace in places:
        found = face.get_tuple(config(thread, namespace))
        assert found.checkpoint["channel_values"] == {"at": [thread, namespace] * 100}
        assert found.pending_writes == [("task", "x", [thread, namespace])]
    face.delete_thread("t")
    assert listed(face, None) == ["1", "1"]


@pytest.mark.parametrize("thread_id", [1, 2.5, uuid.UUID(int=7), True])
def test_a_thread_id_may_be_any_object_with_a_sensible_str(face: Face, thread_id: Any) -> None:
    stored = put(face, {"a": 1}, at={"configurable": {"thread_id": thread_id}})
    assert stored == config(str(thread_id), "", stored["configurable"]["checkpoint_id"])
    assert face.get_tuple({"configurable": {"thread_id": thread_id}}) == face.get_tuple(config(str(thread_id)))
    assert len(list(face.list({"configurable": {"thread_id": thread_id}}))) == 1
    face.delete_thread(thread_id)
    assert face.get_tuple(config(thread_id)) is None


# --- writes ---


def test_writes_that_arrive_before_their_checkpoint_are_there_when_it_arrives(face: Face) -> None:
    face.put_writes(config("t", "", "1"), [("a", "early")], "task 1")
    assert face.get_tuple(config("t", "", "1")) is None
    assert list(face.list(config())) == []
    put_as(face, "1")
    face.put_writes(config("t", "", "1"), [("a", "late")], "task 2")
    assert face.get_tuple(config()).pending_writes == [("task 1", "a", "early"), ("task 2", "a", "late")]


def test_special_channels_replace_and_ordinary_ones_keep_the_first_row_by_row(face: Face) -> None:
    at = put_as(face, "1")
    face.put_writes(at, [("__error__", "first try")], "task")
    face.put_writes(at, [("__error__", "second try")], "task")
    assert face.get_tuple(at).pending_writes == [("task", "__error__", "second try")]
    face.put_writes(at, [("a", "first"), ("b", "first")], "task")
    face.put_writes(at, [("a", "second"), ("b", "second"), ("c", "new")], "task")
    assert face.get_tuple(at).pending_writes == [
        ("task", "__error__", "second try"),
        ("task", "a", "first"),
        ("task", "b", "first"),
        ("task", "c", "new"),
    ]


def test_a_task_that_failed_twice_and_was_tried_again_leaves_what_inmemorysaver_has(saver: SqliteSaver) -> None:
    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    def pending(saver: Any) -> Any:
        tries = []

        def flaky(state: State) -> State:
            tries.append(1)
            if len(tries) < 3:
                raise RuntimeError(f"try {len(tries)}")
            return {"log": ["done"]}

        builder = StateGraph(State)
        builder.add_node("flaky", flaky)
        builder.add_edge(START, "flaky")
        app = builder.compile(checkpointer=saver)
        for given in ({"log": ["in"]}, None):
            with pytest.raises(RuntimeError):
                app.invoke(given, config())
        assert app.invoke(None, config())["log"] == ["in", "done"]
        return [[(channel, value) for _, channel, value in item.pending_writes] for item in saver.list(config())]

    found = pending(saver)
    assert found == pending(InMemorySaver())
    assert [write for writes in found for write in writes if write[0] == "__error__"] == [
        ("__error__", "RuntimeError('try 2')")
    ]


@pytest.mark.parametrize("face_of_run", ["invoke", "ainvoke"])
def test_after_a_failure_only_the_unfinished_parallel_tasks_run_again(saver: SqliteSaver, face_of_run: str) -> None:
    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    ran: list[str] = []

    def others_are_stored() -> bool:
        stored = saver.get_tuple(config())  # LangGraph may still be at the input
        return stored is not None and [channel for _, channel, _ in stored.pending_writes].count("log") == 2

    def slow_then_fails(state: State) -> State:
        ran.append("fails")
        if ran.count("fails") == 1:
            deadline = time.monotonic() + 20
            while not others_are_stored() and time.monotonic() < deadline:
                time.sleep(0.01)
            raise RuntimeError("killed")
        return {"log": ["fails"]}

    def finishes(name: str) -> Any:
        def node(state: State) -> State:
            ran.append(name)
            return {"log": [name]}

        return node

    builder = StateGraph(State)
    for name, node in (("fails", slow_then_fails), ("one", finishes("one")), ("last", finishes("last"))):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    app = builder.compile(checkpointer=saver)
    invoke = app.invoke if face_of_run == "invoke" else lambda *args: asyncio.run(app.ainvoke(*args))
    with pytest.raises(RuntimeError, match="killed"):
        invoke({"log": []}, config())
    assert sorted(invoke(None, config())["log"]) == ["fails", "last", "one"]
    assert sorted(ran) == ["fails", "fails", "last", "one"]


def test_pending_writes_come_in_the_order_in_which_langgraph_applies_them(face: Face) -> None:
    rng = random.Random(1)
    calls = [
        (f"task {rng.random()}", path)
        for path in [
            "~__pregel_pull, b",
            "~__pregel_pull, a",
            "~__pregel_push, 0000000010",
            "~__pregel_push, 0000000002",
            "",
            "é",
            "Z",
        ]
        for _ in range(3)
    ]
    rng.shuffle(calls)
    at, expected = put_as(face, "1"), []
    for task, path in calls:
        channels = ["c", "__interrupt__", "a", "__error__", "b"]
        face.put_writes(at, [(channel, [task, channel]) for channel in channels], task, path)
        expected += [
            (writes_sort_key(path, task, WRITES_IDX_MAP.get(channel, idx)), (task, channel, [task, channel]))
            for idx, channel in enumerate(channels)
        ]
    in_order = [write for _, write in sorted(expected)]
    assert face.get_tuple(at).pending_writes == in_order
    assert next(iter(face.list(config()))).pending_writes == in_order


def test_any_sequence_of_put_writes_leaves_what_inmemorysaver_has(face: Face) -> None:
    rng = random.Random(2)
    memory = InMemorySaver()
    for saver in (face, memory):
        saver.put(config(), checkpoint(id="1"), {}, {})
    channels = ["a", "b", "c", *WRITES_IDX_MAP]
    for number in range(150):
        writes = [(rng.choice(channels), [number, at]) for at in range(rng.randint(0, 4))]
        call = (config("t", "", "1"), writes, rng.choice(["t1", "t2", "t3"]), rng.choice(["", "p1", "p2"]))
        face.put_writes(*call)
        memory.put_writes(*call)
    assert face.get_tuple(config()).pending_writes == memory.get_tuple(config()).pending_writes


def test_no_writes_at_all_are_fine_and_need_a_checkpoint_id_all_the_same(face: Face) -> None:
    face.put_writes(config("t", "", "1"), [], "task")
    with pytest.raises(InvalidRequest, match="checkpoint_id"):
        face.put_writes(config(), [], "task")
    with pytest.raises(InvalidRequest, match="checkpoint_id"):
        face.put_writes(config(), [("a", 1)], "task")


# --- list ---


@pytest.fixture
def history(face: Face) -> Face:
    """Ten checkpoints whose ids sort otherwise, and another thread and namespace."""
    for number in (9, 3, 7, 1, 5, 8, 2, 6, 4, 0):
        put_as(face, str(number), step=number, at=config())
        put_as(face, str(number), at=config("other"))
        put_as(face, str(number), at=config("t", "sub"))
    return face


def test_list_gives_the_same_tuple_as_get_tuple_for_every_checkpoint(history: Face) -> None:
    for item in history.list(config()):
        history.put_writes(item.config, [("a", [1] * 200), ("__error__", "e")], "task", "path")
    items = list(history.list(None))
    assert len(items) == 30
    assert all(item == history.get_tuple(item.config) for item in items)
    assert sum(bool(item.pending_writes) for item in items) == 10


def test_list_is_restricted_as_far_as_its_config_names_something(history: Face) -> None:
    assert listed(history, config()) == list("0462851739")
    assert len(listed(history, {"configurable": {"thread_id": "t"}})) == 20
    assert len(listed(history, {"configurable": {"checkpoint_ns": "sub"}})) == 10
    assert len(listed(history, {"configurable": {}})) == 30
    assert listed(history, config("t", "", "5")) == ["5"]
    assert len(listed(history, {"configurable": {"checkpoint_id": "5"}})) == 3
    assert listed(history, config("t", "", "no such id")) == []
    assert listed(history, config("nobody")) == []


def test_before_means_committed_earlier_than_that_checkpoint(history: Face) -> None:
    assert listed(history, config(), before=config("t", "", "5")) == list("1739")
    assert listed(history, config(), before=config("t", "", "9")) == []
    assert listed(history, config(), before=config("t", "", "0")) == list("462851739")
    assert listed(history, config(), before=config("t", "", "5"), limit=2) == list("17")


def test_before_with_an_id_of_another_namespace_compares_ids_as_langgraphs_replay_needs(face: Face) -> None:
    for id in ("10", "30", "50"):
        put_as(face, id, at=config("t", "child"))
    put_as(face, "40", at=config())
    assert listed(face, config("t", "child"), before=config("t", "", "40"), limit=1) == ["30"]
    assert listed(face, config("t", "child"), before=config("t", "", "40")) == ["30", "10"]
    assert listed(face, config("t", "child"), before=config("t", "", "05")) == []


def test_before_without_an_id_is_no_bound(history: Face) -> None:
    assert listed(history, config(), before=config()) == listed(history, config())
    assert listed(history, config(), before={"configurable": {}}) == listed(history, config())


def test_before_with_an_id_that_nobody_stored_compares_ids(history: Face) -> None:
    assert sorted(listed(history, config(), before=config("t", "", "45"))) == ["0", "1", "2", "3", "4"]


def test_limit_is_at_most_so_many_and_zero_is_none(history: Face) -> None:
    for limit in (0, 1, 7, 8, 9, 10, 11, 1000):
        assert listed(history, config(), limit=limit) == list("0462851739")[:limit]
        assert len(listed(history, None, limit=limit)) == min(limit, 30)
    assert listed(history, config(), limit=None) == list("0462851739")


def test_a_negative_limit_is_refused(history: Face) -> None:
    for limit in (-1, -(10**30)):
        with pytest.raises(ValueError, match="limit") as caught:
            list(history.list(config(), limit=limit))
        assert isinstance(caught.value, CheckpointError)


def test_a_limit_larger_than_any_file_is_no_error(history: Face) -> None:
    assert len(listed(history, config(), limit=10**30)) == 10


def test_filter_before_and_limit_work_together(history: Face) -> None:
    for number in range(200):
        put_as(history, f"x{number}", kind="even" if number % 2 == 0 else "odd")
    found = listed(history, config(), filter={"kind": "even"}, before=config("t", "", "x100"), limit=30)
    assert found == [f"x{number}" for number in range(98, 38, -2)]
    assert listed(history, config(), filter={"kind": "even"}, limit=3) == ["x198", "x196", "x194"]
    assert listed(history, config(), filter={}) == listed(history, config())


@pytest.mark.parametrize(
    "bad", [{}, {"configurable": None}, {"configurable": {"thread_id": None}}, {"configurable": "t"}, "t", 5]
)
def test_a_config_that_names_no_thread_is_refused_where_one_is_needed(face: Face, bad: Any) -> None:
    for call in (
        lambda: face.get_tuple(bad),
        lambda: face.put(bad, checkpoint(), {}, {}),
        lambda: face.put_writes(bad, [], "t"),
        lambda: face.get_delta_channel_history(config=bad, channels=["a"]),
    ):
        with pytest.raises(InvalidRequest, match="config"):
            call()


# --- two runs on one thread ---


def test_two_runs_that_interleave_on_one_thread_lose_nothing(saver: SqliteSaver) -> None:
    class State(TypedDict):
        log: Annotated[list[str], operator.add]

    meet = threading.Barrier(2)

    def node(state: State) -> State:
        meet.wait(20)
        return {"log": [f"saw {state['log'][-1]}"]}

    builder = StateGraph(State)
    builder.add_node("first", node)
    builder.add_node("second", node)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    app = builder.compile(checkpointer=saver)
    results: list[Any] = []

    def run(name: str) -> None:
        results.append(app.invoke({"log": [name]}, config()))

    threads = [threading.Thread(target=run, args=(name,)) for name in ("run a", "run b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    stored = [snapshot.values.get("log") for snapshot in app.get_state_history(config())]
    assert len(results) == 2
    assert all(result["log"] in stored for result in results)
    assert len(stored) == 8  # input, first, second, and the step before each
    assert {log[-1] for log in (result["log"] for result in results)} == {"saw saw run a", "saw saw run b"}


# --- forks and subgraphs ---


def test_a_fork_counts_only_its_own_ancestors(face: Face) -> None:
    root = face.put(config(), checkpoint({"a": ["seed"]}, {"a": "1"}, id="root"), {}, {"a": "1"})
    old = put_as(face, "old", parent=root)
    face.put_writes(root, [("a", "for both")], "task r")
    face.put_writes(old, [("a", "for the old branch")], "task o")
    put_as(face, "old tip", parent=old)
    new = put_as(face, "new", parent=root)
    face.put_writes(new, [("a", "for the new branch")], "task n")
    put_as(face, "new tip", parent=new)
    histories = {
        id: face.get_delta_channel_history(config=config("t", "", id), channels=["a", "b"])
        for id in ("old tip", "new tip", "root")
    }
    assert histories["old tip"]["a"] == {
        "writes": [("task r", "a", "for both"), ("task o", "a", "for the old branch")],
        "seed": ["seed"],
    }
    assert histories["new tip"]["a"] == {
        "writes": [("task r", "a", "for both"), ("task n", "a", "for the new branch")],
        "seed": ["seed"],
    }
    assert histories["root"]["a"] == {"writes": []}
    assert histories["new tip"]["b"] == {"writes": []}


def test_delta_history_is_what_inmemorysaver_has_on_random_trees(face: Face) -> None:
    rng = random.Random(5)
    memory = InMemorySaver()
    channels = ["a", "b", "c"]
    made: list[str] = []
    for number in range(60):
        parent = config("t", "", rng.choice(made)) if made and rng.random() < 0.9 else config()
        stored = {channel: [number, channel] * 60 for channel in channels if rng.random() < 0.15}
        made_now = checkpoint(stored, {channel: f"{number:032}.0" for channel in stored}, id=f"{number:04}")
        made.append(made_now["id"])
        writes = [(channel, [number, channel, "write"]) for channel in channels if rng.random() < 0.6]
        for saver in (face, memory):
            saver.put(parent, made_now, {}, dict(made_now["channel_versions"]))
            saver.put_writes(config("t", "", made_now["id"]), writes, f"task {number}", "path")
    for id in made:
        asked = {"config": config("t", "", id), "channels": channels}
        assert face.get_delta_channel_history(**asked) == memory.get_delta_channel_history(**asked)


def joined(state: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(state or []), *(item for write in writes for item in write)]


def test_a_forked_graph_with_a_delta_channel_does_not_replay_the_abandoned_branch(saver: SqliteSaver) -> None:
    class State(TypedDict):
        log: Annotated[list[str], DeltaChannel(joined)]

    builder = StateGraph(State)
    builder.add_node("one", lambda state: {"log": ["one"]})
    builder.add_node("two", lambda state: {"log": [f"two after {len(state['log'])}"]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    app = builder.compile(checkpointer=saver)
    app.invoke({"log": ["in"]}, config())
    app.invoke({"log": ["abandoned"]}, config())
    before_two = next(
        each for each in app.get_state_history(config()) if each.next == ("two",) and each.values["log"] == ["in", "one"]
    )
    forked = app.update_state(before_two.config, {"log": ["by hand"]}, as_node="one")
    assert app.invoke(None, forked)["log"] == ["in", "one", "by hand", "two after 3"]
    assert app.get_state(config()).values["log"] == ["in", "one", "by hand", "two after 3"]


def test_replaying_a_parent_loads_the_state_that_its_subgraph_had_then(saver: SqliteSaver) -> None:
    class Inner(TypedDict):
        turns: Annotated[list[str], operator.add]

    class Outer(TypedDict):
        turns: Annotated[list[str], operator.add]
        question: str

    inner = StateGraph(Inner)
    inner.add_node("remember", lambda state: {"turns": [f"turn {len(state['turns']) + 1}"]})
    inner.add_node("ask", lambda state: {"turns": [interrupt("ok?")]})
    inner.add_edge(START, "remember")
    inner.add_edge("remember", "ask")
    outer = StateGraph(Outer)
    remembering = inner.compile(checkpointer=True)
    outer.add_node("inner", lambda state: {"turns": [str(len(remembering.invoke({"turns": []})["turns"]))]})
    outer.add_edge(START, "inner")
    app = outer.compile(checkpointer=saver)
    for turn in range(3):
        app.invoke({"question": f"q{turn}", "turns": []}, config())
        app.invoke(Command(resume=f"yes {turn}"), config())
    assert app.get_state(config()).values["turns"] == ["2", "4", "6"]
    second = next(
        each for each in app.get_state_history(config()) if each.next == ("inner",) and each.values["question"] == "q1"
    )
    replayed = app.invoke(None, second.config)
    assert replayed["__interrupt__"][0].value == "ok?"
    assert app.invoke(Command(resume="again"), config())["turns"] == ["2", "4"]
