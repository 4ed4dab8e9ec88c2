"""Connections, and the only BEGIN and COMMIT.

**Writing.** Operations queue. Whoever gets the lock runs all that is queued in one `BEGIN IMMEDIATE ... COMMIT` and hands
out the results: concurrent writers share one fsync, a single one pays nothing for it. A task's writes wait a fifth of a
millisecond for the checkpoint that LangGraph mostly stores next, as long as it does come (`Company`). In a group each
operation has its own savepoint, so a bad one fails alone; a COMMIT that fails, fails all of them, and nothing of them is
in the file.

**Reading.** Readers have connections of their own: in WAL mode a read never waits for a writer's fsync.

**Forking.** No connection ever crosses a `fork()`: all are closed before it, under their locks, and opened again by
whoever needs one. (Only dropping them in the child is not enough: SQLite keeps its locks per process and inode, so the
child would believe that it holds locks which only its parent has, and write to a -wal that others may delete.)
"""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from langgraph_sqlite_ckpt.errors import (
    CheckpointError,
    ClosedError,
    InvalidRequest,
    OpenError,
    ReadOnlyError,
    StorageError,
    is_busy,
    storage_error,
)
from langgraph_sqlite_ckpt.events import SILENT, Events, Timing
from langgraph_sqlite_ckpt.file import (
    MEMORY,
    Identity,
    identify,
    is_empty,
    is_wal,
    make_file,
    open_error,
    require_file,
    require_same,
    steps_done,
    uri_of,
)
from langgraph_sqlite_ckpt.keys import Keyring
from langgraph_sqlite_ckpt.operations import Company, Operation, Stale, Ticket, Turn
from langgraph_sqlite_ckpt.schema import APPLICATION_ID, STEPS, statements
from langgraph_sqlite_ckpt.tables import Connection
from langgraph_sqlite_ckpt.wholefile import Progress, copy, nobody

Synchronous = Literal["full", "normal"]
JournalMode = Literal["wal", "delete"]
Read = Callable[[], AbstractContextManager[sqlite3.Connection]]
"""Begins one consistent view of the file."""
T = TypeVar("T")

_IDLE_READERS = 8
_JOURNAL_SIZE_LIMIT = 8 * 1024 * 1024  # bytes to which the -wal is cut back once its content is in the main file
# Pages of 4 kB after which the -wal is copied into the main file, and then written over. SQLite's default is 1,000; but
# syncing a file that grows costs twice as much as writing over one, so a short -wal is faster.
_WAL_PAGES = 256
_PREPARES = 10
_PATIENCE = 1.0  # seconds that a statement waits for others which may as well not happen
_LONGEST_WAIT = 2_000_000.0  # seconds; SQLite counts milliseconds in 31 bits


