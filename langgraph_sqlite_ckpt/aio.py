"""The async contract: each method ships its sync twin, whole, to another thread and awaits the outcome.

Why whole: one hop costs 80 microseconds, and an operation that is cancelled between two awaits leaves a transaction open.
What crosses here runs to its end, or not at all. Nothing of asyncio is stored, so one saver serves any number of loops.

The threads are aiosqlite's (its queue, its futures), one for reads and one for writes, so that a read never waits for a
fsync. They are started when first needed and never keep the process alive. The connections stay `database.py`'s: rejected
was to let aiosqlite own one, which sync calls, `close()` and forks would then have to share with it.

Writes gather: while one transaction is on its way to the disk, those of all tasks and loops that come meanwhile wait in
an inbox, and the next hop takes them together.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import aiosqlite
import aiosqlite.core
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.operations import Operation, Ticket

T = TypeVar("T")


class Worker(aiosqlite.Connection):
    """aiosqlite's thread, without a connection of its own: the one place that touches aiosqlite."""

    def __init__(self) -> None:
        super().__init__(_no_connection, iter_chunk_size=64)
        self._thread.daemon = True
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, work))
        result: T = await future
        return result

    def post(self, work: Callable[[], object]) -> None:
        """Without waiting; `work` reports for itself."""
        self._tx.put_nowait((_NOBODY, work))

    def halt(self) -> None:
        """End the thread after what is queued, with or without an event loop."""
        self._tx.put_nowait((_NOBODY, lambda: aiosqlite.core._STOP_RUNNING_SENTINEL))


def _no_connection() -> Any:
    raise NotImplementedError("connections belong to database.py")


class _Nobody:
    """Stands where aiosqlite expects a future, when nobody awaits one."""

    def get_loop(self) -> _Nobody:
        return self

    def call_soon_threadsafe(self, *_: object) -> None:
        pass


_NOBODY: Any = _Nobody()


class Courier:
    """Carries operations from event loops to the two threads, and outcomes back."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._starting = threading.Lock()
        self._reader: Worker | None = None
        self._writer: Worker | None = None
        self._inbox: deque[tuple[Operation[Any], asyncio.Future[Any]]] = deque()
        self._posted = False

    async def read(self, work: Callable[[], T]) -> T:
        if self._reader is None:
            self._start()
        assert self._reader is not None
        return await self._reader.run(work)

    async def write(self, operation: Operation[T]) -> T:
        if self._writer is None:
            self._start()
        assert self._writer is not None
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._inbox.append((operation, future))
        if not self._posted:
            self._posted = True
            self._writer.post(self._deliver)
        return await future

    def _start(self) -> None:
        with self._starting:
            self._reader = self._reader or Worker()
            self._writer = self._writer or Worker()

    def _deliver(self) -> None:
        """On the writer's thread: all that has gathered, in one transaction. What was cancelled already is left out."""
        self._posted = False  # first: who comes from now on posts again
        gathered = [self._inbox.popleft() for _ in range(len(self._inbox))]
        awaited = [(operation, future) for operation, future in gathered if not future.cancelled()]
        tickets = self._database.write_all([operation for operation, _ in awaited])
        outcomes: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Ticket[Any]]]] = {}
        for (_, future), ticket in zip(awaited, tickets, strict=True):
            outcomes.setdefault(future.get_loop(), []).append((future, ticket))
        for loop, of_loop in outcomes.items():
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                loop.call_soon_threadsafe(_hand_out, of_loop)

    def halt(self) -> None:
        with self._starting:
            for worker in (self._reader, self._writer):
                if worker is not None:
                    worker.halt()
            self._reader = self._writer = None


def _hand_out(outcomes: Sequence[tuple[asyncio.Future[Any], Ticket[Any]]]) -> None:
    for future, ticket in outcomes:
        if future.done():  # cancelled meanwhile
            continue
        if ticket.error is not None:
            future.set_exception(ticket.error)
        else:
            future.set_result(ticket.result())


class AsyncContract(BaseCheckpointSaver[str]):
    """The async half of the contract. The sync methods document; these do the same."""

    _courier: Courier

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._courier.read(partial(self.get_tuple, config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        items = self.list(config, filter=filter, before=before, limit=limit)
        while (item := await self._courier.read(partial(_next, items))) is not None:
            yield item

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        operation, stored = self._put(config, checkpoint, metadata, new_versions)
        await self._courier.write(operation)
        return stored

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._courier.write(self._put_writes(config, writes, task_id, task_path))

    async def adelete_thread(self, thread_id: str) -> None:
        await self._courier.write(self._delete_thread(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._courier.write(self._delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._courier.write(self._copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._courier.write(self._prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        return await self._courier.read(partial(self.get_delta_channel_history, config=config, channels=channels))

    # What the sync half turns a call into; each checks its arguments and touches no file.

    def _put(self, *call: Any) -> tuple[Operation[None], RunnableConfig]:
        raise NotImplementedError

    def _put_writes(self, *call: Any) -> Operation[None]:
        raise NotImplementedError

    def _delete_thread(self, *call: Any) -> Operation[None]:
        raise NotImplementedError

    def _delete_for_runs(self, *call: Any) -> Operation[None]:
        raise NotImplementedError

    def _copy_thread(self, *call: Any) -> Operation[None]:
        raise NotImplementedError

    def _prune(self, *call: Any) -> Operation[None]:
        raise NotImplementedError


def _next(items: Iterator[T]) -> T | None:
    return next(items, None)
