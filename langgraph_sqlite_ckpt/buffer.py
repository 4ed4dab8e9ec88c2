"""Between the saver and the database: what a graph puts may wait in memory, as the policy (`flush.py`) says.

It is encoded at once, acknowledged, and waits until it is time; then all that waits of that thread is stored in order, in
one transaction. The whole history is kept, only the moment of writing changes, and a crash loses no more than the policy
says.

A flush that fails raises in the call that caused it, which has then changed nothing; what was acknowledged is kept, and is
tried again with the next call of that thread.

Rejected: one buffer for all threads (one busy thread would flush for all others), and packing values before the
transaction (each is stored against the version before it, whose row is only known there).
"""

from __future__ import annotations

import math
import sqlite3
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, TypeVar

from langgraph_sqlite_ckpt.blobs import Ahead, Key
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.errors import ClosedError, StorageError, ThreadBusy
from langgraph_sqlite_ckpt.flush import Course, Flush
from langgraph_sqlite_ckpt.keeper import KEPT, Keeper
from langgraph_sqlite_ckpt.operations import Operation, Ticket
from langgraph_sqlite_ckpt.tables import Version
from langgraph_sqlite_ckpt.writing import Put, PutCheckpoint

T = TypeVar("T")

_HEAVY = 64 * 1024 * 1024  # encoded bytes of one thread, at which they no longer wait
_MANY = 10_000  # threads in memory, at which those of which nothing waits are forgotten
_TRY_AGAIN = 1.0  # seconds after a flush in the background that failed, at least


@dataclass
class Backlog:
    """What one thread has waiting, oldest first. Changed under the buffer's lock only."""

    thread_id: str
    course: Course
    flushing: threading.Lock = field(default_factory=threading.Lock)  # one flush of a thread at a time
    waiting: list[Put] = field(default_factory=list)
    since: deque[float] = field(default_factory=deque)  # when each came
    steps: int = 0
    weight: int = 0
    promised: dict[Key, Version] = field(default_factory=dict)
    users: int = 0
    not_before: float = 0.0  # the next try in the background
    is_troubled: bool = False  # the last flush failed: the next call tries, too
    lost: BaseException | None = None  # what could never be stored, for the next call to raise

    @property
    def is_idle(self) -> bool:
        return not (self.waiting or self.users or self.lost or self.course.is_known)

    def add(self, put: Put) -> None:
        self.waiting.append(put)
        self.since.append(time.monotonic())
        self.steps += isinstance(put, PutCheckpoint)
        self.weight += put.weight
        self.promised.update(put.promises)

    def remove(self, stored: Sequence[Put]) -> None:
        gone = set(map(id, stored))
        left = [(put, at) for put, at in zip(self.waiting, self.since, strict=True) if id(put) not in gone]
        self.waiting, self.since = [put for put, _ in left], deque(at for _, at in left)
        self.steps = sum(isinstance(put, PutCheckpoint) for put in self.waiting)
        self.weight = sum(put.weight for put in self.waiting)
        if not left:
            self.promised.clear()

    def is_full(self, flush: Flush, arrived: Sequence[Put]) -> bool:
        """With what has arrived."""
        steps = self.steps + sum(isinstance(put, PutCheckpoint) for put in arrived)
        return (
            (flush.steps is not None and steps >= flush.steps)
            or self.weight + sum(put.weight for put in arrived) >= _HEAVY
            or self.is_overdue(flush)
        )

    def is_overdue(self, flush: Flush) -> bool:
        return flush.seconds is not None and bool(self.since) and time.monotonic() - self.since[0] >= flush.seconds

    def due_at(self, seconds: float) -> float:
        return max(self.since[0] + seconds, self.not_before) if self.since else math.inf


