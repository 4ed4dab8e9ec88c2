"""The ancestor walk for DeltaChannel: what each channel was written since its value was last stored.

Where migrations renamed a channel on the way, older ancestors have it under its name of then. A value that an older
ancestor has is brought up to date with all of that checkpoint; so is the nearest older one, where a function may have made
the value.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain, Named, Recent
from langgraph_sqlite_ckpt.encoding import Body, decode_value, unpack_write
from langgraph_sqlite_ckpt.errors import Place
from langgraph_sqlite_ckpt.migrations import Migrations, graph_of
from langgraph_sqlite_ckpt.reading import Asked, One, decode_blob, decode_one, fetch_one
from langgraph_sqlite_ckpt.tables import NO_VALUE, BlobHead, BlobName, BlobRow, ChannelWrite

T = TypeVar("T")
Naming = Callable[[str, int], str]
"""What a channel of today's was called at a state version."""


class Ancestor(NamedTuple):
    checkpoint_id: str
    state_version: int


@dataclass
class Walk:
    """The ancestors that count, nearest first; how many of them do for each channel, and where its walk ended."""

    ancestors: list[Ancestor]
    depths: dict[str, int]
    seeds: dict[str, BlobHead] = field(default_factory=dict)
    inline_seeds: dict[str, Body] = field(default_factory=dict)

    @property
    def ids(self) -> Sequence[str]:
        return [ancestor.checkpoint_id for ancestor in self.ancestors]


