"""The file, looked at and meddled with from outside: plain sqlite3, no part of the package."""

import sqlite3
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

KNOWS_CODES = sys.version_info >= (3, 11)
"""Whether `sqlite3` passes SQLite's result codes on. Before, every error of SQLite's is a plain `StorageError`."""

TABLES = ("namespace", "checkpoint", "blob", "write")


def sql(path: Path, statement: str, *parameters: object) -> list[Any]:
    """Run one statement on a connection of its own; committed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        return db.execute(statement, parameters).fetchall()


def rows(path: Path) -> dict[str, list[Any]]:
    """Every row of every table."""
    return {table: sql(path, f"SELECT * FROM {table} ORDER BY 1") for table in TABLES}


def can_write_at_once(path: Path) -> bool:
    """Whether nobody holds a write transaction now."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
        return True


def nothing_is_held(path: Path) -> bool:
    """No write transaction, and no read that keeps the -wal, with something new in it, from being cut back to nothing."""
    if not can_write_at_once(path):
        return False
    sql(path, "UPDATE namespace SET thread_id = thread_id")
    [(busy, _, _)] = sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    return not busy


def soon_nothing_is_held(path: Path, seconds: float = 10) -> bool:
    """A read of a few rows that was under way may end first."""
    deadline = time.monotonic() + seconds
    while not nothing_is_held(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Held as a backup or a database browser would."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield db


class Tap:
    """Sees every statement of every connection that is opened from now on; `before` and `after` may raise."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.before: Callable[[sqlite3.Connection, str], None] = lambda db, statement: None
        self.after: Callable[[sqlite3.Connection, str], None] = lambda db, statement: None
        self.connections = 0

    def count(self, prefix: str) -> int:
        return sum(statement.startswith(prefix) for statement in self.statements)

    def forget(self) -> None:
        self.statements.clear()
        self.before = self.after = lambda db, statement: None

    def _run(self, db: sqlite3.Connection, run: Callable[..., Any], statement: str, *parameters: Any) -> Any:
        self.statements.append(statement)
        self.before(db, statement)
        result = run(statement, *parameters)
        try:
            self.after(db, statement)
        except BaseException:
            result.close()  # it would live in this frame as long as the error; without us, nobody has it
            raise
        return result


@pytest.fixture
def tap(monkeypatch: pytest.MonkeyPatch) -> Tap:
    tap, connect = Tap(), sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, *call: Any) -> Any:
            return tap._run(self, super().execute, *call)

        def executemany(self, *call: Any) -> Any:
            return tap._run(self, super().executemany, *call)

    def tapped(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        tap.connections += 1
        return connect(*args, **kwargs | {"factory": Connection})

    monkeypatch.setattr(sqlite3, "connect", tapped)
    return tap


def forge(path: Path, table: str, row: int, **columns: object) -> None:
    """Columns of one row as somebody who can write to the file would set them, with a checksum that matches."""
    key = "seq" if table == "checkpoint" else "id"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA synchronous = OFF")
        for name, value in columns.items():
            db.execute(f"UPDATE {table} SET {name} = ? WHERE {key} = ?", (value, row))
        if "checksum" in columns:
            return
        covered = "metadata, exact, body, rest" if table == "checkpoint" else "data"
        [stored] = db.execute(f"SELECT {covered} FROM {table} WHERE {key} = ?", (row,)).fetchall()
        checksum = zlib.crc32(
            b"".join(part.encode(errors="surrogateescape") if isinstance(part, str) else part or b"" for part in stored)
        )
        db.execute(f"UPDATE {table} SET checksum = ? WHERE {key} = ?", (checksum, row))
