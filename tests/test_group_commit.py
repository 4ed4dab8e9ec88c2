"""Writers share transactions, and a transaction is whole or not at all, whatever fails in it, and wherever."""

import asyncio
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from calls import READS
from conftest import Face, checkpoint, config, put
from scripts import run
from sqlfile import KNOWS_CODES, Tap, can_write_at_once, nothing_is_held, rows, sql, tap, write_lock

from langgraph_sqlite_ckpt import CheckpointError, DiskFullError, EncodeError, InvalidRequest, SqliteSaver, StorageError

__all__ = ["tap"]  # a fixture

IOERR, FULL = 10, 13


def failure(code: int = IOERR) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorcode = code  # type: ignore[misc]  # as Python sets it from 3.11 on
    return error


def together(path: Path, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The calls in threads that all wait for one foreign lock; the outcome of each."""
    outcomes: list[Any] = [None] * len(calls)
    started = threading.Barrier(len(calls) + 1)

    def work(number: int) -> None:
        started.wait(20)
        try:
            outcomes[number] = calls[number]()
        except BaseException as error:
            outcomes[number] = error

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(calls))]
    with write_lock(path) as db:
        for thread in threads:
            thread.start()
        started.wait(20)
        time.sleep(0.15)  # now all are queued
        db.execute("ROLLBACK")
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes


async def together_async(path: Path, calls: Sequence[Any]) -> list[Any]:
    with write_lock(path) as db:
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0.15)
        db.execute("ROLLBACK")
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)


class Group:
    """Calls that meet in one group, on either face."""

    def __init__(self, face: Face, path: Path) -> None:
        self.face, self.path = face, path

    def run(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        saver = self.face.saver
        if self.face.name == "sync":
            return together(
                self.path, [lambda method=method, args=args: getattr(saver, method)(*args) for method, args in calls]
            )

        async def main() -> list[Any]:
            return await together_async(self.path, [getattr(saver, "a" + method)(*args) for method, args in calls])

        return asyncio.run(main())


@pytest.fixture
def group(tap: Tap, open_face: Any, path: Path) -> Group:
    """On a saver whose statements are seen."""
    group = Group(open_face(), path)
    put(group.face, {"a": 1}, at=config("there"))
    tap.forget()
    return group


def a_put(name: str, value: Any = "x") -> tuple[str, Sequence[Any]]:
    made = checkpoint({"a": [value] * 300})
    return "put", (config(name), made, {}, dict(made["channel_versions"]))


# --- sharing ---


def test_writes_that_wait_at_the_same_time_share_a_transaction(group: Group, tap: Tap) -> None:
    outcomes = group.run([a_put(f"t{number}") for number in range(12)])
    assert all(isinstance(outcome, dict) for outcome in outcomes), outcomes
    assert tap.count("COMMIT") <= 3
    assert len(list(group.face.list(None))) == 13


def test_fifty_concurrent_aputs_share_transactions_without_any_lock_to_wait_for(tap: Tap, path: Path) -> None:
    with SqliteSaver(path) as saver:
        tap.forget()

        async def main() -> None:
            for _ in range(4):
                await asyncio.gather(*(getattr(saver, "aput")(*a_put(f"t{number}")[1]) for number in range(50)))

        asyncio.run(main())
        assert tap.count("COMMIT") < 40
        assert len(list(saver.list(None))) == 200


def test_async_writers_of_several_loops_and_sync_threads_share_transactions(tap: Tap, path: Path) -> None:
    with SqliteSaver(path) as saver:
        tap.forget()
        calls = [lambda number=number: put(saver, at=config(f"s{number}")) for number in range(4)]
        calls += [
            lambda number=number: asyncio.run(saver.aput(config(f"a{number}"), checkpoint(), {}, {})) for number in range(4)
        ]
        outcomes = together(path, calls)
        assert all(isinstance(outcome, dict) for outcome in outcomes), outcomes
        assert tap.count("COMMIT") <= 5
        assert len(list(saver.list(None))) == 8


def test_a_single_writer_pays_for_one_transaction_and_no_savepoint(face: Face, path: Path, tap: Tap) -> None:
    with SqliteSaver(path) as saver:
        face = Face(saver, face.name)
        stored = put(face, {"a": ["x" * 500]})
        tap.forget()
        stored = put(face, {"a": ["x" * 500, "y"]}, parent=stored)
        face.put_writes(stored, [("a", 1), ("b", 2)], "task")
    assert [tap.count(each) for each in ("BEGIN IMMEDIATE", "COMMIT", "SAVEPOINT", "ROLLBACK")] == [
        2,
        2,
        0,
        tap.count("BEGIN") - 2,
    ]


def test_the_order_in_which_one_task_awaits_its_writes_is_their_order(saver: SqliteSaver) -> None:
    async def run_of(name: str) -> list[str]:
        made = []
        for _ in range(10):
            made.append((await saver.aput(config(name), checkpoint(), {}, {}))["configurable"]["checkpoint_id"])
        return made

    async def main() -> list[list[str]]:
        return await asyncio.gather(*(run_of(f"t{number}") for number in range(8)))

    for number, made in enumerate(asyncio.run(main())):
        listed = [item.config["configurable"]["checkpoint_id"] for item in saver.list(config(f"t{number}"))]
        assert listed == made[::-1]


# --- one fails ---


def test_one_bad_operation_in_a_group_fails_alone(group: Group) -> None:
    calls = [
        a_put("t0"),
        ("copy_thread", ("nowhere", "target")),
        a_put("t1"),
        ("copy_thread", ("there", "there")),
        a_put("t2"),
    ]
    outcomes = group.run(calls)
    assert [type(outcome) for outcome in outcomes] == [dict, InvalidRequest, dict, InvalidRequest, dict]
    assert {item.config["configurable"]["thread_id"] for item in group.face.list(None)} == {"there", "t0", "t1", "t2"}


def test_a_value_that_cannot_be_stored_fails_its_own_operation_only(group: Group) -> None:
    outcomes = group.run([a_put("t0"), a_put("bad", lambda: None), a_put("t1")])
    assert [type(outcome) for outcome in outcomes] == [dict, EncodeError, dict]
    assert {item.config["configurable"]["thread_id"] for item in group.face.list(None)} == {"there", "t0", "t1"}


def test_an_operation_that_fails_half_way_in_a_group_leaves_nothing_of_itself(group: Group, path: Path) -> None:
    sql(path, "CREATE TRIGGER fault BEFORE INSERT ON write WHEN NEW.idx = 3 BEGIN SELECT RAISE(ABORT, 'injected'); END")
    rows_of_a_task = [(f"c{number}", ["x" * 300]) for number in range(5)]
    outcomes = group.run([a_put("t0"), ("put_writes", (config("w", "", "id"), rows_of_a_task, "task")), a_put("t1")])
    assert [type(outcome) for outcome in outcomes] == [dict, StorageError, dict]
    assert sql(path, "SELECT count(*) FROM write") == [(0,)]
    assert len(list(group.face.list(None))) == 3
    sql(path, "DROP TRIGGER fault")
    group.face.put_writes(config("w", "", "id"), rows_of_a_task, "task")
    assert sql(path, "SELECT count(*) FROM write") == [(5,)]


@pytest.mark.parametrize("given_up", [False, True])
def test_a_commit_that_fails_fails_every_operation_of_its_group_and_leaves_a_usable_saver(
    group: Group, tap: Tap, path: Path, given_up: bool
) -> None:
    failed = []

    def commit_fails(db: sqlite3.Connection, statement: str) -> None:
        if statement == "COMMIT":
            if given_up:  # as SQLite itself does after some errors
                sqlite3.Connection.execute(db, "ROLLBACK")
            failed.append(1)
            raise failure()

    before = rows(path)
    tap.before = commit_fails
    outcomes = group.run([a_put(f"t{number}") for number in range(6)])
    assert [type(outcome) for outcome in outcomes] == [StorageError] * 6
    assert all(str(path) in str(outcome) and isinstance(outcome.__cause__, sqlite3.Error) for outcome in outcomes)
    assert len(failed) <= 3
    assert rows(path) == before
    assert can_write_at_once(path)
    tap.forget()
    outcomes = group.run([a_put(f"t{number}") for number in range(6)])
    assert all(isinstance(outcome, dict) for outcome in outcomes)
    assert len(list(group.face.list(None))) == 7


def test_a_connection_that_cannot_even_roll_back_is_replaced(group: Group, tap: Tap, path: Path) -> None:
    def nothing_works(db: sqlite3.Connection, statement: str) -> None:
        if statement in ("COMMIT", "ROLLBACK"):
            raise failure()

    tap.before = nothing_works
    method, args = a_put("t0")
    with pytest.raises(StorageError):
        getattr(group.face, method)(*args)
    tap.forget()
    assert can_write_at_once(path)
    put(group.face, {"a": 2}, at=config("there"))
    assert len(list(group.face.list(None))) == 2


# --- the disk is full ---


def limit_pages(tap: Tap, saver: SqliteSaver, pages: int) -> None:
    """What a full disk looks like to SQLite; at the next transaction of the saver."""
    tap.before = lambda db, statement: (
        sqlite3.Connection.execute(db, f"PRAGMA max_page_count = {pages}") and None
        if statement == "BEGIN IMMEDIATE"
        else None
    )


def test_a_full_disk_is_reported_at_once_loses_nothing_and_the_thread_goes_on_when_there_is_space(
    open_face: Any, tap: Tap, path: Path
) -> None:
    face = open_face()
    stored = put(face, {"a": ["before"]})
    [(pages,)] = sql(path, "PRAGMA page_count")
    limit_pages(tap, face.saver, pages)
    before = rows(path)
    for _ in range(2):
        with pytest.raises(DiskFullError if KNOWS_CODES else StorageError) as caught:
            put(face, {"a": ["before", "".join(map(str, range(50_000)))]}, parent=stored)
        assert str(path) in str(caught.value)
        assert not KNOWS_CODES or "space" in str(caught.value)
        assert rows(path) == before
        assert can_write_at_once(path)
        assert face.get_tuple(config()).config == stored
    limit_pages(tap, face.saver, 1_000_000)
    put(face, {"a": ["before", "after"]}, parent=stored)
    assert [item.checkpoint["channel_values"]["a"] for item in face.list(config())] == [["before", "after"], ["before"]]


def test_on_a_full_disk_each_operation_of_a_group_is_whole_or_fails(group: Group, tap: Tap, path: Path) -> None:
    [(pages,)] = sql(path, "PRAGMA page_count")
    limit_pages(tap, group.face.saver, pages + 6)
    outcomes = group.run(
        [a_put(f"t{number}", "".join(map(chr, range(1000 * number + 1000, 1000 * number + 1700)))) for number in range(12)]
    )
    assert {type(outcome) for outcome in outcomes} <= {dict, DiskFullError if KNOWS_CODES else StorageError}
    assert any(isinstance(outcome, StorageError) for outcome in outcomes)
    tap.forget()
    stored = [item.config for item in group.face.list(None)]
    acknowledged = [outcome for outcome in outcomes if isinstance(outcome, dict)]
    assert len(stored) == 1 + len(acknowledged)
    assert all(each in stored for each in acknowledged)


def test_a_file_that_hits_a_size_limit_of_the_system_keeps_what_was_acknowledged(path: Path) -> None:
    script = """
        import resource
        saver = SqliteSaver(PATH)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
        acknowledged, errors = 0, 0
        for number in range(40):
            try:
                if number % 2: put(saver, {"a": os.urandom(30_000)})
                else: asyncio.run(saver.aput(config(), checkpoint({"a": os.urandom(30_000)}), {}, {}))
                acknowledged += 1
            except StorageError as error:
                errors += 1
                with sqlite3.connect(PATH, timeout=0) as db: db.execute("BEGIN IMMEDIATE")
                db.close()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        put(saver, {"a": "there is space again"})
        print(acknowledged, errors, len(list(saver.list(config()))) == acknowledged + 1)
        saver.close()
    """
    acknowledged, errors, kept = run(script, path).split()
    assert int(acknowledged) > 3
    assert int(errors) > 3
    assert kept == "True"
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


# --- interrupts ---


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_interrupt_at_any_statement_of_a_group_costs_nobody_else_anything(tmp_path: Path, tap: Tap, moment: str) -> None:
    """Whoever leads the group gets the KeyboardInterrupt; the others' operations are done by others."""
    number, interrupts = 0, 0
    while True:
        number += 1
        path = tmp_path / f"{number}.db"
        with SqliteSaver(path, synchronous="normal") as saver:
            put(saver, {"a": 1}, at=config("there"))
            tap.forget()
            outcomes, interrupted = _group_with_an_interrupt(saver, tap, moment, number)
            tap.forget()
            assert can_write_at_once(path), number
            kinds = [type(outcome) for outcome in outcomes if not isinstance(outcome, dict)]
            assert kinds == ([KeyboardInterrupt] if interrupted else []), (number, outcomes)
            stored = {item.config["configurable"]["thread_id"] for item in saver.list(None)}
            assert stored >= {outcome["configurable"]["thread_id"] for outcome in outcomes if isinstance(outcome, dict)}, (
                number
            )
            put(saver, {"a": 2}, at=config("after"))
            assert saver.get_tuple(config("after")) is not None
        interrupts += interrupted
        if not interrupted:
            break
    assert interrupts > 20


def _group_with_an_interrupt(saver: SqliteSaver, tap: Tap, moment: str, number: int) -> tuple[list[Any], bool]:
    """One writer is held up at its COMMIT until four others have queued; their group is interrupted at a statement."""
    queued, interrupted = threading.Event(), []
    seen = [0]
    first_done = []

    def hook(db: sqlite3.Connection, statement: str) -> None:
        if statement == "COMMIT" and not first_done:
            first_done.append(1)
            assert queued.wait(20)
        elif first_done:
            seen[0] += 1
            if seen[0] == number and not interrupted:
                interrupted.append(1)
                raise KeyboardInterrupt

    if moment == "before":
        tap.before = hook
    else:
        tap.before = lambda db, statement: hook(db, statement) if statement == "COMMIT" and not first_done else None
        tap.after = lambda db, statement: hook(db, statement) if first_done else None
    outcomes: list[Any] = [None] * 5

    def work(at: int) -> None:
        try:
            outcomes[at] = put(saver, {"a": [at]}, at=config(f"t{at}"))
        except BaseException as error:
            outcomes[at] = error

    threads = [threading.Thread(target=work, args=(at,)) for at in range(5)]
    threads[0].start()
    while not first_done:
        time.sleep(0.0005)
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.02)
    queued.set()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    return outcomes, bool(interrupted)


