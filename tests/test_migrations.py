"""States written by older code: read, gone on with, kept, and rewritten by code whose states have another shape."""

import operator
import pickle
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from sqlfile import Tap, rows, sql, tap

from langgraph_sqlite_ckpt import (
    InvalidRequest,
    MigrationError,
    NewerStateError,
    SqliteSaver,
    rename_channel,
    rename_node,
)

__all__ = ["tap"]  # a fixture

Open = Callable[..., Face]
LONG = ["a long value that goes into a row of its own " * 20]


def shout(values: dict[str, Any]) -> dict[str, Any]:
    return {name: [word.upper() for word in value] if name == "notes" else value for name, value in values.items()}


def add_tool_calls(values: dict[str, Any]) -> dict[str, Any]:
    return values | {"tool_calls": [], "version": 2}


def fails(values: dict[str, Any]) -> dict[str, Any]:
    values["notes"].clear()
    raise KeyError("tool_calls")


def written(open_face: Open, **values: Any) -> tuple[Face, Any]:
    """A checkpoint of older code's, and who wrote it."""
    old = open_face()
    return old, put(old, values)


def child(face: Face, parent: Any, *, changed: dict[str, Any] | None = None) -> Any:
    """The next step as LangGraph puts it: what it did not touch has the value and the version that were read."""
    read = face.get_tuple(parent).checkpoint
    made = checkpoint()
    new_versions = {
        name: face.saver.get_next_version(max(read["channel_versions"].values()), None) for name in changed or {}
    }
    made["channel_values"] = read["channel_values"] | (changed or {})
    made["channel_versions"] = read["channel_versions"] | new_versions
    made["versions_seen"] = read["versions_seen"]
    return face.put(parent, made, {"source": "loop", "step": 1, "parents": {}}, new_versions)


def values_at(face: Face, at: Any) -> dict[str, Any]:
    found: dict[str, Any] = face.get_tuple(at).checkpoint["channel_values"]
    return found


# --- reading ---


def test_every_read_gives_the_state_as_the_functions_make_it_and_writes_nothing(open_face: Open, path: Path) -> None:
    old, first = written(open_face, notes=["a"], count=1)
    put(old, {"other": ["x"]}, parent=first)
    before = rows(path)
    new = open_face(migrations=[shout, add_tool_calls])
    wanted = {"notes": ["A"], "count": 1, "tool_calls": [], "version": 2}
    assert values_at(new, first) == wanted
    assert [item.checkpoint["channel_values"] for item in new.list(config())][1] == wanted
    assert new.get_delta_channel_history(config=config(), channels=["notes"])["notes"] == {"writes": [], "seed": ["A"]}
    assert rows(path) == before


def test_functions_are_applied_oldest_first_from_the_version_that_wrote_the_state(open_face: Open) -> None:
    steps = [lambda values, n=n: values | {"notes": [*values["notes"], n]} for n in range(3)]
    at = {n: put(open_face(migrations=steps[:n]), {"notes": ["?"]}, at=config(f"t{n}")) for n in range(4)}
    new = open_face(migrations=steps)
    assert [values_at(new, at[n])["notes"] for n in range(4)] == [["?", 0, 1, 2], ["?", 1, 2], ["?", 2], ["?"]]


def test_a_function_does_not_see_what_langgraph_keeps_for_itself(open_face: Open) -> None:
    seen: list[dict[str, Any]] = []
    own = {"branch:to:plan": None, "join:a+b:c": {"a"}, "__start__": {"notes": ["in"]}, "__pregel_tasks": [Send("x", 1)]}
    _, at = written(open_face, notes=["a"], **own)
    new = open_face(migrations=[lambda values: seen.append(dict(values)) or {"notes": ["b"]}])
    assert values_at(new, at) == own | {"notes": ["b"]}
    assert seen == [{"notes": ["a"]}]


def test_a_checkpoint_that_only_has_its_input_is_not_passed_to_a_function(open_face: Open) -> None:
    _, at = written(open_face, __start__={"notes": ["in"]})
    assert values_at(open_face(migrations=[fails]), at) == {"__start__": {"notes": ["in"]}}


def test_a_function_with_two_arguments_is_told_the_graph(open_face: Open) -> None:
    old = open_face()
    for namespace in ("", "plan:1-2", "plan:1-2|ask:3|1", "plan"):
        put(old, {"notes": [namespace]}, at=config("t", namespace))
    new = open_face(migrations=[lambda values, graph: values | {"graph": graph}])
    found = {
        item.checkpoint["channel_values"]["notes"][0]: item.checkpoint["channel_values"]["graph"] for item in new.list(None)
    }
    assert found == {"": "", "plan:1-2": "plan", "plan:1-2|ask:3|1": "plan|ask", "plan": "plan"}


