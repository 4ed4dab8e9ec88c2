"""`sweep` and `keep_last=`: idle threads and old checkpoints go, what is waited for stays, and nobody is held up."""

import operator
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from sqlfile import Tap, can_write_at_once, rows, sql, tap
from threads import DAY, NOW, STATUSES, names, saver, stored, thread
from typing_extensions import TypedDict

from langgraph_sqlite_ckpt import InvalidRequest, SqliteSaver
from langgraph_sqlite_ckpt.sweeping import Swept

__all__ = ["saver", "tap"]  # fixtures
MONTH = 30 * DAY
BYTES = (
    "SELECT (SELECT total(length(data)) FROM blob) + (SELECT total(length(data)) FROM write)"
    " + (SELECT total(length(metadata) + length(body) + coalesce(length(rest), 0)) FROM checkpoint)"
)


def ids(face: Any, name: str) -> list[str]:
    """Newest first."""
    return [item.config["configurable"]["checkpoint_id"] for item in face.list(config(name))]


def of_all(face: Any) -> Any:
    return list(face.list(None))


def row_bytes(path: Path) -> int:
    [[found]] = sql(path, BYTES)
    return int(found)


@pytest.fixture
def old_and_new(face: Face) -> Face:
    """In each state a thread of 40 days ago and one of 20 days ago."""
    for ago in (40, 20):
        for status in STATUSES:
            last = thread(
                face, f"{status} {ago}", status, at=NOW - ago * DAY, checkpoints=4, values={"list": ["x" * 50] * 40}
            )
            put(
                face,
                {"a": [1] * 300},
                at=config(f"{status} {ago}", "node:1"),
                parents={"": last["configurable"]["checkpoint_id"]},
            )
    return face


# --- idle threads ---


def test_idle_threads_go_whole_and_no_other_is_touched(old_and_new: Face, path: Path) -> None:
    others = [
        item
        for item in of_all(old_and_new)
        if "40" not in item.config["configurable"]["thread_id"] or "interrupted" in item.config["configurable"]["thread_id"]
    ]
    before = row_bytes(path)

    swept = old_and_new.sweep(idle_for=MONTH, statuses=["completed", "failed", "running"])

    assert swept == Swept(threads=3, checkpoints=15, bytes=before - row_bytes(path), damaged=0)
    assert swept.bytes > 0
    assert of_all(old_and_new) == others
    assert [name for (name,) in sql(path, "SELECT DISTINCT thread_id FROM namespace WHERE thread_id LIKE '%40'")] == [
        "interrupted 40"
    ]
    assert list(old_and_new.verify()) == []


def test_what_waits_for_a_person_and_what_may_be_running_is_left_alone_unless_named(old_and_new: Face) -> None:
    assert old_and_new.sweep(idle_for=MONTH).threads == 2
    assert [name for name in names(old_and_new.threads()) if name.endswith("40")] == ["running 40", "interrupted 40"]
    assert old_and_new.sweep(idle_for=MONTH, statuses=["interrupted"]).threads == 1
    assert old_and_new.sweep(idle_for=MONTH, statuses=("running",)).threads == 1
    assert sorted(names(old_and_new.threads())) == [f"{status} 20" for status in sorted(STATUSES)]


def test_a_thread_is_as_old_as_its_newest_checkpoint(face: Face) -> None:
    old = thread(face, "woken", at=NOW - 2 * MONTH)
    stored(face, "woken", parent=old, at=NOW - DAY)
    assert face.sweep(idle_for=MONTH) == Swept(0, 0, 0)
    assert face.sweep(idle_for=DAY / 2).checkpoints == 3


def test_nothing_idle_is_nothing_done_and_no_time_at_all_takes_everything(old_and_new: Face) -> None:
    whole = of_all(old_and_new)
    assert old_and_new.sweep(idle_for=41 * DAY) == Swept(0, 0, 0)
    assert of_all(old_and_new) == whole
    assert old_and_new.sweep(idle_for=timedelta(0), statuses=STATUSES).threads == 8
    assert of_all(old_and_new) == []


