"""From the path to `close()`: what opens, what is refused and why, who may read the file, and how a process ends."""

import asyncio
import copy
import gc
import inspect
import os
import re
import sqlite3
import stat
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
import pytest
from calls import CALLS, READS, WRITES
from conftest import Face, checkpoint, config, put
from langgraph.checkpoint.base import BaseCheckpointSaver
from scripts import folder_for_anyone, run, start
from sqlfile import KNOWS_CODES, Tap, rows, sql, tap, write_lock

from langgraph_sqlite_ckpt import (
    AsyncSqliteSaver,
    BusyError,
    CheckpointError,
    ClosedError,
    ForeignFileError,
    InvalidRequest,
    NewerFileError,
    OpenError,
    ReadOnlyError,
    SafeSerializer,
    SqliteSaver,
    StorageError,
)

__all__ = ["tap"]  # a fixture


# --- one object, used any way ---


def test_a_saver_works_as_it_is_as_with_and_as_async_with(path: Path) -> None:
    async def in_async_with() -> None:
        async with SqliteSaver(path) as saver:
            assert len([item async for item in saver.alist(config())]) == 2
            await saver.aput(config(), checkpoint({"n": 3}), {}, {})

    saver = SqliteSaver(path)
    put(saver, {"n": 1})
    saver.close()
    with SqliteSaver(path) as saver:
        put(saver, {"n": 2})
    asyncio.run(in_async_with())
    with SqliteSaver(path) as saver:
        assert len(list(saver.list(config()))) == 3


def test_from_conn_string_gives_the_same_saver_and_works_like_a_constructor(path: Path) -> None:
    with closing(SqliteSaver.from_conn_string(str(path), busy_timeout=1)) as saver:
        put(saver, {"n": 1})
    with SqliteSaver.from_conn_string(str(path)) as saver:
        assert type(saver) is SqliteSaver
        assert saver.get_tuple(config()) is not None

    async def main() -> Any:
        async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
            return await saver.aget_tuple(config())

    assert asyncio.run(main()) is not None


def test_the_async_saver_is_a_second_name_for_the_same_class() -> None:
    assert AsyncSqliteSaver is SqliteSaver
    assert issubclass(SqliteSaver, BaseCheckpointSaver)


def test_a_saver_made_inside_a_running_loop_outlives_it(path: Path) -> None:
    async def make() -> SqliteSaver:
        saver = SqliteSaver(path)
        await saver.aput(config(), checkpoint(), {}, {})
        return saver

    with asyncio.run(make()) as saver:
        assert asyncio.run(saver.aget_tuple(config())) == saver.get_tuple(config())


@pytest.mark.parametrize("name", CALLS)
def test_any_method_may_be_the_first_call_on_a_fresh_file(face: Face, name: str) -> None:
    if name == "copy_thread":
        with pytest.raises(InvalidRequest, match="no thread 't'"):
            CALLS[name](face)
    else:
        CALLS[name](face)
    put(face, {"a": 1})
    assert face.get_tuple(config()).checkpoint["channel_values"] == {"a": 1}


# --- close ---


@pytest.mark.parametrize("name", CALLS)
def test_after_close_every_call_says_that_the_saver_was_closed(face: Face, name: str) -> None:
    put(face, {"a": 1})
    face.saver.close()
    with pytest.raises(ClosedError, match="agent.db.*closed.*make a new one"):
        CALLS[name](face)


def test_closing_twice_is_fine(saver: SqliteSaver) -> None:
    saver.close()
    saver.close()


@pytest.mark.parametrize("clone", [copy.copy, lambda saver: saver.with_allowlist([("some.module", "Type")])])
def test_copies_share_the_file_and_closing_one_closes_all(saver: SqliteSaver, clone: Any) -> None:
    other = clone(saver)
    stored = put(other, {"a": 1})
    assert saver.get_tuple(config()).config == stored
    saver.close()
    with pytest.raises(ClosedError):
        other.get_tuple(config())


def test_close_ends_every_thread_that_the_saver_started(path: Path) -> None:
    before = set(threading.enumerate())
    with SqliteSaver(path) as saver:
        asyncio.run(saver.aput(config(), checkpoint(), {}, {}))
        asyncio.run(saver.aget_tuple(config()))
        assert set(threading.enumerate()) > before
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
    assert set(threading.enumerate()) == before


