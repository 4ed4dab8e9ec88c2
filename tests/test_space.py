"""Space: what is deleted goes back to the disk, and anybody can see what takes it."""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, config, put
from sqlfile import KNOWS_CODES, can_write_at_once, rows, sql, write_lock
from threads import STATUSES, saver, stored, thread

from langgraph_sqlite_ckpt import BusyError, SqliteSaver, StorageError
from langgraph_sqlite_ckpt.overview import Size

__all__ = ["saver"]  # a fixture
PAGE = 4096
SECONDS = 5.0
"""For what must not wait for anybody: much less than the 30 seconds of patience that a saver has."""


def fill(face: Any, name: str, megabytes: int) -> None:
    """With bytes that nothing makes smaller, one megabyte a step."""
    at = config(name)
    for step in range(megabytes):
        at = put(face, {"document": os.urandom(1_000_000)}, parent=at, step=step)


def size(path: Path) -> int:
    return path.stat().st_size


def free_pages(path: Path) -> int:
    [[count]] = sql(path, "PRAGMA freelist_count")
    return int(count)


# --- without being asked ---

DELETES: dict[str, Callable[[Any], Any]] = {
    "delete_thread": lambda face: face.delete_thread("large"),
    "prune away": lambda face: face.prune(["large"], strategy="delete"),
    "prune to the latest": lambda face: face.prune(["large"]),
    "delete_for_runs": lambda face: face.delete_for_runs([run.run_id for run in face.runs("large")]),
    "sweep of old checkpoints": lambda face: face.sweep(keep_last=1),
    "sweep of idle threads": lambda face: face.sweep(idle_for=timedelta(0)),
}


@pytest.mark.parametrize("delete", DELETES)
def test_a_large_delete_makes_the_file_small_without_being_asked(face: Face, path: Path, delete: str) -> None:
    small = stored(face, "small", values={"a": [1] * 500}, due=True)
    before = face.get_tuple(small)
    fill(face, "large", 8)
    face.compact()
    assert size(path) > 8_000_000

    DELETES[delete](face)

    assert size(path) < (1_500_000 if "latest" in delete or "old" in delete else 300_000)
    assert free_pages(path) == 0
    assert face.get_tuple(small) == before
    assert list(face.verify()) == []


def test_small_deletes_leave_their_pages_to_what_comes_next(face: Face, path: Path) -> None:
    """A few free pages are not worth the trouble, and the next checkpoint takes them."""
    fill(face, "kept", 1)
    fill(face, "gone", 2)
    face.compact()
    before = size(path)

    face.delete_thread("gone")
    assert 0 < free_pages(path) < 1024
    fill(face, "new", 2)

    face.compact()
    assert size(path) <= before + 20 * PAGE


# --- when asked ---


def test_compact_gives_all_free_pages_back_and_tells_how_many_bytes(face: Face, path: Path) -> None:
    fill(face, "kept", 1)
    fill(face, "gone", 3)
    face.compact()
    whole = size(path)
    face.delete_thread("gone")
    before = face.stats()
    assert before.free_bytes > 3_000_000
    kept = rows(path)

    given_back = face.compact()

    assert before.free_bytes <= given_back <= before.free_bytes + 100 * PAGE  # with pages that only described others
    assert size(path) == whole - given_back
    assert face.stats().free_bytes == 0
    assert face.stats().file_bytes == size(path)
    assert rows(path) == kept
    assert face.compact() == 0


def test_compact_of_an_empty_file_does_nothing(face: Face, path: Path) -> None:
    told: list[Any] = []
    before = rows(path)
    assert face.compact(lambda *call: told.append(call)) == 0
    assert told == []
    assert rows(path) == before


