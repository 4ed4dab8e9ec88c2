"""`SqliteSaver`: LangGraph's words on one side, operations and rows on the other."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from langgraph_sqlite_ckpt.arguments import (
    address_of,
    before_of,
    channel_name,
    require_limit,
    require_versions,
    scope_of,
    several,
    still,
    thread_id_of,
)
from langgraph_sqlite_ckpt.confidential import merged_metadata
from langgraph_sqlite_ckpt.database import Database, JournalMode, Synchronous
from langgraph_sqlite_ckpt.encoding import as_text
from langgraph_sqlite_ckpt.errors import InvalidRequest, Place
from langgraph_sqlite_ckpt.events import Events, OnEvent
from langgraph_sqlite_ckpt.file import normalise_path
from langgraph_sqlite_ckpt.flush import Flush
from langgraph_sqlite_ckpt.keys import keyring_of
from langgraph_sqlite_ckpt.migrations import Migration, Migrations
from langgraph_sqlite_ckpt.mounts import shared_file_system
from langgraph_sqlite_ckpt.once import Once
from langgraph_sqlite_ckpt.operations import Operation, Statement
from langgraph_sqlite_ckpt.reading import Asked, configuration, decode_one, fetch_one
from langgraph_sqlite_ckpt.recovery import Recovering
from langgraph_sqlite_ckpt.renaming import stored_name
from langgraph_sqlite_ckpt.serde import AllowedType, SafeSerializer
from langgraph_sqlite_ckpt.shared import Shared
from langgraph_sqlite_ckpt.upgrading import UpToDate
from langgraph_sqlite_ckpt.upkeep import Upkeep, require_keep_last
from langgraph_sqlite_ckpt.writing import PutCheckpoint, PutWrites


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
            `help(langgraph_sqlite_ckpt.migrations)` for what a function sees.
        journal_mode: "wal" (default). "delete", for a file system without shared memory (over a network, or FUSE, whose
            locks must work all the same): readers and writers wait for each other, and a commit takes longer. All savers on
            one file need the same.
        on_event: Called with an `Event` (operation, seconds, bytes, thread, error) after each public operation and each
            commit: for metrics. It is called on the thread that did the work, when that is done and no lock is held: a
            sync call's own thread, before the call returns; for an async call a thread of the saver's, beside the event
            loop, after the task that waits was told (a slow one holds up the calls after it, not the loop). It must be
            thread-safe. What it raises is logged once and harms nothing; what it does itself with the saver makes no
            events. Default: nothing is timed.
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
        on_event: OnEvent | None = None,
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
        events = Events(on_event)
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
        self._shared = Shared(database, keep_last, flush, steps, events)
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
        with self._shared.events.timing("close"):
            self._shared.close()

    def flush(self) -> None:
        """Write what `flush=` lets wait in memory, of all threads. On return it is on disk.

        Raises:
            StorageError: SQLite could not do it; what waits is kept, and tried again with the next call.
        """
        with self._shared.events.timing("flush"):
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
        place, checkpoint_id = address_of(config)
        with self._shared.events.timing("get_tuple", place.thread_id) as timing:
            recent, (stored, asked) = self._shared.store.recent, self._asked(place)
            with self._shared.read(place.thread_id) as db:
                one = fetch_one(db, recent, stored, checkpoint_id, asked)
            if one is None:
                return None
            timing.found(bytes=one.stored)
            return decode_one(self.serde, recent, one, asked.migrations)

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
        require_limit(limit)
        if not isinstance(filter, (Mapping, type(None))):
            raise InvalidRequest(f"filter is a mapping of metadata keys to values, not {filter!r:.80}")
        thread_id, checkpoint_ns, checkpoint_id = scope_of(config)
        asked, bound = Asked(self._shared.store.migrations), before_of(before)
        if thread_id is not None and checkpoint_ns:
            stored, asked = self._asked(Place(thread_id, checkpoint_ns))
            if bound is not None and bound.checkpoint_ns == checkpoint_ns:
                bound = replace(bound, checkpoint_ns=stored.checkpoint_ns)
            checkpoint_ns = stored.checkpoint_ns
        query = listing.Query(thread_id, checkpoint_ns, checkpoint_id, filter, bound, limit)
        return listing.tuples(partial(self._shared.read, thread_id), self.serde, query, asked, self._shared.events)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What ancestors wrote to each channel, oldest first, since its value was last stored (the `seed`)."""
        place, checkpoint_id = address_of(config)
        if not channels:
            return {}
        for channel in channels:
            channel_name(channel)
        with self._shared.events.timing("get_delta_channel_history", place.thread_id):
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
        place, parent_id = address_of(config)
        checkpoint_id = as_text("checkpoint id", checkpoint["id"])
        require_versions(checkpoint)
        place = place._replace(checkpoint_id=checkpoint_id)
        if not isinstance(metadata, Mapping):
            raise InvalidRequest(f"metadata is a mapping, {{}} for none, not {metadata!r:.80}")
        merged = merged_metadata(config, metadata, keep_secrets=self._keep_secrets)
        taken = checkpoint.copy()
        taken["channel_values"] = {name: still(value) for name, value in checkpoint["channel_values"].items()}
        operation = PutCheckpoint(self._shared.store, self.serde, place, parent_id, taken, merged, dict(new_versions))
        return self._up_to_date(operation), configuration(place, checkpoint_id)

    def _up_to_date(self, write: PutCheckpoint | PutWrites) -> Operation[None]:
        return write if write.is_settled else UpToDate(write)

    def _put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> Operation[None]:
        place, checkpoint_id = address_of(config)
        if checkpoint_id is None:
            raise InvalidRequest("put_writes needs a checkpoint_id in config['configurable']")
        for channel, _ in writes:
            channel_name(channel)
        write = PutWrites(
            self._shared.store,
            self.serde,
            place._replace(checkpoint_id=checkpoint_id),
            checkpoint_id,
            tuple(writes),
            as_text("task id", task_id),
            as_text("task path", task_path),
        )
        return self._up_to_date(write)

    def _delete_thread(self, thread_id: str) -> Operation[None]:
        text = thread_id_of(thread_id)
        return Statement(lambda db: retention.delete_thread(db, text), kind="delete_thread", thread_id=text)

    def _delete_for_runs(self, run_ids: Sequence[str]) -> Operation[None]:
        ids = {as_text("run id", run_id) for run_id in several("run_ids", run_ids)}
        limits = self._shared.store.limits
        return Statement(lambda db: retention.delete_for_runs(db, limits, ids), kind="delete_for_runs")

    def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> Operation[None]:
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        return Statement(lambda db: retention.copy_thread(db, source, target), kind="copy_thread", thread_id=source)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Operation[None]:
        ids = [thread_id_of(thread_id) for thread_id in several("thread_ids", thread_ids)]
        if strategy not in ("keep_latest", "delete"):
            raise InvalidRequest(f'strategy is "keep_latest" or "delete", not {strategy!r}')
        return Statement(lambda db: retention.prune(db, self._shared.store.limits, ids, strategy), kind="prune")

    @property
    def _courier(self) -> Courier:  # type: ignore[override]  # read-only here: it is renewed after a fork
        return self._shared.courier


def _warn_of_shared_file_system(path: str) -> None:
    kind = shared_file_system(path)
    if kind is not None:
        warnings.warn(
            f"{path}: on a file system of type {kind}, which may not share memory between its users: in WAL mode their data"
            ' can get lost. Use a local disk, or journal_mode="delete" in all of them',
            stacklevel=3,
        )