def test_ctrl_c_at_random_moments_leaves_nothing_open_and_other_threads_lose_nothing(path: Path) -> None:
    script = """
        import random, signal
        rng = random.Random(3)
        def ctrl_c(*_): raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, ctrl_c)
        saver = SqliteSaver(PATH, synchronous="normal")
        put(saver, {"a": 1}, at=config("main"))
        stop, counts, errors = threading.Event(), [0, 0, 0], []
        def work(number):
            try:
                while not stop.is_set():
                    if number == 2: asyncio.run(saver.aput(config("other 2"), checkpoint({"a": 1}), {}, {}))
                    else: put(saver, {"a": ["x" * 300]}, at=config(f"other {number}"))
                    counts[number] += 1
            except BaseException as error: errors.append(repr(error))
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads: thread.start()
        acknowledged, interrupted = [], 0
        for _ in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.random() * 0.03 + 0.0001)
                acknowledged.append(put(saver, {"a": ["y" * 300]}, at=config("main")))
                list(saver.list(config("main"), limit=2))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        for thread in threads: thread.join(20)
        with sqlite3.connect(PATH, timeout=0) as db: db.execute("BEGIN IMMEDIATE")
        db.close()
        put(saver, {"a": "after"}, at=config("main"))
        saver.close()
        with SqliteSaver(PATH) as saver:
            stored = [item.config for item in saver.list(config("main"))]
            others = [len(list(saver.list(config(f"other {number}")))) for number in range(3)]
        print(errors, others == counts, all(each in stored for each in acknowledged), 0 < interrupted < 400)
    """
    assert run(script, path, seconds=90).strip() == "[] True True True"


