"""Who answers for a thread, and is it still there: the difference between running, stopped and crashed."""

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config, put
from scripts import crash, run, start
from sqlfile import Tap, sql, tap, write_lock
from threads import stored, thread

from langgraph_sqlite_ckpt import SqliteSaver, ThreadBusy, custody, liveness
from langgraph_sqlite_ckpt.schema import SILENCE

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel is asked through /proc")

__all__ = ["tap"]  # a fixture
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

UNFINISHED = """
from threads import stored, thread
saver = SqliteSaver(PATH, busy_timeout=5)
last = thread(saver, "t", "running")
print("ready", flush=True)
"""
WAIT = "\nsys.stdin.read()\n"


def begun(path: Path, script: str = UNFINISHED + WAIT) -> "subprocess.Popen[str]":
    process = start(script, path, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def killed(path: Path, state: str = "running") -> None:
    crash(path, lambda saver: thread(saver, "t", state))


def status(saver: Any, thread_id: str = "t") -> str:
    [found] = [each.status for each in saver.threads() if each.thread_id == thread_id]
    return found


def seen(path: Path, thread_id: str = "t") -> str:
    """By the view, as a person with `sqlite3` sees it."""
    [(found,)] = sql(path, "SELECT status FROM threads WHERE thread_id = ?", thread_id)
    return found


def ago(seconds: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat(timespec="microseconds")


def pretend(path: Path, **columns: object) -> None:
    """Of the only owner."""
    assert len(sql(path, "SELECT id FROM owner")) == 1
    for name, value in columns.items():
        sql(path, f"UPDATE owner SET {name} = ?", value)


@pytest.fixture
def elsewhere(path: Path) -> Any:
    """A thread whose saver is open, and which another one looks at."""
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        thread(saver, "t", "running")
        yield other


# --- how it ended ---


def test_what_a_killed_process_left_unfinished_has_crashed_for_whoever_opens_next(path: Path) -> None:
    killed(path)

    with SqliteSaver(path) as saver:
        assert seen(path) == "crashed"
        [run] = saver.runs("t")
        assert (status(saver), run.status) == ("crashed", "crashed")
        assert [each.thread_id for each in saver.threads(status="crashed")] == ["t"]
        assert [each.thread_id for each in saver.runs(status="crashed")] == ["t"]
        assert saver.threads(status="running") == [] == saver.runs(status="running")
        assert sql(path, "SELECT status FROM runs") == [("crashed",)]


def test_one_that_only_reads_sees_it_too_and_writes_nothing(path: Path) -> None:
    killed(path)

    with SqliteSaver(path, read_only=True) as saver:
        assert status(saver) == "crashed"
        assert [each.thread_id for each in saver.runs(status="crashed")] == ["t"]
    assert sql(path, "SELECT ended FROM owner") == [(None,)]


def test_one_that_has_long_been_open_sees_it_too(path: Path) -> None:
    with SqliteSaver(path) as saver:
        with begun(path) as process:
            assert status(saver) == "running"
            process.kill()
        assert status(saver) == "crashed"


def test_closed_in_mid_run_it_has_stopped(open_face: Any, path: Path) -> None:
    face = open_face()
    thread(face, "t", "running")
    face.close()

    with SqliteSaver(path) as saver:
        assert status(saver) == "stopped"
        assert seen(path) == "stopped"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError", 1),
        ("os.kill(os.getpid(), signal.SIGINT); time.sleep(9)", -signal.SIGINT),
        ("threading.Thread(target=lambda: (time.sleep(0.2), put(saver, {'a': 1}, parent=last))).start()", 0),
        ("loops = [saver]; loops.append(loops); del saver, loops", 0),
    ],
    ids=["at its end", "exit", "an error", "Ctrl-C", "while a thread writes", "saver collected last"],
)
def test_an_interpreter_that_ends_normally_without_closing_has_stopped(path: Path, end: str, code: int) -> None:
    with start("import signal\n" + UNFINISHED + end, path) as process:
        process.communicate(timeout=20)
    assert process.returncode == code

    with SqliteSaver(path) as saver:
        assert status(saver) in {"stopped", "completed"}
        assert sql(path, "SELECT ended FROM owner") == [("closed",)]


