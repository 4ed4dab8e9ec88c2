"""Shapes that call the saver itself: large puts, the event loop beside them, and reading from long histories."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from . import graphs
from .content import Maker, many, message, record
from .savers import Peer, Saver
from .shape import Samples, repeat, shape, thread

TICK = 0.001


class Revisions:
    """The arguments of one put after another: the values, their checkpoint, metadata and new versions."""

    def __init__(self, saver: Saver) -> None:
        self.saver = saver
        self.step = 0
        self.version: Any = None

    def next(self, values: dict[str, Any], **metadata: Any) -> tuple[Checkpoint, CheckpointMetadata, ChannelVersions]:
        """All of `values` are new in this one."""
        self.version = self.saver.get_next_version(self.version, None)
        versions: ChannelVersions = dict.fromkeys(values, self.version)
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=self.step))
        checkpoint["channel_values"] = dict(values)
        checkpoint["channel_versions"] = dict(versions)
        about: dict[str, Any] = {"source": "loop", "step": self.step, "parents": {}, **metadata}
        self.step += 1
        return checkpoint, about, versions  # type: ignore[return-value]  # metadata may have keys of the user's own


@shape(
    "put-1mb",
    "put alone: a list of 1 MB that gets one item more each time, 60 puts; dicts, then LangChain messages",
    {"dicts": "ms", "messages": "ms"},
)
def put_1mb(peer: Peer, folder: Path) -> Samples:
    with peer.open(folder) as saver:
        return {"dicts": puts(saver, record), "messages": puts(saver, message)}


def puts(saver: Saver, make: Maker) -> list[float]:
    items, times = many(make, 1_000_000), []
    config, revisions = thread(make.__name__), Revisions(saver)
    for _ in range(60):
        items.append(make(len(items)))
        arguments = revisions.next({"messages": items})
        start = time.perf_counter()
        config = saver.put(config, *arguments)
        times.append(1000 * (time.perf_counter() - start))
    return times


# The event loop -------------------------------------------------------------------------------------------------------


async def longest_pause(operation: Awaitable[Any]) -> float:
    """How many ms the loop was kept from a task that wants to run every millisecond, at worst, during `operation`."""
    worst = 0.0

    async def tick() -> None:
        nonlocal worst
        while True:
            start = time.perf_counter()
            await asyncio.sleep(TICK)
            worst = max(worst, time.perf_counter() - start - TICK)

    ticker = asyncio.create_task(tick())
    await asyncio.sleep(5 * TICK)
    await operation
    await asyncio.sleep(2 * TICK)
    ticker.cancel()
    return 1000 * worst


@shape(
    "pause",
    "Longest pause of the event loop while a state of 8 MB goes in and out; dicts, then LangChain messages",
    {"idle": "ms", "aput, dicts": "ms", "aget, dicts": "ms", "aput, messages": "ms", "aget, messages": "ms"},
    asynchronous=True,
)
def pause(peer: Peer, folder: Path) -> Samples:
    """`idle` is the machine's own noise: a sleep of 50 ms in the place of the saver."""

    async def play() -> Samples:
        async with peer.aopen(folder) as saver:
            idle = [await longest_pause(asyncio.sleep(0.05)) for _ in range(4)]
            return {"idle": idle} | await pauses(saver, record, "dicts") | await pauses(saver, message, "messages")

    return asyncio.run(play())


async def pauses(saver: Saver, make: Maker, kind: str) -> dict[str, list[float]]:
    items, revisions = many(make, 8_000_000), Revisions(saver)
    going_in, coming_out = [], []
    for _ in range(4):
        items.append(make(len(items)))
        arguments = revisions.next({"messages": items})
        gc.collect()
        going_in.append(await longest_pause(saver.aput(thread(kind), *arguments)))
        coming_out.append(await longest_pause(saver.aget_tuple(thread(kind))))
    return {f"aput, {kind}": going_in, f"aget, {kind}": coming_out}


# Long histories -------------------------------------------------------------------------------------------------------


def fill(peer: Peer, folder: Path, *, count: int, run: int) -> None:
    """One thread of `count` small checkpoints, an input at the start of each `run` of them."""
    with peer.open(folder, durable=False) as saver:
        config, revisions = thread(), Revisions(saver)
        for step in range(count):
            about = {
                "source": "loop" if step % run else "input",
                "run_id": f"run-{step // run}",
                "customer": f"customer-{step % 100}",
            }
            config = saver.put(config, *revisions.next({"count": step, "note": f"step {step}"}, **about))


def found(saver: Saver, expected: int, **options: Any) -> None:
    """List, and make sure that a fast answer is also the right one."""
    count = sum(1 for _ in saver.list(thread(), **options))
    if count != expected:
        raise AssertionError(f"list({options}) gave {count} checkpoints, not {expected}")


@shape(
    "history-10k",
    "Reading a thread of 10,000 checkpoints",
    {
        "limit=1": "ms",
        "source, newest 10": "ms",
        "one step": "ms",
        "one run_id": "ms",
        "own key, 100 of them": "ms",
    },
    prepare=partial(fill, count=10_000, run=20),
)
def history_10k(peer: Peer, folder: Path) -> Samples:
    with peer.open(folder) as saver:
        return {
            "limit=1": repeat(5, lambda: found(saver, 1, limit=1)),
            "source, newest 10": repeat(5, lambda: found(saver, 10, filter={"source": "input"}, limit=10)),
            "one step": repeat(5, lambda: found(saver, 1, filter={"step": 5003})),
            "one run_id": repeat(5, lambda: found(saver, 20, filter={"run_id": "run-250"})),
            "own key, 100 of them": repeat(3, lambda: found(saver, 100, filter={"customer": "customer-7"})),
        }


@shape(
    "history-100k",
    "Reading 100,000 checkpoints of long runs: the newest 10 of the 100 that are inputs",
    {"in the thread": "ms", "in all threads": "ms"},
    peers=("ours", "SqliteSaver", "InMemorySaver"),
    prepare=partial(fill, count=100_000, run=1000),
    rounds=3,
    full_only=True,
)
def history_100k(peer: Peer, folder: Path) -> Samples:
    query: dict[str, Any] = {"filter": {"source": "input"}, "limit": 10}
    with peer.open(folder) as saver:
        return {
            "in the thread": repeat(3, lambda: found(saver, 10, **query)),
            "in all threads": repeat(3, lambda: list(saver.list(None, **query))),
        }


def fill_delta(peer: Peer, folder: Path, *, steps: int) -> None:
    with peer.open(folder, durable=False) as saver:
        graphs.delta(steps).compile(checkpointer=saver).invoke({"step": 0, "items": []}, thread())


def get_state(peer: Peer, folder: Path, *, steps: int) -> Samples:
    """The latest state of a DeltaChannel that has a write in each step and a snapshot in none."""
    with peer.open(folder) as saver:
        graph = graphs.delta(steps).compile(checkpointer=saver)
        items = graph.get_state(thread()).values["items"]
        if len(items) != steps:
            raise AssertionError(f"{len(items)} items, not {steps}")
        return {"get_state": repeat(5, lambda: graph.get_state(thread()))}


shape(
    "delta-2000",
    "get_state after 2,000 steps of a DeltaChannel",
    {"get_state": "ms"},
    prepare=partial(fill_delta, steps=2000),
)(partial(get_state, steps=2000))

shape(
    "delta-5000",
    "get_state after 4,990 steps of a DeltaChannel; by step 5,000 LangGraph writes a snapshot by itself",
    {"get_state": "ms"},
    prepare=partial(fill_delta, steps=4990),
    rounds=3,
    full_only=True,
)(partial(get_state, steps=4990))
