"""Our saver beside its peers, in one run: `python -m tests.benchmarks`.

    python -m tests.benchmarks                       everything, about a quarter of an hour
    python -m tests.benchmarks --quick               one round, without the long shapes
    python -m tests.benchmarks --only small --only put-1mb --rounds 9
    python -m tests.benchmarks --markdown            the tables as the README has them

Savers take turns within each round (ours, the reference, InMemorySaver, PostgresSaver, ours, ...), each in a fresh
folder below the current directory, so run it where the disk is a real one. All are as durable as `synchronous=FULL`.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import shutil
import sqlite3
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import graph_shapes, storage_shapes  # noqa: F401  importing them fills SHAPES
from .goals import goal_rows
from .results import Results, table
from .savers import Memory, Ours, Peer, Postgres, Reference, fsync_ms, postgres
from .shape import SHAPES, Shape

PACKAGES = (
    "langgraph-sqlite-ckpt",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-sqlite",
    "langgraph-checkpoint-postgres",
    "aiosqlite",
)


def main() -> None:
    options = parse()
    with work_folder() as folder, postgres(folder / "postgres") as server:
        peers: list[Peer] = [Ours(), Reference(), Memory(), *([server] if server else [])]
        print(table(list(header(folder, server)), markdown=options.markdown), flush=True)
        results = Results()
        for shape in chosen(options):
            taking_part = [peer for peer in peers if peer.name in shape.peers]
            start = time.perf_counter()
            rounds = min(options.rounds, shape.rounds)
            measure(shape, taking_part, rounds, folder, results)
            took = f"{shape.name}, rounds: {rounds}, {time.perf_counter() - start:.0f} s"
            show(f"{shape.title} ({took})", list(results.rows(shape, taking_part)), options.markdown)
        show("Goals", list(goal_rows(results, all_of_them=not options.only)), options.markdown)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Our saver beside its peers.")
    parser.add_argument("--only", action="append", choices=list(SHAPES), metavar="NAME", help=", ".join(SHAPES))
    parser.add_argument("--quick", action="store_true", help="one round, without the shapes that take long")
    parser.add_argument("--rounds", type=int, help="turns of each saver in each shape (default 5, quick 1)")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    options = parser.parse_args()
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


def chosen(options: argparse.Namespace) -> list[Shape]:
    if options.only:
        return [SHAPES[name] for name in options.only]
    return [shape for shape in SHAPES.values() if not (options.quick and shape.full_only)]


@contextmanager
def work_folder() -> Iterator[Path]:
    """A temporary folder on this directory's disk; git does not see it, should it ever be left behind."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=Path.cwd(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / ".gitignore").write_text("*\n")
        yield folder


# Measuring ------------------------------------------------------------------------------------------------------------


def measure(shape: Shape, peers: Sequence[Peer], rounds: int, folder: Path, results: Results) -> None:
    """All rounds of one shape. A saver that fails is reported in the table, and sits out the rest of the shape."""
    with ExitStack() as stack:
        kept: dict[str, Path] = {}
        if shape.prepare:
            for peer in peers:
                kept[peer.name] = stack.enter_context(fresh(peer, folder))
                with reported(shape, peer, results):
                    shape.prepare(peer, kept[peer.name])
        for _ in range(rounds):
            for peer in peers:
                if (shape.name, peer.name) not in results.failures:
                    with reported(shape, peer, results):
                        one_round(shape, peer, kept.get(peer.name), folder, results)


def one_round(shape: Shape, peer: Peer, kept: Path | None, parent: Path, results: Results) -> None:
    with nullcontext(kept) if kept else fresh(peer, parent) as folder:
        settle()
        samples = shape.run(peer, folder)
        results.add(shape.name, peer.name, samples, peer.size(folder) if shape.weighed else None)


@contextmanager
def fresh(peer: Peer, parent: Path) -> Iterator[Path]:
    """A folder for one saver, gone afterwards with all that it wrote."""
    folder = Path(tempfile.mkdtemp(prefix="round-", dir=parent))
    try:
        yield folder
    finally:
        peer.forget(folder)
        shutil.rmtree(folder)


def settle() -> None:
    """Leave no garbage and no dirty pages of one saver for the next one to pay for."""
    gc.collect()
    os.sync()


@contextmanager
def reported(shape: Shape, peer: Peer, results: Results) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the other savers go on, and the table says what happened
        results.failures[shape.name, peer.name] = f"failed: {type(error).__name__}: {error}".splitlines()[0][:100]
        traceback.print_exc(limit=-3)


# Printing -------------------------------------------------------------------------------------------------------------


def show(title: str, rows: list[list[str]], markdown: bool) -> None:
    print(f"\n{'### ' if markdown else ''}{title}\n\n{table(rows, markdown=markdown)}", flush=True)


def header(folder: Path, server: Postgres | None) -> Iterator[list[str]]:
    """Date, versions and machine: without them no number means anything."""
    yield ["what", "which"]
    yield ["date", date.today().isoformat()]
    yield ["Python, SQLite", f"{platform.python_version()}, {sqlite3.sqlite_version}"]
    for package in PACKAGES:
        yield [package, package_version(package)]
    yield ["PostgreSQL", server.version if server else "not measured"]
    yield ["machine", f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()} {platform.release()}"]
    yield ["disk", f"4 kB and its fsync: {fsync_ms(folder):.2f} ms, median of 100"]
    yield ["durability", "synchronous=FULL; PostgreSQL: fsync and synchronous_commit on"]
    yield ["ratios", "this saver over the other, in the same round; median of the rounds"]


def package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from the source tree"


if __name__ == "__main__":
    main()