@dataclass
class Flushing:
    """A flush of one thread on its way: what waits, and what has just come and will be told how it went."""

    backlog: Backlog
    arrived: Sequence[Ticket[Any]] = ()
    waiting: Sequence[Put] = ()
    error: BaseException | None = None
    has_lost: bool = False
    is_left: bool = True

    @property
    def puts(self) -> Sequence[Put]:
        return [*self.waiting, *map(_put, self.arrived)]

    def fail(self, error: BaseException) -> None:
        """What has come is refused, as after any error of a call; what waits is kept."""
        self.error = error
        for ticket in self.arrived:
            ticket.settle(error)
        self.arrived = ()

    def drop(self, put: Put, error: BaseException) -> None:
        """It can never be stored; all others can."""
        left = [other for other in self.waiting if other is not put]
        if len(left) < len(self.waiting):
            self.waiting, self.has_lost = left, True
            self.fail(error)
        for ticket in self.arrived:
            if ticket.operation is put:
                ticket.settle(error)
        self.arrived = [ticket for ticket in self.arrived if not ticket.done]
        self.is_left = bool(self.puts)


class Batch(Operation[None]):
    """Operations of one thread, in order, in one transaction: all or none. Each value is packed against the one before."""

    def __init__(self, flushing: Flushing, on_disk: Callable[[Flushing], None]) -> None:
        self.flushing = flushing
        self.puts = flushing.puts
        self._on_disk = on_disk
        self.refused: Put | None = None  # the one that can never be stored, if that is why it failed
        self._ahead: Ahead

    @property
    def count(self) -> int:
        return len(self.puts)

    def apply(self, db: sqlite3.Connection) -> None:
        self.refused = None
        store = self.puts[0].store
        self._ahead = Ahead(store.recent)
        within = store.within(db, self._ahead)
        for put in self.puts:
            try:
                put.apply_after(db, within)
            except (sqlite3.Error, StorageError, ThreadBusy):  # none of which says anything about this operation
                raise
            except Exception:
                self.refused = put
                raise

    def committed(self) -> None:
        self._ahead.catch_up()
        for put in self.puts:
            put.on_disk()
        self._on_disk(self.flushing)


def _put(ticket: Ticket[Any]) -> Put:
    put = ticket.operation
    assert isinstance(put, Put)
    return put


