"""What a shape is, and the small tools that every shape uses.

A shape's function plays one round for one saver in a folder of its own and returns its samples by measure. A reading
shape has a `prepare` beside it, which fills the folder once; its rounds then only read, so savers still take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.runnables import RunnableConfig

from .savers import Peer

Samples = Mapping[str, list[float]]
Run = Callable[[Peer, Path], Samples]
Prepare = Callable[[Peer, Path], None]

ALL = ("ours", "SqliteSaver", "InMemorySaver", "PostgresSaver")
ON_DISK = ("ours", "SqliteSaver", "PostgresSaver")


@dataclass(frozen=True)
class Shape:
    """`units` names the measures, in the table's order; `rounds` is a limit for shapes that take long; `weighed`: with its file."""

    name: str
    title: str
    run: Run
    units: Mapping[str, str]
    peers: tuple[str, ...] = ALL
    prepare: Prepare | None = None
    rounds: int = 100
    asynchronous: bool = False
    full_only: bool = False
    weighed: bool = True


SHAPES: dict[str, Shape] = {}


def shape(name: str, title: str, units: Mapping[str, str], **options: Any) -> Callable[[Run], Run]:
    """Put the decorated function into SHAPES, under `name`."""

    def register(run: Run) -> Run:
        SHAPES[name] = Shape(name, title, run, units, **options)
        return run

    return register


def thread(name: str = "thread") -> RunnableConfig:
    """The config of a thread, with room for graphs that run long."""
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}, "recursion_limit": 100_000}


def ms(work: Callable[[], Any]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def repeat(times: int, work: Callable[[], Any]) -> list[float]:
    return [ms(work) for _ in range(times)]
