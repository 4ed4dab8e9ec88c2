"""A process that lives long: does it grow, and does a step take longer as the file does?

    python -m tests.long_life --steps 100000 --threads 1000

Prints, for each tenth of the way, resident memory, open files, threads and the time per step (a checkpoint, what a task wrote,
and the latest read again), half of them async on one event loop.
"""

import argparse
import asyncio
import gc
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base.id import uuid6

from langgraph_sqlite_ckpt import SqliteSaver


class Moment(NamedTuple):
    steps: int
    megabytes: float
    files: int
    threads: int
    microseconds: float
    file_megabytes: float

    def __str__(self) -> str:
        return (
            f"{self.steps:>8} steps: {self.megabytes:6.1f} MB resident, {self.files} files, {self.threads} threads,"
            f" {self.microseconds:5.0f} us per step, the file has {self.file_megabytes:6.1f} MB"
        )


def resident() -> float:
    """Megabytes, by Linux; elsewhere nobody knows."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def open_files() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


async def live(saver: SqliteSaver, path: Path, *, steps: int, threads: int, reports: int = 10) -> list[Moment]:
    rng, moments = random.Random(steps), []
    lives = {number: 0 for number in range(threads)}
    for _ in range(reports):
        begun = time.perf_counter()
        for _ in range(steps // reports):
            number = rng.randrange(threads)
            lives[number] += 1
            await step(saver, f"thread {number}", lives[number], in_async=rng.random() < 0.5)
        taken = (time.perf_counter() - begun) / (steps // reports) * 1e6
        gc.collect()
        moments.append(
            Moment(
                sum(lives.values()),
                resident(),
                open_files(),
                threading.active_count(),
                taken,
                path.stat().st_size / 1e6,
            )
        )
    return moments


async def step(saver: SqliteSaver, thread_id: str, number: int, *, in_async: bool) -> None:
    """With a list of which the last twenty stay: what a graph with trimmed messages stores."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    latest = await saver.aget_tuple(config) if in_async else saver.get_tuple(config)
    before = latest.checkpoint["channel_values"]["messages"] if latest else []
    versions = {"messages": f"{number:032}.{random.random()}", "n": f"{number:032}.{random.random()}"}
    checkpoint: Any = {
        "v": 4,
        "id": str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"messages": [*before, f"message {number} of {thread_id} " * 5][-20:], "n": number},
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }
    at = latest.config if latest else config
    metadata: Any = {"source": "loop", "step": number, "parents": {}}
    if in_async:
        stored = await saver.aput(at, checkpoint, metadata, dict(versions))
        await saver.aput_writes(stored, [("messages", ["new"]), ("n", number)], "task")
    else:
        stored = saver.put(at, checkpoint, metadata, dict(versions))
        saver.put_writes(stored, [("messages", ["new"]), ("n", number)], "task")


def life(folder: Path, *, steps: int, threads: int, keep_last: int | None = None) -> Iterator[Moment]:
    path = folder / "agent.db"
    with SqliteSaver(path, synchronous="normal", keep_last=keep_last) as saver:
        yield from asyncio.run(live(saver, path, steps=steps, threads=threads))
        problems = saver.verify()
        assert problems == [], problems


def main() -> int:
    parser = argparse.ArgumentParser(description="Many steps in one process: memory, files, threads, and time per step.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1_000)
    parser.add_argument("--keep-last", type=int, default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for moment in life(Path(folder), steps=asked.steps, threads=asked.threads, keep_last=asked.keep_last):
            print(moment)
    return 0


if __name__ == "__main__":
    sys.exit(main())
