"""What a task does outside (sends, pays, books), kept so that a resume does not do it again. See `once.py`.

An entry is on disk before the outside is called, its result after. LangGraph resumes a task under the id that it had,
as the checkpoint of its step is the same: so does it find its entry. An entry without a result, whose caller is gone, is
*in doubt*: at most once, or in doubt. Nothing on this side can promise "exactly once".

A task's id comes from its step's checkpoint, which LangGraph stores in the background. Should the process die before that
is on disk, the resume makes another, with other tasks. So a call waits for the checkpoints of its step, and of the steps
of all enclosing graphs, before anything else.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.custody import Owner, living_owner
from langgraph_sqlite_ckpt.encoding import decode, encode_packed, opened, storable_text, unpack_effect
from langgraph_sqlite_ckpt.errors import EffectInDoubt, EffectNotDone, EffectRunning, InvalidRequest, Place
from langgraph_sqlite_ckpt.liveness import judge, now_as_text
from langgraph_sqlite_ckpt.operations import Operation, Statement
from langgraph_sqlite_ckpt.overview import ALL, row_limit
from langgraph_sqlite_ckpt.tables import EffectHead, EffectResult, EffectRow, NewEffect
from langgraph_sqlite_ckpt.upgrading import bring_up_to_date
from langgraph_sqlite_ckpt.writing import Store

R = TypeVar("R")
OnDoubt = Literal["raise", "retry"]
EffectStatus = Literal["running", "done", "in_doubt"]
STATUSES: tuple[EffectStatus, ...] = get_args(EffectStatus)

_KEYS = uuid.UUID("6f1c6a3e-2f0b-5d0e-9a54-0d3f1c5b7e21")  # the space of our idempotency keys; never changes
_LONGEST_ERROR = 2000  # characters

# LangGraph's names for what it tells a task (langgraph._internal._constants); a test holds them against it.
TASK_ID, DURABILITY, CHECKPOINTER = "__pregel_task_id", "__pregel_durability", "__pregel_checkpointer"
_LEVEL, _TASK = "|", ":"  # "node:task|node:task": a task within a subgraph


class Effect(NamedTuple):
    """Something that a task does outside."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    node: str
    name: str
    key: str
    """The idempotency key that the outside was called with."""
    status: EffectStatus
    started_at: datetime
    finished_at: datetime | None
    error: str | None
    """Why it is in doubt; None where its process just ended."""
    number: int
    """Its place in the order of `effects()`."""


# --- where a call stands ---


class Spot(NamedTuple):
    """A name within a task, and the checkpoints that its id depends on."""

    thread_id: str
    checkpoint_ns: str
    checkpoint_id: str
    task_id: str
    node: str
    name: str
    enclosing: tuple[tuple[str, str], ...]
    """(namespace, checkpoint id) of its step in its own graph and in all around it."""

    @property
    def place(self) -> Place:
        return Place(self.thread_id, self.checkpoint_ns, self.checkpoint_id)

    @property
    def key(self) -> str:
        """The same at every retry and resume, and of no other effect."""
        parts = (self.thread_id, self.checkpoint_ns, self.checkpoint_id, self.task_id, self.name)
        return str(uuid.uuid5(_KEYS, json.dumps(parts)))

    def namespace(self, db: sqlite3.Connection) -> int | None:
        """Where the checkpoint of its step is stored; None until all that it depends on are."""
        found: dict[str, int | None] = {
            checkpoint_id: tables.namespace_with_checkpoint(db, self.thread_id, _homes(checkpoint_ns), checkpoint_id)
            for checkpoint_ns, checkpoint_id in self.enclosing
        }
        return None if None in found.values() else found[self.checkpoint_id]


