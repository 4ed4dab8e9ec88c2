"""`SqliteSaver`: LangGraph's words on one side, operations and rows on the other."""

from __future__ import annotations

import asyncio
import atexit
import copy
import math
import os
import random
import sqlite3
import time
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol, maybe_add_typed_methods

from langgraph_sqlite_ckpt import history, listing, retention, tables
from langgraph_sqlite_ckpt.aio import AsyncContract, Courier
from langgraph_sqlite_ckpt.blobs import Limits, Recent
from langgraph_sqlite_ckpt.buffer import Buffer
from langgraph_sqlite_ckpt.confidential import merged_metadata
from langgraph_sqlite_ckpt.custody import Heart, Owner, record_the_gone
from langgraph_sqlite_ckpt.database import Database, JournalMode, Synchronous
from langgraph_sqlite_ckpt.encoding import as_text as _text
from langgraph_sqlite_ckpt.errors import InvalidRequest, Place
from langgraph_sqlite_ckpt.file import MEMORY, normalise_path
from langgraph_sqlite_ckpt.flush import Flush
from langgraph_sqlite_ckpt.keys import keyring_of
from langgraph_sqlite_ckpt.migrations import Migration, Migrations
from langgraph_sqlite_ckpt.mounts import shared_file_system
from langgraph_sqlite_ckpt.once import Once
from langgraph_sqlite_ckpt.operations import Operation, Statement, Writer
from langgraph_sqlite_ckpt.reading import Asked, configuration, decode_one, fetch_one
from langgraph_sqlite_ckpt.recovery import Recovering
from langgraph_sqlite_ckpt.renaming import stored_name
from langgraph_sqlite_ckpt.serde import AllowedType, SafeSerializer
from langgraph_sqlite_ckpt.upgrading import UpToDate
from langgraph_sqlite_ckpt.upkeep import Upkeep, require_keep_last
from langgraph_sqlite_ckpt.writing import PutCheckpoint, PutWrites, Store


