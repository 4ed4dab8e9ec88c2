"""Deleting, pruning and copying threads: one transaction each, and what stays always loads.

What a kept checkpoint leans on is kept, or packed anew:

- a DeltaChannel's ancestors, back to the nearest stored value (its state is nowhere else). They are hidden: what their own
  DeltaChannels need may be gone, and to keep that too would often be to keep everything;
- the finished tasks and the question of a pending interrupt, which are writes of the kept checkpoint, and the subgraph
  that it waits in;
- the value itself, where it was compressed against an earlier version that goes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

from langgraph_sqlite_ckpt import history, tables
from langgraph_sqlite_ckpt.blobs import Chain, Limits, Named, Packed, pack, pack_against
from langgraph_sqlite_ckpt.encoding import Body, opened, readable_metadata
from langgraph_sqlite_ckpt.errors import DamagedError, InvalidRequest, Place
from langgraph_sqlite_ckpt.tables import NO_VALUE, BlobHead, CheckpointRow, NewBlob

_ROOT = ""
_REMEMBERED = 10_000  # namespaces


def prune(db: sqlite3.Connection, limits: Limits, thread_ids: Iterable[str], strategy: str) -> None:
    for thread_id in thread_ids:
        if strategy == "delete":
            delete_thread(db, thread_id)
        else:
            keep_last(db, limits, thread_id, 1)


def delete_thread(db: sqlite3.Connection, thread_id: str) -> None:
    for namespace, _ in tables.namespaces_of(db, thread_id):
        tables.delete_namespace(db, namespace)
    tables.drop_custody(db, thread_id)


Keep = Callable[[int, Collection[str]], object]
"""Keeps these checkpoints of a namespace, and no other."""


def keep_last(db: sqlite3.Connection, limits: Limits | None, thread_id: str, count: int) -> None:
    """The last checkpoints of each namespace that is still of use, with all they need."""
    _drop_late_writes(db, thread_id, count)
    _shorten(db, thread_id, count, partial(keep_only, db, limits))


def _shorten(db: sqlite3.Connection, thread_id: str, count: int, keep: Keep) -> None:
    kept_roots: Collection[str] = ()
    for namespace, checkpoint_ns in sorted(tables.namespaces_of(db, thread_id), key=lambda item: item[1] != _ROOT):
        if _is_call(checkpoint_ns) and _belongs_elsewhere(db, namespace, kept_roots):
            tables.delete_namespace(db, namespace)
            continue
        last = {checkpoint_id for checkpoint_id, _ in tables.ids_of(db, namespace)[-count:]}
        keep(namespace, last)
        if checkpoint_ns == _ROOT:
            kept_roots = last


class Trimmer:
    """`keep_last` after every put: shows the same, packs nothing anew, and is cheap.

    To look for what DeltaChannels need takes longer with each checkpoint that they do. So it is done when as many have come
    since as they needed then; until then those that are too many are hidden, and that is all.
    A damaged row keeps its thread as it is, and must not keep a run from going on.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._room: dict[int, int] = {}  # by namespace, how many more are hidden before it is looked again

    def trim(self, db: sqlite3.Connection, thread_id: str, root: int) -> None:
        excess = tables.count_of_namespace(db, root) - self._count
        if excess <= 0:
            return
        with suppress(DamagedError):
            if excess > self._room.get(root, 0):
                _drop_late_writes(db, thread_id, self._count)
            _shorten(db, thread_id, self._count, partial(self._keep, db))

    def _keep(self, db: sqlite3.Connection, namespace: int, last: Collection[str]) -> None:
        excess = tables.count_of_namespace(db, namespace) - len(last)
        room = self._room.pop(namespace, 0)
        if excess > room:
            room = keep_only(db, None, namespace, last)
        elif excess > 0:
            tables.hide_all_but(db, namespace, last)
            room -= excess
        if room > 0:
            self._remember(namespace, room)

    def _remember(self, namespace: int, room: int) -> None:
        if len(self._room) >= _REMEMBERED:
            self._room.clear()  # most are of threads that have ended; in the others it is looked once too often
        self._room[namespace] = room


