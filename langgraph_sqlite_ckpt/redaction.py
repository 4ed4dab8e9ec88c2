"""Rows of which only the shape is left: what kind of value it was and how large, and nothing of what it said.

The course of a run stays: ids, parents, versions, steps, times, the names of nodes and channels, who wrote to what.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain, Limits, Packed, checksum_of, pack, unpack
from langgraph_sqlite_ckpt.opaque import Opaque, OpaqueSerializer, Sealed
from langgraph_sqlite_ckpt.tables import NO_VALUE, BlobOfThread, CheckpointOfThread, EffectOfThread, WriteOfThread

_SERDE, _LIMITS = OpaqueSerializer(), Limits()
_TOLD = ("source", "step", "parents", "run_id", "counters_since_delta_snapshot")  # the metadata that tells the course


def redacted_blob(db: sqlite3.Connection, row: BlobOfThread) -> BlobOfThread:
    if row.type == NO_VALUE:
        return row._replace(base=None, position=0)
    kind, packed = _shape(row.type, Chain(tables.chain(db, [row.id])).raw(row.id))
    return row._replace(type=kind, base=None, position=0, **_fields(packed))


def redacted_write(_db: sqlite3.Connection, row: WriteOfThread) -> WriteOfThread:
    kind, packed = _shape(row.type, unpack(row.codec, row.size, row.data))
    return row._replace(type=kind, **_fields(packed))


def redacted_effect(_db: sqlite3.Connection, row: EffectOfThread) -> EffectOfThread:
    if row.type is None or row.codec is None or row.size is None or row.data is None:
        return row._replace(error=None if row.error is None else "<redacted>")
    kind, packed = _shape(row.type, unpack(row.codec, row.size, row.data))
    return row._replace(type=kind, **_fields(packed))


def redacted_checkpoint(_db: sqlite3.Connection, row: CheckpointOfThread) -> CheckpointOfThread:
    """Its body has versions only; its rest has the scalars."""
    metadata = json.dumps({key: value for key, value in json.loads(row.metadata).items() if key in _TOLD})
    row = row._replace(metadata=metadata, exact_type=None, exact=None)
    if row.rest is not None and row.rest_codec is not None and row.rest_size is not None:
        kind, raw = _SERDE.dumps_typed(_rest(row, unpack(row.rest_codec, row.rest_size, row.rest)))
        packed = pack(raw, _LIMITS)
        row = row._replace(rest_type=kind, rest_codec=int(packed.codec), rest_size=packed.size, rest=packed.data)
    beside = (row.beside or "").encode()
    return row._replace(checksum=checksum_of(metadata.encode(), b"", row.body, beside, row.rest or b""))


def _rest(row: CheckpointOfThread, raw: bytes) -> dict[str, Any]:
    stored = _SERDE.loads_typed((row.rest_type or "", raw))
    values = stored.get("channel_values", {}) if isinstance(stored, dict) else {}
    names = json.loads(row.beside) if row.beside else ()
    return {"channel_values": {name: _told(values.get(name, stored)) for name in names}}


def _fields(packed: Packed) -> dict[str, Any]:
    return {"codec": int(packed.codec), "size": packed.size, "checksum": packed.checksum, "data": packed.data}


def _shape(kind: str, raw: bytes) -> tuple[str, Packed]:
    told, text = _SERDE.dumps_typed(_told(_SERDE.loads_typed((kind, raw))))
    return told, pack(text, _LIMITS)


def _told(value: Any) -> Any:
    """Nothing and yes or no stay: LangGraph's own triggers are such."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Opaque):
        return f"<{_name(value)}>"
    if isinstance(value, Sealed):
        return f"<{value.kind}, {len(value.data)} bytes>"
    if isinstance(value, (str, bytes, list, dict, set)):
        return f"<{type(value).__name__} of {len(value)}>"
    return f"<{type(value).__name__}>"


def _name(value: Opaque) -> str:
    fields = value.fields
    return str(fields[1]) if isinstance(fields, list) and len(fields) > 1 else "object"
