"""What SQLite itself does while the package runs, seen from outside: columns, steps, plans."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

VALUES = {("blob", "data"), ("checkpoint", "body"), ("checkpoint", "rest"), ("checkpoint", "exact"), ("write", "data")}
"""The columns that hold what may be large."""

_READ = 20  # SQLITE_READ, which sqlite3 names since Python 3.11 only


class Watch:
    """Sees every statement of every connection that is opened from now on."""

    def __init__(self) -> None:
        self.statements: list[str] = []  # by SQLite's own trace: also those of triggers, not those of its schema
        self.columns: set[tuple[str, str]] = set()  # that a statement reads
        self.plans: dict[str, list[str]] = {}  # by statement
        self.steps = 0  # of SQLite's virtual machine: what a statement really costs
        self.prepare: Callable[[sqlite3.Connection], None] = lambda db: None  # called with each new connection

    def forget(self) -> None:
        self.statements.clear()
        self.columns.clear()
        self.plans.clear()
        self.steps = 0

    def count(self, *beginnings: str) -> int:
        return sum(statement.lstrip().startswith(beginnings) for statement in self.statements)

    def plan(self, *words: str) -> list[str]:
        """Of the one statement that contains these words."""
        [plan] = [plan for statement, plan in self.plans.items() if all(word in statement for word in words)]
        return plan

    def _follow(self, db: sqlite3.Connection) -> None:
        db.set_trace_callback(self.statements.append)
        db.set_authorizer(self._authorize)
        db.set_progress_handler(self._step, 1)
        self.prepare(db)

    def _authorize(self, action: int, table: Any, column: Any, *_: Any) -> int:
        if action == _READ:
            self.columns.add((table, column))
        return sqlite3.SQLITE_OK

    def _step(self) -> int:
        self.steps += 1
        return 0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch, connect = Watch(), sqlite3.connect

    class Connection(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> Any:
            if statement.lstrip().startswith(("SELECT", "WITH", "DELETE", "UPDATE")) and statement not in watch.plans:
                steps, seen = watch.steps, len(watch.statements)
                watch.plans[statement] = [row[3] for row in super().execute("EXPLAIN QUERY PLAN " + statement, *parameters)]
                watch.steps = steps
                del watch.statements[seen:]
            return super().execute(statement, *parameters)

    def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db = connect(*args, **kwargs | {"factory": Connection})
        watch._follow(db)
        return db

    monkeypatch.setattr(sqlite3, "connect", watched)
    return watch
