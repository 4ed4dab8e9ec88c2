"""Threads out of the official savers' SQLite files, Python's and JavaScript's, read directly.

Values move as the bytes that they are, so no class of the user's is needed; JSON, which LangGraph.js writes, becomes what
Python would have stored. Each checkpoint goes in with its writes, in one transaction, and is read back and compared.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base import ChannelVersions, CheckpointTuple
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import INTERRUPT, TASKS

from langgraph_sqlite_ckpt import foreign, tables
from langgraph_sqlite_ckpt.database import open_to_read
from langgraph_sqlite_ckpt.errors import CheckpointError, CopyError, ForeignFileError, InvalidRequest, OpenError, Place
from langgraph_sqlite_ckpt.file import normalise_path
from langgraph_sqlite_ckpt.foreign import Listed, StoredWrite
from langgraph_sqlite_ckpt.opaque import Opaque, OpaqueSerializer
from langgraph_sqlite_ckpt.reading import configuration
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.serde import SafeSerializer
from langgraph_sqlite_ckpt.transfer import Copied, Namespaces, differences, parents_first, tasks_of, with_serde
from langgraph_sqlite_ckpt.wholefile import Progress


def import_file(
    path: str | os.PathLike[str],
    saver: SqliteSaver,
    *,
    thread_ids: Iterable[object] | None = None,
    progress: Progress | None = None,
) -> Copied:
    """Import threads from a file of langgraph-checkpoint-sqlite or of LangGraph.js. The file is never changed.

    Ids, parents, namespaces, metadata, pending writes and the order of commits are kept; threads can be resumed. What is
    there already is skipped, so an import that was cut short is simply started again. `SqliteSaver(path,
    synchronous="normal")` is the faster target, and safe for that reason.

    Args:
        path: Their file, also one in use.
        saver: Where the threads go. A serde of its own is used for reading, too.
        thread_ids: Which ones. Default: all.
        progress: Called with the checkpoints done and those to do.

    Raises:
        ForeignFileError: It is not such a file.
        CopyError: A row cannot be read or stored; names the place. What was imported before it stays.
        InvalidRequest: There is no such thread.
    """
    name = normalise_path(path)
    before = _state(name)
    with closing(open_to_read(name)) as db:
        try:
            if not foreign.is_of_official_saver(db):
                raise ForeignFileError(f"{name}: no file of langgraph-checkpoint-sqlite: its tables are not there")
            copied = _Import(db, saver, progress).run(_chosen(foreign.checkpoints(db), thread_ids))
        except sqlite3.Error as error:
            raise OpenError(f"{name}: cannot be read: {error}") from error
    if not before.in_use and _state(name) != before:
        raise OpenError(f"{name}: somebody began to write to it meanwhile; import again, what is there is skipped")
    return copied


class _State(NamedTuple):
    in_use: bool
    size: int
    changed: int


def _state(path: str) -> _State:
    """A file that nobody uses is read as one that does not change: whether that held can be seen in the end."""
    try:
        found = Path(path).stat()
    except OSError:  # opening it says why
        return _State(in_use=False, size=0, changed=0)
    return _State(Path(path + "-wal").exists(), found.st_size, found.st_mtime_ns)


def _chosen(listed: Sequence[Listed], thread_ids: Iterable[object] | None) -> Sequence[Listed]:
    if thread_ids is None:
        return listed
    if isinstance(thread_ids, (str, bytes)):
        raise InvalidRequest(f"thread_ids is a list of ids, not one: [{thread_ids!r}]")
    wanted = set(map(str, thread_ids))
    unknown = wanted - {row.thread_id for row in listed}
    if unknown:
        raise InvalidRequest(f"there is no thread {min(unknown)!r} in that file")
    return [row for row in listed if row.thread_id in wanted]


class _Import:
    """One run over a file."""

    def __init__(self, db: sqlite3.Connection, saver: SqliteSaver, progress: Progress | None) -> None:
        self._db = db
        own = type(saver.serde) is not SafeSerializer
        self._serde: SerializerProtocol = saver.serde if own else OpaqueSerializer()
        self._saver = saver if own else with_serde(saver, OpaqueSerializer())
        self._report = progress or (lambda _done, _total: None)
        self._begin("")

    def _begin(self, thread_id: str) -> None:
        self._thread_id = thread_id
        self._present = self._in_target(thread_id) if thread_id else {}
        self._namespaces = Namespaces()
        self._versions = _Versions()

    def run(self, listed: Sequence[Listed]) -> Copied:
        ordered = parents_first(listed, lambda row: (row.thread_id, row.checkpoint_ns, row.checkpoint_id), _parent_key)
        copied = Copied(len({row.thread_id for row in listed}), 0, 0, 0, [])
        for done, row in enumerate(ordered, 1):
            if row.thread_id != self._thread_id:
                self._begin(row.thread_id)
            copied = copied.plus(self._import(row))
            self._report(done, len(ordered))
        return copied

    def _in_target(self, thread_id: str) -> Mapping[tuple[str, str], int]:
        """How many writes each checkpoint has there."""
        with self._saver._shared.read() as db:
            return {
                (checkpoint_ns, checkpoint_id): count
                for namespace, checkpoint_ns in tables.namespaces_of(db, thread_id)
                for checkpoint_id, count in tables.counts_of_writes(db, namespace)
            }

    def _import(self, row: Listed) -> Copied:
        place = Place(row.thread_id, row.checkpoint_ns, row.checkpoint_id)
        try:
            stored = foreign.writes(self._db, row)
            found = self._found(row, stored, place)
            new = self._namespaces.new(place.checkpoint_ns, found.checkpoint)
            if self._present.get((row.checkpoint_ns, row.checkpoint_id), -1) >= len(stored):
                return Copied(0, 0, 0, 1, ())
            self._put(found, new, place, stored)
            back = self._saver.get_tuple(configuration(place, row.checkpoint_id))
        except (CheckpointError, sqlite3.Error):
            raise
        except Exception as error:  # whatever the bytes make a serializer say
            raise CopyError(place, error) from error
        return Copied(0, 1, len(stored), 0, list(differences(found, back, place, self._namespaces)))

    def _found(self, row: Listed, stored: Sequence[StoredWrite], place: Place) -> CheckpointTuple:
        content = foreign.checkpoint(self._db, row.row)
        checkpoint = self._load(content.type, content.checkpoint)
        if not isinstance(checkpoint, dict):
            raise CopyError(place, f"its checkpoint is {content.type!r}: if it is encrypted, pass a saver with that serde")
        values = {channel: _as_python(channel, value) for channel, value in checkpoint["channel_values"].items()}
        checkpoint = {**checkpoint, "id": row.checkpoint_id, "channel_values": values}
        return CheckpointTuple(
            configuration(place, row.checkpoint_id),
            self._versions.of(row, checkpoint),  # type: ignore[arg-type]  # the keys that LangGraph stored
            json.loads(content.metadata) if content.metadata else {},
            configuration(place, row.parent_id) if row.parent_id else None,
            [self._write(write) for write in sorted(stored, key=lambda w: (w.task_path, w.task_id, w.idx))],
        )

    def _write(self, write: StoredWrite) -> tuple[str, str, Any]:
        return write.task_id, write.channel, _as_python(write.channel, self._load(write.type, write.value))

    def _load(self, kind: str | None, raw: bytes | str | None) -> Any:
        data = raw.encode(errors="surrogateescape") if isinstance(raw, str) else raw or b""
        return self._serde.loads_typed((kind or "json", data))

    def _put(self, found: CheckpointTuple, new: ChannelVersions, place: Place, stored: Sequence[StoredWrite]) -> None:
        here = configuration(place, place.checkpoint_id)
        paths = {write.task_id: write.task_path for write in stored}
        last_written = list(dict.fromkeys(write.task_id for write in reversed(stored)))[::-1]
        writes = tasks_of(found.pending_writes or (), paths, last_written)
        put, _ = self._saver._put(found.parent_config or configuration(place, None), found.checkpoint, found.metadata, new)
        operations = [self._saver._put_writes(here, task.writes, task.task_id, task.task_path) for task in writes]
        for ticket in self._saver._shared.writer.write_all([*operations, put]):
            ticket.result()


def _parent_key(row: Listed) -> tuple[str, str, str | None]:
    return row.thread_id, row.checkpoint_ns, row.parent_id


def _as_python(channel: str, value: Any) -> Any:
    """What LangGraph.js writes as plain objects where Python has types of its own."""
    if channel == INTERRUPT and isinstance(value, list):
        return [_interrupt(item) if isinstance(item, dict) else item for item in value]
    if channel == TASKS:
        return [_send(item) for item in value] if isinstance(value, list) else _send(value)
    return value


def _interrupt(item: Mapping[str, Any]) -> Opaque:
    fields = {"value": item.get("value"), "id": item.get("id") or "", "response_schema": None}
    return Opaque.of(2, "langgraph.types", "Interrupt", fields)


def _send(item: Any) -> Any:
    return jsonplus._send_from_args((item["node"], item.get("args"))) if isinstance(item, dict) and "node" in item else item


# --- versions ---


class _Versions:
    """Versions of a thread as text, in the official savers' format, where the file has numbers.

    Numbers are not unique across forks: two branches have a third version of a channel each. A saver that keeps each
    version's value once, as ours, needs to tell them apart, all the way down each branch.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, str, int], list[bytes]] = {}
        self._lines: dict[tuple[str, str | None], dict[tuple[str, int], int]] = {}

    def of(self, row: Listed, checkpoint: dict[str, Any]) -> dict[str, Any]:
        if all(isinstance(version, str) for version in checkpoint["channel_versions"].values()):
            return checkpoint
        line = dict(self._lines.get((row.checkpoint_ns, row.parent_id), {}))
        values = checkpoint["channel_values"]
        for channel, version in checkpoint["channel_versions"].items():
            if channel in values:
                line[channel, version] = self._variant(row.checkpoint_ns, channel, version, values[channel])
        self._lines[row.checkpoint_ns, row.checkpoint_id] = {key: variant for key, variant in line.items() if variant}
        return {
            **checkpoint,
            "channel_versions": _as_text(checkpoint["channel_versions"], line),
            "versions_seen": {node: _as_text(seen, line) for node, seen in checkpoint["versions_seen"].items()},
        }

    def _variant(self, checkpoint_ns: str, channel: str, version: int, value: Any) -> int:
        """Which of the values of this version it is."""
        known = self._values.setdefault((checkpoint_ns, channel, version), [])
        packed = OpaqueSerializer().dumps_typed(value)[1]
        if packed not in known:
            known.append(packed)
        return known.index(packed)


def _as_text(versions: Mapping[str, Any], line: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    return {
        channel: version if isinstance(version, str) else f"{int(version):032}.{line.get((channel, version), 0):016}"
        for channel, version in versions.items()
    }