def spot_of(configurable: Mapping[str, Any], name: str) -> Spot:
    """From what LangGraph tells a task."""
    thread_id, task_id = configurable.get("thread_id"), configurable.get(TASK_ID)
    checkpoints, task_ns = configurable.get("checkpoint_map"), configurable.get("checkpoint_ns")
    if thread_id is None or not task_id or not checkpoints or not task_ns:
        raise InvalidRequest("once() belongs in a node or @task of a graph that runs with this saver as its checkpointer")
    if configurable.get(DURABILITY) == "exit":
        raise InvalidRequest(
            'durability="exit" stores no step before the run ends, so nothing can keep a resume from repeating an effect: '
            'use durability="sync" or "async" for graphs that call once()'
        )
    graph_ns, _, task = task_ns.rpartition(_LEVEL)
    if graph_ns not in checkpoints:
        raise InvalidRequest(f"this release of LangGraph does not say which checkpoint task {task!r} belongs to")
    node = task.partition(_TASK)[0]
    return Spot(str(thread_id), graph_ns, checkpoints[graph_ns], task_id, node, name, tuple(checkpoints.items()))


def _homes(checkpoint_ns: str) -> Sequence[str]:
    """The namespaces that may hold its checkpoint: that of a node which calls a @task is its graph's."""
    levels = checkpoint_ns.split(_LEVEL)
    return [_LEVEL.join(levels[:count]) for count in range(len(levels), -1, -1)]


def require_name(name: object) -> str:
    if not isinstance(name, str) or not name or "\0" in name or storable_text(name) != name:
        raise InvalidRequest(f"an effect's name is a text that is unique within its task, not {name!r:.80}")
    return name


# --- one call of `once` ---


