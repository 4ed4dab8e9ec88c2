"""Disks that are full, quotas, folders that cannot be written: an error of ours at once, nothing half done, and then on."""

import operator
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from conftest import Face, config, put
from langgraph.graph import END, START, StateGraph
from scripts import folder_for_anyone, run
from sqlfile import KNOWS_CODES, can_write_at_once, rows

from langgraph_sqlite_ckpt import DiskFullError, OpenError, SqliteSaver, StorageError

Full = DiskFullError if KNOWS_CODES else StorageError


class Disk:
    """A small file system of its own, really full when it is full."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, megabytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", self.folder], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True)
    if made.returncode:
        pytest.skip("only root can mount a file system")
    yield Disk(folder)
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_disk_that_is_really_full_fails_each_write_at_once_and_what_was_acknowledged_stays(
    open_face: Any, disk: Disk
) -> None:
    path = disk.folder / "agent.db"
    face = open_face(path)
    acknowledged = []
    with pytest.raises(Full) as caught:
        for number in range(100):
            acknowledged.append(put(face, {"a": os.urandom(50_000)}, step=number))
    assert len(acknowledged) > 5
    assert str(path) in str(caught.value)
    assert not KNOWS_CODES or "free some and resume" in str(caught.value)
    before = rows(path)
    for call in (
        lambda: face.put_writes(acknowledged[-1], [("a", os.urandom(900_000))], "task"),
        lambda: put(face, {"a": os.urandom(900_000)}),
        lambda: face.backup(disk.folder / "copy.db"),
    ):
        with pytest.raises(Full):
            call()
        assert rows(path) == before
        assert can_write_at_once(path)
    assert [item.config for item in face.list(config())] == acknowledged[::-1]
    assert sorted(found.name for found in disk.folder.iterdir()) == ["agent.db", "agent.db-shm", "agent.db-wal"]
    disk.resize(32)
    put(face, {"a": os.urandom(900_000)})
    face.backup(disk.folder / "copy.db")
    assert face.verify() == []
    assert len(list(face.list(config()))) == len(acknowledged) + 1


def test_on_a_full_disk_space_can_be_made_by_deleting(open_face: Any, disk: Disk) -> None:
    face = open_face(disk.folder / "agent.db")
    with pytest.raises(Full):
        for number in range(100):
            put(face, {"a": os.urandom(50_000)}, at=config(f"t{number}"))
    (disk.folder / "agent.db").stat()
    threads = [thread.thread_id for thread in face.threads()]
    disk.resize(3)  # a delete needs some pages of the -wal itself
    for thread_id in threads[: len(threads) // 2]:
        face.delete_thread(thread_id)
    face.compact()
    put(face, {"a": os.urandom(50_000)}, at=config("after"))
    assert face.verify() == []


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def test_a_graph_that_met_a_full_disk_is_resumed_when_there_is_space(disk: Disk) -> None:
    runs: list[str] = []

    def first(state: State) -> State:
        runs.append("first")
        return {"log": ["first"]}

    def second(state: State) -> State:
        runs.append("second")
        return {"log": [os.urandom(1_500_000).hex()]}

    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    with SqliteSaver(disk.folder / "agent.db") as small:
        graph = builder.compile(checkpointer=small)
        with pytest.raises(Full):
            graph.invoke({"log": ["in"]}, config(), durability="sync")
        kept = small.get_tuple(config())
        disk.resize(64)
        result = graph.invoke(None, config(), durability="sync")
        assert result["log"][:2] == ["in", "first"]
        assert len(result["log"]) == 3
        wrote = any(channel == "log" for _, channel, _ in kept.pending_writes)
        assert runs == ["first", "second"] + ([] if wrote else ["second"])  # what a task wrote is not done again
        assert small.verify() == []


def test_a_limit_of_the_system_on_file_sizes_is_reported_with_what_it_may_be(path: Path) -> None:
    script = """
        import resource
        with SqliteSaver(PATH) as saver:
            at = put(saver, {"a": "before"})
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
            for call in (
                lambda: put(saver, {"a": os.urandom(300_000)}),
                lambda: asyncio.run(saver.aput(config(), checkpoint({"a": os.urandom(300_000)}), {}, {})),
                lambda: saver.put_writes(at, [("a", os.urandom(300_000))], "task"),
            ):
                begun = time.monotonic()
                try: call()
                except StorageError as error: print("quota or file-size limit" in str(error), time.monotonic() - begun < 2)
                assert saver.get_tuple(config()).config == at
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            put(saver, {"a": os.urandom(300_000)}, parent=at)
            print(len(list(saver.list(None))), saver.verify())
    """
    assert run(script, path).splitlines() == [f"{KNOWS_CODES} True"] * 3 + ["2 []"]


@pytest.fixture
def anyones() -> Iterator[Path]:
    """A folder that users other than root can use."""
    with folder_for_anyone() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)
        Path(folder).chmod(0o755)


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_a_folder_that_becomes_read_only_under_a_saver_loses_nothing(anyones: Path, journal_mode: str) -> None:
    script = """
        become_somebody()
        folder = os.path.dirname(PATH)
        with SqliteSaver(PATH, journal_mode=sys.argv[2]) as saver:
            acknowledged = [put(saver, {"a": 0})]
            os.chmod(folder, 0o555) if os.stat(folder).st_uid == os.getuid() else None
            print("ready", flush=True)
            sys.stdin.readline()
            for number in range(3):
                try: acknowledged.append(put(saver, {"a": number}))
                except StorageError as error: print("refused", PATH in str(error))
            assert {item.config["configurable"]["checkpoint_id"] for item in saver.list(None)} == {
                each["configurable"]["checkpoint_id"] for each in acknowledged}
            print("ready", flush=True)
            sys.stdin.readline()
            put(saver, {"a": "again"})
            print(len(list(saver.list(None))) == len(acknowledged) + 1, saver.verify())
    """
    from scripts import start

    with start(script, anyones / "agent.db", journal_mode, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        anyones.chmod(0o555)
        process.stdin.write("\n")
        process.stdin.flush()
        told = []
        while (line := process.stdout.readline()) not in ("ready\n", ""):
            told.append(line)
        anyones.chmod(0o777)
        out, err = process.communicate("\n", timeout=30)
    assert process.returncode == 0, err
    assert told == ([] if journal_mode == "wal" else ["refused True\n"] * 3)  # only a journal has to be made each time
    assert out == "True []\n"


def test_a_folder_that_vanishes_with_the_file_is_reported_at_once(face: Face, path: Path) -> None:
    put(face, {"a": 1})
    away = path.parent.with_name("away")
    path.parent.rename(away)
    for call in (put, lambda face: face.get_tuple(config()), lambda face: face.verify()):
        try:
            found = call(face)
        except OpenError as error:
            assert "gone" in str(error)
        else:
            assert found  # verify() tells as problems what it meets
    away.rename(path.parent)
    put(face, {"a": 2})
    assert len(list(face.list(config()))) == 2