class Database:
    """One file (or one private memory), served to any number of threads."""

    def __init__(
        self,
        path: str,
        *,
        synchronous: Synchronous = "full",
        busy_timeout: float = 30.0,
        read_only: bool = False,
        journal_mode: JournalMode = "wal",
        accept: Callable[[sqlite3.Connection], None] = lambda _db: None,
        keyring: Keyring | None = None,
    ) -> None:
        """`accept` looks at a file before it counts as open, and raises where it should not be."""
        self.path = path
        self._accept = accept
        self.keyring = keyring or Keyring()
        self.read_only = read_only
        self._identity: Identity | None = None
        self._synchronous = synchronous
        self._journal_mode = journal_mode
        self._busy_timeout = min(busy_timeout, _LONGEST_WAIT)
        self._closed = True  # until it is open
        self._queue: deque[Ticket[Any]] = deque()
        self._company = Company()
        self._writing = Turn()
        self._reading = Turn()
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._borrowed = 0
        self.events: Events = SILENT
        self.renew: Callable[[], None] = lambda: None  # called in a forked child, whose threads are gone
        self._open()
        self._closed = False
        _FORKS.add(self)

    @property
    def busy_timeout(self) -> float:
        """Seconds that a write waits for others."""
        return self._busy_timeout

    # --- opening and closing ---

    def _open(self) -> None:
        """Check the file, and build or migrate it where that is needed; an up-to-date file is not written to."""
        if self.path != MEMORY:
            if not self.read_only:
                make_file(self.path)
            require_file(self.path)
            self._identity = identify(self.path)
        db = self._connect()
        try:
            self._check(db)
            self._require_same_file()
            self._accept(db)
        except sqlite3.Error as error:
            db.close()
            raise open_error(self.path, error) from error
        except BaseException:
            db.close()
            raise
        self._keep(db)

    def _check(self, db: sqlite3.Connection) -> None:
        done = steps_done(db, self.path)
        if done < len(STEPS):
            if self.read_only:
                what = "built by an older release" if done else "empty"
                raise OpenError(f"{self.path}: {what}; open it once without read_only")
            self._build(db)
        elif self.path != MEMORY and not self.read_only:
            self._use_journal_mode(db)

    def _build(self, db: sqlite3.Connection) -> None:
        if is_empty(self.path):  # else it has no effect, and only waits for whoever is building the file
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._use_journal_mode(db)
        db.execute("BEGIN IMMEDIATE")
        with _whole(db):
            for number in range(steps_done(db, self.path), len(STEPS)):  # again: another process may have been first
                for statement in statements(STEPS[number]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number + 1}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def _use_journal_mode(self, db: sqlite3.Connection) -> None:
        """Where it is not on already."""
        if db.execute("PRAGMA journal_mode").fetchone()[0] in (self._journal_mode, "memory"):
            return
        [mode] = self._patiently(db, f"PRAGMA journal_mode = {self._journal_mode}", unsure=True)
        if mode != self._journal_mode:
            raise OpenError(f'{self.path}: its file system cannot have WAL mode; pass journal_mode="delete"')

    def _patiently(self, db: sqlite3.Connection, statement: str, *, unsure: bool = False) -> Any:
        """SQLite itself waits for a write lock. What it does not wait for (who else changes the mode, say, or recovers the
        -wal of a killed process), we do, in the same time; by chance, so that those who wait do not do it in step.

        `unsure`: also where Python 3.10 does not tell what it is.
        """
        deadline = time.monotonic() + self._busy_timeout
        while True:
            try:
                return db.execute(statement).fetchone()
            except sqlite3.OperationalError as error:
                if not is_busy(error, unsure=unsure) or time.monotonic() >= deadline:
                    raise
                time.sleep(random.uniform(0.001, 0.02))

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(
                MEMORY if self.path == MEMORY else uri_of(self.path, read_only=self.read_only),
                timeout=self._busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                uri=self.path != MEMORY,
                factory=Connection,
            )
        except sqlite3.Error as error:
            raise open_error(self.path, error) from error
        try:
            self._set_up(db)
        except BaseException as error:
            db.close()
            if isinstance(error, sqlite3.Error):
                raise open_error(self.path, error) from error
            if isinstance(error, UnicodeDecodeError):
                raise self._ours(error) from error
            raise
        return db

    def _set_up(self, db: Connection) -> None:
        db.keyring = self.keyring
        db.text_factory = _text  # one damaged byte must not keep a whole page of rows from being read
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_SIZE_LIMIT}")
        db.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")

    def _require_same_file(self) -> None:
        """SQLite would go on writing to a file that has no name any more."""
        if self._identity is not None:
            require_same(self.path, self._identity)

    def _keep(self, db: sqlite3.Connection) -> None:
        if self.read_only:
            self._readers.append(db)
        else:
            self._writer = db

    def close(
        self, last_word: Callable[[sqlite3.Connection], object] | None = None, *, patience: float = _PATIENCE
    ) -> None:
        """What is queued is written first, then the `last_word`, if others let it within so many seconds. Again is fine.

        In a signal handler that interrupted a call of ours on this very thread: as soon as that call is through.
        """
        close = partial(self._writing.take, partial(self._write_and_close, last_word, patience))
        with self.events.later():
            self._writing.in_time(lambda: self._reading.in_time(close))

    def _write_and_close(self, last_word: Callable[[sqlite3.Connection], object] | None, patience: float) -> None:
        self._run_queue()
        if last_word is not None:
            with suppress(CheckpointError):
                self._maintain(last_word, patience)
        self._reading.take(self._mark_closed)

    def _mark_closed(self) -> None:
        self._closed = True
        self._close_connections()

    def _close_connections(self) -> None:
        for db in (self._writer, *self._readers):
            if db is not None:
                db.close()
        self._writer = None
        self._readers.clear()

    def let_go(self) -> None:
        """Nobody has the saver any more. Should its buffer be writing still, that closes the connections."""
        self._writing.take_if_free(self._close_connections, 0)

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: this saver was closed; make a new one")

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"SqliteSaver on {self.path} was never closed", ResourceWarning, stacklevel=2)
            self.let_go()

    # --- reading ---

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """One consistent view of the file. Nothing of the caller's may run in it: read rows, leave, then decode."""
        try:
            with self._reader() as db:
                yield db
        except (sqlite3.Error, UnicodeError, OverflowError) as error:
            raise self._ours(error) from error

    @contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        if self.path == MEMORY:
            with self._writing.held():
                self._require_open()
                yield self._connection()
            return
        self._require_same_file()
        db = self._borrow()
        try:
            db.execute("BEGIN")
            yield db
        finally:
            self._give_back(db)

    def _borrow(self) -> sqlite3.Connection:
        idle = self._reading.take(self._count_out)
        if idle is not None:
            return idle
        try:
            return self._connect()
        except BaseException:
            self._reading.take(self._count_in)
            raise

    def _count_out(self) -> sqlite3.Connection | None:
        self._require_open()
        self._borrowed += 1
        return self._readers.pop() if self._readers else None

    def _count_in(self) -> None:
        self._borrowed -= 1

    def _give_back(self, db: sqlite3.Connection) -> None:
        """It is counted in whatever happens here, a Ctrl-C too: a fork waits for those that are out."""
        usable = False
        try:
            with suppress(sqlite3.Error):
                _roll_back(db)
                usable = True
        finally:
            if not self._reading.take(lambda: self._took_back(db, usable)):
                db.close()

    def _took_back(self, db: sqlite3.Connection, usable: bool) -> bool:
        self._count_in()
        kept = usable and not self._closed and len(self._readers) < _IDLE_READERS
        if kept:
            self._readers.append(db)
        return kept

    # --- writing ---

    def write(self, operation: Operation[T]) -> T:
        """Run it, whole or not at all; when this returns, it is on disk."""
        [ticket] = self.write_all([operation])
        value: T = ticket.result()
        return value

    def write_all(self, operations: Sequence[Operation[Any]]) -> Sequence[Ticket[Any]]:
        """Run them; each ticket has its own outcome. An interrupt (Ctrl-C) raises, and undoes what is not committed."""
        tickets = [Ticket(operation) for operation in operations]
        pending = tickets
        for _ in range(_PREPARES):
            self._prepare(pending)
            self._run([ticket for ticket in pending if not ticket.done])
            pending = [ticket for ticket in pending if isinstance(ticket.error, Stale)]
            if not pending:
                return tickets
            for ticket in pending:
                ticket.error, ticket.done = None, False
        for ticket in pending:
            ticket.settle(StorageError(f"{self.path}: somebody keeps deleting what this write needs; try again"))
        return tickets

    def sync(self) -> None:
        """All that is committed is on the disk: with synchronous="normal" a commit does not wait for it."""
        if self._synchronous == "full" or self.path == MEMORY:
            return
        try:
            with Path(self.path + "-wal").open("rb+") as wal:  # SQLite has no locks on it that closing it could drop
                os.fsync(wal.fileno())
        except OSError as error:
            raise StorageError(f"{self.path}-wal: {error}") from error

    def maintain(self, work: Callable[[sqlite3.Connection], T], *, patience: float | None = None) -> T:
        """Work that SQLite does in transactions of its own (vacuum, -wal), with no writer of ours in between.

        `patience`: seconds to wait for others, in the place of `busy_timeout`.
        """
        return self._writing.take(lambda: self._maintain(work, self._busy_timeout if patience is None else patience))

    def _maintain(self, work: Callable[[sqlite3.Connection], T], patience: float) -> T:
        try:
            return self._run_maintenance(self._writable(), work, patience)
        except sqlite3.Error as error:
            raise storage_error(self.path, error) from error

    def _run_maintenance(self, db: sqlite3.Connection, work: Callable[[sqlite3.Connection], T], patience: float) -> T:
        waits_as_usual = False
        try:
            _wait_for_others(db, patience)
            value = work(db)
            _wait_for_others(db, self._busy_timeout)
            waits_as_usual = True
            return value
        finally:
            if not waits_as_usual and self.path != MEMORY:  # the next writer gets another connection
                db.close()
                self._writer = None

    def write_if_free(self, work: Callable[[sqlite3.Connection], object], *, patience: float = _PATIENCE) -> None:
        """A statement that may as well not happen: where something is in the way for longer than so many seconds."""

        def write() -> None:
            with suppress(CheckpointError):
                self._maintain(work, patience)

        self._writing.take_if_free(write, patience)

    def copy_to(self, target: str, tell: Progress) -> None:
        """Its content of one moment, into the empty file `target`. Writers go on meanwhile (in WAL mode)."""
        with self.read() as db:
            copy(db, self.path, target, tell if self.path != MEMORY else nobody)  # who is told may use the saver

    def _prepare(self, tickets: Sequence[Ticket[Any]]) -> None:
        for ticket in tickets:
            try:
                ticket.operation.prepare()
            except Exception as error:
                ticket.settle(error)

    def _run(self, tickets: Sequence[Ticket[Any]]) -> None:
        if not tickets:
            return
        try:
            self._queue.extend(tickets)
            self._company.announce()
            with self.events.later():
                self._writing.take(lambda: self._run_unless_done(tickets))
        except BaseException:
            self._leave(tickets)
            raise

    def _run_unless_done(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Whoever had the lock before may have run them."""
        if not all(ticket.done for ticket in tickets):
            self._company.wait(lambda: all(ticket.operation.expects_company for ticket in tuple(self._queue)))
            self._run_queue()

    def _leave(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Whoever raises out of here must not have its operations run by others later."""
        for ticket in tickets:
            with suppress(ValueError):  # it ran, or was taken out already
                self._queue.remove(ticket)

    def _run_queue(self) -> None:
        """All that is queued, in one transaction. The lock is held.

        The queue is read once SQLite's own lock is held: what comes while other processes write goes with it. Where that
        lock is not to be had, those that came meanwhile have yet to wait for as long as they may. Operations stay queued
        until they are done, so an interrupt (Ctrl-C, say) costs nobody else's: their owners run them.
        """
        self._forget_done()
        if self._queue:
            with self.events.timing("commit") as timing:
                self._commit_queue(timing)

    def _commit_queue(self, timing: Timing) -> None:
        waited = tuple(self._queue)
        batch: list[Ticket[Any]] = []
        begun = False
        try:
            db = self._writable()
            self._patiently(db, "BEGIN IMMEDIATE")
            begun = True
            batch.extend(self._queue)
            for ticket in batch:
                if not ticket.done:
                    self._attempt(db, ticket, alone=len(batch) == 1)
            if db.in_transaction:
                db.execute("COMMIT")
            self._settle(batch)
        except (sqlite3.Error, CheckpointError) as error:
            self._undo()
            ours = self._ours(error)
            timing.failed(ours)
            batch = batch if begun else list(waited)
            self._settle(batch, ours)
        except BaseException:
            if not self._undo() and begun:  # the commit has happened
                self._settle(batch)
            raise
        timing.found(items=sum(ticket.operation.count for ticket in batch))
        self._forget_done()

    def _forget_done(self) -> None:
        while self._queue and self._queue[0].done:
            self._queue.popleft()

    def _writable(self) -> sqlite3.Connection:
        self._require_open()
        if self.read_only:
            raise ReadOnlyError(f"{self.path}: opened with read_only=True")
        self._require_same_file()
        return self._connection()

    def _settle(self, batch: Sequence[Ticket[Any]], error: BaseException | None = None) -> None:
        for ticket in batch:
            ticket.settle(error)

    def _attempt(self, db: sqlite3.Connection, ticket: Ticket[Any], *, alone: bool) -> None:
        if not alone:
            db.execute("SAVEPOINT operation")
        try:
            ticket.attempt(db)
        except Exception as error:
            ticket.error = self._ours(error)
            if not db.in_transaction:  # SQLite gave up the whole transaction (a full disk, say): nobody's part is left
                raise
            db.execute("ROLLBACK" if alone else "ROLLBACK TO operation")
            if alone:
                return
        if not alone:
            db.execute("RELEASE operation")

    def _ours(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error):
            ours: Exception = storage_error(self.path, error)
        elif isinstance(error, UnicodeDecodeError):  # in SQLite's own message
            ours = StorageError(f"{self.path}: damaged: a name in the file is no text. Restore it from a backup")
        elif isinstance(error, (UnicodeEncodeError, OverflowError)):
            ours = InvalidRequest(f"SQLite cannot hold a name or a version of this checkpoint: {error}")
        else:
            return error
        ours.__cause__ = error
        return ours

    def _connection(self) -> sqlite3.Connection:
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    def _undo(self) -> bool:
        """Whether there was a transaction to roll back."""
        if self._writer is None or not self._writer.in_transaction:
            return False
        try:
            _roll_back(self._writer)
        except sqlite3.Error:  # closing it rolls back too, and the next writer gets a new one
            self._writer.close()
            self._writer = None
        return True

    # --- forking ---

    def _before_fork(self) -> None:
        self._writing.lock.acquire()
        self._reading.lock.acquire()
        deadline = time.monotonic() + self._busy_timeout
        while self._borrowed and time.monotonic() < deadline:
            self._reading.lock.release()
            time.sleep(0.001)
            self._reading.lock.acquire()
        if self.path != MEMORY:  # a private memory is copied with the process
            self._close_connections()

    def _after_fork_in_parent(self) -> None:
        self._reading.lock.release()
        self._writing.lock.release()

    def _after_fork_in_child(self) -> None:
        """The parent's threads are not here: neither what they queued nor the locks that they waited for."""
        self._queue.clear()
        self._company = Company()
        self._borrowed = 0
        self._writing = Turn()
        self._reading = Turn()
        self.renew()


def open_to_read(path: str) -> sqlite3.Connection:
    """Somebody's SQLite file, to read, within one transaction. Nothing is written, not even beside it.

    A WAL file that nobody has open has no -wal; SQLite would make one even to read, unless told that it will not change.
    """
    require_file(path)
    alone = not Path(path + "-wal").exists() and is_wal(path)
    uri = f"{Path(path).as_uri()}?mode=ro" + ("&immutable=1" if alone else "")
    try:
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30)
    except sqlite3.Error as error:
        raise open_error(path, error) from error
    db.text_factory = _text
    try:
        db.execute("BEGIN")
        db.execute("PRAGMA schema_version").fetchone()
    except sqlite3.Error as error:
        db.close()
        raise open_error(path, error) from error
    return db


