"""A fault at any statement of anything that can be asked of a saver: before or after, never between, and it goes on."""

import asyncio
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config, put
from sqlfile import Tap, can_write_at_once, nothing_is_held, rows, soon_nothing_is_held, sql, tap

from langgraph_sqlite_ckpt import CheckpointError, SqliteSaver, StorageError

__all__ = ["tap"]  # a fixture

NEXT = checkpoint({"a": ["x" * 300, "y" * 300, "z" * 300], "b": ["new" * 200], "n": 3}, id="~next")
Call = Callable[[Any, Path], Any]
WRITES: dict[str, Call] = {
    "put": lambda face, _: face.put(
        config("t", "", "4"), NEXT, {"source": "loop", "step": 5}, dict(NEXT["channel_versions"])
    ),
    "put_writes": lambda face, _: face.put_writes(config("t", "", "4"), [("a", ["y" * 400]), ("__error__", "e")], "task"),
    "delete_thread": lambda face, _: face.delete_thread("t"),
    "delete_for_runs": lambda face, _: face.delete_for_runs(["2"]),
    "prune": lambda face, _: face.prune(["t", "other"]),
    "copy_thread": lambda face, _: face.copy_thread("t", "copy"),
    "sweep": lambda face, _: face.sweep(idle_for=timedelta(0)),
    "sweep to the last": lambda face, _: face.sweep(keep_last=1),
}
READS: dict[str, Call] = {
    "get_tuple": lambda face, _: face.get_tuple(config()),
    "list": lambda face, _: list(face.list(None)),
    "get_delta_channel_history": lambda face, _: face.get_delta_channel_history(config=config(), channels=["a"]),
    "threads": lambda face, _: face.threads(),
    "runs": lambda face, _: face.runs(),
    "stats": lambda face, _: face.stats(),
    "verify": lambda face, _: face.verify(),
    "sweep, dry run": lambda face, _: face.sweep(idle_for=timedelta(0), dry_run=True),
    "compact": lambda face, _: face.compact(),
    "backup": lambda face, folder: face.backup(folder / "copy.db"),
}
CALLS = {**WRITES, **READS}


def error() -> BaseException:
    raised = sqlite3.OperationalError("injected")
    raised.sqlite_errorcode = 10  # type: ignore[misc]  # an I/O error, as Python sets it from 3.11 on
    return raised


