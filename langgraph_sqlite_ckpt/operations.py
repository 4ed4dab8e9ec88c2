"""A write as an object: prepared without any lock, applied in somebody's transaction, its outcome handed back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Stale(Exception):
    """What was prepared no longer fits the file (somebody deleted what it leans on): prepare again."""


class Operation(Generic[T]):
    """A write, in three moments: `prepare` (no lock held), `apply` (in the transaction), `committed` (after it)."""

    def prepare(self) -> None:
        """Encode. Called again if `apply` raised `Stale`."""

    def apply(self, db: sqlite3.Connection) -> T:
        raise NotImplementedError

    def committed(self) -> None:
        """It is on disk."""


class Statement(Operation[T]):
    """A write that needs no preparation."""

    def __init__(self, apply: Callable[[sqlite3.Connection], T]) -> None:
        self._apply = apply

    def apply(self, db: sqlite3.Connection) -> T:
        return self._apply(db)


class Ticket(Generic[T]):
    """An operation in the queue, then its outcome."""

    def __init__(self, operation: Operation[T]) -> None:
        self.operation = operation
        self.done = False
        self.error: BaseException | None = None
        self._value: list[T] = []

    def attempt(self, db: sqlite3.Connection) -> None:
        self.error = None  # a group that was interrupted is tried again
        self._value = [self.operation.apply(db)]

    def settle(self, error: BaseException | None = None) -> None:
        self.error = self.error or error
        self.done = True
        if self.error is None:
            self.operation.committed()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self._value[0]
