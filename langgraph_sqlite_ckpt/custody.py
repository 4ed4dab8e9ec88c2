"""Who answers for a thread: the saver that wrote to it last, or the one that has claimed it for itself.

A claim is a number in the thread's row, and dies with its owner (see `liveness.py`). Rejected: locks of the file system,
which a forked child inherits and a thread of the same process passes through.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.errors import CheckpointError, ThreadBusy
from langgraph_sqlite_ckpt.liveness import end_gone_owners, is_gone, judge, now_as_text, this_process
from langgraph_sqlite_ckpt.tables import Custody, NewOwner, OwnerRow

_NOBODY = 0
BEAT = 10.0
"""Seconds between two heartbeats of a saver that has unfinished threads; with a write to the file, or without."""


class Owner:
    """A saver among those that write to the file, from its first write to its close."""

    def __init__(self, started: Callable[[], object]) -> None:
        """`started` is called after its first write."""
        self.id = random.getrandbits(62)
        self.claims: dict[str, int] = {}
        self.effects: dict[str, int] = {}  # by key, those that are running now: the number of the call
        self._started = started
        self._has_written = False
        self._ended = False
        self._unfinished: set[str] = set()

    @property
    def has_work(self) -> bool:
        """Whether others might ask if it is still there."""
        return bool(self._unfinished or self.claims or self.effects)

    # --- in a transaction ---

    def register(self, db: sqlite3.Connection) -> None:
        """The file knows best: a transaction may have been rolled back, or somebody have taken us for gone."""
        last = tables.beat_of(db, self.id)
        if self._ended or (last is not None and last > now_as_text(-BEAT)):
            return
        self._say_here(db)
        if last is None:
            end_gone_owners(db)
            tables.forget_owners(db)

    def _say_here(self, db: sqlite3.Connection) -> None:
        tables.set_owner(db, NewOwner(self.id, *this_process(), now_as_text()))

    def hold(self, db: sqlite3.Connection, thread_id: str) -> None:
        """Before a write to the thread: from now on this saver answers for it.

        Raises:
            ThreadBusy: Somebody else has claimed it.
        """
        self.register(db)
        custody = custody_of(db, thread_id)
        if custody.holder != self.id:
            if thread_id in self.claims:
                raise ThreadBusy(f"thread {thread_id!r}: somebody took this saver for gone, and its claim over")
            self._require_unclaimed(db, thread_id, custody)
            custody_now = custody._replace(owner=self.id, holder=None, claim=None, claimed_at=None, abandoned=0)
        else:
            custody_now = custody._replace(owner=self.id, abandoned=0)
        if custody_now != custody:
            tables.set_custody(db, thread_id, custody_now)

    def take(self, db: sqlite3.Connection, thread_id: str, claim: int, custody: Custody) -> Custody:
        """A claim of this saver's, or `ThreadBusy`: another claim of its own is in the way, too."""
        self.register(db)
        self._require_unclaimed(db, thread_id, custody)
        taken = custody._replace(holder=self.id, claim=claim, claimed_at=now_as_text())
        tables.set_custody(db, thread_id, taken)
        return taken

    def _require_unclaimed(self, db: sqlite3.Connection, thread_id: str, custody: Custody) -> None:
        holder = living_owner(db, custody.holder) if custody.holder is not None else None
        if holder is None:
            return
        whose = "this saver" if holder.id == self.id else f"process {holder.pid} on {holder.host}"
        raise ThreadBusy(f"thread {thread_id!r} has been claimed by {whose} since {custody.claimed_at}")

    def sign_off(self, db: sqlite3.Connection) -> None:
        """It ends on purpose: what it leaves unfinished has stopped, not crashed."""
        for thread_id, claim in tuple(self.claims.items()):
            tables.end_claim(db, thread_id, claim)
        tables.end_owners(db, [self.id], "closed", now_as_text())

    def beat(self, db: sqlite3.Connection) -> None:
        """If there is something to do yet: others may have ended it, or deleted it; or it waits for a person."""
        self._unfinished = {thread for thread in self._unfinished if tables.may_be_running(db, thread, self.id)}
        if self.has_work and not self._ended:
            self._say_here(db)

    # --- after it ---

    def wrote(self) -> None:
        if not self._has_written:
            self._has_written = True
            self._started()

    def ends(self) -> bool:
        """From now on. Whether the file should be told."""
        told, self._ended = self._ended, True
        return self._has_written and not told

    def reached(self, thread_id: str, *, the_end: bool) -> None:
        if the_end:
            self._unfinished.discard(thread_id)
        else:
            self._unfinished.add(thread_id)


def living_owner(db: sqlite3.Connection, owner: int) -> OwnerRow | None:
    """The owner of that id, where it is still there."""
    found = tables.owner_of_id(db, owner)
    if found is None or found.ended is not None or is_gone(found, this_process()):
        return None
    return found


class Heart:
    """Says now and then that a saver is there, while it has unfinished work. Keeps neither it nor the process alive."""

    def __init__(self, database: Database, owner: Owner) -> None:
        self._stopped = threading.Event()
        work = (self._stopped, weakref.ref(database), weakref.ref(owner))
        with suppress(RuntimeError):  # the interpreter is ending, and starts no thread any more
            threading.Thread(target=_beat, args=work, name="langgraph_sqlite_ckpt heartbeat", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()


def _beat(stopped: threading.Event, database: Callable[[], Database | None], owner: Callable[[], Owner | None]) -> None:
    while not stopped.wait(BEAT):
        of_whom, where = owner(), database()
        if of_whom is None or where is None:
            return
        if of_whom.has_work:
            where.write_if_free(of_whom.beat)
        del of_whom, where


def custody_of(db: sqlite3.Connection, thread_id: str) -> Custody:
    """Nobody's, where nobody has written yet."""
    return tables.custody_of(db, thread_id) or Custody(_NOBODY)


def record_the_gone(database: Database) -> None:
    """What a look at the processes says, for the views; if nothing is in the way."""
    with suppress(CheckpointError):  # what is damaged is told to whoever needs it
        with database.read() as db:
            gone = judge(db).gone
        if gone:
            database.write_if_free(end_gone_owners)