FAULTS: dict[str, Callable[[], BaseException]] = {"error": error, "memory": MemoryError, "interrupt": KeyboardInterrupt}
MOMENTS = [
    ("sync", "error", "before"),
    ("sync", "interrupt", "after"),
    ("async", "memory", "before"),
    ("async", "interrupt", "before"),
]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two threads with runs, values that lean on each other, pending writes, a subgraph, and free pages."""
    path = tmp_path_factory.mktemp("template") / "template.db"
    with SqliteSaver(path) as saver:
        for name in ("t", "other"):
            at = config(name)
            for step in range(1, 5):
                at = put(
                    saver,
                    {"a": ["x" * 300] * step, "b": [f"{step}" * 400], "n": step},
                    parent=at,
                    source="input" if step < 3 else "loop",
                    step=step,
                    run_id=str(step // 2),
                )
                saver.put_writes(at, [("a", ["w" * 300]), ("b", step)], f"task {step}")
            put(saver, {"s": ["sub" * 100]}, at=config(name, "node:1"), parents={"": "4"})
        put(saver, {"large": [random.Random(1).randbytes(200_000)]}, at=config("gone"))
        saver.delete_thread("gone")
    return path


class Struck:
    """Raises at the n-th statement, before or after it is run."""

    def __init__(self, tap: Tap, number: int, make: Callable[[], BaseException], moment: str) -> None:
        self.left, self.make, self.hit = number, make, ""
        tap.forget()
        setattr(tap, moment, self.strike)

    def strike(self, db: sqlite3.Connection, statement: str) -> None:
        self.left -= 1
        if self.left == 0:
            self.hit = statement
            raise self.make()


def numbers() -> Iterator[int]:
    """The first ones each, then ever fewer: a call may take hundreds of statements."""
    number = 1
    while number < 3000:
        yield number
        number += 1 + number // 3


@pytest.mark.parametrize(("face_name", "fault", "moment"), MOMENTS)
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_at_any_statement_of_any_call_leaves_before_or_after_and_the_saver_goes_on(
    template: Path, tmp_path: Path, tap: Tap, face_name: str, name: str, fault: str, moment: str
) -> None:
    call = CALLS[name]
    path = shutil.copy(template, tmp_path / "undisturbed.db")
    before = rows(path)
    with SqliteSaver(path, synchronous="normal") as saver:
        call(Face(saver, face_name), tmp_path)
    after = rows(path)
    assert (before == after) == (name in READS)
    hits = 0
    for number in numbers():
        path = shutil.copy(template, tmp_path / f"{number}.db")
        with SqliteSaver(path, synchronous="normal") as saver:
            face, struck = Face(saver, face_name), Struck(tap, number, FAULTS[fault], moment)
            ended = outcome_of(call, face, tmp_path)
            tap.forget()
            where = (number, struck.hit, ended)
            assert ended in ("well", fault), where
            found = rows(path)
            assert found == after if ended == "well" else found in (before, after), where
            assert nothing_is_held(path), where
            assert not list(tmp_path.glob("*.part*")), where
            if not struck.hit:
                break
            hits += 1
            if found == before:
                call(face, tmp_path)  # again, on the same saver
            assert rows(path) == after, where
            put(face, {"a": ["afterwards"]}, at=config("afterwards"))
    assert not struck.hit
    assert hits >= 3
    with SqliteSaver(path) as saver:
        assert saver.verify() == []
    if name == "backup":
        assert rows(tmp_path / "copy.db") == before


def outcome_of(call: Call, face: Face, folder: Path) -> str:
    try:
        call(face, folder)
    except StorageError as error:
        assert isinstance(error.__cause__, sqlite3.Error)
        return "error"
    except MemoryError:
        return "memory"
    except KeyboardInterrupt:
        return "interrupt"
    return "well"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_any_statement_of_opening_leaves_a_file_that_opens(
    template: Path, tmp_path: Path, tap: Tap, fault: str
) -> None:
    expected = rows(template)
    for existing in (True, False):
        for number in range(1, 60, 1 if existing else 2):
            path = tmp_path / f"{existing} {number}.db"
            if existing:
                shutil.copy(template, path)
            struck = Struck(tap, number, FAULTS[fault], "before")
            ended = opened(path)
            tap.forget()
            assert ended in ("well", fault), (number, struck.hit)
            with SqliteSaver(path) as saver:
                assert saver.verify() == []
                put(saver, at=config("afterwards"))
            assert not existing or len(rows(path)["checkpoint"]) == len(expected["checkpoint"]) + 1
            if not struck.hit:
                break
        assert not struck.hit
        assert number > 4


def opened(path: Path) -> str:
    try:
        SqliteSaver(path).close()
    except CheckpointError:
        return "error"
    except MemoryError:
        return "memory"
    except KeyboardInterrupt:
        return "interrupt"
    return "well"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_the_nth_commit_fails_and_only_what_it_would_have_committed_is_absent(
    open_face: Any, tap: Tap, path: Path, moment: str
) -> None:
    face = open_face(synchronous="normal")
    acknowledged, failed = [], 0
    commits = [0]

    def fail(db: sqlite3.Connection, statement: str) -> None:
        if statement == "COMMIT":
            commits[0] += 1
            if commits[0] % 3 == 0:
                raise error()

    setattr(tap, moment, fail)
    at = config()
    for number in range(30):
        try:
            at = put(face, {"a": [f"{number} " * 200] * number}, parent=at, step=number)
            acknowledged.append(number)
        except StorageError:
            failed += 1
            assert can_write_at_once(path)
    tap.forget()
    found = [item.metadata["step"] for item in face.list(config())][::-1]
    assert failed == 10
    assert found == (acknowledged if moment == "before" else list(range(30)))
    assert face.verify() == []


# --- cancellation of what is not LangGraph's contract ---


@pytest.mark.parametrize("name", ["aprune", "acopy_thread", "adelete_thread", "asweep", "acompact", "abackup", "averify"])
def test_upkeep_that_is_cancelled_at_random_moments_is_whole_or_absent_and_leaves_nothing_open(
    template: Path, path: Path, tmp_path: Path, name: str
) -> None:
    rng = random.Random(name)
    shutil.copy(template, path)
    before = rows(path)
    with SqliteSaver(path) as saver:
        CALLS[name[1:]](saver, tmp_path)
    after = rows(path)

    async def main(saver: SqliteSaver) -> bool:
        calls = {
            "aprune": lambda: saver.aprune(["t", "other"]),
            "acopy_thread": lambda: saver.acopy_thread("t", "copy"),
            "adelete_thread": lambda: saver.adelete_thread("t"),
            "asweep": lambda: saver.asweep(idle_for=timedelta(0)),
            "acompact": saver.acompact,
            "abackup": lambda: saver.abackup(tmp_path / "copy.db"),
            "averify": saver.averify,
        }
        task = asyncio.ensure_future(calls[name]())
        await asyncio.sleep(rng.random() * 0.006)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    cancelled = 0
    for _ in range(20):
        shutil.copy(template, path)
        with SqliteSaver(path, synchronous="normal") as saver:
            was = asyncio.run(main(saver))
            cancelled += was
            put(saver, at=config("afterwards"))  # and close() waits for what still runs
        sql(path, "DELETE FROM checkpoint WHERE namespace = (SELECT id FROM namespace WHERE thread_id = 'afterwards')")
        sql(path, "DELETE FROM namespace WHERE thread_id = 'afterwards'")
        assert soon_nothing_is_held(path)
        assert rows(path) in ((before, after) if was else (after,))
    assert cancelled > 0
