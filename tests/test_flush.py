"""How often to save: what waits, what never does, and what a kill loses."""

import asyncio
import gc
import json
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import Face, checkpoint, config
from langgraph.checkpoint.memory import InMemorySaver
from scripts import run, start
from sqlfile import KNOWS_CODES, Tap, sql, tap
from steps import begun, id_of, ids_on_disk, on_disk, step, write, writes_on_disk
from test_graphs_match_memory import TURNS, Teller, require_same

from langgraph_sqlite_ckpt import (
    BusyError,
    ClosedError,
    EncodeError,
    Flush,
    InvalidRequest,
    ReadOnlyError,
    SqliteSaver,
    StorageError,
    buffer,
    keeper,
)
from langgraph_sqlite_ckpt.blobs import Limits

__all__ = ["tap"]

LAZY = Flush(steps=1000)
"""Nothing is written for the number of steps."""


def eventually(happens: Callable[[], bool], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.fixture
def lazy(open_face: Callable[..., Face]) -> Face:
    return open_face(flush=LAZY)


# --- the policy ---


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"nodes": ()},
        {"steps": 0},
        {"steps": -1},
        {"steps": True},
        {"steps": 1.5},
        {"steps": "5"},
        {"seconds": 0},
        {"seconds": -1.0},
        {"seconds": float("inf")},
        {"seconds": float("nan")},
        {"seconds": True},
        {"nodes": "work"},
        {"nodes": {1}},
    ],
    ids=repr,
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidRequest):
        Flush(**wrong)


def test_a_policy_is_a_value() -> None:
    assert Flush(steps=5, nodes=["a", "b"]) == Flush(steps=5, nodes={"b", "a"})
    assert hash(Flush(nodes=["a"])) == hash(Flush(nodes={"a"}))


def test_a_saver_takes_a_policy_and_nothing_else(path: Path) -> None:
    with pytest.raises(InvalidRequest, match="Flush"):
        SqliteSaver(path, flush=5)  # type: ignore[arg-type]


# --- what waits ---


def test_steps_wait_in_memory_and_go_to_disk_in_order(lazy: Face, path: Path) -> None:
    stored = [begun(lazy)]
    for _ in range(5):
        stored.append(step(lazy, stored[-1]))
        write(lazy, stored[-1])
    assert on_disk(path) == 1

    lazy.flush()

    assert ids_on_disk(path) == [id_of(one) for one in stored]
    assert writes_on_disk(path) == 5


def test_so_many_steps_go_to_disk_together(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(steps=3))
    parent, seen = begun(face), []
    for _ in range(7):
        write(face, parent)
        parent = step(face, parent)
        seen.append(on_disk(path) - 1)
    assert seen == [0, 0, 3, 3, 3, 6, 6]
    assert writes_on_disk(path) == 6


def test_steps_count_in_whatever_namespace_of_the_thread(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(steps=3))
    step(face, begun(face))
    inner = step(face, at=config("t", "call:1"), source="input")
    assert on_disk(path) == 1
    step(face, inner)
    assert on_disk(path) == 4


def test_each_thread_waits_for_itself(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(steps=3))
    parents = {name: begun(face, at=config(name)) for name in ("a", "b")}
    for _ in range(2):
        parents = {name: step(face, parent) for name, parent in parents.items()}
    step(face, parents["a"])
    assert on_disk(path) == 2 + 3


def test_with_steps_1_a_step_goes_to_disk_with_what_its_tasks_wrote(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(steps=1))
    parent = begun(face)
    write(face, parent)
    assert writes_on_disk(path) == 0
    step(face, parent)
    assert (on_disk(path), writes_on_disk(path)) == (2, 1)


def test_what_has_waited_for_the_time_is_written_by_itself(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(seconds=0.2))
    before = time.monotonic()
    step(face, begun(face))
    assert on_disk(path) == 1
    assert eventually(lambda: on_disk(path) == 2)
    assert 0.2 <= time.monotonic() - before


def test_a_call_after_the_time_writes_even_where_nothing_else_could(
    open_face: Callable[..., Face], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper.Keeper, "ring", lambda self: None)  # starved
    face = open_face(flush=Flush(seconds=3600))
    parent = step(face, begun(face))
    later = time.monotonic() + 3600
    monkeypatch.setattr(buffer.time, "monotonic", lambda: later)
    step(face, parent)
    assert on_disk(path) == 3


