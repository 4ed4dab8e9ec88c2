"""Version against version, the quick way: two long stretches taken from the earlier one, and what is new between them.

A list that grows, a window that is trimmed from the front, a dict with one deep insertion: most versions differ from an
earlier one in one place. Finding it costs a comparison (0.3 ms for 1 MB; zstd needs 1.1 ms to find the same), rebuilding
costs next to nothing (zstd 0.4 ms), and what is new is compressed better, next to its surroundings. Where versions differ
in many places, the caller lets zstd compress one against the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from langgraph_sqlite_ckpt.zstandard import compressed, decompressed

_HEADER = struct.Struct("<5I")  # head, at, length, tail, new
_ANCHOR = 32  # bytes that are looked for in the earlier version
_CHUNK = 64 * 1024
_SURROUNDINGS = 64 * 1024  # bytes before the new part that it is compressed against
_LEVEL = 3


def splice(raw: bytes, base: bytes) -> bytes | None:
    """`raw` as stretches of `base` and what is new, or None where no stretch is found."""
    for anchor in (2 * _ANCHOR, len(raw) // 2):
        found = base.find(raw[anchor : anchor + _ANCHOR]) if anchor + _ANCHOR <= len(raw) else -1
        if found >= 0:
            return _around(raw, base, anchor, found)
    return None


def _around(raw: bytes, base: bytes, anchor: int, found: int) -> bytes:
    """The stretch that holds the anchor, as long as it gets, then the end that both share."""
    back = _shared_end(raw[:anchor], base[:found])
    head, at = anchor - back, found - back
    length = back + _shared_start(raw, base, anchor, found)
    tail = _shared_end(raw[head + length :], base[at + length :])
    new = raw[:head] + raw[head + length : len(raw) - tail]
    packed = compressed(new, level=_LEVEL, prefix=base[max(0, at + length - _SURROUNDINGS) : at + length])
    return _HEADER.pack(head, at, length, tail, len(new)) + packed


class Rope:
    """Bytes as pieces of other bytes: rebuilding through many versions copies only what is asked for in the end."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self.pieces = [piece for piece in pieces if len(piece)]
        self.size = sum(map(len, self.pieces))

    @classmethod
    def of(cls, raw: bytes) -> Rope:
        return cls([memoryview(raw)])

    def __bytes__(self) -> bytes:
        first = self.pieces[0].obj if len(self.pieces) == 1 else None
        return first if isinstance(first, bytes) and len(first) == self.size else b"".join(self.pieces)

    def cut(self, start: int, end: int) -> Iterator[memoryview]:
        """The pieces between two places."""
        for piece in self.pieces:
            if start >= end:
                return
            if start < len(piece):
                yield piece[max(0, start) : end]
            start, end = start - len(piece), end - len(piece)
            start = max(0, start)


def unsplice(data: bytes, base: Rope) -> Rope:
    """Raises `ZstdError` or `ValueError` for what `splice` did not make of this base."""
    if len(data) < _HEADER.size:
        raise ValueError("it is cut off")
    head, at, length, tail, size = _HEADER.unpack_from(data)
    if head > size or at + length + tail > base.size:  # more would be a bomb: versions that double each other
        raise ValueError("it points outside of what it leans on")
    surroundings = b"".join(base.cut(max(0, at + length - _SURROUNDINGS), at + length))
    new = memoryview(decompressed(data[_HEADER.size :], size, prefix=surroundings))
    return Rope([new[:head], *base.cut(at, at + length), new[head:], *base.cut(base.size - tail, base.size)])


def spliced_size(data: bytes) -> int:
    """How many bytes `unsplice` gives, read without rebuilding them."""
    if len(data) < _HEADER.size:
        return -1
    _, _, length, tail, size = _HEADER.unpack_from(data)
    return int(length + tail + size)


def _shared_start(one: bytes, other: bytes, at: int, other_at: int) -> int:
    """How many bytes are the same from there on: chunk by chunk, then halving. Slices of bytes compare at memory speed."""
    limit, same = min(len(one) - at, len(other) - other_at), 0
    while same < limit and one[at + same : at + same + _CHUNK] == other[other_at + same : other_at + same + _CHUNK]:
        same += _CHUNK
    low, high = min(same, limit), min(same + _CHUNK, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if one[at + low : at + middle] == other[other_at + low : other_at + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shared_end(one: bytes, other: bytes) -> int:
    limit, same = min(len(one), len(other)), 0
    while same < limit and _before(one, same, _CHUNK) == _before(other, same, _CHUNK):
        same += _CHUNK
    low, high = min(same, limit), min(same + _CHUNK, limit)
    while low < high:
        middle = (low + high + 1) // 2
        if _before(one, low, middle - low) == _before(other, low, middle - low):
            low = middle
        else:
            high = middle - 1
    return low


def _before(data: bytes, from_end: int, length: int) -> bytes:
    end = len(data) - from_end
    return data[max(0, end - length) : end]
