"""File systems without shared memory: a mode for them, and a warning where a path is on one. What pins the -wal, and what not."""

import asyncio
import os
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from calls import CALLS
from conftest import Face, checkpoint, config, put
from scripts import run
from sqlfile import KNOWS_CODES, sql

from langgraph_sqlite_ckpt import BusyError, InvalidRequest, SqliteSaver, StorageError
from langgraph_sqlite_ckpt import saver as saver_module
from langgraph_sqlite_ckpt.mounts import shared_file_system


def journal_mode(path: Path) -> str:
    [(mode,)] = sql(path, "PRAGMA journal_mode")
    return str(mode)


# --- journal_mode="delete" ---


@pytest.mark.parametrize("name", CALLS)
def test_every_method_works_without_shared_memory(open_face: Any, path: Path, name: str) -> None:
    face = open_face(journal_mode="delete")
    stored = put(face, {"a": ["x" * 500]})
    face.put_writes(stored, [("a", 1)], "task")
    CALLS[name](face)
    assert face.verify() == []
    assert {found.name for found in path.parent.iterdir()} == {"agent.db"}  # no -wal, no -shm
    assert journal_mode(path) == "delete"


def test_a_file_is_turned_over_to_the_mode_that_is_asked_for_with_all_that_is_in_it(path: Path) -> None:
    for number, mode in enumerate(("wal", "delete", "wal", "delete")):
        with SqliteSaver(path, journal_mode=mode) as saver:  # type: ignore[arg-type]
            put(saver, {"a": number})
            assert len(list(saver.list(None))) == number + 1
        assert journal_mode(path) == mode


def test_a_file_that_somebody_else_has_open_in_wal_mode_is_not_turned_over(path: Path) -> None:
    with SqliteSaver(path) as other:
        put(other)
        with pytest.raises(BusyError if KNOWS_CODES else StorageError):
            SqliteSaver(path, journal_mode="delete", busy_timeout=0.1)
        put(other)
    assert journal_mode(path) == "wal"


def test_a_mode_that_is_none_is_refused_before_any_file_is_made(path: Path) -> None:
    for mode in ("off", "memory", "WAL", None):
        with pytest.raises(InvalidRequest, match="journal_mode"):
            SqliteSaver(path, journal_mode=mode)  # type: ignore[arg-type]
    assert not path.exists()


def test_readers_and_writers_of_several_processes_wait_for_each_other(path: Path) -> None:
    script = """
        def work(number):
            with SqliteSaver(PATH, journal_mode="delete", synchronous="normal") as saver:
                at = config(f"process {number}")
                for step in range(8):
                    at = put(saver, {"a": ["x" * 300] * step, "step": step}, parent=at)
                    assert asyncio.run(saver.aget_tuple(at)).checkpoint["channel_values"]["step"] == step
                    assert len(list(saver.list(config(f"process {number}")))) == step + 1
        children = [multiprocessing.get_context("fork").Process(target=work, args=(number,)) for number in range(4)]
        for child in children: child.start()
        for child in children: child.join(50)
        with SqliteSaver(PATH, journal_mode="delete") as saver:
            print([child.exitcode for child in children], len(list(saver.list(None))), saver.verify())
    """
    assert run(script, path, seconds=80).strip() == "[0, 0, 0, 0] 32 []"


def test_a_kill_in_the_middle_of_a_commit_is_rolled_back_by_the_next_saver(path: Path) -> None:
    script = """
        saver = SqliteSaver(PATH, journal_mode="delete")
        put(saver, {"a": "acknowledged"})
        writer = saver._shared.database._writer
        writer.execute("PRAGMA cache_size = 1")
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE checkpoint SET body = zeroblob(300000)")
        os._exit(0)
    """
    run(script, path)
    assert Path(f"{path}-journal").stat().st_size > 0
    with SqliteSaver(path, journal_mode="delete") as saver:
        assert saver.get_tuple(config()).checkpoint["channel_values"] == {"a": "acknowledged"}
        assert saver.verify() == []


