"""Deleting, pruning, copying, sweeping: one transaction, nothing left over, and what stays loads as it was."""

import asyncio
import operator
import random
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from sqlfile import Tap, rows, sql, tap

from langgraph_sqlite_ckpt import CheckpointError, InvalidRequest, SqliteSaver

__all__ = ["tap"]  # a fixture


def sound(path: Path) -> None:
    """The package's own check finds nothing, and neither does one that knows nothing of the package."""
    with SqliteSaver(path, read_only=True) as reader:
        assert list(reader.verify()) == []
        list(reader.list(None))
    for table in ("checkpoint", "blob", "write"):
        assert sql(path, f"SELECT * FROM {table} WHERE namespace NOT IN (SELECT id FROM namespace)") == []
    assert sql(path, "SELECT id FROM blob WHERE base IS NOT NULL AND base NOT IN (SELECT id FROM blob)") == []
    assert (
        sql(path, "SELECT id FROM blob b WHERE version IS NULL AND NOT EXISTS (SELECT 1 FROM blob WHERE base = b.id)") == []
    )
    assert (
        sql(
            path,
            "SELECT id FROM namespace WHERE id NOT IN (SELECT namespace FROM checkpoint UNION SELECT namespace FROM write)",
        )
        == []
    )
    unknown = "SELECT checkpoint_id FROM checkpoint c WHERE parent_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM checkpoint p WHERE p.namespace = c.namespace AND p.checkpoint_id = c.parent_id)"
    assert sql(path, unknown) == []


def thread_of(face: Any, name: str, steps: int = 5, **metadata: Any) -> list[Any]:
    """A thread whose values lean on each other; the tuples as they were."""
    at = config(name)
    for step in range(steps):
        at = put(
            face,
            {"grows": [f"{name} line {each}" for each in range(40 * step + 40)], "n": step, "own": [name, step] * 50},
            parent=at,
            step=step,
            **metadata,
        )
        face.put_writes(at, [("grows", [f"write {step}"] * 30)], f"task {step}")
    sub = checkpoint({"s": ["sub"] * 100})
    face.put(
        config(name, "node:1"),
        sub,
        {"parents": {"": at["configurable"]["checkpoint_id"]}, "source": "loop", "step": 0},
        dict(sub["channel_versions"]),
    )
    return list(face.list({"configurable": {"thread_id": name}}))


def kept(face: Any, name: str) -> list[Any]:
    return list(face.list(config(name)))


# --- arguments ---


@pytest.mark.parametrize("bare", ["t", b"t"])
@pytest.mark.parametrize(
    "call",
    [
        lambda face, ids: face.prune(ids),
        lambda face, ids: face.delete_for_runs(ids),
        lambda face, ids: face.prune(ids, strategy="delete"),
    ],
)
def test_a_bare_string_where_a_list_of_ids_belongs_is_refused(face: Face, path: Path, call: Any, bare: Any) -> None:
    thread_of(face, "t", 2)
    before = rows(path)
    with pytest.raises(ValueError, match="list of ids") as caught:
        call(face, bare)
    assert isinstance(caught.value, InvalidRequest)
    assert rows(path) == before


@pytest.mark.parametrize("strategy", ["keep", "KEEP_LATEST", "", None, 1, "keep_last"])
def test_an_unknown_strategy_is_refused_and_the_known_ones_are_named(face: Face, path: Path, strategy: Any) -> None:
    thread_of(face, "t", 2)
    before = rows(path)
    with pytest.raises(ValueError, match='"keep_latest" or "delete"') as caught:
        face.prune(["t"], strategy=strategy)
    assert isinstance(caught.value, InvalidRequest)
    assert rows(path) == before


def test_what_is_not_there_can_be_deleted_and_pruned_but_not_copied(face: Face, path: Path) -> None:
    thread_of(face, "t", 2)
    before = rows(path)
    face.delete_thread("nobody")
    face.prune(["nobody"])
    face.prune([])
    face.prune(["nobody"], strategy="delete")
    face.delete_for_runs(["nobody's"])
    face.delete_for_runs([])
    for source, target in (("nobody", "copy"), ("t", "t"), ("nobody", "t"), ("nobody", "nobody")):
        with pytest.raises(InvalidRequest, match="nobody|exists"):
            face.copy_thread(source, target)
    assert rows(path) == before