class Buffer:
    """Runs operations as `Database` does, but lets those of a graph under way wait. Thread-safe; close it first."""

    def __init__(self, database: Database, flush: Flush) -> None:
        self.path = database.path
        self._database = database
        self._policy = flush
        self._lock = threading.Lock()  # bare, and never held while a file is touched
        self._backlogs: dict[str, Backlog] = {}
        self._many = _MANY
        self._keeper: Keeper | None = None
        self._closed = False
        self._is_leaving = False
        self._is_abandoned = False  # nobody has the saver any more
        self._is_done = False
        KEPT.add(self)

    # --- writing ---

    def write(self, operation: Operation[T]) -> T:
        """When this returns, it is on disk, or waits as the policy says."""
        [ticket] = self.write_all([operation])
        value: T = ticket.result()
        return value

    def write_all(self, operations: Sequence[Operation[Any]]) -> Sequence[Ticket[Any]]:
        """In order; each ticket has its own outcome."""
        tickets: list[Ticket[Any]] = []
        for are_puts, group in groupby(operations, lambda operation: isinstance(operation, Put)):
            run = self._take if are_puts else self._pass_on
            tickets += run(list(group))
        return tickets

    def _pass_on(self, operations: Sequence[Operation[Any]]) -> Sequence[Ticket[Any]]:
        """What looks at many threads finds all that was acknowledged."""
        try:
            self.flush()
        except Exception as error:
            tickets = [Ticket(operation) for operation in operations]
            for ticket in tickets:
                ticket.settle(error)
            return tickets
        return self._database.write_all(operations)

    def _take(self, puts: Sequence[Operation[Any]]) -> Sequence[Ticket[Any]]:
        tickets = [Ticket(put) for put in puts]
        by_thread: dict[str, list[Ticket[Any]]] = {}
        for ticket in tickets:
            by_thread.setdefault(_put(ticket).place.thread_id, []).append(ticket)
        with ExitStack() as stack:
            urgent = []
            for thread_id, arrived in by_thread.items():
                backlog = stack.enter_context(self._backlog(thread_id))
                encoded = self._encode(backlog, arrived)
                if encoded and not self._keep(backlog, encoded):
                    urgent.append(Flushing(backlog, encoded))
            self._flush(urgent)
        return tickets

    @contextmanager
    def _backlog(self, thread_id: str) -> Iterator[Backlog]:
        with self._lock:
            backlog = self._backlogs.get(thread_id) or Backlog(thread_id, Course(self._policy.nodes))
            self._backlogs[thread_id] = backlog
            backlog.users += 1
        try:
            yield backlog
        finally:
            self._leave(backlog)

    def _leave(self, backlog: Backlog) -> None:
        with self._lock:
            backlog.users -= 1
            if backlog.is_idle:
                self._backlogs.pop(backlog.thread_id, None)
            if len(self._backlogs) > self._many:
                self._forget_courses()

    def _forget_courses(self) -> None:
        """Runs that were given up leave nothing but what is known of their way."""
        for thread_id, backlog in tuple(self._backlogs.items()):
            if not (backlog.waiting or backlog.users or backlog.lost):
                del self._backlogs[thread_id]
        self._many = max(_MANY, 2 * len(self._backlogs))

    def _encode(self, backlog: Backlog, tickets: Sequence[Ticket[Any]]) -> list[Ticket[Any]]:
        """Those that can be stored."""
        promised: dict[Key, Version] = dict(backlog.promised)
        for ticket in tickets:
            try:
                _put(ticket).encode(promised)
                promised.update(_put(ticket).promises)
            except Exception as error:
                ticket.settle(error)
        return [ticket for ticket in tickets if not ticket.done]

    def _keep(self, backlog: Backlog, arrived: Sequence[Ticket[Any]]) -> bool:
        """Whether that was all: they wait now, or were refused."""
        puts = [_put(ticket) for ticket in arrived]
        with self._lock:
            refusal = self._refusal(backlog)
            if refusal is not None:
                for ticket in arrived:
                    ticket.settle(refusal)
                return True
            urgent = [backlog.course.is_urgent(put) for put in puts]
            if any(urgent) or backlog.is_troubled or self._is_leaving or backlog.is_full(self._policy, puts):
                return False
            for ticket in arrived:
                backlog.add(_put(ticket))
                ticket.acknowledge(None)
            is_first = len(backlog.waiting) == len(arrived)
        if is_first:
            self._be_kept()
        return True

    def _refusal(self, backlog: Backlog) -> BaseException | None:
        if self._closed:
            return ClosedError(f"{self.path}: this saver was closed; make a new one")
        lost, backlog.lost = backlog.lost, None
        return lost

    # --- flushing ---

    def flush(self, thread_id: str | None = None) -> None:
        """Write what waits, of that thread or of all. On return it is on disk; on an error it waits still."""
        with self._lock:
            backlogs = self._those_that_wait(thread_id)
            for backlog in backlogs:
                backlog.users += 1
        try:
            errors = self._flush([Flushing(backlog) for backlog in backlogs])
            with self._lock:
                errors += [error for backlog in backlogs if (error := self._lost(backlog)) is not None]
        finally:
            for backlog in backlogs:
                self._leave(backlog)
        if errors:
            raise errors[0]

    def _those_that_wait(self, thread_id: str | None) -> Sequence[Backlog]:
        if thread_id is None:
            return [backlog for backlog in self._backlogs.values() if backlog.waiting or backlog.lost]
        backlog = self._backlogs.get(thread_id)
        if backlog is None:
            return []
        backlog.course.forget()
        if backlog.is_idle:
            del self._backlogs[thread_id]
        return [backlog]

    def _lost(self, backlog: Backlog) -> BaseException | None:
        lost, backlog.lost = backlog.lost, None
        return lost

    def _flush(self, flushes: Sequence[Flushing]) -> list[BaseException]:
        """Each thread whole or not at all. Always locked in the same order, so two of these never wait for each other."""
        with ExitStack() as stack:
            for flushing in sorted(flushes, key=lambda one: one.backlog.thread_id):
                stack.enter_context(flushing.backlog.flushing)
            left = self._begin(flushes)
            while left:
                batches = [Batch(flushing, self._on_disk) for flushing in left]
                tickets = self._database.write_all(batches)
                for batch, ticket in zip(batches, tickets, strict=True):
                    if ticket.error is not None:
                        self._failed(batch, ticket.error)
                left = [flushing for flushing in left if flushing.is_left]
        return [flushing.error for flushing in flushes if flushing.error is not None]

    def _begin(self, flushes: Sequence[Flushing]) -> Sequence[Flushing]:
        with self._lock:
            for flushing in flushes:
                flushing.waiting = tuple(flushing.backlog.waiting)
                flushing.is_left = bool(flushing.puts)
        return [flushing for flushing in flushes if flushing.is_left]

    def _on_disk(self, flushing: Flushing) -> None:
        """Called once the commit has happened, whatever becomes of who asked for it."""
        with self._lock:
            flushing.backlog.remove(flushing.waiting)
            flushing.backlog.is_troubled = False
        for ticket in flushing.arrived:
            ticket.acknowledge(None)
        flushing.is_left = False

    def _failed(self, batch: Batch, error: BaseException) -> None:
        flushing = batch.flushing
        if batch.refused is None:
            flushing.fail(error)
            flushing.is_left = False
        else:
            flushing.drop(batch.refused, error)
        with self._lock:
            flushing.backlog.remove([put for put in batch.puts if put is batch.refused])
            flushing.backlog.is_troubled = True

    # --- what nobody asks for ---

    def _be_kept(self) -> None:
        """By a thread of its own, from the first operation that waits."""
        try:
            with self._lock:
                self._keeper = self._keeper or Keeper(self)
            self._keeper.ring()
        except RuntimeError:  # the interpreter ends, and starts no threads any more
            self._is_leaving = True
            self.flush()

    def look_after(self) -> float | None:
        """Write what is due. Returns the seconds until something is; None: never again. For its `Keeper`."""
        with self._database.events.later():
            return self._look_after()

    def _look_after(self) -> float | None:
        if self._is_done:
            return None
        if self._is_leaving:
            self._flush_quietly(math.inf)
            self._warn_of_what_is_left()
            if self._is_abandoned:
                self._database.close()
            return None
        if self._policy.seconds is None:
            return math.inf
        self._flush_quietly(time.monotonic())
        with self._lock:
            due = [backlog.due_at(self._policy.seconds) for backlog in self._backlogs.values()]
        return max(0.0, min(due, default=math.inf) - time.monotonic())

    def _flush_quietly(self, now: float) -> None:
        """What is due by then. An error is for the next call of its thread: it tries again, or hears of what was lost."""
        with self._lock:
            seconds = self._policy.seconds or 0.0
            due = [backlog for backlog in self._backlogs.values() if backlog.due_at(seconds) <= now]
            for backlog in due:
                backlog.users += 1
        flushes = [Flushing(backlog) for backlog in due]
        try:
            self._flush(flushes)
        except Exception as error:
            for flushing in flushes:
                flushing.error = flushing.error or error
        finally:
            with self._lock:
                self._take_note(flushes)
            for backlog in due:
                self._leave(backlog)

    def _warn_of_what_is_left(self) -> None:
        with self._lock:
            left = sorted(backlog.thread_id for backlog in self._backlogs.values() if backlog.waiting or backlog.lost)
        if left:
            warnings.warn(f"{self.path}: the last steps of {left} could not be written", RuntimeWarning, stacklevel=2)

    def _take_note(self, flushes: Sequence[Flushing]) -> None:
        for flushing in flushes:
            if flushing.error is not None:
                flushing.backlog.not_before = time.monotonic() + max(self._policy.seconds or 0.0, _TRY_AGAIN)
                if flushing.has_lost:
                    flushing.backlog.lost = flushing.error

    # --- the end ---

    def close(self) -> None:
        """All is written first; if that fails it raises, and the buffer stays open."""
        self._closed = True
        try:
            self.flush()
        except BaseException:
            self._closed = False
            raise
        self._is_done = True
        if self._keeper is not None:
            self._keeper.ring()

    def part(self, *, abandoned: bool = False) -> None:
        """From now on nothing waits. Its keeper writes what does, and ends. Takes no lock, as it may be called anywhere."""
        self._is_leaving = True
        self._is_abandoned = abandoned
        if self._keeper is not None:
            self._keeper.part(self)
