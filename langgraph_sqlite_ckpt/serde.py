"""Safe decoding: what stored bytes may become, and what they may not.

LangGraph's serializer writes the module and the name of each class beside its fields, and by default imports and calls
whatever is named there: whoever can write to the file can run code (CVE-2026-28277). With its strict mode on, a type that
is not allowed comes back as a bare dict and the graph goes on, hollow.

Here bytes become the types that LangGraph calls safe, and *data classes that this process has imported already*
(dataclasses, pydantic models, enums, named tuples). Never a function, never an import on behalf of stored bytes. What
cannot be rebuilt raises `Unbuildable`, which the saver turns into an error that names thread, channel and type.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from inspect import isclass
from types import ModuleType
from typing import Any, Union

import ormsgpack
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot

AllowedType = Union[type, tuple[str, str]]
"""A class, or its (module, name), which is then imported when a stored value needs it."""


class Unbuildable(Exception):
    """A stored value that this process cannot, or may not, rebuild."""


class SafeSerializer(JsonPlusSerializer):
    """LangGraph's serializer, which rebuilds only what is safe: the default of `SqliteSaver(serde=...)`.

    That is LangGraph's safe types, data classes (dataclasses, pydantic models, enums, named tuples) that this process has
    imported already, and `allowed_types`. Any other stored type raises, where LangGraph's own imports and calls it, or
    gives a bare dict. Writes exactly what `JsonPlusSerializer` writes, so files move between savers. Thread-safe.

    Args:
        allowed_types: Classes, or (module, name) pairs, whose module is then imported when needed.
    """

    def __init__(self, allowed_types: Iterable[AllowedType | tuple[str, ...]] = ()) -> None:
        self._allowed = frozenset(_type_key(allowed) for allowed in allowed_types)
        self._failed = threading.local()
        self._known: dict[tuple[str, str], Any] = {}  # only of types that are allowed by name
        super().__init__(allowed_msgpack_modules=None, __unpack_ext_hook__=self._rebuild)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        if data[0] == "json":
            raise Unbuildable("its type, 'json', is one that this serializer never writes")
        self._failed.reason = None
        try:
            return super().loads_typed(data)
        except ValueError:
            if self._failed.reason is not None:
                raise self._failed.reason from None
            raise
        finally:
            self._failed.reason = None  # it holds on to everything that it was raised in

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> SafeSerializer:
        """A serializer that allows these too; itself where there is nothing new."""
        extra = frozenset(_type_key(allowed) for allowed in extra_allowlist)
        return self if extra <= self._allowed else SafeSerializer([*self._allowed, *extra])

    def _rebuild(self, code: int, data: bytes) -> Any:
        """Ormsgpack turns whatever is raised here into a ValueError that says nothing: the reason is kept aside."""
        try:
            build = _BUILDERS.get(code)
            if build is None:
                raise Unbuildable(f"it has an unknown kind ({code}); a newer LangGraph may have written it")
            return build(self, ormsgpack.unpackb(data, ext_hook=self._rebuild, option=ormsgpack.OPT_NON_STR_KEYS))
        except BaseException as reason:
            self._failed.reason = self._failed.reason or reason
            raise

    def _class(self, module: str, name: str) -> Any:
        """The class (or, for safe types, the factory) of that name, if stored bytes may become it."""
        key = (module, name)
        if key in self._known:
            return self._known[key]
        if key in SAFE_MSGPACK_TYPES or key in self._allowed:
            self._known[key] = _lookup(_imported(module, name), module, name)
            return self._known[key]
        found = _lookup(sys.modules.get(module), module, name)
        if not _is_data_class(found):
            raise Unbuildable(
                f"type {module}.{name} is not a data class, and may only be rebuilt if you allow it: "
                f"SqliteSaver(path, allowed_types=[({module!r}, {name!r})])"
            )
        return found


def _type_key(allowed: AllowedType | tuple[str, ...]) -> tuple[str, ...]:
    return (allowed.__module__, allowed.__name__) if isinstance(allowed, type) else tuple(allowed)


def _lookup(home: ModuleType | None, module: str, name: str) -> Any:
    """Out of the module's own names: a `__getattr__` of a lazy package would import on behalf of stored bytes."""
    if home is None:
        raise Unbuildable(
            f"type {module}.{name} is not imported in this process: import {module} first, or pass "
            f"SqliteSaver(path, allowed_types=[({module!r}, {name!r})])"
        )
    found = vars(home).get(name) or _made_inside(module, name)
    if found is None:
        raise Unbuildable(
            f"type {module}.{name} no longer exists (renamed or moved, or made inside a function that has not run): "
            f"put it back under that name, at least as an alias"
        )
    return found