def test_what_is_large_does_not_wait(lazy: Face, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "_HEAVY", 100_000)
    parent = step(lazy, begun(lazy), values={"a": ["x" * 60_000]})
    assert on_disk(path) == 1
    step(lazy, parent, values={"a": ["x" * 60_000]})
    assert on_disk(path) == 3


def test_a_value_is_that_of_the_moment_at_which_it_was_put(lazy: Face) -> None:
    notes, read = ["first"], {"b": [1]}
    parent = step(lazy, begun(lazy), values={"notes": notes, **read})
    lazy.put_writes(parent, [("notes", notes)], "task")
    notes.append("second")
    found = lazy.get_tuple(config())
    assert found.checkpoint["channel_values"]["notes"] == ["first"]
    assert found.pending_writes == [("task", "notes", ["first"])]


def test_a_value_that_does_not_change_is_taken_from_the_step_that_brought_it(lazy: Face, path: Path) -> None:
    """It is not encoded again, and not stored again."""
    parent = begun(lazy)
    made = checkpoint({"doc": ["a line"] * 200, "n": [0]})
    for number in range(4):
        made = {**made, "id": f"{made['id'][:-1]}{number}", "channel_values": {**made["channel_values"], "n": [number]}}
        made["channel_versions"] = {**made["channel_versions"], "n": f"{number + 1:032}.1"}
        fresh = dict(made["channel_versions"]) if not number else {"n": made["channel_versions"]["n"]}
        made["channel_values"] |= {"branch:to:work": None}
        parent = lazy.put(parent, made, {"source": "loop", "step": number, "parents": {}}, fresh)
    assert on_disk(path) == 1
    assert [item.checkpoint["channel_values"]["doc"] for item in lazy.list(config(), limit=4)] == [["a line"] * 200] * 4
    assert sql(path, "SELECT channel, count(*) FROM blob GROUP BY channel") == [("doc", 1), ("n", 4)]


def test_a_value_that_cannot_be_stored_raises_at_once_and_changes_nothing(lazy: Face, path: Path) -> None:
    parent = step(lazy, begun(lazy))
    for wrong in (lambda: step(lazy, parent, values={"a": [object()]}), lambda: write(lazy, parent, "a", object())):
        with pytest.raises(EncodeError, match="'a'"):
            wrong()
    lazy.flush()
    assert (on_disk(path), writes_on_disk(path)) == (2, 0)


def test_a_private_memory_and_a_file_that_is_only_read_have_nothing_to_wait_for(path: Path) -> None:
    with SqliteSaver(":memory:", flush=LAZY) as saver:
        step(saver, begun(saver))
        assert len(list(saver.list(None))) == 2
        assert saver._shared.writer is saver._shared.database
    SqliteSaver(path).close()
    with SqliteSaver(path, read_only=True, flush=LAZY) as saver, pytest.raises(ReadOnlyError):
        step(saver)


def test_without_a_policy_nothing_stands_between_saver_and_file(path: Path) -> None:
    with SqliteSaver(path) as saver:
        assert saver._shared.writer is saver._shared.database
        saver.flush()


def test_values_that_grow_take_the_same_space_as_when_each_step_is_written(tmp_path: Path) -> None:
    sizes = set()
    for flush in (None, Flush(steps=7), LAZY):
        file = tmp_path / f"{flush and flush.steps}.db"
        with SqliteSaver(file, synchronous="normal", flush=flush) as saver:
            parent = begun(saver)
            for number in range(60):
                values = {"log": [f"line {n} {n * 7919}" for n in range(10 * number)]}
                parent = step(saver, parent, values=values)
            assert saver.verify() == []
        sizes.add(sql(file, "SELECT sum(length(data)) FROM blob")[0][0])
    assert len(sizes) == 1


# --- what never waits ---