def test_an_added_channel_gets_the_newest_version_and_a_removed_one_loses_its_own(open_face: Open) -> None:
    old = open_face()
    made = checkpoint({"notes": ["a"], "gone": ["b"]}, {"notes": "1", "gone": "2"})
    made["versions_seen"] = {"plan": {"gone": "2"}, "__interrupt__": {"notes": "1", "gone": "2"}}
    made["updated_channels"] = ["gone", "notes"]
    at = old.put(config(), made, {}, dict(made["channel_versions"]))

    def replace(values: dict[str, Any]) -> dict[str, Any]:
        del values["gone"]
        return values | {"added": [1]}

    read = open_face(migrations=[replace]).get_tuple(at).checkpoint
    assert read["channel_versions"] == {"notes": "1", "added": "2"}
    assert read["versions_seen"] == {"plan": {}, "__interrupt__": {"notes": "1", "added": "2"}}
    assert read["updated_channels"] == ["notes"]


def test_a_renamed_channel_is_renamed_wherever_langgraph_names_it(open_face: Open) -> None:
    old = open_face()
    made = checkpoint({"notes": ["a"], "__start__": {"notes": ["in"], "x": 1}}, {"notes": "1", "__start__": "2"})
    made["versions_seen"] = {"plan": {"notes": "1"}, "__snapshot_bumps__": {"plan|notes": "1", "plan:notes": "0"}}
    made["updated_channels"] = ["notes"]
    at = old.put(config(), made, {"counters_since_delta_snapshot": {"notes": [1, 1]}}, dict(made["channel_versions"]))
    old.put_writes(at, [("notes", ["w"]), ("x", 1)], "task")
    read = open_face(migrations=[rename_channel("notes", "remarks")]).get_tuple(at)
    assert read.checkpoint["channel_values"] == {"remarks": ["a"], "__start__": {"remarks": ["in"], "x": 1}}
    assert read.checkpoint["channel_versions"] == {"remarks": "1", "__start__": "2"}
    assert read.checkpoint["versions_seen"] == {
        "plan": {"remarks": "1"},
        "__snapshot_bumps__": {"plan|remarks": "1", "plan:remarks": "0"},
    }
    assert read.checkpoint["updated_channels"] == ["remarks"]
    assert read.metadata["counters_since_delta_snapshot"] == {"remarks": [1, 1]}
    assert read.pending_writes == [("task", "remarks", ["w"]), ("task", "x", 1)]


def test_a_rename_within_a_graph_leaves_the_others_alone(open_face: Open) -> None:
    old = open_face()
    root = put(old, {"notes": ["a"]})
    below = put(old, {"notes": ["b"]}, at=config("t", "plan:1"))
    new = open_face(migrations=[rename_channel("notes", "remarks", within="plan")])
    assert (values_at(new, root), values_at(new, below)) == ({"notes": ["a"]}, {"remarks": ["b"]})


# --- keeping ---


def test_what_the_next_step_leaves_alone_is_kept_in_its_new_shape(open_face: Open) -> None:
    _, at = written(open_face, notes=LONG, other=LONG)
    calls = Counter[str]()

    def once(values: dict[str, Any]) -> dict[str, Any]:
        calls.update(["called"])
        return shout(values) | {"added": LONG}

    new = open_face(migrations=[once])
    later = child(new, at, changed={"other": ["changed"]})
    last = child(new, later)
    calls.clear()
    shouted = [LONG[0].upper()]
    for face in (new, open_face(migrations=[once])):
        assert values_at(face, last) == values_at(face, later) == {"notes": shouted, "other": ["changed"], "added": LONG}
    assert not calls
    assert values_at(new, at) == {"notes": shouted, "other": LONG, "added": LONG}
    assert calls == {"called": 1}
    assert new.verify() == []


def test_values_that_a_migration_leaves_alone_are_not_stored_again(open_face: Open, path: Path) -> None:
    _, at = written(open_face, notes=LONG, other=LONG)
    new = open_face(migrations=[add_tool_calls])
    child(new, child(new, at, changed={"x": ["y"]}))
    assert sql(path, "SELECT channel, state_version FROM blob ORDER BY id") == [
        ("notes", 0),
        ("other", 0),
        ("x", 1),
        ("tool_calls", 1),
    ]