# --- where a path is ---

MOUNTS = """\
21 1 254:0 / / rw,relatime - ext4 /dev/vda rw
22 21 0:20 / /proc rw shared:5 - proc proc rw
30 21 0:40 / /mnt/share rw,relatime shared:1 master:2 - nfs4 server:/export rw
31 21 0:41 / /mnt/with\\040space rw - cifs //server/share rw
32 30 0:42 / /mnt/share/local rw - xfs /dev/vdb rw
33 21 0:43 / /home/me/cloud rw - fuse.sshfs me@host: rw
34 21 0:44 / /mnt/twice rw - 9p host rw
35 21 0:45 / /mnt/twice rw - tmpfs tmpfs rw
36 21 0:46 / /mnt/blocks rw - fuseblk /dev/sdb1 rw
broken line
37 21 - nfs
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/agent.db", None),
        ("/mnt/share/agent.db", "nfs4"),
        ("/mnt/share", "nfs4"),
        ("/mnt/shared/agent.db", None),
        ("/mnt/with space/agent.db", "cifs"),
        ("/mnt/share/local/agent.db", None),
        ("/home/me/cloud/deep/agent.db", "fuse.sshfs"),
        ("/mnt/twice/agent.db", None),
        ("/mnt/blocks/agent.db", None),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount_point(path: str, kind: str | None) -> None:
    assert shared_file_system(path, MOUNTS) == kind


def test_a_link_is_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/mnt/share")
    assert shared_file_system(str(tmp_path / "link" / "agent.db"), MOUNTS) == "nfs4"


def test_nobody_knows_is_no_network(tmp_path: Path) -> None:
    assert shared_file_system(str(tmp_path), "") is None


def test_wal_mode_on_a_network_file_system_warns_once_with_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver_module, "shared_file_system", lambda path: "nfs4")
    with pytest.warns(UserWarning, match=r'agent.db.*nfs4.*journal_mode="delete"') as caught:
        SqliteSaver(path).close()
    assert [each.filename for each in caught] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SqliteSaver(path, journal_mode="delete").close()


# --- the -wal ---


def test_a_reader_elsewhere_makes_the_wal_grow_only_while_it_is_there_and_stats_say_so(face: Face, path: Path) -> None:
    wal = Path(f"{path}-wal")
    put(face, {"a": "before"})
    assert face.stats().wal_pinned is False
    with closing(sqlite3.connect(path, isolation_level=None)) as browser:
        browser.execute("BEGIN")
        browser.execute("SELECT count(*) FROM checkpoint").fetchone()
        for _ in range(12):
            put(face, {"a": [bytes(range(256)) * 4000]}, at=config("big"))
            put(face, {"b": os.urandom(1_000_000)}, at=config("big"))
        grown = wal.stat().st_size
        assert grown > 12_000_000
        assert face.stats().wal_pinned is True
        browser.execute("ROLLBACK")
    assert face.stats().wal_pinned is False
    for number in range(3):
        put(face, {"a": number})
    assert wal.stat().st_size <= 8 * 1024 * 1024 < grown
    face.compact()
    assert wal.stat().st_size == 0


def test_who_may_only_read_cannot_tell_what_pins_the_wal(path: Path) -> None:
    with SqliteSaver(path) as saver:
        put(saver)
        with SqliteSaver(path, read_only=True) as reader:
            assert reader.stats().wal_pinned is None
            assert asyncio.run(reader.astats()).checkpoints == 1


def test_without_a_wal_nothing_is_pinned(tmp_path: Path) -> None:
    for options in ({"path": ":memory:"}, {"path": tmp_path / "agent.db", "journal_mode": "delete"}):
        with SqliteSaver(**options) as saver:  # type: ignore[arg-type]
            saver.put(config(), checkpoint({"a": 1}), {}, {})
            assert saver.stats().wal_pinned is False