def test_ids_may_come_from_any_iterable_and_in_any_number(face: Face, path: Path) -> None:
    for number in range(12):
        put(face, {"a": ["x"] * 200}, at=config(number), run_id=f"run {number}")
    face.prune(iter([0, 0, "1"]), strategy="delete")
    face.delete_for_runs(f"run {number}" for number in (2, 3))
    face.prune({"4", 5}, strategy="delete")
    assert len(list(face.list(None))) == 6
    face.prune([str(number) for number in range(40_000)], strategy="delete")
    assert list(face.list(None)) == []
    assert all(not found for found in rows(path).values())


# --- one transaction, nothing left over ---


@pytest.mark.parametrize(
    "call",
    [
        lambda saver: saver.delete_thread("a"),
        lambda saver: saver.prune(["a", "b", "c"]),
        lambda saver: saver.prune(["a", "b", "c"], strategy="delete"),
        lambda saver: saver.delete_for_runs(["run a", "run b"]),
        lambda saver: saver.copy_thread("a", "copy"),
    ],
)
def test_each_is_one_transaction(open_face: Any, path: Path, tap: Tap, call: Any) -> None:
    face = open_face()
    for name in ("a", "b", "c"):
        thread_of(face, name, run_id=f"run {name}")
    before = rows(path)
    tap.forget()
    call(face)
    assert tap.count("COMMIT") == 1
    assert rows(path) != before
    sound(path)


def test_deleting_leaves_no_row_behind_and_touches_nobody_else(face: Face, path: Path) -> None:
    thread_of(face, "stays")
    before = rows(path)
    thread_of(face, "goes")
    face.put_writes(config("goes", "", "not yet"), [("a", 1)], "task")
    face.delete_thread("goes")
    assert rows(path) == before
    assert kept(face, "goes") == []
    sound(path)


@pytest.mark.parametrize(
    "call",
    [
        lambda face: face.delete_thread("goes"),
        lambda face: face.prune(["goes"], strategy="delete"),
        lambda face: face.delete_for_runs(["run"]),
    ],
)
def test_a_deleted_thread_can_begin_again_under_its_name(face: Face, path: Path, call: Any) -> None:
    old = thread_of(face, "goes", run_id="run")
    call(face)
    assert list(face.list({"configurable": {"thread_id": "goes"}})) == []
    new = thread_of(face, "goes", 3)
    assert [item.checkpoint for item in new] != [item.checkpoint for item in old]
    assert len(kept(face, "goes")) == 3
    sound(path)


# --- prune ---


def same_state(one: Any, other: Any) -> bool:
    """But for the parent, which a pruned checkpoint has no more."""
    return bool(one._replace(parent_config=None) == other._replace(parent_config=None))


def test_prune_keeps_the_latest_of_each_thread_as_it_was(face: Face, path: Path) -> None:
    before = {name: thread_of(face, name) for name in ("a", "b", "other")}
    face.prune(["a", "b"])
    for name in ("a", "b"):
        [latest] = kept(face, name)
        [expected] = [item for item in before[name] if item.metadata["step"] == 4]
        assert same_state(latest, expected)
        assert latest.parent_config is None
        assert face.get_tuple(config(name)) == latest
    assert list(face.list({"configurable": {"thread_id": "other"}})) == before["other"]
    sound(path)


def test_a_pruned_thread_goes_on_and_its_values_stay_small(face: Face, path: Path) -> None:
    thread_of(face, "t", 8)
    face.prune(["t"])
    for step in range(8, 14):
        at = put(
            face,
            {"grows": [f"t line {each}" for each in range(40 * step + 40)], "n": step, "own": [step] * 50},
            parent=face.get_tuple(config("t")).config,
        )
        assert face.get_tuple(at).checkpoint["channel_values"]["grows"][-1] == f"t line {40 * step + 39}"
    stored, raw = sql(path, "SELECT total(length(data)), total(size) FROM blob WHERE channel = 'grows'")[0]
    assert stored * 5 < raw
    assert len(kept(face, "t")) == 7
    sound(path)