Trigger = Callable[[Any, Any], Any]
TRIGGERS: dict[str, Trigger] = {
    "an input": lambda face, parent: step(face, parent, source="input"),
    "an update": lambda face, parent: step(face, parent, source="update"),
    "a fork": lambda face, parent: step(face, parent, source="fork"),
    "the end of the run": lambda face, parent: step(face, parent, due=[]),
    "an interrupt": lambda face, parent: write(face, parent, "__interrupt__", "well?"),
    "an error": lambda face, parent: write(face, parent, "__error__", "no"),
    "a resume": lambda face, parent: write(face, parent, "__resume__", "yes"),
    "a caller's command": lambda face, parent: write(face, parent, "a", 1, "00000000-0000-0000-0000-000000000000"),
    "a named node is next": lambda face, parent: step(face, parent, due=["other", "pay"]),
    "what follows an unknown checkpoint": lambda face, parent: step(face, config(checkpoint_id="unknown")),
    "reading the thread": lambda face, parent: face.get_tuple(config()),
    "reading a checkpoint": lambda face, parent: face.get_tuple(parent),
    "reading the thread's history": lambda face, parent: list(face.list(config())),
    "reading everything": lambda face, parent: list(face.list(None)),
    "reading a DeltaChannel": lambda face, parent: face.get_delta_channel_history(config=parent, channels=["a"]),
    "threads": lambda face, parent: face.threads(),
    "runs": lambda face, parent: face.runs(),
    "runs of the thread": lambda face, parent: face.runs("t"),
    "stats": lambda face, parent: face.stats(),
    "verify": lambda face, parent: face.verify(),
    "sweep": lambda face, parent: face.sweep(keep_last=1000),
    "delete_thread": lambda face, parent: face.delete_thread("another"),
    "delete_for_runs": lambda face, parent: face.delete_for_runs(["another"]),
    "copy_thread": lambda face, parent: face.copy_thread("t", "copy"),
    "prune": lambda face, parent: face.prune(["another"]),
    "flush": lambda face, parent: face.flush(),
    "close": lambda face, parent: face.close(),
}


@pytest.mark.parametrize("name", TRIGGERS)
def test_at_once_with_all_that_waits_of_the_thread(name: str, open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(steps=1000, nodes={"pay"}))
    parent = step(face, step(face, begun(face)))
    write(face, parent)
    assert (on_disk(path), writes_on_disk(path)) == (1, 0)

    TRIGGERS[name](face, parent)

    assert id_of(parent) in ids_on_disk(path)
    assert writes_on_disk(path) >= 1
    assert sql(path, "SELECT count(*) FROM write WHERE channel = 'a'")[0][0] >= 1


@pytest.mark.parametrize("name", [name for name in TRIGGERS if "read" not in name and "of the thread" not in name])
def test_another_thread_waits_on_where_the_call_is_about_one_thread(
    name: str, open_face: Callable[..., Face], path: Path
) -> None:
    face = open_face(flush=Flush(steps=1000, nodes={"pay"}))
    other = step(face, begun(face, at=config("other")))
    parent = step(face, begun(face))

    TRIGGERS[name](face, parent)

    waits = id_of(other) not in ids_on_disk(path)
    assert waits == (name.startswith(("an ", "a ", "the ", "what ")))


def test_reading_a_thread_leaves_other_threads_waiting(lazy: Face, path: Path) -> None:
    step(lazy, begun(lazy, at=config("other")))
    step(lazy, begun(lazy))
    lazy.get_tuple(config())
    assert on_disk(path) == 3


def test_a_page_of_a_listing_shows_what_was_put_since_the_listing_began(path: Path) -> None:
    with SqliteSaver(path, flush=LAZY) as saver:
        listing = saver.list(config())
        step(saver, begun(saver))
        assert len(list(listing)) == 2


def test_all_that_waits_and_what_makes_it_go_are_one_transaction(tap: Tap, path: Path) -> None:
    with SqliteSaver(path, flush=LAZY) as saver:
        parent = begun(saver)
        for _ in range(10):
            parent = step(saver, parent, values={"log": ["x" * 400]})
            write(saver, parent)
        tap.forget()
        step(saver, parent, due=[])
        assert (tap.count("BEGIN IMMEDIATE"), tap.count("COMMIT")) == (1, 1)
        assert on_disk(path) == 12


def test_flushing_all_threads_is_one_transaction(tap: Tap, path: Path) -> None:
    with SqliteSaver(path, flush=LAZY) as saver:
        for name in "abc":
            step(saver, begun(saver, at=config(name)))
        tap.forget()
        saver.flush()
        assert tap.count("COMMIT") == 1
        tap.forget()
        saver.flush()
        assert tap.statements == []


