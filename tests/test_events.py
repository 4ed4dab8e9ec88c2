"""`on_event`: what is told, where and when; that a hook can do no harm, and that none costs nothing."""

import asyncio
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config, put
from sqlfile import sql
from steps import begun, step

from langgraph_sqlite_ckpt import BusyError, Event, Flush, InvalidRequest, SqliteSaver, ThreadBusy

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 warns of forks
SECONDS = 20.0


class Told:
    """A hook, and what it was told, in order. On the async face that comes a moment after the call."""

    def __init__(self) -> None:
        self._told: queue.Queue[Event] = queue.Queue()
        self.threads: list[int] = []

    def __call__(self, event: Event) -> None:
        self.threads.append(threading.get_ident())
        self._told.put(event)

    def next(self, *operations: str) -> Event:
        """The next one of these, or that is no commit."""
        while True:
            event = self._told.get(timeout=SECONDS)
            if event.operation in operations or (not operations and event.operation != "commit"):
                return event

    @property
    def rest(self) -> list[str]:
        return [self._told.get_nowait().operation for _ in range(self._told.qsize())]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def watched(open_face: Callable[..., Face], told: Told) -> Face:
    return open_face(on_event=told)


def test_each_write_makes_an_event_with_its_thread_its_bytes_and_its_time(watched: Face, told: Told) -> None:
    at = put(watched, {"text": "x" * 5000})
    stored = told.next("put")
    assert (stored.thread_id, stored.items, stored.error) == ("t", None, None)
    assert 5000 <= (stored.bytes or 0) < 6000
    assert 0 < stored.seconds < SECONDS

    watched.put_writes(at, [("a", "y" * 3000)], "task")
    assert 0 < (told.next("put_writes").bytes or 0) < 4000
    watched.copy_thread("t", "u")
    assert told.next().operation == "copy_thread"
    watched.prune(["t"])
    assert told.next().operation == "prune"
    watched.delete_for_runs(["x"])
    assert told.next().operation == "delete_for_runs"
    watched.delete_thread("u")
    assert told.next()[0::2][:2] == ("delete_thread", "u")


def test_each_read_makes_an_event(watched: Face, told: Told, path: Path) -> None:
    with SqliteSaver(path) as other:
        for number in range(12):
            put(other, {"text": "x" * 5000, "n": [number]})

    assert watched.get_tuple(config()) is not None
    found = told.next()
    assert (found.operation, found.thread_id) == ("get_tuple", "t")
    assert (found.bytes or 0) > 0
    assert watched.get_tuple(config("nobody")) is None
    assert told.next().bytes is None
    assert len(list(watched.list(config()))) == 12
    assert [(told.next().operation, page) for page in (8, 4, None)] == [("list", 8), ("list", 4), ("list", None)]
    watched.get_delta_channel_history(config=config(), channels=["n"])
    assert told.next().operation == "get_delta_channel_history"
    watched.threads()
    assert told.next("threads").items == 1
    watched.runs("t")
    assert told.next("runs").items == len(watched.runs("t"))


def test_upkeep_says_what_it_did(watched: Face, told: Told, path: Path) -> None:
    for number in range(3):
        put(watched, {"text": ["x" * 5000]}, step=number)
    watched.verify()
    assert told.next("verify").items == 0
    watched.stats()
    assert told.next().operation == "stats"
    watched.effects()
    assert told.next("runs", "effects").items == 0
    watched.backup(path.with_suffix(".copy"))
    assert told.next().bytes == path.with_suffix(".copy").stat().st_size
    swept = watched.sweep(idle_for=timedelta(0))
    event = told.next("sweep")
    assert (event.bytes, event.items) == (swept.bytes, swept.checkpoints) == (event.bytes, 3)
    given_back = watched.compact()
    assert told.next("compact").bytes == given_back
    watched.migrate_all()
    assert told.next("migrate_all").items == 0
    watched.flush()
    assert told.next().operation == "flush"
    watched.close()
    assert told.next().operation == "close"