class Counting(JsonPlusSerializer):
    """Counts what it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[Any] = []

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.encoded.append(obj)
        return super().dumps_typed(obj)


def test_unchanged_values_are_compared_once_and_then_known(open_face: Open) -> None:
    _, at = written(open_face, notes=LONG)
    serde = Counting()
    new = open_face(migrations=[add_tool_calls], serde=serde)
    later = child(new, at)
    assert serde.encoded.count(LONG) == 1
    child(new, child(new, later))
    assert serde.encoded.count(LONG) == 1


def test_one_version_may_mean_different_values_after_a_function_that_looks_at_others(open_face: Open, path: Path) -> None:
    old, first = written(open_face, notes=["n" * 500], factor=[1])
    second = child(old, first, changed={"factor": [2]})

    def mix(values: dict[str, Any]) -> dict[str, Any]:
        return values | {"notes": [values["notes"][0] + str(values["factor"][0])]}

    wanted = [["n" * 500 + "1"], ["n" * 500 + "2"]]
    new = open_face(migrations=[mix])
    forks = [child(new, at, changed={"x": ["y"]}) for at in (first, second)]
    further = [child(new, fork) for fork in forks]
    assert [values_at(new, at)["notes"] for at in (*forks, *further)] == wanted * 2
    assert new.migrate_all().errors == ()
    assert [values_at(new, at)["notes"] for at in (first, second, *forks, *further)] == wanted * 3
    assert new.verify() == []
    assert sql(path, "SELECT count(*) FROM checkpoint WHERE state_version = 0") == [(0,)]


def test_a_write_to_an_older_checkpoint_brings_it_up_to_date_first(open_face: Open, path: Path) -> None:
    old, at = written(open_face, notes=["a"], **{"branch:to:plan": None})
    old.put_writes(at, [("notes", ["w"])], "task 1")
    new = open_face(migrations=[rename_channel("notes", "remarks"), rename_node("plan", "planner")])
    assert new.threads()[0].next == ("plan",)
    new.put_writes(at, [("remarks", ["w"])], "task 2")
    assert new.threads()[0].next == ("planner",)
    assert sql(path, "SELECT channel FROM write ORDER BY id") == [("remarks",), ("remarks",)]
    read = open_face(migrations=[rename_channel("notes", "remarks"), rename_node("plan", "planner")]).get_tuple(at)
    assert read.checkpoint["channel_values"] == {"remarks": ["a"], "branch:to:planner": None}
    assert [write[:2] for write in read.pending_writes] == [("task 1", "remarks"), ("task 2", "remarks")]


def test_copies_and_what_pruning_leaves_read_like_before(open_face: Open) -> None:
    old, first = written(open_face, notes=LONG)
    second = child(old, first, changed={"x": ["y"]})
    new = open_face(migrations=[shout])
    third = child(new, second, changed={"x": ["z"]})
    before = [item.checkpoint["channel_values"] for item in new.list(config())]
    new.copy_thread("t", "copy")
    assert [item.checkpoint["channel_values"] for item in new.list(config("copy"))] == before
    new.prune(["t"])
    assert [item.checkpoint["channel_values"] for item in new.list(config())] == before[:1]
    assert values_at(new, third)["notes"] == [LONG[0].upper()]
    new.saver.sweep(keep_last=2, statuses=["completed", "running"])
    assert [item.checkpoint["channel_values"] for item in new.list(config("copy"))] == before[:2]
    assert new.verify() == []


# --- what cannot be migrated ---


def test_an_error_names_thread_checkpoint_and_function_and_changes_nothing(open_face: Open, path: Path) -> None:
    _, at = written(open_face, notes=["a"])
    before = rows(path)
    new = open_face(migrations=[shout, fails])
    reads = [
        lambda: new.get_tuple(at),
        lambda: list(new.list(config())),
        lambda: new.put_writes(at, [("x", 1)], "task"),
    ]
    for call in reads:
        with pytest.raises(MigrationError) as error:
            call()
        for piece in ("thread 't'", at["configurable"]["checkpoint_id"], "migration 2, fails", "KeyError", "tool_calls"):
            assert piece in str(error.value)
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    assert rows(path) == before
    assert values_at(open_face(), at) == {"notes": ["a"]}


@pytest.mark.parametrize("result", [None, ["notes"], {1: 2}, {"branch:to:x": None}])
def test_a_function_that_returns_no_state_is_an_error(open_face: Open, result: Any) -> None:
    _, at = written(open_face, notes=["a"])
    with pytest.raises(MigrationError, match="migration 1.*it returned"):
        open_face(migrations=[lambda _values: result]).get_tuple(at)


def test_a_channel_is_not_renamed_over_another(open_face: Open) -> None:
    _, at = written(open_face, notes=["a"], remarks=["b"])
    with pytest.raises(MigrationError, match="there is a channel 'remarks' already"):
        open_face(migrations=[rename_channel("notes", "remarks")]).get_tuple(at)


@pytest.mark.parametrize("migrations", ["shout", [1], shout, [None]])
def test_migrations_that_are_no_functions_are_refused_at_once(path: Path, migrations: Any) -> None:
    with pytest.raises(InvalidRequest):
        SqliteSaver(path, migrations=migrations)


@pytest.mark.parametrize("names", [("a", "a"), ("", "b"), ("a", 1), ("a:b", "c")])
def test_a_rename_that_makes_no_sense_is_refused_at_once(names: Any) -> None:
    with pytest.raises(InvalidRequest):
        rename_node(*names)


# --- newer states ---


@pytest.mark.parametrize("options", [{}, {"read_only": True}, {"migrations": [shout]}])
def test_a_file_with_newer_states_is_not_opened(open_face: Open, path: Path, options: dict[str, Any]) -> None:
    put(open_face(migrations=[shout, add_tool_calls]), {"notes": ["a"]})
    before = rows(path)
    known = len(options.get("migrations", ()))
    with pytest.raises(NewerStateError, match=f"at version 2, .* up to {known}") as error:
        SqliteSaver(path, **options)
    assert str(path) in str(error.value)
    assert rows(path) == before


def test_an_older_program_on_the_same_file_refuses_what_a_newer_one_wrote_and_nothing_else(open_face: Open) -> None:
    old, at = written(open_face, notes=["a"])
    other = put(old, {"notes": ["b"]}, at=config("other"))
    new = open_face(migrations=[shout])
    newer = child(new, at)
    new.put_writes(other, [("x", 1)], "task")
    for call in (
        lambda: old.get_tuple(config()),
        lambda: list(old.list(config())),
        lambda: old.get_delta_channel_history(config=child(new, newer), channels=["notes"]),
        lambda: old.put_writes(newer, [("x", 1)], "task"),
        lambda: old.put_writes(other, [("x", 1)], "task"),
        lambda: old.get_tuple(other),
    ):
        with pytest.raises(NewerStateError, match="at version 1, .* up to 0"):
            call()
    assert values_at(old, at) == {"notes": ["a"]}
    assert values_at(old, child(old, at)) == {"notes": ["a"]}


# --- all at once ---


def test_migrate_all_leaves_no_work_and_no_old_value(open_face: Open, path: Path) -> None:
    old, at = written(open_face, notes=LONG, other=LONG)
    for _ in range(5):
        at = child(old, at, changed={"x": ["y"]})
    calls = Counter[str]()

    def counted(values: dict[str, Any]) -> dict[str, Any]:
        calls.update(["called"])
        return shout(values)

    new = open_face(migrations=[rename_channel("other", "another"), counted])
    before = [item.checkpoint["channel_values"] for item in new.list(config())]
    progress: list[tuple[int, int]] = []
    assert new.migrate_all(batch=4, progress=lambda *numbers: progress.append(numbers)) == (6, ())
    assert progress == [(4, 6), (6, 6)]
    calls.clear()
    again = open_face(migrations=[rename_channel("other", "another"), counted])
    assert [item.checkpoint["channel_values"] for item in again.list(config())] == before
    assert not calls
    named = sql(path, "SELECT DISTINCT channel, state_version FROM blob WHERE version IS NOT NULL ORDER BY 1")
    assert named == [("another", 2), ("notes", 2), ("x", 0)]
    assert again.migrate_all() == (0, ())
    assert again.verify() == []


def test_a_dry_run_reports_what_would_fail_and_writes_nothing(open_face: Open, path: Path) -> None:
    old = open_face()
    for name in ("good", "bad", "fine"):
        put(old, {"notes": [name]}, at=config(name))
    before = rows(path)

    def picky(values: dict[str, Any]) -> dict[str, Any]:
        return {"notes": [{"good": 1, "fine": 2}[values["notes"][0]]]}

    new = open_face(migrations=[picky])
    done, errors = new.migrate_all(dry_run=True)
    assert (done, [error.place.thread_id for error in errors]) == (2, ["bad"])
    assert rows(path) == before
    done, errors = new.migrate_all(batch=2)
    assert (done, [error.place.thread_id for error in errors]) == (2, ["bad"])
    assert values_at(new, config("fine")) == {"notes": [2]}
    assert values_at(old, config("bad")) == {"notes": ["bad"]}


def test_migrate_all_that_is_cut_off_goes_on_where_it_was(open_face: Open, path: Path) -> None:
    old, at = written(open_face, notes=LONG)
    for number in range(9):
        at = child(old, at, changed={"x": [number]})
    before = [item.checkpoint["channel_values"] for item in open_face(migrations=[shout]).list(config())]

    def power_cut(done: int, _total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    new = open_face(migrations=[shout])
    with pytest.raises(KeyboardInterrupt):
        new.saver.migrate_all(batch=2, progress=power_cut)
    assert sql(path, "SELECT state_version, count(*) FROM checkpoint GROUP BY 1") == [(0, 6), (1, 4)]
    assert [item.checkpoint["channel_values"] for item in new.list(config())] == before
    assert new.migrate_all(batch=4) == (6, ())
    assert [item.checkpoint["channel_values"] for item in new.list(config())] == before
    assert new.verify() == []


def test_migrate_all_needs_a_batch(open_face: Open) -> None:
    with pytest.raises(InvalidRequest, match="batch"):
        open_face(migrations=[shout]).migrate_all(batch=0)


def test_several_at_once_bring_the_same_checkpoint_up_to_date(path: Path) -> None:
    with ExitStack() as stack:
        at = put(stack.enter_context(SqliteSaver(path)), {"notes": LONG, "x": ["y" * 300]})
        stack.enter_context(SqliteSaver(path)).put_writes(at, [("notes", ["w"])], "first")
        savers = [stack.enter_context(SqliteSaver(path, migrations=[rename_channel("notes", "remarks")])) for _ in range(4)]
        together = threading.Barrier(4)

        def work(number: int) -> None:
            together.wait()
            savers[number].put_writes(at, [("remarks", [number])], f"task {number}")
            savers[number].migrate_all(batch=1)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
        read = savers[0].get_tuple(at)
        assert read is not None
        assert read.checkpoint["channel_values"] == {"remarks": LONG, "x": ["y" * 300]}
        assert sorted((task, channel) for task, channel, _ in read.pending_writes or ()) == [
            ("first", "remarks"),
            *((f"task {number}", "remarks") for number in range(4)),
        ]
        assert savers[0].verify() == []


# --- graphs: a thread that older code left waiting goes on under newer code ---


class Names(NamedTuple):
    """What a release of the program calls things."""

    key: str = "notes"
    plan: str = "plan"
    ask: str = "ask"


OLD, NEW = Names(), Names("remarks", "planner", "question")
RENAMES = [rename_channel("notes", "remarks"), rename_node("plan", "planner"), rename_node("ask", "question")]


def state_of(names: Names) -> Any:
    return TypedDict("State", {names.key: Annotated[list, operator.add], "n": int}, total=False)  # type: ignore[misc]  # its keys are a test's


def says(names: Names, word: str) -> Callable[[Any], Any]:
    return lambda _state: {names.key: [word]}


def asks(names: Names, *questions: str) -> Callable[[Any], Any]:
    return lambda state: {names.key: [f"{question}{state.get('n', '')} {interrupt(question)}" for question in questions]}


def plain(names: Names) -> StateGraph:
    graph = StateGraph(state_of(names))
    graph.add_node("first", says(names, "first")).add_node(names.plan, asks(names, "one?", "two?"))
    graph.add_node("last", says(names, "last"))
    return graph.add_edge(START, "first").add_edge("first", names.plan).add_edge(names.plan, "last")


def parallel(names: Names) -> StateGraph:
    graph = StateGraph(state_of(names))
    for name, does in {
        names.plan: asks(names, "one?"),
        names.ask: asks(names, "two?"),
        "other": says(names, "other"),
    }.items():
        graph.add_node(name, does).add_edge(START, name)
    graph.add_node("last", asks(names, "three?"))
    return graph.add_edge([names.plan, "other", names.ask], "last")


def sends(names: Names) -> StateGraph:
    graph = StateGraph(state_of(names))
    graph.add_node("first", says(names, "first")).add_node(names.plan, asks(names, "one?"))
    graph.add_edge(START, "first")
    graph.add_conditional_edges("first", lambda _state: [Send(names.plan, {"n": n}) for n in range(3)], [names.plan])
    return graph


def subgraph(names: Names, checkpointer: Any = None) -> StateGraph:
    inner = StateGraph(state_of(names))
    inner.add_node("before", says(names, "before")).add_node(names.ask, asks(names, "one?", "two?"))
    inner.add_edge(START, "before").add_edge("before", names.ask)
    middle = StateGraph(state_of(names)).add_node(names.plan, inner.compile()).add_edge(START, names.plan)
    graph = StateGraph(state_of(names))
    graph.add_node(names.plan, middle.compile(checkpointer=checkpointer)).add_node("last", says(names, "last"))
    return graph.add_edge(START, names.plan).add_edge(names.plan, "last")


def lasting(names: Names) -> StateGraph:
    return subgraph(names, checkpointer=True)


def deferred(names: Names) -> StateGraph:
    graph = StateGraph(state_of(names))
    graph.add_node("first", says(names, "first")).add_node(names.plan, asks(names, "one?"), defer=True)
    return graph.add_edge(START, "first").add_edge("first", names.plan)


SHAPES = [plain, parallel, sends, subgraph, lasting, deferred]


class App:
    """A program with a graph: it runs until nobody is asked any more."""

    def __init__(self, face: Face, graph: Any) -> None:
        if face.name == "async" and sys.version_info < (3, 11):
            pytest.skip("LangGraph interrupts async code from Python 3.11 on only")
        self._face = face
        self.graph = graph.compile(checkpointer=face.saver)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if self._face.name == "sync":
            return getattr(self.graph, method)(*args, **kwargs)
        return self._face._run(getattr(self.graph, "a" + method)(*args, **kwargs))

    def invoke(self, given: Any, at: Any = None) -> Any:
        return self.call("invoke", given, at or config())

    def questions(self, at: Any = None) -> Any:
        return self.call("get_state", at or config()).interrupts

    def answer_all(self, at: Any = None) -> Any:
        """One by one, by id."""
        out: Any = None
        while questions := self.questions(at):
            out = self.invoke(Command(resume={questions[0].id: f"yes to {questions[0].value}"}), at)
        return out


def ended(open_face: Open, graph: Any, path: Path) -> Any:
    """How a run ends that nobody disturbed."""
    app = App(open_face(path.with_name("undisturbed.db")), graph)
    app.invoke({NEW.key: ["in"]})
    return app.answer_all()


@pytest.mark.parametrize("first", ["resume", "migrate_all", "no input", "answered before"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_interrupted_thread_goes_on_under_new_names(open_face: Open, path: Path, shape: Any, first: str) -> None:
    before = App(open_face(), shape(OLD))
    before.invoke({OLD.key: ["in"]})
    asked = Counter(question.value for question in before.questions())
    if first == "answered before":
        question = before.questions()[0]
        before.invoke(Command(resume={question.id: f"yes to {question.value}"}))
        asked = Counter(question.value for question in before.questions())
    face = open_face(migrations=RENAMES)
    after = App(face, shape(NEW))
    if first == "migrate_all":
        assert face.migrate_all(batch=2).errors == ()
    if first == "no input":
        after.invoke(None)
    assert Counter(question.value for question in after.questions()) == asked
    after.answer_all()
    assert after.call("get_state", config()).values == ended(open_face, shape(NEW), path)
    assert after.questions() == ()
    assert face.threads()[0].status == "completed"
    assert face.verify() == []


@pytest.mark.parametrize("shape", [plain, subgraph, lasting, deferred])
def test_the_only_question_can_be_answered_without_its_id(open_face: Open, shape: Any) -> None:
    App(open_face(), shape(OLD)).invoke({OLD.key: ["in"]})
    after = App(open_face(migrations=RENAMES), shape(NEW))
    out = after.invoke(Command(resume="yes"))
    while "__interrupt__" in out:
        out = after.invoke(Command(resume="yes"))
    assert [line for line in out[NEW.key] if "yes" in line][0] == "one? yes"


def test_nodes_that_swap_their_names_keep_their_own_tasks(open_face: Open) -> None:
    def graph(one: str, two: str) -> StateGraph:
        graph = StateGraph(state_of(OLD))
        for name, question in ((one, "one?"), (two, "two?")):
            graph.add_node(name, asks(OLD, question)).add_edge(START, name)
        return graph

    App(open_face(), graph("a", "b")).invoke({"notes": []})
    swap = [rename_node("a", "c"), rename_node("b", "a"), rename_node("c", "b")]
    after = App(open_face(migrations=swap), graph("b", "a"))
    assert {task.name: task.interrupts[0].value for task in after.call("get_state", config()).tasks} == {
        "b": "one?",
        "a": "two?",
    }
    assert sorted(after.answer_all()["notes"]) == ["one? yes to one?", "two? yes to two?"]


def test_a_node_that_failed_runs_again_under_its_new_name(open_face: Open) -> None:
    def breaks(_state: Any) -> Any:
        raise ConnectionError("down")

    def graph(name: str, does: Any) -> StateGraph:
        graph = StateGraph(state_of(OLD)).add_node("other", says(OLD, "other")).add_node(name, does)
        return graph.add_edge(START, name).add_edge(START, "other")

    with pytest.raises(ConnectionError):
        App(open_face(), graph("plan", breaks)).invoke({"notes": ["in"]})
    after = App(open_face(migrations=[rename_node("plan", "planner")]), graph("planner", says(OLD, "planned")))
    state = after.call("get_state", config())
    assert state.next == ("planner",)
    assert "ConnectionError" in str(state.tasks[-1].error)
    assert Counter(after.invoke(None)["notes"]) == Counter(["in", "other", "planned"])


@pytest.mark.parametrize("between", ["rewritten", "gone on with", "only read"])
def test_names_may_change_again_while_a_thread_waits(open_face: Open, path: Path, between: str) -> None:
    App(open_face(), subgraph(OLD)).invoke({OLD.key: ["in"]})
    face = open_face(migrations=RENAMES)
    if between == "rewritten":
        face.migrate_all()
    if between == "gone on with":
        App(face, subgraph(NEW)).invoke(Command(resume="yes to one?"))
    last = Names("remarks", "boss", "query")
    steps = [*RENAMES, rename_node("planner", "boss"), rename_node("question", "query")]
    after = App(open_face(migrations=steps), subgraph(last))
    assert after.answer_all()["remarks"] == ended(open_face, subgraph(NEW), path)["remarks"]


def test_a_subgraph_whose_process_died_before_its_task_wrote_anything_is_gone_on_with(open_face: Open, path: Path) -> None:
    App(open_face(), subgraph(OLD)).invoke({OLD.key: ["in"]})
    sql(path, "DELETE FROM write WHERE namespace = (SELECT id FROM namespace WHERE checkpoint_ns = '')")
    after = App(open_face(migrations=RENAMES), subgraph(NEW))
    count = sql(path, "SELECT count(*) FROM checkpoint")
    after.invoke(None)
    assert sql(path, "SELECT count(*) FROM checkpoint") == count  # nothing ran again from its start
    assert after.answer_all()["remarks"] == ended(open_face, subgraph(NEW), path)["remarks"]


def test_a_subgraph_that_waits_in_a_thread_is_found_under_its_new_name(open_face: Open) -> None:
    App(open_face(), subgraph(OLD)).invoke({OLD.key: ["in"]})
    after = App(open_face(migrations=RENAMES), subgraph(NEW))
    [task] = after.call("get_state", config(), subgraphs=True).tasks
    assert task.name == "planner"
    assert task.state.values == {"remarks": ["in"]}
    assert task.state.tasks[0].state.next == ("question",)
    assert task.state.tasks[0].state.values == {"remarks": ["in", "before"]}


def test_a_lasting_subgraph_keeps_its_state_from_turn_to_turn_under_a_new_name(open_face: Open) -> None:
    def graph(name: str) -> StateGraph:
        inner = StateGraph(state_of(OLD)).add_node("count", lambda s: {"notes": [len(s["notes"])]}).add_edge(START, "count")
        graph = StateGraph(TypedDict("Outer", {"notes": list}))  # type: ignore[misc]  # made here for brevity
        return graph.add_node(name, inner.compile(checkpointer=True)).add_edge(START, name)

    App(open_face(), graph("plan")).invoke({"notes": ["a"]})
    face = open_face(migrations=[rename_node("plan", "planner")])
    assert App(face, graph("planner")).invoke({"notes": ["b"]}) == {"notes": ["a", 1, "b", 3]}
    assert face.verify() == []


def test_a_rename_within_a_subgraph_leaves_the_root_node_of_that_name_alone(open_face: Open) -> None:
    def graph(inside: str) -> StateGraph:
        inner = StateGraph(state_of(OLD)).add_node(inside, asks(OLD, "inner?")).add_edge(START, inside)
        graph = StateGraph(state_of(OLD)).add_node("agent", asks(OLD, "outer?")).add_node("sub", inner.compile())
        return graph.add_edge(START, "agent").add_edge(START, "sub")

    App(open_face(), graph("agent")).invoke({"notes": []})
    after = App(open_face(migrations=[rename_node("agent", "helper", within="sub")]), graph("helper"))
    assert sorted(after.answer_all()["notes"]) == ["inner? yes to inner?", "outer? yes to outer?"]


def test_a_state_gets_new_channels_while_its_thread_waits(open_face: Open) -> None:
    """The article's case: `version` and `tool_calls` come with the next release."""

    class State(TypedDict):
        notes: Annotated[list[str], operator.add]
        version: int
        tool_calls: Annotated[list[str], operator.add]

    def act(state: State) -> Any:
        assert state["version"] == 2
        return {"tool_calls": [f"{len(state['tool_calls'])} {interrupt('go on?')}"], "notes": ["acted"]}

    App(open_face(), plain(OLD)).invoke({"notes": ["in"]})
    graph = StateGraph(State).add_node("plan", act).add_node("last", says(OLD, "last")).add_edge(START, "plan")
    after = App(open_face(migrations=[add_tool_calls]), graph.add_edge("plan", "last"))
    assert after.answer_all() == {"notes": ["in", "first", "acted", "last"], "version": 2, "tool_calls": ["0 yes to one?"]}