def test_what_a_named_node_writes_and_the_checkpoint_after_it_do_not_wait(
    open_face: Callable[..., Face], path: Path
) -> None:
    face = open_face(flush=Flush(nodes={"pay"}))
    before = step(face, begun(face), due=["pay"])
    assert on_disk(path) == 2
    write(face, before)
    assert writes_on_disk(path) == 1
    after = step(face, before)
    assert on_disk(path) == 3
    write(face, before, task="late")
    assert writes_on_disk(path) == 2
    write(face, after)
    last = step(face, after)
    assert (on_disk(path), writes_on_disk(path)) == (3, 2)
    step(face, last, due=["pay"])
    assert (on_disk(path), writes_on_disk(path)) == (5, 3)


def test_what_a_task_writes_waits_also_where_it_comes_before_its_checkpoint(lazy: Face, path: Path) -> None:
    """As it may with LangGraph's durability "async"."""
    parent = step(lazy, begun(lazy))
    write(lazy, config(checkpoint_id=f"{id_of(parent)[:-1]}g"))
    assert writes_on_disk(path) == 0
    step(lazy, parent, due=[])
    assert writes_on_disk(path) == 1


def test_after_a_look_at_the_thread_what_follows_is_written_at_once(lazy: Face, path: Path) -> None:
    """A run may begin there, from a checkpoint of another process: whatever is due there may be a named node."""
    parent = step(lazy, begun(lazy))
    lazy.get_tuple(config())
    write(lazy, parent)
    assert writes_on_disk(path) == 1
    last = step(lazy, step(lazy, parent))
    assert on_disk(path) == 3
    lazy.get_tuple(config())
    assert id_of(last) in ids_on_disk(path)


def test_threads_whose_runs_were_given_up_do_not_fill_the_memory(lazy: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy.saver._shared._buffer, "_many", 10)
    monkeypatch.setattr(buffer, "_MANY", 10)
    for number in range(30):
        begun(lazy, at=config(number))
    assert len(lazy.saver._shared._buffer._backlogs) <= 11


def test_a_named_node_in_a_subgraph_is_known_by_its_namespace(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(nodes={"pay"}))
    outer = step(face, begun(face))
    inner = step(face, at=config("t", "call:1"), due=["pay"], source="input")
    assert on_disk(path) == 3
    write(face, outer)
    assert writes_on_disk(path) == 0
    write(face, inner)
    assert writes_on_disk(path) == 2


def test_after_an_interrupt_what_other_tasks_of_the_step_write_does_not_wait(lazy: Face, path: Path) -> None:
    parent = step(lazy, begun(lazy))
    write(lazy, parent, "__interrupt__", "well?", "one")
    write(lazy, parent, task="two")
    assert writes_on_disk(path) == 2


def test_what_comes_after_the_end_of_a_run_does_not_wait_for_a_next_one(lazy: Face, path: Path) -> None:
    parent = step(lazy, begun(lazy))
    step(lazy, parent, due=[])
    write(lazy, parent)
    assert writes_on_disk(path) == 1


def test_a_process_that_does_not_know_how_the_thread_got_there_writes_at_once(path: Path) -> None:
    with SqliteSaver(path, flush=LAZY) as saver:
        parent = step(saver, begun(saver))
    with SqliteSaver(path, flush=LAZY) as saver:
        write(saver, parent)
        assert writes_on_disk(path) == 1
        parent = step(saver, parent)
        assert on_disk(path) == 3
        step(saver, parent)
        assert on_disk(path) == 3


# --- faults ---


def fail_on(tap: Tap, beginning: str, error: type[sqlite3.Error] = sqlite3.OperationalError) -> None:
    def before(db: sqlite3.Connection, statement: str) -> None:
        if statement.startswith(beginning):
            raise error("injected")

    tap.before = before


@pytest.mark.parametrize("statement", ["BEGIN IMMEDIATE", "INSERT INTO checkpoint", "INSERT INTO blob", "COMMIT"])
def test_a_flush_that_fails_raises_where_it_was_asked_for_and_loses_nothing(
    statement: str, tap: Tap, open_face: Callable[..., Face], path: Path
) -> None:
    face = open_face(flush=Flush(steps=3))
    stored = [begun(face)]
    for number in range(2):
        stored.append(step(face, stored[-1], values={"log": ["x" * 300 * (number + 1)]}))
    fail_on(tap, statement)
    with pytest.raises(StorageError, match="injected"):
        step(face, stored[-1], values={"log": ["never stored"]})
    with pytest.raises(StorageError, match="injected"):
        face.get_tuple(config())
    assert on_disk(path) == 1
    tap.forget()

    stored.append(step(face, stored[-1], values={"log": ["x" * 900]}))

    assert ids_on_disk(path) == [id_of(one) for one in stored]
    assert [len(item.checkpoint["channel_values"]["log"][0]) for item in face.list(config(), limit=3)] == [900, 600, 300]
    assert face.verify() == []


