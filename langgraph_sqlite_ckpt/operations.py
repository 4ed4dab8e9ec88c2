"""A write as an object: prepared without any lock, applied in somebody's transaction, its outcome handed back.

Also what its owners wait with: for their turn, and a moment for company.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from langgraph_sqlite_ckpt.errors import InvalidRequest

T = TypeVar("T")


class Stale(Exception):
    """What was prepared no longer fits the file (somebody deleted what it leans on): prepare again."""


class Operation(Generic[T]):
    """A write, in three moments: `prepare` (no lock held), `apply` (in the transaction), `committed` (after it)."""

    expects_company = False
    """Whether another operation is likely to follow at once, so that one commit can serve both."""
    kind = ""
    """What events call it: the method that makes it. "": it makes no event of its own."""
    thread_id: str | None = None
    """Where it is about one thread."""
    asked_at: float | None = None
    """When (`time.perf_counter`), where it has to wait on the way to its writer."""

    @property
    def size(self) -> int | None:
        """Bytes of the values that it stores, once encoded; None where it stores none."""
        return None

    @property
    def count(self) -> int:
        """Operations of the user's in it."""
        return 1

    def prepare(self) -> None:
        """Encode. Called again if `apply` raised `Stale`."""

    def apply(self, db: sqlite3.Connection) -> T:
        raise NotImplementedError

    def committed(self) -> None:
        """It is on disk."""


class Statement(Operation[T]):
    """A write that needs no preparation."""

    def __init__(self, apply: Callable[[sqlite3.Connection], T], *, kind: str = "", thread_id: str | None = None) -> None:
        self._apply, self.kind, self.thread_id = apply, kind, thread_id

    def apply(self, db: sqlite3.Connection) -> T:
        return self._apply(db)


class Writer(Protocol):
    """What runs operations: the database, or a buffer before it."""

    path: str

    def write(self, operation: Operation[T]) -> T: ...

    def write_all(self, operations: Sequence[Operation[Any]]) -> Sequence[Ticket[Any]]: ...


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

    def acknowledge(self, value: T) -> None:
        """Somebody else sees to it that it gets to the disk."""
        self._value, self.done = [value], True

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        if not self.done:
            raise RuntimeError("this operation was interrupted before it ran")
        return self._value[0]


class Turn:
    """One thread at a time, and a signal handler does not wait for the very thread that it interrupted.

    A bare lock: a Ctrl-C inside a Condition can leave it locked. For the same reason nothing that Python could interrupt
    stands between taking the lock, or letting go of it, and the note of who has it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._holder: int | None = None
        self._later: deque[Callable[[], None]] = deque()

    def take(self, work: Callable[[], T]) -> T:
        """Do it with the lock held.

        Raises:
            InvalidRequest: This thread has the lock already.
        """
        me = self._newcomer()
        try:
            with self.lock:
                try:
                    self._holder = me
                    return work()
                finally:
                    self._holder = None
        finally:
            self._catch_up()

    def take_if_free(self, work: Callable[[], object], patience: float) -> None:
        """The same, or nothing where somebody has the lock for longer than so many seconds."""
        if self._holder == threading.get_ident() or not self.lock.acquire(timeout=patience):
            return
        try:
            self._holder = threading.get_ident()
            work()
        finally:
            self._holder = None
            self.lock.release()
            self._catch_up()

    @contextmanager
    def held(self) -> Iterator[None]:
        """The same for what has to `yield`; a Ctrl-C on its way out of here may let go of the lock a little later."""
        me = self._newcomer()
        try:
            with self.lock:
                try:
                    self._holder = me
                    yield
                finally:
                    self._holder = None
        finally:
            self._catch_up()

    def _newcomer(self) -> int:
        me = threading.get_ident()
        if self._holder == me:
            raise InvalidRequest(
                "a signal handler called this saver in the middle of another call of it on the same thread, for which it "
                "would wait in vain: only close() is for signal handlers. Set a flag there, or start a thread"
            )
        return me

    def _catch_up(self) -> None:
        while self._later:
            self._later.popleft()()

    def in_time(self, work: Callable[[], None]) -> None:
        """Now, or, where this thread is in the middle of its turn, right after it."""
        if self._holder == threading.get_ident():
            self._later.append(work)
        else:
            work()


class Company:
    """A moment's wait for another operation, so that one commit, and one fsync, serves both.

    LangGraph stores what a task wrote and the checkpoint after it from two threads, within a fraction of a millisecond:
    waiting for the second halves the commits. Nothing is acknowledged earlier for it. Whoever is always alone soon stops
    waiting, and tries again only now and then.
    """

    _PATIENCE = 0.0002  # seconds; a commit takes 0.3 ms and more
    _GIVE_UP, _TRY_AGAIN = 8, 64

    def __init__(self) -> None:
        # A bare lock, held while nobody has come: unlike threading.Event it cannot be left locked by a Ctrl-C.
        self._nobody = threading.Lock()
        self._nobody.acquire()
        self._disappointed = 0

    def announce(self) -> None:
        """An operation has joined."""
        with suppress(RuntimeError):  # it was announced already
            self._nobody.release()

    def wait(self, alone: Callable[[], bool]) -> None:
        """Until somebody joins or patience ends, if `alone` and if that has been worth it lately."""
        self._nobody.acquire(blocking=False)
        if not alone():
            return
        if self._GIVE_UP <= self._disappointed < self._GIVE_UP + self._TRY_AGAIN:
            self._disappointed += 1
        elif self._nobody.acquire(timeout=self._PATIENCE):
            self._disappointed = 0
        else:
            self._disappointed = self._GIVE_UP if self._disappointed > self._GIVE_UP else self._disappointed + 1
