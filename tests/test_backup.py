"""A backup is whole while others write; a restore cannot be fooled by what a former file left behind."""

import asyncio
import os
import shutil
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config, put
from scripts import run, start
from sqlfile import KNOWS_CODES, can_write_at_once, nothing_is_held, rows, sql

from langgraph_sqlite_ckpt import (
    BusyError,
    CheckpointError,
    ForeignFileError,
    InvalidRequest,
    NewerFileError,
    OpenError,
    SqliteSaver,
    StorageError,
    restore,
)


@pytest.fixture
def copy(path: Path) -> Path:
    return path.parent / "copies" / "copy.db"


def fill(face: Any, count: int = 5, name: str = "t") -> None:
    at = config(name)
    for number in range(count):
        at = put(face, {"a": [f"{number} " * 300]}, parent=at)
        face.put_writes(at, [("a", ["w" * 300])], "task")


def contents(path: Path) -> Any:
    with SqliteSaver(path, read_only=True) as saver:
        assert saver.verify() == []
        return list(saver.list(None))


def in_the_folder(path: Path) -> set[str]:
    return {found.name for found in path.parent.iterdir()}


# --- backup ---


def test_a_backup_is_the_file_as_it_is_in_one_file_that_only_its_owner_can_read(face: Face, path: Path, copy: Path) -> None:
    fill(face)
    before = os.umask(0)
    try:
        face.backup(copy)
    finally:
        os.umask(before)
    assert in_the_folder(copy) == {"copy.db"}
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert rows(copy) == rows(path)
    assert contents(copy) == list(face.list(None))
    assert nothing_is_held(path)
    put(face, {"a": "the saver goes on"})


def test_a_backup_is_a_file_to_go_on_with(face: Face, copy: Path) -> None:
    fill(face)
    face.backup(copy)
    with SqliteSaver(copy) as other:
        put(other, {"a": "new"})
        assert len(list(other.list(None))) == len(list(face.list(None))) + 1


def test_a_backup_takes_the_place_of_the_one_before_and_of_what_was_left_beside_it(
    face: Face, path: Path, copy: Path
) -> None:
    fill(face)
    face.backup(copy)
    with SqliteSaver(copy) as other:
        put(other, {"a": "the former backup, changed"})
        leftovers = [
            (copy.with_name(copy.name + end), copy.with_name(copy.name + end).read_bytes()) for end in ("-wal", "-shm")
        ]
    for leftover, content in leftovers:
        leftover.write_bytes(content)
    face.backup(copy)
    assert in_the_folder(copy) == {"copy.db"}
    assert rows(copy) == rows(path)


def test_a_backup_reports_its_progress_and_the_listener_may_use_the_saver(face: Face, path: Path, copy: Path) -> None:
    for number in range(6):
        put(face, {"a": os.urandom(400_000)}, at=config(f"t{number}"))
    reports: list[tuple[int, int]] = []

    def listen(done: int, total: int) -> None:
        reports.append((done, total))
        put(face.saver, {"a": "written meanwhile"}, at=config("meanwhile"))
        assert can_write_at_once(path)

    face.backup(copy, listen)
    assert len(reports) > 2
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})
    assert reports[-1] == (copy.stat().st_size, copy.stat().st_size)
    with SqliteSaver(copy) as other:
        assert len(list(other.list(None))) == 6  # of the moment when it began
    assert len(list(face.list(config("meanwhile")))) == len(reports)


def test_a_listener_may_stop_it_and_then_the_former_backup_is_still_there(face: Face, copy: Path) -> None:
    put(face, {"a": os.urandom(3_000_000)})
    face.backup(copy)
    former = copy.read_bytes()
    put(face, {"a": os.urandom(3_000_000)})

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Enough

    with pytest.raises(Enough):
        face.backup(copy, stop)
    assert in_the_folder(copy) == {"copy.db"}
    assert copy.read_bytes() == former