def test_after_a_failure_the_next_call_of_the_thread_writes_at_once(
    tap: Tap, open_face: Callable[..., Face], path: Path
) -> None:
    face = open_face(flush=LAZY)
    parent = step(face, begun(face))
    fail_on(tap, "COMMIT")
    for _ in range(2):
        with pytest.raises(StorageError):
            face.flush()
        with pytest.raises(StorageError):
            write(face, parent)
    tap.forget()
    write(face, parent)
    assert (on_disk(path), writes_on_disk(path)) == (2, 1)


def test_a_failure_in_the_background_is_raised_by_the_next_call_if_it_still_stands(
    tap: Tap, open_face: Callable[..., Face], path: Path
) -> None:
    face = open_face(flush=Flush(seconds=0.05))
    parent = begun(face)
    failed = threading.Event()

    def before(db: sqlite3.Connection, statement: str) -> None:
        if statement == "COMMIT":
            failed.set()
            raise sqlite3.OperationalError("injected")

    tap.before = before
    parent = step(face, parent)
    assert failed.wait(10)
    assert eventually(lambda: backlog_of(face, "t").is_troubled)
    with pytest.raises(StorageError, match="injected"):
        step(face, parent)
    tap.forget()
    step(face, parent)
    face.flush()
    assert on_disk(path) == 3


def backlog_of(face: Face, thread: str) -> buffer.Backlog:
    return face.saver._shared._buffer._backlogs[thread]


def test_a_failure_in_the_background_is_tried_again(tap: Tap, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer, "_TRY_AGAIN", 0.05)
    with SqliteSaver(path, flush=Flush(seconds=0.05)) as saver:
        parent, left = begun(saver), [3]

        def before(db: sqlite3.Connection, statement: str) -> None:
            if statement == "COMMIT" and left[0]:
                left[0] -= 1
                raise sqlite3.OperationalError("injected")

        tap.before = before
        step(saver, parent)
        assert eventually(lambda: on_disk(path) == 2)
        assert left == [0]


def forbidden(face: Face) -> None:
    """From now on values of 2000 bytes and more are found to be too large, when they are packed."""
    shared = face.saver._shared
    object.__setattr__(shared.store, "limits", Limits(compress_from=10**9, delta_from=10**9, value=2000))


def test_one_that_can_never_be_stored_goes_alone(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(steps=4))
    parent = step(face, begun(face))
    bad = step(face, parent, values={"log": ["x" * 3000]})
    good = step(face, parent)
    forbidden(face)
    with pytest.raises(EncodeError, match="too large"):
        step(face, good)
    assert ids_on_disk(path)[1:] == [id_of(parent), id_of(good)]
    last = step(face, good)
    face.flush()
    assert ids_on_disk(path)[1:] == [id_of(parent), id_of(good), id_of(last)]
    assert face.get_tuple(bad) is None


def test_one_that_comes_and_can_never_be_stored_costs_nobody_else(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=Flush(steps=2))
    parent = step(face, begun(face))
    forbidden(face)
    with pytest.raises(EncodeError, match="too large"):
        step(face, parent, values={"log": ["x" * 3000]})
    assert on_disk(path) == 2


def test_one_that_the_background_could_not_store_is_told_to_the_next_call(
    open_face: Callable[..., Face], path: Path
) -> None:
    face = open_face(flush=Flush(seconds=0.1))
    first = begun(face)
    bad = step(face, first, values={"log": ["x" * 3000]})
    good = step(face, bad)
    forbidden(face)
    assert eventually(lambda: backlog_of(face, "t").lost is not None)
    assert ids_on_disk(path) == [id_of(first), id_of(good)]
    with pytest.raises(EncodeError, match="too large"):
        step(face, good)
    step(face, good)
    face.flush()
    assert on_disk(path) == 3


