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
from langgraph_sqlite_ckpt.errors import ClosedError, InvalidRequest, ThreadBusy
from langgraph_sqlite_ckpt.operations import Operation, Writer
from langgraph_sqlite_ckpt.tables import Custody

Check = Callable[[sqlite3.Connection, str], Custody]
"""Called in the transaction that claims a thread; returns its custody as it shall be, or raises."""


class Claiming(Operation[Custody]):
    """A claim on its way into the file."""

    kind = "claim"
    thread_id: str

    def __init__(self, owner: Owner, thread_id: str, claim: int, check: Check) -> None:
        self._owner, self.thread_id, self._claim, self._check = owner, thread_id, claim, check

    def apply(self, db: sqlite3.Connection) -> Custody:
        return self._owner.take(db, self.thread_id, self._claim, self._check(db, self.thread_id))

    def committed(self) -> None:
        self._owner.wrote()
        self._owner.claims[self.thread_id] = self._claim


class Releasing(Operation[None]):
    """It is given back. Fine where there is none, or by now another."""

    kind = "release"
    thread_id: str

    def __init__(self, owner: Owner, thread_id: str, claim: int) -> None:
        self._owner, self.thread_id, self._claim = owner, thread_id, claim

    def apply(self, db: sqlite3.Connection) -> None:
        if self._owner.claims.get(self.thread_id) == self._claim:
            del self._owner.claims[self.thread_id]  # already here: the next operation may be of the same transaction
        tables.end_claim(db, self.thread_id, self._claim)


class Claim:
    """The saver alone runs `thread_id`, from `with` (or `async with`) to its end. Made by `SqliteSaver.claim`."""

    _SHORTEST, _LONGEST = 0.005, 0.1  # seconds between two tries

    def __init__(
        self,
        writer: Writer,
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
        self._writer, self._courier, self._owner = writer, courier, owner
        self._timeout = timeout
        self._number: int | None = None
        self._process = os.getpid()

    def __enter__(self) -> Claim:
        for pause in self._pauses():
            number = random.getrandbits(62)
            try:
                self._got(number, self._writer.write(self._claiming(number)))
                return self
            except ThreadBusy:
                if pause is None:
                    raise
                time.sleep(pause)
            except Exception:  # nothing was written
                raise
            except BaseException:  # Ctrl-C, say, which may have come after the commit
                self._let_go(number)
                raise
        raise AssertionError("the last pause is None")

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go(self._number)

    async def __aenter__(self) -> Claim:
        for pause in self._pauses():
            number = random.getrandbits(62)
            try:
                self._got(number, await self._courier.write(self._claiming(number)))
                return self
            except ThreadBusy:
                if pause is None:
                    raise
                await asyncio.sleep(pause)
            except Exception:  # nothing was written
                raise
            except BaseException:  # a task that is cancelled here may have got it meanwhile
                await self._alet_go(number)
                raise
        raise AssertionError("the last pause is None")

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._alet_go(self._number)

    def _pauses(self) -> Iterator[float | None]:
        """Between tries, with jitter so that those who wait do not come together; None: this was the last one."""
        deadline, longest = time.monotonic() + self._timeout, self._SHORTEST
        while (left := deadline - time.monotonic()) > 0:
            yield min(left, random.uniform(self._SHORTEST, longest))
            longest = min(2 * longest, self._LONGEST)
        yield None

    def _claiming(self, number: int) -> Claiming:
        if self._is_elsewhere():
            raise InvalidRequest(f"this claim of thread {self.thread_id!r} was made before a fork: make one here")
        return Claiming(self._owner, self.thread_id, number, self._check)

    def _got(self, number: int, custody: Custody) -> None:
        self._number, self.attempts = number, custody.attempts

    def _let_go(self, number: int | None) -> None:
        if number is not None and not self._is_elsewhere():
            with suppress(ClosedError):  # then it has ended already
                self._writer.write(Releasing(self._owner, self.thread_id, number))

    async def _alet_go(self, number: int | None) -> None:
        """Also where the task is being cancelled, once more even: what was sent off is done."""
        if number is not None and not self._is_elsewhere():
            with suppress(ClosedError):
                await asyncio.shield(self._courier.send(Releasing(self._owner, self.thread_id, number)))

    def _is_elsewhere(self) -> bool:
        """In a forked child: its parent goes on with the thread."""
        return os.getpid() != self._process


def require_timeout(timeout: float) -> float:
    if not isinstance(timeout, (int, float)) or isinstance(timeout, bool) or not timeout >= 0:
        raise InvalidRequest(f"timeout is a number of seconds, not {timeout!r}")
    return float(timeout)