def test_close_leaves_nothing_but_the_file(path: Path) -> None:
    with SqliteSaver(path) as saver:
        put(saver, {"a": ["x" * 5000]})
        list(saver.list(config()))
        assert {found.name for found in path.parent.iterdir()} == {"agent.db", "agent.db-wal", "agent.db-shm"}
    assert [found.name for found in path.parent.iterdir()] == ["agent.db"]


def test_a_close_while_others_write_loses_nothing_that_was_acknowledged(path: Path) -> None:
    saver, acknowledged, errors = SqliteSaver(path), [], []

    def write(number: int) -> None:
        while True:
            try:
                acknowledged.append(put(saver, {"a": number}, at=config(f"t{number}")))
            except ClosedError:
                return
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(acknowledged) < 20:
        time.sleep(0.001)
    saver.close()
    for thread in threads:
        thread.join(20)
    assert not errors
    with SqliteSaver(path) as saver:
        stored = [item.config for item in saver.list(None)]
    assert len(stored) == len(acknowledged)
    assert all(made in stored for made in acknowledged)


def test_a_close_while_tasks_wait_answers_all_of_them(path: Path) -> None:
    async def main() -> list[Any]:
        saver = SqliteSaver(path)
        tasks = [asyncio.create_task(saver.aput(config(), checkpoint(), {}, {})) for _ in range(50)]
        tasks += [asyncio.create_task(saver.aget_tuple(config())) for _ in range(20)]
        await asyncio.sleep(0)
        saver.close()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)

    outcomes = asyncio.run(main())
    assert [
        type(outcome) for outcome in outcomes if isinstance(outcome, BaseException) and not isinstance(outcome, ClosedError)
    ] == []
    with SqliteSaver(path) as saver:
        assert len(list(saver.list(None))) == sum(isinstance(outcome, dict) for outcome in outcomes[:50])


# --- never closed ---


def test_a_saver_that_is_dropped_without_close_warns_and_lets_go_of_the_file(path: Path) -> None:
    saver = SqliteSaver(path)
    put(saver, {"a": 1})
    with pytest.warns(ResourceWarning, match="agent.db was never closed"):
        del saver
        gc.collect()
    assert not path.with_name("agent.db-wal").exists()


def test_a_saver_that_served_async_calls_and_is_dropped_warns_too_and_its_threads_end(path: Path) -> None:
    before = set(threading.enumerate())
    saver = SqliteSaver(path)
    asyncio.run(saver.aput(config(), checkpoint(), {}, {}))
    asyncio.run(saver.aget_tuple(config()))
    with pytest.warns(ResourceWarning, match="never closed"):
        del saver
        gc.collect()
        deadline = time.monotonic() + 10
        while set(threading.enumerate()) - before and time.monotonic() < deadline:  # a thread may just be letting go
            gc.collect()
            time.sleep(0.01)
    assert set(threading.enumerate()) <= before


def test_a_closed_saver_does_not_warn(path: Path) -> None:
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saver = SqliteSaver(path)
        put(saver, {"a": 1})
        saver.close()
        del saver
        gc.collect()
    assert not caught


NEVER_CLOSED = {
    "sync": "put(SqliteSaver(PATH), {'a': 1}); saver = SqliteSaver(PATH); put(saver, {'a': 2})",
    "async": """
        saver = SqliteSaver(PATH)
        async def main():
            await saver.aput(config(), checkpoint({"a": 1}), {}, {})
            await saver.aput(config(), checkpoint({"a": 2}), {}, {})
            await saver.aget_tuple(config())
        asyncio.run(main())
    """,
    "half read": """
        saver = SqliteSaver(PATH)
        for n in range(1, 3): put(saver, {"a": n})
        async def main():
            items = saver.alist(config())
            await anext(items)
            return items
        left = saver.list(config()); next(left)
        asyncio.run(main())
    """,
    "with a task that is never awaited": """
        saver = SqliteSaver(PATH)
        async def main():
            await saver.aput(config(), checkpoint({"a": 1}), {}, {})
            await saver.aput(config(), checkpoint({"a": 2}), {}, {})
            asyncio.create_task(saver.aget_tuple(config()))
            await asyncio.sleep(0)
        asyncio.run(main())
    """,
    "in a thread": """
        saver = SqliteSaver(PATH)
        def work():
            for n in range(1, 3): asyncio.run(saver.aput(config(), checkpoint({"a": n}), {}, {}))
        thread = threading.Thread(target=work); thread.start(); thread.join()
    """,
    "by sys.exit": "saver = SqliteSaver(PATH); put(saver, {'a': 1}); put(saver, {'a': 2}); print(time.time(), flush=True); sys.exit()",
}


