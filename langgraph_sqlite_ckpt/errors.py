"""Every error of this package, drawn once.

    CheckpointError
    ├── ClosedError              the saver was closed
    ├── InvalidRequest           an argument makes no sense (also a ValueError)
    ├── OpenError                the path cannot be opened: which, and why
    │   ├── ForeignFileError     somebody else's file
    │   └── NewerFileError       written by a newer release of this package
    ├── EncodeError              a value cannot be stored: names thread, channel and type
    ├── DecodeError              a stored value cannot be rebuilt: names thread, channel and type
    ├── DamagedError             stored bytes are not what was written
    ├── PortableFileError        a file to load is no whole export of a thread
    ├── CopyError                a thread cannot be copied to another saver: names the place
    └── StorageError             SQLite could not do it; its own error is the cause
        ├── BusyError            another connection held the write lock too long
        ├── ReadOnlyError        the file, its folder or this saver is read-only
        └── DiskFullError        no space left; nothing was half written

A call that raises one of these has changed nothing, and the saver goes on working.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple


class CheckpointError(Exception):
    """Base of everything this package raises on purpose."""


class ClosedError(CheckpointError):
    """The saver was closed; make a new one on the same path."""


class InvalidRequest(CheckpointError, ValueError):
    """An argument makes no sense. Nothing was read or written."""


class OpenError(CheckpointError):
    """The path cannot be opened; the message says which path and why."""


class ForeignFileError(OpenError):
    """The file is not one of ours. It was not changed."""


class NewerFileError(OpenError):
    """A newer release of this package wrote the file. It was not changed."""


class Place(NamedTuple):
    """Where in the file a value lives, for people to read."""

    thread_id: str
    checkpoint_ns: str = ""
    checkpoint_id: str | None = None
    channel: str | None = None

    def __str__(self) -> str:
        parts = [f"thread {self.thread_id!r}"]
        if self.checkpoint_ns:
            parts.append(f"namespace {self.checkpoint_ns!r}")
        if self.checkpoint_id is not None:
            parts.append(f"checkpoint {self.checkpoint_id!r}")
        if self.channel is not None:
            parts.append(f"channel {self.channel!r}")
        return ", ".join(parts)


class _Placed(CheckpointError):
    """An error that knows its place. Its arguments rebuild it, so that it can cross processes."""

    def __init__(self, place: Place, cause: object) -> None:
        super().__init__(place, str(cause))
        self.place = place
        self.cause = str(cause)


class EncodeError(_Placed):
    """A value cannot be stored. The whole operation was refused, nothing of it is in the file."""

    def __str__(self) -> str:
        return f"cannot store a value ({self.place}): {self.cause}"


class DecodeError(_Placed):
    """A stored value cannot be rebuilt in this process. The stored bytes are untouched."""

    def __str__(self) -> str:
        return f"cannot rebuild a stored value ({self.place}): {self.cause}"


class DamagedError(_Placed):
    """Stored bytes are not what was written: the file was damaged or edited outside this package."""

    def __str__(self) -> str:
        return f"damaged row ({self.place}): {self.cause}. Restore the file from a backup; other rows still read"


class CopyError(_Placed):
    """One of two savers refused while a thread was copied. What was copied before it stays: start again, it goes on."""

    def __str__(self) -> str:
        return f"cannot copy ({self.place}): {self.cause}"


class PortableFileError(CheckpointError):
    """A file that was to be loaded is no whole export of a thread. Nothing of it was stored."""


class StorageError(CheckpointError):
    """SQLite could not do it (its own error is `__cause__`). The transaction was rolled back."""


class BusyError(StorageError):
    """Another connection held the write lock for longer than `busy_timeout`."""


class ReadOnlyError(StorageError):
    """The saver, the file or its folder is read-only."""


class DiskFullError(StorageError):
    """The disk, the quota or the file-size limit is full. The thread can be resumed once there is space."""


_BUSY, _LOCKED, _READONLY, _FULL = 5, 6, 8, 13

_KINDS: dict[int, tuple[type[StorageError], str]] = {
    _BUSY: (
        BusyError,
        (
            "another connection (a backup, a VACUUM, a database browser, another process) kept the write lock for longer "
            "than busy_timeout: end it, or pass a larger busy_timeout="
        ),
    ),
    _READONLY: (
        ReadOnlyError,
        "the file or its folder is read-only: fix its permissions, or open it with read_only=True",
    ),
    _FULL: (DiskFullError, "no space left for it (disk, quota or file-size limit): free some and resume the thread"),
}
_KINDS[_LOCKED] = _KINDS[_BUSY]


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock; on Python 3.10, which does not tell, whether that may be."""
    return getattr(error, "sqlite_errorcode", _BUSY) & 0xFF in (_BUSY, _LOCKED)


def storage_error(path: str, error: sqlite3.Error) -> StorageError:
    """SQLite's error as ours, told apart by its result code (never by its text).

    Python 3.10 does not pass the code on, so there it is a plain `StorageError`.
    """
    code: int | None = getattr(error, "sqlite_errorcode", None)
    kind, advice = _KINDS.get(code & 0xFF, (StorageError, "")) if code is not None else (StorageError, "")
    return kind(f"{path}: {error}" + (f"; {advice}" if advice else ""))
