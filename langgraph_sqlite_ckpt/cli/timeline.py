"""A thread as a tree of steps: parents and children, forks, subgraphs, questions and errors. No value is read for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import unpack
from langgraph_sqlite_ckpt.cli.app import NotThere
from langgraph_sqlite_ckpt.liveness import judge
from langgraph_sqlite_ckpt.opaque import OpaqueSerializer, as_data
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.tables import StepRow, WriteOfThread


@dataclass
class Step:
    """A checkpoint: how it came about, and what is due next."""

    checkpoint_ns: str
    checkpoint_id: str
    parent_id: str | None
    run_id: str
    step: int | float | None
    source: str | None
    next: tuple[str, ...]
    status: str
    created_at: datetime
    metadata: Mapping[str, Any]
    questions: list[Any] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    children: list[Step] = field(default_factory=list)
    """In its own namespace: more than one is a fork."""
    inside: list[Step] = field(default_factory=list)
    """The first steps of the subgraphs that it called."""
    ran: tuple[str, ...] = ()
    """The nodes that led to it."""
    newest: int = 0
    """The number of the newest step that came of it."""

    @property
    def name(self) -> str:
        """What led to it, for people."""
        if self.source in ("input", "update", "fork"):
            return self.source
        return ", ".join(name for name in self.ran if name != "__start__") or ("start" if self.ran else self.source or "?")

    @property
    def due(self) -> str:
        return ", ".join("start" if name == "__start__" else name for name in self.next)

    @property
    def standing(self) -> str:
        """Its status; a step that others came after has none of its own any more."""
        return "went on" if self.children and self.status == "running" else self.status

    @property
    def asks(self) -> str:
        """Whether its questions are still to be answered."""
        return "asks" if self.status == "interrupted" else "asked"

    def as_data(self) -> dict[str, Any]:
        return {
            "checkpoint_ns": self.checkpoint_ns,
            "checkpoint_id": self.checkpoint_id,
            "parent_id": self.parent_id,
            "run_id": self.run_id,
            "step": self.step,
            "source": self.source,
            "ran": list(self.ran),
            "next": list(self.next),
            "status": self.status,
            "created_at": self.created_at.isoformat(),
            "questions": self.questions,
            "errors": self.errors,
        }


class State(NamedTuple):
    """What a step holds, as data; `writes` are those of the tasks that ran after it."""

    values: Mapping[str, Any]
    metadata: Mapping[str, Any]
    writes: Sequence[tuple[str, str, Any]]


def is_internal(channel: str) -> bool:
    """Whether it is LangGraph's own: what it does is shown as what is next, and as questions and errors."""
    return channel.startswith(("branch:to:", "join:", "__pregel_tasks", "__interrupt__", "__error__"))


@dataclass
class Timeline:
    """The steps of a thread in the order of commits, and the first ones of its trees."""

    thread_id: str
    steps: Sequence[Step]
    roots: Sequence[Step]

    @property
    def latest(self) -> Step:
        return next((step for step in reversed(self.steps) if not step.checkpoint_ns), self.steps[-1])

    def find(self, text: str | None, checkpoint_ns: str = "") -> Step:
        """By its id, the beginning of its id, or its number; None is the latest. Raises `NotThere`."""
        steps = [step for step in self.steps if step.checkpoint_ns == checkpoint_ns]
        if text is None and steps:
            return steps[-1]
        found = [step for step in steps if str(step.step) == text] or [
            step for step in steps if text and step.checkpoint_id.startswith(text)
        ]
        if not found or (len({step.checkpoint_id for step in found}) > 1 and str(found[0].step) != text):
            what = "more than one checkpoint" if found else "no checkpoint"
            where = f" in {checkpoint_ns!r}" if checkpoint_ns else ""
            raise NotThere(f"thread {self.thread_id!r} has {what} {text!r}{where}: name a step, an id, or its beginning")
        return found[-1]


