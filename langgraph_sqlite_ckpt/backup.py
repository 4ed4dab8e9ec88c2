"""A copy of a file while it is used, and a copy put in the place of a file.

Copying an SQLite file by hand goes wrong in two ways: the copy lacks what is still in the -wal, and a file that is copied
back meets the -wal of the one before it, whose content SQLite then takes for the newer. So a copy goes through SQLite, and
takes a file's place only when nobody has that one open and its sidecars are gone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from langgraph_sqlite_ckpt.database import Database, is_open_here
from langgraph_sqlite_ckpt.errors import BusyError, CheckpointError, InvalidRequest, OpenError, StorageError
from langgraph_sqlite_ckpt.file import MEMORY, make_file, normalise_path, require_file
from langgraph_sqlite_ckpt.verification import KEY, verify
from langgraph_sqlite_ckpt.wholefile import Progress, alone, copy_file, nobody

_SIDECARS = ("-wal", "-shm", "-journal")


def backup(database: Database, path: str | os.PathLike[str], progress: Progress | None) -> int:
    """A copy of one moment, at `path` once it is whole and on disk. Gives its bytes."""
    target = _other_file(path, database.path)
    with _draft_of(target) as draft:
        database.copy_to(draft, progress or nobody)
        size = Path(draft).stat().st_size
        _put_in_place(draft, target)
    return size


def restore(backup: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Put a backup (any file of this package) in the place of `path`, or where nothing is.

    A function, not a method: no saver may have the file open meanwhile, in any process. Whoever opens it next sees what
    the backup holds and nothing else: a -wal or -journal that a former file left at `path` is removed. The backup stays as
    it is; one of an older release is brought up to date on the way. A kill or a power cut leaves the former file or the
    restored one. Blocking: on an event loop, `await asyncio.to_thread(restore, backup, path)`.

    Raises:
        BusyError: Somebody has `path` open.
        OpenError: The backup is not sound, or the path cannot be opened (`ForeignFileError`, `NewerFileError`: one of the
            two files is not of this package, or of a newer release of it). `path` was not changed.
        StorageError: There is no room, say. `path` was not changed.
    """
    source = normalise_path(backup)
    target = _other_file(path, source)
    if source == MEMORY:
        raise InvalidRequest("a private memory cannot be restored from: name a file")
    with _draft_of(target) as draft:
        copy_file(source, draft)
        _require_sound(draft, source)
        _put_in_place(draft, target)


def _other_file(path: str | os.PathLike[str], known: str) -> str:
    target = normalise_path(path)
    if target == MEMORY:
        raise InvalidRequest("a backup is a file: name one")
    require_file(target)
    with suppress(OSError):  # one of them is not there
        if Path(target).samefile(known):
            raise InvalidRequest(f"{target}: the file itself; name another one")
    if target in (known, *(known + sidecar for sidecar in _SIDECARS)):
        raise InvalidRequest(f"{target}: belongs to {known}; name another one")
    return target


@contextmanager
def _draft_of(target: str) -> Iterator[str]:
    """A new file beside the target, which only its owner can read. It is gone in the end, under this name."""
    draft = f"{target}.{uuid4().hex}.part"
    make_file(draft)
    try:
        yield draft
    finally:
        for name in (draft, *(draft + sidecar for sidecar in _SIDECARS)):
            Path(name).unlink(missing_ok=True)


def _require_sound(draft: str, source: str) -> None:
    try:
        with closing(Database(draft, journal_mode="delete", synchronous="normal")) as database:  # brings it up to date
            problem = next((each for each in verify(database.read) if each.kind != KEY), None)
    except CheckpointError as error:
        raise OpenError(f"{source}: cannot be restored ({error})") from error
    if problem is not None:
        raise OpenError(
            f"{source}: damaged ({problem.kind}: {problem.detail}), nothing was restored. Restore another backup, or open"
            " this one with a saver, see what verify() says, and delete the threads that it names"
        )


def _put_in_place(draft: str, target: str) -> None:
    """Step by step on disk: a sidecar of the former file must never be seen beside the new one, even after a power cut."""
    try:
        _sync(draft)
        with _held_alone(target):
            for sidecar in _SIDECARS:
                Path(target + sidecar).unlink(missing_ok=True)
            _sync(str(Path(target).parent))
            Path(draft).replace(target)
        _sync(str(Path(target).parent))
    except OSError as error:
        raise StorageError(f"{target}: {error.strerror or error}") from error


@contextmanager
def _held_alone(target: str) -> Iterator[None]:
    if not Path(target).exists():
        yield
        return
    if is_open_here(target):
        raise BusyError(f"{target}: a saver of this process has it open; close it first")
    with alone(target):
        yield


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
