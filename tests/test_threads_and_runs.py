"""`threads()` and `runs()`: what is in the file and in which state, page by page, and never a value read for it."""

import operator
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import pytest
from conftest import Face, config, put
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from sqlfile import rows, sql
from threads import DAY, NOW, STATUSES, multiply, names, saver, stored, thread
from typing_extensions import TypedDict
from watch import VALUES, Watch, watch

from langgraph_sqlite_ckpt import InvalidRequest, Run, SqliteSaver, Thread

__all__ = ["saver", "watch"]  # fixtures

# --- what a row says ---


def test_a_thread_is_told_by_its_latest_root_checkpoint(face: Face) -> None:
    first = stored(face, "t", at=NOW - 3 * DAY, due=True, step=-1)
    last = stored(face, "t", parent=first, at=NOW - DAY, due=True, step=4, run_id="a run")
    put(face, {"a": 1}, at=config("t", "node:1"), step=9, run_id="of a subgraph")

    [found] = face.threads()

    assert found == Thread("t", "running", ("node",), 4, "a run", NOW - 3 * DAY, NOW - DAY, 2, found.number)
    assert [type(field) for field in found] == [str, str, tuple, int, str, datetime, datetime, int, int]
    assert found.created_at.utcoffset() == found.updated_at.utcoffset() == timedelta(0)
    assert last["configurable"]["thread_id"] == found.thread_id


def test_a_run_is_told_by_the_latest_of_its_own_checkpoints(face: Face) -> None:
    first = stored(face, "t", at=NOW - 3 * DAY, due=True, step=-1, run_id="one")
    second = stored(face, "t", parent=first, at=NOW - 2 * DAY, step=0, run_id="one")
    stored(face, "t", parent=second, at=NOW - DAY, due=True, step=1, run_id="two")

    two, one = face.runs()

    assert one == Run("t", "completed", (), 0, "one", NOW - 3 * DAY, NOW - 2 * DAY, 2, one.number)
    assert two == Run("t", "running", ("node",), 1, "two", NOW - DAY, NOW - DAY, 1, two.number)
    assert [type(field) for field in two] == [str, str, tuple, int, str, datetime, datetime, int, int]


def test_of_an_empty_file_there_is_nothing_to_list(face: Face) -> None:
    assert list(face.threads()) == []
    assert list(face.runs()) == []
    assert list(face.runs("t")) == []


@pytest.mark.parametrize("step", [None, "third", 2.5])
def test_a_step_is_given_as_metadata_has_it_if_it_is_a_number(face: Face, step: Any) -> None:
    stored(face, "t", step=step)
    assert face.threads()[0].step == face.runs()[0].step == (step if isinstance(step, float) else None)


# --- status ---


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def graph_with_a_question(saver: SqliteSaver, mood: dict[str, bool]) -> Any:
    def ask(state: State) -> Any:
        return {"log": [interrupt("well?")]}

    def work(state: State) -> Any:
        if mood["fails"]:
            raise RuntimeError("the machine says no")
        return {"log": ["worked"]}

    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_node("work", work)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", "work")
    return builder.compile(checkpointer=saver)


def test_the_status_follows_a_run_from_its_question_over_its_failure_to_its_end(face: Face) -> None:
    mood = {"fails": True}
    graph, at = graph_with_a_question(face.saver, mood), config("t")

    def seen() -> set[tuple[str, tuple[str, ...]]]:
        [thread], [run] = face.threads(), face.runs("t")
        return {(thread.status, thread.next), (run.status, run.next)}

    graph.invoke({"log": []}, at)
    assert seen() == {("interrupted", ("ask",))}
    with pytest.raises(RuntimeError, match="says no"):
        graph.invoke(Command(resume="yes"), at)
    assert seen() == {("failed", ("work",))}
    mood["fails"] = False
    graph.invoke(None, at)
    assert seen() == {("completed", ())}


@pytest.fixture
def each_status(face: Face) -> Face:
    """Three threads in each state, mixed."""
    for number in range(12):
        thread(face, f"{STATUSES[number % 4]} {number}", STATUSES[number % 4])
    return face


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("listing", ["threads", "runs"])
def test_only_those_in_the_wanted_state_are_listed(each_status: Face, listing: str, status: str) -> None:
    found = getattr(each_status, listing)(status=status)

    start = STATUSES.index(status)
    assert names(found) == [f"{status} {number}" for number in (start + 8, start + 4, start)]
    assert {row.status for row in found} == {status}
    assert {row.next for row in found} == {() if status == "completed" else ("node",)}
    assert names(getattr(each_status, listing)(status=status, limit=2)) == names(found)[:2]
    assert names(getattr(each_status, listing)(status=status, after=found[0])) == names(found)[1:]


@pytest.mark.parametrize("status", ["done", "", "COMPLETED", 5, ["completed"]])
@pytest.mark.parametrize("listing", ["threads", "runs"])
def test_an_unknown_status_is_refused_and_the_known_ones_are_named(face: Face, listing: str, status: Any) -> None:
    with pytest.raises(InvalidRequest, match="completed, interrupted, failed, running"):
        getattr(face, listing)(status=status)


