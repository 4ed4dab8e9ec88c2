"""Threads move between any two savers, whole, and go on where they are."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import checkpoint, config, put
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver as Reference
from moving import THREADS, finish, held, tell
from postgres import server
from sqlfile import sql

from langgraph_sqlite_ckpt import CopyError, InvalidRequest, SafeSerializer, SqliteSaver, acopy_threads, copy_threads
from langgraph_sqlite_ckpt.opaque import OpaqueSerializer
from langgraph_sqlite_ckpt.transfer import with_serde

Opens = Callable[[str, str], Any]
NAMES = ("ours", "memory", "reference", "postgres")


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="pg-") as folder, server(Path(folder) / "data") as address:
        yield address


@contextmanager
def postgres_saver(address: str) -> Iterator[Any]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(address) as saver:
        saver.serde = SafeSerializer()
        saver.setup()
        for table in ("checkpoints", "checkpoint_blobs", "checkpoint_writes"):
            saver.conn.execute(f"TRUNCATE {table}")
        yield saver


@pytest.fixture
def opens(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opens]:
    with ExitStack() as stack:

        def saver(kind: str, name: str) -> Any:
            if kind == "ours":
                return stack.enter_context(SqliteSaver(tmp_path / f"{name}.db"))
            if kind == "memory":
                return InMemorySaver(serde=SafeSerializer())
            if kind == "postgres":
                return stack.enter_context(postgres_saver(request.getfixturevalue("postgres")))
            db = sqlite3.connect(tmp_path / f"{name}.sqlite", check_same_thread=False)
            stack.callback(db.close)
            return Reference(db, serde=SafeSerializer())

        yield saver


def same(source: Any, target: Any, thread: str) -> None:
    assert held(target, thread) == held(source, thread)


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_threads_move_whole_and_go_on(opens: Opens, source: str, target: str) -> None:
    if "ours" not in (source, target) or (source == target != "ours"):
        pytest.skip("neither side is ours")
    there, here = opens(source, "source"), opens(target, "target")
    tell(there)

    copied = copy_threads(there, here)

    assert copied.problems == []
    assert (copied.threads, copied.skipped) == (5, 0)
    assert copied.checkpoints == sum(len(found) for thread in THREADS for found in held(there, thread).values())
    if "reference" not in (source, target):  # it shows a delta's snapshot once, the others wherever its version stands
        for thread in THREADS:
            same(there, here, thread)
    assert finish(here) == finish(there)


def test_what_is_there_is_skipped_and_a_thread_that_went_on_is_left_alone(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("ours", "target")
    tell(source)
    first = copy_threads(source, target, thread_ids=["done"])
    again = copy_threads(source, target, thread_ids=["done"])

    assert (again.checkpoints, again.skipped, again.problems) == (0, first.checkpoints, [])

    rest = copy_threads(source, target)
    assert (rest.skipped, rest.threads, rest.problems) == (first.checkpoints, 5, [])
    ended = finish(target)
    gone_on = {thread: held(target, thread) for thread in ended}
    copy_threads(source, target)
    assert {thread: held(target, thread) for thread in ended} == gone_on
    assert {thread.status for thread in target.threads() if thread.thread_id in ended} == {"completed"}


class Cut(Exception):
    pass


@pytest.mark.parametrize("at", [1, 7, 20, 33])
def test_a_copy_that_was_cut_short_goes_on(opens: Opens, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = opens("memory", "source"), opens("ours", "target")
    tell(source)
    calls = 0

    def counted(real: Any) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                raise Cut
            return real(self, *arguments)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(SqliteSaver, "put", counted(SqliteSaver.put))
        patched.setattr(SqliteSaver, "put_writes", counted(SqliteSaver.put_writes))
        with pytest.raises(CopyError):
            copy_threads(source, target)

    assert copy_threads(source, target).problems == []
    for thread in THREADS:
        same(source, target, thread)


def test_a_thread_that_grew_since_is_completed(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("memory", "target")
    tell(source)
    copy_threads(source, target)
    ended = finish(source)

    assert copy_threads(source, target).problems == []

    assert {thread: held(target, thread) for thread in THREADS} == {thread: held(source, thread) for thread in THREADS}
    assert set(ended) < set(THREADS)


def test_the_async_face_does_the_same(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("memory", "target")
    tell(source)

    copied = asyncio.run(acopy_threads(source, target, thread_ids=["asks", "forked"]))

    assert (copied.threads, copied.problems) == (2, [])
    same(source, target, "asks")
    same(source, target, "forked")


def test_to_and_from_the_async_savers_of_the_official_packages(opens: Opens, tmp_path: Path) -> None:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    source, back = opens("ours", "source"), opens("ours", "back")
    tell(source)

    async def there_and_back() -> None:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "async.sqlite")) as other:
            other.serde = SafeSerializer()
            assert (await acopy_threads(source, other)).problems == []
            assert (await acopy_threads(other, back)).problems == []

    asyncio.run(there_and_back())
    assert finish(back) == finish(source)


def test_paths_and_statuses_come_along(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("ours", "target")
    tell(source)
    copy_threads(source, target)

    def told(name: str) -> Any:
        db = next(Path(saver._shared.database.path) for saver in (source, target) if name in saver._shared.database.path)
        return (
            sql(db, "SELECT checkpoint_id, task_id, idx, task_path, channel, size FROM write ORDER BY 1, 2, 3"),
            sql(db, "SELECT thread_id, status, next, step FROM threads ORDER BY 1"),
            sql(db, "SELECT run_id, thread_id, status FROM runs ORDER BY 1, 2"),
        )

    assert told("target.db") == told("source.db")
    assert target.verify() == []


def test_no_class_of_the_users_is_needed_between_files(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("ours", "target")
    put(source, {"made": gone()})

    assert copy_threads(source, target).problems == []

    with pytest.raises(Exception, match="no longer exists|not imported"):
        source.get_tuple(config())
    with pytest.raises(Exception, match="no longer exists|not imported"):
        target.get_tuple(config())


def gone() -> Any:
    from dataclasses import make_dataclass

    made = make_dataclass("Gone", ["x"])(1)
    type(made).__module__ = "nowhere_to_be_found"
    return made


def test_where_the_target_orders_by_id_a_wrong_clock_is_reported(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("memory", "target")
    first = put(source, {"a": ["later"]}, at=config())
    early = checkpoint({"a": ["earlier"]}, id="00000000-0000-6000-8000-000000000000")
    source.put(first, early, {"source": "loop", "step": 1, "parents": {}}, early["channel_versions"])

    [problem] = copy_threads(source, target).problems

    assert problem.kind == "order"
    assert "takes another" in problem.detail or "has another" in problem.detail


def test_a_value_that_the_target_loses_is_reported(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("memory", "target")
    without_version = checkpoint({"a": ["x"]}, versions={})
    source.put(config(), without_version, {"source": "input", "step": -1, "parents": {}}, {})

    [problem] = copy_threads(source, target).problems

    assert "channel 'a'" in problem.detail


def test_what_a_saver_says_is_reported_with_the_place(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("ours", "target")
    put(source, {"a": ["x"]})
    target.close()

    with pytest.raises(Exception, match="closed"):
        copy_threads(source, target)


def test_a_thread_that_is_not_there_is_refused(opens: Opens) -> None:
    source, target = opens("ours", "source"), opens("ours", "target")

    with pytest.raises(InvalidRequest, match="no thread 'x'"):
        copy_threads(source, target, thread_ids=["x"])
    with pytest.raises(InvalidRequest, match="list of ids"):
        copy_threads(source, target, thread_ids="x")
    assert copy_threads(source, target) == (0, 0, 0, 0, [])


def test_progress_counts_checkpoints(opens: Opens) -> None:
    source, target = opens("memory", "source"), opens("ours", "target")
    for _ in range(3):
        put(source, {"a": ["x"]})
    told: list[tuple[int, int]] = []

    copy_threads(source, target, progress=lambda done, total: told.append((done, total)))

    assert told == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_encrypted_values_move_where_both_sides_have_the_key(opens: Opens, tmp_path: Path) -> None:
    class Rot(SafeSerializer):
        """Stands for a serializer that encrypts."""

        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            kind, raw = super().dumps_typed(obj)
            return kind + "+rot", raw[::-1]

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            return super().loads_typed((data[0].removesuffix("+rot"), data[1][::-1]))

    with SqliteSaver(tmp_path / "sealed.db", serde=Rot()) as sealed, SqliteSaver(tmp_path / "open.db") as clear:
        tell(sealed)
        assert copy_threads(sealed, clear).problems == []
        assert finish(clear) == finish(sealed)
        with pytest.raises(InvalidRequest, match="serializer of its own"):
            copy_threads(sealed, with_serde(clear, OpaqueSerializer()))
