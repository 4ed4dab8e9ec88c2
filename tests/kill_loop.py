"""Processes that write to one file are killed with SIGKILL, again and again: is anything lost that was acknowledged?

    python -m tests.kill_loop --kills 1000
    python -m tests.kill_loop --minutes 60

What a call acknowledged goes, synced, to a ledger outside the file. In the end all of it must be in the file, every thread
must load, and `verify` must find nothing. A bounded run of the same code is in `test_kill_loop.py`.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base.id import uuid6

from langgraph_sqlite_ckpt import SqliteSaver

_THREADS = 16


class Entry(NamedTuple):
    """What was acknowledged: a checkpoint ("put"), what a task wrote ("writes"), or that a thread is gone ("deleted")."""

    kind: str
    thread_id: str
    checkpoint_id: str = ""
    digest: str = ""


class Ledger:
    """Lines in a file of one process; on disk when `note` returns."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)

    def note(self, entry: Entry) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")
        os.fsync(self._file)


def entries(folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.glob("*.ledger")):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):  # else the kill came before it was noted
                yield Entry(*json.loads(line))


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


# --- who writes ---


class Writer:
    """Goes on with threads that others, dead or alive, have written; sync and async calls in turn."""

    def __init__(self, saver: SqliteSaver, ledger: Ledger, name: str) -> None:
        self.saver, self.ledger, self.name = saver, ledger, name
        self.random = random.Random(name)

    def go_on(self) -> None:
        while True:
            kind = self.random.random()
            if kind < 0.90:
                self.step(f"thread {self.random.randrange(_THREADS)}")
            elif kind < 0.97:
                self.come_and_go()
            else:
                self.saver.compact()

    def step(self, thread_id: str) -> None:
        """As LangGraph does: the latest checkpoint, what a task wrote after it, the next checkpoint."""
        latest = self.call("get_tuple", {"configurable": {"thread_id": thread_id}})
        values = latest.checkpoint["channel_values"] if latest else {"messages": [], "document": "d" * 3000}
        if latest:
            self.call("put_writes", latest.config, [("messages", self.name), ("n", 1)], task := uuid6().hex)
            self.ledger.note(Entry("writes", thread_id, latest.config["configurable"]["checkpoint_id"], task))
        self.put(thread_id, latest, {**values, "messages": [*values["messages"], self.message()][-60:]})

    def put(self, thread_id: str, latest: Any, values: dict[str, Any]) -> None:
        number = 1 if latest is None else int(latest.metadata["step"]) + 1
        versions = {"messages": f"{number:032}.{self.random.random()}", "document": "1"}
        checkpoint = {
            "v": 4,
            "id": str(uuid6()),
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": values,
            "channel_versions": versions,
            "versions_seen": {},
            "updated_channels": None,
        }
        new = versions if latest is None else {"messages": versions["messages"]}
        at = latest.config if latest else {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self.call("put", at, checkpoint, {"source": "loop", "step": number, "parents": {}}, new)
        self.ledger.note(Entry("put", thread_id, str(checkpoint["id"]), digest(values)))

    def come_and_go(self) -> None:
        """A thread is stored and deleted, so that pages become free."""
        thread_id = f"scratch {uuid6().hex}"
        self.put(thread_id, None, {"messages": [self.message() * 50], "document": "x" * 50_000})
        self.call("delete_thread", thread_id)
        self.ledger.note(Entry("deleted", thread_id))

    def message(self) -> str:
        return f"{self.name} {self.random.randbytes(60).hex()}"

    def call(self, method: str, *args: Any) -> Any:
        if self.random.random() < 0.5:
            return getattr(self.saver, method)(*args)
        return asyncio.run(getattr(self.saver, "a" + method)(*args))


def write_until_killed(path: Path, folder: Path, name: str) -> None:
    try:
        Writer(SqliteSaver(path), Ledger(folder / f"{name}.ledger"), name).go_on()
    except BaseException:
        (folder / f"{name}.error").write_text(traceback.format_exc())
    os._exit(1)


# --- who kills ---


@dataclass
class Arena:
    """So many writers at any time. They are forked from here, where no saver is open: that is quick."""

    path: Path
    folder: Path
    processes: int
    alive: list[int] = field(default_factory=list)
    born: int = 0

    def fill_up(self) -> None:
        while len(self.alive) < self.processes:
            self.born += 1
            pid = os.fork()
            if pid == 0:
                write_until_killed(self.path, self.folder, f"writer {self.born}")
            self.alive.append(pid)

    def kill(self, pid: int) -> None:
        self.alive.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Figures(NamedTuple):
    kills: int
    seconds: float
    acknowledged: int
    lost: list[Entry]
    threads: int
    checkpoints: int
    problems: list[Any]
    errors: list[str]
    file_bytes: int

    @property
    def well(self) -> bool:
        return not (self.lost or self.problems or self.errors)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills in {self.seconds:.0f} s; {self.acknowledged} calls acknowledged, {len(self.lost)} lost;"
            f" {self.threads} threads with {self.checkpoints} checkpoints load; verify() found {len(self.problems)} problems;"
            f" {len(self.errors)} processes failed; the file has {self.file_bytes / 1e6:.1f} MB"
        )