def paying(saver: SqliteSaver, paid: list[str], names: Names, where: str) -> StateGraph:
    """A node that pays, then asks: itself, in a @task, or in a subgraph."""

    def pay(amount: str) -> Any:
        return saver.once(f"pay {amount}", lambda _key: paid.append(amount) or f"receipt for {amount}")

    pay_in_task = task(pay)

    def node(_state: Any) -> Any:
        receipts = [pay_in_task(amount).result() for amount in "12"] if where == "task" else [pay("1"), pay("2")]
        return {names.key: [*receipts, interrupt("one?")]}

    inner = StateGraph(state_of(names)).add_node(names.ask, node).add_edge(START, names.ask)
    graph = StateGraph(state_of(names)).add_node(names.plan, inner.compile() if where == "subgraph" else node)
    return graph.add_edge(START, names.plan)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("where", ["node", "task", "subgraph"])
def test_an_effect_is_not_repeated_because_its_node_was_renamed(path: Path, where: str, killed: bool) -> None:
    paid: list[str] = []
    with SqliteSaver(path) as saver:
        paying(saver, paid, OLD, where).compile(checkpointer=saver).invoke({OLD.key: []}, config())
    if killed:  # before any task could say what became of it
        sql(path, "DELETE FROM write")
    with SqliteSaver(path, migrations=RENAMES) as saver:
        graph = paying(saver, paid, NEW, where).compile(checkpointer=saver)
        if killed:
            graph.invoke(None, config())
        out = graph.invoke(Command(resume="yes"), config())
        assert out == {NEW.key: ["receipt for 1", "receipt for 2", "yes"]}
        assert paid == ["1", "2"]
        nodes = {"node": "planner", "task": "pay", "subgraph": "question"}
        assert [(effect.node, effect.status) for effect in saver.effects()] == [(nodes[where], "done")] * 2
        assert saver.verify() == []


