"""The file itself: its path, its marks, and why it cannot be opened."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
from pathlib import Path
from typing import Any

from langgraph_sqlite_ckpt.errors import ForeignFileError, InvalidRequest, NewerFileError, OpenError, storage_error
from langgraph_sqlite_ckpt.schema import APPLICATION_ID, STEPS

MEMORY = ":memory:"


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
        if _starts_like_sqlite(target):
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


def _starts_like_sqlite(path: Path) -> bool:
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
