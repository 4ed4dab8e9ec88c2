"""The ancestor walk for DeltaChannel: what each channel was written since its value was last stored."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain
from langgraph_sqlite_ckpt.encoding import Body, decode_value, unpack_write
from langgraph_sqlite_ckpt.errors import Place
from langgraph_sqlite_ckpt.reading import decode_blob
from langgraph_sqlite_ckpt.tables import NO_VALUE, BlobHead, BlobRow, ChannelWrite, Version

T = TypeVar("T")


@dataclass
class Walk:
    """The ancestors that count, nearest first; how many of them do for each channel, and where its walk ended."""

    ancestors: list[str]
    depths: dict[str, int]
    seeds: dict[str, BlobHead] = field(default_factory=dict)
    inline_seeds: dict[str, Body] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """A walk with the rows that it needs, to be decoded after the read."""

    walk: Walk
    place: Place
    channels: Sequence[str]
    writes: Sequence[ChannelWrite]
    blobs: Sequence[BlobRow]


def walk(db: sqlite3.Connection, namespace: int, checkpoint_id: str, channels: Sequence[str]) -> Walk:
    """From the checkpoint's parent along parent links; each channel ends at the nearest stored value of its own.

    A fork's other branch is no ancestor. Bodies are only loaded where one of the channels may have its value.
    """
    stored = {(blob.channel, blob.version): blob for blob in tables.blobs_of_channels(db, namespace, channels)}
    in_blobs = {channel for channel, _ in stored}
    in_json = [json.dumps(channel) for channel in channels]  # as it would stand in `beside`
    walked, remaining = Walk([], {}), set(channels)
    for some in _growing(_line(db, namespace, checkpoint_id)):
        anywhere = bool(remaining & in_blobs)
        wanted = [seq for seq, _, beside in some if anywhere or (beside and any(channel in beside for channel in in_json))]
        rows = {row.seq: row for row in tables.checkpoints_at(db, wanted)} if wanted else {}
        for seq, ancestor, _ in some:
            walked.ancestors.append(ancestor)
            if seq in rows:
                _seed_from(walked, remaining, Body.of(rows[seq]), stored)
            if not remaining:
                return walked
    walked.depths.update(dict.fromkeys(remaining, len(walked.ancestors)))
    return walked


def _line(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Iterator[tuple[int, str, str | None]]:
    """The ancestors, without the checkpoint itself: its writes are not yet applied to it. A loop ends where it closes."""
    seen = set[str]()
    for seq, ancestor, beside in tables.ancestors(db, namespace, checkpoint_id):
        if ancestor in seen:
            return
        if seen:
            yield seq, ancestor, beside
        seen.add(ancestor)


def _growing(items: Iterator[T]) -> Iterator[Sequence[T]]:
    """Few at first: a stored value may be near. Many later: it takes a statement each time."""
    size = 4
    while some := list(islice(items, size)):
        yield some
        size = min(8 * size, 2048)


def _seed_from(
    walked: Walk, remaining: set[str], body: Body, stored: Mapping[tuple[str, Version | None], BlobHead]
) -> None:
    inline = set(body.inline)
    for channel in tuple(remaining):
        seed = stored.get((channel, body.versions[channel])) if channel in body.versions else None
        if channel in inline:
            walked.inline_seeds[channel] = body
        elif seed is not None and seed.type != NO_VALUE:
            walked.seeds[channel] = seed
        else:
            if seed is None:
                body.miss(channel)
            continue
        walked.depths[channel] = len(walked.ancestors)
        remaining.discard(channel)


def fetch(
    db: sqlite3.Connection, thread_id: str, checkpoint_ns: str, checkpoint_id: str | None, channels: Sequence[str]
) -> Stored | None:
    namespace = tables.find_namespace(db, thread_id, checkpoint_ns)
    if namespace is not None and checkpoint_id is None:
        latest = tables.latest_checkpoint(db, namespace)
        checkpoint_id = latest.checkpoint_id if latest else None
    if namespace is None or checkpoint_id is None:
        return None
    channels = list(dict.fromkeys(channels))
    walked = walk(db, namespace, checkpoint_id, channels)
    depths = [walked.depths[channel] for channel in channels]
    writes = tables.writes_to_channels(db, namespace, walked.ancestors, channels)
    return Stored(
        walked,
        Place(thread_id, checkpoint_ns),
        channels,
        [write for write in writes if write.checkpoint < depths[write.channel]],
        tables.chain(db, [seed.id for seed in walked.seeds.values()]),
    )


def decode(serde: SerializerProtocol, stored: Stored) -> dict[str, DeltaChannelHistory]:
    """Oldest write first; only what is returned is decoded."""
    result: dict[str, DeltaChannelHistory] = empty(stored.channels)
    lines = [(channel, result[channel]["writes"]) for channel in stored.channels]
    for write in stored.writes:
        channel, line = lines[write.channel]
        try:  # the quick way through many; the slow one says what is wrong, and where
            value = serde.loads_typed((write.type, unpack_write(write)))
        except Exception:
            at = stored.place._replace(checkpoint_id=stored.walk.ancestors[write.checkpoint], channel=channel)
            value = decode_value(serde, at, write)
        line.append((write.task_id, channel, value))
    chain = Chain(stored.blobs)
    for channel in stored.channels:
        result[channel].update(_seed(serde, stored, chain, channel))
    return result


def _seed(serde: SerializerProtocol, stored: Stored, chain: Chain, channel: str) -> Any:
    body = stored.walk.inline_seeds.get(channel)
    if body is not None:
        return {"seed": body.rest(serde)["channel_values"][channel]}
    blob = stored.walk.seeds.get(channel)
    return {} if blob is None else {"seed": decode_blob(serde, stored.place, blob, chain)}


def empty(channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
    return {channel: {"writes": []} for channel in channels}
