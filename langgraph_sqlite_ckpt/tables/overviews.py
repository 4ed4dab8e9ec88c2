"""What people see: through the views, which name it; no value is read."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from langgraph_sqlite_ckpt.tables.opening import Opener
from langgraph_sqlite_ckpt.tables.rows import Judged, WriteOfThread


class OverviewRow(NamedTuple):
    """A thread or a run."""

    thread_id: str
    status: str
    next: str
    step: int | None
    run_id: str
    created_at: str
    updated_at: str
    checkpoints: int
    number: int


# A view cannot look at processes: what it takes for running or crashed is corrected by who has looked.
_JUDGED = """CASE
    WHEN v.status = 'running' AND coalesce(h.holder, h.owner) IN (SELECT value FROM json_each(:gone)) THEN 'crashed'
    WHEN v.status = 'crashed' AND coalesce(h.holder, h.owner) IN (SELECT value FROM json_each(:alive)) THEN 'running'
    ELSE v.status END"""


def threads(db: sqlite3.Connection, judged: Judged, wanted: Mapping[str, object]) -> Sequence[OverviewRow]:
    """Keyset pages: those numbered below `:number`. A null bound is no bound."""
    rows = db.execute(
        "SELECT * FROM (SELECT v.thread_id, "
        + _JUDGED
        + " AS status, v.next, v.step, v.run_id, v.created_at, v.updated_at, v.checkpoints, n.id"
        " FROM namespace n JOIN threads v ON v.thread_id = n.thread_id LEFT JOIN custody h ON h.thread_id = n.thread_id"
        " WHERE n.checkpoint_ns = '' AND n.id < :number"
        " AND (:before IS NULL OR v.updated_at < :before) AND (:after IS NULL OR v.updated_at > :after)"
        " ORDER BY n.id DESC) WHERE :status IS NULL OR status = :status LIMIT :limit",
        {**wanted, **_as_json(judged)},
    )
    return [OverviewRow._make(row) for row in rows]


def runs(db: sqlite3.Connection, judged: Judged, wanted: Mapping[str, object]) -> Sequence[OverviewRow]:
    """Keyset pages: those numbered below `:number`. Without "or null", so that SQLite starts from the thread."""
    of_thread = " AND v.thread_id = :thread_id" if wanted["thread_id"] is not None else ""
    rows = db.execute(
        "SELECT * FROM (SELECT v.thread_id, "
        + _JUDGED
        + " AS status, v.next, v.step, v.run_id, v.created_at, v.updated_at, v.checkpoints, v.seq"
        " FROM runs v LEFT JOIN custody h ON h.thread_id = v.thread_id WHERE v.seq < :number"
        + of_thread
        + " ORDER BY v.seq DESC) WHERE :status IS NULL OR status = :status LIMIT :limit",
        {**wanted, **_as_json(judged)},
    )
    return [OverviewRow._make(row) for row in rows]


def _as_json(judged: Judged) -> dict[str, str]:
    return {"alive": json.dumps(judged.alive), "gone": json.dumps(judged.gone)}


def status_of(db: sqlite3.Connection, judged: Judged, thread_id: str) -> str | None:
    row = db.execute(
        "SELECT "
        + _JUDGED
        + " FROM threads v LEFT JOIN custody h ON h.thread_id = v.thread_id WHERE v.thread_id = :thread_id",
        {"thread_id": thread_id, **_as_json(judged)},
    ).fetchone()
    return row[0] if row else None


def may_be_running(db: sqlite3.Connection, thread_id: str, owner: int) -> bool:
    """Whether an owner, which is there, answers for a thread that has not come to an end or to a question."""
    found: int = db.execute(
        "SELECT EXISTS (SELECT 1 FROM custody h JOIN threads t ON t.thread_id = h.thread_id"
        " WHERE h.thread_id = ? AND h.owner = ? AND t.status IN ('running', 'crashed'))",
        (thread_id, owner),
    ).fetchone()[0]
    return bool(found)


def idle_threads(
    db: sqlite3.Connection, statuses: Sequence[str], updated_before: str | None, after: int, limit: int
) -> Sequence[tuple[int, str]]:
    """(namespace, thread_id) of threads in one of these states, oldest first, from a namespace on."""
    return db.execute(
        "SELECT n.id, t.thread_id FROM namespace n JOIN threads t ON t.thread_id = n.thread_id"
        " WHERE n.checkpoint_ns = '' AND n.id > ? AND t.status IN (SELECT value FROM json_each(?))"
        " AND (? IS NULL OR t.updated_at < ?) ORDER BY n.id LIMIT ?",
        (after, json.dumps(statuses), updated_before, updated_before, limit),
    ).fetchall()


def is_still(db: sqlite3.Connection, thread_id: str, statuses: Sequence[str], updated_before: str | None) -> bool:
    """Whether a thread is in one of these states, and as idle as that."""
    found: int = db.execute(
        "SELECT EXISTS (SELECT 1 FROM threads t WHERE t.thread_id = ?"
        " AND t.status IN (SELECT value FROM json_each(?)) AND (? IS NULL OR t.updated_at < ?))",
        (thread_id, json.dumps(statuses), updated_before, updated_before),
    ).fetchone()[0]
    return bool(found)


def count_threads(db: sqlite3.Connection) -> int:
    count: int = db.execute("SELECT count(DISTINCT thread_id) FROM namespace").fetchone()[0]
    return count


def count_checkpoints(db: sqlite3.Connection) -> int:
    count: int = db.execute("SELECT count(*) FROM checkpoint WHERE hidden = 0").fetchone()[0]
    return count


def sizes_by_thread(db: sqlite3.Connection, top: int) -> Sequence[tuple[str, int, int]]:
    return db.execute(
        "SELECT n.thread_id, sum(s.stored), sum(s.size) FROM ("
        " SELECT namespace, length(data) AS stored, size FROM blob"
        " UNION ALL SELECT namespace, length(data), size FROM write"
        " UNION ALL SELECT namespace, length(data), size FROM effect WHERE data IS NOT NULL) s"
        " JOIN namespace n ON n.id = s.namespace GROUP BY n.thread_id ORDER BY 2 DESC, 1 LIMIT ?",
        (top,),
    ).fetchall()


def sizes_by_channel(db: sqlite3.Connection, top: int) -> Sequence[tuple[str, int, int]]:
    return db.execute(
        "SELECT s.channel, sum(s.stored), sum(s.size) FROM ("
        " SELECT channel, length(data) AS stored, size FROM blob UNION ALL SELECT channel, length(data), size FROM write) s"
        " GROUP BY s.channel ORDER BY 2 DESC, 1 LIMIT ?",
        (top,),
    ).fetchall()


def stored_bytes(db: sqlite3.Connection, thread_id: str) -> int:
    """What the rows of a thread take, without the pages' own overhead."""
    total: int = db.execute(
        "SELECT coalesce(sum(bytes), 0) FROM ("
        " SELECT length(data) AS bytes, namespace FROM blob UNION ALL SELECT length(data), namespace FROM write"
        " UNION ALL SELECT length(data), namespace FROM effect WHERE data IS NOT NULL"
        " UNION ALL SELECT length(body) + length(metadata) + coalesce(length(rest), 0), namespace FROM checkpoint)"
        " WHERE namespace IN (SELECT id FROM namespace WHERE thread_id = ?)",
        (thread_id,),
    ).fetchone()[0]
    return total


