"""One thread as one file: to attach to a bug report, or to keep when the thread goes.

The file is zstd over JSON lines, so `zstd -dc --long=27 FILE` shows it. The first line says what it is, then come the
values, checkpoints, writes and effects of the thread, each a row as the database has it, bytes in base64; the last line
counts them.
Values that changed little are small here too: they lean on each other as in the database, and come back to the byte.

What the database has encrypted is not so here: to export it takes the key, and who must not read the values gets a redacted
export. Loading encrypts with the key of the saver, if it has one.

Nothing is decoded, neither on the way out nor on the way in, so no class is needed and nothing can run. Redacting is the
exception: it looks at each value's type and size, and leaves only those.
"""

from __future__ import annotations

import base64
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, get_type_hints

from langgraph_sqlite_ckpt import tables, verification
from langgraph_sqlite_ckpt.errors import InvalidRequest, OpenError, PortableFileError
from langgraph_sqlite_ckpt.file import normalise_path
from langgraph_sqlite_ckpt.operations import Statement
from langgraph_sqlite_ckpt.redaction import redacted_blob, redacted_checkpoint, redacted_effect, redacted_write
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.tables import BlobOfThread, CheckpointOfThread, EffectOfThread, WriteOfThread
from langgraph_sqlite_ckpt.zstandard import ZstdError, opened_to_read, opened_to_write

FORMAT = "langgraph-sqlite-ckpt thread"
VERSION = 1
R = TypeVar("R", BlobOfThread, CheckpointOfThread, WriteOfThread, EffectOfThread)

_KINDS: Mapping[str, type[Any]] = {
    "value": BlobOfThread,
    "checkpoint": CheckpointOfThread,
    "write": WriteOfThread,
    "effect": EffectOfThread,
}
_LONGEST_LINE = 1_400_000_000  # the largest row in base64


class Exported(NamedTuple):
    """What an export holds, or a load stored: the thread, under its name there, and counts. `values`: stored versions."""

    thread_id: str
    checkpoints: int
    values: int
    writes: int
    redacted: bool


# --- out ---


def export_thread(saver: SqliteSaver, thread_id: object, path: str | os.PathLike[str], *, redact: bool = False) -> Exported:
    """Write a thread, as it is at this moment, to a new file that only its owner can read.

    Args:
        saver: Its file is only read.
        thread_id: Which one.
        path: The file to make; one that is there is never written over.
        redact: Leave each value's type and size, and nothing of what it says. Names of threads, nodes and channels, ids,
            times and the course of the run stay. The file can be loaded and looked at; the thread cannot go on.

    Raises:
        InvalidRequest: There is no such thread, or the file is there already.
    """
    thread = str(thread_id)
    with _new_file(normalise_path(path)) as file, saver._shared.read(thread) as db:
        counts = _write(file, db, thread, redact=redact)
        if not counts["checkpoint"] + counts["write"]:
            raise InvalidRequest(f"there is no thread {thread!r} to export")
    return Exported(thread, counts["checkpoint"], counts["value"], counts["write"], redact)


def _write(file: IO[bytes], db: sqlite3.Connection, thread_id: str, *, redact: bool) -> Mapping[str, int]:
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    _line(file, {"format": FORMAT, "version": VERSION, "thread_id": thread_id, "redacted": redact, "exported_at": now})
    counts = dict.fromkeys(_KINDS, 0)
    for kind, rows in (
        ("value", _rows(tables.blobs_of_thread(db, thread_id), redacted_blob, db, redact=redact)),
        ("checkpoint", _rows(tables.checkpoints_of_thread(db, thread_id), redacted_checkpoint, db, redact=redact)),
        ("write", _rows(tables.writes_of_thread(db, thread_id), redacted_write, db, redact=redact)),
        ("effect", _rows(tables.effects_of_thread(db, thread_id), redacted_effect, db, redact=redact)),
    ):
        for row in rows:
            _line(file, {kind: row._asdict()})
            counts[kind] += 1
    _line(file, {"end": counts})
    return counts


def _rows(rows: Iterable[R], redacted: Callable[[sqlite3.Connection, R], R], db: Any, *, redact: bool) -> Iterator[R]:
    return map(partial(redacted, db), rows) if redact else iter(rows)


def _line(file: IO[bytes], content: Mapping[str, Any]) -> None:
    file.write(json.dumps(content, default=_bytes_as_json).encode() + b"\n")


def _bytes_as_json(value: Any) -> Any:
    return {"base64": base64.b64encode(value).decode()}


@contextmanager
def _new_file(path: str) -> Iterator[IO[bytes]]:
    """Taken away again where something goes wrong."""
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError as error:
        raise InvalidRequest(f"{path}: is there already; name another file") from error
    except OSError as error:
        raise OpenError(f"{path}: cannot be made: {error.strerror or error}") from error
    try:
        with os.fdopen(handle, "wb") as raw, opened_to_write(raw) as file:
            yield file
    except BaseException:
        Path(path).unlink()
        raise