def test_pruning_twice_changes_nothing_more(face: Face, path: Path) -> None:
    thread_of(face, "t")
    face.prune(["t"])
    before = rows(path)
    face.prune(["t"])
    assert rows(path) == before


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


BEFORE_3_11 = pytest.mark.skipif(sys.version_info < (3, 11), reason="LangGraph cannot interrupt under ainvoke there")


@pytest.fixture(params=["invoke", pytest.param("ainvoke", marks=BEFORE_3_11)])
def invoke(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "invoke":
        return lambda app, *args, **kwargs: app.invoke(*args, **kwargs)
    return lambda app, *args, **kwargs: asyncio.run(app.ainvoke(*args, **kwargs))


def prune(saver: SqliteSaver, invoke: Any) -> None:
    asyncio.run(saver.aprune(["t"])) if "run" in invoke.__code__.co_names else saver.prune(["t"])


def test_a_pending_question_survives_pruning_with_the_finished_tasks_beside_it(
    saver: SqliteSaver, path: Path, invoke: Any
) -> None:
    ran: list[str] = []

    def beside(state: State) -> State:
        ran.append("beside")
        return {"log": ["beside"]}

    builder = StateGraph(State)
    builder.add_node("before", lambda state: {"log": ["before"]})
    builder.add_node("ask", lambda state: {"log": [interrupt("sure?")]})
    builder.add_node("beside", beside)
    builder.add_edge(START, "before")
    builder.add_edge("before", "ask")
    builder.add_edge("before", "beside")
    app = builder.compile(checkpointer=saver)
    invoke(app, {"log": ["in"]}, config())
    asked = app.get_state(config())
    prune(saver, invoke)
    assert len(kept(saver, "t")) == 1
    assert app.get_state(config()).interrupts == asked.interrupts
    assert app.get_state(config()).values == asked.values
    assert sorted(invoke(app, Command(resume="yes"), config())["log"]) == ["before", "beside", "in", "yes"]
    assert ran == ["beside"]
    sound(path)


def test_a_question_inside_a_subgraph_survives_pruning(saver: SqliteSaver, path: Path, invoke: Any) -> None:
    ran: list[str] = []
    inner = StateGraph(State)
    inner.add_node("deep", lambda state: ran.append("deep") or {"log": ["deep"]})
    inner.add_node("ask", lambda state: {"log": [interrupt("sure?")]})
    inner.add_edge(START, "deep")
    inner.add_edge("deep", "ask")
    builder = StateGraph(State)
    builder.add_node("first", inner_of(lambda state: {"log": ["first"]}))
    builder.add_node("inner", inner.compile())
    builder.add_edge(START, "first")
    builder.add_edge("first", "inner")
    app = builder.compile(checkpointer=saver)
    invoke(app, {"log": ["in"]}, config())
    prune(saver, invoke)
    namespaces = {item.config["configurable"]["checkpoint_ns"].split(":")[0] for item in saver.list(None)}
    assert namespaces == {"", "inner"}  # the finished call is gone
    assert len(list(saver.list(None))) == 2
    result = invoke(app, Command(resume="yes"), config())["log"]
    assert result[-1] == "yes"
    assert ran == ["deep"]
    sound(path)


def inner_of(node: Any) -> Any:
    """A subgraph of that one node."""
    builder = StateGraph(State)
    builder.add_node("only", node)
    builder.add_edge(START, "only")
    return builder.compile()


def test_a_subgraph_that_remembers_from_turn_to_turn_still_does_after_pruning(
    saver: SqliteSaver, path: Path, invoke: Any
) -> None:
    class Inner(TypedDict, total=False):
        turns: Annotated[list[str], operator.add]

    class Outer(TypedDict, total=False):
        seen: list[str]

    inner = StateGraph(Inner)
    inner.add_node("turn", lambda state: {"turns": [f"turn {len(state.get('turns', [])) + 1}"]})
    inner.add_edge(START, "turn")
    remembering = inner.compile(checkpointer=True)
    builder = StateGraph(Outer)
    builder.add_node("node", lambda state: {"seen": remembering.invoke({"turns": []})["turns"]})
    builder.add_edge(START, "node")
    app = builder.compile(checkpointer=saver)
    for _ in range(2):
        app.invoke({"seen": []}, config())
    prune(saver, invoke)
    assert app.invoke({"seen": []}, config())["seen"] == ["turn 1", "turn 2", "turn 3"]
    sound(path)


# --- delta channels ---


def joined(state: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(state or []), *(item for write in writes for item in write)]


def delta_app(saver: Any, snapshot_frequency: int) -> Any:
    class Delta(TypedDict, total=False):
        log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=snapshot_frequency)]
        other: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=3)]

    builder = StateGraph(Delta)
    builder.add_node("one", lambda state: {"log": [f"one {len(state['log'])}"]})
    builder.add_node("two", lambda state: {"log": [f"two {len(state['log'])}"], "other": ["o"]})
    builder.add_edge(START, "one")
    builder.add_edge("one", "two")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("snapshot_frequency", [1, 2, 4, 1000])