class Call:
    """From its look at the file to its result."""

    _SHORTEST, _LONGEST = 0.0005, 0.02  # seconds between two looks

    def __init__(self, store: Store, serde: SerializerProtocol, spot: Spot, on_doubt: OnDoubt) -> None:
        if on_doubt not in get_args(OnDoubt):
            raise InvalidRequest(f'on_doubt is "raise" or "retry", not {on_doubt!r}')
        self.spot, self.key = spot, spot.key
        self._store, self._serde, self._on_doubt = store, serde, on_doubt
        self._number = random.getrandbits(62)
        self._again = False
        self._called = False
        self._found: EffectRow | None = None

    def looks(self) -> Iterator[float]:
        """Look once for each; what comes is how long to wait before the next.

        Raises:
            InvalidRequest: The checkpoints did not come for as long as storing one may take.
        """
        deadline, pause = time.monotonic() + self._patience, self._SHORTEST
        while time.monotonic() < deadline:
            yield pause
            pause = min(2 * pause, self._LONGEST)
        raise InvalidRequest(
            f"the step that calls effect {self.spot.name!r} ({self.spot.place}) is not in this file, so a resume could not "
            "know of it. Is its graph, and every graph around it, compiled with this saver (no checkpointer=False)? In an "
            "async node, await aonce(): once() keeps the event loop from storing the step"
        )

    @property
    def _patience(self) -> float:
        return min(max(self._store.database.busy_timeout, 1.0), 60.0)

    def look(self) -> bool:
        """Whether the checkpoints that it depends on are on disk."""
        spot = self.spot
        self._use_names_of_today()
        with self._store.database.read() as db:
            namespace = spot.namespace(db)
            if namespace is None:
                return False
            self._found = tables.find_effect(db, namespace, spot.checkpoint_id, spot.task_id, spot.name)
        if self._found is not None:
            self.key = self._found.key  # in a copied thread, that of the first
        return True

    def _use_names_of_today(self) -> None:
        """Where nodes were renamed since the step was stored, its entry is under a task's name of then."""
        if self._store.migrations.renames_nodes(0):
            for checkpoint_ns, checkpoint_id in self.spot.enclosing:
                place = Place(self.spot.thread_id, checkpoint_ns, checkpoint_id)
                bring_up_to_date(self._store, self._serde, place)

    @property
    def done(self) -> EffectRow | None:
        return self._found if self._found is not None and _is_done(self._found) else None

    def result(self, row: EffectRow) -> Any:
        place = self.spot.place
        return decode(self._serde, place, row.type or "", opened(place, lambda: unpack_effect(row)))

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else in this process calls it meanwhile."""
        running = self._store.owner.effects
        if running.setdefault(self.key, self._number) != self._number:
            raise self._busy("this process")
        try:
            yield
        finally:
            del running[self.key]

    def run(self, effect: Callable[[str], R]) -> R:
        self._called = True
        return effect(self.key)

    # --- what it does to the file ---

    def begin(self) -> Operation[EffectRow | None]:
        """Gives the entry where it is done already; else it is this call's from now on."""
        return _Begin(self._store.owner, self.spot.thread_id, self._begin)

    def _begin(self, db: sqlite3.Connection) -> EffectRow | None:
        spot, owner = self.spot, self._store.owner
        owner.hold(db, spot.thread_id)
        namespace = spot.namespace(db)
        if namespace is None:
            raise InvalidRequest(f"the step that calls effect {spot.name!r} was deleted meanwhile ({spot.place})")
        row = tables.find_effect(db, namespace, spot.checkpoint_id, spot.task_id, spot.name)
        if row is not None and _is_done(row):
            return row
        self._again = row is not None
        if row is None:
            entry = (namespace, spot.checkpoint_id, spot.task_id, spot.name, spot.node, self.key)
            tables.begin_effect(db, NewEffect(*entry, owner.id, self._number, now_as_text()))
            return None
        self._require_freedom(db, row)
        tables.begin_effect_again(db, self.key, owner.id, self._number, now_as_text())
        return None

    def _require_freedom(self, db: sqlite3.Connection, row: EffectRow) -> None:
        """To call again what is in doubt."""
        holder = None if row.owner == self._store.owner.id or row.error is not None else living_owner(db, row.owner)
        if holder is not None:
            raise self._busy(f"process {holder.pid} on {holder.host}")
        if self._on_doubt == "raise":
            cause = row.error or "its process ended before it could say"
            raise EffectInDoubt(self.spot.place, row.node, row.name, row.key, row.started_at, cause)

    def _busy(self, whom: str) -> EffectRunning:
        spot = self.spot
        return EffectRunning(f"effect {spot.name!r} of node {spot.node!r} is being called by {whom} ({spot.place})")

    def finish(self, result: object) -> Operation[None]:
        return _Finish("once", self._store, self._serde, self.spot.place, result, self._finish)

    def _finish(self, db: sqlite3.Connection, result: EffectResult) -> None:
        tables.finish_effect(db, self.key, self._number, result)

    def fail(self, error: BaseException) -> Operation[None]:
        """It ended so. Nothing changes where it was not begun.

        What was in doubt stays so, whatever the call that tried again knows of itself.
        """
        if not self._again and (not self._called or isinstance(error, EffectNotDone)):
            return self._ending(lambda db: tables.withdraw_effect(db, self.key, self._number))
        return self._ending(lambda db: tables.doubt_effect(db, self.key, self._number, now_as_text(), _described(error)))

    def _ending(self, apply: Callable[[sqlite3.Connection], None]) -> Operation[None]:
        return Statement(apply, kind="once", thread_id=self.spot.thread_id)


class _Begin(Operation["EffectRow | None"]):
    kind = "once"

    def __init__(self, owner: Owner, thread_id: str, apply: Callable[[sqlite3.Connection], EffectRow | None]) -> None:
        self._owner, self.thread_id, self._apply = owner, thread_id, apply

    def apply(self, db: sqlite3.Connection) -> EffectRow | None:
        return self._apply(db)

    def committed(self) -> None:
        self._owner.wrote()


