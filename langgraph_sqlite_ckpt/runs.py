"""Runs: which run a checkpoint belongs to, and what is due next.

LangGraph keeps no index of runs, and "what was running when the machine died?" is the first question after a crash. A
run begins with a root checkpoint of source "input"; the checkpoints after it inherit its id from their parent, those of
subgraphs from their root checkpoint. A fork (a parent that has a child already) begins a new run.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from typing import Any

from langgraph.checkpoint.serde.types import TASKS

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.encoding import storable_text
from langgraph_sqlite_ckpt.errors import Place

NOTHING_NEXT = "[]"
_BRANCH, _JOIN, _START = "branch:to:", "join:", "__start__"


def run_of(
    db: sqlite3.Connection,
    place: Place,
    metadata: Mapping[str, Any],
    new: tables.NewCheckpoint,
    standing: tables.Standing,
) -> str:
    """The id of the run that a new checkpoint belongs to. Whoever names a run in the metadata is believed."""
    named = named_run(metadata)
    if named is not None:
        return named
    inherited = None if standing.parent_has_child else standing.parent_run
    if place.checkpoint_ns:
        return _run_of_root(db, place.thread_id, metadata) or inherited or new.checkpoint_id
    return (inherited if new.source != "input" else None) or new.checkpoint_id


def named_run(metadata: Mapping[str, Any]) -> str | None:
    named = metadata.get("run_id")
    return storable_text(named) if isinstance(named, str) and named else None


def _run_of_root(db: sqlite3.Connection, thread_id: str, metadata: Mapping[str, Any]) -> str | None:
    """A subgraph may be stored before its root checkpoint, whose id stands for the run until it comes (see `schema.py`)."""
    parents = metadata.get("parents")
    root_id = parents.get("") if isinstance(parents, dict) else None
    if not isinstance(root_id, str) or not root_id:
        return None
    return tables.run_of_checkpoint(db, thread_id, "", root_id) or root_id


def next_nodes(values: Mapping[str, Any]) -> str:
    """The nodes due next, as a JSON array, from the values of a checkpoint: what triggers them is waiting there."""
    return json.dumps(list(dict.fromkeys(_due(values))))


def _due(values: Mapping[str, Any]) -> Iterator[str]:
    for channel, value in values.items():
        if channel == _START:
            yield _START
        elif channel == TASKS:
            yield from (str(send.node) for send in _flat(value) if hasattr(send, "node"))
        elif channel.startswith(_BRANCH) and _finished(value):
            yield channel[len(_BRANCH) :]
        elif channel.startswith(_JOIN) and _finished(value):
            names, _, node = channel[len(_JOIN) :].rpartition(":")
            if set(names.split("+")) <= _seen(value):
                yield node


def _flat(value: Any) -> Iterator[Any]:
    """What a Topic holds: a list, or, in old checkpoints, a pair whose second part is the list."""
    for item in value if isinstance(value, (list, tuple)) else ():
        yield from item if isinstance(item, list) else [item]


def _finished(value: Any) -> bool:
    """A deferred node's trigger is a pair, whose second part says whether its turn has come."""
    return not (isinstance(value, (list, tuple)) and len(value) == 2 and value[1] is False)


def _seen(value: Any) -> set[Any]:
    seen = value[0] if isinstance(value, (list, tuple)) and len(value) == 2 else value
    return set(seen) if isinstance(seen, (set, frozenset, list, tuple)) else set()