def test_ctrl_c_that_is_caught_when_the_saver_is_gone_already_has_stopped(path: Path) -> None:
    script = """
    import gc, warnings
    from threads import thread
    warnings.simplefilter("ignore")
    def main():
        saver = SqliteSaver(PATH)
        thread(saver, "t", "running")
        raise KeyboardInterrupt
    try:
        main()
    except KeyboardInterrupt:
        pass
    gc.collect()
    """
    run(script, path)

    with SqliteSaver(path) as saver:
        assert status(saver) == "stopped"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_saver_that_was_dropped_unclosed_runs_nothing_any_more(path: Path) -> None:
    saver = SqliteSaver(path)
    thread(saver, "t", "running")
    del saver
    gc.collect()

    with SqliteSaver(path) as other:
        assert status(other) == "stopped"


@pytest.mark.parametrize("savers", [1, 5])
def test_it_exits_within_two_seconds_though_somebody_has_the_write_lock(path: Path, savers: int) -> None:
    script = f"""
from threads import thread
savers = [SqliteSaver(PATH) for _ in range({savers})]
for number, saver in enumerate(savers):
    thread(saver, str(number), "running")
print("ready", flush=True)
sys.stdin.readline()
"""
    with begun(path, script) as process:
        with write_lock(path):
            began = time.monotonic()
            process.communicate("\n", timeout=20)
            assert time.monotonic() - began < 3.5  # two, and what a busy machine adds
        assert process.returncode == 0


def test_close_waits_for_the_lock_where_others_would_take_its_work_for_going_on(path: Path) -> None:
    saver = SqliteSaver(path)
    thread(saver, "t", "running")
    with write_lock(path) as lock:
        closing_ = threading.Thread(target=saver.close)
        closing_.start()
        closing_.join(1.5)
        assert closing_.is_alive()
        lock.execute("ROLLBACK")
    closing_.join()

    assert seen(path) == "stopped"


# --- seen from elsewhere ---


def test_a_living_process_is_seen_running_by_others(path: Path) -> None:
    with begun(path) as process, SqliteSaver(path) as saver:
        assert status(saver) == "running"
        assert seen(path) == "running"
        assert [each.status for each in saver.runs("t")] == ["running"]
        process.communicate("\n")
        assert status(saver) == "stopped"


@LINUX
def test_a_process_id_that_is_used_again_is_another_process(path: Path, elsewhere: SqliteSaver) -> None:
    assert status(elsewhere) == "running"

    pretend(path, started="1")

    assert status(elsewhere) == "crashed"


@LINUX
def test_a_process_that_has_ended_and_was_not_noticed_by_its_parent_is_gone(path: Path) -> None:
    with begun(path) as process, SqliteSaver(path) as saver:
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        os.kill(process.pid, 0)

        assert status(saver) == "crashed"


@LINUX
def test_a_machine_that_was_started_anew_has_none_of_its_processes(path: Path, elsewhere: SqliteSaver) -> None:
    pretend(path, boot="another")

    assert status(elsewhere) == "crashed"


@pytest.mark.parametrize("other", [{"space": "pid:[1]"}, {"host": "another"}, {"host": "another", "boot": "another"}])
def test_where_nobody_can_look_the_heartbeat_decides(path: Path, elsewhere: SqliteSaver, other: Any) -> None:
    pretend(path, **other, started="1")
    assert status(elsewhere) == "running"

    pretend(path, beat_at=ago(SILENCE - 5))
    assert (status(elsewhere), seen(path)) == ("running", "running")

    pretend(path, beat_at=ago(SILENCE + 1))
    assert (status(elsewhere), seen(path)) == ("crashed", "crashed")
    with SqliteSaver(path):
        assert sql(path, "SELECT ended FROM owner") == [("gone",)]


def test_where_the_kernel_can_be_asked_silence_says_nothing(path: Path, elsewhere: SqliteSaver) -> None:
    pretend(path, beat_at=ago(3600))

    assert status(elsewhere) == "running"