# --- time ---


@pytest.fixture
def days(face: Face) -> Face:
    """Threads last touched five, four, ... days ago, made in another order."""
    for ago in (2, 5, 1, 4, 3):
        thread(face, f"{ago} days", at=NOW - ago * DAY)
    return face


def test_threads_are_chosen_by_when_they_were_last_touched_and_the_bounds_are_strict(days: Face) -> None:
    assert names(days.threads(updated_before=NOW - 3 * DAY)) == ["4 days", "5 days"]
    assert names(days.threads(updated_after=NOW - 3 * DAY)) == ["1 days", "2 days"]
    assert names(days.threads(updated_after=NOW - 4 * DAY, updated_before=NOW - 2 * DAY)) == ["3 days"]
    assert names(days.threads(updated_after=NOW)) == []


def test_a_new_checkpoint_makes_an_old_thread_new(days: Face) -> None:
    [old] = days.threads(updated_before=NOW - 4.5 * DAY)
    stored(days, old.thread_id, at=NOW)
    assert names(days.threads(updated_after=NOW - DAY / 2)) == ["5 days"]
    assert names(days.threads(updated_before=NOW - 4.5 * DAY)) == []


@pytest.mark.parametrize("hours", [-11, 5.5, 14])
def test_bounds_may_be_in_any_time_zone(days: Face, hours: float) -> None:
    bound = (NOW - 3 * DAY).astimezone(timezone(timedelta(hours=hours)))
    assert names(days.threads(updated_before=bound)) == ["4 days", "5 days"]
    assert names(days.threads(updated_after=bound)) == ["1 days", "2 days"]


@pytest.mark.parametrize("bound", ["updated_before", "updated_after"])
def test_a_time_without_a_zone_is_refused(face: Face, bound: str) -> None:
    with pytest.raises(InvalidRequest, match="time zone"):
        face.threads(**{bound: datetime(2026, 1, 1)})
    with pytest.raises(InvalidRequest, match="datetime"):
        face.threads(**{bound: "2026-01-01T00:00:00+00:00"})


# --- pages ---

Listing = Callable[..., Any]


def pages(listing: Listing, limit: int, between: Callable[[list[Any]], None] = lambda page: None) -> list[Any]:
    """Everything, page by page."""
    found: list[Any] = []
    page = list(listing(limit=limit))
    while page:
        assert len(page) <= limit
        assert len(found) < 1000, "the pages begin again"
        found += page
        between(page)
        page = list(listing(limit=limit, after=found[-1]))
    return found


def test_the_newest_thread_comes_first_by_when_it_was_made(days: Face) -> None:
    assert names(days.threads()) == ["3 days", "4 days", "1 days", "5 days", "2 days"]


@pytest.mark.parametrize("listing", ["threads", "runs"])
@pytest.mark.parametrize("limit", [1, 3, 4, 12, 50])
def test_pages_of_any_size_make_up_the_whole(each_status: Face, listing: str, limit: int) -> None:
    whole = list(getattr(each_status, listing)())
    assert len(whole) == 12
    assert pages(getattr(each_status, listing), limit) == whole


def test_a_thread_may_be_named_by_its_id_alone(each_status: Face) -> None:
    whole = each_status.threads()
    assert list(each_status.threads(after=whole[4].thread_id)) == list(whole[5:])


@pytest.mark.parametrize("listing", ["threads", "runs"])
def test_a_limit_of_nothing_gives_nothing_and_others_are_refused(each_status: Face, listing: str) -> None:
    assert list(getattr(each_status, listing)(limit=0)) == []
    for limit in (-1, 2.5, "3"):
        with pytest.raises(InvalidRequest, match="limit"):
            getattr(each_status, listing)(limit=limit)


def test_what_names_no_row_is_refused_as_a_place_to_go_on_from(each_status: Face) -> None:
    for after in ("nobody", 5, object()):
        with pytest.raises(InvalidRequest, match="after"):
            each_status.threads(after=after)
    for after in ("completed 0", 5, each_status.threads()[0]):
        with pytest.raises(InvalidRequest, match="after"):
            each_status.runs(after=after)


@pytest.mark.parametrize("listing", ["threads", "runs"])
def test_pages_stay_put_while_threads_come_change_and_go(each_status: Face, listing: str) -> None:
    """Each that was there all the time is seen once: none twice, none left out, and the listing ends."""
    before = names(getattr(each_status, listing)())
    gone: list[str] = []

    def meanwhile(page: list[Any]) -> None:
        gone.append(page[-1].thread_id)
        each_status.delete_thread(page[-1].thread_id)  # the very one that the next page begins after
        each_status.prune([page[0].thread_id])
        thread(each_status, f"new {len(gone)}")
        left = [name for name in before if name not in gone]
        stored(each_status, left[0], run_id=each_status.runs(left[0])[0].run_id)
        stored(each_status, left[-1], run_id=each_status.runs(left[-1])[0].run_id)

    found = pages(getattr(each_status, listing), 3, meanwhile)

    assert names(found) == before
    assert len(gone) == 4