def _imported(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unbuildable(f"type {module}.{name} cannot be imported: {error}") from error


_INNER_BASES: dict[tuple[str, str], type] = {}  # where a class that is no name of its module was found: below which base


def _made_inside(module: str, name: str) -> type | None:
    """The newest living class of that name which the module made inside a function or a class.

    LangGraph writes a class's bare name, so notebooks' and tests' classes cannot be looked up; they are looked for.
    """
    base = _INNER_BASES.get((module, name), object)
    for found in _living_below(base):
        if found.__name__ == name and found.__module__ == module and "." in found.__qualname__:
            _INNER_BASES[module, name] = found.__base__ or object
            return found
    return None if base is object else _made_inside_any(module, name)


def _made_inside_any(module: str, name: str) -> type | None:
    """It has another base now: look everywhere again."""
    _INNER_BASES.pop((module, name), None)
    return _made_inside(module, name)


def _living_below(base: type) -> Iterator[type]:
    """Every class below `base`, the newest of each first."""
    seen: set[type] = {type}
    stack = [base]
    while stack:
        found: type
        for found in reversed(type.__subclasses__(stack.pop())):
            if found not in seen:
                seen.add(found)
                stack.append(found)
                yield found


def _is_data_class(found: Any) -> bool:
    return isclass(found) and (
        dataclasses.is_dataclass(found)
        or issubclass(found, Enum)
        or (issubclass(found, tuple) and hasattr(found, "_fields"))
        or _is_pydantic(found)
    )


def _is_pydantic(found: type) -> bool:
    """By where its bases come from: pydantic itself is not ours to import."""
    return any(base.__name__ == "BaseModel" and base.__module__.split(".")[0] == "pydantic" for base in found.__mro__)


# --- one builder for each kind that LangGraph writes; fields are (module, name, argument, ...) ---


def _call(build: Callable[[], Any], module: str, name: str) -> Any:
    try:
        return build()
    except Exception as error:  # whatever the user's class raises, the reader is told which class and why
        raise Unbuildable(f"type {module}.{name} does not accept the stored fields: {error}") from error


def _from_argument(serde: SafeSerializer, fields: Any) -> Any:
    module, name, argument = fields
    found = serde._class(module, name)
    return _call(lambda: found(argument), module, name)


def _from_arguments(serde: SafeSerializer, fields: Any) -> Any:
    module, name, arguments = fields
    if (module, name) == ("langgraph.types", "Send"):
        return jsonplus._send_from_args(arguments)
    found = serde._class(module, name)
    return _call(lambda: found(*arguments), module, name)


def _from_keywords(serde: SafeSerializer, fields: Any) -> Any:
    module, name, keywords = fields
    found = serde._class(module, name)
    if dataclasses.is_dataclass(found):
        return _call(lambda: _dataclass(found, keywords), module, name)
    return _call(lambda: found(**keywords), module, name)


def _dataclass(found: Any, keywords: dict[str, Any]) -> Any:
    """With the fields that its `__init__` does not take (`field(init=False)`) set to what was stored."""
    late = {field.name for field in dataclasses.fields(found) if not field.init}
    made = found(**{name: value for name, value in keywords.items() if name not in late})
    for name in late & keywords.keys():
        object.__setattr__(made, name, keywords[name])
    return made


def _from_method(serde: SafeSerializer, fields: Any) -> Any:
    module, name, argument, method = fields
    if (module, name, method) not in SAFE_MSGPACK_METHODS:
        raise Unbuildable(f"calling {module}.{name}.{method} on behalf of stored bytes is never done")
    found = serde._class(module, name)
    return _call(lambda: getattr(found, method)(argument), module, name)


def _from_model(serde: SafeSerializer, fields: Any) -> Any:
    """A pydantic model; as LangGraph does, without validation where today's validators refuse yesterday's value."""
    module, name, keywords = fields[:3]
    found = serde._class(module, name)
    try:
        return found(**keywords)
    except Exception:
        construct = getattr(found, "model_construct", None) or getattr(found, "construct", None)
        if construct is None:
            raise Unbuildable(f"type {module}.{name} does not accept the stored fields") from None
        return _call(lambda: construct(**keywords), module, name)


def _from_array(_serde: SafeSerializer, fields: Any) -> Any:
    dtype, shape, order, buffer = fields

    def build() -> Any:
        numpy: Any = importlib.import_module("numpy")  # a fixed name, not one that the bytes chose
        return numpy.frombuffer(buffer, dtype=numpy.dtype(dtype)).reshape(shape, order=order)

    return _call(build, "numpy", "ndarray")


_BUILDERS: dict[int, Callable[[SafeSerializer, Any], Any]] = {
    jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG: _from_argument,
    jsonplus.EXT_CONSTRUCTOR_POS_ARGS: _from_arguments,
    jsonplus.EXT_CONSTRUCTOR_KW_ARGS: _from_keywords,
    jsonplus.EXT_METHOD_SINGLE_ARG: _from_method,
    jsonplus.EXT_PYDANTIC_V1: _from_model,
    jsonplus.EXT_PYDANTIC_V2: _from_model,
    jsonplus.EXT_NUMPY_ARRAY: _from_array,
    jsonplus.EXT_DELTA_SNAPSHOT: lambda _serde, value: _DeltaSnapshot(value),
}
