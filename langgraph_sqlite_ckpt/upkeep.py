"""What people and cron jobs ask of a file, beside LangGraph's contract: what is in it, is it well, is it small."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from langgraph_sqlite_ckpt import backup, overview, rekeying, tables, verification
from langgraph_sqlite_ckpt.errors import InvalidRequest, StorageError
from langgraph_sqlite_ckpt.liveness import judge
from langgraph_sqlite_ckpt.overview import Run, Stats, Thread
from langgraph_sqlite_ckpt.rekeying import Rekeyed
from langgraph_sqlite_ckpt.sweeping import FINISHED, Sweep, Swept
from langgraph_sqlite_ckpt.upgrading import MigrateAll, Migrated
from langgraph_sqlite_ckpt.verification import Problem
from langgraph_sqlite_ckpt.wholefile import Progress

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from langgraph_sqlite_ckpt.shared import Shared

_PAGES_AT_ONCE = 2000
_FREE_PAGES = 1024  # after a delete: fewer than these are left for what comes next


class Upkeep:
    """The rest of `SqliteSaver`. Thread-safe like all of it; each method has an async twin that does the same elsewhere."""

    _shared: Shared
    serde: SerializerProtocol

    def threads(
        self,
        *,
        status: str | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int | None = None,
        after: Thread | str | None = None,
    ) -> Sequence[Thread]:
        """The threads with their status, newest first (by when each was made); no value is read for it.

        Args:
            status: Only "completed", "interrupted" (a person is waited for), "failed" (an error stands), "running",
                "crashed" (its process is gone, in mid-run), "stopped" (in mid-run the saver was closed, or its claim given
                back; or another run took over the thread) or "abandoned" (`recover` gave up on it).
            updated_before: Only those whose latest checkpoint is older; with a time zone.
            updated_after: Only those whose latest checkpoint is newer.
            limit: At most so many.
            after: The last thread of the page before (or its id): pages stay put while threads come and change.
        """
        with self._shared.events.timing("threads") as timing:
            with self._shared.read() as db:
                found = overview.threads(db, judge(db), status, updated_before, updated_after, limit, after)
            timing.found(items=len(found))
        return found

    def runs(
        self,
        thread_id: object = None,
        *,
        status: str | None = None,
        limit: int | None = None,
        after: Run | None = None,
    ) -> Sequence[Run]:
        """The runs of a thread, or of all, newest first (by when each began). The arguments are those of `threads`."""
        thread = None if thread_id is None else str(thread_id)
        with self._shared.events.timing("runs", thread) as timing:
            with self._shared.read(thread) as db:
                found = overview.runs(db, judge(db), thread, status, limit, after)
            timing.found(items=len(found))
        return found

    def stats(self, *, top: int = 20) -> Stats:
        """Sizes of the file, its -wal and its free pages in bytes, counts, and the `top` largest threads and channels."""
        database = self._shared.database
        with self._shared.events.timing("stats"):
            wal = None if database.read_only else database.maintain(tables.wal_frames, patience=0)
            with self._shared.read() as db:
                return overview.stats(db, database.path, top, wal)

    def verify(self) -> Sequence[Problem]:
        """Check everything: SQLite's own integrity check, the schema, each row and value, orphans. Empty: all is well.

        Reads the whole file, thread by thread; writers go on meanwhile. What is encrypted with a key that this saver does
        not have is checked by its checksum only: one problem of kind "key" for each such key says so.
        """
        with self._shared.events.timing("verify") as timing:
            self._shared.flush()
            problems = list(verification.verify(self._shared.read))
            timing.found(items=len(problems))
        return problems

    def sweep(
        self,
        *,
        idle_for: timedelta | None = None,
        keep_last: int | None = None,
        statuses: Sequence[str] = FINISHED,
        dry_run: bool = False,
        batch: int = 20,
    ) -> Swept:
        """Delete threads that have been idle, and all but the last checkpoints of the others.

        Args:
            idle_for: Threads without a new checkpoint for so long go as a whole.
            keep_last: Checkpoints to keep in each thread; what their DeltaChannels need of others is kept, hidden.
            statuses: Only threads in these states. Default: "completed" and "failed". One that is "interrupted" waits for a
                person, and so may one that is "running" or "stopped", at a breakpoint; one that has "crashed" or is
                "abandoned" can be resumed: name them to take them too.
            dry_run: Only count. (Each batch is done and rolled back, so the counts are exact.)
            batch: Threads per transaction: writers get their turn between two.

        Returns:
            Counts of threads and checkpoints, and the bytes of their rows.
        """
        shared = self._shared
        with shared.events.timing("sweep") as timing:
            shared.flush()
            swept = Sweep(idle_for, keep_last, statuses, dry_run, batch).run(shared.database, shared.store.limits)
            self._tidy()
            timing.found(bytes=swept.bytes, items=swept.checkpoints)
        return swept

    def migrate_all(self, *, dry_run: bool = False, batch: int = 100, progress: Progress | None = None) -> Migrated:
        """Store every older state as today's `migrations` make it, so that reading it costs nothing any more.

        Nothing needs it: states are brought up to date as they are read. Writers go on meanwhile; interrupted half-way it
        can be run again. What cannot be migrated or read is left as it is, and reported.

        Args:
            dry_run: Read, migrate and encode everything, and write nothing.
            batch: Checkpoints per transaction: writers get their turn between two.
            progress: Called after each batch with checkpoints done and to do.

        Returns:
            How many checkpoints were rewritten (or would be), and an error for each that was not.
        """
        with self._shared.events.timing("migrate_all") as timing:
            migrated = MigrateAll(self._shared.store, self.serde, dry_run, batch).run(progress)
            self._tidy()
            timing.found(items=migrated[0])
        return migrated

    def rekey(self, progress: Progress | None = None) -> Rekeyed:
        """Encrypt every row with the first of `keys`; the others are for reading what has yet to be.

        `SqliteSaver(path, keys=[new, old])` changes the key, `keys=[key, None]` encrypts a file that was not,
        `keys=[None, key]` gives that up. In short transactions, beside writers; interrupted half-way it can be run again.
        Savers of other processes need the new key before. What was written before is overwritten in the file; copies of the
        file, and blocks of the disk that once were in its -wal, are as they are.

        Args:
            progress: Called after each batch with rows done and to do.

        Returns:
            How many rows were sealed anew, and an error for each damaged row that was left as it is.

        Raises:
            KeyNeeded: Rows have yet another key. What was done before stays done.
        """
        self._shared.flush()
        return rekeying.rekey(self._shared.database, progress)

    def compact(self, progress: Progress | None = None) -> int:
        """Give free pages back to the disk, and the -wal. Done in short steps, beside writers. Returns bytes given back.

        Args:
            progress: Called after each step with bytes given back and bytes to give back.
        """
        with self._shared.events.timing("compact") as timing:
            given_back = self._compact(progress, patience=None)
            timing.found(bytes=given_back)
        return given_back

    def _compact(self, progress: Progress | None, *, patience: float | None) -> int:
        database = self._shared.database
        with database.read() as db:
            page_size, before, total = tables.page_counts(db)
        free = total
        while free > 0:
            database.maintain(partial(tables.give_back_pages, pages=_PAGES_AT_ONCE), patience=patience)
            with database.read() as db:
                left = tables.page_counts(db).free
            if progress is not None:
                progress((total - left) * page_size, total * page_size)
            if left >= free:  # others free pages as fast as we give them back
                break
            free = left
        database.maintain(tables.copy_wal_back, patience=0)
        with database.read() as db:
            return max(0, before - tables.page_counts(db).pages) * page_size

    def backup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        """Copy the file as it is at one moment. On return the copy is on disk, whole, and only its owner can read it.

        Writers go on meanwhile (with `journal_mode="delete"` they wait). The copy is one file, without sidecars: a saver
        opens it, `restore` puts it back.

        Args:
            path: Where to. The copy takes this name when it is whole, in the place of a former backup; before, it is called
                `*.part`, which a kill may leave behind.
            progress: Called with bytes done and bytes to do (not for a private memory). It may use the saver, or raise to
                stop the copying.

        Raises:
            InvalidRequest: The path is the saver's own file, or none.
            BusyError: Somebody has the former backup at `path` open.
            ForeignFileError: What is at `path` is not of this package; it is left as it is.
            StorageError: There is no room, say. What was at `path` is still there.
        """
        with self._shared.events.timing("backup") as timing:
            timing.found(bytes=backup.backup(self._shared.database, path, progress))

    def _tidy(self) -> None:
        """After a delete: what it freed goes back to the disk, if that is worth the trouble and in nobody's way."""
        with suppress(StorageError):  # the delete is done, and must not fail for this
            with self._shared.database.read() as db:
                free = tables.page_counts(db).free
            if free >= _FREE_PAGES:
                self._compact(None, patience=0)

    async def aclose(self) -> None:
        """`close()`, without holding up the event loop while somebody else has the file."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        raise NotImplementedError

    async def athreads(
        self,
        *,
        status: str | None = None,
        updated_before: datetime | None = None,
        updated_after: datetime | None = None,
        limit: int | None = None,
        after: Thread | str | None = None,
    ) -> Sequence[Thread]:
        call = partial(
            self.threads,
            status=status,
            updated_before=updated_before,
            updated_after=updated_after,
            limit=limit,
            after=after,
        )
        return await self._shared.courier.read(call)

    async def aruns(
        self, thread_id: object = None, *, status: str | None = None, limit: int | None = None, after: Run | None = None
    ) -> Sequence[Run]:
        return await self._shared.courier.read(partial(self.runs, thread_id, status=status, limit=limit, after=after))

    async def astats(self, *, top: int = 20) -> Stats:
        return await self._shared.courier.look_after(partial(self.stats, top=top))

    async def averify(self) -> Sequence[Problem]:
        return await self._shared.courier.look_after(self.verify)

    async def asweep(
        self,
        *,
        idle_for: timedelta | None = None,
        keep_last: int | None = None,
        statuses: Sequence[str] = FINISHED,
        dry_run: bool = False,
        batch: int = 20,
    ) -> Swept:
        call = partial(self.sweep, idle_for=idle_for, keep_last=keep_last, statuses=statuses, dry_run=dry_run, batch=batch)
        return await self._shared.courier.look_after(call)

    async def amigrate_all(self, *, dry_run: bool = False, batch: int = 100, progress: Progress | None = None) -> Migrated:
        call = partial(self.migrate_all, dry_run=dry_run, batch=batch, progress=progress)
        return await self._shared.courier.look_after(call)

    async def arekey(self, progress: Progress | None = None) -> Rekeyed:
        return await self._shared.courier.look_after(partial(self.rekey, progress))

    async def acompact(self, progress: Progress | None = None) -> int:
        return await self._shared.courier.look_after(partial(self.compact, progress))

    async def abackup(self, path: str | os.PathLike[str], progress: Progress | None = None) -> None:
        await self._shared.courier.look_after(partial(self.backup, path, progress))


def require_keep_last(keep_last: int | None) -> None:
    if keep_last is not None and (not isinstance(keep_last, int) or keep_last < 1):
        raise InvalidRequest(f"keep_last is a number of checkpoints, at least 1, not {keep_last!r}")
