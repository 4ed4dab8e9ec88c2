"""Claims: this saver alone runs a thread. See `custody.py` for what keeps them apart."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.aio import Courier
from langgraph_sqlite_ckpt.custody import Owner, custody_of
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.errors import ClosedError, InvalidRequest, ThreadBusy
from langgraph_sqlite_ckpt.operations import Operation
from langgraph_sqlite_ckpt.tables import Custody

Check = Callable[[sqlite3.Connection, str], Custody]
"""Called in the transaction that claims a thread; returns its custody as it shall be, or raises."""


class Claiming(Operation[Custody]):
    """A claim on its way into the file."""

    def __init__(self, owner: Owner, thread_id: str, claim: int, check: Check) -> None:
        self._owner, self._thread_id, self._claim, self._check = owner, thread_id, claim, check

    def apply(self, db: sqlite3.Connection) -> Custody:
        return self._owner.take(db, self._thread_id, self._claim, self._check(db, self._thread_id))

    def committed(self) -> None:
        self._owner.wrote()
        self._owner.claims[self._thread_id] = self._claim


class Releasing(Operation[None]):
    """It is given back. Fine where there is none, or by now another."""

    def __init__(self, owner: Owner, thread_id: str, claim: int) -> None:
        self._owner, self._thread_id, self._claim = owner, thread_id, claim

    def apply(self, db: sqlite3.Connection) -> None:
        tables.end_claim(db, self._thread_id, self._claim)

    def committed(self) -> None:
        if self._owner.claims.get(self._thread_id) == self._claim:
            del self._owner.claims[self._thread_id]


class Claim:
    """The saver alone runs the thread, from `with` (or `async with`) to its end. Made by `SqliteSaver.claim`."""

    _SHORTEST, _LONGEST = 0.005, 0.1  # seconds between two tries

    def __init__(
        self,
        database: Database,
        courier: Courier,
        owner: Owner,
        thread_id: str,
        *,
        timeout: float = 0.0,
        check: Check = custody_of,
    ) -> None:
        self.thread_id = thread_id
        self.attempts = 0  # of `recover`, this one included
        self._check = check
        self._database, self._courier, self._owner = database, courier, owner
        self._timeout = timeout
        self._number: int | None = None
        self._process = os.getpid()

    def __enter__(self) -> Claim:
        for pause in self._pauses():
            try:
                self.attempts = self._database.write(self._claiming()).attempts
                return self
            except ThreadBusy:
                if pause is None:
                    raise
                time.sleep(pause)
            except BaseException:  # Ctrl-C, say, which may have come after the commit
                self._let_go()
                raise
        raise AssertionError("the last pause is None")

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()

    async def __aenter__(self) -> Claim:
        for pause in self._pauses():
            try:
                self.attempts = (await self._courier.write(self._claiming())).attempts
                return self
            except ThreadBusy:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            except BaseException:  # a task that is cancelled here may have got it meanwhile
                await self._alet_go()
                raise
        raise AssertionError("the last pause is None")

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._alet_go()

    def _pauses(self) -> Iterator[float | None]:
        """Between tries, with jitter so that those who wait do not come together; None: this was the last one."""
        deadline, longest = time.monotonic() + self._timeout, self._SHORTEST
        while (left := deadline - time.monotonic()) > 0:
            yield min(left, random.uniform(self._SHORTEST, longest))
            longest = min(2 * longest, self._LONGEST)
        yield None

    def _claiming(self) -> Claiming:
        self._number = random.getrandbits(62)
        return Claiming(self._owner, self.thread_id, self._number, self._check)

    def _let_go(self) -> None:
        if (releasing := self._releasing()) is not None:
            with suppress(ClosedError):  # then it has ended already
                self._database.write(releasing)

    async def _alet_go(self) -> None:
        """Also where the task is being cancelled: what was sent off is done."""
        if (releasing := self._releasing()) is not None:
            with suppress(ClosedError):
                await asyncio.shield(asyncio.ensure_future(self._courier.write(releasing)))

    def _releasing(self) -> Releasing | None:
        """None in a forked child: its parent goes on with the thread."""
        number, self._number = self._number, None
        return (
            Releasing(self._owner, self.thread_id, number) if number is not None and os.getpid() == self._process else None
        )


def require_timeout(timeout: float) -> float:
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout >= 0:
        raise InvalidRequest(f"timeout is a number of seconds, not {timeout!r}")
    return float(timeout)
