"""A checkpoint taken apart for the file, and put together again.

- **body**: what LangGraph itself keeps in a checkpoint (versions, versions seen, ...), as JSON, without the values.
- **blobs**: the values that a version covers, one row per (channel, version): see `blobs.py`.
- **rest**: what remains, as the serializer's bytes: scalars, which are cheaper here than in a row of their own, values
  that no version covers, and whatever JSON would change.

JSON is used only where it is lossless; nothing of the user's state is in it, so an encrypting serializer hides the state.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt.blobs import Damaged, Limits, Locked, Packed, pack, require_checksum, require_opened, unpack
from langgraph_sqlite_ckpt.errors import DamagedError, DecodeError, EncodeError, InvalidRequest, KeyNeeded, Place
from langgraph_sqlite_ckpt.tables import (
    BlobName,
    ChannelWrite,
    CheckpointRow,
    EffectRow,
    MetadataRow,
    Version,
    WriteRow,
)

T = TypeVar("T")

_SHORT = 200  # characters of a string that is kept beside the body
_READABLE = json.JSONEncoder(ensure_ascii=False).encode


def is_inline(value: object) -> bool:
    """Scalars, which would only waste a row: PostgresSaver inlines the same."""
    return value is None or type(value) in (bool, int, float) or (type(value) is str and len(value) <= _SHORT)


def is_plain(value: Any) -> bool:
    """Whether JSON gives back exactly this."""
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return True
    if kind is float:
        return math.isfinite(value)
    if kind in (list, tuple):  # LangGraph's own serializer gives tuples back as lists, too
        return all(map(is_plain, value))
    return kind is dict and all(type(key) is str and is_plain(item) for key, item in value.items())


# --- values ---


def encode(serde: SerializerProtocol, place: Place, value: Any) -> tuple[str, bytes]:
    try:
        kind, raw = serde.dumps_typed(value)
        return kind, bytes(raw)
    except Exception as error:  # whatever the serializer or the user's class raises
        raise EncodeError(place, f"its type is {type_name(value)}: {error}") from error


def encode_packed(serde: SerializerProtocol, limits: Limits, place: Place, value: Any) -> tuple[str, Packed]:
    """A value by itself, for one row."""
    kind, raw = encode(serde, place, value)
    packed = pack(raw, limits)
    if len(packed.data) > limits.value:
        raise EncodeError(place, f"{len(raw)} bytes ({len(packed.data)} packed) are too large for a row")
    return kind, packed


def type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def decode(serde: SerializerProtocol, place: Place, kind: str, raw: bytes) -> Any:
    try:
        return serde.loads_typed((kind, raw))
    except Exception as error:  # likewise
        raise DecodeError(place, error) from error


def opened(place: Place, unpack_it: Callable[[], T]) -> T:
    """What `unpack_it` gives; damage is reported with its place."""
    try:
        return unpack_it()
    except Locked as error:
        raise KeyNeeded(place, error, error.key_id) from error
    except Damaged as error:
        raise DamagedError(place, error) from error


# --- the body and the rest ---


class Parts(NamedTuple):
    body: Packed
    beside: str | None
    rest_type: str | None
    rest: Packed | None


def encode_parts(
    serde: SerializerProtocol, limits: Limits, place: Place, checkpoint: Checkpoint, beside: Mapping[str, Any]
) -> Parts:
    """`beside`: the values that do not go into blobs."""
    fields = {name: value for name, value in checkpoint.items() if name not in ("channel_values", "id")}
    stored = checkpoint["channel_values"].keys() - beside.keys()
    shared = share_versions(fields, stored)
    odd = {name: shared.pop(name) for name in list(shared) if name not in _SHARED and not is_plain(shared[name])}
    body = pack(_COMPACT(shared).encode(), limits)
    if not beside and not odd:
        return Parts(body, None, None, None)
    kind, raw = _encode_rest(serde, place, odd, beside)
    return Parts(body, _COMPACT(list(beside)) if beside else None, kind, pack(raw, limits))


def _encode_rest(
    serde: SerializerProtocol, place: Place, odd: Mapping[str, Any], beside: Mapping[str, Any]
) -> tuple[str, bytes]:
    try:
        return encode(serde, place, {**odd, "channel_values": dict(beside)})
    except EncodeError:
        for channel, value in beside.items():  # find the one to blame
            encode(serde, place._replace(channel=channel), value)
        raise


@dataclass(frozen=True)
class Body:
    """A checkpoint row whose own part is decoded, its values not yet."""

    row: CheckpointRow
    fields: Mapping[str, Any]
    stored: Collection[str]
    """The channels whose values must be in blobs. Others may have some too: a later put can give a version a value."""

    @classmethod
    def of(cls, row: CheckpointRow) -> Body:
        return cls(row, *opened(place_of(row), lambda: _fields(row)))

    @property
    def versions(self) -> Mapping[str, Version]:
        versions: Mapping[str, Version] = self.fields["channel_versions"]
        return versions

    @property
    def inline(self) -> Sequence[str]:
        """Channels whose values are in the rest."""
        inline: Sequence[str] = json.loads(self.row.beside) if self.row.beside else ()
        return inline

    @property
    def names(self) -> Sequence[BlobName]:
        """The blobs that may hold the other values."""
        inline, row = set(self.inline), self.row
        return [
            BlobName(row.namespace, channel, version, row.state_version)
            for channel, version in self.versions.items()
            if channel not in inline
        ]

    def require_stored(self, found: Collection[str]) -> None:
        """Raises `DamagedError` unless the blobs that must be there are among those that were found."""
        for channel in self.stored:
            if channel not in found:
                self.miss(channel)

    def miss(self, channel: str) -> None:
        """Raises `DamagedError` if this channel's value must be in a blob."""
        if channel in self.stored:
            raise DamagedError(place_of(self.row)._replace(channel=channel), "its value is gone")

    def unpacked_rest(self) -> bytes:
        """The serializer's bytes; raises `Damaged`."""
        return _unpack_rest(self.row) if self.row.rest is not None else b""

    def rest(self, serde: SerializerProtocol) -> Mapping[str, Any]:
        row, place = self.row, place_of(self.row)
        if row.rest is None or row.rest_type is None:
            return {}
        rest = decode(serde, place, row.rest_type, opened(place, lambda: _unpack_rest(row)))
        if not isinstance(rest, dict):
            raise DamagedError(place, "its rest is no mapping")
        return rest

    def checkpoint(self, serde: SerializerProtocol, from_blobs: Mapping[str, Any]) -> Checkpoint:
        rest = self.rest(serde)
        values = {**from_blobs, **rest.get("channel_values", {})}
        return {**self.fields, **rest, "id": self.row.checkpoint_id, "channel_values": values}  # type: ignore[typeddict-item]  # the keys `put` was given


