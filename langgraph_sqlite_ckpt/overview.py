"""What is in the file: threads and runs with their status, and what takes the space. No value is ever read for it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.errors import DamagedError, InvalidRequest, Place
from langgraph_sqlite_ckpt.tables import Judged, OverviewRow

Status = Literal["completed", "interrupted", "failed", "running", "stopped", "crashed", "abandoned"]
ALL = 2**63 - 1  # above every number
STATUSES: tuple[Status, ...] = get_args(Status)


class Thread(NamedTuple):
    """A thread, by the latest checkpoint of its root graph: `step` is that one's, `next` the nodes due after it.

    Times are in UTC; `updated_at` is when that checkpoint was made. `checkpoints` counts those of the root graph.
    """

    thread_id: str
    status: Status
    next: tuple[str, ...]
    step: int | None
    run_id: str
    created_at: datetime
    updated_at: datetime
    checkpoints: int
    number: int
    """Its place in the order of `threads()`."""


class Run(NamedTuple):
    """One execution of a task, from its input to its end, by its latest checkpoint of the root graph. See `Thread`."""

    thread_id: str
    status: Status
    next: tuple[str, ...]
    step: int | None
    run_id: str
    created_at: datetime
    updated_at: datetime
    checkpoints: int
    number: int
    """Its place in the order of `runs()`."""


class Size(NamedTuple):
    """Bytes of the values of a thread or channel: as stored, and before they were packed."""

    name: str
    stored: int
    uncompressed: int


class Stats(NamedTuple):
    """Bytes and counts of a file. `threads_by_size` and `channels_by_size` name the largest, largest first."""

    file_bytes: int
    wal_bytes: int
    free_bytes: int
    threads: int
    checkpoints: int
    threads_by_size: Sequence[Size]
    channels_by_size: Sequence[Size]
    wal_pinned: bool | None
    """Whether a reader (a backup, a database browser) keeps the -wal from being copied back, so that it grows.

    None: a saver with `read_only=True` cannot tell.
    """


def threads(
    db: sqlite3.Connection,
    judged: Judged,
    status: str | None,
    updated_before: datetime | None = None,
    updated_after: datetime | None = None,
    limit: int | None = None,
    after: Thread | str | None = None,
) -> Sequence[Thread]:
    """Newest thread first, by when it was made: an order that does not change between pages."""
    wanted = {
        "status": _known(status),
        "before": as_text(updated_before),
        "after": as_text(updated_after),
        "limit": row_limit(limit),
        "number": _number_of(db, after),
    }
    return [Thread(*_typed(row)) for row in tables.threads(db, judged, wanted)]


def runs(
    db: sqlite3.Connection,
    judged: Judged,
    thread_id: str | None,
    status: str | None,
    limit: int | None,
    after: Run | None,
) -> Sequence[Run]:
    """Newest run first, by when it began."""
    if after is not None and not isinstance(after, Run):
        raise InvalidRequest(f"after is the last run of the page before, not {after!r:.80}")
    wanted = {
        "thread_id": thread_id,
        "status": _known(status),
        "limit": row_limit(limit),
        "number": after.number if after else ALL,
    }
    return [Run(*_typed(row)) for row in tables.runs(db, judged, wanted)]


def _number_of(db: sqlite3.Connection, after: Thread | str | None) -> int:
    if after is None or isinstance(after, Thread):
        return after.number if after else ALL
    number = tables.find_namespace(db, after, "") if isinstance(after, str) else None
    if number is None:
        raise InvalidRequest(f"after is the last thread of the page before, or its id, not {after!r:.80}")
    return number


def stats(db: sqlite3.Connection, path: str, top: int, wal: tables.WalFrames | None) -> Stats:
    pages = tables.page_counts(db)
    return Stats(
        file_bytes=pages.pages * pages.page_size,
        wal_bytes=_size_of(path + "-wal"),
        free_bytes=pages.free * pages.page_size,
        threads=tables.count_threads(db),
        checkpoints=tables.count_checkpoints(db),
        threads_by_size=[Size(*row) for row in tables.sizes_by_thread(db, top)],
        channels_by_size=[Size(*row) for row in tables.sizes_by_channel(db, top)],
        wal_pinned=None if wal is None else wal.copied < wal.all,
    )


def as_text(moment: datetime | None) -> str | None:
    """As the file has it: UTC, with microseconds, so that text order is time order."""
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise InvalidRequest(f"updated_before and updated_after are datetimes with a time zone, not {moment!r:.80}")
    if moment.tzinfo is None:
        raise InvalidRequest(f"{moment!r} has no time zone: datetime.now(timezone.utc), for example")
    try:
        return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")
    except OverflowError as error:
        raise InvalidRequest(f"{moment!r} is outside of the calendar in UTC") from error


def _typed(row: OverviewRow) -> tuple[Any, ...]:
    """What `Thread` and `Run` say, in their order."""
    try:
        moments = [datetime.fromisoformat(moment) for moment in (row.created_at, row.updated_at)]
        due = tuple(json.loads(row.next))
    except (TypeError, ValueError) as error:
        raise DamagedError(Place(row.thread_id), f"a time, or what is next, is none ({error})") from error
    return (row.thread_id, row.status, due, row.step, row.run_id, *moments, *row[-2:])


def _known(status: str | None) -> str | None:
    if status is not None and status not in STATUSES:
        raise InvalidRequest(f"status is one of {', '.join(STATUSES)}, not {status!r}")
    return status


def row_limit(limit: int | None) -> int:
    if limit is not None and (not isinstance(limit, int) or limit < 0):
        raise InvalidRequest(f"limit is a number of rows, not negative, not {limit!r}")
    return -1 if limit is None else limit


def _size_of(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:  # a private memory has none, nor has a file that was closed cleanly
        return 0