def test_who_closes_is_told_what_could_not_be_written_and_may_try_again(tap: Tap, path: Path) -> None:
    saver = SqliteSaver(path, flush=LAZY)
    parent = step(saver, begun(saver))
    fail_on(tap, "COMMIT")
    with pytest.raises(StorageError):
        saver.close()
    tap.forget()
    step(saver, parent)
    saver.close()
    assert on_disk(path) == 3
    for call in (saver.flush, lambda: step(saver, parent), lambda: saver.get_tuple(config())):
        with pytest.raises(ClosedError):
            call()
    saver.close()


def test_a_thread_that_another_process_deletes_meanwhile_is_stored_on(path: Path) -> None:
    """What waits leans on values that are gone: it is packed anew, against what is there."""
    value = ["x" * 1000]
    with SqliteSaver(path, flush=LAZY) as saver, SqliteSaver(path) as other:
        made = checkpoint({"log": value, "branch:to:work": None})
        parent = saver.put(config(), made, {"source": "input", "step": 0}, dict(made["channel_versions"]))
        second = {**checkpoint({"log": value, "branch:to:work": None}), "channel_versions": made["channel_versions"]}
        parent = saver.put(parent, second, {"source": "loop", "step": 1}, {})
        third = step(saver, parent, values={"log": value + ["more"]})
        other.delete_thread("t")
        assert saver.get_tuple(third).checkpoint["channel_values"]["log"] == value + ["more"]
        assert saver.get_tuple(parent).checkpoint["channel_values"]["log"] == value
        assert saver.verify() == []


def test_ctrl_c_in_a_flush_neither_loses_nor_doubles(tap: Tap, path: Path) -> None:
    for statement in ("BEGIN IMMEDIATE", "INSERT INTO checkpoint", "COMMIT"):
        for moment in ("before", "after"):
            tap.forget()
            with SqliteSaver(path, flush=LAZY) as saver:
                saver.delete_thread("t")
                stored = [begun(saver)]
                stored += [step(saver, stored[0], values={"log": ["x" * 300]}), step(saver, stored[0])]

                def interrupt(db: sqlite3.Connection, seen: str, statement: str = statement) -> None:
                    if seen.startswith(statement):
                        raise KeyboardInterrupt

                setattr(tap, moment, interrupt)
                with pytest.raises(KeyboardInterrupt):
                    saver.flush()
                tap.forget()
                saver.flush()
                assert ids_on_disk(path) == [id_of(one) for one in stored]
                assert saver.verify() == []


async def test_a_cancelled_call_leaves_what_waits_whole(path: Path) -> None:
    async with SqliteSaver(path, flush=Flush(steps=5)) as saver:
        made = [checkpoint({"a": [number], "branch:to:work": None}) for number in range(40)]
        tasks = [
            asyncio.create_task(saver.aput(config(), one, {"source": "loop", "step": 0}, dict(one["channel_versions"])))
            for one in made
        ]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        acknowledged = [one["id"] for one, result in zip(made, done, strict=True) if isinstance(result, dict)]
        await saver.aflush()
        stored = ids_on_disk(path)
        assert len(acknowledged) == 20
        assert [id for id in stored if id in acknowledged] == acknowledged
        assert len(set(stored)) == len(stored)


def test_many_threads_of_python_at_once_lose_nothing(path: Path) -> None:
    with SqliteSaver(path, synchronous="normal", flush=Flush(steps=3, seconds=0.01)) as saver:
        stored: dict[str, list[str]] = {name: [] for name in "abcdef"}

        def agent(name: str) -> None:
            parent = begun(saver, at=config(name))
            for number in range(30):
                stored[name].append(id_of(parent))
                write(saver, parent)
                parent = step(saver, parent, values={"log": [name] * number * 20})
                if number % 7 == 0:
                    saver.get_tuple(config(name))
            stored[name].append(id_of(parent))

        agents = [threading.Thread(target=agent, args=(name,)) for name in stored]
        for one in agents:
            one.start()
        for one in agents:
            one.join()
        for name, ids in stored.items():
            assert [id_of(item.config) for item in saver.list(config(name))] == ids[::-1]
        assert saver.verify() == []
        saver.flush()


def test_a_finished_thread_leaves_nothing_in_memory(lazy: Face) -> None:
    step(lazy, step(lazy, begun(lazy)), due=[])
    assert lazy.saver._shared._buffer._backlogs == {}


# --- ends ---

