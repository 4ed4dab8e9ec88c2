"""What goes in comes out; what cannot, says so by the name of its thread, channel and type, instead of going on hollow."""

import collections
import datetime
import decimal
import enum
import gc
import importlib
import ipaddress
import itertools
import math
import pathlib
import pickle
import re
import sys
import textwrap
import time
import uuid
import weakref
import zlib
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pydantic
import pytest
from conftest import Face, checkpoint, config, put
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Send, interrupt
from sqlfile import sql

from langgraph_sqlite_ckpt import DecodeError, EncodeError, InvalidRequest, SafeSerializer, SqliteSaver


@dataclass
class Order:
    id: int
    lines: list["Line"]
    total: decimal.Decimal = decimal.Decimal(0)
    checked: bool = field(default=False, init=False)


@dataclass(frozen=True)
class Line:
    what: str
    price: float


@dataclass
class Slotted:
    __slots__ = ("a",)
    a: int


class Priority(enum.Enum):
    LOW = 1
    HIGH = "high"


class Level(enum.IntEnum):
    ONE = 1


class Mode(str, enum.Enum):
    FAST = "fast"


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Spot(NamedTuple):
    x: int
    y: "Spot | None" = None


class Address(pydantic.BaseModel):
    street: str
    tags: set[str] = set()


class Person(pydantic.BaseModel):
    name: str
    home: Address | None = None
    priority: Priority = Priority.LOW


class Outer:
    @dataclass
    class Inner:
        a: int