@pytest.mark.parametrize("how", NEVER_CLOSED)
def test_a_process_that_never_closed_its_saver_exits_at_once_with_its_data_intact(path: Path, how: str) -> None:
    script = inspect.cleandoc(NEVER_CLOSED[how])
    out = run(script + "\nprint(time.time(), flush=True)", path, seconds=30)
    assert time.time() - float(out.split()[-1]) < 3
    with SqliteSaver(path) as saver:
        assert [item.checkpoint["channel_values"]["a"] for item in saver.list(config())] == [2, 1]


def test_a_process_that_never_closed_its_saver_is_told_so_by_a_resource_warning(path: Path) -> None:
    with start("put(SqliteSaver(PATH), {'a': 1})", path, flags=["-W", "always::ResourceWarning"]) as process:
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert re.search("ResourceWarning: SqliteSaver on .*agent.db was never closed", err), err


def test_a_process_killed_at_once_after_a_put_has_it_on_disk(path: Path) -> None:
    script = "saver = SqliteSaver(PATH); put(saver, {'a': 1}); os.kill(os.getpid(), 9)"
    with start(script, path) as process:
        process.communicate(timeout=30)
    assert process.returncode == -9
    with SqliteSaver(path) as saver:
        assert saver.get_tuple(config()).checkpoint["channel_values"] == {"a": 1}


# --- the path ---


def test_missing_folders_are_made(tmp_path: Path) -> None:
    with SqliteSaver(tmp_path / "state" / "of" / "agents.db") as saver:
        put(saver)
    assert (tmp_path / "state" / "of" / "agents.db").is_file()


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with SqliteSaver("~/agent.db"):
        pass
    with SqliteSaver(Path("~") / "deep" / "agent.db"):
        pass
    assert (tmp_path / "agent.db").is_file()
    assert (tmp_path / "deep" / "agent.db").is_file()
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    "name", ["a?mode=memory#b%20c.db", "with space.db", "é🎉.db", "'quoted\".db", "back\\slash.db", "-x", "file", "a\nb.db"]
)
def test_any_file_name_is_taken_literally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (name, Path(name), str(tmp_path / name)):
        with SqliteSaver(path) as saver:
            put(saver)
    assert [found.name for found in tmp_path.iterdir()] == [name]
    with SqliteSaver(name, read_only=True) as saver:
        assert len(list(saver.list(None))) == 3


def test_a_name_that_is_no_unicode_is_taken_as_the_bytes_that_it_is(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.db")
    with SqliteSaver(tmp_path / name) as saver:
        put(saver)
        assert saver.get_tuple(config()) is not None
    assert os.listdir(os.fsencode(tmp_path)) == [b"caf\xe9.db"]


def test_a_relative_path_stays_the_same_file_when_the_process_changes_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with SqliteSaver("agent.db") as saver:
        put(saver, {"a": 1})
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert len(list(saver.list(config()))) == 1  # a reader's connection is opened only now
        assert asyncio.run(saver.aget_tuple(config())) is not None
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("file:agent.db?mode=rwc", 'SqliteSaver("agent.db")'),
        ("file:///var/agent.db", 'SqliteSaver("/var/agent.db")'),
        ("sqlite:///agent.db", 'SqliteSaver("agent.db")'),
        ("sqlite+aiosqlite:///agent.db", 'SqliteSaver("agent.db")'),
        ("sqlite:////var/agent.db", 'SqliteSaver("/var/agent.db")'),
        ("sqlite://", 'SqliteSaver("agent.db")'),
    ],
)
def test_a_url_is_refused_with_the_line_to_write_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match=re.escape(line)):
        SqliteSaver(url)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "url", ["postgresql://u:p@host/db", "postgres://host", "mysql://host/db", "redis://host:6379", "mongodb+srv://host"]
)
def test_the_address_of_another_database_is_refused_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequest, match="another database"):
        SqliteSaver(url)
    assert not list(tmp_path.iterdir())


class Engine:
    """As SQLAlchemy's, by name."""


