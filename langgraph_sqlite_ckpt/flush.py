"""How often to save: the policy, and what never waits for it."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass

from langgraph.checkpoint.base import WRITES_IDX_MAP

from langgraph_sqlite_ckpt.errors import InvalidRequest
from langgraph_sqlite_ckpt.writing import Put, PutCheckpoint, PutWrites

_OUTSIDE = "00000000-0000-0000-0000-000000000000"  # LangGraph's task id for what comes from a caller, not from a task


@dataclass(frozen=True)
class Flush:
    """How often a saver writes to its file, and so what a crash of its process can lose: `SqliteSaver(path, flush=...)`.

    Until then a step is in this process's memory alone: other processes and savers do not see it. Reading a thread through
    the saver that buffers it writes it first. A step is a stored checkpoint, in whatever namespace of the thread.

    At once, and with all that waits of the thread: inputs, updates, forks; interrupts, errors, resumes; the end of a run;
    what is large (64 MB of a thread). `interrupt_before` and `interrupt_after` leave no mark that a saver could see: name
    those nodes in `nodes`. `flush()`, `close()` and the interpreter's normal exit write all.

    Args:
        steps: A crash loses at most the last steps - 1 of a thread (and what tasks of the step under way had written).
        seconds: A crash loses at most what was put in the last so many seconds.
        nodes: The checkpoint before each of these nodes, what the node wrote, and the checkpoint after it are written at
            once.

    With `steps` and `seconds`, whichever comes first. With `nodes` alone, all between two key points may be lost.

    Raises:
        InvalidRequest: None is given, or one makes no sense.
    """

    steps: int | None = None
    seconds: float | None = None
    nodes: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.steps is not None and (type(self.steps) is not int or self.steps < 1):
            raise InvalidRequest(f"steps is a number of steps, at least 1, not {self.steps!r}")
        if self.seconds is not None and not _is_duration(self.seconds):
            raise InvalidRequest(f"seconds is a number of seconds, more than 0, not {self.seconds!r}")
        if isinstance(self.nodes, str) or not all(isinstance(node, str) for node in self.nodes):
            raise InvalidRequest(f"nodes is a set of names of nodes, not {self.nodes!r:.80}")
        object.__setattr__(self, "nodes", frozenset(self.nodes))
        if self.steps is None and self.seconds is None and not self.nodes:
            raise InvalidRequest("Flush needs steps=, seconds= or nodes=; to write every step at once, leave flush= out")


def _is_duration(seconds: object) -> bool:
    return isinstance(seconds, (int, float)) and type(seconds) is not bool and math.isfinite(seconds) and seconds > 0


class Course:
    """What is known of a thread's way, and which of its operations must not wait.

    A checkpoint is quiet if what follows it may wait. What follows a checkpoint that is not known to be quiet goes to disk
    at once: the process may have started in the middle of a named node, or an interrupt may be what it is about.
    """

    _NAMESPACES, _LATEST = 256, 4  # a task's writes may come after the checkpoint that follows

    def __init__(self, nodes: Collection[str]) -> None:
        self._nodes = frozenset(nodes)
        self._quiet: OrderedDict[str, deque[str]] = OrderedDict()  # by namespace

    @property
    def is_known(self) -> bool:
        return bool(self._quiet)

    def forget(self) -> None:
        """Somebody reads the thread: a run may begin, from wherever others have brought it."""
        self._quiet.clear()

    def is_urgent(self, put: Put) -> bool:
        """To be asked for each operation, in order."""
        if isinstance(put, PutCheckpoint):
            known = put.follows is None or put.follows in self._latest(put)
            return self._after(put) or not known
        if isinstance(put, PutWrites) and _is_about_people(put):
            self._quiet.clear()
            return True
        return not self._is_under_way(put)

    def _is_under_way(self, put: Put) -> bool:
        """Also a task's writes that come before their checkpoint, as they may with LangGraph's durability "async"."""
        latest, follows = self._latest(put), put.follows
        return follows is not None and (follows in latest or follows > max(latest, default=follows))

    def _latest(self, put: Put) -> Collection[str]:
        return self._quiet.get(put.place.checkpoint_ns, ())

    def _after(self, put: PutCheckpoint) -> bool:
        is_root = not put.place.checkpoint_ns
        if is_root and not put.next:  # the end of the run; what comes late must not wait for a next one
            self._quiet.clear()
            return True
        from_outside = put.source != "loop" and (is_root or put.source != "input")  # a subgraph's input is a step
        if put.source in ("loop", "input") and self._nodes.isdisjoint(put.next):
            self._remember(put)
            return from_outside
        self._quiet.pop(put.place.checkpoint_ns, None)
        return True

    def _remember(self, put: PutCheckpoint) -> None:
        latest = self._quiet.setdefault(put.place.checkpoint_ns, deque(maxlen=self._LATEST))
        latest.append(put.place.checkpoint_id or "")
        self._quiet.move_to_end(put.place.checkpoint_ns)
        if len(self._quiet) > self._NAMESPACES:
            self._quiet.popitem(last=False)


def _is_about_people(put: PutWrites) -> bool:
    """An interrupt, an error, a resume, or a caller's input."""
    return put.task_id == _OUTSIDE or any(channel in WRITES_IDX_MAP for channel, _ in put.writes)