def test_a_loop_that_deletes_all_that_it_lists_ends_and_leaves_nothing(each_status: Face) -> None:
    found = pages(each_status.threads, 5, lambda page: [each_status.delete_thread(row.thread_id) for row in page] and None)
    assert len(found) == 12
    assert list(each_status.threads()) == []


def test_the_runs_of_one_thread_are_listed_alone(face: Face) -> None:
    for number in range(3):
        for name in ("a", 5):
            stored(face, name, run_id=f"run {number} of {name}")
    assert [run.run_id for run in face.runs("a")] == ["run 2 of a", "run 1 of a", "run 0 of a"]
    assert [run.run_id for run in face.runs(5, limit=2)] == ["run 2 of 5", "run 1 of 5"]
    assert [run.run_id for run in face.runs("5", after=face.runs(5)[0])] == ["run 1 of 5", "run 0 of 5"]
    assert list(face.runs("nobody")) == []
    assert len(face.runs()) == 6


# --- what it costs ---

LISTINGS: dict[str, Callable[[Any], Any]] = {
    "threads": lambda face: face.threads(limit=10),
    "threads in a state": lambda face: face.threads(status="completed", limit=10),
    "threads since": lambda face: face.threads(updated_after=NOW - 900 * DAY, limit=10),
    "runs": lambda face: face.runs(limit=10),
    "runs in a state": lambda face: face.runs(status="completed", limit=10),
    "runs of a thread": lambda face: face.runs("t", limit=10),
}
listings = pytest.mark.parametrize("listing", LISTINGS)


@listings
def test_no_value_is_read_for_a_listing(watch: Watch, open_face: Any, path: Path, listing: str) -> None:
    with SqliteSaver(path) as writer:
        for status in STATUSES:
            thread(writer, "t" if status == "completed" else status, status, values={"big": ["x" * 1000] * 100})
    face = open_face()
    watch.forget()

    assert len(LISTINGS[listing](face)) > 0

    assert ("checkpoint", "next") in watch.columns
    assert watch.columns & VALUES == set()
    face.get_tuple(config())
    assert {("blob", "data"), ("checkpoint", "body")} <= watch.columns, "the watch sees nothing"


@listings
def test_a_page_costs_as_much_in_a_file_fifty_times_as_large(
    watch: Watch, saver: SqliteSaver, path: Path, listing: str
) -> None:
    thread(saver, "t", checkpoints=1)
    for number in range(30):
        thread(saver, f"t {number}", checkpoints=1)
    stored(saver, "t", run_id="another")

    def cost() -> int:
        LISTINGS[listing](saver)  # statements are prepared, pages at hand
        watch.forget()
        LISTINGS[listing](saver)
        return watch.steps

    small = cost()
    sql(
        path,
        "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 1500) INSERT INTO namespace (thread_id, checkpoint_ns) SELECT 'more ' || i, '' FROM n",
    )
    columns = ", ".join(
        name
        for (_, name, *_) in sql(path, "PRAGMA table_info(checkpoint)")
        if name not in ("seq", "namespace", "checkpoint_id", "run_id")
    )
    sql(
        path,
        f"INSERT INTO checkpoint (namespace, checkpoint_id, run_id, {columns}) SELECT n.id, 'c ' || n.id, 'r ' || n.id, {columns} FROM namespace n CROSS JOIN checkpoint WHERE seq = 1 AND n.thread_id LIKE 'more %'",
    )
    assert len(saver.threads()) == 1531

    assert cost() < 1.5 * small + 100


def test_one_long_thread_is_listed_as_quickly_as_a_short_one_but_for_counting(
    watch: Watch, saver: SqliteSaver, path: Path
) -> None:
    put(saver, {"a": 1})
    multiply(path, 5000)
    saver.threads()
    watch.forget()

    [found] = saver.threads()

    assert found.checkpoints == 5001
    assert watch.steps < 5001 * 5 + 500  # a count over an index: a few steps for each


def test_listing_changes_nothing_and_a_damaged_value_is_in_nobodys_way(each_status: Face, path: Path) -> None:
    whole = list(each_status.threads()), list(each_status.runs())
    sql(path, "UPDATE checkpoint SET body = zeroblob(3), metadata = 'no json'")
    sql(path, "UPDATE write SET data = zeroblob(3)")
    before = rows(path)

    assert (list(each_status.threads()), list(each_status.runs())) == whole
    assert rows(path) == before


@pytest.mark.parametrize("options", [{"read_only": True}, {"at": ":memory:"}], ids=["read-only", "in memory"])
def test_listings_work_read_only_and_in_memory(open_face: Any, path: Path, options: Any) -> None:
    with SqliteSaver(path) as writer:
        thread(writer, "t")
    face = open_face(**options)
    if "at" in options:
        thread(face.saver, "t")
    assert (names(face.threads()), names(face.runs())) == (["t"], ["t"])
