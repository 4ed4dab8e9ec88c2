"""Rows as they stand in the file, and as they are used: encrypted, each bound to its place.

A row is packed first and then sealed, so a file with a key is hardly larger. Bound to a place means: thread, namespace and
all that names the row and tells how it is packed. A row that was moved, swapped, or relabelled does not open, and a plain
one is not taken where a key is given. What nothing on this side can see: rows that are gone, and older rows of the very
same place that somebody put back.

In clear stay: ids (threads, namespaces, checkpoints, parents, tasks, runs), names of nodes, channels and effects, versions,
types, sizes and times; of the metadata `source`, `step`, `run_id`, `parents` and what `clear_metadata` names. The columns
that views and filters look at (step, source, next, run_id, parent, times) are not bound: what counts is decided from what
was sealed.

A sealed row has the checksum of its sealed bytes in its column, so that those can be checked without the key, and the one
that it had before inside. A sealed checkpoint's `exact` holds all of its metadata.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, TypeVar

from langgraph_sqlite_ckpt.errors import DamagedError, KeyNeeded, Place
from langgraph_sqlite_ckpt.keys import Keyring, Unopened, UnopenedText, Where, missing_key, tag

if TYPE_CHECKING:  # `tables` stands above: it calls these with its rows
    from langgraph_sqlite_ckpt import tables

Names = tuple[str, str]
"""thread_id and checkpoint_ns."""

Blob = TypeVar("Blob", "tables.BlobRow", "tables.BlobOfThread", "tables.NewBlob")
Write = TypeVar("Write", "tables.WriteRow", "tables.WriteOfThread")
Effect = TypeVar("Effect", "tables.EffectRow", "tables.EffectOfThread")
Checkpoint = TypeVar("Checkpoint", "tables.CheckpointRow", "tables.CheckpointOfThread", "tables.NewCheckpoint")

_SUM = struct.Struct("<I")
_HEAD = struct.Struct("<BII")  # whether it is compressed; checksum, length of the metadata's text
_COMPRESS_FROM = 256


def open_blob(keyring: Keyring, key_id: int | None, names: Names, row: Blob) -> Blob:
    checksum, data = _open(keyring, key_id, row.checksum, row.data, _of_blob(names, row))
    return row._replace(checksum=checksum, data=data)


def seal_blob(keyring: Keyring, names: Names, row: Blob) -> Blob:
    checksum, data = _seal(keyring, row.checksum, row.data, _of_blob(names, row))
    return row._replace(checksum=checksum, data=data)


def _of_blob(names: Names, row: tables.BlobRow | tables.BlobOfThread | tables.NewBlob) -> Where:
    packed = row.codec, row.position, row.size
    return ("blob", *names, row.channel, row.version, row.state_version, row.type, *packed)


def open_write(keyring: Keyring, key_id: int | None, names: Names, row: Write) -> Write:
    checksum, data = _open(keyring, key_id, row.checksum, row.data, _of_write(names, row.checkpoint_id, row))
    return row._replace(checksum=checksum, data=data)


def seal_write(keyring: Keyring, names: Names, checkpoint_id: str, row: tables.NewWrite) -> tables.NewWrite:
    checksum, data = _seal(keyring, row.checksum, row.data, _of_write(names, checkpoint_id, row))
    return row._replace(checksum=checksum, data=data)


def _of_write(names: Names, checkpoint_id: str, row: tables.NewWrite | tables.WriteRow | tables.WriteOfThread) -> Where:
    task = row.task_id, row.idx, row.task_path
    return ("write", *names, checkpoint_id, *task, row.channel, row.type, row.codec, row.size)


def open_effect(keyring: Keyring, key_id: int | None, names: Names, row: Effect) -> Effect:
    """Its result, or what is known of its end."""
    if row.error is not None:
        return row._replace(error=open_error(keyring, key_id, names, row))
    if row.data is None:
        return row
    checksum, data = _open(keyring, key_id, row.checksum, row.data, _of_effect(names, row))
    return row._replace(checksum=checksum, data=data)


def open_error(
    keyring: Keyring, key_id: int | None, names: Names, row: tables.EffectRow | tables.EffectOfThread | tables.EffectHead
) -> str | None:
    """People may see that there is something where they may not see what."""
    if row.error is None:
        return None
    opened: bytes | str = keyring.open(key_id, row.error, _of_error(names, row))
    if isinstance(opened, Unopened):
        return UnopenedText.of(opened)
    return opened.decode(errors="surrogateescape") if isinstance(opened, bytes) else opened


def seal_effect(keyring: Keyring, names: Names, row: Effect) -> Effect:
    if row.error is not None:
        error = keyring.seal(row.error.encode(errors="surrogateescape"), _of_error(names, row))
        return row._replace(error=error)  # type: ignore[arg-type]  # text in clear, bytes where it is sealed
    if row.data is None:
        return row
    checksum, data = _seal(keyring, row.checksum or 0, row.data, _of_effect(names, row))
    return row._replace(checksum=checksum, data=data)


def _of_error(names: Names, row: tables.EffectRow | tables.EffectOfThread | tables.EffectHead) -> Where:
    return ("error", *names, row.checkpoint_id, row.task_id, row.name, row.key)


def _of_effect(names: Names, row: tables.EffectRow | tables.EffectOfThread) -> Where:
    return ("effect", *names, row.checkpoint_id, row.task_id, row.name, row.key, row.type, row.codec, row.size)


def _seal(keyring: Keyring, checksum: int, data: bytes, where: Where) -> tuple[int, bytes]:
    sealed = keyring.seal(_SUM.pack(checksum) + data, where)
    return zlib.crc32(sealed), sealed


def _open(keyring: Keyring, key_id: int | None, checksum: Any, stored: bytes, where: Where) -> tuple[Any, bytes]:
    opened = keyring.open(key_id, stored, where)
    if isinstance(opened, Unopened) or key_id is None:
        return checksum, opened
    if checksum != zlib.crc32(stored):
        return checksum, _changed(stored)
    return _SUM.unpack_from(opened)[0], opened[_SUM.size :]


def _changed(stored: bytes) -> Unopened:
    return Unopened.of(stored, "its checksum does not match")


def require_open(names: Names, *parts: bytes | str | None) -> None:
    """What could not be opened must not be taken for what it would open to."""
    for part in parts:
        unopened = part.unopened if isinstance(part, UnopenedText) else part
        if isinstance(unopened, Unopened):
            place = Place(*names)
            raise KeyNeeded(place, unopened.why, unopened.key_id) if unopened.missing else DamagedError(place, unopened.why)


def is_damaged(data: bytes) -> bool:
    return isinstance(data, Unopened)


def require_key(keyring: Keyring, key_id: int | None, names: Names) -> None:
    if key_id not in keyring:
        raise KeyNeeded(Place(*names), missing_key(key_id), key_id)


# --- checkpoints ---


def seal_checkpoint(keyring: Keyring, names: Names, row: Checkpoint) -> Checkpoint:
    clear = keyring.clear_part(row.metadata)
    hidden = keyring.seal(_framed(row, clear), _of_metadata(names, row.checkpoint_id, clear, row.exact_type))
    rest = None if row.rest is None else keyring.seal(row.rest, _of_rest(names, row))
    body = keyring.seal(row.body, _of_body(names, row, hidden, rest))
    sealed = row._replace(metadata=clear, exact=hidden, body=body, rest=rest)
    return sealed._replace(checksum=_sum(sealed))


def open_checkpoint(keyring: Keyring, key_id: int | None, names: Names, row: Checkpoint) -> Checkpoint:
    """Where its body does not open, the other parts stay sealed."""
    body = keyring.open(key_id, row.body, _of_body(names, row, row.exact, row.rest))
    if isinstance(body, Unopened):
        exact = Unopened.of(row.exact, body.why, missing=body.missing, key_id=body.key_id)
        return row._replace(body=body, exact=exact)
    if key_id is None:
        return row
    hidden = keyring.open(key_id, row.exact, _of_metadata(names, row.checkpoint_id, row.metadata, row.exact_type))
    rest = None if row.rest is None else keyring.open(key_id, row.rest, _of_rest(names, row))
    if isinstance(hidden, Unopened):
        return row._replace(body=body, exact=hidden, rest=rest)
    if row.checksum != _sum(row):  # it has none where it is another row than its index says
        return row._replace(body=_changed(row.body))
    checksum, text, own = _unframed(hidden, row.metadata, row.exact_type)
    return row._replace(metadata=text, exact=own, body=body, rest=rest, checksum=checksum)


def _sum(row: tables.CheckpointRow | tables.CheckpointOfThread | tables.NewCheckpoint) -> int:
    """As of any checkpoint."""
    texts = [text.encode(errors="surrogateescape") for text in (row.metadata, row.beside or "")]
    return zlib.crc32(b"".join((texts[0], row.exact or b"", row.body, texts[1], row.rest or b"")))


def open_metadata(keyring: Keyring, key_id: int | None, row: tables.MetadataRow) -> tables.MetadataRow:
    where = _of_metadata((row.thread_id, row.checkpoint_ns), row.checkpoint_id, row.metadata, row.exact_type)
    hidden = keyring.open(key_id, row.exact, where)
    if isinstance(hidden, Unopened) or key_id is None:
        return row._replace(exact=hidden)
    _, text, exact = _unframed(hidden, row.metadata, row.exact_type)
    return row._replace(metadata=text, exact=exact)


def _of_metadata(names: Names, checkpoint_id: str, clear: str, exact_type: str | None) -> Where:
    return ("metadata", *names, checkpoint_id, clear, exact_type)


def _of_rest(names: Names, row: tables.CheckpointRow | tables.CheckpointOfThread | tables.NewCheckpoint) -> Where:
    return ("rest", *names, row.checkpoint_id, row.rest_type, row.rest_codec, row.rest_size)


def _of_body(
    names: Names,
    row: tables.CheckpointRow | tables.CheckpointOfThread | tables.NewCheckpoint,
    hidden: bytes | None,
    rest: bytes | None,
) -> Where:
    """The other parts hang on it: they are of one put."""
    packed = row.state_version, row.body_codec, row.body_size, row.beside
    return ("body", *names, row.checkpoint_id, *packed, tag(hidden), tag(rest))


def _framed(row: tables.CheckpointRow | tables.CheckpointOfThread | tables.NewCheckpoint, clear: str) -> bytes:
    """What is hidden of the metadata; nothing is said twice."""
    text = b"" if row.metadata == clear else row.metadata.encode(errors="surrogateescape")
    content = text + (row.exact or b"")
    small = zlib.compress(content, 1) if len(content) >= _COMPRESS_FROM else content
    return _HEAD.pack(small is not content, row.checksum, len(text)) + small


def _unframed(frame: bytes, clear: str, exact_type: str | None) -> tuple[int, str, bytes | None]:
    """Checksum, text and exact metadata."""
    compressed, checksum, length = _HEAD.unpack_from(frame)
    content = zlib.decompress(frame[_HEAD.size :]) if compressed else frame[_HEAD.size :]
    text = content[:length].decode(errors="surrogateescape") if length else clear
    return checksum, text, None if exact_type is None else content[length:]