class SqliteSaver(Recovering, Once, Upkeep, AsyncContract):
    """Keeps every thread, run and step of LangGraph graphs in one SQLite file; sync and async graphs alike.

        graph = builder.compile(checkpointer=SqliteSaver("agent.db"))

    Works as it is, as `with`, and as `async with`. One object serves any number of threads, event loops and graphs, and
    any number of processes may have savers on one file. When `put` or `put_writes` returns, the data is on disk (or, with
    `flush=`, waits for it).
    `copy.copy` and `with_allowlist` share the file: closing one closes all. After `fork()` both processes go on.

    Args:
        path: The file; its folders are made, `~` is expanded. ":memory:" is private to this object.
        serde: Used as given. Default: `SafeSerializer`, which rebuilds only what is safe.
        allowed_types: Types that the default serializer may rebuild too: classes, or (module, name) pairs, whose module
            is then imported when needed.
        synchronous: "full" (default): a commit survives a power cut. "normal": it survives kill -9 and a crash of the
            process, but a power cut can lose the last commits; faster, as no commit waits for the disk.
        busy_timeout: Seconds to wait for another process's write lock before `BusyError`.
        read_only: Never write to the file; writing calls raise `ReadOnlyError`. (SQLite may leave an empty -wal beside it.)
        flush: How often to write to the file, and so what a crash can lose (`Flush`). Default: each `put` at once.
        keep_last: Keep no more than the last so many checkpoints of each thread: older ones go with each put, and what the
            DeltaChannels of these need of them is hidden. Default: keep all.
        migrations: Functions from the values of a state's channels (a dict) to those of its next version, oldest first;
            append to the list, never edit it. `rename_channel` and `rename_node` make such entries too. States are brought
            up to date when they are read, and stored so with the next write; `migrate_all` rewrites the rest. See
            `migrations.py` for what a function sees.
        journal_mode: "wal" (default). "delete", for a file system without shared memory (over a network, or FUSE, whose
            locks must work all the same): readers and writers wait for each other, and a commit takes longer. All savers on
            one file need the same.
        keep_secrets: Store them. By default entries of `configurable` that are named like secrets (`*api_key*`, `*token*`,
            `*secret*`, `*password*`, `authorization`) stay out of the metadata, into which LangGraph copies all scalars of
            `configurable`. What you put under `config["metadata"]` yourself, or into the state, is stored always.
        key: 32 random bytes: values, writes, results of effects and metadata are encrypted with it (AES-256-GCM, the extra
            `encryption`), each bound to its place. Ids, names, versions, times and sizes stay in clear: see `sealing.py`.
        keys: In the place of `key`: the first is for what is written, the others only to read, until `rekey`. None stands
            for no encryption: keys=[key, None] reads a file that is older than its key.
        clear_metadata: Keys of the metadata that are not encrypted, beside `source`, `step`, `run_id` and `parents`: SQL
            can see them, and filters on them are as fast as without a key.

    Warns:
        UserWarning: The file is on a network or FUSE file system, where WAL mode can lose data.

    Raises:
        OpenError: The path cannot be opened (`ForeignFileError`, `NewerFileError`: it is not ours to open).
        NewerStateError: States in the file have been through more migrations than these.
        InvalidRequest: An argument makes no sense.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        serde: SerializerProtocol | None = None,
        allowed_types: Iterable[AllowedType] = (),
        synchronous: Synchronous = "full",
        busy_timeout: float = 30.0,
        read_only: bool = False,
        keep_last: int | None = None,
        flush: Flush | None = None,
        migrations: Sequence[Migration] = (),
        journal_mode: JournalMode = "wal",
        keep_secrets: bool = False,
        key: bytes | None = None,
        keys: Sequence[bytes | None] | None = None,
        clear_metadata: Collection[str] = (),
    ) -> None:
        allowed = tuple(allowed_types)
        if serde is not None and allowed:
            raise InvalidRequest("allowed_types= is for the default serializer; a serde= of your own decides for itself")
        if synchronous not in ("full", "normal"):
            raise InvalidRequest(f'synchronous is "full" or "normal", not {synchronous!r}')
        if journal_mode not in ("wal", "delete"):
            raise InvalidRequest(f'journal_mode is "wal" or "delete", not {journal_mode!r}')
        if not isinstance(busy_timeout, (int, float)) or isinstance(busy_timeout, bool) or not busy_timeout >= 0:
            raise InvalidRequest(f"busy_timeout is a number of seconds, not {busy_timeout!r}")
        require_keep_last(keep_last)
        if flush is not None and not isinstance(flush, Flush):
            raise InvalidRequest(f"flush is a Flush(steps=..., seconds=..., nodes=...), not {flush!r:.80}")
        super().__init__(serde=serde or SafeSerializer(allowed))
        self._keep_secrets = keep_secrets
        keyring = keyring_of(key, keys, clear_metadata)
        steps, where = Migrations(migrations), normalise_path(path)
        database = Database(
            where,
            synchronous=synchronous,
            busy_timeout=busy_timeout,
            read_only=read_only,
            journal_mode=journal_mode,
            accept=lambda db: steps.require_known(tables.newest_state_version(db), where),
            keyring=keyring,
        )
        self._shared = Shared(database, keep_last, flush, steps)
        if journal_mode == "wal":
            _warn_of_shared_file_system(database.path)

    @classmethod
    def from_conn_string(cls, conn_string: str | os.PathLike[str], **options: Any) -> SqliteSaver:
        """The same as `SqliteSaver(conn_string, **options)`: so does code written for the reference package go on."""
        return cls(conn_string, **options)

    # --- lifetime ---

    def close(self) -> None:
        """Close the file; queued operations are finished first, and what waits in memory (`flush=`) is written.

        Again is fine; any other call then raises `ClosedError`. If what waits cannot be written it raises, and stays open.
        """
        self._shared.close()

    def flush(self) -> None:
        """Write what `flush=` lets wait in memory, of all threads. On return it is on disk.

        Raises:
            StorageError: SQLite could not do it; what waits is kept, and tried again with the next call.
        """
        self._shared.database._require_open()
        self._shared.flush()

    async def aflush(self) -> None:
        await asyncio.to_thread(self.flush)

    def __enter__(self) -> SqliteSaver:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> SqliteSaver:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def setup(self) -> None:
        """Nothing is left to do: the file was checked, and built or migrated, when the saver was made."""

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> SqliteSaver:
        """A saver on the same file that may rebuild these types too. A serde that was passed in is asked its own way."""
        if not isinstance(self.serde, SafeSerializer):
            derived = super().with_allowlist(extra_allowlist)
            assert isinstance(derived, SqliteSaver)
            return derived
        serde = self.serde.with_msgpack_allowlist(extra_allowlist)
        if serde is self.serde:
            return self
        clone = copy.copy(self)
        clone.serde = maybe_add_typed_methods(serde)
        return clone

    # --- reading ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the latest by order of commits; None where there is none.

        Pending writes come in the order in which LangGraph applies them.

        Raises:
            DecodeError, DamagedError: The checkpoint cannot be rebuilt; the message names the place.
            MigrationError, NewerStateError: Its state cannot be brought to the version of `migrations`.
        """
        place, checkpoint_id = _address(config)
        recent, (stored, asked) = self._shared.store.recent, self._asked(place)
        with self._shared.read(place.thread_id) as db:
            one = fetch_one(db, recent, stored, checkpoint_id, asked)
        return None if one is None else decode_one(self.serde, recent, one, asked.migrations)

    def _asked(self, place: Place) -> tuple[Place, Asked]:
        """The place as the file has it, where the node that its namespace is named after was renamed since."""
        migrations = self._shared.store.migrations
        self._shared.flush(place.thread_id)
        name = stored_name(self._shared.database, self.serde, migrations, place)
        known_as = None if name == place.checkpoint_ns else place.checkpoint_ns
        return place._replace(checkpoint_ns=name), Asked(migrations, known_as)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, newest commit first, read in pages as they are asked for.

        Nothing is held between two items: the saver may be used inside the loop, or the loop left at any time.

        Args:
            config: Restricts to its thread, namespace and checkpoint, as far as it names them. None: the whole file.
            filter: Metadata that must be equal, key by key (InMemorySaver's meaning).
            before: Only checkpoints committed before this one. Where it is not among those listed, ids are compared.
            limit: At most so many.

        Raises:
            InvalidRequest: A limit that is no number of checkpoints, a filter that is no mapping, a config that is none.
        """
        _require_limit(limit)
        if not isinstance(filter, (Mapping, type(None))):
            raise InvalidRequest(f"filter is a mapping of metadata keys to values, not {filter!r:.80}")
        thread_id, checkpoint_ns, checkpoint_id = _scope(config)
        asked, bound = Asked(self._shared.store.migrations), _before(before)
        if thread_id is not None and checkpoint_ns:
            stored, asked = self._asked(Place(thread_id, checkpoint_ns))
            if bound is not None and bound.checkpoint_ns == checkpoint_ns:
                bound = replace(bound, checkpoint_ns=stored.checkpoint_ns)
            checkpoint_ns = stored.checkpoint_ns
        query = listing.Query(thread_id, checkpoint_ns, checkpoint_id, filter, bound, limit)
        return listing.tuples(partial(self._shared.read, thread_id), self.serde, query, asked)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What ancestors wrote to each channel, oldest first, since its value was last stored (the `seed`)."""
        place, checkpoint_id = _address(config)
        if not channels:
            return {}
        for channel in channels:
            _channel(channel)
        recent, (at, asked) = self._shared.store.recent, self._asked(place)
        with self._shared.read(place.thread_id) as db:
            stored = history.fetch(db, recent, at, checkpoint_id, channels, asked.migrations)
        if stored is None:
            return history.empty(channels)
        return history.decode(self.serde, recent, stored, asked.migrations)

    # --- writing ---

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint whose parent is the one that `config` names. On return it is on disk (with
        `flush=` it may wait for it).

        A checkpoint that is put again keeps its place in the order, and its pending writes.

        Returns:
            The config that names it.

        Raises:
            EncodeError: A value cannot be stored; names the channel and the type.
            StorageError: SQLite could not do it (`BusyError`, `DiskFullError`, ...).
        """
        operation, stored = self._put(config, checkpoint, metadata, new_versions)
        self._shared.writer.write(operation)
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task wrote, all or nothing, also before its checkpoint is there. On return as with `put`.

        Row by row: special channels (errors, interrupts, resumes) replace, ordinary ones keep the first.
        """
        self._shared.writer.write(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all its namespaces, in one transaction. One that is not there is fine."""
        self._shared.writer.write(self._delete_thread(thread_id))
        self._tidy()

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete all checkpoints of these runs, in one transaction.

        Ancestors that the DeltaChannels of other runs need are kept, hidden.
        """
        self._shared.writer.write(self._delete_for_runs(run_ids))
        self._tidy()

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a whole thread, in one transaction; the copy goes on independently.

        Raises:
            InvalidRequest: There is no such source, or the target exists.
        """
        self._shared.writer.write(self._copy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune threads, all in one transaction.

        Args:
            thread_ids: Those that are not there are fine.
            strategy: "keep_latest": the newest checkpoint of each namespace, with its pending writes; finished subgraph
                calls go. Ancestors that its DeltaChannels need are kept, hidden. "delete": whole threads.
        """
        self._shared.writer.write(self._prune(thread_ids, strategy))
        self._tidy()

    def get_next_version(self, current: str | None, channel: None) -> str:  # noqa: ARG002  # LangGraph still passes it
        """The official savers' format: ordered as text, unique across forks, at home in PostgresSaver too."""
        counter = current if isinstance(current, (int, float)) else int(current.split(".")[0]) if current else 0
        return f"{int(counter) + 1:032}.{random.random():016}"

    # --- calls as operations: arguments checked, no file touched ---

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[Operation[None], RunnableConfig]:
        place, parent_id = _address(config)
        checkpoint_id = _text("checkpoint id", checkpoint["id"])
        _require_versions(checkpoint)
        place = place._replace(checkpoint_id=checkpoint_id)
        if not isinstance(metadata, Mapping):
            raise InvalidRequest(f"metadata is a mapping, {{}} for none, not {metadata!r:.80}")
        merged = merged_metadata(config, metadata, keep_secrets=self._keep_secrets)
        taken = checkpoint.copy()
        taken["channel_values"] = {name: _still(value) for name, value in checkpoint["channel_values"].items()}
        operation = PutCheckpoint(self._shared.store, self.serde, place, parent_id, taken, merged, dict(new_versions))
        return self._up_to_date(operation), configuration(place, checkpoint_id)

    def _up_to_date(self, write: PutCheckpoint | PutWrites) -> Operation[None]:
        return write if write.is_settled else UpToDate(write)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Operation[None]:
        place, checkpoint_id = _address(config)
        if checkpoint_id is None:
            raise InvalidRequest("put_writes needs a checkpoint_id in config['configurable']")
        for channel, _ in writes:
            _channel(channel)
        write = PutWrites(
            self._shared.store,
            self.serde,
            place._replace(checkpoint_id=checkpoint_id),
            checkpoint_id,
            tuple(writes),
            _text("task id", task_id),
            _text("task path", task_path),
        )
        return self._up_to_date(write)

    def _delete_thread(self, thread_id: str) -> Operation[None]:
        text = _thread_id(thread_id)
        return Statement(lambda db: retention.delete_thread(db, text))

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Operation[None]:
        ids = {_text("run id", run_id) for run_id in _several("run_ids", run_ids)}
        return Statement(lambda db: retention.delete_for_runs(db, self._shared.store.limits, ids))

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> Operation[None]:
        source, target = _thread_id(source_thread_id), _thread_id(target_thread_id)
        return Statement(lambda db: retention.copy_thread(db, source, target))

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Operation[None]:
        ids = [_thread_id(thread_id) for thread_id in _several("thread_ids", thread_ids)]
        if strategy not in ("keep_latest", "delete"):
            raise InvalidRequest(f'strategy is "keep_latest" or "delete", not {strategy!r}')
        return Statement(lambda db: retention.prune(db, self._shared.store.limits, ids, strategy))

    @property
    def _courier(self) -> Courier:  # type: ignore[override]  # read-only here: it is renewed after a fork
        return self._shared.courier


class Shared:
    """All of a saver but its serde: what its copies have in common."""

    def __init__(self, database: Database, keep_last: int | None, flush: Flush | None, migrations: Migrations) -> None:
        self.database = database
        self._keep_last = keep_last
        # A private memory ends with its process anyway, and its readers would wait for a flush under way.
        self._policy = flush if database.path != MEMORY and not database.read_only else None
        self._migrations = migrations
        _OPEN.add(self)
        self.database.renew = self._renew
        self._renew()
        try:
            if not database.read_only:
                record_the_gone(database)
        except BaseException:  # Ctrl-C, say: nobody will have this saver to close it
            database.close()
            raise

    def _renew(self) -> None:
        """Also in a forked child, where threads are gone and locks may be held by nobody."""
        limits = Limits()
        self.owner = Owner(self._start_heart)
        trimmer = retention.Trimmer(self._keep_last) if self._keep_last is not None else None
        self.store = Store(self.database, Recent(limits.cache), limits, self.owner, trimmer, migrations=self._migrations)
        self._buffer = Buffer(self.database, self._policy) if self._policy is not None else None
        self.writer: Writer = self._buffer or self.database
        self.courier = Courier(self.writer)
        self._heart: Heart | None = None

    def _start_heart(self) -> None:
        self._heart = Heart(self.database, self.owner)

    def read(self, thread_id: str | None = None) -> AbstractContextManager[sqlite3.Connection]:
        """A view of the file with all that was acknowledged, of this thread or of all, in it."""
        self.flush(thread_id)
        return self.database.read()

    def flush(self, thread_id: str | None = None) -> None:
        if self._buffer is not None:
            self._buffer.flush(thread_id)

    def close(self) -> None:
        if self._buffer is not None:
            self._buffer.close()
        patience = self.database.busy_timeout if self.owner.has_work else _PATIENCE
        self.database.close(self.owner.sign_off if self.owner.ends() else None, patience=patience)
        self._end_threads()

    def sign_off(self, *, patience: float) -> None:
        """Without closing, and without waiting for others longer than so many seconds."""
        if self.owner.ends():
            self.database.write_if_free(self.owner.sign_off, patience=patience)

    def _end_threads(self) -> None:
        self.courier.halt()
        if self._heart is not None:
            self._heart.stop()

    def __del__(self) -> None:
        if hasattr(self, "courier"):
            self.sign_off(patience=0)
            self._end_threads()
            if self._buffer is not None:
                self._buffer.part(abandoned=True)
            else:
                self.database.let_go()


_OPEN: weakref.WeakSet[Shared] = weakref.WeakSet()
_PATIENCE = 1.0  # seconds


@atexit.register
def _sign_off_all() -> None:
    """An interpreter that ends normally has not crashed."""
    deadline = time.monotonic() + _PATIENCE
    for shared in tuple(_OPEN):
        shared.sign_off(patience=max(0.0, deadline - time.monotonic()))


def _warn_of_shared_file_system(path: str) -> None:
    kind = shared_file_system(path)
    if kind is not None:
        warnings.warn(
            f"{path}: on a file system of type {kind}, which may not share memory between its users: in WAL mode their data"
            ' can get lost. Use a local disk, or journal_mode="delete" in all of them',
            stacklevel=3,
        )


# --- ids, normalised in one place ---


def _configurable(config: RunnableConfig) -> Mapping[str, Any]:
    configurable = config.get("configurable") if isinstance(config, Mapping) else None
    if not isinstance(configurable, Mapping):
        raise InvalidRequest(f"a config is needed, {{'configurable': {{'thread_id': ...}}}}, not {config!r:.80}")
    return configurable


def _address(config: RunnableConfig) -> tuple[Place, str | None]:
    """The thread and namespace, and the checkpoint id where there is one."""
    configurable = _configurable(config)
    if configurable.get("thread_id") is None:
        raise InvalidRequest("config['configurable'] has no thread_id: it names the conversation or job to keep")
    return Place(_thread_id(configurable["thread_id"]), _namespace(configurable) or ""), _checkpoint_id(configurable)


def _scope(config: RunnableConfig | None) -> tuple[str | None, str | None, str | None]:
    if config is None:
        return None, None, None
    configurable = _configurable(config)
    thread_id = configurable.get("thread_id")
    return None if thread_id is None else _thread_id(thread_id), _namespace(configurable), _checkpoint_id(configurable)


def _before(config: RunnableConfig | None) -> listing.Before | None:
    if config is None:
        return None
    thread_id, checkpoint_ns, checkpoint_id = _scope(config)
    return listing.Before(checkpoint_id, thread_id, checkpoint_ns) if checkpoint_id else None


def _namespace(configurable: Mapping[str, Any]) -> str | None:
    checkpoint_ns = configurable.get("checkpoint_ns")
    return None if checkpoint_ns is None else _text("checkpoint_ns", checkpoint_ns)


def _checkpoint_id(configurable: Mapping[str, Any]) -> str | None:
    checkpoint_id = configurable.get("checkpoint_id")
    return _text("checkpoint_id", checkpoint_id) if checkpoint_id else None


def _thread_id(value: object) -> str:
    return _text("thread_id", value)


def _channel(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidRequest(f"channels are named by text, not by {name!r:.80}")
    return _text("channel", name)


def _require_limit(limit: object) -> None:
    if limit is None:
        return
    if not isinstance(limit, int):
        raise InvalidRequest(f"limit is a number of checkpoints, not {limit!r:.80}")
    if limit < 0:
        raise InvalidRequest(f"limit must not be negative: {limit}")


def _several(name: str, values: Sequence[object]) -> Sequence[object]:
    if isinstance(values, (str, bytes)):
        raise InvalidRequest(f"{name} is a list of ids, not one: [{values!r}]")
    if not isinstance(values, Iterable):
        raise InvalidRequest(f"{name} is a list of ids, not {values!r:.80}")
    return tuple(values)


def _require_versions(checkpoint: Checkpoint) -> None:
    """Channels and versions as LangGraph's contract has them; anything else would not be found again."""
    for versions in (checkpoint["channel_versions"], *checkpoint["versions_seen"].values()):
        for channel, version in versions.items():
            _channel(channel)
            if isinstance(version, str):
                _text("version", version)
            if type(version) not in (str, int, float) or (type(version) is float and not math.isfinite(version)):
                raise InvalidRequest(f"the version of channel {channel!r} is a str, int or float, not {version!r:.80}")


def _still(value: Any) -> Any:
    """A join hands out the very set that it goes on changing: what is stored must be of one moment.

    It helps where LangGraph calls in time: with durability "async" it may call when a later step has changed it already.
    """
    if type(value) is set:
        return set(value)
    return (set(value[0]), *value[1:]) if type(value) is tuple and value and type(value[0]) is set else value