@pytest.mark.parametrize(
    "make",
    [
        lambda: sqlite3.connect(":memory:"),
        lambda: aiosqlite.connect(":memory:"),
        Engine,
        lambda: None,
        lambda: 5,
        lambda: b"agent.db",
        lambda: open(os.devnull),
    ],
)
def test_anything_but_a_path_is_refused_with_the_line_to_write_instead(make: Any) -> None:
    given = make()
    try:
        with pytest.raises(InvalidRequest, match=r'a path is needed, not .*: SqliteSaver\("agent.db"\)'):
            SqliteSaver(given)
    finally:
        if hasattr(given, "close") and not inspect.iscoroutinefunction(given.close):
            given.close()


@pytest.mark.parametrize("nothing", ["", "a\0b.db"])
def test_what_can_be_no_path_is_refused(nothing: str) -> None:
    with pytest.raises(InvalidRequest, match="not a path"):
        SqliteSaver(nothing)


@pytest.mark.parametrize(
    "options",
    [
        {"synchronous": "off"},
        {"synchronous": None},
        {"busy_timeout": -1},
        {"busy_timeout": float("nan")},
        {"busy_timeout": "30"},
        {"busy_timeout": None},
        {"serde": SafeSerializer(), "allowed_types": [Engine]},
    ],
)
def test_options_that_make_no_sense_are_refused_before_any_file_is_made(path: Path, options: Any) -> None:
    with pytest.raises(InvalidRequest, match="|".join(options)):
        SqliteSaver(path, **options)
    assert not path.exists()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path, read_only: bool) -> None:
    with pytest.raises(OpenError, match=re.escape(str(tmp_path)) + ".*folder"):
        SqliteSaver(tmp_path, read_only=read_only)


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(OpenError, match=r"notes\.txt"):
        SqliteSaver(tmp_path / "notes.txt" / "agent.db")
    assert (tmp_path / "notes.txt").read_text() == "x"


def test_the_home_of_an_unknown_user_is_an_error_that_names_the_path() -> None:
    with pytest.raises((OpenError, InvalidRequest), match="~no_such_user_here/agent.db"):
        SqliteSaver("~no_such_user_here/agent.db")


def test_a_folder_that_takes_no_files_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(OpenError, match="/proc/agent.db: cannot be made: .+"):  # not even root can
        SqliteSaver("/proc/agent.db")


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A folder that users other than root can read."""
    with folder_for_anyone() as folder:
        yield Path(folder)
        Path(folder).chmod(0o755)


def test_an_unwritable_folder_is_named_with_the_reason(anyones: Path) -> None:
    anyones.chmod(0o555)
    script = """
        become_somebody()
        try: SqliteSaver(PATH)
        except OpenError as error: print(error)
    """
    out = run(script, anyones / "agent.db")
    assert out.startswith(f"{anyones}/agent.db: cannot be made: Permission denied")


def test_an_unwritable_file_is_named_with_what_opens_it(anyones: Path) -> None:
    path = anyones / "agent.db"
    with SqliteSaver(path) as saver:
        put(saver)
    path.chmod(0o444)
    anyones.chmod(0o555)
    script = """
        become_somebody()
        try: SqliteSaver(PATH)
        except OpenError as error: print(error)
    """
    out = run(script, path)
    assert out.startswith(f"{path}: ")
    assert "not writable" in out
    assert "read_only=True" in out


def test_an_unreadable_file_is_named(anyones: Path) -> None:
    path = anyones / "agent.db"
    SqliteSaver(path).close()
    path.chmod(0o000)
    script = """
        become_somebody()
        for read_only in (False, True):
            try: SqliteSaver(PATH, read_only=read_only)
            except OpenError as error: print(error)
    """
    out = run(script, path)
    assert out.count(f"{path}: ") == 2
    assert out.count("may not read") == 2


# --- somebody else's files ---


def unchanged(path: Path) -> Any:
    """SQLite's read-only connections leave sidecars behind, with nothing in them; others remove them."""
    written = [found.name for found in path.parent.iterdir() if not found.name.endswith("-shm") and found.stat().st_size]
    return path.read_bytes(), path.stat().st_mtime_ns, written


def refused(path: Path, error: type[Exception], match: str) -> None:
    before = unchanged(path)
    for read_only in (False, True):
        with pytest.raises(error, match=match) as caught:
            SqliteSaver(path, read_only=read_only)
        assert str(path) in str(caught.value)
    assert unchanged(path) == before


def test_a_reference_savers_file_is_refused_untouched_with_what_to_do(path: Path) -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver as Reference

    with Reference.from_conn_string(str(path)) as reference:
        put(reference, {"a": 1})
    refused(path, ForeignFileError, "langgraph-checkpoint-sqlite.*langgraph-sqlite-ckpt import")


