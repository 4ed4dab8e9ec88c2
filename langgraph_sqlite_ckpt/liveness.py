"""Is the process that wrote a thread last still there? So "crashed" can be told from "running".

Each saver that writes has a row of its own (an *owner*): host, boot, process and when that started. Whoever reads the file
judges the owners that have not signed off:

| where the owner is | how it is judged |
|---|---|
| this host, this boot, this process-id space | the kernel: is there a process of that id that started at that moment? |
| this host, another boot | gone: the machine was started anew |
| elsewhere (another host or container), or hidden | by its heartbeat: gone after `SILENCE` seconds without one |

Rejected: a lock file beside each saver. It tells the same, leaves litter, and fails between containers, too.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import sys
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.schema import SILENCE
from langgraph_sqlite_ckpt.tables import Judged, OwnerRow


class Process(NamedTuple):
    """A process, so that another can tell whether it is still there. What the system does not tell is empty."""

    host: str
    boot: str
    space: str
    pid: int
    started: str


def this_process() -> Process:
    pid = os.getpid()
    return Process(socket.gethostname(), _boot(), _space(), pid, _start_of(pid) or "")


@lru_cache(maxsize=1)
def _boot() -> str:
    return _read("/proc/sys/kernel/random/boot_id").strip()


def _space() -> str:
    """Containers count their processes each for itself."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """In ticks since boot: process ids are used again, this pair is not. Empty: there is no such process. None: who knows.

    One that has ended and waits for its parent to notice (a zombie) is none. Some systems have no /proc (macOS), or hide
    there what belongs to others.
    """
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()  # the name, in brackets, may hold anything
    if len(fields) <= 19:
        return None if _may_exist(pid) else ""
    return fields[19] if fields[0] not in "ZX" else ""


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):  # a damaged row can name any path
        return ""


def judge(db: sqlite3.Connection) -> Judged:
    """Every owner that has not signed off, alive or gone."""
    here = this_process()
    verdicts = [(owner.id, is_gone(owner, here)) for owner in tables.open_owners(db)]
    return Judged([id_ for id_, gone in verdicts if not gone], [id_ for id_, gone in verdicts if gone])


def end_gone_owners(db: sqlite3.Connection) -> Judged:
    """So that the views say it, too."""
    judged = judge(db)
    tables.end_owners(db, judged.gone, "gone", now_as_text())
    return judged


def is_gone(owner: OwnerRow, here: Process) -> bool:
    """Whether the process of an owner that has not signed off is no more."""
    if owner.host == here.host:
        if owner.boot and here.boot and owner.boot != here.boot:  # a sandbox may hide it from either
            return True
        started = _start_of(owner.pid) if owner.space == here.space else None
        if started == "":
            return True
        if started is not None and owner.started:
            return started != owner.started
    return str(owner.beat_at) < now_as_text(-SILENCE)


def _may_exist(pid: int) -> bool:
    if sys.platform == "win32":  # there, signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError, TypeError):  # somebody else's; or a damaged row, which says nothing
        return True
    return True


def now_as_text(seconds: float = 0) -> str:
    """Now, or so many seconds after: text order is time order."""
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat(timespec="microseconds")