# --- in ---


def load_thread(saver: SqliteSaver, path: str | os.PathLike[str], *, thread_id: object = None) -> Exported:
    """Store an exported thread, in one transaction, after looking at every row. Nothing in the file is run or decoded.

    Args:
        saver: Where it goes.
        path: A file of `export_thread`.
        thread_id: Another name for it. Default: the one that it had.

    Raises:
        PortableFileError: The file is not whole, or no such file.
        InvalidRequest: A thread of that name exists.
    """
    name = normalise_path(path)
    try:
        with Path(name).open("rb") as raw, opened_to_read(raw) as file:
            thread, redacted, rows = _read(file)
    except (ZstdError, EOFError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise PortableFileError(f"{name}: no whole export of a thread: {error}") from error
    except OSError as error:
        raise OpenError(f"{name}: cannot be read: {error.strerror or error}") from error
    target = thread if thread_id is None else str(thread_id)
    try:
        saver._shared.writer.write(Statement(lambda db: _store_sound(db, target, rows)))
    except verification.Unsound as error:
        raise PortableFileError(f"{name}: {error}") from error
    counts = {kind: sum(isinstance(row, made) for row in rows) for kind, made in _KINDS.items()}
    return Exported(target, counts["checkpoint"], counts["value"], counts["write"], redacted)


def _read(file: IO[bytes]) -> tuple[str, bool, list[Any]]:
    head = _parsed(file)
    if head.get("format") != FORMAT:
        raise ValueError("its first line does not say so")
    if head["version"] != VERSION:
        raise ValueError(f"its version is {head['version']!r}, this release knows {VERSION}; upgrade the package")
    if not isinstance(head["thread_id"], str):
        raise TypeError("its thread has no name")
    counts, rows = dict.fromkeys(_KINDS, 0), []
    while "end" not in (line := _parsed(file)):
        [(kind, fields)] = line.items()
        rows.append(_row(kind, fields))
        counts[kind] += 1
    if line["end"] != counts or file.read(1):
        raise ValueError("its last line does not count what is in it")
    return head["thread_id"], head["redacted"] is True, rows


def _parsed(file: IO[bytes]) -> dict[str, Any]:
    line = file.readline(_LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("it is cut off" if len(line) < _LONGEST_LINE else "a line is too long")
    parsed = json.loads(line, object_hook=_bytes_from_json)
    if not isinstance(parsed, dict):
        raise TypeError("a line is no object")
    return parsed


def _bytes_from_json(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"], validate=True) if value.keys() == {"base64"} else value


def _row(kind: str, fields: Mapping[str, Any]) -> Any:
    """A row whose fields have the types that the database's have."""
    made = _KINDS[kind]
    types = get_type_hints(made)
    if fields.keys() != types.keys():
        raise ValueError(f"a {kind} has other fields: {sorted(fields.keys() ^ types.keys())}")
    for name, value in fields.items():
        allowed = getattr(types[name], "__args__", (types[name],))
        if type(value) not in allowed:
            raise TypeError(f"the {name} of a {kind} is a {type(value).__name__}")
    if kind == "checkpoint":
        datetime.fromisoformat(fields["created_at"])
        if not all(isinstance(node, str) for node in json.loads(fields["next"])):
            raise TypeError("the next of a checkpoint is no list of names")
    return made(**fields)


def _store_sound(db: sqlite3.Connection, thread_id: str, rows: Iterable[Any]) -> None:
    try:
        _store(db, thread_id, rows)
    except sqlite3.IntegrityError as error:
        raise verification.Unsound(f"a row is in it twice ({error})") from error
    for namespace, _ in tables.namespaces_of(db, thread_id):
        verification.require_sound(db, namespace)


def _store(db: sqlite3.Connection, thread_id: str, rows: Iterable[Any]) -> None:
    if tables.namespaces_of(db, thread_id):
        raise InvalidRequest(f"thread {thread_id!r} exists already: delete it first, or load it under another name")
    blobs: dict[int | None, int | None] = {None: None}
    for row in rows:
        namespace = tables.intern_namespace(db, thread_id, row.checkpoint_ns)
        if isinstance(row, BlobOfThread):
            if row.base not in blobs:
                raise verification.Unsound("a value leans on one that is not there")
            blobs[row.id] = tables.insert_blob_of_thread(db, namespace, row, blobs[row.base])
        elif isinstance(row, CheckpointOfThread):
            tables.insert_checkpoint_of_thread(db, namespace, row)
        elif isinstance(row, WriteOfThread):
            tables.insert_write_of_thread(db, namespace, row)
        else:
            tables.insert_effect_of_thread(db, namespace, row)