def test_backups_under_write_load_are_each_of_one_moment_and_keep_no_writer_waiting(path: Path, tmp_path: Path) -> None:
    script = """
        with SqliteSaver(PATH) as saver:
            print("ready", flush=True)
            at, step = config("other process"), 0
            while not os.path.exists(PATH + ".stop"):
                at = put(saver, {"a": ["x" * 500] * (step % 50), "step": step}, parent=at)
                saver.put_writes(at, [("a", step)], "task")
                step += 1
    """
    with SqliteSaver(path) as saver:
        put(saver, {"a": os.urandom(3_000_000)}, at=config("ballast"))
        stop, errors = threading.Event(), []

        def work() -> None:
            at, step = config("own thread"), 0
            try:
                while not stop.is_set():
                    at = put(saver, {"step": step}, parent=at)
                    step += 1
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        with start(script, path) as process:
            assert process.stdout is not None
            process.stdout.readline()
            for number in range(6):
                saver.backup(tmp_path / f"{number}.copy")
            Path(f"{path}.stop").touch()
            process.communicate(timeout=30)
        stop.set()
        thread.join(30)
        assert process.returncode == 0
        assert errors == []
    counts = []
    for number in range(6):
        with SqliteSaver(tmp_path / f"{number}.copy") as found:
            assert found.verify() == []
            for name in ("own thread", "other process"):
                steps = [item.checkpoint["channel_values"]["step"] for item in found.list(config(name))]
                assert steps == list(range(len(steps) - 1, -1, -1))
            counts.append(len(list(found.list(None))))
    assert counts == sorted(set(counts))


def test_a_backup_of_a_private_memory_is_a_file(copy: Path) -> None:
    with SqliteSaver(":memory:") as saver:
        fill(saver)
        saver.backup(copy)
        assert contents(copy) == list(saver.list(None))


def test_a_reader_can_make_a_backup_too(saver: SqliteSaver, path: Path, copy: Path) -> None:
    fill(saver)
    with SqliteSaver(path, read_only=True) as reader:
        reader.backup(copy)
    assert rows(copy) == rows(path)


def test_a_backup_onto_the_savers_own_file_is_refused(face: Face, path: Path, tmp_path: Path) -> None:
    fill(face)
    link = tmp_path / "link.db"
    link.symlink_to(path)
    hard = tmp_path / "hard.db"
    hard.hardlink_to(path)
    before = rows(path)
    for target in (
        path,
        str(path),
        path.parent / "." / path.name,
        f"{path}-wal",
        f"{path}-shm",
        f"{path}-journal",
        link,
        hard,
    ):
        with pytest.raises(InvalidRequest, match="name another one"):
            face.backup(target)
    assert rows(path) == before
    put(face)


@pytest.mark.parametrize("target", [":memory:", "", None, "sqlite:///copy.db"])
def test_a_backup_to_what_is_no_path_is_refused(face: Face, target: Any) -> None:
    with pytest.raises(InvalidRequest):
        face.backup(target)


def test_a_backup_onto_somebody_elses_file_is_refused(face: Face, tmp_path: Path) -> None:
    diary, customers = tmp_path / "diary.txt", tmp_path / "customers.db"
    diary.write_text("dear diary")
    with closing(sqlite3.connect(customers)) as db:
        db.execute("CREATE TABLE customers (name)")
    for target in (diary, customers):
        before = target.read_bytes()
        with pytest.raises(ForeignFileError, match=target.name):
            face.backup(target)
        assert target.read_bytes() == before
    with pytest.raises(OpenError, match="folder"):
        face.backup(tmp_path)
    assert not [found for found in tmp_path.iterdir() if found.name.endswith(".part")]


def test_a_backup_onto_one_that_is_open_is_refused(face: Face, copy: Path) -> None:
    fill(face)
    face.backup(copy)
    with SqliteSaver(copy) as other:
        put(other)
        with pytest.raises(BusyError, match=r"copy\.db"):
            face.backup(copy)
        assert len(list(other.list(None))) == 6


def test_a_backup_that_finds_no_room_says_so_and_leaves_nothing(path: Path, copy: Path) -> None:
    script = """
        import resource
        with SqliteSaver(PATH) as saver:
            saver.backup(sys.argv[2])
            put(saver, {"a": os.urandom(300_000)})
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
            for call in (saver.backup, lambda target: asyncio.run(saver.abackup(target))):
                try: call(sys.argv[2])
                except StorageError as error: print(type(error).__name__, sys.argv[2] in str(error))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            print(sorted(os.listdir(os.path.dirname(sys.argv[2]))))
            saver.backup(sys.argv[2])
    """
    out = run(script, path, copy).splitlines()
    assert out[2] == "['copy.db']"
    assert all(line.endswith("True") for line in out[:2])
    assert rows(copy) == rows(path)


