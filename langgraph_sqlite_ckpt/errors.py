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
    │   └── KeyNeeded            nobody can say: they are encrypted with another key, or not at all
    ├── MigrationError           a migration could not bring a state up to date: names thread, checkpoint and function
    ├── NewerStateError          a state has been through more migrations than this program has
    ├── ThreadBusy               somebody else has a claim on the thread
    │   └── EffectRunning        an effect of `once` is being called right now
    ├── EffectInDoubt            an effect of `once` was begun, and nobody knows whether it happened
    ├── EffectNotDone            raise it in an effect of `once`: surely nothing happened
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


class KeyNeeded(DamagedError):
    """What is stored cannot be read with the keys that were given. It is as it was; with the right one it reads.

    `key_id` names the key that it takes; None: it is not encrypted, and only what is encrypted is taken.
    """

    def __init__(self, place: Place, cause: object, key_id: int | None) -> None:
        super().__init__(place, cause)
        self.args = (place, self.cause, key_id)
        self.key_id = key_id

    def __str__(self) -> str:
        return f"cannot read a row ({self.place}): {self.cause}"


class MigrationError(_Placed):
    """A migration failed on a stored state, or returned something else than one. What is stored is untouched."""

    def __str__(self) -> str:
        return f"cannot bring a state up to date ({self.place}): {self.cause}"


class NewerStateError(CheckpointError):
    """A newer program, with a longer list of migrations, wrote the state. It is left as it is."""


class ThreadBusy(CheckpointError):
    """Somebody else runs this thread under a claim (or took over what this saver had claimed)."""


class EffectRunning(ThreadBusy):
    """The effect is being called right now, by another process or another thread of this one. It was not called again."""


class EffectInDoubt(CheckpointError):
    """An effect was begun, and nobody knows whether it happened. It was not called again.

    Attributes:
        place: Its thread, namespace and checkpoint.
        node, name: Where it was called, and its name there.
        key: The idempotency key that it was called with: ask the service, then `saver.resolve(key, happened=...)`.
        since: When it was begun.
        cause: What is known of its end.
    """

    def __init__(self, place: Place, node: str, name: str, key: str, since: str, cause: str) -> None:
        super().__init__(place, node, name, key, since, cause)
        self.place, self.node, self.name, self.key, self.since, self.cause = place, node, name, key, since, cause

    def __str__(self) -> str:
        return (
            f"whether effect {self.name!r} of node {self.node!r} happened is not known ({self.place}; key {self.key}; "
            f"begun {self.since}; {self.cause}). Find out, then say so: saver.resolve({self.key!r}, happened=True, "
            f"result=...), or happened=False to have it called again. saver.effects(status='in_doubt') lists all of these"
        )


class EffectNotDone(CheckpointError):
    """For you to raise in an effect of `once`, where surely nothing happened: it may then be called again."""


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
    """No space left on the disk. The thread can be resumed once there is some.

    (To SQLite a quota or a limit on file sizes looks like a disk that failed: a plain `StorageError`, as resumable.)
    """


_BUSY, _LOCKED, _READONLY, _IOERR, _FULL, _PROTOCOL = 5, 6, 8, 10, 13, 15

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
    _IOERR: (
        StorageError,
        "the disk failed, or a quota or file-size limit was reached: see the system's log, and resume the thread then",
    ),
    _FULL: (DiskFullError, "no space left for it: free some and resume the thread"),
}
_KINDS[_LOCKED] = _KINDS[_PROTOCOL] = _KINDS[_BUSY]  # the last: so many come and go that the -wal's locks could not be had


def is_busy(error: sqlite3.Error, *, unsure: bool = True) -> bool:
    """Whether somebody else holds the lock; on Python 3.10, which does not tell, `unsure`."""
    return getattr(error, "sqlite_errorcode", _BUSY if unsure else 0) & 0xFF in (_BUSY, _LOCKED, _PROTOCOL)


def storage_error(path: str, error: sqlite3.Error) -> StorageError:
    """SQLite's error as ours, told apart by its result code (never by its text).

    Python 3.10 does not pass the code on, so there it is a plain `StorageError`.
    """
    code: int | None = getattr(error, "sqlite_errorcode", None)
    kind, advice = _KINDS.get(code & 0xFF, (StorageError, "")) if code is not None else (StorageError, "")
    return kind(f"{path}: {error}" + (f"; {advice}" if advice else ""))
