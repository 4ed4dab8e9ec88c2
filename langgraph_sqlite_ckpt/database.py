"""Connections, and the only BEGIN and COMMIT.

**Writing.** Operations queue. Whoever gets the lock runs all that is queued in one `BEGIN IMMEDIATE ... COMMIT` and hands
out the results: concurrent writers share one fsync, a single one pays nothing for it. In a group each operation has its
own savepoint, so a bad one fails alone; a COMMIT that fails, fails all of them, and nothing of them is in the file.

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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from langgraph_sqlite_ckpt.errors import (
    CheckpointError,
    ClosedError,
    ForeignFileError,
    InvalidRequest,
    NewerFileError,
    OpenError,
    ReadOnlyError,
    StorageError,
    is_busy,
    storage_error,
)
from langgraph_sqlite_ckpt.schema import APPLICATION_ID, STEPS

MEMORY = ":memory:"
Synchronous = Literal["full", "normal"]
T = TypeVar("T")

_IDLE_READERS = 8
_JOURNAL_SIZE_LIMIT = 16 * 1024 * 1024  # bytes to which the -wal is cut back once its content is in the main file
_PREPARES = 10


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


class Database:
    """One file (or one private memory), served to any number of threads."""

    def __init__(self, path: str, *, synchronous: Synchronous, busy_timeout: float, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._synchronous = synchronous
        self._busy_timeout = busy_timeout
        self._closed = False
        self._queue: deque[Ticket[Any]] = deque()
        self._writing = threading.Lock()
        self._reading = threading.Condition(threading.Lock())
        self._writer: sqlite3.Connection | None = None
        self._readers: list[sqlite3.Connection] = []
        self._borrowed = 0
        self.renew: Callable[[], None] = lambda: None  # called in a forked child, whose threads are gone
        self._open()
        _OPEN.add(self)

    # --- opening and closing ---

    def _open(self) -> None:
        """Check the file, and build or migrate it where that is needed; an up-to-date file is not written to."""
        if self.path != MEMORY and not self.read_only:
            _make_file(self.path)
        db = self._connect()
        try:
            self._check(db)
        except sqlite3.Error as error:
            db.close()
            raise _open_error(self.path, error) from error
        except BaseException:
            db.close()
            raise
        self._keep(db)

    def _check(self, db: sqlite3.Connection) -> None:
        if _steps_done(db, self.path) < len(STEPS):
            if self.read_only:
                raise OpenError(f"{self.path}: built by an older release; open it once without read_only to migrate it")
            self._build(db)
        elif self.path != MEMORY and not self.read_only:
            self._use_wal(db)

    def _build(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect while the file is empty
        self._use_wal(db)
        db.execute("BEGIN IMMEDIATE")
        with _whole(db):
            for number in range(_steps_done(db, self.path), len(STEPS)):  # again: another process may have been first
                for statement in STEPS[number].split(";\n"):
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
        target = MEMORY if self.path == MEMORY else self._uri()
        try:
            db = sqlite3.connect(
                target,
                timeout=self._busy_timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                uri=self.path != MEMORY,
            )
            db.execute(f"PRAGMA synchronous = {self._synchronous}")
            db.execute(f"PRAGMA journal_size_limit = {_JOURNAL_SIZE_LIMIT}")
        except sqlite3.Error as error:
            raise _open_error(self.path, error) from error
        return db

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
            self._run_queue(())
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
        if self.path == MEMORY:
            with self._writing:
                self._require_open()
                yield self._connection()
            return
        db = self._borrow()
        try:
            db.execute("BEGIN")
            yield db
        except sqlite3.Error as error:
            raise storage_error(self.path, error) from error
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
                self._reading.notify_all()
            raise

    def _give_back(self, db: sqlite3.Connection) -> None:
        try:
            _roll_back(db)
            usable = True
        except sqlite3.Error:
            usable = False
        with self._reading:
            self._borrowed -= 1
            self._reading.notify_all()
            if usable and not self._closed and len(self._readers) < _IDLE_READERS:
                self._readers.append(db)
                return
        db.close()

    # --- writing ---

    def write(self, operation: Operation[T]) -> T:
        """Run it, whole or not at all; when this returns, it is on disk."""
        [ticket] = self.write_all([operation])
        return ticket.result()

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

    def _prepare(self, tickets: Sequence[Ticket[Any]]) -> None:
        for ticket in tickets:
            try:
                ticket.operation.prepare()
            except Exception as error:
                ticket.settle(error)

    def _run(self, tickets: Sequence[Ticket[Any]]) -> None:
        if not tickets:
            return
        self._queue.extend(tickets)
        try:
            with self._writing:
                if not all(ticket.done for ticket in tickets):
                    self._run_queue(tickets)
        except BaseException:
            self._leave(tickets)
            raise

    def _leave(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Whoever raises out of here must not have its operations run by others later."""
        for ticket in tickets:
            try:
                self._queue.remove(ticket)
            except ValueError:  # it ran, or was taken out already
                pass

    def _run_queue(self, own: Sequence[Ticket[Any]]) -> None:
        """All that is queued, in one transaction. The lock is held."""
        batch: list[Ticket[Any]] = []
        while self._queue:
            batch.append(self._queue.popleft())
        if not batch:
            return
        begun = False
        try:
            db = self._writable()
            db.execute("BEGIN IMMEDIATE")
            begun = True
            for ticket in batch:
                self._attempt(db, ticket, alone=len(batch) == 1)
            if db.in_transaction:
                db.execute("COMMIT")
        except (sqlite3.Error, CheckpointError) as error:
            self._undo()
            self._settle(batch, self._ours(error))
        except BaseException:
            self._interrupted(batch, own, committed=not self._undo() and begun)
            raise
        else:
            self._settle(batch)

    def _writable(self) -> sqlite3.Connection:
        self._require_open()
        if self.read_only:
            raise ReadOnlyError(f"{self.path}: opened with read_only=True")
        return self._connection()

    def _settle(self, batch: Sequence[Ticket[Any]], error: BaseException | None = None) -> None:
        for ticket in batch:
            ticket.settle(error)

    def _interrupted(self, batch: Sequence[Ticket[Any]], own: Sequence[Ticket[Any]], *, committed: bool) -> None:
        """By Ctrl-C, say. If the commit happened all is done; else the others' operations wait for their owners."""
        if committed:
            self._settle(batch)
        else:
            self._queue.extendleft(ticket for ticket in reversed(batch) if ticket not in own)

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
        self._reading.wait_for(lambda: self._borrowed == 0, timeout=self._busy_timeout)
        if self.path != MEMORY:  # a private memory is copied with the process
            self._close_connections()

    def _after_fork_in_parent(self) -> None:
        self._reading.release()
        self._writing.release()

    def _after_fork_in_child(self) -> None:
        """The parent's threads are not here: neither what they queued nor the locks that they waited for."""
        self._queue.clear()
        self._borrowed = 0
        self._writing = threading.Lock()
        self._reading = threading.Condition(threading.Lock())
        self.renew()


