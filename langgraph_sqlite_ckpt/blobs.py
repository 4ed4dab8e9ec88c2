"""A value as bytes in the file: as it is, compressed, or against an earlier version of itself.

State that grows is the killer: a list that gets longer at every step is stored again and again. Storing each version
*against an earlier one* keeps what is new, whatever changed: appended, trimmed from the front, grown deep inside. Where
versions differ in one place, as they mostly do, `splice.py` finds it; else zstd compresses the later one with the earlier
one as its prefix.

Which earlier version: not always the last, or reading walks the whole history. As in Subversion's skip deltas, version
number n of a chain leans on n - 8**k, k being the number of trailing zeros of n in base 8. Reading takes at most
7 * log8(n) hops and the stored size stays O(n log n). (Base 4, with fewer hops, makes files a tenth larger.)

Tried and rejected: a common prefix alone (misses trimmed and nested values); `zstandard`'s raw dictionaries (do not reach
back far enough); always the last version (reading 2,000 steps takes 2,000 hops).
"""

from __future__ import annotations

import sys
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from langgraph_sqlite_ckpt.keys import Unopened
from langgraph_sqlite_ckpt.splice import Rope, splice, spliced_size, unsplice
from langgraph_sqlite_ckpt.tables import BlobHead, BlobName, BlobRow, Version
from langgraph_sqlite_ckpt.zstandard import ZstdError, compressed, decompressed


class Codec(IntEnum):
    """How bytes were packed. The numbers are in files: never reuse one."""

    RAW = 0
    ZSTD = 1
    DELTA = 2  # zstd, the earlier version as prefix
    SPLICE = 3
    ZLIB = 4


@dataclass(frozen=True)
class Limits:
    """Where packing changes its mind, in bytes. Tests make them tiny, so that every case happens all the time."""

    compress_from: int = 256
    delta_from: int = 256
    cache: int = 64 * 1024 * 1024
    value: int = 900_000_000  # SQLite's own default limit for a row is 1,000,000,000


class Packed(NamedTuple):
    codec: int
    size: int
    checksum: int
    data: bytes


class Damaged(Exception):
    """Stored bytes that cannot be what was written; the caller knows where they stood."""


class Locked(Damaged):
    """Stored bytes that another key may open."""

    def __init__(self, unopened: Unopened) -> None:
        super().__init__(unopened.why)
        self.key_id = unopened.key_id


_SAMPLE = 4096
_LOOK_FROM = 16 * 1024  # below, looking costs as much as compressing
_ZLIB_BELOW = (
    8 * 1024
)  # zstd prepares for larger things: on 600 bytes zlib takes a third of its time, and makes less of them


def pack(raw: bytes, limits: Limits) -> Packed:
    """Without help from other versions: compressed where that pays."""
    if len(raw) >= limits.compress_from and not _looks_random(raw):
        small = len(raw) < _ZLIB_BELOW
        data = zlib.compress(raw, 1) if small else compressed(raw, level=1)
        if len(data) < len(raw):
            return _packed(Codec.ZLIB if small else Codec.ZSTD, raw, data)
    return _packed(Codec.RAW, raw, raw)


def pack_against(raw: bytes, base: bytes, limits: Limits) -> Packed | None:
    """Against an earlier version, or None where that is not clearly smaller than `pack`."""
    if len(raw) < limits.delta_from:
        return None
    data = splice(raw, base)
    if data is not None and len(data) * 4 <= len(raw):
        return _packed(Codec.SPLICE, raw, data)
    if _looks_random(raw):
        return None
    data = compressed(raw, level=1, prefix=base)
    if len(data) * 8 > len(raw) and len(data) * 4 > len(pack(raw, limits).data) * 3:
        return None
    return _packed(Codec.DELTA, raw, data)


def unpack(codec: int, size: int, data: bytes) -> bytes:
    """The bytes that were packed without help from other versions."""
    if codec == Codec.RAW and len(data) == size:
        return data
    return bytes(unpack_against(codec, size, data, None))


def unpack_against(codec: int, size: int, data: bytes, base: Rope | None) -> Rope:
    """The bytes that were packed. Raises `Damaged` rather than give other bytes than those.

    The size is compared with the stored bytes' own before anything is allocated, so a forged row is no decompression bomb.
    """
    try:
        rope = _unpack(codec, size, data, base)
    except (ZstdError, zlib.error, ValueError, TypeError, OverflowError) as error:
        raise Damaged(str(error)) from error
    if rope.size != size:
        raise Damaged(f"{rope.size} bytes where {size} were stored")
    return rope


