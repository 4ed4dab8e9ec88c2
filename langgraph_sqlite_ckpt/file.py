"""The file itself: its path, its marks, and why it cannot be opened."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from langgraph_sqlite_ckpt.errors import (
    BusyError,
    ForeignFileError,
    InvalidRequest,
    NewerFileError,
    OpenError,
    storage_error,
)
from langgraph_sqlite_ckpt.schema import APPLICATION_ID, STEPS

MEMORY = ":memory:"
_LOCKS = 0x40000000  # where in a file SQLite's connections lock bytes, and how many
_LOCK_BYTES = 512


class Identity(NamedTuple):
    """Which file a path stands for."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: str) -> Identity:
        status = os.stat(path)  # noqa: PTH116  # at every use: a Path would double what it costs
        return cls(status.st_dev, status.st_ino)


def identify(path: str) -> Identity:
    try:
        return Identity.of(path)
    except FileNotFoundError as error:
        raise OpenError(f"{path}: there is no such file") from error
    except OSError as error:
        raise OpenError(f"{path}: cannot be opened: {error.strerror or error}") from error


def require_same(path: str, known: Identity) -> None:
    try:
        same = Identity.of(path) == known
    except OSError as error:
        raise OpenError(
            f"{path}: gone while this saver had it open ({error.strerror}). Put it back or make a new saver"
        ) from error
    if not same:
        raise OpenError(f"{path}: another file has taken its place since this saver opened it. Make a new saver")


def require_unlocked(path: str) -> None:
    """By the locks that SQLite's connections hold: for a file so damaged that SQLite itself cannot tell."""
    with Path(path).open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES, _LOCKS)
        except OSError as error:
            raise BusyError(f"{path}: somebody has it open; close all savers and programs that use it first") from error


def make_file(path: str) -> None:
    """The file with its folders, if it is not there: only its owner can read it. SQLite's sidecars follow its mode."""
    folder = Path(path).absolute().parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OpenError(f"{path}: its folder {folder} cannot be made: {error.strerror or error}") from error
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        pass
    except OSError as error:
        raise OpenError(f"{path}: cannot be made: {error.strerror or error}") from error


def uri_of(path: str, *, read_only: bool = False) -> str:
    uri = Path(path).absolute().as_uri()
    if not read_only:
        return uri + "?mode=rw"
    if not Path(path + "-wal").exists() and not os.access(Path(path).absolute().parent, os.W_OK):
        return uri + "?immutable=1"  # nobody can be writing there, and SQLite could not make its -shm
    return uri + "?mode=ro"


def is_empty(path: str) -> bool:
    return path == MEMORY or Path(path).stat().st_size == 0


def require_file(path: str) -> None:
    if Path(path).is_dir():
        raise OpenError(f"{path}: is a folder; name a file in it, for example {path.rstrip('/')}/agent.db")


def steps_done(db: sqlite3.Connection, path: str) -> int:
    """How far the file is built, seen in one statement: others may be building it. Raises where it is not ours."""
    application, done, names = db.execute(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),"
        " (SELECT json_group_array(name) FROM sqlite_master WHERE type = 'table')"
    ).fetchone()
    if application == APPLICATION_ID:
        if done > len(STEPS):
            raise NewerFileError(f"{path}: format {done}, this release knows up to {len(STEPS)}; upgrade the package")
        return int(done)
    tables = set(json.loads(names))
    if not tables and application == 0:
        return 0
    if {"checkpoints", "writes"} <= tables:
        raise ForeignFileError(
            f"{path}: a file of langgraph-checkpoint-sqlite, left as it is. Move its threads into a new file: "
            f"langgraph-sqlite-ckpt import {shlex.quote(path)} agent.db (or langgraph_sqlite_ckpt.import_file)"
        )
    raise ForeignFileError(f"{path}: somebody else's SQLite file, left as it is. Name another one")


def open_error(path: str, error: sqlite3.Error) -> Exception:
    """Why SQLite could not open it, from what can be seen of the path."""
    target = Path(path)
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
        if starts_like_sqlite(target):
            return OpenError(f"{path}: damaged ({error}), left as it is. Restore it from a backup")
        return ForeignFileError(f"{path}: not an SQLite file ({error}), left as it is. Name another one")
    if not target.exists():
        return OpenError(f"{path}: there is no such file")
    if not os.access(target, os.R_OK):
        return OpenError(f"{path}: this user may not read it")
    if not os.access(target, os.W_OK) or not os.access(target.absolute().parent, os.W_OK):
        return OpenError(f"{path}: the file or its folder is not writable; read_only=True opens it for reading")
    return storage_error(path, error)


def is_wal(path: str) -> bool:
    """Whether the header says so: the read version is 2."""
    try:
        with Path(path).open("rb") as file:
            return file.read(20)[19:] == b"\2"
    except OSError:
        return False


def starts_like_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def _what_to_write(path: object) -> str | None:
    """What to write instead of something that is not a path, if it can be told."""
    if isinstance(path, sqlite3.Connection) or "Connection" in type(path).__name__ or "Engine" in type(path).__name__:
        return f'a path is needed, not a {type(path).__name__}: SqliteSaver("agent.db")'
    return None


def normalise_path(path: Any) -> str:
    """A path as text: `~` expanded, URLs and connections refused with the line to write instead."""
    hint = _what_to_write(path)
    if hint is not None:
        raise InvalidRequest(hint)
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidRequest(f'a path is needed, not {type(path).__name__}: SqliteSaver("agent.db")')
    text = os.fsdecode(path)
    if not text or "\0" in text or not _encodes(text):
        raise InvalidRequest(f"not a path: {text!r}")
    scheme = text.split(":", 1)[0].lower() if ":" in text else ""
    if scheme.startswith(("postgres", "mysql", "redis", "mongodb")):
        raise InvalidRequest(f"{text!r} is another database's address; this saver keeps one SQLite file")
    if scheme in ("file", "sqlite") or scheme.startswith("sqlite+"):
        plain = text.split("?", 1)[0].split(":", 1)[1]
        plain = plain.removeprefix("//")
        plain = plain if scheme == "file" else plain.removeprefix("/")
        raise InvalidRequest(f'a plain path is needed, not a URL: SqliteSaver("{plain or "agent.db"}")')
    try:
        return text if text == MEMORY else str(Path(text).expanduser().absolute())
    except RuntimeError as error:
        raise OpenError(f"{text}: {error}") from error


def _encodes(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True