SOME_STEPS = """
from langgraph_sqlite_ckpt import Flush
import steps as t
def some(saver, name="t"):
    parent = t.begun(saver, at=config(name))
    for _ in range(3):
        parent = t.step(saver, parent)
    return parent
"""


def in_a_process(script: str, path: Path) -> str:
    return run(SOME_STEPS + script, path, flags=["-W", "ignore"])  # nothing is closed


def test_a_normal_exit_writes_what_waits(path: Path) -> None:
    in_a_process("saver = SqliteSaver(PATH, flush=Flush(steps=99)); some(saver)", path)
    assert on_disk(path) == 4


def test_so_does_an_exit_by_an_error(path: Path) -> None:
    with start(
        SOME_STEPS + "saver = SqliteSaver(PATH, flush=Flush(steps=99)); some(saver); raise SystemExit(3)", path
    ) as process:
        process.communicate(timeout=60)
    assert process.returncode == 3
    assert on_disk(path) == 4


def test_what_is_put_while_the_interpreter_ends_does_not_wait(path: Path) -> None:
    script = """
import atexit
saver = SqliteSaver(PATH, flush=Flush(steps=99))
atexit.register(lambda: some(saver, "late"))
"""
    in_a_process(script, path)
    assert on_disk(path) == 4


def test_an_exit_waits_for_a_locked_file_for_a_bounded_time_only(path: Path) -> None:
    script = """
from langgraph_sqlite_ckpt import keeper
keeper._AT_EXIT = 0.3
saver = SqliteSaver(PATH, flush=Flush(steps=99)); some(saver)
other = sqlite3.connect(PATH, isolation_level=None); other.execute("BEGIN IMMEDIATE")
"""
    before = time.monotonic()
    in_a_process(script, path)
    assert time.monotonic() - before < 20
    assert on_disk(path) == 1


def test_a_child_of_multiprocessing_writes_what_waits_when_it_ends(path: Path) -> None:
    script = """
def child():
    global saver
    saver = SqliteSaver(PATH, flush=Flush(steps=99)); some(saver)
process = multiprocessing.get_context("fork").Process(target=child)
process.start(); process.join(); assert process.exitcode == 0
"""
    in_a_process(script, path)
    assert on_disk(path) == 4


def test_a_forked_child_writes_its_own_and_leaves_the_parents_to_it(path: Path) -> None:
    script = """
saver = SqliteSaver(PATH, flush=Flush(steps=99))
parent = some(saver)
if (child := os.fork()) == 0:
    some(saver, "child")
    saver.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(sqlite3.connect(PATH).execute("SELECT count(*) FROM checkpoint").fetchone()[0])
t.step(saver, parent)
saver.close()
"""
    assert in_a_process(script, path).strip() == "5"
    assert on_disk(path) == 9


def test_a_saver_that_nobody_has_any_more_writes_what_waits(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        saver = SqliteSaver(path, flush=LAZY)
        step(saver, begun(saver))
        del saver
        gc.collect()
        assert eventually(lambda: on_disk(path) == 2)
        gc.collect()
        assert eventually(lambda: not keepers())


def keepers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "SqliteSaver flush"]


def test_the_thread_of_a_buffer_ends_with_close(path: Path) -> None:
    before = len(keepers())
    with SqliteSaver(path, flush=Flush(seconds=3600)) as saver:
        begun(saver)
        assert len(keepers()) == before
        step(saver, begun(saver))
        assert len(keepers()) == before + 1
    assert eventually(lambda: len(keepers()) == before)