def _unpack(codec: int, size: int, data: bytes, base: Rope | None) -> Rope:
    if codec == Codec.RAW:
        return Rope.of(data)
    if codec == Codec.ZSTD:
        return Rope.of(decompressed(data, size))
    if codec == Codec.ZLIB:
        return Rope.of(_inflated(data, size))
    if base is None:
        raise Damaged("what it was compressed against is gone")
    if codec == Codec.DELTA:
        return Rope.of(decompressed(data, size, bytes(base)))
    if codec != Codec.SPLICE:
        raise Damaged(f"unknown codec {codec}")
    if spliced_size(data) != size:
        raise Damaged("its size does not match")
    return unsplice(data, base)


def _inflated(data: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj()
    raw = inflater.decompress(data, size + 1)
    if not inflater.eof or inflater.unused_data:
        raise Damaged("it is not one whole stream")
    return raw


def require_checksum(checksum: int, *stored: bytes) -> None:
    """Of the bytes as they are stored: small even where the value is large."""
    require_intact(*stored)
    try:
        same = checksum == checksum_of(*stored)
    except TypeError:  # something else than bytes stands there
        same = False
    if not same:
        raise Damaged("its checksum does not match")
    require_opened(*stored)


def require_opened(*stored: bytes | None) -> None:
    require_intact(*stored)
    for data in stored:
        if isinstance(data, Unopened):
            raise Locked(data)


def require_intact(*stored: bytes | None) -> None:
    """As far as can be seen: the right key may open it."""
    for data in stored:
        if isinstance(data, Unopened) and not data.missing:
            raise Damaged(data.why)


def checksum_of(*stored: bytes) -> int:
    checksum = 0
    for data in stored:
        checksum = zlib.crc32(data, checksum)
    return checksum


def _packed(codec: Codec, raw: bytes, data: bytes) -> Packed:
    return Packed(codec, len(raw), checksum_of(data), data)


def _looks_random(raw: bytes) -> bool:
    """One quick look at the middle: bytes that are encrypted or compressed already are left alone."""
    if len(raw) < _LOOK_FROM:
        return False
    middle = len(raw) // 2
    sample = raw[middle - _SAMPLE // 2 : middle + _SAMPLE // 2]
    return len(compressed(sample, level=1)) > 0.97 * len(sample)


# --- chains ---


_RADIX = 8


def base_position(position: int) -> int:
    """What number `position` of a chain leans on; position 0 leans on nothing."""
    step = 1
    while position % (step * _RADIX) == 0:
        step *= _RADIX
    return position - step


def still_needed(position: int) -> set[int]:
    """The positions that any later one can lean on, once `position` is written."""
    needed, step = {position}, 1
    while step <= position:
        step *= _RADIX
        needed.add(position - position % step)
    return needed


class Value(NamedTuple):
    """A stored value whose bytes are at hand."""

    blob: int
    version: Version | None
    position: int
    type: str
    raw: bytes


Key = tuple[str, str, str]  # thread_id, checkpoint_ns, channel


class Recent:
    """The values last written or read, so that the next version finds its base without reading the file.

    Bounded in bytes (but for the last channel, which always stays); the least recently used goes first. Thread-safe.
    Blob ids are never reused and what a blob means never changes, so an entry can be out of date (its blob deleted) but
    never wrong; whoever stores a value against one checks in the same transaction that the blob is still there.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._lock = threading.RLock()  # again by a signal handler: at worst it makes the count of bytes a little wrong
        self._channels: OrderedDict[Key, dict[int, Value]] = OrderedDict()

    def newest(self, key: Key) -> Value | None:
        with self._lock:
            values = self._channels.get(key)
            if not values:
                return None
            self._channels.move_to_end(key)
            return values[max(values)]

    def at(self, key: Key, position: int) -> Value | None:
        with self._lock:
            return self._channels.get(key, {}).get(position)

    def remember(self, key: Key, value: Value) -> None:
        """As the newest of its channel. What no later version can lean on is let go."""
        with self._lock:
            values = self._channels.pop(key, {})
            self._size -= _weight(values)
            needed = still_needed(value.position)
            values = {position: held for position, held in values.items() if position in needed}
            values[value.position] = value
            self._channels[key] = values
            self._size += _weight(values)
            while self._size > self._limit and len(self._channels) > 1:
                _, dropped = self._channels.popitem(last=False)
                self._size -= _weight(dropped)

    def forget(self, key: Key) -> None:
        with self._lock:
            self._size -= _weight(self._channels.pop(key, {}))

    def known(self, key: Key) -> Mapping[int, Value]:
        """By position."""
        with self._lock:
            return dict(self._channels.get(key, {}))


class Ahead(Recent):
    """What memory is to know once a transaction is committed. Until then nobody else sees it: after a rollback SQLite gives
    its blob ids away again.
    """

    def __init__(self, behind: Recent) -> None:
        super().__init__(limit=sys.maxsize)
        self._behind = behind
        self._new: list[tuple[Key, Value]] = []

    def newest(self, key: Key) -> Value | None:
        self._look_behind(key)
        return super().newest(key)

    def at(self, key: Key, position: int) -> Value | None:
        self._look_behind(key)
        return super().at(key, position)

    def remember(self, key: Key, value: Value) -> None:
        self._look_behind(key)
        super().remember(key, value)
        self._new.append((key, value))

    def forget(self, key: Key) -> None:
        self._behind.forget(key)
        self._channels[key] = {}
        self._new = [(other, value) for other, value in self._new if other != key]

    def _look_behind(self, key: Key) -> None:
        if key not in self._channels:
            self._channels[key] = dict(self._behind.known(key))

    def catch_up(self) -> None:
        """It is committed."""
        for key, value in self._new:
            self._behind.remember(key, value)


def _weight(values: Mapping[int, Value]) -> int:
    return sum(len(value.raw) + 200 for value in values.values())


Blob = TypeVar("Blob", BlobHead, BlobRow)


class Named(Generic[Blob]):
    """Blobs, by what checkpoints call them."""

    def __init__(self, blobs: Iterable[Blob]) -> None:
        self._blobs: dict[tuple[int, str, Version | None], list[Blob]] = {}
        for blob in (blob for blob in blobs if isinstance(blob.state_version, int)):  # else it is damage
            self._blobs.setdefault((blob.namespace, blob.channel, blob.version), []).append(blob)

    def get(self, name: BlobName) -> Blob | None:
        """That of the greatest state version which the name allows."""
        allowed = [blob for blob in self._blobs.get(name[:3], ()) if blob.state_version <= name.state_version]
        return max(allowed, key=lambda blob: blob.state_version, default=None)


class Chain:
    """Fetched blobs with all that they lean on; bytes are rebuilt when asked for, each step once while it is remembered."""

    _HOPS = 256  # a chain of a billion versions needs 70
    _REMEMBERED = 64  # more than a path is long; a long listing must not hold every version

    def __init__(self, rows: Sequence[BlobRow], known: Iterable[Value] = ()) -> None:
        self._rows = {row.id: row for row in rows}
        self._known = {value.blob: Rope.of(value.raw) for value in known}
        self._rebuilt: OrderedDict[int, Rope] = OrderedDict()

    @property
    def stored(self) -> int:
        """Bytes of the fetched rows."""
        return sum(len(row.data) for row in self._rows.values() if isinstance(row.data, bytes))  # else it is damaged

    def raw(self, blob: int) -> bytes:
        """Raises `Damaged` where the blob or what it leans on is not what was written."""
        path = self._path(blob)
        rope = self._at_hand(path[-1])
        for at in reversed(path if rope is None else path[:-1]):
            row = self._rows[at]
            require_checksum(row.checksum, row.data)
            rope = unpack_against(row.codec, row.size, row.data, rope)
            self._remember(at, rope)
        assert rope is not None  # the path has at least the blob itself
        return bytes(rope)

    def _path(self, blob: int) -> Sequence[int]:
        """From the blob down to the first one that is at hand or leans on nothing."""
        path = [blob]
        while self._at_hand(path[-1]) is None:
            row = self._rows.get(path[-1])
            if row is None or len(path) > self._HOPS:
                raise Damaged("what it was compressed against is gone" if row is None else "its chain loops")
            if row.base is None:
                break
            path.append(row.base)
        return path

    def _at_hand(self, blob: int) -> Rope | None:
        return self._known.get(blob) or self._rebuilt.get(blob)

    def _remember(self, blob: int, rope: Rope) -> None:
        self._rebuilt[blob] = rope
        while len(self._rebuilt) > self._REMEMBERED:
            self._rebuilt.popitem(last=False)
