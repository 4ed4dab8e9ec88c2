"""Files that a power cut or a bad disk left: what opens is a prefix of what was committed, or an error of ours says no.

    python -m tests.torn_files --minutes 10

The -wal is cut at every kind of place or has bits flipped: what is then read must be the state after one of the commits,
whole. Pages of the main file are damaged: a value that comes back must be the one that was stored, and where something is
missing, `verify` must tell. A bounded run of the same code is in `test_torn_files.py`.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.checkpoint.base.id import uuid6

from langgraph_sqlite_ckpt import CheckpointError, SqliteSaver

_WAL_HEADER, _FRAME_HEADER = 32, 24

State = dict[str, Any]
"""What a file says, by checkpoint: its values, its place, what is pending."""


class Image(NamedTuple):
    """A file with its -wal as a killed process leaves them, and what it said after each commit."""

    main: bytes
    wal: bytes
    page_size: int
    states: list[str]
    last: State


def state_of(saver: SqliteSaver) -> State:
    return {
        f"{item.config['configurable']['thread_id']}/{item.config['configurable']['checkpoint_id']}": told(item)
        for item in saver.list(None)
    }


def told(item: Any) -> Any:
    parent = item.parent_config and item.parent_config["configurable"]["checkpoint_id"]
    return json.loads(json.dumps([item.checkpoint, item.metadata, parent, sorted(item.pending_writes)]))


def image(folder: Path, rng: random.Random, *, commits: int = 12, warm_up: int = 0) -> Image:
    """Commits of every kind, all still in the -wal; `warm_up`: so many before, which are in the main file."""
    path = folder / "original.db"
    with SqliteSaver(path) as saver:
        run_of(saver, rng, warm_up, lambda: None)
    states: list[str] = []
    with SqliteSaver(path) as saver:
        last: list[State] = [{}]

        def note() -> None:
            last[0] = state_of(saver)
            states.append(json.dumps(last[0], sort_keys=True))

        note()
        run_of(saver, rng, commits, note)
        wal = Path(f"{path}-wal")
        found = Image(path.read_bytes(), wal.read_bytes() if wal.exists() else b"", 4096, states, last[0])
    for leftover in folder.glob("original.db*"):
        leftover.unlink()
    return found


def run_of(saver: SqliteSaver, rng: random.Random, commits: int, note: Callable[[], None]) -> None:
    at: dict[str, Any] = {}
    for number in range(commits):
        name = rng.choice("abc")
        kind = rng.random()
        if kind < 0.15 and name in at:
            saver.put_writes(at[name], [("list", number), ("text", "w" * rng.randrange(900))], f"task {number}")
        elif kind < 0.22 and name in at:
            saver.delete_thread(name)
            del at[name]
        else:
            at[name] = put(saver, rng, name, at.get(name), number)
        note()


def put(saver: SqliteSaver, rng: random.Random, name: str, at: Any, number: int) -> Any:
    before = saver.get_tuple(at).checkpoint["channel_values"]["list"] if at else []  # type: ignore[union-attr]
    values = {"list": [*before, f"{number} {rng.randbytes(200).hex()}"], "text": "t" * rng.randrange(3000), "n": number}
    versions = {channel: f"{number + 1:032}.{rng.random()}" for channel in values}
    checkpoint: Any = {
        "v": 4,
        "id": str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions,
        "versions_seen": {},
        "updated_channels": None,
    }
    place: Any = at or {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
    return saver.put(place, checkpoint, {"source": "loop", "step": number, "parents": {}}, dict(versions))  # type: ignore[arg-type]


# --- the -wal ---


def cuts(image: Image, rng: random.Random) -> Iterator[int]:
    """Every kind of place: in the header, at each frame's edges, in each frame's header and page, anywhere, and nowhere."""
    yield from (0, 1, 16, 31, 32, len(image.wal))
    for begin in range(_WAL_HEADER, len(image.wal), _FRAME_HEADER + image.page_size):
        yield from (begin - 1, begin, begin + 1)
        yield begin + rng.randrange(_FRAME_HEADER)
        yield begin + _FRAME_HEADER + rng.randrange(image.page_size)
    yield from (rng.randrange(len(image.wal)) for _ in range(20))


def flips(image: Image, rng: random.Random, count: int) -> Iterator[bytes]:
    """Some bits are others; or from somewhere on there are zeroes, or what stood there before."""
    for _ in range(count):
        wal = bytearray(image.wal)
        for _ in range(rng.choice([1, 1, 1, 5])):
            wal[rng.randrange(len(wal))] ^= 1 << rng.randrange(8)
        yield bytes(wal)
        begin = rng.randrange(len(wal))
        yield image.wal[:begin] + bytes(len(wal) - begin)
        yield image.wal[:begin] + rng.randbytes(len(wal) - begin)


def number_of_commits(image: Image, folder: Path, wal: bytes) -> list[int]:
    """How many of the commits are read (a delete may lead back to what was before: each such number), or none where we say
    that the file is damaged. Raises where it is neither.
    """
    path = folder / "torn.db"
    for leftover in folder.glob("torn.db*"):
        leftover.unlink()
    path.write_bytes(image.main)
    Path(f"{path}-wal").write_bytes(wal)
    try:
        with SqliteSaver(path, synchronous="normal") as saver:
            found = json.dumps(state_of(saver), sort_keys=True)
            assert found in image.states, "a state that never was"
            assert saver.verify() == [], "it opens, and is not well"
            put(saver, random.Random(0), "afterwards", None, 0)
            assert len(state_of(saver)) == len(json.loads(found)) + 1, "it does not go on"
            return [number for number, state in enumerate(image.states) if state == found]
    except CheckpointError:
        return []


def torn_wals(folder: Path, rng: random.Random, *, cut: int, flipped: int) -> Counter[str]:
    """How each ended: "all" of the commits, "some" or "none" of them, or an "error" of ours."""
    made = image(folder, rng)
    counted: Counter[str] = Counter()
    places = {*rng.sample(list(cuts(made, rng)), cut), 0, _WAL_HEADER, len(made.wal)}
    reached = 0
    for at in sorted(places):
        numbers = number_of_commits(made, folder, made.wal[:at])
        later = [number for number in numbers if number >= reached]
        assert later or not numbers, "more of the -wal gave less"
        reached = min(later, default=reached)
        counted[_outcome(numbers, made)] += 1
    assert len(made.states) - 1 in numbers, "a whole -wal gave less than all"
    counted.update(_outcome(number_of_commits(made, folder, wal), made) for wal in flips(made, rng, flipped))
    return counted


def _outcome(numbers: list[int], made: Image) -> str:
    if not numbers:
        return "error"
    return "all" if numbers[-1] == len(made.states) - 1 else "some" if numbers[-1] else "none"


# --- the main file ---


def damages(content: bytes, rng: random.Random, page_size: int) -> bytes:
    """Bits, bytes or whole pages that are not what was written."""
    damaged = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        page = rng.randrange(len(content) // page_size) * page_size
        at = rng.randrange(len(content))
        match rng.randrange(6):
            case 0:
                damaged[at] ^= 1 << rng.randrange(8)
            case 1:
                damaged[at : at + 60] = rng.randbytes(60)[: len(content) - at]
            case 2:
                damaged[page : page + page_size] = bytes(page_size)
            case 3:
                damaged[page : page + page_size] = rng.randbytes(page_size)
            case 4:
                other = rng.randrange(len(content) // page_size) * page_size
                damaged[page : page + page_size] = content[other : other + page_size]
            case 5:
                half = page + page_size // 2  # as a disk does that writes sectors
                damaged[half : page + page_size] = bytes(page_size // 2)
    return bytes(damaged)


def damaged_pages(folder: Path, rng: random.Random, count: int) -> Counter[str]:
    """How the reads of each checkpoint ended: "right", "error" of ours, or "missing", which `verify` must tell of."""
    made = image(folder, rng, warm_up=25, commits=0)
    counted: Counter[str] = Counter()
    for _ in range(count):
        path = folder / "damaged.db"
        for leftover in folder.glob("damaged.db*"):
            leftover.unlink()
        path.write_bytes(damages(made.main, rng, made.page_size))
        counted.update(_read_all(path, made.last))
    return counted


def _read_all(path: Path, last: State) -> Counter[str]:
    counted: Counter[str] = Counter()
    try:
        with SqliteSaver(path, synchronous="normal") as saver:
            for key, expected in last.items():
                counted[_read(saver, *key.split("/"), expected)] += 1
            tells = bool(saver.verify())
            for call in (lambda: list(saver.list(None)), saver.threads, saver.runs, saver.stats):
                _attempted(call)
    except CheckpointError:
        return Counter(error=len(last))
    unwell = counted["missing"] + counted["another link"]
    assert tells or not unwell, "something is missing or wrong, and verify() does not tell"
    return counted


def _read(saver: SqliteSaver, thread_id: str, checkpoint_id: str, expected: Any) -> str:
    try:
        item = saver.get_tuple({"configurable": {"thread_id": thread_id, "checkpoint_id": checkpoint_id}})
    except CheckpointError:
        return "error"
    if item is None:
        return "missing"
    found = told(item)
    if found == expected:
        return "right"
    (checkpoint, metadata, *_), (stored, stored_metadata, *_) = found, expected
    values, stored_values = checkpoint.pop("channel_values"), stored["channel_values"]
    without = {name: value for name, value in stored.items() if name != "channel_values"}
    assert (checkpoint, metadata) == (without, stored_metadata), f"a wrong state: {found} instead of {expected}"
    assert all(stored_values[name] == value for name, value in values.items()), (
        f"a wrong value: {values} instead of {stored_values}"
    )
    return "missing" if values != stored_values else "another link"


def _attempted(call: Callable[[], object]) -> None:
    try:
        call()
    except CheckpointError:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description="Cut, flip and damage files, and look whether what is read was ever true.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    asked = parser.parse_args()
    seed = asked.seed if asked.seed is not None else time.time_ns()
    rng, end = random.Random(seed), time.monotonic() + asked.minutes * 60
    torn: Counter[str] = Counter()
    damaged: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            torn += torn_wals(Path(folder), rng, cut=100, flipped=20)
            damaged += damaged_pages(Path(folder), rng, 100)
            print(
                f"seed {seed}: {sum(torn.values())} torn -wal files: {dict(torn)};"
                f" {sum(damaged.values())} reads of damaged files: {dict(damaged)}; no wrong state"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
