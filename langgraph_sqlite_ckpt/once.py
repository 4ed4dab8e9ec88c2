"""`once` and what people do about its doubts: the public methods. See `effects.py` for how it is kept."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.config import get_config

from langgraph_sqlite_ckpt import effects
from langgraph_sqlite_ckpt.effects import CHECKPOINTER, Call, Effect, OnDoubt, require_name, spot_of
from langgraph_sqlite_ckpt.errors import CheckpointError, InvalidRequest
from langgraph_sqlite_ckpt.operations import Operation

if TYPE_CHECKING:
    from langgraph_sqlite_ckpt.shared import Shared

T = TypeVar("T")


class Once(BaseCheckpointSaver[str]):
    """The part of `SqliteSaver` that keeps effects from being repeated."""

    _shared: Shared

    def once(
        self,
        name: str,
        effect: Callable[[str], T],
        *,
        on_doubt: OnDoubt = "raise",
        config: RunnableConfig | None = None,
    ) -> T:
        """Do something outside, in a node or @task, so that a resume does not do it again: at most once, or in doubt.

            receipt = saver.once("pay", lambda key: bank.pay(42, idempotency_key=key))

        An entry is on disk before `effect` is called (forced there with synchronous="normal", too), and its result after.
        The same task, retried or resumed, gets that result, and `effect` is not called. A process that dies in between,
        or an exception out of `effect`, leaves the entry in doubt, which only somebody who can look outside can end: see
        `resolve`.

        What runs again on purpose is not held back: a fork (`update_state`, a `checkpoint_id` in the config), a new input.

        Args:
            name: Unique within the task: a second call of that name gets the result of the first. Where one task does
                the same for several (customers, tool calls), name them: f"mail {address}".
            effect: Called with an idempotency key, a UUID that is the same at every try: pass it on to a service that
                knows such. It raises `EffectNotDone` where surely nothing happened; it may then be called again. Its
                result is stored like a channel's value. No `interrupt()` in it: ask before.
            on_doubt: "raise": `EffectInDoubt`. "retry": call again with the same key, for services that do the same key
                only once.
            config: The node's, where LangGraph cannot pass it on by itself: in threads that a node starts, and in async
                nodes under Python 3.10.

        Raises:
            EffectInDoubt: It was begun before, and nobody knows whether it happened. Stays until it is resolved.
            EffectRunning: Another process, or another thread of this one, is calling it.
            EncodeError: The result cannot be stored. It did happen, and is in doubt.
            InvalidRequest: Not in a task of a graph that stores its steps here (durability "exit" does not).
        """
        if inspect.iscoroutinefunction(effect):
            raise InvalidRequest("once() cannot call a coroutine function: await aonce()")
        call = self._call(name, on_doubt, config)
        for pause in call.looks():
            if self._look(call):
                break
            time.sleep(pause)
        if call.done is not None:
            return cast(T, call.result(call.done))
        write = self._shared.direct.write
        with call.alone():
            try:
                done = write(call.begin())
                if done is not None:
                    return cast(T, call.result(done))
                self._shared.database.sync()
                result = call.run(effect)
                write(call.finish(result))
            except BaseException as error:
                with suppress(CheckpointError):  # what happened matters more; without a result it is in doubt anyway
                    write(call.fail(error))
                raise
        return result

    def effects(
        self,
        thread_id: object = None,
        *,
        status: str | None = None,
        limit: int | None = None,
        after: Effect | None = None,
    ) -> Sequence[Effect]:
        """What tasks did outside through `once`, newest first, of a thread or of all; without the results.

        Args:
            thread_id: Only of this thread.
            status: Only "running", "done" or "in_doubt" (begun, and nobody knows whether it happened).
            limit: At most so many.
            after: The last one of the page before.
        """
        thread = None if thread_id is None else str(thread_id)
        with self._shared.events.timing("effects", thread) as timing:
            with self._shared.database.read() as db:
                found = effects.effects(db, self._shared.owner, thread, status, limit, after)
            timing.found(items=len(found))
        return found

    def resolve(self, key: str, *, happened: bool, result: object = None) -> None:
        """Say what became of an effect that is in doubt; then resume its thread.

        Args:
            key: Its idempotency key, from `effects()` or `EffectInDoubt.key`.
            happened: True: it did, and its task gets `result`. False: it did not, and its task will call it again.
            result: As `effect` would have given it.

        Raises:
            InvalidRequest: No such effect is in doubt: there is none, it is done, or it is running.
            EncodeError: The result cannot be stored.
        """
        self._shared.direct.write(self._resolution(key, happened, result))

    async def aonce(
        self,
        name: str,
        effect: Callable[[str], Awaitable[T] | T],
        *,
        on_doubt: OnDoubt = "raise",
        config: RunnableConfig | None = None,
    ) -> T:
        """`once()` for async nodes; `effect` may be a coroutine function. Cancelled in it, it is in doubt."""
        courier = self._shared.courier
        call = self._call(name, on_doubt, config)
        for pause in call.looks():
            if await courier.read(partial(self._look, call)):
                break
            await asyncio.sleep(pause)
        if call.done is not None:
            return cast(T, await courier.read(partial(call.result, call.done)))
        with call.alone():
            try:
                done = await courier.write(call.begin())
                if done is not None:
                    return cast(T, await courier.read(partial(call.result, done)))
                await courier.read(self._shared.database.sync)
                result = call.run(effect)
                if inspect.isawaitable(result):
                    result = await result
                await courier.write(call.finish(result))
            except BaseException as error:
                with suppress(CheckpointError):
                    await asyncio.shield(asyncio.ensure_future(courier.write(call.fail(error))))
                raise
        return cast(T, result)

    async def aeffects(
        self,
        thread_id: object = None,
        *,
        status: str | None = None,
        limit: int | None = None,
        after: Effect | None = None,
    ) -> Sequence[Effect]:
        return await self._shared.courier.read(partial(self.effects, thread_id, status=status, limit=limit, after=after))

    async def aresolve(self, key: str, *, happened: bool, result: object = None) -> None:
        courier = self._shared.courier
        await courier.write(await courier.read(partial(self._resolution, key, happened, result)))

    def _call(self, name: str, on_doubt: OnDoubt, config: RunnableConfig | None) -> Call:
        configurable = _configurable(config)
        checkpointer = configurable.get(CHECKPOINTER)
        serde = checkpointer.serde if isinstance(checkpointer, Once) else self.serde  # it knows the graph's types
        return Call(self._shared.store, serde, spot_of(configurable, require_name(name)), on_doubt)

    def _look(self, call: Call) -> bool:
        self._shared.flush(call.spot.thread_id)  # a policy may keep the step back
        return call.look()

    def _resolution(self, key: str, happened: bool, result: object) -> Operation[None]:
        return effects.resolution(self._shared.store, self.serde, key, happened=happened, result=result)


def _configurable(config: RunnableConfig | None) -> Mapping[str, Any]:
    """What LangGraph tells the task that runs here."""
    if config is not None and not isinstance(config, Mapping):
        raise InvalidRequest(f"config is the node's, as LangGraph passes it, not {config!r:.80}")
    try:
        configurable = (config if config is not None else get_config()).get("configurable")
    except RuntimeError as error:
        raise InvalidRequest(
            "once() belongs in a node or @task of a running graph. In one, pass config=: a thread that a node starts, and "
            "an async node under Python 3.10, do not know it"
        ) from error
    return configurable or {}