def test_a_saver_that_cannot_see_the_boot_id_is_not_taken_for_one_of_another_boot(
    path: Path, elsewhere: SqliteSaver
) -> None:
    pretend(path, boot="")  # a service with ProcSubset=pid

    assert status(elsewhere) == "running"


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(liveness, "_read", lambda path: "")
    monkeypatch.setattr(liveness, "_space", lambda: "")
    liveness._boot.cache_clear()
    yield
    liveness._boot.cache_clear()


def test_without_proc_a_process_that_is_not_there_is_gone(path: Path, no_proc: None, elsewhere: SqliteSaver) -> None:
    assert sql(path, "SELECT boot, space, started FROM owner") == [("", "", "")]
    assert status(elsewhere) == "running"

    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    pretend(path, pid=ended.pid)

    assert status(elsewhere) == "crashed"


def test_without_proc_a_process_that_may_be_another_is_judged_by_its_heartbeat(
    path: Path, no_proc: None, elsewhere: SqliteSaver
) -> None:
    pretend(path, beat_at=ago(SILENCE + 1))

    assert status(elsewhere) == "crashed"


def test_a_process_that_is_there_and_cannot_be_looked_at_is_not_gone(
    path: Path, elsewhere: SqliteSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """/proc mounted with hidepid: others' processes are not shown."""
    read = liveness._read
    monkeypatch.setattr(liveness, "_read", lambda path: "" if path.startswith("/proc/1/") else read(path))
    pretend(path, pid=1)

    assert status(elsewhere) == "running"


@pytest.mark.parametrize(
    "damage", [{"beat_at": "x", "host": "y"}, {"pid": "../..\0"}, {"pid": 2**62}, {"host": b"\xff"}, {"beat_at": b"\xff"}]
)
def test_a_damaged_owner_keeps_nobody_from_opening_the_file(path: Path, damage: Any) -> None:
    with SqliteSaver(path) as saver:
        thread(saver, "t", "running")
        pretend(path, **damage)

        with SqliteSaver(path) as other:
            assert status(other) in {"running", "crashed"}
            put(other, {"a": 1}, at=config("u"))


# --- heartbeats ---


def beats_of(path: Path) -> Any:
    return sql(path, "SELECT beat_at FROM owner")


def wait_for(condition: Any, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custody, "BEAT", 0.05)


@pytest.mark.parametrize("begins_with", ["checkpoint", "pending write", "claim"])
def test_a_saver_says_that_it_is_there_while_it_has_unfinished_work(path: Path, quick: None, begins_with: str) -> None:
    with SqliteSaver(path) as saver:
        last = stored(saver, "t", due=True)
    with SqliteSaver(path) as saver:
        if begins_with == "checkpoint":
            stored(saver, "t", parent=last, due=True)
        elif begins_with == "pending write":
            saver.put_writes(last, [("a", 1)], "task")
        else:
            saver.claim("t").__enter__()
        own = "SELECT max(beat_at) FROM owner WHERE ended IS NULL"
        first = sql(path, own)

        assert wait_for(lambda: sql(path, own) > first)


@pytest.mark.parametrize("end", ["completed", "interrupted", "failed", "deleted elsewhere", "ended elsewhere"])
def test_and_only_while_it_has(path: Path, quick: None, end: str) -> None:
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        last = thread(saver, "t", end if end in {"completed", "interrupted", "failed"} else "running")
        if end == "deleted elsewhere":
            other.delete_thread("t")
        if end == "ended elsewhere":
            stored(other, "t", parent=last)
        assert wait_for(lambda: not saver._shared.owner.has_work)
        before = beats_of(path)
        time.sleep(0.2)

        assert beats_of(path) == before


def test_what_was_answered_is_work_again(path: Path, quick: None) -> None:
    with SqliteSaver(path) as saver:
        last = thread(saver, "t", "interrupted")
        assert wait_for(lambda: not saver._shared.owner.has_work)
        saver.put_writes(last, [("__resume__", "yes")], "00000000-0000-0000-0000-000000000000")
        before = beats_of(path)

        assert wait_for(lambda: beats_of(path) > before)


def hearts() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "heartbeat" in each.name]


