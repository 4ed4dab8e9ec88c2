"""What tasks wrote."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from langgraph_sqlite_ckpt.tables.opening import Opener, Sealer
from langgraph_sqlite_ckpt.tables.rows import WRITE, ChannelWrite, NewWrite, WriteRow


def writes_of(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Sequence[WriteRow]:
    """In the order in which LangGraph applies them (`writes_sort_key`)."""
    rows = db.execute(
        WRITE + " FROM write w WHERE w.namespace = ? AND w.checkpoint_id = ? ORDER BY w.task_path, w.task_id, w.idx",
        (namespace, checkpoint_id),
    )
    return list(map(Opener(db).write, rows))


def task_paths(db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str) -> Mapping[str, str]:
    """By task, of the writes of one checkpoint."""
    return dict(
        db.execute(
            "SELECT w.task_id, w.task_path FROM namespace n JOIN write w ON w.namespace = n.id"
            " WHERE n.thread_id = ? AND n.checkpoint_ns = ? AND w.checkpoint_id = ?",
            (thread_id, checkpoint_ns, checkpoint_id),
        )
    )


def counts_of_writes(db: sqlite3.Connection, namespace: int) -> Sequence[tuple[str, int]]:
    """Each checkpoint of a namespace with how many writes it has."""
    return db.execute(
        "SELECT c.checkpoint_id, (SELECT count(*) FROM write w WHERE w.namespace = c.namespace"
        " AND w.checkpoint_id = c.checkpoint_id) FROM checkpoint c WHERE c.namespace = ?",
        (namespace,),
    ).fetchall()


def writes_of_many(db: sqlite3.Connection, keys: Iterable[tuple[int, str]]) -> Sequence[WriteRow]:
    """The writes of (namespace, checkpoint id) pairs, in order within each."""
    rows = db.execute(
        WRITE + " FROM json_each(?) j CROSS JOIN write w ON w.namespace = json_extract(j.value, '$[0]')"
        " AND w.checkpoint_id = json_extract(j.value, '$[1]') ORDER BY w.task_path, w.task_id, w.idx",
        (json.dumps(list(keys)),),
    )
    return list(map(Opener(db).write, rows))


def writes_to_channels(
    db: sqlite3.Connection, namespace: int, checkpoint_ids: Sequence[str], channels: Sequence[str]
) -> Iterator[ChannelWrite]:
    """Last checkpoint first, in order within each."""
    opener = Opener(db)
    rows = db.execute(
        WRITE + ", j.key, k.key FROM json_each(?) j CROSS JOIN write w ON w.namespace = ? AND w.checkpoint_id = j.value"
        " CROSS JOIN json_each(?) k ON k.value = w.channel ORDER BY j.key DESC, w.task_path, w.task_id, w.idx",
        (json.dumps(checkpoint_ids), namespace, json.dumps(channels)),
    )
    for row in rows:
        write = opener.write(row[:-2])
        packed = write.type, write.codec, write.size, write.checksum, write.data
        checkpoint, channel = row[-2:]
        yield ChannelWrite(checkpoint, channel, write.task_id, *packed)


def keep_first_writes(db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]) -> None:
    """Only what is there already is skipped: whatever else SQLite refuses is an error."""
    first = "INSERT" + INTO_WRITE + " ON CONFLICT (namespace, checkpoint_id, task_id, idx) DO NOTHING"
    db.executemany(first, sealed_writes(db, namespace, checkpoint_id, new))


def replace_writes(db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]) -> None:
    """The new rows get new ids: they count as written now."""
    db.executemany("INSERT OR REPLACE" + INTO_WRITE, sealed_writes(db, namespace, checkpoint_id, new))


def sealed_writes(
    db: sqlite3.Connection, namespace: int, checkpoint_id: str, new: Iterable[NewWrite]
) -> Sequence[tuple[object, ...]]:
    new = list(new)
    if not new:
        return ()
    sealer = Sealer.of(db, namespace)
    return [(namespace, checkpoint_id, *sealer.write(checkpoint_id, write), sealer.key_id) for write in new]


INTO_WRITE = (
    " INTO write (namespace, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum, data, key_id)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class ChangedWrite(NamedTuple):
    """A stored write under other names, or with another value; its place among the others is kept."""

    id: int
    task_id: str
    task_path: str
    channel: str
    type: str
    codec: int
    size: int
    checksum: int
    data: bytes


def change_writes(db: sqlite3.Connection, changed: Sequence[ChangedWrite]) -> None:
    """First out of each other's way: two tasks may swap their ids."""
    db.executemany("UPDATE write SET task_id = 'changing ' || id WHERE id = ?", [(write.id,) for write in changed])
    for write in changed:
        namespace, checkpoint_id, idx = db.execute(
            "SELECT namespace, checkpoint_id, idx FROM write WHERE id = ?", (write.id,)
        ).fetchone()
        sealer = Sealer.of(db, namespace)
        new = sealer.write(checkpoint_id, NewWrite(write.task_id, idx, *write[2:]))
        db.execute(
            "UPDATE write SET task_id = ?, task_path = ?, channel = ?, type = ?, codec = ?, size = ?, checksum = ?,"
            " data = ?, key_id = ? WHERE id = ?",
            (new.task_id, *new[2:], sealer.key_id, write.id),
        )


def delete_late_writes(db: sqlite3.Connection, namespaces: Iterable[int], oldest: str) -> None:
    """Those whose checkpoint is gone: it is not there, and older than one that is, so it is not still to come.

    Only ids that are ordered by time (UUIDs of version 6, LangGraph's own) can tell.
    """
    db.execute(
        "DELETE FROM write WHERE namespace IN (SELECT value FROM json_each(:namespaces))"
        " AND checkpoint_id < :oldest AND checkpoint_id GLOB :by_time AND :oldest GLOB :by_time AND NOT EXISTS (SELECT 1"
        " FROM checkpoint c WHERE c.namespace = write.namespace AND c.checkpoint_id = write.checkpoint_id)",
        {"namespaces": json.dumps(list(namespaces)), "oldest": oldest, "by_time": "????????-????-6???-????-????????????"},
    )


def copy_writes(db: sqlite3.Connection, source: int, target: int) -> None:
    db.execute(
        "INSERT INTO write (namespace, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum,"
        " key_id, data) SELECT ?, checkpoint_id, task_id, idx, task_path, channel, type, codec, size, checksum, key_id,"
        " data FROM write WHERE namespace = ? ORDER BY id",
        (target, source),
    )