class _Forks:
    """Every open database, and one fork at a time."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: weakref.WeakSet[Database] = weakref.WeakSet()
        self._forking: list[Database] = []

    def add(self, database: Database) -> None:
        with self._lock:
            self._open.add(database)

    def holds(self, path: str) -> bool:
        with self._lock:
            return any(not each._closed and each._identity == Identity.of(path) for each in self._open)

    def before(self) -> None:
        self._lock.acquire()
        self._forking = list(self._open)
        for database in self._forking:
            database._before_fork()

    def after_in_parent(self) -> None:
        for database in self._forking:
            database._after_fork_in_parent()
        self._lock.release()

    def after_in_child(self) -> None:
        self._lock = threading.RLock()
        for database in self._forking:
            database._after_fork_in_child()


_FORKS = _Forks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_FORKS.before, after_in_parent=_FORKS.after_in_parent, after_in_child=_FORKS.after_in_child)


def is_open_here(path: str) -> bool:
    """Whether a saver of this process has the file open, also while it has no connection."""
    return _FORKS.holds(path)


@contextmanager
def _whole(db: sqlite3.Connection) -> Iterator[None]:
    """All that happens inside, or nothing. It survives a COMMIT that fails and a transaction that an error ended."""
    try:
        yield
        if db.in_transaction:
            db.execute("COMMIT")
    except BaseException:
        _roll_back(db)
        raise


def _wait_for_others(db: sqlite3.Connection, seconds: float) -> None:
    db.execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")
