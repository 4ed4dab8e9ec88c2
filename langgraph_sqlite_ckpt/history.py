"""The ancestor walk for DeltaChannel: what each channel was written since its value was last stored."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain
from langgraph_sqlite_ckpt.encoding import Body, decode_writes
from langgraph_sqlite_ckpt.errors import Place
from langgraph_sqlite_ckpt.reading import decode_blob
from langgraph_sqlite_ckpt.tables import NO_VALUE, BlobHead, BlobRow, Version, WriteRow


@dataclass
class Walk:
    """For each channel, the ancestors that contribute (nearest first) and where its walk ended."""

    lines: dict[str, list[str]]
    seeds: dict[str, BlobHead] = field(default_factory=dict)
    inline_seeds: dict[str, Body] = field(default_factory=dict)

    @property
    def ancestors(self) -> set[str]:
        return {checkpoint_id for line in self.lines.values() for checkpoint_id in line}


@dataclass(frozen=True)
class Stored:
    """A walk with the rows that it needs, to be decoded after the read."""

    walk: Walk
    place: Place
    writes: Sequence[WriteRow]
    blobs: Sequence[BlobRow]


def walk(db: sqlite3.Connection, namespace: int, checkpoint_id: str, channels: Sequence[str]) -> Walk:
    """From the checkpoint's parent along parent links; each channel ends at the nearest stored value of its own.

    A fork's other branch is no ancestor. A chain that loops ends where it closes. Bodies are only decoded where one of the
    channels may have its value.
    """
    stored = {(blob.channel, blob.version): blob for blob in tables.blobs_of_channels(db, namespace, channels)}
    in_blobs = {channel for channel, _ in stored}
    walked = Walk({channel: [] for channel in channels})
    remaining, seen = set(channels), set[str]()
    for ancestor in tables.ancestors(db, namespace, checkpoint_id):
        if not remaining or ancestor.checkpoint_id in seen:
            break
        if seen:  # the first is the checkpoint itself: its writes are not yet applied to it
            for channel in remaining:
                walked.lines[channel].append(ancestor.checkpoint_id)
            if remaining & in_blobs or (ancestor.beside and remaining & set(json.loads(ancestor.beside))):
                _seed_from(walked, remaining, Body.of(ancestor), stored)
        seen.add(ancestor.checkpoint_id)
    return walked


def _seed_from(
    walked: Walk, remaining: set[str], body: Body, stored: Mapping[tuple[str, Version | None], BlobHead]
) -> None:
    for channel in tuple(remaining):
        seed = stored.get((channel, body.versions[channel])) if channel in body.versions else None
        if channel in body.inline:
            walked.inline_seeds[channel] = body
        elif seed is not None and seed.type != NO_VALUE:
            walked.seeds[channel] = seed
        else:
            if seed is None:
                body.miss(channel)
            continue
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
    walked = walk(db, namespace, checkpoint_id, channels)
    return Stored(
        walked,
        Place(thread_id, checkpoint_ns),
        tables.writes_to_channels(db, namespace, walked.ancestors, channels),
        tables.chain(db, [seed.id for seed in walked.seeds.values()]),
    )


def decode(serde: SerializerProtocol, stored: Stored) -> dict[str, DeltaChannelHistory]:
    """Oldest write first; only what is returned is decoded."""
    chain = Chain(stored.blobs)
    writes: dict[tuple[str, str], list[WriteRow]] = {}
    for write in stored.writes:
        writes.setdefault((write.channel, write.checkpoint_id), []).append(write)
    result: dict[str, DeltaChannelHistory] = {}
    for channel, line in stored.walk.lines.items():
        entry: DeltaChannelHistory = {
            "writes": [
                decoded
                for ancestor in reversed(line)
                if (channel, ancestor) in writes
                for decoded in decode_writes(
                    serde, stored.place._replace(checkpoint_id=ancestor), writes[channel, ancestor]
                )
            ]
        }
        entry.update(_seed(serde, stored, chain, channel))
        result[channel] = entry
    return result


def _seed(serde: SerializerProtocol, stored: Stored, chain: Chain, channel: str) -> Any:
    body = stored.walk.inline_seeds.get(channel)
    if body is not None:
        return {"seed": body.rest(serde)["channel_values"][channel]}
    blob = stored.walk.seeds.get(channel)
    return {} if blob is None else {"seed": decode_blob(serde, stored.place, blob, chain)}


def empty(channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
    return {channel: {"writes": []} for channel in channels}