@pytest.mark.parametrize("what", ["prune", "delete the older runs", "copy and delete the source", "prune and copy"])
def test_the_state_of_delta_channels_is_the_same_before_and_after(
    saver: SqliteSaver, path: Path, snapshot_frequency: int, what: str
) -> None:
    app = delta_app(saver, snapshot_frequency)
    for turn in range(5):
        app.invoke({"log": [f"turn {turn}"]}, {**config(), "metadata": {"run_id": f"run {turn}"}})
    before = app.get_state(config()).values
    assert len(before["log"]) == 15
    at = config()
    if what == "delete the older runs":
        asyncio.run(saver.adelete_for_runs([f"run {turn}" for turn in range(4)]))
    if what.startswith("prune"):
        saver.prune(["t"])
        assert len(kept(saver, "t")) == 1
    if "copy" in what:
        saver.copy_thread("t", "copy")
        at = config("copy")
    if "delete the source" in what:
        saver.delete_thread("t")
    for each in (saver, SqliteSaver(path, read_only=True)):
        assert delta_app(each, snapshot_frequency).get_state(at).values == before
        if each is not saver:
            each.close()
    after = app.invoke({"log": ["more"]}, at)
    assert after["log"] == [*before["log"], "more", "one 16", "two 17"]
    assert len(after["other"]) == 6
    for snapshot in app.get_state_history(at):
        assert snapshot.values.get("log", [])[:1] in ([], ["turn 0"])  # nothing that stays is hollow
    sound(path)


def test_pruning_a_delta_thread_still_drops_what_nobody_needs(saver: SqliteSaver, path: Path) -> None:
    app = delta_app(saver, 2)
    for turn in range(10):
        app.invoke({"log": [f"turn {turn}"]}, config())
    before = len(kept(saver, "t"))
    saver.prune(["t"])
    assert len(kept(saver, "t")) == 1
    [[there]] = sql(path, "SELECT count(*) FROM checkpoint")
    assert there < before / 3


# --- runs ---


def test_the_checkpoints_of_runs_go_and_the_others_load_as_they_were(face: Face, path: Path) -> None:
    at, expected = config(), {}
    for number in range(9):
        at = put(
            face,
            {"grows": [f"line {each}" for each in range(50 * number + 50)], "n": number},
            parent=at,
            run_id=f"run {number // 3}",
        )
        face.put_writes(at, [("n", number)], "task")
        expected[number] = face.get_tuple(at)
    thread_of(face, "other", 2, run_id="run 1")
    face.delete_for_runs(["run 1"])
    found = kept(face, "t")
    assert [item.checkpoint["channel_values"]["n"] for item in found] == [8, 7, 6, 2, 1, 0]
    assert all(same_state(item, expected[item.checkpoint["channel_values"]["n"]]) for item in found)
    assert found[2].parent_config is None
    assert kept(face, "other") == []
    face.delete_for_runs(["run 2", "run 0", "run 0"])
    assert kept(face, "t") == []
    sound(path)