def test_claims_make_events_and_a_refused_one_carries_its_error(watched: Face, told: Told, path: Path) -> None:
    with watched.saver.claim("t"):
        assert told.next()[0::2][:2] == ("claim", "t")
        with SqliteSaver(path, on_event=told) as other, pytest.raises(ThreadBusy) as busy:
            other.claim("t").__enter__()
        refused = told.next("claim")
        assert refused.error is busy.value
    assert told.next("release").thread_id == "t"


def test_an_error_that_a_call_raises_stands_in_its_event(open_face: Callable[..., Face], told: Told, path: Path) -> None:
    watched = open_face(on_event=told, busy_timeout=0)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(BusyError) as busy:
            put(watched, {"a": "x"})
    event = told.next("put")
    assert event.error is busy.value
    assert event.bytes is None
    watched.close()
    with pytest.raises(Exception, match="closed"):
        watched.get_tuple(config())


def test_a_commit_counts_what_shared_it(path: Path, told: Told) -> None:
    async def main() -> None:
        async with SqliteSaver(path, on_event=told) as saver:
            made = [checkpoint({"a": number}) for number in range(20)]
            await asyncio.gather(*(saver.aput(config(), one, {}, one["channel_versions"]) for one in made))

    asyncio.run(main())
    counts = []
    while sum(counts) < 20:
        event = told.next("commit")
        counts.append(event.items or 0)
        assert event.thread_id is None
    assert len(counts) < 20
    assert sum(counts) == 20


def test_a_flush_counts_the_operations_that_waited(path: Path, told: Told) -> None:
    with SqliteSaver(path, flush=Flush(steps=100), on_event=told) as saver:
        at = begun(saver)
        for _ in range(5):
            at = step(saver, at)
        assert told.rest == ["commit", *["put"] * 6]
        saver.flush()
        assert [told.next("commit").items, told.next().operation] == [5, "flush"]


def test_what_a_policy_writes_in_the_background_is_told_too(path: Path, told: Told) -> None:
    with SqliteSaver(path, flush=Flush(seconds=0.05), on_event=told) as saver:
        at = begun(saver)
        told.next("put")
        step(saver, at)
        assert told.next("commit").items == 1
        assert told.threads[-1] != threading.get_ident()


# --- where and when ---


def test_a_sync_call_tells_on_its_own_thread_before_it_returns(path: Path, told: Told) -> None:
    with SqliteSaver(path, on_event=told) as saver:
        put(saver, {"a": "x"})
        assert told.rest == ["commit", "put"]
        assert {*told.threads} == {threading.get_ident()}


def test_a_hook_that_blocks_holds_up_neither_the_event_loop_nor_the_task_that_waits(path: Path) -> None:
    is_done = threading.Event()
    on_loop: list[bool] = []

    def hook(event: Event) -> None:
        on_loop.append(threading.current_thread() is threading.main_thread())
        if event.operation in ("put", "get_tuple"):
            assert is_done.wait(SECONDS)

    async def main() -> None:
        saver = SqliteSaver(path, on_event=hook)
        one = checkpoint({"a": ["x"]})
        await asyncio.wait_for(saver.aput(config(), one, {}, one["channel_versions"]), SECONDS / 2)
        await asyncio.wait_for(saver.aget_tuple(config()), SECONDS / 2)
        is_done.set()
        await saver.aclose()

    asyncio.run(main())
    assert on_loop
    assert not any(on_loop)


CALLS: list[Callable[[Any], object]] = [
    lambda face: put(face, {"a": ["y"]}),
    lambda face: face.get_tuple(config()),
    lambda face: list(face.list(config())),
    lambda face: face.copy_thread("t", "u"),
    lambda face: face.delete_thread("u"),
    lambda face: face.sweep(keep_last=1),
    lambda face: face.flush(),
    lambda face: face.threads(),
    lambda face: face.verify(),
]


