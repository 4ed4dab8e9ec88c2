"""`claim` and `recover`: one runner per thread, and what a crash left unfinished goes on.

Recovering is claiming: in one transaction a thread is found to have crashed still, its attempts are counted, and it is
claimed. So several recoverers on one file share the work, and a run that keeps killing its process is given up at last.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from langgraph_sqlite_ckpt import overview, tables
from langgraph_sqlite_ckpt.claims import Claim, require_timeout
from langgraph_sqlite_ckpt.custody import custody_of
from langgraph_sqlite_ckpt.encoding import as_text
from langgraph_sqlite_ckpt.errors import InvalidRequest, ThreadBusy
from langgraph_sqlite_ckpt.liveness import end_gone_owners, judge
from langgraph_sqlite_ckpt.operations import Statement
from langgraph_sqlite_ckpt.overview import Thread
from langgraph_sqlite_ckpt.tables import Custody
from langgraph_sqlite_ckpt.wholefile import Progress

if TYPE_CHECKING:
    from langgraph_sqlite_ckpt.shared import Shared

_LOG = logging.getLogger("langgraph_sqlite_ckpt")

UNFINISHED: tuple[str, ...] = ("crashed", "stopped", "failed", "abandoned")
"""The states that `recover` can be told to go on from."""


class Recovered(NamedTuple):
    """What became of a run that had not ended."""

    thread_id: str
    run_id: str
    outcome: Literal["completed", "interrupted", "failed", "abandoned"]
    """"interrupted": a person is needed, who was waited for already or is now. "abandoned": see `max_attempts`."""
    attempts: int
    """How often it was resumed from where it stood, this time included."""
    values: Any = None
    """What `graph.invoke` returned."""
    error: BaseException | None = None
    """What it raised."""


class Recovering:
    """The part of `SqliteSaver` about who runs a thread."""

    _shared: Shared

    def claim(self, thread_id: object, *, timeout: float = 0.0) -> Claim:
        """`with saver.claim(thread_id):` (or `async with`): this saver alone runs the thread, until the end of the block.

        Meanwhile any other claim, and any `put` or `put_writes` to the thread by other savers, raises `ThreadBusy`;
        deleting or pruning it does not ask. Look at the state inside the block: whoever had the claim before may have
        answered the interrupt, or ended the run. A claim dies with its process; one on another machine or in another
        container, which nobody can look at, 60 seconds after its last heartbeat. Not reentrant.

        Args:
            thread_id: It need not exist yet.
            timeout: Seconds to wait for whoever has it; 0 (default): not at all, `math.inf`: for ever.

        Raises:
            ThreadBusy: Somebody else has it, another task or thread of this process included.
        """
        shared = self._shared
        if thread_id is None:
            raise InvalidRequest("claim needs a thread_id, as the config of the run has it")
        text = as_text("thread_id", thread_id)
        return Claim(shared.writer, shared.courier, shared.owner, text, timeout=require_timeout(timeout))

    def recover(
        self,
        graph: Any,
        *,
        max_attempts: int = 3,
        statuses: Collection[str] = ("crashed",),
        only: Callable[[Thread], bool] | None = None,
        config: RunnableConfig | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> Iterator[Recovered]:
        """Resume every run of this graph that a crash left unfinished, the oldest first; yields what became of each.

        Each runs under a claim, so any number of processes may do this at once. Runs that wait for a person are left
        alone, also those at a breakpoint (`interrupt_before`, `interrupt_after`) of the graph.

        Args:
            graph: Compiled with this saver. A run is taken for its own if all that is due next are nodes of it. One
                that stands at its very input (in the functional API: each) names no node, and is taken by any graph.
            max_attempts: A run that was resumed so often and got not one write further is "abandoned".
            statuses: "crashed" (default: the process is gone), "stopped" (the saver was closed in mid-run: name it where a
                service shuts down in good order), "failed" (an error stands), "abandoned" (with a larger `max_attempts`).
            only: Whether to take a thread: for files with several graphs that cannot be told apart in this way.
            config: Merged into the config of each run.
            progress: Called with the number of runs that are done and of those to do.
            options: For `graph.invoke`: `context=`, `durability=`, ...

        Raises:
            InvalidRequest: The graph is not compiled with this saver, or an argument makes no sense.
        """
        work = self._recovery(graph, max_attempts, statuses, only, config, options)
        return work.run(progress)

    def arecover(
        self,
        graph: Any,
        *,
        concurrency: int = 4,
        max_attempts: int = 3,
        statuses: Collection[str] = ("crashed",),
        only: Callable[[Thread], bool] | None = None,
        config: RunnableConfig | None = None,
        progress: Progress | None = None,
        **options: Any,
    ) -> AsyncIterator[Recovered]:
        """`recover` with `graph.ainvoke`, so many runs at a time; yields each as it ends."""
        if not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidRequest(f"concurrency is a number of runs, at least 1, not {concurrency!r}")
        work = self._recovery(graph, max_attempts, statuses, only, config, options)
        return work.arun(concurrency, progress)

    def _recovery(
        self,
        graph: Any,
        max_attempts: int,
        statuses: Collection[str],
        only: Callable[[Thread], bool] | None,
        config: RunnableConfig | None,
        options: Mapping[str, Any],
    ) -> Recovery:
        if getattr(getattr(graph, "checkpointer", None), "_shared", None) is not self._shared:
            raise InvalidRequest("recover needs a graph that was compiled with this saver: compile(checkpointer=saver)")
        if not isinstance(max_attempts, int) or max_attempts < 1:
            raise InvalidRequest(f"max_attempts is a number, at least 1, not {max_attempts!r}")
        if isinstance(statuses, str) or not statuses or not set(statuses) <= set(UNFINISHED):
            raise InvalidRequest(f"statuses are some of {', '.join(UNFINISHED)}, not {statuses!r}")
        return Recovery(self._shared, graph, max_attempts, tuple(statuses), only, config, options)


@dataclass(frozen=True)
class Recovery:
    """One call of `recover`."""

    shared: Shared
    graph: Any
    max_attempts: int
    statuses: Sequence[str]
    only: Callable[[Thread], bool] | None
    config: RunnableConfig | None
    options: Mapping[str, Any]

    def run(self, progress: Progress | None) -> Iterator[Recovered]:
        threads = self._unfinished()
        for done, thread in enumerate(threads, 1):
            recovered = self._one(thread)
            if progress is not None:
                progress(done, len(threads))
            if recovered is not None:
                yield recovered

    async def arun(self, concurrency: int, progress: Progress | None) -> AsyncIterator[Recovered]:
        threads = await self.shared.courier.read(self._unfinished)
        to_do, done = iter(threads), 0
        running: set[asyncio.Task[Recovered | None]] = set()
        try:
            while True:
                while len(running) < concurrency and (thread := next(to_do, None)) is not None:
                    running.add(asyncio.create_task(self._aone(thread)))
                if not running:
                    return
                ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    done += 1
                    if progress is not None:
                        progress(done, len(threads))
                    if (recovered := task.result()) is not None:
                        yield recovered
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _unfinished(self) -> Sequence[Thread]:
        """The oldest first."""
        with self.shared.read() as db:
            judged = judge(db)
            found = [thread for status in self.statuses for thread in overview.threads(db, judged, status)]
        return sorted(filter(self._is_ours, found), key=lambda thread: thread.number)

    def _is_ours(self, thread: Thread) -> bool:
        known = {*self.graph.nodes, "__start__"}
        return known.issuperset(thread.next) and (self.only is None or self.only(thread))

    # --- one run ---

    def _one(self, thread: Thread) -> Recovered | None:
        """None: somebody else has it, or it has gone on."""
        if (left_alone := self._left_alone(thread)) is not None:
            return self._told(left_alone)
        try:
            with self._claim(thread) as claim:
                return self._told(self._resumed(thread, claim.attempts))
        except _TooManyAttempts as given_up:
            self.shared.writer.write(Statement(lambda db: self._abandon(db, thread.thread_id)))
            return self._told(Recovered(thread.thread_id, thread.run_id, "abandoned", given_up.attempts))
        except ThreadBusy:
            return None

    async def _aone(self, thread: Thread) -> Recovered | None:
        if (left_alone := await self.shared.courier.look_after(lambda: self._left_alone(thread))) is not None:
            return self._told(left_alone)
        try:
            async with self._claim(thread) as claim:
                return self._told(await self._aresumed(thread, claim.attempts))
        except _TooManyAttempts as given_up:
            await self.shared.courier.write(Statement(lambda db: self._abandon(db, thread.thread_id)))
            return self._told(Recovered(thread.thread_id, thread.run_id, "abandoned", given_up.attempts))
        except ThreadBusy:
            return None

    def _resumed(self, thread: Thread, attempts: int) -> Recovered:
        if (left_alone := self._left_alone(thread)) is not None:  # somebody may have gone on, up to there
            return left_alone
        config = self._config(thread)
        try:
            values = self.graph.invoke(None, config, **self.options)
            due = self.graph.get_state(config).next
        except Exception as error:  # the graph's own
            return Recovered(thread.thread_id, thread.run_id, "failed", attempts, error=error)
        return Recovered(thread.thread_id, thread.run_id, "interrupted" if due else "completed", attempts, values)

    async def _aresumed(self, thread: Thread, attempts: int) -> Recovered:
        if (left_alone := await self.shared.courier.look_after(lambda: self._left_alone(thread))) is not None:
            return left_alone
        config = self._config(thread)
        try:
            values = await self.graph.ainvoke(None, config, **self.options)
            due = (await self.graph.aget_state(config)).next
        except Exception as error:  # likewise
            return Recovered(thread.thread_id, thread.run_id, "failed", attempts, error=error)
        return Recovered(thread.thread_id, thread.run_id, "interrupted" if due else "completed", attempts, values)

    def _config(self, thread: Thread) -> RunnableConfig:
        return merge_configs(self.config, {"configurable": {"thread_id": thread.thread_id}})

    def _left_alone(self, thread: Thread) -> Recovered | None:
        """A run at a breakpoint, or one whose state cannot be read: it must not keep the others from going on."""
        try:
            waits = self._waits_at_a_breakpoint(self._config(thread))
        except Exception as error:
            return Recovered(thread.thread_id, thread.run_id, "failed", 0, error=error)
        return Recovered(thread.thread_id, thread.run_id, "interrupted", 0) if waits else None

    def _waits_at_a_breakpoint(self, config: RunnableConfig) -> bool:
        """LangGraph stores nothing there. Going on would be to approve what a person was to see."""
        before, after = self.graph.interrupt_before_nodes, self.graph.interrupt_after_nodes
        if not before and not after:
            return False
        state = self.graph.get_state(config)
        if _meets(state.next, before):
            return True
        parent = state.parent_config if after else None
        return parent is not None and _meets(self.graph.get_state(parent).next, after)

    def _told(self, recovered: Recovered) -> Recovered:
        level = logging.WARNING if recovered.outcome in ("failed", "abandoned") else logging.INFO
        why = "" if recovered.error is None else f" ({type(recovered.error).__name__}: {recovered.error})"
        run, attempt = f"thread {recovered.thread_id!r}, run {recovered.run_id}", f"attempt {recovered.attempts}"
        _LOG.log(level, "%s: %s after %s of %d%s", run, recovered.outcome, attempt, self.max_attempts, why)
        return recovered

    # --- claiming what has crashed ---

    def _claim(self, thread: Thread) -> Claim:
        shared = self.shared
        return Claim(shared.writer, shared.courier, shared.owner, thread.thread_id, check=self._count_attempt)

    def _count_attempt(self, db: sqlite3.Connection, thread_id: str) -> Custody:
        """The thread's custody with one attempt more.

        Raises:
            ThreadBusy: It is not unfinished any more.
            _TooManyAttempts: It is, and was resumed in vain too often.
        """
        if tables.status_of(db, end_gone_owners(db), thread_id) not in self.statuses:
            raise ThreadBusy(f"thread {thread_id!r} has gone on")
        custody, mark = custody_of(db, thread_id), tables.progress_of(db, thread_id)
        attempts = custody.attempts if custody.mark == mark else 0
        if attempts >= self.max_attempts:
            raise _TooManyAttempts(attempts)
        return custody._replace(attempts=attempts + 1, mark=mark, abandoned=0)

    def _abandon(self, db: sqlite3.Connection, thread_id: str) -> None:
        try:
            self._count_attempt(db, thread_id)
        except _TooManyAttempts:
            tables.set_custody(db, thread_id, custody_of(db, thread_id)._replace(abandoned=1))
        except ThreadBusy:  # somebody had more luck with it
            return


class _TooManyAttempts(Exception):
    def __init__(self, attempts: int) -> None:
        super().__init__(attempts)
        self.attempts = attempts


def _meets(nodes: Sequence[str], breakpoints: Any) -> bool:
    """LangGraph never stops at the input."""
    stops = set(nodes) - {"__start__"}
    return bool(stops) and (breakpoints == "*" or not stops.isdisjoint(breakpoints))