def free_some(path: Path, face: Any, megabytes: int) -> None:
    """Without the tidying that a delete of ours does."""
    fill(face, "gone", megabytes)
    for table in ("blob", "checkpoint"):
        sql(path, f"DELETE FROM {table} WHERE namespace = (SELECT id FROM namespace WHERE thread_id = 'gone')")
    sql(path, "DELETE FROM namespace WHERE thread_id = 'gone'")


def test_compact_tells_how_far_it_is_after_each_short_step(face: Face, path: Path) -> None:
    free_some(path, face, 20)
    free = face.stats().free_bytes
    told: list[tuple[int, int]] = []

    face.compact(lambda done, whole: told.append((done, whole)))

    assert len(told) > 1
    assert {whole for _, whole in told} == {free}
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert 0 < told[0][0] < told[-1][0] == free


def test_whoever_is_told_may_use_the_saver_and_nothing_is_held_meanwhile(face: Face, path: Path) -> None:
    free_some(path, face, 20)
    could: list[bool] = []

    def told(done: int, whole: int) -> None:
        could.append(can_write_at_once(path))
        put(face.saver, {"a": done}, at=config("told"))
        assert face.saver.get_tuple(config("told")) is not None

    face.compact(told)

    assert len(could) > 1
    assert all(could)
    assert len(list(face.list(config("told")))) == len(could)
    assert list(face.verify()) == []