def test_the_heart_ends_with_close(path: Path) -> None:
    before = len(hearts())
    with SqliteSaver(path) as saver:
        assert len(hearts()) == before
        put(saver, {"a": 1})
        assert len(hearts()) == before + 1
    assert wait_for(lambda: len(hearts()) == before)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_heart_keeps_no_saver_alive(path: Path) -> None:
    before = len(hearts())
    saver = SqliteSaver(path)
    thread(saver, "t", "running")
    del saver
    gc.collect()

    assert wait_for(lambda: len(hearts()) == before)


def test_a_saver_that_was_idle_for_long_is_there_as_soon_as_it_writes(path: Path) -> None:
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        thread(saver, "done")
        pretend(path, beat_at=ago(3600), space="another container")
        thread(saver, "t", "running")

        assert (seen(path), status(other)) == ("running", "running")


def test_a_saver_that_was_taken_for_gone_is_there_again_with_its_next_write(path: Path) -> None:
    with SqliteSaver(path) as saver:
        last = thread(saver, "t", "running")
        pretend(path, ended="gone", ended_at=ago(0))
        assert status(saver) == "crashed"

        saver.put_writes(last, [("a", 1)], "task")

        assert (status(saver), seen(path)) == ("running", "running")
    assert seen(path) == "stopped"


def test_or_with_its_next_heartbeat(path: Path, quick: None) -> None:
    with SqliteSaver(path) as saver:
        thread(saver, "t", "running")
        pretend(path, ended="gone", ended_at=ago(0))

        assert wait_for(lambda: seen(path) == "running")


# --- forks ---


def test_a_forked_child_answers_for_what_it_writes_and_the_parent_for_the_rest(path: Path) -> None:
    script = (
        UNFINISHED.replace('print("ready", flush=True)', "")
        + """
child = os.fork()
if not child:
    thread(saver, "child", "running")
    os._exit(0)
os.waitpid(child, 0)
print({each.thread_id: each.status for each in saver.threads()})
print(*[row[0] for row in sqlite3.connect(PATH).execute("SELECT count(DISTINCT pid) FROM owner")])
saver.close()
"""
    )
    assert run(script, path).split("\n")[:2] == ["{'child': 'crashed', 't': 'running'}", "2"]


def test_a_forked_child_that_ends_leaves_the_parent_running(path: Path) -> None:
    script = (
        UNFINISHED.replace('print("ready", flush=True)', "")
        + """
if not (child := os.fork()):
    sys.exit()
os.waitpid(child, 0)
print(saver.threads()[0].status)
saver.close()
"""
    )
    assert run(script, path) == "running\n"


# --- rows that nobody needs ---


def test_many_short_savers_leave_no_trail(path: Path) -> None:
    for number in range(100):
        with SqliteSaver(path, synchronous="normal") as saver:
            saver.put_writes(config("t", "", "x"), [("a", number)], "task")

    assert sql(path, "SELECT count(*) FROM owner")[0][0] <= 2


def test_forgetting_owners_does_not_look_at_every_thread(path: Path) -> None:
    with SqliteSaver(path) as saver:
        put(saver, {"a": 1})
    plan = sql(
        path,
        "EXPLAIN QUERY PLAN DELETE FROM owner WHERE ended IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM custody h WHERE h.owner = owner.id)"
        " AND NOT EXISTS (SELECT 1 FROM custody h WHERE h.holder = owner.id)",
    )
    assert not [step for step in plan if "SCAN h" in step[3]]


# --- runs ---


def test_a_run_that_another_took_over_has_stopped(path: Path) -> None:
    killed(path)
    with SqliteSaver(path) as saver:
        stored(saver, "t", due=True, source="input")

        newer, older = saver.runs("t")
        assert (newer.status, older.status) == ("running", "stopped")
        assert sql(path, "SELECT status FROM runs ORDER BY seq") == [("stopped",), ("running",)]