@pytest.mark.parametrize("flush", [None, Flush(steps=3)], ids=["each step", "flush"])
def test_a_hook_may_use_the_saver_and_the_file_as_nothing_is_held(
    open_face: Callable[..., Face], path: Path, flush: Flush | None
) -> None:
    told: queue.Queue[str | BaseException] = queue.Queue()

    def hook(event: Event) -> None:
        try:
            with closing(sqlite3.connect(path, isolation_level=None, timeout=5)) as other:
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
            put(face.saver, {"a": "x"}, at=config("hook"))
            face.saver.get_tuple(config("hook"))
            told.put(event.operation)
        except BaseException as error:
            told.put(error)

    face = open_face(on_event=hook, flush=flush)
    begun(face)
    for call in CALLS:
        call(face)
    face.flush()
    expected = "put put get_tuple list list copy_thread delete_thread sweep flush threads verify flush".split()
    seen: list[str] = []
    while len(seen) < len(expected):
        said = told.get(timeout=SECONDS)
        assert isinstance(said, str), said
        seen += [said] if said != "commit" else []
    assert sorted(seen) == sorted(expected)  # on the async face several threads tell


def test_close_in_a_signal_handler_does_not_tell_in_the_middle_of_the_call_that_it_interrupted(path: Path) -> None:
    told: list[tuple[str, bool]] = []

    def hook(event: Event) -> None:
        told.append((event.operation, saver._shared.database._writing.lock.locked()))

    saver = SqliteSaver(path, on_event=hook)
    with saver._shared.events.later():  # a call is under way on this thread
        put(saver, {"a": "x"})
        saver.close()
        assert told == []
    assert told == [("commit", False), ("put", False), ("close", False)]


# --- no harm ---


def test_what_a_hook_raises_harms_no_call_and_is_logged_once(
    open_face: Callable[..., Face], caplog: pytest.LogCaptureFixture
) -> None:
    calls: queue.Queue[str] = queue.Queue()

    def hook(event: Event) -> None:
        calls.put(event.operation)
        raise RuntimeError("the metrics server is down")

    with caplog.at_level(logging.ERROR, "langgraph_sqlite_ckpt"):
        face = open_face(on_event=hook)
        put(face, {"a": "x"})
        assert face.get_tuple(config()) is not None
        assert [calls.get(timeout=SECONDS) for _ in range(3)] == ["commit", "put", "get_tuple"]
    [record] = caplog.records
    assert "on_event raised" in record.message
    assert "the metrics server is down" in caplog.text


def test_a_hook_that_uses_its_saver_is_not_told_of_that(path: Path) -> None:
    seen: list[str] = []

    def hook(event: Event) -> None:
        seen.append(event.operation)
        put(saver, {"a": "x"})

    with SqliteSaver(path, on_event=hook) as saver:
        saver.threads()
    assert seen == ["threads", "close"]


def test_copies_of_a_saver_share_the_hook_and_a_forked_child_tells_its_own(path: Path) -> None:
    told = Told()
    with SqliteSaver(path, on_event=told) as saver:
        put(saver.with_allowlist([("x", "Y")]), {"a": "x"})
        assert told.next().operation == "put"
        told.rest  # noqa: B018  # forgets
        child = os.fork()
        if not child:
            put(saver, {"a": "x"})
            os._exit(0 if told.rest == ["commit", "put"] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert told.rest == []


def test_without_a_hook_nothing_is_timed_or_noted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("somebody timed or noted something")

    for name in ("_Timing", "_Later", "_Watched", "Event"):
        monkeypatch.setattr(f"langgraph_sqlite_ckpt.events.{name}", never)
    with SqliteSaver(path) as saver:
        put(saver, {"a": "x"})
        for call in CALLS:
            call(saver)
    assert sql(path, "SELECT count(*) FROM checkpoint") == [(1,)]


async def _hook(_: Event) -> None:
    pass


@pytest.mark.parametrize("odd", ["log", 1, _hook], ids=["text", "number", "coroutine function"])
def test_what_cannot_be_a_hook_is_refused(path: Path, odd: Any) -> None:
    with pytest.raises(InvalidRequest, match="on_event"):
        SqliteSaver(path, on_event=odd)
    assert not path.exists()