class _Finish(Operation[None]):
    def __init__(
        self,
        kind: str,
        store: Store,
        serde: SerializerProtocol,
        place: Place,
        result: object,
        apply: Callable[[sqlite3.Connection, EffectResult], None],
    ) -> None:
        self._store, self._serde, self._place, self._result, self._apply = store, serde, place, result, apply
        self.kind, self.thread_id = kind, place.thread_id

    def prepare(self) -> None:
        kind, packed = encode_packed(self._serde, self._store.limits, self._place, self._result)
        self._packed = EffectResult(now_as_text(), kind, packed.codec, *packed[1:3], packed.data)

    def apply(self, db: sqlite3.Connection) -> None:
        self._apply(db, self._packed)


def _is_done(row: EffectRow) -> bool:
    return row.finished_at is not None and row.error is None


def _described(error: BaseException) -> str:
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return storable_text(text[:_LONGEST_ERROR])


# --- what people do about it ---


def resolution(store: Store, serde: SerializerProtocol, key: str, *, happened: bool, result: object) -> Operation[None]:
    """An effect that is in doubt did happen, with this result, or did not."""
    if not isinstance(key, str) or not isinstance(happened, bool):
        raise InvalidRequest(f"resolve(key, happened=True or False), not {key!r:.80}, happened={happened!r:.80}")
    if not happened and result is not None:
        raise InvalidRequest("what did not happen has no result")
    if not happened:
        return Statement(lambda db: _forget(db, store.owner, key), kind="resolve")
    place = _place_of(store, key)
    return _Finish("resolve", store, serde, place, result, lambda db, packed: _resolve(db, store.owner, key, packed))


def _place_of(store: Store, key: str) -> Place:
    with store.database.read() as db:
        row = tables.effect_of_key(db, key)
    return Place(row.thread_id, row.checkpoint_ns, row.checkpoint_id) if row is not None else Place("?")


def _forget(db: sqlite3.Connection, owner: Owner, key: str) -> None:
    _require_doubt(db, owner, key)
    tables.forget_effect(db, key)


def _resolve(db: sqlite3.Connection, owner: Owner, key: str, result: EffectResult) -> None:
    _require_doubt(db, owner, key)
    tables.resolve_effect(db, key, result)


def _require_doubt(db: sqlite3.Connection, owner: Owner, key: str) -> None:
    row = tables.effect_of_key(db, key)
    if row is None:
        raise InvalidRequest(f"no effect has the key {key!r}: effects(status='in_doubt') lists those that wait for a word")
    if _is_done(row):
        raise InvalidRequest(f"effect {row.name!r} of thread {row.thread_id!r} is done: its result stands")
    if row.error is None and (key in owner.effects if row.owner == owner.id else living_owner(db, row.owner)):
        raise InvalidRequest(f"effect {row.name!r} of thread {row.thread_id!r} is running: wait until it has ended")


def effects(
    db: sqlite3.Connection,
    owner: Owner,
    thread_id: str | None,
    status: str | None,
    limit: int | None,
    after: Effect | None,
) -> Sequence[Effect]:
    """Newest first, by when each was first begun."""
    if status is not None and status not in STATUSES:
        raise InvalidRequest(f"status is one of {', '.join(STATUSES)}, not {status!r}")
    if after is not None and not isinstance(after, Effect):
        raise InvalidRequest(f"after is the last effect of the page before, not {after!r:.80}")
    wanted = {
        "thread_id": thread_id,
        "status": status,
        "limit": row_limit(limit),
        "number": after.number if after else ALL,
        "own": owner.id,
        "running": json.dumps(list(owner.effects)),
        "alive": json.dumps(judge(db).alive),
    }
    return [_typed(row) for row in tables.effects(db, wanted)]


def _typed(row: EffectHead) -> Effect:
    status: EffectStatus = row.status  # type: ignore[assignment]  # the statement makes no other
    finished = datetime.fromisoformat(row.finished_at) if row.finished_at is not None else None
    return Effect(*row[:7], status, datetime.fromisoformat(row.started_at), finished, row.error, row.number)
