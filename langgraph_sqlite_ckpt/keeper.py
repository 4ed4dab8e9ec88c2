"""Who looks after a buffer between two calls, and when the interpreter ends."""

from __future__ import annotations

import atexit
import math
import os
import sys
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from langgraph_sqlite_ckpt.buffer import Buffer

_AT_EXIT = 10.0  # seconds for which the interpreter's exit waits for the disk


class Keeper:
    """A thread that looks after a buffer, which it does not keep alive; nor the process."""

    def __init__(self, buffer: Buffer) -> None:
        # A bare lock, held until somebody rings: unlike threading.Event it cannot be left locked by a Ctrl-C.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._process = os.getpid()
        self._last: list[Buffer] = []
        self._ended = threading.Lock()
        self._ended.acquire()
        self._buffer = weakref.ref(buffer)
        threading.Thread(target=self._run, name="SqliteSaver flush", daemon=True).start()
        _also_at_the_end_of_a_child()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    def part(self, buffer: Buffer) -> None:
        """Keeps the buffer alive until all of it is written."""
        self._last.append(buffer)
        _PARTING.add(self)
        self.ring()

    def wait(self, seconds: float) -> None:
        """Until its thread has ended, which a forked child does not have."""
        if self._process == os.getpid() and self._ended.acquire(timeout=seconds):
            self._ended.release()

    def _run(self) -> None:
        patience: float | None = 0.0
        try:
            while patience is not None:
                self._bell.acquire(timeout=min(patience, threading.TIMEOUT_MAX))
                patience = self._round()
        finally:
            self._last.clear()
            _PARTING.discard(self)
            self._ended.release()

    def _round(self) -> float | None:
        buffer = self._last[0] if self._last else self._buffer()
        return math.inf if buffer is None else buffer.look_after()  # it is being collected: `part` comes next


KEPT: weakref.WeakSet[Buffer] = weakref.WeakSet()
_PARTING: set[Keeper] = set()


def _part_from_all() -> None:
    """The interpreter ends in good order: what waits is written, in a bounded time, and nothing waits from now on."""
    for buffer in tuple(KEPT):
        buffer.part()
    deadline = time.monotonic() + _AT_EXIT
    for keeper in tuple(_PARTING):
        keeper.wait(max(0.0, deadline - time.monotonic()))


atexit.register(_part_from_all)
_CHILDREN: set[int] = set()


def _also_at_the_end_of_a_child() -> None:
    """Before Python 3.14 the children of `multiprocessing` end without `atexit`, but with finalizers of their own."""
    process, util = sys.modules.get("multiprocessing.process"), sys.modules.get("multiprocessing.util")
    if process is None or util is None or process.parent_process() is None or os.getpid() in _CHILDREN:
        return
    _CHILDREN.add(os.getpid())
    util.Finalize(None, _part_from_all, exitpriority=0)