# --- faults everywhere ---

NEXT = checkpoint({"a": ["x" * 300, "y" * 300, "z" * 300], "b": ["new" * 200], "n": 3}, id="~next")
OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "put": lambda face: face.put(config("t", "", "4"), NEXT, {"source": "loop", "step": 5}, dict(NEXT["channel_versions"])),
    "put again": lambda face: face.put(
        config("t", "", "3"), {**NEXT, "id": "4"}, {"source": "loop", "step": 4}, dict(NEXT["channel_versions"])
    ),
    "put_writes": lambda face: face.put_writes(
        config("t", "", "4"), [("a", ["y" * 400]), ("b", 1), ("__error__", "e")], "task"
    ),
    "delete_thread": lambda face: face.delete_thread("t"),
    "delete_for_runs": lambda face: face.delete_for_runs(["2"]),
    "prune to the latest": lambda face: face.prune(["t", "other"]),
    "prune away": lambda face: face.prune(["t", "other"], strategy="delete"),
    "copy_thread": lambda face: face.copy_thread("t", "copy"),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two threads with runs, values that lean on each other, pending writes and a subgraph."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    with SqliteSaver(path) as saver:
        for name in ("t", "other"):
            at = config(name)
            for step in range(1, 5):
                made = checkpoint({"a": ["x" * 300] * step, "b": [f"{step}" * 400], "n": step}, id=str(step))
                at = saver.put(
                    at,
                    made,
                    {"source": "input" if step in (1, 2) else "loop", "step": step, "parents": {}},
                    dict(made["channel_versions"]),
                )
                saver.put_writes(at, [("a", ["w" * 300]), ("b", step)], f"task {step}")
            sub = checkpoint({"s": ["sub" * 100]}, id="1")
            saver.put(
                config(name, "node:1"),
                sub,
                {"source": "loop", "step": 0, "parents": {"": "4"}},
                dict(sub["channel_versions"]),
            )
    return path


