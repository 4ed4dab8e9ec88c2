"""The async contract: each method ships its sync twin, whole, to another thread and awaits the outcome.

Why whole: one hop costs 80 microseconds, and an operation that is cancelled between two awaits leaves a transaction open.
What crosses here runs to its end, or not at all. Nothing of asyncio is stored, so one saver serves any number of loops.

The threads are aiosqlite's: one for reads, one for writes, so that a read never waits for a fsync, and one for upkeep. They
are started when first needed and never keep the process alive. The connections stay `database.py`'s: rejected was to let
aiosqlite own one, which sync calls, `close()` and forks would then have to share with it.

Writes gather: while one transaction is on its way to the disk, those of all tasks and loops that come meanwhile wait in
an inbox, and the next hop takes them together.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

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

from langgraph_sqlite_ckpt.errors import ClosedError
from langgraph_sqlite_ckpt.events import Events
from langgraph_sqlite_ckpt.operations import Company, Operation, Ticket, Turn, Writer

T = TypeVar("T")


class Worker(aiosqlite.Connection):
    """aiosqlite's thread and queue, without a connection of its own: the one place that touches aiosqlite."""

    def __init__(self) -> None:
        super().__init__(_no_connection, iter_chunk_size=64)
        self._thread.daemon = True
        self._thread.start()

    def post(self, work: Callable[[], object]) -> None:
        """Without waiting; `work` reports for itself."""
        self._tx.put_nowait((_NOBODY, _Once(work)))

    def halt(self) -> None:
        """End the thread after what is queued, with or without an event loop."""
        self._tx.put_nowait((_NOBODY, lambda: aiosqlite.core._STOP_RUNNING_SENTINEL))


def _no_connection() -> Any:
    raise NotImplementedError("connections belong to database.py")


class _Once:
    """Work that lets go of all it holds when it has run: an idle thread keeps no saver, and no state, alive."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = [work]

    def __call__(self) -> None:
        self._work.pop()()


class _Nobody:
    """Stands where aiosqlite expects a future; outcomes go back in another way."""

    def get_loop(self) -> _Nobody:
        return self

    def call_soon_threadsafe(self, *_: object) -> None:
        pass


_NOBODY: Any = _Nobody()


class Outcome(NamedTuple):
    """What a future is to become."""

    future: asyncio.Future[Any]
    value: Any = None
    error: BaseException | None = None


class Courier:
    """Carries operations from event loops to the two threads, and outcomes back."""

    def __init__(self, writer: Writer, events: Events) -> None:
        self._writer = writer
        self._events = events
        self._posting = Turn()  # nothing is posted behind the end of a thread
        self._workers: dict[str, Worker] = {}
        self._halted = False
        self._inbox: deque[tuple[Operation[Any], asyncio.Future[Any]]] = deque()
        self._posted = False
        self._company = Company()

    async def read(self, work: Callable[[], T]) -> T:
        return await self._run("reader", work)

    async def look_after(self, work: Callable[[], T]) -> T:
        """Work that may take minutes (verify, sweep, compact): no graph waits behind it."""
        return await self._run("keeper", work)

    async def _run(self, thread: str, work: Callable[[], T]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._posting.take(lambda: self._thread(thread).post(partial(self._do, partial(_run, work, future))))
        return await future

    async def write(self, operation: Operation[T]) -> T:
        return await self.send(operation)

    def send(self, operation: Operation[T]) -> asyncio.Future[T]:
        """It is on its way when this returns, and is left out only if the future is cancelled before its turn."""
        operation.asked_at = time.perf_counter()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._posting.take(lambda: self._gather(operation, future))
        return future

    def _gather(self, operation: Operation[T], future: asyncio.Future[T]) -> None:
        writer = self._thread("writer")
        self._inbox.append((operation, future))
        self._company.announce()
        if not self._posted:
            self._posted = True
            writer.post(partial(self._do, self._deliver))

    def _thread(self, name: str) -> Worker:
        if self._halted:
            raise ClosedError(f"{self._writer.path}: this saver was closed; make a new one")
        if name not in self._workers:
            self._workers[name] = Worker()
        return self._workers[name]

    def _do(self, work: Callable[[], None]) -> None:
        """On one of the threads. A hook is called when whoever waits has been told."""
        with self._events.later():
            work()

    def _deliver(self) -> None:
        """On the writer's thread: all that has gathered, in one transaction. What was cancelled already is left out."""
        self._company.wait(lambda: all(operation.expects_company for operation, _ in tuple(self._inbox)))
        self._posted = False  # first: who comes from now on posts again
        gathered = [self._inbox.popleft() for _ in range(len(self._inbox))]
        awaited = [(operation, future) for operation, future in gathered if not future.cancelled()]
        try:
            tickets = self._writer.write_all([operation for operation, _ in awaited])
        except BaseException as error:
            _report([Outcome(future, error=error) for _, future in awaited])
            raise
        _report([_outcome(future, ticket) for (_, future), ticket in zip(awaited, tickets, strict=True)])

    def halt(self) -> None:
        """What was posted is still done."""
        self._posting.in_time(lambda: self._posting.take(self._halt))

    def _halt(self) -> None:
        self._halted = True
        for worker in self._workers.values():
            worker.halt()
        self._workers.clear()


def _run(work: Callable[[], Any], future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        return
    try:
        outcome = Outcome(future, work())
    except BaseException as error:
        outcome = Outcome(future, error=error)
    _report([outcome])


def _outcome(future: asyncio.Future[Any], ticket: Ticket[Any]) -> Outcome:
    return Outcome(future, error=ticket.error) if ticket.error is not None else Outcome(future, ticket.result())


def _report(outcomes: Sequence[Outcome]) -> None:
    """To each event loop in one call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        by_loop.setdefault(outcome.future.get_loop(), []).append(outcome)
    for loop, of_loop in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
            loop.call_soon_threadsafe(_hand_out, of_loop)


def _hand_out(outcomes: Sequence[Outcome]) -> None:
    for future, value, error in outcomes:
        if future.done():  # cancelled meanwhile
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)


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
        await self._courier.look_after(self._tidy)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await self._courier.write(self._delete_for_runs(run_ids))
        await self._courier.look_after(self._tidy)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await self._courier.write(self._copy_thread(source_thread_id, target_thread_id))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await self._courier.write(self._prune(thread_ids, strategy))
        await self._courier.look_after(self._tidy)

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

    def _tidy(self) -> None:
        raise NotImplementedError


def _next(items: Iterator[T]) -> T | None:
    return next(items, None)
