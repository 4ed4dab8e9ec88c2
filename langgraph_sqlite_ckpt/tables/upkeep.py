"""What keeps a file well and small."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple


class WalFrames(NamedTuple):
    """Pages in the -wal, and how many of them are in the main file too."""

    all: int
    copied: int


class Pages(NamedTuple):
    page_size: int
    pages: int
    free: int


def page_counts(db: sqlite3.Connection) -> Pages:
    return Pages(*(db.execute("PRAGMA " + name).fetchone()[0] for name in ("page_size", "page_count", "freelist_count")))


def all_namespaces(db: sqlite3.Connection) -> Sequence[int]:
    return [row[0] for row in db.execute("SELECT id FROM namespace ORDER BY id")]


def orphans(db: sqlite3.Connection) -> Sequence[tuple[str, int]]:
    """(kind, id) of rows that belong to no namespace, lean on nothing that is there, or are needed by nobody."""
    return db.execute(
        "SELECT 'checkpoint without a namespace', seq FROM checkpoint WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'hidden checkpoint that nobody needs', c.seq FROM checkpoint c WHERE c.hidden AND NOT EXISTS"
        "  (SELECT 1 FROM checkpoint s WHERE s.namespace = c.namespace AND s.hidden = 0)"
        " UNION ALL SELECT 'write without a namespace', id FROM write WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'effect without a checkpoint', e.id FROM effect e WHERE NOT EXISTS (SELECT 1 FROM checkpoint c"
        "  JOIN namespace n ON n.id = c.namespace WHERE c.namespace = e.namespace AND c.checkpoint_id = e.checkpoint_id)"
        " UNION ALL SELECT 'value without a namespace', id FROM blob WHERE namespace NOT IN (SELECT id FROM namespace)"
        " UNION ALL SELECT 'value whose base is gone', id FROM blob"
        "  WHERE base IS NOT NULL AND base NOT IN (SELECT id FROM blob)"
        " UNION ALL SELECT 'value that nothing needs', id FROM blob"
        "  WHERE version IS NULL AND id NOT IN (SELECT base FROM blob WHERE base IS NOT NULL)"
    ).fetchall()


def objects(db: sqlite3.Connection) -> Sequence[tuple[str, str]]:
    """(type, name) of everything in the schema."""
    return db.execute("SELECT type, name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY 1, 2").fetchall()


def give_back_pages(db: sqlite3.Connection, pages: int) -> None:
    """Free pages, back to the disk."""
    db.executescript(f"PRAGMA incremental_vacuum({int(pages)})")  # `execute` would only take its first step


def copy_wal_back(db: sqlite3.Connection) -> None:
    """The -wal into the main file, and cut to nothing where no reader is in the way."""
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def wal_frames(db: sqlite3.Connection) -> WalFrames:
    """After all were copied into the main file that no reader is in the way of. Waits for nobody."""
    _, frames, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return WalFrames(frames, copied)


def integrity_check(db: sqlite3.Connection) -> Sequence[str]:
    """SQLite's own complaints; none where all is well."""
    return [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
