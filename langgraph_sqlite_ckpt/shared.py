"""What a saver's copies have in common: the file, and all that goes with it."""

from __future__ import annotations

import atexit
import sqlite3
import time
import weakref
from contextlib import AbstractContextManager

from langgraph_sqlite_ckpt import retention
from langgraph_sqlite_ckpt.aio import Courier
from langgraph_sqlite_ckpt.blobs import Limits, Recent
from langgraph_sqlite_ckpt.buffer import Buffer
from langgraph_sqlite_ckpt.custody import Heart, Owner, record_the_gone
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.events import Events
from langgraph_sqlite_ckpt.file import MEMORY
from langgraph_sqlite_ckpt.flush import Flush
from langgraph_sqlite_ckpt.migrations import Migrations
from langgraph_sqlite_ckpt.writing import Store


class Shared:
    """All of a saver but its serde: what its copies have in common."""

    def __init__(
        self,
        database: Database,
        keep_last: int | None,
        flush: Flush | None,
        migrations: Migrations,
        events: Events,
    ) -> None:
        self.database = database
        self.events = events
        self._keep_last = keep_last
        # A private memory ends with its process anyway, and its readers would wait for a flush under way.
        self._policy = flush if database.path != MEMORY and not database.read_only else None
        self._migrations = migrations
        _OPEN.add(self)
        self.database.renew = self._renew
        self._renew()
        try:
            if not database.read_only:
                record_the_gone(database)
        except BaseException:  # Ctrl-C, say: nobody will have this saver to close it
            database.close()
            raise

    def _renew(self) -> None:
        """Also in a forked child, where threads are gone and locks may be held by nobody."""
        limits = Limits()
        self.events = self.database.events = self.events.renewed()
        self.owner = Owner(self._start_heart)
        trimmer = retention.Trimmer(self._keep_last) if self._keep_last is not None else None
        self.store = Store(self.database, Recent(limits.cache), limits, self.owner, trimmer, migrations=self._migrations)
        self._buffer = Buffer(self.database, self._policy) if self._policy is not None else None
        self.direct = self.events.watched(self.database)
        self.writer = self.events.watched(self._buffer) if self._buffer is not None else self.direct
        self.courier = Courier(self.writer, self.events)
        self._heart: Heart | None = None

    def _start_heart(self) -> None:
        self._heart = Heart(self.database, self.owner)

    def read(self, thread_id: str | None = None) -> AbstractContextManager[sqlite3.Connection]:
        """A view of the file with all that was acknowledged, of this thread or of all, in it."""
        self.flush(thread_id)
        return self.database.read()

    def flush(self, thread_id: str | None = None) -> None:
        if self._buffer is not None:
            with self.events.later():
                self._buffer.flush(thread_id)

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
        patience = self.database.busy_timeout if self.owner.has_work else _PATIENCE
        self.database.close(self.owner.sign_off if self.owner.ends() else None, patience=patience)
        self._end_threads()

    def sign_off(self, *, patience: float) -> None:
        """Without closing, and without waiting for others longer than so many seconds."""
        if self.owner.ends():
            self.database.write_if_free(self.owner.sign_off, patience=patience)

    def _end_threads(self) -> None:
        self.courier.halt()
        if self._heart is not None:
            self._heart.stop()

    def __del__(self) -> None:
        if hasattr(self, "courier"):
            self.sign_off(patience=0)
            self._end_threads()
            if self._buffer is not None:
                self._buffer.part(abandoned=True)
            else:
                self.database.let_go()


_OPEN: weakref.WeakSet[Shared] = weakref.WeakSet()
_PATIENCE = 1.0  # seconds


@atexit.register
def _sign_off_all() -> None:
    """An interpreter that ends normally has not crashed."""
    deadline = time.monotonic() + _PATIENCE
    for shared in tuple(_OPEN):
        shared.sign_off(patience=max(0.0, deadline - time.monotonic()))