def test_an_empty_file_is_swept_too(face: Face) -> None:
    assert face.sweep(idle_for=MONTH, keep_last=3) == Swept(0, 0, 0)


# --- old checkpoints ---


@pytest.mark.parametrize("count", [1, 2, 3, 4, 9])
def test_the_last_checkpoints_are_kept_as_they_were(old_and_new: Face, path: Path, count: int) -> None:
    before = {name: list(old_and_new.list(config(name))) for name in names(old_and_new.threads())}
    stood = row_bytes(path)

    swept = old_and_new.sweep(keep_last=count)

    for name, was in before.items():
        now = list(old_and_new.list(config(name)))
        touched = name.startswith(("completed", "failed"))
        assert [item._replace(parent_config=None) for item in now] == [
            item._replace(parent_config=None) for item in was[: count if touched else 4]
        ]
        assert now[-1].parent_config is None
    assert swept == Swept(0, 4 * (4 - min(count, 4)), stood - row_bytes(path))
    assert (swept.bytes > 0) == (count < 4)
    assert list(old_and_new.verify()) == []


def test_both_at_once_take_idle_threads_whole_and_shorten_the_rest(old_and_new: Face, path: Path) -> None:
    stood = row_bytes(path)
    swept = old_and_new.sweep(idle_for=MONTH, keep_last=1, statuses=STATUSES)
    assert swept == Swept(4, 4 * 5 + 4 * 3, stood - row_bytes(path))
    assert {len(ids(old_and_new, name)) for name in names(old_and_new.threads())} == {1}
    assert len(old_and_new.threads()) == 4
    assert list(old_and_new.verify()) == []


@pytest.mark.parametrize(
    "asked",
    [
        {"idle_for": MONTH},
        {"keep_last": 2},
        {"idle_for": MONTH, "keep_last": 1},
        {"idle_for": timedelta(0), "keep_last": 1, "statuses": STATUSES},
        {"idle_for": MONTH, "keep_last": 3, "statuses": ["interrupted"], "batch": 1},
    ],
    ids=str,
)
def test_a_dry_run_tells_exactly_what_the_real_one_does_and_changes_nothing(
    old_and_new: Face, path: Path, asked: Any
) -> None:
    before = rows(path)

    told = old_and_new.sweep(**asked, dry_run=True)

    assert rows(path) == before
    assert told.checkpoints > 0
    assert old_and_new.sweep(**asked) == told
    assert rows(path) != before
    assert old_and_new.sweep(**asked) == Swept(0, 0, 0)


def test_a_damaged_thread_is_counted_and_left_as_it_is(old_and_new: Face, path: Path) -> None:
    sql(
        path,
        "UPDATE checkpoint SET body = zeroblob(9) WHERE seq = (SELECT max(c.seq) FROM checkpoint c JOIN namespace n ON n.id = c.namespace WHERE n.thread_id = 'failed 20' AND n.checkpoint_ns = '')",
    )

    swept = old_and_new.sweep(keep_last=1)

    assert (swept.threads, swept.checkpoints, swept.damaged) == (0, 9, 1)
    counts = {name: count for name, count in sql(path, "SELECT thread_id, checkpoints FROM threads")}
    assert counts["failed 20"] == 4
    assert (counts["completed 20"], counts["completed 40"], counts["failed 40"]) == (1, 1, 1)
    assert old_and_new.sweep(keep_last=1).damaged == 1


