"""A file as a whole: copied while others use it, or held alone so that another can take its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from langgraph_sqlite_ckpt.errors import BusyError, OpenError, StorageError, is_busy, storage_error
from langgraph_sqlite_ckpt.file import open_error, require_file, require_unlocked, starts_like_sqlite, steps_done, uri_of

Progress = Callable[[int, int], object]
"""Called with what is done and what there is to do, in the same unit."""

_PAGES_AT_ONCE = 256  # 1 MB between two reports


def nobody(_done: int, _total: int) -> None:
    """Is told."""


def copy_file(source: str, target: str) -> None:
    """A file that is no saver's now, of this or an older release, into the empty file `target`."""
    require_file(source)
    try:
        with closing(sqlite3.connect(uri_of(source, read_only=True), uri=True, isolation_level=None)) as db:
            if not steps_done(db, source):
                raise OpenError(f"{source}: there is nothing in it")
            db.execute("BEGIN")
            copy(db, source, target, nobody)
    except sqlite3.Error as error:
        raise open_error(source, error) from error


def copy(db: sqlite3.Connection, source: str, target: str, tell: Progress) -> None:
    """In the read transaction of `db`: without one, SQLite would begin again whenever somebody writes."""
    page_size = db.execute("PRAGMA page_size").fetchone()[0]
    db.execute("PRAGMA schema_version").fetchone()  # the first read: from here on, all is of one moment
    try:
        with closing(sqlite3.connect(uri_of(target), uri=True, isolation_level=None)) as made:
            made.execute("PRAGMA synchronous = OFF")  # who wants it on disk syncs the whole file once
            db.backup(
                made,
                pages=_PAGES_AT_ONCE,
                progress=lambda _, left, total: tell((total - left) * page_size, total * page_size),
            )
            made.execute("PRAGMA journal_mode = DELETE")  # whole in one file, and readable without sidecars
    except sqlite3.Error as error:
        raise storage_error(f"{source}, copied to {target}", error) from error


@contextmanager
def alone(path: str) -> Iterator[None]:
    """Nobody else has the file open meanwhile, and all of its -wal is in it.

    Raises:
        BusyError: Somebody has it open.
        ForeignFileError, NewerFileError: It is not ours.
    """
    with closing(sqlite3.connect(uri_of(path), uri=True, isolation_level=None, timeout=0)) as db:
        try:
            steps_done(db, path)
            db.execute("PRAGMA journal_mode = DELETE")  # refused where there is any other connection in WAL mode
            db.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise _in_use(path, error) from error
        except sqlite3.DatabaseError as error:
            if not starts_like_sqlite(Path(path)):
                raise open_error(path, error) from error
            require_unlocked(path)
        yield


def _in_use(path: str, error: sqlite3.Error) -> StorageError:
    if is_busy(error):
        return BusyError(f"{path}: somebody has it open; close all savers and programs that use it first")
    return storage_error(path, error)
