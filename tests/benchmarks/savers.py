"""How each saver is opened, closed and weighed. Everything else in this folder sees them through `Peer` only.

Every saver gets the durability of `synchronous=FULL`: a put that has returned is on disk. `durable=False` is for
building the data of a reading benchmark, never for a measured write.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from langgraph_sqlite_ckpt import SqliteSaver

FILE = "bench.db"
Saver = BaseCheckpointSaver[Any]


class Peer:
    """One saver under test. Opening the same folder again must find what was written there before."""

    name: ClassVar[str]
    async_name: ClassVar[str]

    def open(self, folder: Path, *, durable: bool = True) -> AbstractContextManager[Saver]:
        """The saver for sync callers, closed on exit."""
        raise NotImplementedError

    def aopen(self, folder: Path) -> AbstractAsyncContextManager[Saver]:
        """The saver for async callers, closed on exit."""
        raise NotImplementedError

    def size(self, folder: Path) -> int | None:
        """Bytes on disk after closing: the database and what lies beside it (-wal, -shm). None without a disk."""
        return sum(path.stat().st_size for path in folder.iterdir() if path.name.startswith(FILE))

    def forget(self, folder: Path) -> None:
        """Give back what lies outside of the folder."""


class Ours(Peer):
    """The package that this repository is about."""

    name = async_name = "ours"

    @contextmanager
    def open(self, folder: Path, *, durable: bool = True) -> Iterator[Saver]:
        with closing(SqliteSaver(str(folder / FILE), synchronous="full" if durable else "normal")) as saver:
            yield saver

    @asynccontextmanager
    async def aopen(self, folder: Path) -> AsyncIterator[Saver]:
        async with SqliteSaver(str(folder / FILE), synchronous="full") as saver:
            yield saver


class Reference(Peer):
    """langgraph-checkpoint-sqlite: one class for sync callers, another for async ones."""

    name = "SqliteSaver"
    async_name = "AsyncSqliteSaver"

    @contextmanager
    def open(self, folder: Path, *, durable: bool = True) -> Iterator[Saver]:
        from langgraph.checkpoint.sqlite import SqliteSaver as Sync

        with Sync.from_conn_string(str(folder / FILE)) as saver:
            saver.conn.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            yield saver

    @asynccontextmanager
    async def aopen(self, folder: Path) -> AsyncIterator[Saver]:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(str(folder / FILE)) as saver:
            await saver.conn.execute("PRAGMA synchronous=FULL")
            yield saver


class Memory(Peer):
    """InMemorySaver: what a step costs when nothing reaches a disk. "Opening again" gives the same object."""

    name = async_name = "InMemorySaver"

    def __init__(self) -> None:
        self._savers: dict[Path, InMemorySaver] = {}

    @contextmanager
    def open(self, folder: Path, *, durable: bool = True) -> Iterator[Saver]:
        yield self._savers.setdefault(folder, InMemorySaver())

    @asynccontextmanager
    async def aopen(self, folder: Path) -> AsyncIterator[Saver]:
        with self.open(folder) as saver:
            yield saver

    def size(self, folder: Path) -> int | None:
        return None

    def forget(self, folder: Path) -> None:
        self._savers.pop(folder, None)


@dataclass(frozen=True)
class Postgres(Peer):
    """PostgresSaver on a real server (its defaults: fsync and synchronous_commit on); each folder is a database there.

    Sync callers get one connection, as `from_conn_string` gives; async callers get a pool of ten, as its docs advise.
    """

    uri: str
    version: str
    name = "PostgresSaver"
    async_name = "AsyncPostgresSaver"

    @contextmanager
    def open(self, folder: Path, *, durable: bool = True) -> Iterator[Saver]:
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(self._database(folder)) as saver:
            if not durable:
                saver.conn.execute("SET synchronous_commit = off")  # type: ignore[union-attr]  # one connection, no pool
            yield saver

    @asynccontextmanager
    async def aopen(self, folder: Path) -> AsyncIterator[Saver]:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        uri = self._database(folder)
        async with AsyncConnectionPool(uri, min_size=10, max_size=10, kwargs=options, open=False) as pool:
            await pool.wait()
            yield AsyncPostgresSaver(pool)  # type: ignore[arg-type]  # the pool's row type is set by its kwargs

    def size(self, folder: Path) -> int | None:
        """Tables, TOAST and indexes; without the server's own files and its WAL."""
        import psycopg

        with psycopg.connect(self._database(folder)) as conn:
            row = conn.execute(
                "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c"
                " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r'"
            ).fetchone()
        return int(row[0]) if row else None

    def forget(self, folder: Path) -> None:
        import psycopg

        with psycopg.connect(self.uri, autocommit=True) as conn:
            conn.execute(f'DROP DATABASE IF EXISTS "{folder.name}" WITH (FORCE)')

    def _database(self, folder: Path) -> str:
        """The address of the folder's database, created and set up on first use, by one process at a time."""
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver

        uri = self.uri.replace("/postgres?", f"/{folder.name}?")
        with psycopg.connect(self.uri, autocommit=True) as conn:
            conn.execute("SELECT pg_advisory_lock(1)")
            with suppress(psycopg.errors.DuplicateDatabase):
                conn.execute(f'CREATE DATABASE "{folder.name}"')
                with PostgresSaver.from_conn_string(uri) as saver:
                    saver.setup()
        return uri


@contextmanager
def postgres(folder: Path) -> Iterator[Postgres | None]:
    """A PostgreSQL server of our own, from the `pgserver` wheel; None, and a line that says why, if it can't start."""
    try:
        server = start_server(folder)
    except Exception as error:  # whatever it is, the other savers can still be measured
        print(f"PostgresSaver skipped: {type(error).__name__}: {error}")
        yield None
        return
    try:
        yield Postgres(server.get_uri(), server_version(server.get_uri()))
    finally:
        server.cleanup()


def start_server(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        import langgraph.checkpoint.postgres  # noqa: F401  a missing package shows here, not in the middle of a run
        import pgserver  # type: ignore[import-untyped,unused-ignore]  # may be missing where mypy runs

        return pgserver.postgres_server.get_server(folder, cleanup_mode="delete")


def server_version(uri: str) -> str:
    import psycopg

    with psycopg.connect(uri) as conn:
        return f"{conn.info.server_version // 10000}.{conn.info.server_version % 10000}"


def fsync_ms(folder: Path, tries: int = 100) -> float:
    """Median time of a 4 kB write and its fsync: says more about a machine than its name does."""
    times = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(tries):
            start = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)
