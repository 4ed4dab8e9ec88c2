"""zstd, from wherever this Python has it, in the few calls that we need."""

from __future__ import annotations

import sys
from typing import IO, cast

if sys.version_info >= (3, 14):
    from compression import zstd
    from compression.zstd import CompressionParameter, DecompressionParameter
else:
    from backports import zstd
    from backports.zstd import CompressionParameter, DecompressionParameter

ZstdError = zstd.ZstdError

_SHORTEST_PREFIX = 8  # zstd takes no shorter one
_LONG_RANGE_FROM = 256 * 1024  # below, zstd's ordinary window finds an earlier version, and faster
_ANY_WINDOW: dict[int, int] = {DecompressionParameter.window_log_max: 30}
_LONG_RANGE: dict[int, int] = {
    CompressionParameter.window_log: 27,
    CompressionParameter.enable_long_distance_matching: 1,
}


def compressed(raw: bytes, *, level: int, prefix: bytes = b"") -> bytes:
    """As one frame, with its own checksum; whatever stands in the prefix too costs next to nothing."""
    options: dict[int, int] = {CompressionParameter.compression_level: level, CompressionParameter.checksum_flag: 1}
    if len(prefix) < _SHORTEST_PREFIX:
        return zstd.compress(raw, options=options)
    if len(raw) + len(prefix) >= _LONG_RANGE_FROM:
        options |= _LONG_RANGE
    return zstd.compress(raw, options=options, zstd_dict=zstd.ZstdDict(prefix, is_raw=True).as_prefix)


def opened_to_write(raw: IO[bytes]) -> IO[bytes]:
    """A stream into one frame; what repeats within 128 MB costs next to nothing."""
    options = {CompressionParameter.compression_level: 3, CompressionParameter.checksum_flag: 1, **_LONG_RANGE}
    return cast("IO[bytes]", zstd.open(raw, "wb", options=options))


def opened_to_read(raw: IO[bytes]) -> IO[bytes]:
    """Reading raises `ZstdError` or `EOFError` where the frame is not whole."""
    return cast("IO[bytes]", zstd.open(raw, "rb", options=_ANY_WINDOW))


def decompressed(data: bytes, size: int, prefix: bytes = b"") -> bytes:
    """Raises `ZstdError` for a damaged frame or another prefix, `ValueError` before a wrong size is allocated."""
    if zstd.get_frame_info(data).decompressed_size != size:
        raise ValueError("its size does not match")
    used = zstd.ZstdDict(prefix, is_raw=True).as_prefix if len(prefix) >= _SHORTEST_PREFIX else None
    decompressor = zstd.ZstdDecompressor(zstd_dict=used, options=_ANY_WINDOW)
    raw: bytes = decompressor.decompress(data, max_length=size + 1)
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("it is not one whole frame")
    return raw
