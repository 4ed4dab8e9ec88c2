"""The ancestor walk for DeltaChannel: what each channel was written since its value was last stored.

Where migrations renamed a channel on the way, older ancestors have it under its name of then. A value that an older
ancestor has is brought up to date with all of that checkpoint; so is the nearest older one, where a function may have made
the value.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain, Named, Recent
from langgraph_sqlite_ckpt.encoding import Body, decode_writes
from langgraph_sqlite_ckpt.errors import Place
from langgraph_sqlite_ckpt.migrations import Migrations, graph_of
from langgraph_sqlite_ckpt.reading import Asked, One, decode_blob, decode_one, fetch_one
from langgraph_sqlite_ckpt.tables import BlobHead, BlobName, BlobRow, WriteRow

Naming = Callable[[str, int], str]
"""What a channel of today's was called at a state version."""


class Ancestor(NamedTuple):
    """A checkpoint that contributes to a channel, and what the channel is called there."""

    checkpoint_id: str
    state_version: int
    channel: str


@dataclass
class Walk:
    """For each channel, the ancestors that contribute (nearest first) and where its walk ended."""

    lines: dict[str, list[Ancestor]]
    seeds: dict[str, BlobHead] = field(default_factory=dict)
    inline_seeds: dict[str, Body] = field(default_factory=dict)

    @property
    def ancestors(self) -> set[str]:
        return {ancestor.checkpoint_id for line in self.lines.values() for ancestor in line}

    @property
    def names(self) -> set[str]:
        return {ancestor.channel for line in self.lines.values() for ancestor in line}


@dataclass(frozen=True)
class Stored:
    """A walk with the rows that it needs, to be decoded after the read."""

    walk: Walk
    place: Place
    writes: Sequence[WriteRow]
    blobs: Sequence[BlobRow]
    older: Mapping[str, One]  # ancestors of an older state version whose values are needed


def _same_name(channel: str, _state_version: int) -> str:
    return channel


def walk(
    db: sqlite3.Connection,
    namespace: int,
    checkpoint_id: str,
    channels: Sequence[str],
    naming: Naming = _same_name,
    former: Sequence[str] = (),
) -> Walk:
    """From the checkpoint's parent along parent links; each channel ends at the nearest stored value of its own.

    A fork's other branch is no ancestor. A chain that loops ends where it closes. Bodies are only decoded where one of the
    channels may have its value. `former`: the names that `naming` gives beside today's.
    """
    heads = tables.blobs_of_channels(db, namespace, {*channels, *former})
    stored, in_blobs = Named(heads), {head.channel for head in heads}
    walked = Walk({channel: [] for channel in channels})
    remaining, seen = set(channels), set[str]()
    for ancestor in tables.ancestors(db, namespace, checkpoint_id):
        if not remaining or ancestor.checkpoint_id in seen:
            break
        if seen:  # the first is the checkpoint itself: its writes are not yet applied to it
            names = {channel: naming(channel, ancestor.state_version) for channel in remaining}
            for channel, name in names.items():
                walked.lines[channel].append(Ancestor(ancestor.checkpoint_id, ancestor.state_version, name))
            here = set(names.values())
            if here & in_blobs or (ancestor.beside and here & set(json.loads(ancestor.beside))):
                remaining -= _seed_from(walked, names, Body.of(ancestor), stored)
        seen.add(ancestor.checkpoint_id)
    return walked


def _seed_from(walked: Walk, names: Mapping[str, str], body: Body, stored: Named[BlobHead]) -> set[str]:
    """The channels whose walk ends here."""
    ended = set()
    for channel, name in names.items():
        seed = _head(body, name, stored)
        if name in body.inline:
            walked.inline_seeds[channel] = body
        elif seed is not None:
            walked.seeds[channel] = seed
        else:
            continue
        ended.add(channel)
    return ended


def _head(body: Body, channel: str, stored: Named[BlobHead]) -> BlobHead | None:
    if channel not in body.versions:
        return None
    return stored.get(BlobName(body.row.namespace, channel, body.versions[channel], body.row.state_version))


def fetch(
    db: sqlite3.Connection,
    recent: Recent,
    place: Place,
    checkpoint_id: str | None,
    channels: Sequence[str],
    migrations: Migrations,
) -> Stored | None:
    namespace = tables.find_namespace(db, place.thread_id, place.checkpoint_ns)
    if namespace is not None and checkpoint_id is None:
        latest = tables.latest_checkpoint(db, namespace)
        checkpoint_id = latest.checkpoint_id if latest else None
    if namespace is None or checkpoint_id is None:
        return None
    naming = _naming(migrations, graph_of(place.checkpoint_ns))
    former = [naming(channel, version) for version in range(migrations.version) for channel in channels]
    walked = walk(db, namespace, checkpoint_id, channels, naming, former)
    needed = {checkpoint_id for line in walked.lines.values() for checkpoint_id in _needed(line, migrations)}
    older = {id_: fetch_one(db, recent, place, id_, Asked(migrations)) for id_ in needed}
    return Stored(
        walked,
        place,
        tables.writes_to_channels(db, namespace, walked.ancestors, walked.names),
        tables.chain(db, [seed.id for seed in walked.seeds.values()]),
        {id_: one for id_, one in older.items() if one is not None},
    )


def _naming(migrations: Migrations, graph: str) -> Naming:
    return lambda channel, version: migrations.channel_before(channel, graph, version)


def _needed(line: Sequence[Ancestor], migrations: Migrations) -> set[str]:
    """The older ancestors whose values are brought up to date: the last, which may have the seed, and the nearest."""
    older = [ancestor for ancestor in line if ancestor.state_version < migrations.version]
    nearest = {ancestor.checkpoint_id for ancestor in older[:1] if not migrations.only_rename(ancestor.state_version)}
    return nearest | {ancestor.checkpoint_id for ancestor in line[-1:] if ancestor in older}


def decode(
    serde: SerializerProtocol, recent: Recent, stored: Stored, migrations: Migrations
) -> dict[str, DeltaChannelHistory]:
    """Oldest write first; only what is returned is decoded."""
    chain = Chain(stored.blobs)
    values = {
        id_: decode_one(serde, recent, one, migrations).checkpoint["channel_values"] for id_, one in stored.older.items()
    }
    writes: dict[tuple[str, str], list[WriteRow]] = {}
    for write in stored.writes:
        writes.setdefault((write.channel, write.checkpoint_id), []).append(write)
    result: dict[str, DeltaChannelHistory] = {}
    for channel, line in stored.walk.lines.items():
        for ancestor in line:
            migrations.require_known(ancestor.state_version, stored.place._replace(checkpoint_id=ancestor.checkpoint_id))
        made = next((at for at, step in enumerate(line) if channel in values.get(step.checkpoint_id, ())), None)
        entry: DeltaChannelHistory = {
            "writes": [
                (task_id, channel, value)
                for ancestor in reversed(line if made is None else line[: made + 1])
                if (ancestor.channel, ancestor.checkpoint_id) in writes
                for task_id, _, value in decode_writes(
                    serde,
                    stored.place._replace(checkpoint_id=ancestor.checkpoint_id),
                    writes[ancestor.channel, ancestor.checkpoint_id],
                )
            ]
        }
        if made is not None:
            entry["seed"] = values[line[made].checkpoint_id][channel]
        elif not line or line[-1].checkpoint_id not in values:
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