def _fields(row: CheckpointRow) -> tuple[Mapping[str, Any], Collection[str]]:
    try:
        texts = row.metadata.encode(errors="surrogateescape"), (row.beside or "").encode(errors="surrogateescape")
        require_checksum(row.checksum, texts[0], row.exact or b"", row.body, texts[1], row.rest or b"")
        if not isinstance(row.state_version, int):
            raise Damaged("its state version is no number")
        return own_versions(json.loads(unpack(row.body_codec, row.body_size, row.body)))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise Damaged(f"its body is no checkpoint ({error})") from error


def _unpack_rest(row: CheckpointRow) -> bytes:
    if row.rest is None or row.rest_codec is None or row.rest_size is None:
        raise Damaged("a part of it is missing")
    return unpack(row.rest_codec, row.rest_size, row.rest)


# --- versions ---
#
# Half of a body would be version strings of 50 characters, most of them standing in it twice. They are written once each,
# without their padding, and named by their number: smaller than zstd makes it, and ten times faster. Where a channel has
# its value in a blob, the number is negated (~): one byte tells a value that is gone from one that never was.

_VERSIONS = "versions"
_SHARED = (_VERSIONS, "channel_versions", "versions_seen")
_COMPACT = json.JSONEncoder(separators=(",", ":")).encode
_PADDED = 32  # digits of the counter in the official savers' format, "<counter>.<random>"


def share_versions(fields: Mapping[str, Any], stored: Collection[str]) -> dict[str, Any]:
    """The fields with each version replaced by its number in a list of all; those of `stored` channels are marked."""
    numbers: dict[tuple[type, Version], int] = {}

    def numbered(versions: Mapping[str, Version]) -> dict[str, int]:
        return {
            channel: numbers.setdefault((type(version), version), len(numbers)) for channel, version in versions.items()
        }

    current = numbered(fields["channel_versions"])
    return {
        **fields,
        "channel_versions": {channel: ~at if channel in stored else at for channel, at in current.items()},
        "versions_seen": {node: numbered(versions) for node, versions in fields["versions_seen"].items()},
        _VERSIONS: [_short(version) for _, version in numbers],
    }


def own_versions(fields: dict[str, Any]) -> tuple[dict[str, Any], Collection[str]]:
    """What `share_versions` was given."""
    versions = [_long(version) for version in fields.pop(_VERSIONS)]
    current = fields["channel_versions"]
    stored = [channel for channel, number in current.items() if number < 0]
    fields["channel_versions"] = {channel: versions[max(number, ~number)] for channel, number in current.items()}
    fields["versions_seen"] = {
        node: {channel: versions[number] for channel, number in seen.items()}
        for node, seen in fields["versions_seen"].items()
    }
    return fields, stored


def _short(version: Any) -> Any:
    """A padded counter as a number: [counter, the rest]."""
    if isinstance(version, str) and len(version) > _PADDED and version[_PADDED] == ".":
        counter = version[:_PADDED]
        if counter.isascii() and counter.isdigit():
            return [int(counter), version[_PADDED + 1 :]]
    return version