# --- arguments ---


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({}, "idle_for"),
        ({"dry_run": True}, "idle_for"),
        ({"idle_for": timedelta(seconds=-1)}, "negative"),
        ({"idle_for": 30}, "timedelta"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": -3}, "keep_last"),
        ({"keep_last": 2.5}, "keep_last"),
        ({"keep_last": "2"}, "keep_last"),
        ({"keep_last": 1, "batch": 0}, "batch"),
        ({"keep_last": 1, "batch": 1.5}, "batch"),
        ({"keep_last": 1, "statuses": "completed"}, "statuses"),
        ({"keep_last": 1, "statuses": ["done"]}, "completed, interrupted, failed, running"),
        ({"keep_last": 1, "statuses": None}, "statuses"),
        ({"keep_last": 1, "statuses": 3}, "statuses"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused_and_nothing_is_done(
    old_and_new: Face, path: Path, asked: Any, named: str
) -> None:
    before = rows(path)
    with pytest.raises(InvalidRequest, match=named):
        old_and_new.sweep(**asked)
    assert rows(path) == before


def test_no_state_at_all_is_no_thread_at_all(old_and_new: Face) -> None:
    assert old_and_new.sweep(idle_for=timedelta(0), keep_last=1, statuses=[]) == Swept(0, 0, 0)


@pytest.mark.parametrize("keep_last", [0, -1, 2.5, "3"])
def test_a_saver_that_would_keep_nothing_is_refused(path: Path, keep_last: Any) -> None:
    with pytest.raises(InvalidRequest, match="keep_last"):
        SqliteSaver(path, keep_last=keep_last)


# --- in short transactions ---


@pytest.mark.parametrize("asked", [{"idle_for": MONTH}, {"keep_last": 1}], ids=str)
@pytest.mark.parametrize(("batch", "transactions"), [(1, 10), (3, 4), (10, 1), (100, 1)])
def test_each_batch_of_threads_is_a_transaction_between_which_others_write(
    tap: Tap, open_face: Any, path: Path, asked: Any, batch: int, transactions: int
) -> None:
    face = open_face(synchronous="normal")
    for number in range(10):
        thread(face, f"t {number}", at=NOW - 2 * MONTH)
    tap.forget()
    turns: list[bool] = []

    def others_turn(db: Any, statement: str) -> None:
        if statement == "COMMIT":
            turns.append(can_write_at_once(path))

    tap.after = others_turn
    swept = face.sweep(**asked, batch=batch)

    assert turns == [True] * transactions
    assert swept.checkpoints == (20 if "idle_for" in asked else 10)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_thread_that_wakes_up_while_it_is_about_to_go_stays(tap: Tap, open_face: Any, path: Path, dry_run: bool) -> None:
    """Between the look at the idle threads and the transaction that deletes them."""
    face, other = open_face(synchronous="normal"), open_face(synchronous="normal").saver
    for name in ("a", "b", "c"):
        thread(face, name, at=NOW - 2 * MONTH)
    tap.forget()
    woken: list[Any] = []

    def wake(db: Any, statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and not woken:
            woken.append(None)
            woken[0] = stored(other, "b", parent=other.get_tuple(config("b")).config, at=NOW)

    tap.before = wake
    swept = face.sweep(idle_for=MONTH, dry_run=dry_run)
    tap.forget()

    assert (swept.threads, swept.checkpoints) == (2, 4)
    assert len(ids(face, "b")) == 3
    assert sorted(names(face.threads())) == (["a", "b", "c"] if dry_run else ["b"])
    assert face.get_tuple(config("b")).config == woken[0]


def test_a_thread_that_begins_to_wait_for_a_person_meanwhile_keeps_its_checkpoints(tap: Tap, open_face: Any) -> None:
    face, other = open_face(synchronous="normal"), open_face(synchronous="normal").saver
    for name in ("a", "b"):
        thread(face, name)
    tap.forget()
    asked: list[Any] = []

    def ask(db: Any, statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and not asked:
            asked.append(None)
            at = stored(other, "a", parent=other.get_tuple(config("a")).config, due=True)
            other.put_writes(at, [("__interrupt__", ["well?"])], "task")

    tap.before = ask
    swept = face.sweep(keep_last=1)
    tap.forget()

    assert (swept.threads, swept.checkpoints) == (0, 1)
    assert (len(ids(face, "a")), len(ids(face, "b"))) == (3, 1)


# --- keep_last= on the saver ---


class State(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]
    answers: Annotated[dict[str, Any], operator.or_]


def joined(state: Any, writes: Sequence[Any]) -> Any:
    return [*(state or []), *(item for write in writes for item in write)]


def loop(saver: Any, log: Any = Annotated[list[str], operator.add]) -> Any:
    """Three steps a turn, each of which adds a line."""
    state = TypedDict("state", {"n": int, "log": log}, total=False)  # type: ignore[operator]
    builder = StateGraph(state)
    builder.add_node(
        "again", lambda state: {"n": state["n"] + 1, "log": [f"line {len(state['log'])} " + "and so on, " * 10]}
    )
    builder.add_edge(START, "again")
    builder.add_conditional_edges("again", lambda state: "again" if state["n"] % 3 else END)
    return builder.compile(checkpointer=saver)


def run(face: Face, graph: Any, input: Any, at: Any, **options: Any) -> Any:
    return graph.invoke(input, at, **options) if face.name == "sync" else face._run(graph.ainvoke(input, at, **options))


def most_visible(face: Face) -> Callable[[], int]:
    """Counts after each put; returns the most that were ever there."""
    most, put = [0], face.saver.put

    def counted(*call: Any) -> Any:
        result = put(*call)
        most[0] = max(most[0], len(list(face.saver.list(config()))))
        return result

    face.saver.put = counted  # type: ignore[method-assign]
    return lambda: most[0]


@pytest.mark.parametrize("keep_last", [1, 2, 7])
def test_never_more_than_the_wanted_checkpoints_are_there(open_face: Any, keep_last: int) -> None:
    face = open_face(keep_last=keep_last, synchronous="normal")
    most = most_visible(face)
    graph = loop(face.saver)
    for _ in range(3):
        graph.invoke({"n": 0, "log": []}, config(), durability="sync")
    assert most() == keep_last
    at = config("other")
    for step in range(keep_last + 3):
        at = put(face, {"a": [step] * 200}, parent=at)
        assert len(ids(face, "other")) == min(step + 1, keep_last)
    assert list(face.verify()) == []


def test_a_checkpoint_that_is_put_again_takes_none_away(open_face: Any) -> None:
    face = open_face(keep_last=2, synchronous="normal")
    first, second = checkpoint({"a": [1] * 300}), checkpoint({"a": [2] * 300})
    at = face.put(config(), first, {"step": 0}, dict(first["channel_versions"]))
    face.put(at, second, {"step": 1}, dict(second["channel_versions"]))
    face.put(config(), first, {"step": 0}, dict(first["channel_versions"]))
    assert ids(face, "t") == [second["id"], first["id"]]


def test_after_a_hundred_turns_the_state_is_right_and_the_file_is_small(open_face: Any, path: Path, tmp_path: Path) -> None:
    face, whole = open_face(keep_last=3, synchronous="normal"), open_face(tmp_path / "whole.db", synchronous="normal")
    memory = InMemorySaver()
    for turn in range(100):
        for graph in (loop(face.saver), loop(memory)):
            run(face, graph, {"n": 0, "log": [f"turn {turn}"]}, config())
        if turn % 10 == 9:
            assert loop(face.saver).get_state(config()).values == loop(memory).get_state(config()).values
            assert len(ids(face, "t")) <= 3
    for _ in range(20):
        run(whole, loop(whole.saver), {"n": 0, "log": ["turn"]}, config())

    assert len(loop(face.saver).get_state(config()).values["log"]) == 400
    assert list(face.verify()) == []
    kept, rest = face.stats(), whole.stats()
    assert (kept.threads, kept.checkpoints) == (1, 3)
    assert kept.file_bytes - kept.free_bytes < rest.file_bytes / 2  # 100 turns in less than half of what 20 take
    [[blobs]] = sql(path, "SELECT count(*) FROM blob")
    assert blobs < 60, "values that nothing needs are left"


@pytest.mark.parametrize("snapshot_frequency", [1, 4, 1000])
def test_delta_channels_keep_their_state(open_face: Any, snapshot_frequency: int) -> None:
    face, memory = open_face(keep_last=2, synchronous="normal"), InMemorySaver()
    log = Annotated[list[str], DeltaChannel(joined, snapshot_frequency=snapshot_frequency)]
    for turn in range(15):
        for saver in (face.saver, memory):
            run(face, loop(saver, log), {"n": 0, "log": [f"turn {turn}"]}, config())
        assert loop(face.saver, log).get_state(config()).values == loop(memory, log).get_state(config()).values
        assert len(ids(face, "t")) == 2
    assert list(face.verify()) == []


def questions(saver: Any, ran: list[str]) -> Any:
    """Three tasks beside each other: two finish, one asks."""

    def node(name: str) -> Callable[[Any], Any]:
        def work(state: Any) -> Any:
            ran.append(name)
            return {"answers": {name: interrupt("well?") if name == "ask" else "done"}, "log": [name * 50]}

        return work

    builder = StateGraph(State)
    for name in ("one", "two", "ask"):
        builder.add_node(name, node(name))
        builder.add_edge(START, name)
    return builder.compile(checkpointer=saver)


def test_of_parallel_tasks_only_the_one_that_asked_runs_again(open_face: Any) -> None:
    face, ran = open_face(keep_last=1, synchronous="normal"), list[str]()
    graph = questions(face.saver, ran)
    for _ in range(3):
        run(face, graph, {"log": ["go"]}, config())
        assert sorted(ran) == ["ask", "one", "two"]
        ran.clear()
        result = run(face, graph, Command(resume="yes"), config())
        assert ran == ["ask"]
        ran.clear()
        assert result["answers"] == {"one": "done", "two": "done", "ask": "yes"}
    assert list(face.verify()) == []


class Inner(TypedDict, total=False):
    own: Annotated[list[str], operator.add]
    answers: Annotated[dict[str, Any], operator.or_]


def around(saver: Any, ran: list[str], ask: bool) -> Any:
    """A node, and a subgraph of a node and a question."""

    def node(name: str, channel: str) -> Callable[[Any], Any]:
        def work(state: Any) -> Any:
            ran.append(name)
            return {channel: [name + " and so on" * 40]}

        return work

    inner = StateGraph(Inner)
    inner.add_node("first", node("first", "own"))
    inner.add_node("ask", (lambda state: {"answers": {"ask": interrupt("well?")}}) if ask else node("ask", "own"))
    inner.add_edge(START, "first")
    inner.add_edge("first", "ask")
    outer = StateGraph(State)
    outer.add_node("before", node("before", "log"))
    outer.add_node("sub", inner.compile())
    outer.add_edge(START, "before")
    outer.add_edge("before", "sub")
    return outer.compile(checkpointer=saver)


def namespaces(path: Path) -> int:
    [[count]] = sql(path, "SELECT count(*) FROM namespace")
    return int(count)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_subgraph_calls_go_with_their_turns(open_face: Any, path: Path, durability: str) -> None:
    face = open_face(keep_last=2, synchronous="normal")
    graph = around(face.saver, [], ask=False)
    for _ in range(20):
        run(face, graph, {"log": ["go"]}, config(), durability=durability)
    assert namespaces(path) <= 3
    assert len(graph.get_state(config()).values["log"]) == 40
    assert list(face.verify()) == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_question_inside_a_subgraph_goes_on_where_it_was(open_face: Any, path: Path, durability: str) -> None:
    face, ran = open_face(keep_last=1, synchronous="normal"), list[str]()
    graph = around(face.saver, ran, ask=True)
    for turn in range(6):
        run(face, graph, {"log": [f"turn {turn}"]}, config(), durability=durability)
        ran.clear()
        result = run(face, graph, Command(resume=f"yes {turn}"), config(), durability=durability)
        assert ran == []
        assert result["answers"] == {"ask": f"yes {turn}"}
    assert namespaces(path) <= 2
    assert list(face.verify()) == []


class Stalled(SqliteSaver):
    """Its thread is kept waiting before the root checkpoint of one step."""

    step = -9

    def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if not config["configurable"].get("checkpoint_ns") and metadata["step"] == self.step:
            time.sleep(0.4)
        return super().put(config, checkpoint, metadata, new_versions)


@pytest.mark.parametrize("step", [3, 4, 5])
def test_a_subgraph_that_is_stored_before_its_root_checkpoint_is_not_taken_for_a_left_over(path: Path, step: int) -> None:
    """Root checkpoints are stored in the background: those of the subgraph may come first."""
    ran: list[str] = []
    with Stalled(path, keep_last=1, synchronous="normal") as saver:
        graph = around(saver, ran, ask=True)
        graph.invoke({"log": []}, config())
        graph.invoke(Command(resume="yes"), config())
        saver.step = step
        graph.invoke({"log": []}, config())
        assert [item.metadata["step"] for item in saver.list(config())] == [5]
        ran.clear()

        graph.invoke(Command(resume="yes"), config())

        assert ran == []


def test_a_saver_that_keeps_all_can_use_the_file_of_one_that_does_not(open_face: Any) -> None:
    few, all_of_them = open_face(keep_last=2, synchronous="normal"), open_face(synchronous="normal")
    at = config()
    for step in range(12):
        at = put(few if step < 6 else all_of_them, {"a": [step] * 300, "b": ["the same"] * 100}, parent=at)
    assert len(ids(few, "t")) == 8
    put(few, {"a": [12] * 300}, parent=at)
    assert len(ids(all_of_them, "t")) == 2
    assert list(few.verify()) == []


# --- what comes late ---


def late(face: Any, retain: Callable[[Any], Any]) -> set[str]:
    """Writes before and after their checkpoints, of the root and of a subgraph call; the tasks whose writes stay."""
    first = stored(face, "t", step=0)
    call = put(face, {"s": 1}, at=config("t", "node:1"), parents={"": first["configurable"]["checkpoint_id"]})
    second = stored(face, "t", parent=first, step=1)
    third = stored(face, "t", parent=second, step=2)
    retain(face)
    face.put_writes(first, [("a", 1)], "late")
    face.put_writes(call, [("a", 1)], "late, in a call")
    face.put_writes(third, [("a", 1)], "in time")
    to_come = checkpoint()
    at = config("t", "", to_come["id"])
    face.put_writes(at, [("a", 1)], "early")
    face.put_writes(config("t", "node:2", str(uuid6(clock_seq=-1))), [("a", 1)], "early, in a call")
    face.put_writes(config("t", "", "an id of one's own"), [("a", 1)], "whenever")
    retain(face)
    assert [write[0] for write in face.get_tuple(third).pending_writes] == ["in time"]
    face.put(third, to_come, {"source": "loop", "step": 3}, {})
    assert [write[0] for write in face.get_tuple(at).pending_writes] == ["early"]
    with closing(sqlite3.connect(face.saver._shared.database.path)) as db:
        empty = (
            "SELECT * FROM namespace WHERE id NOT IN (SELECT namespace FROM checkpoint UNION SELECT namespace FROM write)"
        )
        assert db.execute(empty).fetchall() == []
        return {task for (task,) in db.execute("SELECT task_id FROM write")}


@pytest.mark.parametrize("how", ["prune", "sweep"])
def test_what_is_written_after_its_checkpoint_went_goes_too_and_what_comes_before_its_checkpoint_stays(
    face: Face, how: str
) -> None:
    tasks = late(face, lambda face: face.prune(["t"]) if how == "prune" else face.sweep(keep_last=1, statuses=STATUSES))
    assert tasks == {"in time", "early", "early, in a call", "whenever"}


def test_a_saver_that_keeps_few_drops_what_is_written_too_late(open_face: Any, path: Path) -> None:
    face = open_face(keep_last=2, synchronous="normal")
    at, configs = config(), []
    for step in range(10):
        at = stored(face, "t", parent=at if step else None, step=step)
        configs.append(at)
        if step >= 3:
            face.put_writes(configs[step - 3], [("a", step)], "late")
            face.put_writes(at, [("a", step)], "in time")
    assert sql(path, "SELECT count(*) FROM write WHERE task_id = 'late'") == [(1,)]  # the last, until the next step
    assert sql(path, "SELECT count(*) FROM write WHERE task_id = 'in time'") == [(2,)]
