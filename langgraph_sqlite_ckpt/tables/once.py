"""What tasks did outside."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

from langgraph_sqlite_ckpt.tables.looking import effects_at
from langgraph_sqlite_ckpt.tables.opening import Opener
from langgraph_sqlite_ckpt.tables.resealing import reseal_effect
from langgraph_sqlite_ckpt.tables.rows import EFFECT, EffectHead, EffectResult, EffectRow, EffectTask, NewEffect


def namespace_with_checkpoint(
    db: sqlite3.Connection, thread_id: str, namespaces: Sequence[str], checkpoint_id: str
) -> int | None:
    """Which of these namespaces of the thread has the checkpoint."""
    row = db.execute(
        "SELECT n.id FROM json_each(?) j CROSS JOIN namespace n ON n.thread_id = ? AND n.checkpoint_ns = j.value"
        " CROSS JOIN checkpoint c ON c.namespace = n.id AND c.checkpoint_id = ?",
        (json.dumps(namespaces), thread_id, checkpoint_id),
    ).fetchone()
    return row[0] if row else None


def find_effect(db: sqlite3.Connection, namespace: int, checkpoint_id: str, task_id: str, named: str) -> EffectRow | None:
    row = db.execute(
        EFFECT + " WHERE e.namespace = ? AND e.checkpoint_id = ? AND e.task_id = ? AND e.name = ?",
        (namespace, checkpoint_id, task_id, named),
    ).fetchone()
    return Opener(db).effect(row) if row else None


def effect_of_key(db: sqlite3.Connection, key: str) -> EffectRow | None:
    row = db.execute(EFFECT + " WHERE e.key = ? ORDER BY e.id LIMIT 1", (key,)).fetchone()
    return Opener(db).effect(row) if row else None


def effects_of_checkpoint(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Sequence[EffectTask]:
    rows = db.execute(
        "SELECT id, task_id, node FROM effect WHERE namespace = ? AND checkpoint_id = ? ORDER BY id",
        (namespace, checkpoint_id),
    )
    return [EffectTask._make(row) for row in rows]


def change_effects(db: sqlite3.Connection, changed: Sequence[EffectTask]) -> None:
    """Their tasks are called otherwise now; first out of each other's way, as two may swap their names."""
    found = {row.id: row for row in effects_at(db, [effect.id for effect in changed])}
    db.executemany("UPDATE effect SET task_id = 'changing ' || id WHERE id = ?", [(effect.id,) for effect in changed])
    db.executemany("UPDATE effect SET task_id = ?, node = ? WHERE id = ?", [(e.task_id, e.node, e.id) for e in changed])
    for effect in changed:
        row = found[effect.id]._replace(task_id=effect.task_id)
        reseal_effect(db, (row.thread_id, row.checkpoint_ns), row)


def begin_effect(db: sqlite3.Connection, new: NewEffect) -> None:
    db.execute(
        "INSERT INTO effect (namespace, checkpoint_id, task_id, name, node, key, owner, call, started_at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        new,
    )


def begin_effect_again(db: sqlite3.Connection, key: str, owner: int, call: int, started_at: str) -> None:
    db.execute(
        "UPDATE effect SET owner = ?, call = ?, started_at = ?, finished_at = NULL, error = NULL WHERE key = ?",
        (owner, call, started_at, key),
    )


def finish_effect(db: sqlite3.Connection, key: str, call: int, result: EffectResult) -> None:
    """Nothing happens where the thread was deleted, or somebody else took over."""
    for row in _effects_being_called(db, key, call):
        _end_effect(db, row, None, result)


def doubt_effect(db: sqlite3.Connection, key: str, call: int, now: str, error: str) -> None:
    for row in _effects_being_called(db, key, call):
        reseal_effect(db, (row.thread_id, row.checkpoint_ns), row._replace(finished_at=now, error=error))


def _effects_being_called(db: sqlite3.Connection, key: str, call: int) -> Sequence[EffectRow]:
    """The entry, and those of a thread's copies."""
    rows = db.execute(EFFECT + " WHERE e.key = ? AND e.call = ? AND e.finished_at IS NULL ORDER BY e.id", (key, call))
    return list(map(Opener(db).effect, rows))


def _end_effect(db: sqlite3.Connection, row: EffectRow, error: str | None, result: EffectResult) -> None:
    ended = row._replace(error=error, **result._asdict())
    reseal_effect(db, (row.thread_id, row.checkpoint_ns), ended)


def withdraw_effect(db: sqlite3.Connection, key: str, call: int) -> None:
    db.execute("DELETE FROM effect WHERE key = ? AND call = ? AND finished_at IS NULL", (key, call))


def resolve_effect(db: sqlite3.Connection, key: str, result: EffectResult) -> None:
    """It happened, whatever stood in doubt."""
    rows = db.execute(EFFECT + " WHERE e.key = ? ORDER BY e.id", (key,)).fetchall()
    for row in map(Opener(db).effect, rows):
        _end_effect(db, row, None, result)


def forget_effect(db: sqlite3.Connection, key: str) -> None:
    db.execute("DELETE FROM effect WHERE key = ?", (key,))


def copy_effects(db: sqlite3.Connection, source: int, target: int) -> None:
    db.execute(
        "INSERT INTO effect (namespace, checkpoint_id, task_id, name, node, key, owner, call, started_at, finished_at,"
        " error, type, codec, size, checksum, key_id, data)"
        " SELECT ?, checkpoint_id, task_id, name, node, key, owner, call, started_at, finished_at, error, type, codec,"
        " size, checksum, key_id, data FROM effect WHERE namespace = ? ORDER BY id",
        (target, source),
    )


# Of this saver itself it is known which effects are running; of others, whether they are there.
_EFFECT_STATUS = """CASE
    WHEN e.error IS NOT NULL THEN 'in_doubt'
    WHEN e.finished_at IS NOT NULL THEN 'done'
    WHEN e.owner = :own THEN CASE WHEN e.key IN (SELECT value FROM json_each(:running)) THEN 'running' ELSE 'in_doubt' END
    WHEN e.owner IN (SELECT value FROM json_each(:alive)) THEN 'running'
    ELSE 'in_doubt' END"""


def effects(db: sqlite3.Connection, wanted: Mapping[str, object]) -> Sequence[EffectHead]:
    """Keyset pages: those numbered below `:number`. A null thread or status is any."""
    rows = db.execute(
        "SELECT * FROM (SELECT n.thread_id, n.checkpoint_ns, e.checkpoint_id, e.task_id, e.node, e.name, e.key, "
        + _EFFECT_STATUS
        + " AS status, e.started_at, e.finished_at, e.error, e.id, e.key_id"
        " FROM effect e JOIN namespace n ON n.id = e.namespace"
        " WHERE e.id < :number AND (:thread_id IS NULL OR n.thread_id = :thread_id) ORDER BY e.id DESC)"
        " WHERE :status IS NULL OR status = :status LIMIT :limit",
        wanted,
    )
    return list(map(Opener(db).effect_head, rows))