def test_an_abandoned_branch_has_stopped(saver: SqliteSaver) -> None:
    first = stored(saver, "t", due=True)
    stored(saver, "t", parent=first, due=True)
    stored(saver, "t", parent=first, due=True, source="fork")

    newer, older = saver.runs("t")
    assert (newer.status, older.status) == ("running", "stopped")


@pytest.mark.parametrize("how", ["checkpoint", "pending write", "claim"])
def test_a_crashed_run_runs_again_as_soon_as_its_new_process_wrote_anything(path: Path, how: str) -> None:
    killed(path)
    with SqliteSaver(path) as saver, SqliteSaver(path) as other:
        assert status(other) == "crashed"
        last = saver.get_tuple(config("t")).config
        if how == "claim":
            with saver.claim("t"):
                assert (status(other), seen(path)) == ("running", "running")
            assert (status(other), seen(path)) == ("crashed", "crashed")
            return
        if how == "checkpoint":
            stored(saver, "t", parent=last, due=True)
        else:
            saver.put_writes(last, [("a", 1)], "task")
        assert (status(other), seen(path)) == ("running", "running")


@pytest.mark.parametrize("before", ["interrupted", "failed", "completed"])
def test_what_waits_has_failed_or_is_done_does_not_crash(path: Path, before: str) -> None:
    killed(path, before)

    with SqliteSaver(path) as saver:
        assert (status(saver), seen(path)) == (before, before)
        assert saver.threads(status="crashed") == []


# --- transactions that are not ---


def test_a_transaction_that_failed_leaves_no_saver_unregistered(path: Path, tap: Tap) -> None:
    with SqliteSaver(path) as saver:

        def fail(db: sqlite3.Connection, statement: str) -> None:
            if statement == "COMMIT":
                tap.forget()
                raise sqlite3.OperationalError("disk I/O error")

        tap.before = fail
        with pytest.raises(Exception, match="disk I/O error"):
            put(saver, {"a": 1})
        assert sql(path, "SELECT count(*) FROM owner") == [(0,)]

        thread(saver, "t", "running")
        assert (status(saver), seen(path)) == ("running", "running")


def test_a_bad_first_operation_of_a_group_leaves_the_good_ones_registered(path: Path) -> None:
    with SqliteSaver(path) as other, SqliteSaver(path) as saver:
        stored(other, "taken", due=True)
        shared = saver._shared
        bad, _ = saver._put(config("taken"), _checkpoint(), {"source": "input"}, {})
        good, _ = saver._put(config("t"), _checkpoint(), {"source": "input"}, {})
        with other.claim("taken"):
            one, two = shared.database.write_all([bad, good])
        assert isinstance(one.error, ThreadBusy)
        assert two.error is None
        assert (status(saver), seen(path)) == ("running", "running")


def _checkpoint() -> Any:
    return checkpoint({"branch:to:node": None})


def test_writing_nothing_first_leaves_no_saver_unregistered(face: Face, path: Path) -> None:
    face.put_writes(config("t", "", "x"), [], "task")
    thread(face, "t", "running")

    assert status(face) == "running"
    with SqliteSaver(path) as other, face.saver.claim("t"), pytest.raises(ThreadBusy):
        other.claim("t").__enter__()


# --- what it costs ---


def test_it_costs_a_put_two_look_ups(path: Path, tap: Tap) -> None:
    with SqliteSaver(path) as saver:
        last = thread(saver, "t", "running")
        tap.forget()
        stored(saver, "t", parent=last, due=True)

        about_owners = [each for each in tap.statements if "owner" in each or "custody" in each]
        assert len(about_owners) == 2
        assert all(each.startswith("SELECT") for each in about_owners)


def test_nothing_is_written_by_opening_and_closing_alone(path: Path) -> None:
    with SqliteSaver(path) as saver:
        thread(saver, "t", "running")
        with closing(sqlite3.connect(path)) as db:
            [(before,)] = db.execute("PRAGMA data_version").fetchall()
            with SqliteSaver(path) as other:
                other.threads()
            assert db.execute("PRAGMA data_version").fetchall() == [(before,)]