def test_somebody_elses_database_is_refused_untouched(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE customers (name)")
    refused(path, ForeignFileError, "somebody else's")


def test_a_database_that_is_marked_as_another_applications_is_refused_even_if_empty(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA application_id = 252006673")
    refused(path, ForeignFileError, "somebody else's")


@pytest.mark.parametrize("content", [b"dear diary, today", b"x" * 10_000])
def test_a_file_that_is_no_database_is_refused_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refused(path, ForeignFileError, "not an SQLite file")


def test_a_file_of_a_newer_release_is_refused_untouched_with_what_to_do(path: Path) -> None:
    SqliteSaver(path).close()
    sql(path, "PRAGMA user_version = 99")
    refused(path, NewerFileError, "format 99.*upgrade")


def test_an_empty_file_becomes_a_savers_file_and_keeps_its_mode(path: Path) -> None:
    path.touch(mode=0o640)
    with SqliteSaver(path) as saver:
        put(saver)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


# --- who may read it ---


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_owner_can_read_the_file_and_its_sidecars(path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with SqliteSaver(path) as saver:
            put(saver, {"secret": "x" * 500})
            list(saver.list(None))
            modes = {found.name: stat.S_IMODE(found.stat().st_mode) for found in path.parent.iterdir()}
    finally:
        os.umask(before)
    assert modes == {"agent.db": 0o600, "agent.db-wal": 0o600, "agent.db-shm": 0o600}


# --- opening writes nothing ---


def test_opening_an_up_to_date_file_writes_nothing_and_sets_no_journal_mode(path: Path, tap: Tap) -> None:
    with SqliteSaver(path) as saver:
        put(saver, {"a": 1})
    before = unchanged(path)
    tap.forget()
    with SqliteSaver(path) as saver:
        saver.get_tuple(config())
    assert unchanged(path) == before
    assert "PRAGMA journal_mode" in tap.statements  # it is probed,
    assert not [each for each in tap.statements if "journal_mode" in each and "=" in each]  # not set
    assert not [each for each in tap.statements if each.startswith(("CREATE", "INSERT", "UPDATE", "BEGIN IMMEDIATE"))]


def test_opening_an_up_to_date_file_does_not_wait_for_a_writer(path: Path) -> None:
    with SqliteSaver(path) as saver:
        put(saver, {"a": 1})
    with write_lock(path):
        with SqliteSaver(path, busy_timeout=0) as saver:
            assert saver.get_tuple(config()) is not None


def test_the_file_is_in_wal_mode_can_give_space_back_and_says_whose_it_is(path: Path) -> None:
    SqliteSaver(path).close()
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]
    assert sql(path, "PRAGMA auto_vacuum") == [(2,)]
    assert sql(path, "PRAGMA application_id") == [(int.from_bytes(b"LGCP", "big"),)]
    assert sql(path, "PRAGMA user_version")[0][0] >= 1


@pytest.mark.parametrize(("asked", "set_to"), [("full", 2), ("normal", 1)])
def test_synchronous_is_set_on_every_connection_as_asked(path: Path, tap: Tap, asked: Any, set_to: int) -> None:
    levels: list[int] = []
    with SqliteSaver(path, synchronous=asked) as saver:
        tap.after = lambda db, statement: (
            levels.extend(sqlite3.Connection.execute(db, "PRAGMA synchronous").fetchone())
            if statement == "COMMIT" or statement.startswith("SELECT")
            else None
        )
        put(saver, {"a": 1})
        list(saver.list(None))
    assert set(levels) == {set_to}


def test_a_file_that_lost_its_wal_mode_gets_it_back(path: Path) -> None:
    with SqliteSaver(path) as saver:
        put(saver, {"a": 1})
    sql(path, "PRAGMA journal_mode = DELETE")
    with SqliteSaver(path) as saver:
        assert len(list(saver.list(None))) == 1
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


def test_the_wal_is_cut_back_after_a_burst_although_readers_come_and_go(path: Path) -> None:
    wal = path.with_name("agent.db-wal")
    with SqliteSaver(path, synchronous="normal") as saver:
        for _ in range(6):
            put(saver, {"noise": os.urandom(4_000_000)})
            next(iter(saver.list(None)))  # left half-way: it must pin nothing
        put(saver, {"a": 1})
        put(saver, {"a": 2})
        assert wal.stat().st_size < 18_000_000
        assert path.stat().st_size > 16_000_000


# --- read only ---


@pytest.fixture
def filled(path: Path) -> Path:
    with SqliteSaver(path) as saver:
        stored = put(saver, {"a": ["x" * 500]}, run_id="run")
        saver.put_writes(stored, [("a", ["y"])], "task")
        put(saver, {"a": ["x" * 600]}, parent=stored, run_id="run")
    return path


def test_read_only_reads_everything_and_changes_nothing(filled: Path, open_face: Any) -> None:
    before = unchanged(filled)
    whole = open_face()
    expected = {name: call(whole) for name, call in READS.items()}
    whole.saver.close()
    reader = open_face(read_only=True)
    assert {name: call(reader) for name, call in READS.items()} == expected
    assert len(expected["list"]) == 2
    reader.saver.close()
    assert unchanged(filled) == before


@pytest.mark.parametrize("name", WRITES)
def test_read_only_refuses_every_writing_call_and_says_so(filled: Path, open_face: Any, name: str) -> None:
    before = rows(filled)
    face = open_face(read_only=True)
    with pytest.raises(ReadOnlyError, match="agent.db.*read_only=True"):
        WRITES[name](face)
    assert rows(filled) == before
    assert face.get_tuple(config()) is not None


def test_read_only_sees_what_a_writer_commits_meanwhile(filled: Path) -> None:
    with SqliteSaver(filled) as writer, SqliteSaver(filled, read_only=True) as reader:
        assert len(list(reader.list(None))) == 2
        stored = put(writer, {"a": "newer"})
        assert reader.get_tuple(config()).config == stored


def test_read_only_needs_a_file_that_is_there_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(OpenError, match="no such file"):
        SqliteSaver(tmp_path / "folder" / "agent.db", read_only=True)
    assert not list(tmp_path.iterdir())


def test_read_only_reads_a_file_in_a_folder_where_nothing_can_be_written(filled: Path, anyones: Path) -> None:
    path = anyones / "agent.db"
    path.write_bytes(filled.read_bytes())
    path.chmod(0o444)
    anyones.chmod(0o555)
    script = """
        become_somebody()
        with SqliteSaver(PATH, read_only=True) as saver:
            print(len(list(saver.list(None))), asyncio.run(saver.aget_tuple(config())).checkpoint["channel_values"]["a"][0] == "x" * 600)
            try: put(saver)
            except ReadOnlyError as error: print("refused")
    """
    assert run(script, path).split() == ["2", "True", "refused"]
    assert [found.name for found in anyones.iterdir()] == ["agent.db"]


# --- a private memory ---


def test_memory_is_private_to_the_object_and_serves_both_faces_and_threads() -> None:
    with SqliteSaver(":memory:") as saver, SqliteSaver(":memory:") as other:
        put(saver, {"a": 1})
        asyncio.run(saver.aput(config(), checkpoint({"a": 2}), {}, {}))
        thread = threading.Thread(target=put, args=(saver, {"a": 3}))
        thread.start()
        thread.join()
        assert [item.checkpoint["channel_values"]["a"] for item in saver.list(config())] == [3, 2, 1]
        assert asyncio.run(saver.aget_tuple(config())) == saver.get_tuple(config())
        assert list(other.list(None)) == []
    assert not Path(":memory:").exists()


def test_memory_works_inside_its_own_list_loop() -> None:
    with SqliteSaver(":memory:") as saver:
        for number in range(30):
            put(saver, {"a": number})
        for item in saver.list(None):
            put(saver, {"a": -1}, at=config("other"))
            assert saver.get_tuple(item.config) is not None


@pytest.mark.parametrize("name", CALLS)
def test_after_close_a_memory_saver_raises_too(open_face: Any, name: str) -> None:
    face = open_face(":memory:")
    face.saver.close()
    with pytest.raises(ClosedError):
        CALLS[name](face)


def test_every_error_of_opening_is_the_packages_own() -> None:
    assert issubclass(OpenError, CheckpointError)
    assert issubclass(InvalidRequest, CheckpointError)
    assert issubclass(InvalidRequest, ValueError)


def test_the_wait_for_the_first_process_that_builds_the_file_obeys_busy_timeout(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        begun = time.monotonic()
        with pytest.raises(
            BusyError if KNOWS_CODES else StorageError, match=r"agent.db.*" + ("busy_timeout" if KNOWS_CODES else "")
        ):
            SqliteSaver(path, busy_timeout=0.3)
        assert 0.2 < time.monotonic() - begun < 5