def test_migrate_all_answers_for_no_thread(open_face: Open, path: Path) -> None:
    written(open_face, notes=["a"])
    owners = sql(path, "SELECT id FROM owner")
    open_face(migrations=[shout]).migrate_all()
    assert sql(path, "SELECT id FROM owner") == owners


def test_time_travel_to_a_checkpoint_of_older_code(open_face: Open) -> None:
    before = App(open_face(), plain(OLD))
    before.invoke({OLD.key: ["in"]})
    before.answer_all()
    face = open_face(migrations=RENAMES)
    after = App(face, plain(NEW))
    for item in face.list(config()):
        at = config("t", "", item.checkpoint["id"])
        after.invoke(None, at)
        end = after.answer_all() or after.call("get_state", config()).values
        assert end[NEW.key] == ["in", "first", "one? yes to one?", "two? yes to two?", "last"], item.metadata
    assert face.verify() == []


def delta_graph(key: str, steps: int) -> StateGraph:
    state = TypedDict(
        "Delta", {key: Annotated[list, DeltaChannel(lambda old, new: old + sum(new, []), snapshot_frequency=3)]}
    )  # type: ignore[misc]
    graph = StateGraph(state)
    names = [START, *(f"n{number}" for number in range(steps))]
    for before, name in zip(names, names[1:], strict=False):
        graph.add_node(name, lambda state, name=name: {key: [f"{name} after {len(state[key])}"]}).add_edge(before, name)
    return graph