def _drop_late_writes(db: sqlite3.Connection, thread_id: str, count: int) -> None:
    """What a task wrote may come when its checkpoint, or the whole subgraph call that it belonged to, went already.

    What is younger than the oldest root checkpoint that stays may belong to a checkpoint that is still to come.
    """
    namespaces = tables.namespaces_of(db, thread_id)
    for root in (namespace for namespace, checkpoint_ns in namespaces if checkpoint_ns == _ROOT):
        stay = [checkpoint_id for checkpoint_id, _ in tables.ids_of(db, root)][-count:]
        if stay:
            tables.delete_late_writes(db, [namespace for namespace, _ in namespaces], min(stay))
    for namespace, _ in namespaces:
        if tables.namespace_is_empty(db, namespace):
            tables.delete_namespace(db, namespace)


def _is_call(checkpoint_ns: str) -> bool:
    """A subgraph call's namespace names its task; that of a `checkpointer=True` subgraph goes on from turn to turn."""
    return ":" in str(checkpoint_ns)


def _belongs_elsewhere(db: sqlite3.Connection, namespace: int, kept_roots: Collection[str]) -> bool:
    """Whether the root checkpoint that started this subgraph call is gone.

    Root checkpoints are stored in the background: one that is younger than all that are kept is still to come.
    """
    latest = tables.latest_checkpoint(db, namespace)
    parents = readable_metadata(latest).get("parents") if latest is not None else None
    root = parents.get(_ROOT) if isinstance(parents, dict) else None
    return isinstance(root, str) and root not in kept_roots and root < max(kept_roots, default="")


def drop_unmeant(db: sqlite3.Connection, namespace: int) -> None:
    """The values that no checkpoint of the namespace means; what others were compressed against stays as long."""
    _drop_unmeant_blobs(db, None, namespace, _rows(db, namespace, tables.ids_with_hidden(db, namespace)))


def delete_for_runs(db: sqlite3.Connection, limits: Limits, run_ids: Collection[str]) -> None:
    """All checkpoints of these runs, but for what a DeltaChannel of another run still needs."""
    for namespace in tables.namespaces_of_runs(db, list(run_ids)):
        kept = {checkpoint_id for checkpoint_id, run_id in tables.ids_of(db, namespace) if run_id not in run_ids}
        keep_only(db, limits, namespace, kept)


def keep_only(db: sqlite3.Connection, limits: Limits | None, namespace: int, kept: Collection[str]) -> int:
    """Delete every other checkpoint of the namespace with its writes, and the values that nothing means any more.

    A value that a kept one was compressed against goes too, and the kept one is packed anew; without `limits` it stays
    until nothing leans on it, which is quicker.
    Ancestors that the DeltaChannels of the kept ones need stay too, hidden; returns how many those are.
    """
    needed = set(kept)
    for row in _rows(db, namespace, kept):
        if row.parent_id not in kept:  # else what its parent needs is enough
            needed |= _delta_ancestors(db, row)
    # Values first: should a kept row turn out to be damaged, no checkpoint has been deleted yet.
    _drop_unmeant_blobs(db, limits, namespace, _rows(db, namespace, needed))
    tables.delete_checkpoints(db, namespace, set(tables.ids_with_hidden(db, namespace)) - needed)
    tables.hide_all_but(db, namespace, kept)
    if tables.namespace_is_empty(db, namespace):
        tables.delete_namespace(db, namespace)
    return len(needed) - len(kept)


def _rows(db: sqlite3.Connection, namespace: int, checkpoint_ids: Iterable[str]) -> Iterator[CheckpointRow]:
    for checkpoint_id in checkpoint_ids:
        row = tables.find_checkpoint(db, namespace, checkpoint_id)
        if row is not None:
            yield row