def test_of_a_fork_either_branch_goes_without_the_other(face: Face, path: Path) -> None:
    for goes, stays in (("old", "new"), ("new", "old")):
        thread = f"without {goes}"
        root = put(face, {"grows": [f"line {each}" for each in range(100)]}, at=config(thread), run_id="root")
        tips = {}
        for branch in ("old", "new"):
            at = root
            for step in range(3):
                at = put(
                    face,
                    {"grows": [f"line {each}" for each in range(100)] + [f"{branch} {each}" for each in range(20 * step)]},
                    parent=at,
                    run_id=f"{branch} {thread}",
                )
            tips[branch] = face.get_tuple(at)
        face.delete_for_runs([f"{goes} {thread}"])
        assert len(kept(face, thread)) == 4
        assert face.get_tuple(tips[stays].config) == tips[stays]
        assert face.get_tuple(tips[goes].config) is None
    sound(path)


# --- copies ---


def test_a_copy_is_the_whole_thread_in_its_order(face: Face, path: Path) -> None:
    original = thread_of(face, "t", odd={1, 2})
    face.copy_thread("t", "copy")
    copied = list(face.list({"configurable": {"thread_id": "copy"}}))
    assert len(copied) == len(original) == 6
    for one, other in zip(original, copied, strict=True):
        assert one.checkpoint == other.checkpoint
        assert one.metadata == other.metadata
        assert one.pending_writes == other.pending_writes
        assert other.config["configurable"] == {**one.config["configurable"], "thread_id": "copy"}
        assert (other.parent_config is None) == (one.parent_config is None)
    assert list(face.list({"configurable": {"thread_id": "t"}})) == original
    sound(path)


def test_a_copy_and_its_source_go_on_independently(face: Face, path: Path) -> None:
    original = thread_of(face, "t")
    face.copy_thread("t", "copy")
    put(face, {"grows": ["the copy's"] * 100}, parent=face.get_tuple(config("copy")).config)
    face.put_writes(original[1].config, [("grows", "late")], "another task")
    assert (
        face.get_tuple(config("copy", "", original[1].config["configurable"]["checkpoint_id"])).pending_writes
        == original[1].pending_writes
    )
    copied = kept(face, "copy")
    face.prune(["t"])
    assert kept(face, "copy") == copied
    face.delete_thread("t")
    assert kept(face, "copy") == copied
    assert len(copied) == 6
    face.copy_thread("copy", "t")
    face.delete_thread("copy")
    assert [item.checkpoint for item in kept(face, "t")] == [item.checkpoint for item in copied]
    sound(path)


def test_a_copy_of_an_interrupted_thread_can_be_answered_otherwise(saver: SqliteSaver, invoke: Any) -> None:
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: {"log": [interrupt("?")]})
    builder.add_edge(START, "ask")
    app = builder.compile(checkpointer=saver)
    invoke(app, {"log": ["in"]}, config())
    saver.copy_thread("t", "copy")
    assert invoke(app, Command(resume="no"), config("copy"))["log"] == ["in", "no"]
    assert invoke(app, Command(resume="yes"), config())["log"] == ["in", "yes"]


# --- anything, in any order ---