def test_whoever_is_told_may_stop_it_and_the_rest_can_be_done_later(face: Face, path: Path) -> None:
    free_some(path, face, 20)

    def enough(done: int, whole: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        face.compact(enough)

    assert can_write_at_once(path)
    assert free_pages(path) > 0
    assert face.compact() > 0
    assert free_pages(path) == 0
    assert list(face.verify()) == []


# --- beside others ---


def test_compact_goes_on_beside_writers_and_they_beside_it(face: Face, path: Path) -> None:
    free_some(path, face, 20)
    stop, failed = threading.Event(), list[BaseException]()
    counts = [0, 0]

    def write(number: int, writer: SqliteSaver) -> None:
        at = config(f"writer {number}")
        try:
            while not stop.is_set():
                at = put(writer, {"a": [counts[number]] * 300}, parent=at)
                counts[number] += 1
        except BaseException as error:
            failed.append(error)

    with SqliteSaver(path, synchronous="normal") as other:  # as another process would
        writers = [threading.Thread(target=write, args=item) for item in enumerate((face.saver, other))]
        for writer in writers:
            writer.start()
        while 0 in counts and not failed:
            time.sleep(0.001)
        face.compact(lambda done, whole: time.sleep(0.02))
        stop.set()
        for writer in writers:
            writer.join(60)

    assert failed == []
    assert size(path) < 20_000_000
    for number, count in enumerate(counts):
        assert len(list(face.list(config(f"writer {number}")))) == count > 0
    assert list(face.verify()) == []


def test_compact_waits_for_no_reader_and_cuts_the_file_when_the_reader_is_gone(face: Face, path: Path) -> None:
    free_some(path, face, 6)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        [before] = reader.execute("SELECT count(*) FROM checkpoint").fetchone()
        put(face, {"a": 1})
        started = time.monotonic()

        face.compact()

        assert time.monotonic() - started < SECONDS
        assert face.stats().free_bytes == 0
        put(face, {"a": 2})
        [after] = reader.execute("SELECT count(*) FROM checkpoint").fetchone()
        assert after == before
    face.compact()
    assert size(path) < 1_000_000
    assert face.stats().wal_bytes == 0
    assert list(face.verify()) == []


def test_deletes_wait_for_no_reader_either(face: Face, path: Path) -> None:
    fill(face, "large", 6)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM checkpoint").fetchone()
        started = time.monotonic()
        face.delete_thread("large")
        assert time.monotonic() - started < SECONDS
        assert list(face.threads()) == []


def test_compact_says_who_is_in_its_way_after_the_time_it_may_wait(open_face: Any, path: Path) -> None:
    face = open_face(busy_timeout=0.2, synchronous="normal")
    free_some(path, face, 2)
    with (
        write_lock(path),
        pytest.raises(BusyError if KNOWS_CODES else StorageError, match="busy_timeout" if KNOWS_CODES else "locked"),
    ):
        face.compact()
    assert face.compact() > 0


# --- stats ---


def test_stats_tell_what_is_in_the_file_and_what_takes_the_space(face: Face, path: Path) -> None:
    text = {"text": ["the same line again and again"] * 2000}
    at = thread(face, "a", checkpoints=3, values=text)
    face.put_writes(at, [("text", ["of a task"] * 500)], "task")
    thread(face, "b", checkpoints=1, values={"photo": os.urandom(90_000)})
    put(face, {"text": ["of a subgraph"]}, at=config("b", "node:1"))

    stats = face.stats()

    assert (stats.threads, stats.checkpoints) == (2, 5)
    assert stats.file_bytes == sql(path, "PRAGMA page_count")[0][0] * PAGE
    assert stats.wal_bytes == Path(f"{path}-wal").stat().st_size > 0
    assert stats.free_bytes == 0
    assert [size.name for size in stats.threads_by_size] == ["b", "a"]
    assert [size.name for size in stats.channels_by_size] == ["photo", "text"]
    [photo, of_text], [b, a] = stats.channels_by_size, stats.threads_by_size
    assert photo.stored == photo.uncompressed == 90_000
    assert of_text.stored < of_text.uncompressed / 20
    assert of_text.uncompressed > 3 * 2000 * 29 + 500 * 9
    assert (
        sum(size.stored for size in stats.threads_by_size)
        == sum(size.stored for size in stats.channels_by_size)
        == stored_bytes(path)
    )
    assert (b.stored + a.stored, b.uncompressed + a.uncompressed) == (
        photo.stored + of_text.stored,
        photo.uncompressed + of_text.uncompressed,
    )


def stored_bytes(path: Path) -> int:
    [[of_blobs]] = sql(path, "SELECT total(length(data)) FROM blob")
    [[of_writes]] = sql(path, "SELECT total(length(data)) FROM write")
    return int(of_blobs + of_writes)


def test_stats_name_the_largest_and_only_as_many_as_wanted(face: Face) -> None:
    for number in (3, 1, 4, 2):
        put(face, {f"channel {number}": os.urandom(number * 1000)}, at=config(f"thread {number}"))
    assert [size.name for size in face.stats().threads_by_size] == ["thread 4", "thread 3", "thread 2", "thread 1"]
    assert [size.name for size in face.stats(top=2).channels_by_size] == ["channel 4", "channel 3"]
    assert list(face.stats(top=0).threads_by_size) == []
    assert face.stats(top=0).threads == 4


def test_stats_follow_what_is_deleted(face: Face) -> None:
    fill(face, "a", 2)
    fill(face, "b", 1)
    before = face.stats()
    face.delete_thread("a")
    after = face.stats()
    assert (before.threads, after.threads) == (2, 1)
    assert (before.checkpoints, after.checkpoints) == (3, 1)
    assert before.free_bytes == 0 < 2_000_000 < after.free_bytes
    assert [size.name for size in after.threads_by_size] == ["b"]
    assert list(after.channels_by_size) == [Size("document", *before.threads_by_size[1][1:])]


def test_an_empty_file_has_stats_too_and_so_has_a_private_memory(face: Face) -> None:
    with SqliteSaver(":memory:") as memory:
        for empty in (face.stats(), memory.stats()):
            assert (empty.threads, empty.checkpoints, empty.free_bytes) == (0, 0, 0)
            assert (list(empty.threads_by_size), list(empty.channels_by_size)) == ([], [])
            assert empty.file_bytes > 0
        for status in STATUSES:
            thread(memory, status, status)
        assert (memory.stats().threads, memory.stats().wal_bytes) == (4, 0)
        assert memory.compact() == 0