def _delta_ancestors(db: sqlite3.Connection, row: CheckpointRow) -> set[str]:
    """LangGraph counts, in the metadata, what each delta channel was given since its last snapshot."""
    counted = readable_metadata(row).get("counters_since_delta_snapshot")
    if not isinstance(counted, dict) or not counted:
        return set()
    body = Body.of(row)
    valued = {blob.channel for blob in tables.blobs_named(db, body.names) if blob.type != NO_VALUE}
    stored = valued | set(body.inline)
    channels = [channel for channel in counted if channel in body.versions and channel not in stored]
    return set(history.walk(db, row.namespace, row.checkpoint_id, channels).ids) if channels else set()


# --- blobs ---


def _drop_unmeant_blobs(
    db: sqlite3.Connection, limits: Limits | None, namespace: int, kept: Iterable[CheckpointRow]
) -> None:
    blobs = tables.blobs_of(db, namespace)
    named = Named(blobs)
    meant = {blob.id for row in kept for name in Body.of(row).names if (blob := named.get(name)) is not None}
    gone = {blob.id for blob in blobs} - meant
    if limits is None:
        tables.release_blobs(db, namespace, gone)
        return
    _repack_leaning_on(db, limits, gone, [blob for blob in blobs if blob.id not in gone])
    tables.delete_blobs(db, gone)


def _repack_leaning_on(db: sqlite3.Connection, limits: Limits, gone: Collection[int], kept: Sequence[BlobHead]) -> None:
    """The oldest of those whose base goes is stored whole; the others of its channel lean on it from now on."""
    leaning = {blob.id for blob in tables.blobs_leaning_on(db, gone)} - set(gone)
    oldest: dict[str, tuple[int, bytes]] = {}
    for blob in kept:  # bases first, so a new base is packed before what leans on it
        if blob.id not in leaning:
            continue
        raw = _raw(db, blob)
        base = oldest.setdefault(blob.channel, (blob.id, raw))
        packed = pack_against(raw, base[1], limits) if base[0] != blob.id else None
        leans_on = base[0] if packed is not None else None
        _repack(db, blob, packed or pack(raw, limits), leans_on)


def _raw(db: sqlite3.Connection, blob: BlobHead) -> bytes:
    chain = Chain(tables.chain(db, [blob.id]))
    named = tables.name_of_namespace(db, blob.namespace) or ("?", "")  # it is there: this transaction found its blob
    place = Place(*named, None, blob.channel)
    return opened(place, lambda: chain.raw(blob.id))


def _repack(db: sqlite3.Connection, blob: BlobHead, packed: Packed, base: int | None) -> None:
    assert blob.version is not None  # a version names it, or it would not be kept
    tables.repack_blob(
        db,
        blob.id,
        NewBlob(
            blob.channel,
            blob.version,
            blob.state_version,
            blob.type,
            packed.codec,
            base,
            blob.position,
            *packed[1:3],
            packed.data,
        ),
    )


# --- copying ---


def copy_thread(db: sqlite3.Connection, source: str, target: str) -> None:
    """All of it: order, parents, namespaces, writes, values. The copy shares nothing with its source.

    But for effects (see `effects.py`): what was done, or is in doubt, is so for the copy too, under the key that was used.
    """
    if tables.namespaces_of(db, target):
        raise InvalidRequest(f"thread {target!r} exists already: delete it first, or name another target")
    namespaces = tables.namespaces_of(db, source)
    if not namespaces:
        raise InvalidRequest(f"there is no thread {source!r} to copy")
    copies = [(namespace, tables.intern_namespace(db, target, checkpoint_ns)) for namespace, checkpoint_ns in namespaces]
    tables.copy_checkpoints(db, source, target)
    for namespace, copy in copies:
        tables.copy_writes(db, namespace, copy)
        tables.copy_effects(db, namespace, copy)
        copied: dict[int | None, int | None] = {None: None}
        for blob, base in tables.bases_of(db, namespace).items():
            if base not in copied:
                raise DamagedError(Place(source), "what one of its values was compressed against is gone")
            copied[blob] = tables.copy_blob(db, blob, copy, copied[base])
    for (_, copy), (_, checkpoint_ns) in zip(copies, namespaces, strict=True):
        tables.move_seals(db, copy, (source, checkpoint_ns))
