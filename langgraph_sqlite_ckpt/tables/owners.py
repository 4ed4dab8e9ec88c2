"""Who answers for a thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence

from langgraph_sqlite_ckpt.tables.rows import Custody, NewOwner, OwnerRow

_OWNER = "SELECT id, host, boot, space, pid, started, opened_at, beat_at, ended FROM owner"


def set_owner(db: sqlite3.Connection, new: NewOwner) -> None:
    """It is there now, also if somebody had taken it for gone."""
    db.execute(
        "INSERT INTO owner (id, host, boot, space, pid, started, opened_at, beat_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at, ended = NULL, ended_at = NULL",
        (*new, new.opened_at),
    )


def beat_of(db: sqlite3.Connection, owner: int) -> str | None:
    """When it last said that it is there; None: for the file it is not."""
    row = db.execute("SELECT beat_at FROM owner WHERE id = ? AND ended IS NULL", (owner,)).fetchone()
    return row[0] if row else None


def open_owners(db: sqlite3.Connection) -> Sequence[OwnerRow]:
    return [OwnerRow._make(row) for row in db.execute(_OWNER + " WHERE ended IS NULL")]


def owner_of_id(db: sqlite3.Connection, owner: int) -> OwnerRow | None:
    row = db.execute(_OWNER + " WHERE id = ?", (owner,)).fetchone()
    return OwnerRow._make(row) if row else None


def end_owners(db: sqlite3.Connection, owners: Iterable[int], ended: str, now: str) -> None:
    """What ended first stands."""
    db.executemany(
        "UPDATE owner SET ended = ?, ended_at = ? WHERE id = ? AND ended IS NULL", [(ended, now, id_) for id_ in owners]
    )


def forget_owners(db: sqlite3.Connection) -> None:
    """Those that have ended and answer for no thread any more."""
    db.execute(
        "DELETE FROM owner WHERE ended IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM custody h WHERE h.owner = owner.id)"
        " AND NOT EXISTS (SELECT 1 FROM custody h WHERE h.holder = owner.id)"
    )


def custody_of(db: sqlite3.Connection, thread_id: str) -> Custody | None:
    row = db.execute(
        "SELECT owner, holder, claim, claimed_at, attempts, mark, abandoned FROM custody WHERE thread_id = ?", (thread_id,)
    ).fetchone()
    return Custody._make(row) if row else None


def set_custody(db: sqlite3.Connection, thread_id: str, new: Custody) -> None:
    db.execute(
        "INSERT OR REPLACE INTO custody (thread_id, owner, holder, claim, claimed_at, attempts, mark, abandoned)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (thread_id, *new),
    )


def end_claim(db: sqlite3.Connection, thread_id: str, claim: int) -> None:
    """What its saver wrote and left unfinished runs no more; where it wrote nothing all is as it was before."""
    db.execute(
        "UPDATE custody SET owner = CASE WHEN owner = holder THEN 0 ELSE owner END, holder = NULL, claim = NULL,"
        " claimed_at = NULL WHERE thread_id = ? AND claim = ?",
        (thread_id, claim),
    )
    db.execute(
        "DELETE FROM custody WHERE thread_id = :thread_id AND claim IS NULL"
        " AND NOT EXISTS (SELECT 1 FROM namespace n WHERE n.thread_id = :thread_id)",
        {"thread_id": thread_id},
    )


def drop_custody(db: sqlite3.Connection, thread_id: str) -> None:
    """Of a thread that was deleted; a claim on it goes on."""
    db.execute("DELETE FROM custody WHERE thread_id = ? AND claim IS NULL", (thread_id,))


def progress_of(db: sqlite3.Connection, thread_id: str) -> str:
    """Where a thread stands: this changes with every checkpoint and every write in it, but an error is no progress."""
    row = db.execute(
        "WITH own AS (SELECT id FROM namespace WHERE thread_id = :thread_id)"
        " SELECT (SELECT max(seq) FROM own CROSS JOIN checkpoint ON namespace = own.id),"
        " (SELECT max(w.id) FROM own CROSS JOIN write w ON w.namespace = own.id WHERE w.channel <> '__error__')",
        {"thread_id": thread_id},
    ).fetchone()
    return json.dumps(row)