@pytest.mark.parametrize("seed", range(3))
def test_after_any_sequence_of_deletes_prunes_and_copies_everything_that_stays_loads_as_it_was(
    open_face: Any, path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    face = open_face(synchronous="normal", keep_last=[None, None, 4][seed])
    values: dict[str, Any] = {}
    for number in range(110):
        name = rng.choice("abc")
        known = [item.config for item in kept(face.saver, name)]
        action = rng.random()
        try:
            if action < 0.75:
                parent = rng.choice(known) if known and rng.random() < 0.3 else known[0] if known else config(name)
                grown = values[parent["configurable"]["checkpoint_id"]]["grows"] if known else []
                made = checkpoint(
                    {
                        "grows": [
                            *grown[rng.choice([0, 0, 0, 5]) :],
                            *[f"{number} {each}" for each in range(rng.randint(1, 60))],
                        ],
                        "own": [number] * 99,
                        "n": number,
                    }
                )
                values[made["id"]] = made["channel_values"]
                face.put(parent, made, {"run_id": f"run {number // 10}"}, dict(made["channel_versions"]))
            elif action < 0.82:
                face.prune([name, rng.choice("abc")])
            elif action < 0.9:
                face.delete_for_runs([f"run {rng.randint(0, 11)}" for _ in range(2)])
            elif action < 0.95:
                face.delete_thread(name)
            else:
                face.copy_thread(name, rng.choice("abc"))
        except CheckpointError as error:
            assert isinstance(error, InvalidRequest)
    with SqliteSaver(path, read_only=True) as fresh:
        found = list(fresh.list(None))
        assert found
        for item in found:
            assert item.checkpoint["channel_values"] == values[item.config["configurable"]["checkpoint_id"]]
            assert fresh.get_tuple(item.config) == item
            assert item.parent_config is None or fresh.get_tuple(item.parent_config) is not None
        if seed == 2:
            assert all(len(kept(fresh, name)) <= 4 for name in "abc")
    assert list(face.list(None)) == found
    sound(path)


# --- space ---


def test_space_of_deleted_threads_goes_back_to_the_disk(face: Face, path: Path) -> None:
    rng = random.Random(1)
    for number in range(20):
        put(face, {"noise": rng.randbytes(200_000)}, at=config(number))
    full = path.stat().st_size + path.with_name("agent.db-wal").stat().st_size
    for number in range(19):
        face.delete_thread(number)
    face.compact()
    small = path.stat().st_size + path.with_name("agent.db-wal").stat().st_size
    assert small < full / 5
    assert face.get_tuple(config(19)) is not None
    sound(path)


def test_what_fills_the_file_can_be_seen_by_thread_and_by_channel(face: Face) -> None:
    rng = random.Random(2)
    put(face, {"big": rng.randbytes(300_000), "small": ["x"] * 100}, at=config("large thread"))
    put(face, {"small": ["x"] * 100}, at=config("small thread"))
    stats = face.stats()
    assert (stats.threads, stats.checkpoints) == (2, 2)
    assert [size.name for size in stats.threads_by_size] == ["large thread", "small thread"]
    assert stats.channels_by_size[0].name == "big"
    assert stats.channels_by_size[0].stored >= 300_000
    assert stats.file_bytes + stats.wal_bytes > 300_000


def test_sweep_counts_first_takes_idle_threads_and_leaves_those_that_wait_for_a_person(
    saver: SqliteSaver, path: Path, invoke: Any
) -> None:
    builder = StateGraph(State)
    builder.add_node("ask", lambda state: {"log": [interrupt("?") if state["log"] == ["ask"] else "done"]})
    builder.add_edge(START, "ask")
    app = builder.compile(checkpointer=saver)
    for number in range(3):
        invoke(app, {"log": ["go"]}, config(f"done {number}"))
    invoke(app, {"log": ["ask"]}, config("waits"))
    before = rows(path)
    assert saver.sweep(idle_for=timedelta(hours=1)).threads == 0
    promised = saver.sweep(idle_for=timedelta(0), dry_run=True)
    assert rows(path) == before
    assert promised.threads == 3
    assert saver.sweep(idle_for=timedelta(0)) == promised
    assert {item.config["configurable"]["thread_id"] for item in saver.list(None)} == {"waits"}
    assert invoke(app, Command(resume="yes"), config("waits"))["log"] == ["ask", "yes"]
    assert saver.sweep(keep_last=1).checkpoints >= 2
    assert app.get_state(config("waits")).values["log"] == ["ask", "yes"]
    sound(path)