def timeline(saver: SqliteSaver, thread_id: str) -> Timeline:
    with saver._shared.read() as db:
        rows = tables.steps_of_thread(db, thread_id)
        writes = tables.special_writes_of_thread(db, thread_id)
        status = tables.status_of(db, judge(db), thread_id)
    if not rows:
        raise NotThere(f"there is no thread {thread_id!r}")
    steps = [_step(row) for row in rows]
    _say(steps, writes)
    told = Timeline(thread_id, steps, _joined(steps))
    told.latest.status = status or told.latest.status  # whether its process is there the views do not see
    return told


def _step(row: StepRow) -> Step:
    return Step(
        *row[:6],
        next=tuple(json.loads(row.next)),
        status=row.status,
        created_at=datetime.fromisoformat(row.created_at),
        metadata=json.loads(row.metadata),
    )


def _say(steps: Sequence[Step], writes: Sequence[WriteOfThread]) -> None:
    by_key = {(step.checkpoint_ns, step.checkpoint_id): step for step in steps}
    for write in writes:
        step = by_key.get((write.checkpoint_ns, write.checkpoint_id))
        if step is not None and write.channel == "__interrupt__":
            step.questions.extend(questions(write))
        elif step is not None:
            step.errors.append(f"{node(write)}: {_value(write)}")


def questions(write: WriteOfThread) -> list[Any]:
    """What a node asked: its name, the question, and the id by which it can be answered."""
    value = _value(write)
    asked = value if isinstance(value, list) else [value]
    return [
        {"node": node(write), **(item if isinstance(item, dict) and "value" in item else {"value": item})} for item in asked
    ]


def waiting(saver: SqliteSaver, thread_id: str) -> list[Any]:
    """The questions that a thread waits with."""
    with saver._shared.read() as db:
        writes = tables.waiting_writes(db, thread_id)
    return [question for write in writes for question in questions(write)]


def node(write: WriteOfThread) -> str:
    """Out of the path of its task, where it was stored."""
    return write.task_path.rpartition(", ")[2].lstrip("~") or f"task {write.task_id[:8]}"


def _value(write: WriteOfThread) -> Any:
    return as_data(OpaqueSerializer().loads_typed((write.type, unpack(write.codec, write.size, write.data))))


# --- the tree ---


def _joined(steps: Sequence[Step]) -> Sequence[Step]:
    """Children at their parents, first steps of subgraphs at the step that called them; what is left are roots."""
    by_key = {(step.checkpoint_ns, step.checkpoint_id): step for step in steps}
    roots = []
    for step in steps:
        parent = by_key.get((step.checkpoint_ns, step.parent_id or ""))
        caller = None if parent else _caller(step, by_key)
        if parent is not None and parent is not step:
            parent.children.append(step)
            step.ran = parent.next
        elif caller is not None:
            caller.inside.append(step)
        else:
            roots.append(step)
    for number, step in reversed(list(enumerate(steps))):
        step.newest = max(step.newest, number)
        step.children.sort(key=lambda child: child.newest)
        parent = by_key.get((step.checkpoint_ns, step.parent_id or ""))
        if parent is not None:
            parent.newest = max(parent.newest, step.newest)
    return roots


def _caller(step: Step, by_key: Mapping[tuple[str, str], Step]) -> Step | None:
    parents = step.metadata.get("parents")
    if not step.checkpoint_ns or not isinstance(parents, dict):
        return None
    for checkpoint_ns in sorted(parents, key=len, reverse=True):
        found = by_key.get((checkpoint_ns, str(parents[checkpoint_ns])))
        if found is not None and checkpoint_ns != step.checkpoint_ns:
            return found
    return None


def line(first: Step) -> Iterator[tuple[Step, Sequence[Step]]]:
    """A step and those after it, each with the branches that were left: the one that was worked on last goes on."""
    step: Step | None = first
    while step is not None:
        yield step, step.children[:-1]
        step = step.children[-1] if step.children else None