def count_of_namespace(db: sqlite3.Connection, namespace: int) -> int:
    count: int = db.execute("SELECT count(*) FROM checkpoint WHERE namespace = ? AND hidden = 0", (namespace,)).fetchone()[
        0
    ]
    return count


def count_of_thread(db: sqlite3.Connection, thread_id: str) -> int:
    count: int = db.execute(
        "SELECT count(*) FROM checkpoint WHERE namespace IN (SELECT id FROM namespace WHERE thread_id = ?) AND hidden = 0",
        (thread_id,),
    ).fetchone()[0]
    return count


class StepRow(NamedTuple):
    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str
    step: int | float | None
    source: str | None
    next: str
    status: str
    created_at: str
    metadata: str


def steps_of_thread(db: sqlite3.Connection, thread_id: str) -> Sequence[StepRow]:
    """Every checkpoint without its values, in the order of commits."""
    rows = db.execute(
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, step, source, next, status, created_at,"
        " metadata FROM checkpoints WHERE thread_id = ? ORDER BY seq",
        (thread_id,),
    )
    return [StepRow._make(row) for row in rows]


def special_writes_of_thread(db: sqlite3.Connection, thread_id: str) -> Sequence[WriteOfThread]:
    """Questions and errors, in the order in which they were written."""
    opener = Opener(db)
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data, w.key_id FROM namespace n JOIN write w ON w.namespace = n.id"
        " WHERE n.thread_id = ? AND w.channel IN ('__interrupt__', '__error__') ORDER BY w.id",
        (thread_id,),
    )
    return [opener.write_of(thread_id, row) for row in rows]


def waiting_writes(db: sqlite3.Connection, thread_id: str) -> Sequence[WriteOfThread]:
    """The questions of a thread's latest checkpoint that are not answered: as the view `checkpoints` understands it."""
    opener = Opener(db)
    rows = db.execute(
        "SELECT n.checkpoint_ns, w.checkpoint_id, w.task_id, w.idx, w.task_path, w.channel, w.type, w.codec, w.size,"
        " w.checksum, w.data, w.key_id FROM namespace n JOIN checkpoint c ON c.namespace = n.id"
        " JOIN write w ON w.namespace = n.id AND w.checkpoint_id = c.checkpoint_id"
        " WHERE n.thread_id = ? AND n.checkpoint_ns = '' AND w.channel = '__interrupt__'"
        " AND c.seq = (SELECT max(seq) FROM checkpoint WHERE namespace = n.id AND hidden = 0) AND NOT EXISTS ("
        " SELECT 1 FROM write later WHERE later.namespace = w.namespace AND later.checkpoint_id = w.checkpoint_id"
        " AND later.id > w.id AND ((later.task_id = w.task_id AND later.channel <> '__resume__')"
        " OR (later.channel = '__resume__' AND later.task_id = '00000000-0000-0000-0000-000000000000')))"
        " ORDER BY w.task_path, w.task_id, w.idx",
        (thread_id,),
    )
    return [opener.write_of(thread_id, row) for row in rows]