def test_whatever_kills_a_backup_leaves_the_former_one_whole(path: Path, copy: Path) -> None:
    script = """
        with SqliteSaver(PATH) as saver:
            put(saver, {"a": os.urandom(3_000_000)})
            saver.backup(sys.argv[2])
            put(saver, {"a": "newer"})
            saver.backup(sys.argv[2], lambda done, total: os.kill(os.getpid(), 9))
    """
    with start(script, path, copy) as process:
        process.communicate(timeout=30)
    assert process.returncode == -9
    assert len(contents(copy)) == 1
    with SqliteSaver(path) as saver:
        saver.backup(copy)  # what the kill left is in nobody's way
    assert len(contents(copy)) == 2


# --- restore ---


@pytest.fixture
def kept(saver: SqliteSaver, copy: Path) -> Path:
    """A backup; the saver that it was made from has written more since, and still has its file open."""
    fill(saver)
    saver.backup(copy)
    fill(saver, 3, "later")
    return copy


def test_a_restored_file_is_what_the_backup_was(saver: SqliteSaver, path: Path, kept: Path) -> None:
    saver.close()
    before = kept.read_bytes()
    restore(kept, path)
    assert in_the_folder(path) == {"agent.db", "copies"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert contents(path) == contents(kept)
    assert kept.read_bytes() == before
    with SqliteSaver(path) as again:
        fill(again, 2)
        assert len(list(again.list(None))) == 7
    assert sql(path, "PRAGMA journal_mode") == [("wal",)]


def crashed(saver: SqliteSaver, path: Path, sidecars: tuple[str, ...] = ("-wal", "-shm")) -> None:
    """As a killed process leaves it: what was written last is in the -wal alone."""
    keep = {name: Path(f"{path}{name}").read_bytes() for name in ("", *sidecars)}
    saver.close()
    for name, content in keep.items():
        Path(f"{path}{name}").write_bytes(content)


def test_a_wal_that_a_killed_process_left_is_not_taken_for_the_newer_content(
    saver: SqliteSaver, path: Path, kept: Path
) -> None:
    crashed(saver, path)
    expected = contents(kept)
    by_hand = path.parent / "by_hand.db"
    for end in ("-wal", "-shm"):
        shutil.copy(f"{path}{end}", f"{by_hand}{end}")
    shutil.copy(kept, by_hand)
    assert sql(by_hand, "SELECT count(*) FROM checkpoint") != [(len(expected),)]  # what `cp` leads to
    restore(kept, path)
    assert contents(path) == expected


def test_a_file_that_was_moved_away_without_its_wal_is_restored_without_it(
    saver: SqliteSaver, path: Path, kept: Path
) -> None:
    crashed(saver, path, ("-wal",))
    path.unlink()
    restore(kept, path)
    assert contents(path) == contents(kept)


def test_a_hot_journal_of_a_former_file_is_not_rolled_into_the_restored_one(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with SqliteSaver(path, journal_mode="delete") as saver:
        fill(saver)
        saver.backup(copy)
        fill(saver, 3, "later")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN IMMEDIATE")
        db.execute("UPDATE checkpoint SET body = zeroblob(length(body) + 5000)")
        journal = Path(f"{path}-journal").read_bytes()
        half_written = path.read_bytes()
    path.write_bytes(half_written)
    Path(f"{path}-journal").write_bytes(journal)
    restore(copy, path)
    assert contents(path) == contents(copy)
    Path(f"{path}-journal").write_bytes(journal)
    path.unlink()
    restore(copy, path)
    assert contents(path) == contents(copy)


@pytest.mark.parametrize("damage", ["header", "pages", "cut off"])
def test_a_damaged_file_is_replaced(saver: SqliteSaver, path: Path, kept: Path, damage: str) -> None:
    crashed(saver, path)
    content = bytearray(path.read_bytes())
    if damage == "header":
        content[16:100] = b"\xff" * 84
    elif damage == "pages":
        content[100:] = os.urandom(len(content) - 100)
    else:
        del content[5000:]
    path.write_bytes(content)
    restore(kept, path)
    assert contents(path) == contents(kept)
    assert in_the_folder(path) >= {"agent.db", "copies"}


def test_a_damaged_file_that_another_process_has_open_is_not_replaced(saver: SqliteSaver, path: Path, kept: Path) -> None:
    saver.close()
    script = """
        with SqliteSaver(PATH) as saver:
            put(saver)
            print("ready", flush=True)
            sys.stdin.readline()
    """
    import subprocess

    with start(script, path, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with path.open("r+b") as file:
            file.seek(100)
            file.write(os.urandom(4000))
        before = path.stat().st_ino
        with pytest.raises(StorageError, match="open"):
            restore(kept, path)
        assert path.stat().st_ino == before
        process.communicate("\n", timeout=30)
    restore(kept, path)
    assert contents(path) == contents(kept)


def test_a_file_in_use_is_not_replaced(saver: SqliteSaver, path: Path, kept: Path) -> None:
    before = rows(path)
    with pytest.raises(BusyError, match="this process has it open"):
        restore(kept, path)
    script = """
        try: restore(sys.argv[2], PATH)
        except StorageError as error: print(type(error).__name__, error)
    """
    out = run(script, path, kept)
    assert "open" in out or not KNOWS_CODES
    assert rows(path) == before
    put(saver)
    assert not [name for name in in_the_folder(path) if name.endswith(".part")]


def test_a_file_that_only_readers_use_is_not_replaced_either(saver: SqliteSaver, path: Path, kept: Path) -> None:
    saver.close()
    with closing(sqlite3.connect(path)) as browser:
        browser.execute("SELECT * FROM checkpoints").fetchone()
        with pytest.raises(BusyError if KNOWS_CODES else StorageError):
            restore(kept, path)
    restore(kept, path)


def test_only_a_sound_file_of_ours_is_restored(saver: SqliteSaver, path: Path, kept: Path, tmp_path: Path) -> None:
    saver.close()
    before = rows(path)
    foreign, text, empty, newer, damaged = (tmp_path / name for name in ("foreign", "text", "empty", "newer", "damaged"))
    with closing(sqlite3.connect(foreign)) as db:
        db.execute("CREATE TABLE customers (name)")
    text.write_text("dear diary")
    empty.touch()
    shutil.copy(kept, newer)
    sql(newer, "PRAGMA user_version = 99")
    shutil.copy(kept, damaged)
    sql(damaged, "UPDATE blob SET data = zeroblob(length(data)) WHERE id = 1")
    for source, error, match in (
        (foreign, ForeignFileError, "somebody else's"),
        (text, ForeignFileError, "not an SQLite file"),
        (empty, OpenError, "nothing in it"),
        (newer, NewerFileError, "upgrade"),
        (damaged, OpenError, r"damaged .*nothing was restored.*verify\(\)"),
        (tmp_path / "missing", OpenError, "no such file"),
        (tmp_path, OpenError, "folder"),
        (path, InvalidRequest, "itself"),
        (":memory:", InvalidRequest, "memory"),
    ):
        with pytest.raises(error, match=match):
            restore(source, path)
        assert rows(path) == before
    assert not [name for name in in_the_folder(path) if name.endswith(".part")]


def test_a_backup_whose_damaged_thread_was_deleted_is_restored(saver: SqliteSaver, path: Path, kept: Path) -> None:
    saver.close()
    with SqliteSaver(kept) as other:
        fill(other, 2, "sound")
    sql(kept, "UPDATE blob SET data = zeroblob(length(data)) WHERE id = 1")
    with SqliteSaver(kept) as other:
        other.delete_thread("t")
    restore(kept, path)
    assert {item.config["configurable"]["thread_id"] for item in contents(path)} == {"sound"}


def test_a_file_of_somebody_else_is_not_replaced_by_a_backup(saver: SqliteSaver, kept: Path, tmp_path: Path) -> None:
    target = tmp_path / "customers.db"
    with closing(sqlite3.connect(target)) as db:
        db.execute("CREATE TABLE customers (name)")
    before = target.read_bytes()
    with pytest.raises(ForeignFileError):
        restore(kept, target)
    assert target.read_bytes() == before


def test_a_live_file_can_be_restored_from_with_what_is_in_its_wal(saver: SqliteSaver, path: Path, tmp_path: Path) -> None:
    fill(saver)
    assert Path(f"{path}-wal").stat().st_size > 0
    restore(path, tmp_path / "new" / "copy.db")
    assert contents(tmp_path / "new" / "copy.db") == list(saver.list(None))


def test_a_backup_on_a_medium_that_cannot_be_written_is_restored(saver: SqliteSaver, path: Path, kept: Path) -> None:
    saver.close()
    kept.chmod(0o400)
    kept.parent.chmod(0o500)
    try:
        restore(kept, path)
        assert in_the_folder(kept) == {"copy.db"}
    finally:
        kept.parent.chmod(0o700)
    assert contents(path) == contents(kept)


# --- a file that changes under a saver ---

USES = {
    "put": put,
    "put_writes": lambda face: face.put_writes(config("t", "", "x"), [("a", 1)], "task"),
    "get_tuple": lambda face: face.get_tuple(config()),
    "list": lambda face: list(face.list(None)),
    "delete_thread": lambda face: face.delete_thread("t"),
    "threads": lambda face: face.threads(),
    "compact": lambda face: face.compact(),
    "stats": lambda face: face.stats(),
    "backup": lambda face: face.backup(Path(face.saver._shared.database.path).parent / "other.db"),
}


@pytest.mark.parametrize("name", USES)
def test_a_saver_whose_file_was_replaced_notices_at_its_next_use(face: Face, path: Path, tmp_path: Path, name: str) -> None:
    fill(face)
    face.backup(tmp_path / "copy.db")
    (tmp_path / "copy.db").replace(path)
    found = path.read_bytes()
    for _ in range(2):
        with pytest.raises(OpenError, match=r"agent.db: another file has taken its place.*new saver"):
            USES[name](face)
    face.saver.close()
    assert path.read_bytes() == found
    with SqliteSaver(path) as again:
        assert again.get_tuple(config()) is not None


@pytest.mark.parametrize("name", USES)
def test_a_saver_whose_file_vanished_says_so_and_goes_on_when_it_is_back(face: Face, path: Path, name: str) -> None:
    fill(face)
    path.rename(path.with_suffix(".away"))
    with pytest.raises(OpenError, match=r"agent.db: gone while this saver had it open"):
        USES[name](face)
    assert not path.exists()
    path.with_suffix(".away").rename(path)
    put(face, {"a": "back"})
    assert face.get_tuple(config()).checkpoint["channel_values"] == {"a": "back"}


def test_closing_a_saver_whose_file_was_replaced_takes_nothing_from_the_new_one(saver: SqliteSaver, path: Path) -> None:
    fill(saver)
    copy = path.parent / "copy.db"
    saver.backup(copy)
    copy.replace(path)
    Path(f"{path}-wal").unlink()
    Path(f"{path}-shm").unlink()
    with SqliteSaver(path) as new:
        stored = put(new, {"a": "new"})
        saver.close()
        crashed_content = {end: Path(f"{path}{end}").read_bytes() for end in ("", "-wal")}
    elsewhere = path.parent / "elsewhere.db"
    for end, content in crashed_content.items():
        Path(f"{elsewhere}{end}").write_bytes(content)
    with SqliteSaver(elsewhere) as found:
        assert found.get_tuple(config()).config == stored


def test_what_is_queued_when_the_file_is_gone_fails_and_nothing_is_written_to_the_unlinked_file(
    saver: SqliteSaver, path: Path
) -> None:
    fill(saver)
    path.rename(path.with_suffix(".away"))

    async def main() -> list[Any]:
        calls = [saver.aput(config(f"t{number}"), checkpoint({"a": 1}), {}, {}) for number in range(10)]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert {type(outcome) for outcome in asyncio.run(main())} == {OpenError}
    path.with_suffix(".away").rename(path)
    assert len(list(saver.list(None))) == 5


def test_every_error_of_a_restore_is_the_packages_own(tmp_path: Path, saver: SqliteSaver) -> None:
    saver.backup(tmp_path / "copy.db")
    with pytest.raises(CheckpointError):
        restore(tmp_path / "copy.db", "/proc/agent.db")
