"""What a saver does, told to a hook of its user's: for metrics, and cheap enough to leave on.

Events are noted where the work is done, and handed to the hook by the same thread once it has left every lock and every
transaction of ours: so may a hook take its time, raise, or use the saver. On the async face that is a thread of the
saver's, after the task that waits was told. Rejected: a thread of its own for hooks (a queue without bound where the hook
is slower than the work, and events that are lost at exit).
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from langgraph_sqlite_ckpt.errors import InvalidRequest
from langgraph_sqlite_ckpt.operations import Operation, Ticket, Writer

T = TypeVar("T")

_LOG = logging.getLogger("langgraph_sqlite_ckpt")
_MOST = 10_000  # events of one thread that wait to be told: the oldest go, should it be so many


class Event(NamedTuple):
    """Something that a saver has done, or failed to do: what `SqliteSaver(path, on_event=...)` calls its hook with.

    One for each call of a public method on either face, under the name of its sync method ("put", "get_tuple", "sweep",
    ...), but for "list" one for each page that is read, and for "once" one for each entry that it writes. "claim" and
    "release" are the two ends of a claim. "commit" is a transaction, with all operations that shared it (group commit).
    """

    operation: str
    seconds: float
    """Until it was done: on the async face from when the call was made, or for reads from when a thread took it up."""
    thread_id: str | None = None
    """None where it is about several threads, or about the file."""
    bytes: int | None = None
    """"put", "put_writes": of the values, serialised, before compression. "get_tuple", "list": of the values that were read
    from the file, not from memory. "sweep": deleted. "compact": given back to the disk. "backup": the copy's. Else None."""
    items: int | None = None
    """"commit": operations in it. "list", "sweep", "migrate_all": checkpoints. "threads", "runs", "effects", "verify": what
    was found. Else None."""
    error: BaseException | None = None
    """What it raised."""


OnEvent = Callable[[Event], object]


class _Here(threading.local):
    """Of one thread."""

    is_inside = False  # of work of ours, which may hold locks
    is_telling = False

    def __init__(self) -> None:
        self.noted: deque[Event] = deque(maxlen=_MOST)


class Later:
    """What is noted inside, or in what that calls, is told when the outermost of these ends. This one: nothing is."""

    __slots__ = ()

    def __enter__(self) -> Later:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Timing(Later):
    """How long something takes, and what came of it. This one: nobody wants to know."""

    __slots__ = ()

    def __enter__(self) -> Timing:
        return self

    def found(self, *, bytes: int | None = None, items: int | None = None) -> None:
        """What the event is to say of it."""

    def failed(self, error: BaseException) -> None:
        """Without raising."""


class _Later(Later):
    __slots__ = ("_events", "_was_inside")

    def __init__(self, events: Events) -> None:
        self._events = events

    def __enter__(self) -> _Later:
        here = self._events._here
        self._was_inside, here.is_inside = here.is_inside, True
        return self

    def __exit__(self, *_: object) -> None:
        self._events._here.is_inside = self._was_inside
        if not self._was_inside:
            self._events._tell()


class _Timing(Timing):
    __slots__ = ("_begin", "_bytes", "_error", "_events", "_items", "_later", "_operation", "_thread_id")

    def __init__(self, events: Events, operation: str, thread_id: str | None) -> None:
        self._events, self._operation, self._thread_id = events, operation, thread_id
        self._later = _Later(events)
        self._bytes: int | None = None
        self._items: int | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> _Timing:
        self._later.__enter__()
        self._begin = perf_counter()
        return self

    def found(self, *, bytes: int | None = None, items: int | None = None) -> None:
        self._bytes, self._items = bytes, items

    def failed(self, error: BaseException) -> None:
        self._error = error

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds, error = perf_counter() - self._begin, error or self._error
        self._events.note(Event(self._operation, seconds, self._thread_id, self._bytes, self._items, error))
        self._later.__exit__()


class Events:
    """Where a saver's events go. Without a hook nothing is timed and nothing noted. Thread-safe."""

    def __init__(self, hook: OnEvent | None = None) -> None:
        if hook is not None and not callable(hook):
            raise InvalidRequest(f"on_event is a function that is called with an Event, not {hook!r:.80}")
        if inspect.iscoroutinefunction(hook):
            raise InvalidRequest("on_event is called, not awaited: a coroutine function cannot be one")
        self._hook = hook
        self._here = _Here()
        self._has_complained = False

    def renewed(self) -> Events:
        """For a forked child: what its parent's thread was about is the parent's."""
        return Events(self._hook) if self._hook is not None else self

    def later(self) -> Later:
        return _Later(self) if self._hook is not None else _NOTHING

    def timing(self, operation: str, thread_id: str | None = None) -> Timing:
        return _Timing(self, operation, thread_id) if self._hook is not None else _NOTHING

    def watched(self, writer: Writer) -> Writer:
        """The same writer, but each operation makes an event."""
        return _Watched(writer, self) if self._hook is not None else writer

    def note(self, event: Event) -> None:
        here = self._here
        if not here.is_telling:  # what a hook does with its saver would never end
            here.noted.append(event)

    def _tell(self) -> None:
        here = self._here
        if here.is_telling:
            return
        here.is_telling = True
        try:
            while here.noted:
                self._call(here.noted.popleft())
        finally:
            here.is_telling = False

    def _call(self, event: Event) -> None:
        assert self._hook is not None  # else there is no event
        try:
            self._hook(event)
        except Exception:
            if not self._has_complained:
                self._has_complained = True
                _LOG.exception("on_event raised, which harms no run; it will not be said again (%r)", event)


_NOTHING = Timing()
SILENT = Events()


class _Watched:
    """A writer whose operations make events."""

    def __init__(self, writer: Writer, events: Events) -> None:
        self.path = writer.path
        self._writer, self._events = writer, events

    def write(self, operation: Operation[T]) -> T:
        [ticket] = self.write_all([operation])
        value: T = ticket.result()
        return value

    def write_all(self, operations: Sequence[Operation[Any]]) -> Sequence[Ticket[Any]]:
        begin = perf_counter()
        with self._events.later():
            try:
                tickets = self._writer.write_all(operations)
            except BaseException as error:
                self._note(begin, operations, [error] * len(operations))
                raise
            self._note(begin, operations, [ticket.error for ticket in tickets])
        return tickets

    def _note(self, begin: float, operations: Sequence[Operation[Any]], errors: Sequence[BaseException | None]) -> None:
        now = perf_counter()
        for operation, error in zip(operations, errors, strict=True):
            if not operation.kind:
                continue
            seconds = now - (operation.asked_at or begin)
            size = operation.size if error is None else None
            self._events.note(Event(operation.kind, seconds, operation.thread_id, size, error=error))
