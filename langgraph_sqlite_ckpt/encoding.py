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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt.blobs import Damaged, Limits, Packed, pack, require_checksum, unpack
from langgraph_sqlite_ckpt.errors import DamagedError, DecodeError, EncodeError, Place
from langgraph_sqlite_ckpt.tables import CheckpointRow, MetadataRow, Version, WriteRow

T = TypeVar("T")

_SHORT = 200  # characters of a string that is kept beside the body
_INLINE = "inline"  # in the body: the channels whose values are in the rest


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
    if kind is list:
        return all(map(is_plain, value))
    return kind is dict and all(type(key) is str and is_plain(item) for key, item in value.items())


# --- values ---


def encode(serde: SerializerProtocol, place: Place, value: Any) -> tuple[str, bytes]:
    try:
        kind, raw = serde.dumps_typed(value)
        return kind, bytes(raw)
    except Exception as error:  # whatever the serializer or the user's class raises
        raise EncodeError(place, value, error) from error


def decode(serde: SerializerProtocol, place: Place, kind: str, raw: bytes) -> Any:
    try:
        return serde.loads_typed((kind, raw))
    except Exception as error:  # likewise
        raise DecodeError(place, error) from error


def opened(place: Place, unpack_it: Callable[[], T]) -> T:
    """What `unpack_it` gives; damage is reported with its place."""
    try:
        return unpack_it()
    except Damaged as error:
        raise DamagedError(place, error) from error


# --- the body and the rest ---


class Parts(NamedTuple):
    body: Packed
    rest_type: str | None
    rest: Packed | None


def encode_parts(
    serde: SerializerProtocol, limits: Limits, place: Place, checkpoint: Checkpoint, beside: Mapping[str, Any]
) -> Parts:
    """`beside`: the values that do not go into blobs."""
    fields = {name: value for name, value in checkpoint.items() if name != "channel_values"}
    odd = {name: fields.pop(name) for name in list(fields) if not is_plain(fields[name])}
    if beside:
        fields[_INLINE] = list(beside)
    body = pack(json.dumps(fields, separators=(",", ":")).encode(), limits)
    if not beside and not odd:
        return Parts(body, None, None)
    kind, raw = _encode_rest(serde, place, odd, beside)
    return Parts(body, kind, pack(raw, limits))


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

    @classmethod
    def of(cls, row: CheckpointRow) -> Body:
        place = place_of(row)
        raw = opened(place, lambda: _unpack_body(row))
        try:
            fields = json.loads(raw)
            fields["channel_versions"].items()
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedError(place, f"its body is no checkpoint ({error})") from error
        return cls(row, fields)

    @property
    def versions(self) -> Mapping[str, Version]:
        versions: Mapping[str, Version] = self.fields["channel_versions"]
        return versions

    @property
    def inline(self) -> Sequence[str]:
        """Channels whose values are in the rest."""
        inline: Sequence[str] = self.fields.get(_INLINE, ())
        return inline

    @property
    def names(self) -> Sequence[tuple[int, str, Version]]:
        """The blobs that may hold the other values."""
        inline = set(self.inline)
        return [(self.row.namespace, channel, v) for channel, v in self.versions.items() if channel not in inline]

    def rest(self, serde: SerializerProtocol) -> Mapping[str, Any]:
        row = self.row
        place, kind, codec, size, data = place_of(row), row.rest_type, row.rest_codec, row.rest_size, row.rest
        if kind is None or codec is None or size is None or data is None:
            return {}
        rest = decode(serde, place, kind, opened(place, lambda: unpack(codec, size, data)))
        if not isinstance(rest, dict):
            raise DamagedError(place, "its rest is no mapping")
        return rest

    def checkpoint(self, serde: SerializerProtocol, from_blobs: Mapping[str, Any]) -> Checkpoint:
        rest = self.rest(serde)
        fields = {name: value for name, value in self.fields.items() if name != _INLINE}
        values = {**from_blobs, **rest.get("channel_values", {})}
        return {**fields, **rest, "channel_values": values}  # type: ignore[typeddict-item]  # the keys `put` was given


def _unpack_body(row: CheckpointRow) -> bytes:
    require_checksum(row.checksum, row.metadata.encode(), row.exact or b"", row.body, row.rest or b"")
    return unpack(row.body_codec, row.body_size, row.body)


# --- metadata ---


class Metadata(NamedTuple):
    text: str
    exact_type: str | None
    exact: bytes | None


def encode_metadata(serde: SerializerProtocol, place: Place, metadata: Mapping[str, Any]) -> Metadata:
    """Never refused: what not even the serializer can store is kept as its `repr`."""
    metadata = dict(metadata)
    if is_plain(metadata):
        return Metadata(_json(metadata), None, None)
    try:
        exact = encode(serde, place, metadata)
    except EncodeError:
        metadata = {key: _storable(serde, place, value) for key, value in metadata.items()}
        exact = encode(serde, place, metadata)
    return Metadata(_json({str(key): _readable(value) for key, value in metadata.items()}), *exact)


def decode_metadata(serde: SerializerProtocol, row: CheckpointRow | MetadataRow) -> Any:
    place = place_of(row)
    if row.exact is not None and row.exact_type is not None:
        return decode(serde, place, row.exact_type, row.exact)
    try:
        return json.loads(row.metadata)
    except ValueError as error:
        raise DamagedError(place, f"its metadata is no JSON ({error})") from error


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair: SQLite can hold it only escaped
        return json.dumps(value)
    return text


def _storable(serde: SerializerProtocol, place: Place, value: Any) -> Any:
    try:
        encode(serde, place, value)
    except EncodeError:
        return repr(value)
    return value


def _readable(value: Any) -> Any:
    return value if is_plain(value) else str(value)


# --- writes ---


def decode_write(serde: SerializerProtocol, place: Place, row: WriteRow) -> tuple[str, str, Any]:
    at = place._replace(channel=row.channel)
    raw = opened(at, lambda: _unpack_write(row))
    return row.task_id, row.channel, decode(serde, at, row.type, raw)


def _unpack_write(row: WriteRow) -> bytes:
    require_checksum(row.checksum, row.data)
    return unpack(row.codec, row.size, row.data)


def place_of(row: CheckpointRow | MetadataRow) -> Place:
    return Place(row.thread_id, row.checkpoint_ns, row.checkpoint_id)