def _long(version: Any) -> Any:
    return f"{version[0]:032}.{version[1]}" if isinstance(version, list) else version


# --- metadata ---


class Metadata(NamedTuple):
    text: str
    exact_type: str | None
    exact: bytes | None


def encode_metadata(serde: SerializerProtocol, place: Place, metadata: Mapping[str, Any]) -> Metadata:
    """Never refused: what not even the serializer can store is kept as its `repr`."""
    metadata = dict(metadata)
    text = _lossless(metadata)
    if text is not None:
        return Metadata(text, None, None)
    try:
        exact = encode(serde, place, metadata)
    except EncodeError:
        metadata = {key: _storable(serde, place, value) for key, value in metadata.items()}
        exact = encode(serde, place, metadata)
    return Metadata(_json({str(key): _readable(value) for key, value in metadata.items()}), *exact)


def _lossless(metadata: dict[str, Any]) -> str | None:
    try:
        return _json(metadata) if is_plain(metadata) else None
    except (RecursionError, ValueError):  # nested too deeply, or in itself; a number of thousands of digits
        return None


def decode_metadata(serde: SerializerProtocol, row: CheckpointRow | MetadataRow) -> Any:
    place = place_of(row)
    opened(place, lambda: require_opened(row.exact))
    if row.exact is not None and row.exact_type is not None:
        metadata = decode(serde, place, row.exact_type, row.exact)
        if not isinstance(metadata, dict):
            raise DamagedError(place, "its metadata is no mapping")
        return metadata
    return readable_metadata(row)


def readable_metadata(row: CheckpointRow | MetadataRow) -> dict[str, Any]:
    """As people read it: what JSON cannot hold is text."""
    opened(place_of(row), lambda: require_opened(row.exact))
    try:
        metadata = json.loads(row.metadata)
    except (ValueError, TypeError) as error:
        raise DamagedError(place_of(row), f"its metadata is no JSON ({error})") from error
    if not isinstance(metadata, dict):
        raise DamagedError(place_of(row), "its metadata is no mapping")
    return metadata


def _json(value: Any) -> str:
    text = _READABLE(value)
    return text if storable_text(text) == text else json.dumps(value)


def storable_text(text: str) -> str:
    """Without half surrogate pairs, which SQLite cannot hold."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def as_text(name: str, value: object) -> str:
    """Any object with a sensible `str()`, which SQLite can hold."""
    text = str(value)
    if "\0" in text or storable_text(text) != text:
        raise InvalidRequest(f"{name} contains a NUL character or half a surrogate pair: {text!r:.80}")
    return text


def _storable(serde: SerializerProtocol, place: Place, value: Any) -> Any:
    try:
        encode(serde, place, value)
    except EncodeError:
        return _described(value)
    return value


def _described(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # it is the user's class that describes itself
        return f"<{type(value).__qualname__}>"


def _readable(value: Any, depth: int = 20) -> Any:
    """As JSON as far as it goes, the rest as text."""
    if depth and isinstance(value, (list, tuple)):
        return [_readable(item, depth - 1) for item in value]
    if depth and isinstance(value, dict):
        return {str(key): _readable(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (bool, float, str)) or value is None or (isinstance(value, int) and abs(value) < 2**63):
        return value if is_plain(value) else str(value)
    return _described(value)


# --- writes ---


def decode_write(serde: SerializerProtocol, place: Place, row: WriteRow) -> tuple[str, str, Any]:
    return row.task_id, row.channel, decode_value(serde, place._replace(channel=row.channel), row)


def decode_value(serde: SerializerProtocol, at: Place, row: WriteRow | ChannelWrite) -> Any:
    return decode(serde, at, row.type, opened(at, lambda: unpack_write(row)))


def decode_writes(serde: SerializerProtocol, place: Place, rows: Iterable[WriteRow]) -> list[tuple[str, str, Any]]:
    """The quick way through many; the slow one says what is wrong, and where."""
    decoded = []
    for row in rows:
        try:
            decoded.append((row.task_id, row.channel, serde.loads_typed((row.type, unpack_write(row)))))
        except Exception:
            decoded.append(decode_write(serde, place, row))
    return decoded


def unpack_write(row: WriteRow | ChannelWrite) -> bytes:
    require_checksum(row.checksum, row.data)
    return unpack(row.codec, row.size, row.data)


def unpack_effect(row: EffectRow) -> bytes:
    """The serializer's bytes of its result; none where it is not done."""
    if row.finished_at is None or row.error is not None:
        return b""
    if row.type is None or row.codec is None or row.size is None or row.checksum is None or row.data is None:
        raise Damaged(f"the result of effect {row.name!r} is missing")
    require_checksum(row.checksum, row.data)
    return unpack(row.codec, row.size, row.data)


def place_of(row: CheckpointRow | MetadataRow) -> Place:
    return Place(row.thread_id, row.checkpoint_ns, row.checkpoint_id)