def logical(path: Path) -> Any:
    with SqliteSaver(path, read_only=True) as saver:
        return list(saver.list(None))


FAULTS = ["error", "error that ends the transaction", "interrupt", "interrupt after"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_at_any_statement_leaves_the_file_as_before_or_as_after_never_between(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tap: Tap, name: str, fault: str
) -> None:
    path = shutil.copy(template, tmp_path / "undisturbed.db")
    before = rows(path)
    with SqliteSaver(path, synchronous="normal") as saver:
        OPERATIONS[name](saver)
    after, afterwards = rows(path), logical(path)
    outcomes: list[str] = []
    for number in (each for each in range(1, 500) if each < 14 or each % 7 == 0):
        path = shutil.copy(template, tmp_path / f"{number}.db")
        with SqliteSaver(path, synchronous="normal") as saver:
            left, hit = [number], []

            def strike(db: sqlite3.Connection, statement: str, left: list[int] = left, hit: list[str] = hit) -> None:
                left[0] -= 1
                if left[0] == 0:
                    hit.append(statement)
                    if fault == "error that ends the transaction" and db.in_transaction:
                        sqlite3.Connection.execute(db, "ROLLBACK")
                    raise failure() if fault.startswith("error") else KeyboardInterrupt

            tap.forget()
            if fault == "interrupt after":
                tap.after = strike
            else:
                tap.before = strike
            try:
                OPERATIONS[name](saver)
                ended = "well"
            except StorageError:
                ended = "error"
            except KeyboardInterrupt:
                ended = "interrupt"
            tap.forget()
            found = rows(path)
            assert found in (before, after), (number, hit)
            if ended == "well":
                assert found == after, (number, hit)
            if ended == "error":
                assert found == before, (number, hit)
            assert can_write_at_once(path), (number, hit)
            outcomes.append(ended)
            if not hit:
                break
            if not (name == "copy_thread" and found == after):
                OPERATIONS[name](saver)  # again, on the same saver
            put(saver, {"a": ["x" * 300] * 5}, parent=config("t", "", "4"))
            stored = saver.get_tuple(config())
            saver.close()
            assert logical(path) == [stored, *afterwards], (number, hit)
    assert not hit
    expected = "error" if fault.startswith("error") else "interrupt"
    assert outcomes.count(expected) >= 4  # BEGIN, something, COMMIT, ...


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_fault_at_any_statement_of_an_async_write_is_whole_or_absent_too(
    template: Path, tmp_path: Path, tap: Tap, name: str
) -> None:
    path = tmp_path / "agent.db"
    shutil.copy(template, path)
    before = rows(path)
    errors = 0
    with SqliteSaver(path, synchronous="normal") as saver:
        face = Face(saver, "async")
        for number in (each for each in range(1, 500) if each < 14 or each % 3 == 0):
            left = [number]

            def strike(db: sqlite3.Connection, statement: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise failure()

            tap.before = strike
            try:
                OPERATIONS[name](face)
                break
            except StorageError:
                errors += 1
            finally:
                tap.forget()
            assert rows(path) == before, number
            assert can_write_at_once(path), number
    assert errors >= 3
    assert rows(path) != before


@pytest.mark.parametrize("name", READS)
def test_a_fault_at_any_statement_of_a_read_is_reported_as_ours_and_holds_nothing(
    template: Path, tmp_path: Path, tap: Tap, open_face: Any, path: Path, name: str
) -> None:
    shutil.copy(template, path)
    face = open_face()
    expected = READS[name](face)
    errors = 0
    for number in range(1, 200):
        left = [number]

        def strike(db: sqlite3.Connection, statement: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise failure()

        tap.before = strike
        try:
            assert READS[name](face) == expected
        except StorageError as error:
            errors += 1
            assert str(path) in str(error)
        else:
            assert left[0] > 0 or errors  # a fault while rolling a read back costs nobody anything
        finally:
            tap.forget()
        assert READS[name](face) == expected, number
        assert nothing_is_held(path), number
        if left[0] > 0:
            break
    assert left[0] > 0
    assert errors >= 3


@pytest.mark.parametrize("name", READS)
def test_an_interrupt_at_any_statement_of_a_read_leaves_no_read_open(
    template: Path, tap: Tap, path: Path, name: str
) -> None:
    shutil.copy(template, path)
    with SqliteSaver(path) as saver:
        expected = READS[name](saver)
        interrupts: list[KeyboardInterrupt] = []  # kept, with all that their frames hold
        for number in range(1, 200):
            left = [number]

            def strike(db: sqlite3.Connection, statement: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    raise KeyboardInterrupt

            tap.before = strike
            try:
                READS[name](saver)
            except KeyboardInterrupt as interrupt:
                interrupts.append(interrupt)
            tap.forget()
            assert nothing_is_held(path), number
            assert READS[name](saver) == expected, number
            if left[0] > 0:
                break
        assert left[0] > 0
        assert len(interrupts) >= 3


def test_a_fault_while_a_file_is_built_leaves_a_file_that_the_next_saver_builds(tmp_path: Path, tap: Tap) -> None:
    failed = 0
    for number in range(1, 200, 2):
        path, left = tmp_path / f"{number}.db", [number]

        def strike(db: sqlite3.Connection, statement: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise failure()

        tap.before = strike
        try:
            SqliteSaver(path).close()
            break
        except CheckpointError:
            failed += 1
        finally:
            tap.forget()
        with SqliteSaver(path) as saver:
            put(saver)
            assert len(list(saver.list(None))) == 1
        assert sql(path, "PRAGMA journal_mode") == [("wal",)]
    assert failed > 5


# --- what a write leans on goes away ---


def test_a_write_whose_thread_another_process_prunes_or_deletes_in_between_is_whole(
    open_face: Any, tap: Tap, path: Path
) -> None:
    face = open_face()
    for strategy in ("keep_latest", "delete"):
        stored = config(strategy)
        for step in range(6):
            stored = put(face, {"grows": ["x" * 300] * step, "same": ["y" * 500]}, parent=stored)
        latest = face.get_tuple(stored).checkpoint

        def somebody_prunes(db: sqlite3.Connection, statement: str, strategy: str = strategy) -> None:
            if statement == "BEGIN IMMEDIATE":
                tap.forget()
                with SqliteSaver(path) as other:
                    other.prune([strategy], strategy=strategy)

        tap.before = somebody_prunes
        made = checkpoint(
            {"grows": ["x" * 300] * 7, "same": latest["channel_values"]["same"]},
            {**latest["channel_versions"], "grows": "2"},
        )
        stored = face.put(stored, made, {}, {"grows": "2"})
        with SqliteSaver(path, read_only=True) as reader:
            assert reader.get_tuple(stored).checkpoint["channel_values"] == made["channel_values"]
            assert len(list(reader.list(config(strategy)))) == (1 if strategy == "delete" else 2)


def test_a_write_whose_thread_is_deleted_again_and_again_gives_up_with_an_error(
    open_face: Any, tap: Tap, path: Path
) -> None:
    face = open_face()
    busy = [False]

    def somebody_deletes_for_ever(db: sqlite3.Connection, statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and not busy[0]:
            busy[0] = True
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("DELETE FROM blob")
            with SqliteSaver(path) as other_saver:
                made = checkpoint({"grows": ["x" * 400]}, {"grows": "other"})
                other_saver.put(config(), made, {}, {"grows": "other"})
            busy[0] = False

    stored = put(face, {"grows": ["x" * 300]})
    tap.before = somebody_deletes_for_ever
    try:
        put(face, {"grows": ["x" * 350]}, parent=stored)
    except StorageError as error:
        assert "try again" in str(error)
    tap.forget()
    put(face, {"grows": ["x" * 350]}, parent=stored)
    assert face.get_tuple(config()).checkpoint["channel_values"] == {"grows": ["x" * 350]}