@pytest.mark.parametrize("way", ["read", "migrate_all", "prune"])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_delta_channel_goes_on_under_a_new_name(open_face: Open, way: str, steps: int) -> None:
    before = App(open_face(), delta_graph("log", steps))
    for turn in range(2):
        end = before.invoke({"log": [f"turn {turn}"]})
    states = [
        state.values["log"] for state in before.call("get_state", config()) and before.graph.get_state_history(config())
    ]
    face = open_face(migrations=[rename_channel("log", "journal")])
    after = App(face, delta_graph("journal", steps))
    if way == "migrate_all":
        assert face.migrate_all(batch=3).errors == ()
    assert [state.values["journal"] for state in after.graph.get_state_history(config())] == states
    for turn in range(2, 4):
        before_turn = end["journal" if "journal" in end else "log"]
        end = after.invoke({"journal": [f"turn {turn}"]})
        assert end["journal"][: len(before_turn)] == before_turn
        assert len(end["journal"]) == len(before_turn) + 1 + steps
        if way == "prune":
            face.prune(["t"])
    assert after.call("get_state", config()).values == end
    assert face.verify() == []


def test_the_stored_value_of_a_delta_channel_is_migrated_and_what_came_after_is_not(open_face: Open) -> None:
    App(open_face(), delta_graph("log", 4)).invoke({"log": ["in"]})
    after = App(
        open_face(migrations=[lambda values: values | {"log": [w.upper() for w in values.get("log", [])]}]),
        delta_graph("log", 4),
    )
    words = after.call("get_state", config()).values["log"]
    assert "IN" in words
    assert len(words) == 5


def test_a_saver_without_migrations_pays_nothing_for_them(path: Path, tap: Tap) -> None:
    def statements(**options: Any) -> Sequence[str]:
        with SqliteSaver(path, **options) as saver:
            parent = put(saver, {"notes": LONG}, at=config(str(options)))
            parent = child(Face(saver, "sync"), parent, changed={"x": ["y"]})
            tap.forget()
            child(Face(saver, "sync"), parent, changed={"x": ["z"]})
            return list(tap.statements)

    without = statements()
    assert statements(migrations=[shout]) == without
    assert not any("state_version <" in statement and "count" in statement for statement in without)