def test_a_locked_file_makes_the_flush_wait_and_then_say_so(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(flush=LAZY, busy_timeout=0.05)
    parent = step(face, begun(face))
    with sqlite3.connect(path, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        step(face, parent)
        with pytest.raises(BusyError if KNOWS_CODES else StorageError):
            face.flush()
        other.execute("ROLLBACK")
    other.close()
    face.flush()
    assert on_disk(path) == 3


# --- through graphs: the same story as in memory ---

POLICIES = {
    "steps": Flush(steps=3),
    "seconds": Flush(seconds=0.02),
    "nodes": Flush(nodes={"again", "in 2", "ask"}),
    "all": Flush(steps=2, seconds=0.01, nodes={"a"}),
}
GRAPHS = ["loop", "fan-out", "subgraph that persists", "question in a subgraph", "failure", "functional"]
GRAPHS += ["delta, snapshots at times"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_graphs_tell_the_same_story_as_in_memory(policy: str, face: str, tmp_path: Path) -> None:
    for number, name in enumerate(GRAPHS):
        build, turns = TURNS[name]
        durability = ("sync", "async", "exit")[number % 3]
        with SqliteSaver(tmp_path / f"{number}.db", synchronous="normal", flush=POLICIES[policy]) as saver:
            tellers = [Teller(build(saver), face, durability), Teller(build(InMemorySaver()), face, durability)]
            for teller in tellers:
                for turn in turns:
                    if callable(turn):
                        await teller.turn(turn)
                    else:
                        await teller.run(turn)  # no look in between, which would write
                await teller.state()
                await (teller.travel() if name == "failure" else teller.history())
            require_same((tellers[0].story, tellers[1].story))
            assert saver.verify() == []


# --- what a kill loses ---

KILLED = """
import json, signal
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from langgraph_sqlite_ckpt import Flush

class State(TypedDict):
    n: int

def agent(path, waits, saver):
    def work(state):
        n = state["n"] + 1
        if n == 12:
            last = "SELECT coalesce(max(step), -1) FROM checkpoint"  # none is there yet, it may be
            while waits and sqlite3.connect(path).execute(last).fetchone()[0] < 11:
                time.sleep(0.005)
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": n}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_node("pay", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: "pay" if state["n"] in (4, 8) else "work", ["pay", "work"])
    builder.add_edge("pay", "work")
    return builder.compile(checkpointer=saver)

def run(path, policy, durability, face, waits):
    graph = agent(path, waits, SqliteSaver(path, flush=eval(policy)))
    config = {"configurable": {"thread_id": "t"}}
    if face == "sync":
        graph.invoke({"n": 0}, config, durability=durability)
    else:
        asyncio.run(graph.ainvoke({"n": 0}, config, durability=durability))

for number, cell in enumerate(json.loads(sys.argv[2])):  # all in one process: what is imported is imported once
    child = os.fork()
    if child == 0:
        run(f"{PATH}/{number}.db", *cell)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, cell
"""


class Loss(NamedTuple):
    """By policy: after which steps the file is written, up to the kill in step 12."""

    policy: str
    written_after: Sequence[int]
    waits: bool = False  # the kill comes when the time has passed for all that is finished


# 11 steps are finished; step 0 is the input's, which goes to the nodes that are due first.
LOSSES = [
    Loss("None", range(12)),
    Loss("Flush(steps=1)", range(12)),
    Loss("Flush(steps=4)", (3, 7, 11)),
    Loss("Flush(steps=5)", (4, 9)),
    Loss("Flush(seconds=3600)", ()),
    Loss("Flush(seconds=0.05)", range(12), waits=True),
    Loss("Flush(nodes={'pay'})", (4, 5, 8, 9)),
    Loss("Flush(steps=4, nodes={'pay'})", (3, 4, 5, 8, 9)),
]
CELLS = [
    (loss, durability, ("sync", "async")[(number + other) % 2])
    for number, loss in enumerate(LOSSES)
    for other, durability in enumerate(("sync", "async", "exit"))
    if not (loss.waits and durability == "exit")  # there would be nothing to wait for
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    """The file of each cell, after its process was killed."""
    folder = tmp_path_factory.mktemp("killed")
    run(KILLED, folder, json.dumps([(loss.policy, durability, face, loss.waits) for loss, durability, face in CELLS]))
    return {cell: folder / f"{number}.db" for number, cell in enumerate(CELLS)}


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: f"{cell[0].policy}, {cell[1]}, {cell[2]}")
def test_a_kill_loses_what_the_policy_and_the_durability_say(cell: Any, killed: dict[Any, Path]) -> None:
    loss, durability, _ = cell
    path = killed[cell]
    steps = [number for (number,) in sql(path, "SELECT step FROM checkpoint ORDER BY seq")]
    if durability == "exit":
        assert steps == []
        return
    assert steps == list(range(-1, len(steps) - 1))
    last = len(steps) - 2
    if durability == "sync" or loss.waits:
        assert last == [-1, *loss.written_after][-1]
    else:  # LangGraph may have been late with any of them
        assert last in (-2, -1, *loss.written_after)
    with SqliteSaver(path) as saver:
        assert saver.verify() == []
        latest = saver.get_tuple(config())
        assert (latest.metadata["step"] if latest else -2) == last