VALUES: dict[str, Any] = {
    "None": None,
    "booleans": [True, False],
    "numbers": [0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 0.1 + 0.2, -0.0, 5e-324, math.inf],
    "text": ["", "x" * 201, "é日本🎉", "a\0b", "\u2028"],
    "short text": "short",
    "text of 200": "y" * 200,
    "text of 201": "y" * 201,
    "an int": 7,
    "a float": 0.5,
    "True": True,
    "bytes": b"\x00\xff" * 300,
    "short bytes": b"",
    "bytes inside": {"b": [b"x"]},
    "an empty list": [],
    "an empty dict": {},
    "keys of any kind": {1: "a", "1": "b", None: "c", 2.5: "d", True: "e"},
    "deep": [[[[[{"a": [{"b": {}}]}]]]]],
    "a dataclass": Order(1, [Line("tea", 2.5), Line("cake", 3.0)], decimal.Decimal("5.50")),
    "a frozen dataclass": Line("x", 1.0),
    "a dataclass with slots": Slotted(1),
    "a pydantic model": Person(name="Ada", home=Address(street="x", tags={"a"}), priority=Priority.HIGH),
    "an enum": [Priority.LOW, Priority.HIGH, Permission.READ | Permission.WRITE],
    "a named tuple": Spot(1, Spot(2)),
    "messages": [
        HumanMessage("hi", id="1"),
        AIMessage("yo", id="2", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c"}]),
        ToolMessage("r", tool_call_id="c", id="3"),
        SystemMessage("s", id="4"),
        RemoveMessage(id="1"),
    ],
    "a document": Document("text", metadata={"k": 1}),
    "a UUID": uuid.UUID(int=5),
    "a Decimal": decimal.Decimal("-1.50E+3"),
    "sets": [{1, 2}, frozenset({"a"}), set()],
    "a deque": collections.deque([1, 2, 3]),
    "paths": [pathlib.Path("/a/b"), pathlib.PurePosixPath("x").name],
    "a pattern": re.compile(r"a(b)+", re.IGNORECASE),
    "addresses": [
        ipaddress.ip_address("10.0.0.1"),
        ipaddress.ip_network("10.0.0.0/8"),
        ipaddress.ip_interface("::1/64"),
        ipaddress.ip_address("::1"),
    ],
    "datetimes": [
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        datetime.date(2026, 1, 2),
        datetime.time(1, 2, 3, 4, datetime.timezone.utc),
        datetime.timedelta(days=-1, microseconds=3),
        datetime.timezone(datetime.timedelta(hours=2)),
    ],
    "a zone": zoneinfo.ZoneInfo("Europe/Berlin")
    if "Europe/Berlin" in zoneinfo.available_timezones()
    else zoneinfo.ZoneInfo("UTC")
    if "UTC" in zoneinfo.available_timezones()
    else None,
    "langgraph's own": [
        Send("node", {"a": [1]}),
        Interrupt(value={"q": "ok?"}, id="i"),
        Command(goto="x", update={"a": 1}),
    ],
    "a store's item": Item(
        value={"a": 1},
        key="k",
        namespace=("a", "b"),
        created_at=datetime.datetime(2026, 1, 1),
        updated_at=datetime.datetime(2026, 1, 2),
    ),
    "a delta snapshot": _DeltaSnapshot([1, 2, {"a": Line("x", 1.0)}]),
}


@pytest.mark.parametrize("name", VALUES)
def test_every_type_that_langgraph_stores_comes_back_equal_and_of_its_type(face: Face, name: str) -> None:
    value = VALUES[name]
    at = put(face, {"c": value, "in a list": [value]})
    face.put_writes(at, [("c", value)], "task")
    with SqliteSaver(sql_path(face), read_only=True) as fresh:
        for found in (face.get_tuple(at), next(iter(face.list(None))), fresh.get_tuple(at)):
            for given in (
                found.checkpoint["channel_values"]["c"],
                found.checkpoint["channel_values"]["in a list"][0],
                found.pending_writes[0][2],
            ):
                assert given == value
                assert type(given) is type(value)
                assert repr(given) == repr(value)


def sql_path(face: Face) -> str:
    return face.saver._shared.database.path


def test_a_bytearray_comes_back_as_one(face: Face) -> None:
    found = face.get_tuple(put(face, {"a": bytearray(b"x" * 300)})).checkpoint["channel_values"]["a"]
    assert type(found) is bytearray
    assert found == b"x" * 300


def test_nan_comes_back(face: Face) -> None:
    found = face.get_tuple(put(face, {"a": math.nan, "b": [math.nan]})).checkpoint["channel_values"]
    assert math.isnan(found["a"])
    assert math.isnan(found["b"][0])


def test_a_tuple_and_an_enum_of_ints_come_back_as_langgraphs_serializer_gives_them_back(face: Face) -> None:
    memory = InMemorySaver()
    value = {
        "a": (1, 2),
        "b": [Level.ONE, Mode.FAST],
        "c": {"k": (Mode.FAST,)},
        "e": ValueError("x"),
        "f": [bytearray(b"ab")],
    }
    for saver in (face, memory):
        saver.put(config(), checkpoint({"v": value}, {"v": "1"}, id="1"), {}, {"v": "1"})
    assert face.get_tuple(config()).checkpoint == memory.get_tuple(config()).checkpoint


def test_numpy_arrays_come_back(face: Face) -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    arrays = [
        numpy.arange(6).reshape(2, 3),
        numpy.arange(6.0).reshape(2, 3, order="F"),
        numpy.array([], dtype="f4"),
        numpy.array(["a", "bc"]),
        numpy.arange(10)[::2],
    ]
    found = face.get_tuple(put(face, {"a": arrays})).checkpoint["channel_values"]["a"]
    for given, array in zip(found, arrays, strict=True):
        assert given.dtype == array.dtype
        assert numpy.array_equal(given, array)


@pytest.mark.parametrize(
    "value",
    [b"\x00\x01\xfe" * 1_700_000, "text é " * 700_000, [{"n": number, "t": f"item {number}"} for number in range(120_000)]],
    ids=["bytes", "text", "list"],
)
def test_a_value_of_five_megabytes_comes_back(face: Face, value: Any) -> None:
    at = put(face, {"big": value})
    assert face.get_tuple(at).checkpoint["channel_values"]["big"] == value
    face.put_writes(at, [("big", value)], "task")
    assert next(iter(face.list(None))).pending_writes == [("task", "big", value)]


# --- the whole checkpoint ---


def test_everything_that_put_was_given_comes_back(face: Face) -> None:
    given = {
        "v": 4,
        "id": "1",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {
            "covered": ["c"] * 100,
            "uncovered": ["u"] * 100,
            "uncovered scalar": 5,
            "none": None,
            "uncovered none": None,
        },
        "channel_versions": {"covered": "1", "none": "1", "empty": "2", "number": 7, "float": 1.5},
        "versions_seen": {"node": {"covered": "1"}, "__input__": {}, "é": {"x y": 3}},
        "updated_channels": ["covered", "none"],
        "pending_sends": [Send("node", {"a": 1})],
        "a key of the future": {"nested": [1, {2}]},
        "another one": [1.5, None, {"plain": True}],
    }
    face.put(config(), given, {}, {"covered": "1"})
    assert face.get_tuple(config()).checkpoint == given
    assert next(iter(face.list(None))).checkpoint == given
    assert list(face.get_tuple(config()).checkpoint["channel_versions"]) == list(given["channel_versions"])


def test_the_callers_checkpoint_is_left_alone(face: Face) -> None:
    made = checkpoint({"a": [1], "b": 2})
    copy = pickle.loads(pickle.dumps(made))
    face.put(config(), made, {}, dict(made["channel_versions"]))
    face.get_tuple(config()).checkpoint["channel_values"]["a"].append("changed by the reader")
    assert made == copy
    assert face.get_tuple(config()).checkpoint == copy


def test_a_value_that_is_changed_after_put_returned_is_stored_as_it_was(face: Face) -> None:
    value = ["as given"]
    at = put(face, {"a": value})
    value.append("later")
    assert face.get_tuple(at).checkpoint["channel_values"] == {"a": ["as given"]}


def test_unchanged_channels_come_back_in_every_later_checkpoint(face: Face) -> None:
    first = checkpoint({"same": ["s"] * 100, "scalar": 1, "goes": ["g"] * 100}, {"same": "1", "scalar": "1", "goes": "1"})
    at = face.put(config(), first, {}, {"same": "1", "scalar": "1", "goes": "1"})
    for number in range(2, 6):
        later = checkpoint(
            {"same": ["s"] * 100, "scalar": 1, "counts": [number]},
            {"same": "1", "scalar": "1", "goes": "2", "counts": str(number)},
        )
        at = face.put(at, later, {}, {"counts": str(number), "goes": "2"} if number == 2 else {"counts": str(number)})
        assert face.get_tuple(at).checkpoint == later
    assert [len(item.checkpoint["channel_values"]) for item in face.list(None)] == [3, 3, 3, 3, 3]
    assert face.get_tuple(config("t", "", first["id"])).checkpoint == first


def test_a_version_that_is_put_again_without_its_value_has_none_and_nobody_calls_that_damage(
    face: Face, path: Path
) -> None:
    version = {"a": f"{1:032}.1"}
    memory = InMemorySaver()
    for each in (face, memory):
        first = each.put(config(), checkpoint({"a": ["x"] * 200}, version, "1"), {}, version)
        each.put(first, checkpoint({}, version, "2"), {}, version)
        assert each.get_tuple(config("t", "", "1")).checkpoint["channel_values"] == {}
    assert [item.checkpoint["channel_values"] for item in face.list(config())] == [{}, {}]
    assert list(face.verify()) == []
    face.put(first, checkpoint({"a": ["y"] * 200}, version, "3"), {}, {})
    assert face.get_tuple(config("t", "", "3")).checkpoint["channel_values"] == {"a": ["y"] * 200}
    assert list(face.verify()) == []
    face.put(first, checkpoint({"a": 7}, version, "4"), {}, version)
    assert face.get_tuple(config("t", "", "4")).checkpoint["channel_values"] == {"a": 7}
    face.prune(["t"])
    assert face.get_tuple(config()).checkpoint["channel_values"] == {"a": 7}
    assert list(face.verify()) == []


@pytest.mark.parametrize(
    "versions",
    [["1", "2", "10"], [1, 2, 10], [1.5, 2.5, 10.25], ["a", "b b", "é'\""], [1, "1", 1.5], [2**53 + 1, 2**53 + 2, 2**62]],
)
def test_any_kind_of_version_finds_its_value_again(face: Face, versions: list[Any]) -> None:
    for number, version in enumerate(versions):
        made = checkpoint({"a": [number] * 200}, {"a": version}, id=str(number))
        face.put(config(), made, {}, {"a": version})
    assert [item.checkpoint["channel_values"]["a"][0] for item in face.list(None)] == [2, 1, 0]


@pytest.mark.parametrize(
    "channel", ["with space", "é日🎉", "'\"; --", "a.b[0]", "$", "branch:to:x", "x" * 5000, "", "\x01"]
)
def test_any_channel_name_finds_its_value_again(face: Face, channel: str) -> None:
    at = put(face, {channel: ["v"] * 100, "other": 1})
    face.put_writes(at, [(channel, ["w"])], "task")
    found = face.get_tuple(at)
    assert found.checkpoint["channel_values"] == {channel: ["v"] * 100, "other": 1}
    assert found.pending_writes == [("task", channel, ["w"])]
    child = face.put(at, checkpoint(), {}, {})
    assert face.get_delta_channel_history(config=child, channels=[channel])[channel] == {
        "writes": [("task", channel, ["w"])],
        "seed": ["v"] * 100,
    }


# --- what cannot be stored ---


class NotStorable:
    pass


@pytest.mark.parametrize(
    "value",
    [
        NotStorable(),
        [NotStorable()],
        {"deep": [{"down": NotStorable()}]},
        lambda: None,
        2**64,
        {"n": -(2**64)},
        (each for each in ()),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused_by_channel_and_type_and_nothing_is_stored(face: Face, value: Any) -> None:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    for call in (
        lambda: put(face, {"good": ["x"], "bad": value}),
        lambda: face.put_writes(config("t", "", "1"), [("good", 1), ("bad", value)], "task"),
        lambda: face.put(config(), checkpoint({"good": [1], "bad": value}, {}), {}, {}),
    ):
        with pytest.raises(EncodeError) as caught:
            call()
        for named in ("thread 't'", "channel 'bad'", kind):
            assert named in str(caught.value)
        assert caught.value.__cause__ is not None
    assert list(face.list(None)) == []
    assert sql(Path(sql_path(face)), "SELECT count(*) FROM write") == [(0,)]
    put(face, {"good": ["x"]})
    assert len(list(face.list(None))) == 1


def test_a_serializer_that_raises_anything_is_reported_by_channel(open_face: Any) -> None:
    class Broken(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> Any:
            if obj == ["bad"]:
                raise ZeroDivisionError("a user's code")
            return super().dumps_typed(obj)

    face = open_face(serde=Broken())
    with pytest.raises(EncodeError, match="channel 'c'.*a user's code"):
        put(face, {"c": ["bad"]})


def test_a_graph_whose_node_returns_what_cannot_be_stored_fails_and_can_be_resumed_before_it(saver: SqliteSaver) -> None:
    class State(TypedDict, total=False):
        result: Any

    broken = [True]
    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"result": NotStorable() if broken else "fine"})
    builder.add_edge(START, "node")
    app = builder.compile(checkpointer=saver)
    with pytest.raises(EncodeError, match="channel 'result'"):
        app.invoke({"result": "in"}, config(), durability="sync")
    broken.clear()
    assert app.invoke(None, config())["result"] == "fine"


# --- classes that are gone ---

MODULES = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Makes a module of the given source, imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def make(source: str) -> Any:
        name = f"users_module_{next(MODULES)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        made.append(name)
        return importlib.import_module(name)

    yield make
    for name in made:
        sys.modules.pop(name, None)


KINDS = {
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass Thing:\n    a: int",
    "pydantic": "from pydantic import BaseModel\nclass Thing(BaseModel):\n    a: int",
    "named tuple": "from typing import NamedTuple\nclass Thing(NamedTuple):\n    a: int",
    "enum": "from enum import Enum\nclass Thing(Enum):\n    A = 1",
}


def thing(users: Any) -> Any:
    return users.Thing.A if issubclass(users.Thing, enum.Enum) else users.Thing(a=1)


def assert_names_the_place(error: DecodeError, module_name: str) -> None:
    for named in ("thread 't'", "channel 'c'", f"{module_name}.Thing"):
        assert named in str(error)


def raises_decode_error(face: Face, at: Any, module_name: str) -> str:
    """From every way to reach the value; what it says."""
    message = ""
    child = config("t", "", "child")
    for call in (
        lambda: face.get_tuple(at),
        lambda: list(face.list(config())),
        lambda: face.get_delta_channel_history(config=child, channels=["c"]),
    ):
        with pytest.raises(DecodeError) as caught:
            call()
        assert_names_the_place(caught.value, module_name)
        message = str(caught.value)
    return message


def store_thing(face: Face, value: Any) -> Any:
    at = put(face, {"c": value})
    face.put(at, checkpoint(id="child"), {}, {})
    put(face, {"c": ["somebody else's"]}, at=config("other"))
    return at


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_is_gone_or_renamed_is_an_error_that_names_the_place_and_not_a_dict(
    face: Face, module: Any, kind: str
) -> None:
    users = module(KINDS[kind])
    value = thing(users)
    at = store_thing(face, value)
    users.Renamed = users.Thing
    del users.Thing
    message = raises_decode_error(face, at, users.__name__)
    assert "no longer exists" in message
    assert face.get_tuple(config("other")).checkpoint["channel_values"] == {"c": ["somebody else's"]}
    users.Thing = users.Renamed  # the remedy that the message names
    assert "alias" in message
    assert face.get_tuple(at).checkpoint["channel_values"]["c"] == value


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_whose_module_is_not_imported_is_not_imported_for_it_unless_allowed(
    open_face: Any, path: Path, module: Any, kind: str
) -> None:
    users = module(KINDS[kind])
    name, value = users.__name__, thing(users)
    face = open_face()
    at = store_thing(face, value)
    del sys.modules[name]
    message = raises_decode_error(face, at, users.__name__)
    assert name not in sys.modules
    assert f"import {name}" in message
    assert f"allowed_types=[({name!r}, 'Thing')]" in message
    allowing = open_face(allowed_types=[(name, "Thing")])
    found = allowing.get_tuple(at).checkpoint["channel_values"]["c"]
    assert name in sys.modules
    assert found == thing(sys.modules[name])


def test_a_class_whose_fields_changed_is_an_error_that_names_the_place(face: Face, module: Any) -> None:
    users = module(KINDS["dataclass"])
    at = store_thing(face, users.Thing(1))
    exec("from dataclasses import dataclass\n@dataclass\nclass Thing:\n    b: int", vars(users))
    assert "does not accept the stored fields" in raises_decode_error(face, at, users.__name__)


def test_a_pydantic_model_whose_validators_became_stricter_comes_back_as_it_was(face: Face, module: Any) -> None:
    users = module("from pydantic import BaseModel\nclass Thing(BaseModel):\n    a: int\n    b: str = 'x'")
    at = put(face, {"c": users.Thing(a=-1)})
    exec(
        "from pydantic import BaseModel, PositiveInt\nclass Thing(BaseModel):\n    a: PositiveInt\n    b: str = 'x'",
        vars(users),
    )
    found = face.get_tuple(at).checkpoint["channel_values"]["c"]
    assert type(found) is users.Thing
    assert (found.a, found.b) == (-1, "x")


def test_an_enum_member_that_is_gone_is_an_error_that_names_the_place(face: Face, module: Any) -> None:
    users = module(KINDS["enum"])
    at = store_thing(face, users.Thing.A)
    exec("from enum import Enum\nclass Thing(Enum):\n    B = 2", vars(users))
    raises_decode_error(face, at, users.__name__)


def test_a_pending_write_of_a_class_that_is_gone_is_an_error_that_names_its_channel(face: Face, module: Any) -> None:
    users = module(KINDS["dataclass"])
    at = put(face, {"a": 1})
    face.put_writes(at, [("fine", 1), ("c", users.Thing(1))], "task")
    del users.Thing
    for call in (lambda: face.get_tuple(at), lambda: list(face.list(config()))):
        with pytest.raises(DecodeError) as caught:
            call()
        assert_names_the_place(caught.value, users.__name__)


def test_a_class_made_inside_a_function_comes_back_while_it_lives(face: Face) -> None:
    def make() -> Any:
        @dataclass
        class MadeInAFunction:
            a: int

        return MadeInAFunction

    made = make()
    at = put(face, {"c": made(1)})
    assert face.get_tuple(at).checkpoint["channel_values"]["c"] == made(1)
    gone = weakref.ref(made)
    del made
    deadline = time.monotonic() + 10
    while gone() is not None and time.monotonic() < deadline:  # a thread may just be letting go
        gc.collect()
    assert gone() is None
    with pytest.raises(DecodeError, match="channel 'c'.*MadeInAFunction.*function"):
        face.get_tuple(at)


def test_of_classes_that_a_notebook_cell_made_twice_the_newest_is_used(face: Face) -> None:
    def cell() -> Any:
        @dataclass
        class FromACell:
            a: int

        return FromACell

    first = cell()
    at = put(face, {"c": first(1)})
    assert type(face.get_tuple(at).checkpoint["channel_values"]["c"]) is first
    second = cell()
    assert type(face.get_tuple(at).checkpoint["channel_values"]["c"]) is second


def test_a_data_class_inside_a_class_comes_back(face: Face) -> None:
    at = put(face, {"c": Outer.Inner(1)})
    assert face.get_tuple(at).checkpoint["channel_values"]["c"] == Outer.Inner(1)


# --- who may be rebuilt ---


class Secret:
    """No data class; LangGraph's serializer stores it by its `get_secret_value`."""

    def __init__(self, value: str) -> None:
        self.value = value

    def get_secret_value(self) -> str:
        return self.value


HERE = Secret.__module__


@pytest.mark.parametrize("allowed", [Secret, (HERE, "Secret")])
def test_a_class_that_is_no_data_class_is_rebuilt_only_if_it_is_allowed_by_name(open_face: Any, allowed: Any) -> None:
    face = open_face()
    at = put(face, {"c": Secret("s")})
    with pytest.raises(
        DecodeError, match=rf"channel 'c'.*{HERE}\.Secret is not a data class.*allowed_types=\[\('{HERE}', 'Secret'\)\]"
    ):
        face.get_tuple(at)
    found = open_face(allowed_types=[allowed]).get_tuple(at).checkpoint["channel_values"]["c"]
    assert type(found) is Secret
    assert found.value == "s"


def test_pydantics_secrets_come_back_if_allowed(open_face: Any) -> None:
    face = open_face(allowed_types=[pydantic.SecretStr])
    at = put(face, {"c": pydantic.SecretStr("s")})
    assert face.get_tuple(at).checkpoint["channel_values"]["c"] == pydantic.SecretStr("s")


def test_with_allowlist_gives_a_saver_that_rebuilds_more_and_leaves_the_first_as_it_was(saver: SqliteSaver) -> None:
    at = put(saver, {"c": Secret("s")})
    more = saver.with_allowlist([(HERE, "Secret")])
    assert more.get_tuple(at).checkpoint["channel_values"]["c"].value == "s"
    with pytest.raises(DecodeError):
        saver.get_tuple(at)
    assert isinstance(more, SqliteSaver)
    assert more.with_allowlist([(HERE, "Secret")]) is more
    assert more.with_allowlist([("another", "Type")]).get_tuple(at).checkpoint["channel_values"]["c"].value == "s"
    put(more, {"c": 1})
    assert len(list(saver.list(config(), limit=1))) == 1


def test_a_graph_with_data_classes_in_its_state_is_interrupted_and_resumed_by_another_saver(path: Path) -> None:
    class State(TypedDict, total=False):
        order: Order
        person: Person
        spot: Spot

    def node(state: State) -> State:
        assert interrupt(state["order"].lines[0]) == Priority.HIGH
        return {"spot": Spot(state["order"].id, Spot(9))}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    with SqliteSaver(path) as saver:
        paused = builder.compile(checkpointer=saver).invoke(
            {"order": Order(1, [Line("tea", 2.5)]), "person": Person(name="Ada")}, config()
        )
        assert paused["__interrupt__"][0].value == Line("tea", 2.5)
    with SqliteSaver(path) as saver:
        app = builder.compile(checkpointer=saver)
        assert app.invoke(Command(resume=Priority.HIGH), config()) == {
            "order": Order(1, [Line("tea", 2.5)]),
            "person": Person(name="Ada"),
            "spot": Spot(1, Spot(9)),
        }


# --- the caller's serializer ---


def test_a_serializer_that_is_passed_in_is_used_as_it_is(path: Path) -> None:
    serde = JsonPlusSerializer(allowed_msgpack_modules=True)
    with SqliteSaver(path, serde=serde) as saver:
        assert saver.serde is serde
        at = put(saver, {"c": Secret("s")})
        assert saver.get_tuple(at).checkpoint["channel_values"]["c"].value == "s"
    with pytest.raises(InvalidRequest, match="allowed_types"):
        SqliteSaver(path, serde=serde, allowed_types=[Secret])


def test_with_allowlist_asks_a_serializer_that_was_passed_in_its_own_way(path: Path) -> None:
    with SqliteSaver(path, serde=JsonPlusSerializer(allowed_msgpack_modules=None)) as saver:
        at = put(saver, {"c": Secret("s")})
        assert saver.get_tuple(at).checkpoint["channel_values"]["c"] == "s"  # as that serializer does
        assert saver.with_allowlist([(HERE, "Secret")]).get_tuple(at).checkpoint["channel_values"]["c"].value == "s"


def test_the_savers_own_default_is_the_safe_one(saver: SqliteSaver) -> None:
    assert isinstance(saver.serde, SafeSerializer)


class Xor:
    """A cipher for tests: every byte is turned."""

    def __init__(self, key: int = 0x5A) -> None:
        self.key = key

    def encrypt(self, plaintext: bytes) -> tuple[str, bytes]:
        return "xor", zlib.crc32(plaintext).to_bytes(4, "big") + bytes(byte ^ self.key for byte in plaintext)

    def decrypt(self, ciphername: str, ciphertext: bytes) -> bytes:
        plaintext = bytes(byte ^ self.key for byte in ciphertext[4:])
        if ciphername != "xor" or zlib.crc32(plaintext).to_bytes(4, "big") != ciphertext[:4]:
            raise ValueError("not encrypted with this key")
        return plaintext


def test_with_an_encrypting_serializer_no_state_is_readable_in_the_file(open_face: Any, path: Path) -> None:
    face = open_face(serde=EncryptedSerializer(Xor(), SafeSerializer()))
    at = config()
    for number in range(8):
        at = put(face, {"long": ["SECRETWORD"] * 30 * (number + 1), "short": "SECRETWORD", "uncovered": 5}, parent=at)
        face.put_writes(at, [("long", ["SECRETWORD", number]), ("__interrupt__", "SECRETWORD")], "task")
    found = list(face.list(config()))
    assert [len(item.checkpoint["channel_values"]["long"]) for item in found] == [30 * number for number in range(8, 0, -1)]
    assert all(item.pending_writes[0][2] == "SECRETWORD" for item in found)
    assert {kind for (kind,) in sql(path, "SELECT type FROM blob UNION SELECT type FROM write")} == {"msgpack+xor"}
    content = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert b"SECRET" not in content


def test_with_the_wrong_key_reading_is_an_error_that_names_the_place(open_face: Any) -> None:
    at = put(open_face(serde=EncryptedSerializer(Xor())), {"c": ["secret"] * 10})
    with pytest.raises(DecodeError, match="thread 't'.*channel 'c'"):
        open_face(serde=EncryptedSerializer(Xor(0x33))).get_tuple(at)
    with pytest.raises(DecodeError, match="thread 't'.*channel 'c'"):
        open_face().get_tuple(at)


def test_langgraphs_aes_serializer_works(open_face: Any) -> None:
    pytest.importorskip("Crypto", reason="pycryptodome is not installed")
    face = open_face(serde=EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef"))
    value = [Line("tea", 2.5)] * 50
    at = put(face, {"c": value})
    assert face.get_tuple(at).checkpoint["channel_values"]["c"] == value


def test_what_was_stored_before_encryption_stays_readable_after(open_face: Any) -> None:
    at = put(open_face(), {"c": ["plain"] * 200})
    face = open_face(serde=EncryptedSerializer(Xor(), SafeSerializer()))
    put(face, {"c": ["plain"] * 200 + ["secret"]}, parent=at)
    assert [len(item.checkpoint["channel_values"]["c"]) for item in face.list(None)] == [201, 200]


@dataclass
class Picklable:
    a: Any


class NoDataClass:
    def __init__(self, a: Any) -> None:
        self.a = a

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoDataClass) and self.a == other.a

    __hash__ = None  # type: ignore[assignment]


def test_pickle_fallback_is_the_callers_to_switch_on_and_is_not_read_without_it(open_face: Any) -> None:
    face = open_face(serde=JsonPlusSerializer(pickle_fallback=True))
    at = put(face, {"c": NoDataClass([1])})
    face.put_writes(at, [("c", NoDataClass(2))], "task")
    found = face.get_tuple(at)
    assert found.checkpoint["channel_values"]["c"] == NoDataClass([1])
    assert found.pending_writes == [("task", "c", NoDataClass(2))]
    with pytest.raises(DecodeError, match="channel 'c'.*pickle"):
        open_face().get_tuple(at)


def test_an_old_serializer_of_dumps_and_loads_alone_works(open_face: Any) -> None:
    class Old:
        def dumps(self, obj: Any) -> bytes:
            return pickle.dumps(obj)

        def loads(self, data: bytes) -> Any:
            return pickle.loads(data)

    face = open_face(serde=Old())
    at = put(face, {"c": Picklable([1, {2}]), "n": None, "s": "x"}, odd={1})
    face.put_writes(at, [("c", Picklable(None))], "task")
    found = face.get_tuple(at)
    assert found.checkpoint["channel_values"] == {"c": Picklable([1, {2}]), "n": None, "s": "x"}
    assert found.metadata["odd"] == {1}
    assert found.pending_writes == [("task", "c", Picklable(None))]
