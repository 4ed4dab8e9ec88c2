"""Values without anybody's classes: what needs a class to come alive stays as it was stored.

Importing, copying and looking at a file must work where the code that wrote it is not installed, and must give back the
very bytes. So nothing is built here but plain data and the two things that LangGraph itself looks into (`Send` and the
snapshots of a DeltaChannel); all else is an `Opaque`: its type's name and its fields, ready to be stored again or shown.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import SendProtocol, _DeltaSnapshot


@dataclass(frozen=True)
class Opaque:
    """An object as msgpack has it: how it is built (LangGraph's code), and its packed (module, name, arguments, ...)."""

    code: int
    data: bytes

    @classmethod
    def of(cls, code: int, *fields: Any) -> Opaque:
        return cls(code, _packed(fields))

    @property
    def fields(self) -> Any:
        return _unpacked(self.data)


@dataclass(frozen=True)
class Sealed:
    """A whole value of a kind that is not looked into: encrypted, pickled, or of a newer LangGraph."""

    kind: str
    data: bytes


class OpaqueSerializer(SerializerProtocol):
    """Reads and writes what LangGraph's serializers write, to the byte, and never needs or runs a class."""

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, raw = data
        build = _LOADERS.get(kind)
        return Sealed(kind, bytes(raw)) if build is None else build(raw)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if isinstance(obj, Sealed):
            return obj.kind, obj.data
        if obj is None:
            return "null", b""
        if isinstance(obj, (bytes, bytearray)):
            return type(obj).__name__, bytes(obj)
        return "msgpack", _packed(obj)


# --- msgpack ---


def _unpacked(raw: bytes) -> Any:
    return ormsgpack.unpackb(raw, ext_hook=_kept, option=ormsgpack.OPT_NON_STR_KEYS)


def _packed(value: Any) -> bytes:
    return ormsgpack.packb(value, default=_stored, option=jsonplus._option)


def _kept(code: int, data: bytes) -> Any:
    opaque = Opaque(code, data)
    if code == jsonplus.EXT_DELTA_SNAPSHOT:
        return _DeltaSnapshot(opaque.fields)
    if code == jsonplus.EXT_CONSTRUCTOR_POS_ARGS:
        return _send_or(opaque)
    return _set_or(opaque) if code == jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG else opaque


def _send_or(opaque: Opaque) -> Any:
    """A Send, as long as it would be stored again as it was: which node is due next stands in it."""
    fields = opaque.fields
    if fields[:2] != ["langgraph.types", "Send"] or len(fields[2]) != 2:
        return opaque
    return jsonplus._send_from_args(fields[2])


def _set_or(opaque: Opaque) -> Any:
    """A set of names: which nodes a join has seen stands in it."""
    module, name, items = opaque.fields
    if (module, name) != ("builtins", "set") or not all(isinstance(item, str) for item in items):
        return opaque
    return set(items)


def _stored(value: Any) -> Any:
    if isinstance(value, Opaque):
        return ormsgpack.Ext(value.code, value.data)
    if isinstance(value, _DeltaSnapshot):
        return ormsgpack.Ext(jsonplus.EXT_DELTA_SNAPSHOT, _packed(value.value))
    if isinstance(value, SendProtocol):
        fields = ("langgraph.types", "Send", (value.node, value.arg))
        return ormsgpack.Ext(jsonplus.EXT_CONSTRUCTOR_POS_ARGS, _packed(fields))
    return jsonplus._msgpack_default(value)


# --- JSON, as LangGraph.js and old releases of the Python package wrote it ---


def _from_json(raw: bytes) -> Any:
    return json.loads(raw, object_hook=_as_opaque)


_MESSAGES: Mapping[str, str] = {
    "HumanMessage": "human",
    "AIMessage": "ai",
    "AIMessageChunk": "ai",
    "SystemMessage": "system",
    "ToolMessage": "tool",
    "FunctionMessage": "function",
    "ChatMessage": "chat",
    "RemoveMessage": "modifier",
}


def _as_opaque(value: dict[str, Any]) -> Any:
    """LangChain's constructors in JSON become what Python stores for the same objects; nothing is built."""
    if value.get("lc") not in (1, 2):
        return value
    if value.get("type") == "undefined":
        return None
    if value.get("type") == "delta_snapshot":
        return _DeltaSnapshot(value.get("value"))
    path = value.get("id")
    if value.get("type") != "constructor" or not isinstance(path, list) or not path:
        return value
    name = str(path[-1])
    if value["lc"] == 1 and name in _MESSAGES:
        return _model(f"langchain_core.messages.{_MESSAGES[name]}", name, value.get("kwargs") or {})
    return _constructor(".".join(map(str, path[:-1])), name, value)


def _constructor(module: str, name: str, value: Mapping[str, Any]) -> Any:
    args, kwargs, method = value.get("args") or [], value.get("kwargs") or {}, value.get("method")
    if not module:
        return _of_javascript(name, args)
    if isinstance(method, str):
        return Opaque.of(jsonplus.EXT_METHOD_SINGLE_ARG, module, name, args[0] if args else None, method)
    if method is not None or value["lc"] == 1:  # [None, "construct"]: a pydantic model
        return _model(module, name, kwargs)
    if kwargs:
        return Opaque.of(jsonplus.EXT_CONSTRUCTOR_KW_ARGS, module, name, kwargs)
    if len(args) == 1:
        return Opaque.of(jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, module, name, args[0])
    return Opaque.of(jsonplus.EXT_CONSTRUCTOR_POS_ARGS, module, name, args)


def _of_javascript(name: str, args: list[Any]) -> Any:
    """JavaScript's own classes, as what comes closest."""
    first = args[0] if args else None
    if name == "Set" and isinstance(first, list):
        return _set_or(Opaque.of(jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, "builtins", "set", first))
    if name == "Map" and isinstance(first, list):
        return {key: item for key, item in first if isinstance(key, (str, int, float, bool))}
    if name == "Uint8Array" and isinstance(first, list):
        return bytes(first)
    if name == "RegExp":
        return Opaque.of(jsonplus.EXT_CONSTRUCTOR_POS_ARGS, "re", "compile", [first, 0])
    return first


def _model(module: str, name: str, fields: Mapping[str, Any]) -> Opaque:
    return Opaque.of(jsonplus.EXT_PYDANTIC_V2, module, name, fields, "model_validate_json")


_LOADERS: Mapping[str, Callable[[bytes], Any]] = {
    "null": lambda _raw: None,
    "bytes": lambda raw: raw,
    "bytearray": bytearray,
    "msgpack": _unpacked,
    "json": _from_json,
}


# --- for people ---

_TEXT_MODULES = {"datetime", "uuid", "decimal", "pathlib", "ipaddress", "zoneinfo", "builtins", "collections", "re"}


def as_data(value: Any) -> Any:
    """What JSON can hold, for people and scripts: objects by their fields, with their type's name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(as_data(key)): as_data(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, _DeltaSnapshot):
        return [as_data(item) for item in value]
    return _object_as_data(value)


def _object_as_data(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted((as_data(item) for item in value), key=str)
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value)} bytes>"
    if isinstance(value, _DeltaSnapshot):
        return as_data(value.value)
    return _special_as_data(value)


def _special_as_data(value: Any) -> Any:
    if isinstance(value, Sealed):
        return f"<{value.kind}, {len(value.data)} bytes>"
    if isinstance(value, SendProtocol):
        return {"node": value.node, "arg": as_data(value.arg)}
    if isinstance(value, Opaque):
        return _opaque_as_data(value)
    return as_data(OpaqueSerializer().loads_typed(OpaqueSerializer().dumps_typed(value)))


def _opaque_as_data(value: Opaque) -> Any:
    fields = value.fields
    if value.code == jsonplus.EXT_NUMPY_ARRAY:
        return f"<array {fields[0]} {tuple(fields[1])}>"
    if value.code > jsonplus.EXT_DELTA_SNAPSHOT or not isinstance(fields, list) or len(fields) < 3:
        return f"<kind {value.code}, {len(value.data)} bytes>"
    module, name, argument = fields[:3]
    if module in _TEXT_MODULES:
        return as_data(argument)
    if name.endswith(("Message", "MessageChunk")) and isinstance(argument, dict) and "content" in argument:
        return {"type": argument.get("type", name), **_told(as_data(argument))}
    if (module, name) == ("langgraph.types", "Interrupt") and isinstance(argument, dict):
        return _told(as_data(argument))
    return {"type": f"{module}.{name}", "value": as_data(argument)}


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what is not set."""
    return {name: field for name, field in fields.items() if field is not None and field not in ({}, [])}