@dataclass(frozen=True)
class Stored:
    """A walk with the rows that it needs, to be decoded after the read."""

    walk: Walk
    place: Place
    channels: Sequence[str]
    writes: Sequence[ChannelWrite]
    blobs: Sequence[BlobRow]
    older: Mapping[int, One]  # ancestors, by their place in the walk, whose values have to be brought up to date


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

    A fork's other branch is no ancestor. Bodies are only loaded where one of the channels may have its value. `former`: the
    names that `naming` gives beside today's.
    """
    heads = tables.blobs_of_channels(db, namespace, [*channels, *former])
    stored, in_blobs = Named(heads), {head.channel for head in heads}
    in_json = [json.dumps(channel) for channel in (*channels, *former)]  # as it would stand in `beside`
    walked, remaining = Walk([], {}), set(channels)
    for some in _growing(_line(db, namespace, checkpoint_id)):
        anywhere = bool({*remaining, *former} & in_blobs)
        wanted = [seq for seq, _, beside in some if anywhere or (beside and any(channel in beside for channel in in_json))]
        rows = {row.seq: row for row in tables.checkpoints_at(db, wanted)} if wanted else {}
        for seq, ancestor, _ in some:
            walked.ancestors.append(ancestor)
            if seq in rows:
                names = {channel: naming(channel, ancestor.state_version) for channel in remaining}
                remaining -= _seed_from(walked, names, Body.of(rows[seq]), stored)
            if not remaining:
                return walked
    walked.depths.update(dict.fromkeys(remaining, len(walked.ancestors)))
    return walked


def _line(db: sqlite3.Connection, namespace: int, checkpoint_id: str) -> Iterator[tuple[int, Ancestor, str | None]]:
    """The ancestors, without the checkpoint itself: its writes are not yet applied to it. A loop ends where it closes."""
    seen = set[str]()
    for seq, ancestor, beside, state_version in tables.ancestors(db, namespace, checkpoint_id):
        if ancestor in seen:
            return
        if seen:
            yield seq, Ancestor(ancestor, state_version if isinstance(state_version, int) else 0), beside
        seen.add(ancestor)


def _growing(items: Iterator[T]) -> Iterator[Sequence[T]]:
    """Few at first: a stored value may be near. Many later: it takes a statement each time."""
    size = 4
    while some := list(islice(items, size)):
        yield some
        size = min(size * (8 if size < 256 else 4), 2048)


def _seed_from(walked: Walk, names: Mapping[str, str], body: Body, stored: Named[BlobHead]) -> set[str]:
    """The channels whose walk ends here."""
    inline, ended = set(body.inline), set()
    for channel, name in names.items():
        seed = _head(body, name, stored)
        if name in inline:
            walked.inline_seeds[channel] = body
        elif seed is not None and seed.type != NO_VALUE:
            walked.seeds[channel] = seed
        else:
            if seed is None:
                body.miss(name)
            continue
        walked.depths[channel] = len(walked.ancestors)
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
    channels = list(dict.fromkeys(channels))
    naming = _naming(migrations, graph_of(place.checkpoint_ns))
    names = {naming(channel, version) for version in range(migrations.version) for channel in channels}
    former = sorted(names - set(channels))
    walked = walk(db, namespace, checkpoint_id, channels, naming, former)
    found = tables.writes_to_channels(db, namespace, walked.ids, [*channels, *former])
    asked = Asked(migrations, hidden=True)
    older = {at: fetch_one(db, recent, place, walked.ids[at], asked) for at in _older(walked, migrations)}
    return Stored(
        walked,
        place,
        channels,
        list(_of_today(found, walked, channels, former, naming)),
        tables.chain(db, [seed.id for seed in walked.seeds.values()]),
        {at: one for at, one in older.items() if one is not None},
    )


def _naming(migrations: Migrations, graph: str) -> Naming:
    return lambda channel, version: migrations.channel_before(channel, graph, version)


def _of_today(
    writes: Iterable[ChannelWrite], walked: Walk, channels: Sequence[str], former: Sequence[str], naming: Naming
) -> Iterator[ChannelWrite]:
    """Those that count, with the number of the channel that theirs is today."""
    names = [*channels, *former]
    versions = {ancestor.state_version for ancestor in walked.ancestors}
    today = {version: {naming(channel, version): at for at, channel in enumerate(channels)} for version in versions}
    depths = [walked.depths[channel] for channel in channels]
    for write in writes:
        at = today[walked.ancestors[write.checkpoint].state_version].get(names[write.channel])
        if at is not None and write.checkpoint < depths[at]:
            yield write if at == write.channel else write._replace(channel=at)


def _older(walked: Walk, migrations: Migrations) -> set[int]:
    """Ancestors whose values are brought up to date: of each channel the last, which may have the seed, and the nearest."""
    needed: set[int] = set()
    for depth in walked.depths.values():
        older = [at for at in range(depth) if walked.ancestors[at].state_version < migrations.version]
        needed |= {at for at in older[:1] if not migrations.only_rename(walked.ancestors[at].state_version)}
        needed |= {at for at in older[-1:] if at == depth - 1}
    return needed


def decode(
    serde: SerializerProtocol, recent: Recent, stored: Stored, migrations: Migrations
) -> dict[str, DeltaChannelHistory]:
    """Oldest write first; only what is returned is decoded."""
    for checkpoint_id, state_version in stored.walk.ancestors:
        if state_version > migrations.version:
            migrations.require_known(state_version, stored.place._replace(checkpoint_id=checkpoint_id))
    older = {
        at: decode_one(serde, recent, one, migrations).checkpoint["channel_values"] for at, one in stored.older.items()
    }
    made = {channel: _made(channel, stored.walk.depths[channel], older) for channel in stored.channels}
    result: dict[str, DeltaChannelHistory] = empty(stored.channels)
    lines = [(channel, result[channel]["writes"], made[channel]) for channel in stored.channels]
    for write in stored.writes:
        channel, line, end = lines[write.channel]
        if end is not None and write.checkpoint > end:
            continue
        try:  # the quick way through many; the slow one says what is wrong, and where
            value = serde.loads_typed((write.type, unpack_write(write)))
        except Exception:
            at = stored.place._replace(checkpoint_id=stored.walk.ids[write.checkpoint], channel=channel)
            value = decode_value(serde, at, write)
        line.append((write.task_id, channel, value))
    chain = Chain(stored.blobs)
    for channel, _, end in lines:
        if end is not None:
            result[channel]["seed"] = older[end][channel]
        elif stored.walk.depths[channel] - 1 not in older:
            result[channel].update(_seed(serde, stored, chain, channel))
    return result


def _made(channel: str, depth: int, older: Mapping[int, Mapping[str, Any]]) -> int | None:
    """The nearest ancestor of an older state version that, brought up to date, has a value for the channel."""
    return min((at for at, values in older.items() if at < depth and channel in values), default=None)


def _seed(serde: SerializerProtocol, stored: Stored, chain: Chain, channel: str) -> Any:
    body = stored.walk.inline_seeds.get(channel)
    if body is not None:
        return {"seed": body.rest(serde)["channel_values"][channel]}
    blob = stored.walk.seeds.get(channel)
    return {} if blob is None else {"seed": decode_blob(serde, stored.place, blob, chain)}


def empty(channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
    return {channel: {"writes": []} for channel in channels}