def kill_loop(
    folder: Path, *, kills: int, seconds: float = float("inf"), processes: int = 8, every: float = 0.1
) -> Figures:
    """Until so many were killed, or so much time has passed."""
    rng = random.Random(kills)
    arena = Arena(folder / "agent.db", folder, processes)
    begun, killed = time.monotonic(), 0
    try:
        while killed < kills and time.monotonic() - begun < seconds:
            arena.fill_up()
            time.sleep(every * (0.5 + rng.random()))
            arena.kill(rng.choice(arena.alive))
            killed += 1
    finally:
        for pid in tuple(arena.alive):
            arena.kill(pid)
    return _figures(folder, killed, time.monotonic() - begun)


def _figures(folder: Path, kills: int, seconds: float) -> Figures:
    noted = list(entries(folder))
    with SqliteSaver(folder / "agent.db") as saver:
        checkpoints: dict[tuple[str, str], str] = {}
        tasks: set[tuple[str, str, str]] = set()
        for item in saver.list(None):
            place = item.config["configurable"]["thread_id"], item.config["configurable"]["checkpoint_id"]
            checkpoints[place] = digest(item.checkpoint["channel_values"])
            tasks |= {(*place, task) for task, _, _ in item.pending_writes or ()}
        threads = {thread_id for thread_id, _ in checkpoints}
        deleted = {entry.thread_id for entry in noted if entry.kind == "deleted"}

        def is_there(entry: Entry) -> bool:
            place = entry.thread_id, entry.checkpoint_id
            if entry.kind == "deleted":
                return entry.thread_id not in threads
            if entry.kind == "writes":
                return (*place, entry.digest) in tasks
            # a thread that was about to be deleted may be gone although nobody was told
            return checkpoints.get(place) == entry.digest or (
                entry.thread_id.startswith("scratch") and (entry.thread_id in deleted or entry.thread_id not in threads)
            )

        return Figures(
            kills=kills,
            seconds=seconds,
            acknowledged=len(noted),
            lost=[entry for entry in noted if not is_there(entry)],
            threads=len(threads),
            checkpoints=len(checkpoints),
            problems=list(saver.verify()),
            errors=[path.read_text() for path in sorted(folder.glob("*.error"))],
            file_bytes=saver.stats(top=0).file_bytes,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill writers of one file, and look whether anything is lost.")
    parser.add_argument("--kills", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--processes", type=int, default=8)
    asked = parser.parse_args()
    kills = asked.kills if asked.kills is not None else sys.maxsize if asked.minutes is not None else 100
    seconds = float("inf") if asked.minutes is None else asked.minutes * 60
    with tempfile.TemporaryDirectory() as folder:
        figures = kill_loop(Path(folder), kills=kills, seconds=seconds, processes=asked.processes)
    print(figures, *figures.errors, *figures.lost[:10], *figures.problems[:10], sep="\n")
    return 0 if figures.well else 1


if __name__ == "__main__":
    sys.exit(main())