_OPEN: weakref.WeakSet[Database] = weakref.WeakSet()
_FORKING: list[Database] = []


def _before_fork() -> None:
    _FORKING[:] = list(_OPEN)
    for database in _FORKING:
        database._before_fork()


def _after_fork_in_parent() -> None:
    while _FORKING:
        _FORKING.pop()._after_fork_in_parent()


def _after_fork_in_child() -> None:
    while _FORKING:
        _FORKING.pop()._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
    )


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


def _roll_back(db: sqlite3.Connection) -> None:
    if db.in_transaction:
        db.execute("ROLLBACK")


# --- the file ---


def _make_file(path: str) -> None:
    """The file with its folders, if it is not there: only its owner can read it. SQLite's sidecars follow its mode."""
    try:
        Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise OpenError(f"{path}: cannot be made: {error.strerror or error}") from error
    if Path(path).is_dir():
        raise OpenError(f"{path}: is a folder; name a file in it, for example {path.rstrip('/')}/agent.db")


def _steps_done(db: sqlite3.Connection, path: str) -> int:
    application, done = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    tables = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if application == APPLICATION_ID:
        if done > len(STEPS):
            raise NewerFileError(f"{path}: format {done}, this release knows up to {len(STEPS)}; upgrade the package")
        return int(done)
    if not tables and application == 0:
        return 0
    if {"checkpoints", "writes"} <= tables:
        raise ForeignFileError(
            f"{path}: a file of langgraph-checkpoint-sqlite, left as it is. Name a new file here; threads move with "
            "that package's saver as source: read its list(None) oldest first and put what it gives"
        )
    raise ForeignFileError(f"{path}: somebody else's SQLite file, left as it is. Name another one")


def _open_error(path: str, error: sqlite3.Error) -> Exception:
    """Why SQLite could not open it, from what can be seen of the path."""
    target = Path(path)
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        return ForeignFileError(f"{path}: not an SQLite file ({error}), left as it is. Name another one")
    if not target.exists():
        return OpenError(f"{path}: there is no such file")
    if not os.access(target, os.R_OK):
        return OpenError(f"{path}: this user may not read it")
    if not os.access(target, os.W_OK) or not os.access(target.absolute().parent, os.W_OK):
        return OpenError(f"{path}: the file or its folder is not writable; read_only=True opens it for reading")
    return storage_error(path, error)


def describe_misplaced(path: object) -> str | None:
    """What to write instead of something that is not a path, if it can be told."""
    if isinstance(path, sqlite3.Connection) or "Connection" in type(path).__name__ or "Engine" in type(path).__name__:
        return f'a path is needed, not a {type(path).__name__}: SqliteSaver("agent.db")'
    return None


def normalise_path(path: Any) -> str:
    """A path as text: `~` expanded, URLs and connections refused with the line to write instead."""
    hint = describe_misplaced(path)
    if hint is not None:
        raise InvalidRequest(hint)
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidRequest(f"a path is needed, not {type(path).__name__}: SqliteSaver(\"agent.db\")")
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise InvalidRequest(f"not a path: {text!r}")
    scheme = text.split(":", 1)[0].lower() if ":" in text else ""
    if scheme.startswith(("postgres", "mysql", "redis", "mongodb")):
        raise InvalidRequest(f"{text!r} is another database's address; this saver keeps one SQLite file")
    if scheme in ("file", "sqlite") or scheme.startswith("sqlite+"):
        plain = text.split("?", 1)[0].split(":", 1)[1]
        plain = plain[3:] if plain.startswith("///") else plain
        raise InvalidRequest(f'a plain path is needed, not a URL: SqliteSaver("{plain or "agent.db"}")')
    return text if text == MEMORY else os.path.expanduser(text)
