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
import sqlite3
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from langgraph_sqlite_ckpt.file import MEMORY, is_empty, is_wal, make_file, open_error, require_file, steps_done
from langgraph_sqlite_ckpt.operations import Company, Operation, Stale, Ticket
from langgraph_sqlite_ckpt.schema import APPLICATION_ID, STEPS, statements

Synchronous = Literal["full", "normal"]
T = TypeVar("T")

_IDLE_READERS = 8
_JOURNAL_SIZE_LIMIT = 8 * 1024 * 1024  # bytes to which the -wal is cut back once its content is in the main file
# Pages of 4 kB after which the -wal is copied into the main file, and then written over. SQLite's default is 1,000; but
# syncing a file that grows costs twice as much as writing over one, so a short -wal is faster.
_WAL_PAGES = 256
_PREPARES = 10
_LONGEST_WAIT = 2_000_000.0  # seconds; SQLite counts milliseconds in 31 bits


class Database:
    """One file (or one private memory), served to any number of threads."""

    def __init__(self, path: str, *, synchronous: Synchronous, busy_timeout: float, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._synchronous = synchronous
        self._busy_timeout = min(busy_timeout, _LONGEST_WAIT)
        self._closed = True  # until it is open
        self._queue: deque[Ticket[Any]] = deque()
        self._company = Company()
        self._writing = threading.Lock()
        self._reading = threading.Lock()  # bare locks only: a Ctrl-C inside a Condition can leave it locked
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._borrowed = 0
        self.renew: Callable[[], None] = lambda: None  # called in a forked child, whose threads are gone
        self._open()
        self._closed = False
        _FORKS.add(self)

    # --- opening and closing ---

    def _open(self) -> None:
        """Check the file, and build or migrate it where that is needed; an up-to-date file is not written to."""
        if self.path != MEMORY:
            if not self.read_only:
                make_file(self.path)
            require_file(self.path)
        db = self._connect()
        try:
            self._check(db)
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
            self._use_wal(db)

    def _build(self, db: sqlite3.Connection) -> None:
        if is_empty(self.path):  # else it has no effect, and only waits for whoever is building the file
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self._use_wal(db)
        db.execute("BEGIN IMMEDIATE")
        with _whole(db):
            for number in range(steps_done(db, self.path), len(STEPS)):  # again: another process may have been first
                for statement in statements(STEPS[number]):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number + 1}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")

    def _use_wal(self, db: sqlite3.Connection) -> None:
        """Where it is not on already. SQLite does not wait for others here, so we do."""
        deadline = time.monotonic() + self._busy_timeout
        while db.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
            try:
                db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _connect(self) -> sqlite3.Connection:
        try:
            db = sqlite3.connect(
                MEMORY if self.path == MEMORY else self._uri(),
                timeout=self._busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                uri=self.path != MEMORY,
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

    def _set_up(self, db: sqlite3.Connection) -> None:
        db.text_factory = _text  # one damaged byte must not keep a whole page of rows from being read
        db.execute(f"PRAGMA synchronous = {self._synchronous}")
        db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_SIZE_LIMIT}")
        db.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")

    def _uri(self) -> str:
        uri = Path(self.path).absolute().as_uri()
        if not self.read_only:
            return uri + "?mode=rw"
        wal = Path(self.path + "-wal")
        if not wal.exists() and not os.access(Path(self.path).absolute().parent, os.W_OK):
            return uri + "?immutable=1"  # nobody can be writing there, and SQLite could not make its -shm
        return uri + "?mode=ro"

    def _keep(self, db: sqlite3.Connection) -> None:
        if self.read_only:
            self._readers.append(db)
        else:
            self._writer = db

    def close(self) -> None:
        """What is queued is written first. Again is fine."""
        with self._writing:
            self._run_queue()
            with self._reading:
                self._closed = True
                self._close_connections()

    def _close_connections(self) -> None:
        for db in (self._writer, *self._readers):
            if db is not None:
                db.close()
        self._writer = None
        self._readers.clear()

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"{self.path}: this saver was closed; make a new one")

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"SqliteSaver on {self.path} was never closed", ResourceWarning, stacklevel=2)
            self._close_connections()

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
            with self._writing:
                self._require_open()
                yield self._connection()
            return
        db = self._borrow()
        try:
            db.execute("BEGIN")
            yield db
        finally:
            self._give_back(db)

    def _borrow(self) -> sqlite3.Connection:
        with self._reading:
            self._require_open()
            self._borrowed += 1
            if self._readers:
                return self._readers.pop()
        try:
            return self._connect()
        except BaseException:
            with self._reading:
                self._borrowed -= 1
            raise

    def _give_back(self, db: sqlite3.Connection) -> None:
        try:
            _roll_back(db)
            usable = True
        except sqlite3.Error:
            usable = False
        with self._reading:
            self._borrowed -= 1
            if usable and not self._closed and len(self._readers) < _IDLE_READERS:
                self._readers.append(db)
                return
        db.close()

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

    def maintain(self, work: Callable[[sqlite3.Connection], T], *, patience: float | None = None) -> T:
        """Work that SQLite does in transactions of its own (vacuum, -wal), with no writer of ours in between.

        `patience`: seconds to wait for others, in the place of `busy_timeout`.
        """
        with self._writing:
            db = self._writable()
            try:
                if patience is not None:
                    _wait_for_others(db, patience)
                return work(db)
            except sqlite3.Error as error:
                raise storage_error(self.path, error) from error
            finally:
                if patience is not None:
                    _wait_for_others(db, self._busy_timeout)

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
            with self._writing:
                if not all(ticket.done for ticket in tickets):
                    self._company.wait(lambda: all(ticket.operation.expects_company for ticket in tuple(self._queue)))
                    self._run_queue()
        except BaseException:
            self._leave(tickets)
            raise

    def _leave(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Whoever raises out of here must not have its operations run by others later."""
        for ticket in tickets:
            with suppress(ValueError):  # it ran, or was taken out already
                self._queue.remove(ticket)

    def _run_queue(self) -> None:
        """All that is queued, in one transaction. The lock is held.

        The queue is read once SQLite's own lock is held: what comes while other processes write goes with it. Operations
        stay queued until they are done, so an interrupt (Ctrl-C, say) costs nobody else's: their owners run them.
        """
        self._forget_done()
        if not self._queue:
            return
        batch: list[Ticket[Any]] = []
        begun = False
        try:
            db = self._writable()
            db.execute("BEGIN IMMEDIATE")
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
            self._settle(batch if begun else tuple(self._queue), self._ours(error))
        except BaseException:
            if not self._undo() and begun:  # the commit has happened
                self._settle(batch)
            raise
        self._forget_done()

    def _forget_done(self) -> None:
        while self._queue and self._queue[0].done:
            self._queue.popleft()

    def _writable(self) -> sqlite3.Connection:
        self._require_open()
        if self.read_only:
            raise ReadOnlyError(f"{self.path}: opened with read_only=True")
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
        self._writing.acquire()
        self._reading.acquire()
        deadline = time.monotonic() + self._busy_timeout
        while self._borrowed and time.monotonic() < deadline:
            self._reading.release()
            time.sleep(0.001)
            self._reading.acquire()
        if self.path != MEMORY:  # a private memory is copied with the process
            self._close_connections()

    def _after_fork_in_parent(self) -> None:
        self._reading.release()
        self._writing.release()

    def _after_fork_in_child(self) -> None:
        """The parent's threads are not here: neither what they queued nor the locks that they waited for."""
        self._queue.clear()
        self._company = Company()
        self._borrowed = 0
        self._writing = threading.Lock()
        self._reading = threading.Lock()
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
