"""`sweep`: threads that have been idle for long, and all but the last checkpoints of the others, in short transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import NamedTuple

from langgraph_sqlite_ckpt import retention, tables
from langgraph_sqlite_ckpt.blobs import Limits
from langgraph_sqlite_ckpt.custody import record_the_gone
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.errors import DamagedError, InvalidRequest
from langgraph_sqlite_ckpt.operations import Statement
from langgraph_sqlite_ckpt.overview import STATUSES, as_text

FINISHED: tuple[str, ...] = ("completed", "failed")
"""The states that `sweep` touches unless told otherwise. What waits for a person is left alone, and what is "running": it
may be at a breakpoint (`interrupt_before`), which stores nothing, or have been resumed a moment ago."""


class Swept(NamedTuple):
    """What a sweep took away, or would: whole threads, checkpoints (theirs included), and bytes of rows.

    `damaged`: threads with a damaged row, which were left as they are (see `verify`).
    """

    threads: int
    checkpoints: int
    bytes: int
    damaged: int = 0

    def __add__(self, other: Swept) -> Swept:  # type: ignore[override]  # a sum of counts, not a longer tuple
        return Swept(*(one + another for one, another in zip(self, other, strict=True)))


class _DryRun(Exception):
    """Rolls a transaction back; carries what it would have done."""

    def __init__(self, swept: Swept) -> None:
        super().__init__()
        self.swept = swept


@dataclass(frozen=True)
class Sweep:
    """What to take away."""

    idle_for: timedelta | None
    keep_last: int | None
    statuses: Sequence[str]
    dry_run: bool
    batch: int

    def run(self, database: Database, limits: Limits) -> Swept:
        """A transaction for each batch of threads, so that writers get their turn in between."""
        self._require_sense()
        record_the_gone(database)  # else what has crashed still says "running"
        total = Swept(0, 0, 0)
        idle_since = self._idle_since()
        if idle_since is not None:
            for batch in self._batches(database, idle_since):
                total += self._write(database, partial(self._delete, thread_ids=batch, idle_since=idle_since))
        if self.keep_last is not None:
            for batch in self._batches(database, None):
                total += self._write(
                    database, partial(self._shorten, limits=limits, thread_ids=batch, idle_since=idle_since)
                )
        return total

    def _idle_since(self) -> str | None:
        if self.idle_for is None:
            return None
        try:
            return as_text(datetime.now(timezone.utc) - self.idle_for)
        except OverflowError as error:
            raise InvalidRequest(f"idle_for reaches back before the calendar begins: {self.idle_for}") from error

    def _require_sense(self) -> None:
        if not isinstance(self.idle_for, (timedelta, type(None))):
            raise InvalidRequest(f"idle_for is a timedelta, not {self.idle_for!r}")
        for count in (self.keep_last, self.batch):
            if not isinstance(count, (int, type(None))):
                raise InvalidRequest(f"keep_last and batch are whole numbers, not {count!r}")
        if self.idle_for is None and self.keep_last is None:
            raise InvalidRequest("say what to sweep: idle_for=timedelta(days=30), keep_last=100, or both")
        if self.idle_for is not None and self.idle_for < timedelta(0):
            raise InvalidRequest(f"idle_for must not be negative: {self.idle_for}")
        if self.keep_last is not None and self.keep_last < 1:
            raise InvalidRequest(f"keep_last is at least 1 (whole threads go by idle_for), not {self.keep_last}")
        if self.batch < 1:
            raise InvalidRequest(f"batch is at least 1 thread, not {self.batch}")
        if (
            isinstance(self.statuses, str)
            or not isinstance(self.statuses, Collection)
            or set(self.statuses) - set(STATUSES)
        ):
            raise InvalidRequest(f"statuses are some of {', '.join(STATUSES)}, not {self.statuses!r}")

    def _batches(self, database: Database, updated_before: str | None) -> Iterator[Sequence[str]]:
        last = 0
        while True:
            with database.read() as db:
                found = tables.idle_threads(db, list(self.statuses), updated_before, last, self.batch)
            if not found:
                return
            last = found[-1][0]
            yield [thread_id for _, thread_id in found]

    def _write(self, database: Database, work: Callable[[sqlite3.Connection], Swept]) -> Swept:
        def apply(db: sqlite3.Connection) -> Swept:
            swept = work(db)
            if self.dry_run:
                raise _DryRun(swept)
            return swept

        try:
            return database.write(Statement(apply))
        except _DryRun as dry:
            return dry.swept

    def _delete(self, db: sqlite3.Connection, thread_ids: Collection[str], idle_since: str | None) -> Swept:
        swept = Swept(0, 0, 0)
        for thread_id in thread_ids:
            if not tables.is_still(db, thread_id, list(self.statuses), idle_since):  # it woke up meanwhile
                continue
            swept += Swept(1, tables.count_of_thread(db, thread_id), tables.stored_bytes(db, thread_id))
            retention.delete_thread(db, thread_id)
        return swept

    def _shorten(
        self, db: sqlite3.Connection, limits: Limits, thread_ids: Collection[str], idle_since: str | None
    ) -> Swept:
        swept = Swept(0, 0, 0)
        for thread_id in thread_ids:
            statuses = list(self.statuses)
            if self.keep_last is None or not tables.is_still(db, thread_id, statuses, None):
                continue
            if idle_since is not None and tables.is_still(
                db, thread_id, statuses, idle_since
            ):  # went, or would, as a whole
                continue
            checkpoints, stored = tables.count_of_thread(db, thread_id), tables.stored_bytes(db, thread_id)
            try:
                retention.keep_last(db, limits, thread_id, self.keep_last)
            except DamagedError:
                swept += Swept(0, 0, 0, damaged=1)
            checkpoints -= tables.count_of_thread(db, thread_id)
            swept += Swept(0, checkpoints, stored - tables.stored_bytes(db, thread_id))
        return swept
