"""Metadata is never refused and comes back as given; a filter means what it means to InMemorySaver, for any key and value."""

import datetime
import decimal
import enum
import json
import math
import random
import string
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from sqlfile import sql

from langgraph_sqlite_ckpt import SqliteSaver


class Colour(enum.Enum):
    RED = "red"


class Source(str, enum.Enum):
    INPUT = "input"
    FORK = "fork"


@dataclass
class Point:
    x: int
    y: float


def stored(face: Any, metadata: dict[str, Any], at: Any = None) -> Any:
    return face.put(at or config(), checkpoint(), metadata, {})


# --- kept as given ---

KEPT: dict[str, Any] = {
    "a message": HumanMessage("hello", id="1"),
    "messages in a list in a dict": {"a": [AIMessage("x", id="2"), HumanMessage("y", id="3")]},
    "a datetime": datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc),
    "a date and a timedelta": [datetime.date(2026, 1, 2), datetime.timedelta(days=1, microseconds=1)],
    "a UUID": uuid.UUID(int=7),
    "a set": {1, 2, 3},
    "a frozenset of strings": frozenset({"a", "b"}),
    "a Decimal": decimal.Decimal("1.10"),
    "a dataclass": Point(1, 2.5),
    "an enum": Colour.RED,
    "a path": Path("/a/b"),
    "bytes": b"\x00\xff",
    "infinity": [math.inf, -math.inf],
    "a whole number that is a float": 1.0,
    "minus zero": -0.0,
    "a huge int": 2**63 - 1,
    "an int beyond 64 bits": 10**30,
    "a small negative int": -(2**63),
    "keys that are no strings": {1: "a", None: "b", 2.5: "c"},
    "an empty list and an empty dict": [[], {}],
    "None": None,
    "booleans": [True, False, 1, 0],
    "deep": [[[[[[[[[["deep"]]]]]]]]]],
    "unicode": "é日本🎉\u2028\x7f\x01",
    "half a surrogate pair": "\ud800",
    "both halves, apart": "\ud83d x \ude00",
    "quotes": "'\";--\\",
    "long": "x" * 100_000,
}


@pytest.mark.parametrize("name", KEPT)
def test_metadata_comes_back_as_it_was_given(face: Face, name: str) -> None:
    value = KEPT[name]
    metadata = {"source": "loop", "step": 3, "parents": {"": "x"}, "value": value, name: value}
    at = stored(face, metadata)
    for found in (face.get_tuple(at), next(iter(face.list(config()))), next(iter(face.list(config(), filter={"step": 3})))):
        assert found.metadata == metadata
        assert repr(found.metadata["value"]) == repr(value)  # 1, 1.0 and True are equal


def test_nan_comes_back_as_nan(face: Face) -> None:
    assert math.isnan(face.get_tuple(stored(face, {"value": math.nan, "step": math.nan})).metadata["value"])


def test_tuples_come_back_as_the_serializer_gives_them_back(face: Face) -> None:
    memory = InMemorySaver()
    metadata = {"value": (1, (2, [3])), "odd": ({1}, (2,))}
    assert face.get_tuple(stored(face, metadata)).metadata == memory.get_tuple(stored(memory, metadata)).metadata


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def cyclic() -> Any:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def very_deep() -> Any:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    return value


NOT_STORABLE: dict[str, Any] = {
    "a function": lambda: None,
    "an object": object(),
    "a lock in a list": [__import__("threading").Lock()],
    "without a repr": Unprintable(),
    "a cycle": cyclic(),
    "5,000 lists deep": very_deep(),
    "a number of 5,000 digits": 10**5000,
    "a number of 5,000 digits in a list": [10**5000],
    "a set of what cannot be stored": {lambda: None},
}


@pytest.mark.parametrize("name", NOT_STORABLE)
def test_metadata_that_cannot_be_stored_stops_no_run_and_harms_nothing_beside_it(face: Face, name: str) -> None:
    at = stored(face, {"source": "loop", "step": 4, "bad": NOT_STORABLE[name], "good": {"a": [1]}, "odd": {1, 2}})
    found = face.get_tuple(at).metadata
    assert {key: found[key] for key in ("source", "step", "good", "odd")} == {
        "source": "loop",
        "step": 4,
        "good": {"a": [1]},
        "odd": {1, 2},
    }
    assert "bad" in found
    assert [item.config for item in face.list(config(), filter={"good": {"a": [1]}})] == [at]


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        "",
        5,
        None,
        [1],
        {"a": {1}},
        math.nan,
        math.inf,
        10**400,
        -1,
        True,
        Source.INPUT,
        "x" * 10_000,
        "'; DROP TABLE checkpoint; --",
        decimal.Decimal(1),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_langgraphs_own_keys_may_hold_anything_too(face: Face, value: Any) -> None:
    is_nan = isinstance(value, float) and math.isnan(value)
    for column in ("run_id", "source", "step", "parents", "writes"):
        at = stored(face, {column: value}, config(column))
        found = face.get_tuple(at).metadata[column]
        assert found == value or (is_nan and math.isnan(found)), column
        found_by_filter = [item.config for item in face.list(config(column), filter={column: value})]
        assert found_by_filter == ([] if is_nan else [at]), column
        stored(face, {"source": "input", "run_id": "r"}, at)  # the next one leans on nothing odd
        assert len(list(face.list(config(column)))) == 2


def test_the_configs_own_metadata_is_merged_as_langgraph_does(face: Face) -> None:
    memory = InMemorySaver()
    merged = {
        "configurable": {"thread_id": "t", "checkpoint_ns": "", "user": "u", "__private": 1, "nul": "a\0b"},
        "metadata": {"run_id": "r", "odd": [1], "n": 5},
    }
    for saver in (face, memory):
        stored(saver, {"source": "loop", "step": 1, "s": "a\0b"}, merged)
    assert face.get_tuple(config()).metadata == memory.get_tuple(config()).metadata
    assert face.get_tuple(config()).metadata["user"] == "u"


def test_people_read_the_metadata_as_json_whatever_is_in_it(saver: SqliteSaver, path: Path) -> None:
    for value in KEPT.values():
        stored(saver, {"source": "loop", "value": value})
    for (text,) in sql(path, "SELECT metadata FROM checkpoints"):
        assert json.loads(text)["source"] == "loop"
    assert sql(path, "SELECT count(*) FROM checkpoints WHERE json_valid(metadata)") == [(len(KEPT),)]
    assert sql(
        path, "SELECT count(*) FROM checkpoints WHERE json_extract(metadata, '$.value') LIKE '%-0000-000000000007%'"
    ) == [(1,)]


def test_the_callers_metadata_is_left_alone(face: Face) -> None:
    metadata = {"source": "loop", "nested": {"a": [1]}, "odd": {1}}
    stored(face, metadata)
    assert metadata == {"source": "loop", "nested": {"a": [1]}, "odd": {1}}


# --- filters ---

KEYS = [
    "plain",
    "with space",
    "with.dot",
    "$.a",
    "accént",
    "日本",
    "'quote",
    '"double"',
    "a\\b",
    "",
    "[0]",
    "#",
    "%_",
    "x' OR '1'='1",
    "a'); DROP TABLE checkpoint; --",
    "new\nline",
    "nul\0key",
    "🎉",
    "\ud800",
    "source",
    "step",
    "run_id",
    "c.seq",
    "metadata",
]
VALUES: list[Any] = [
    "text", "", "it's", "1", "true", "null", 1, 0, -1, 1.0, 0.1 + 0.2, True, False, None, math.inf, 10**30, 2**53 + 1,
    [], [1, 2], ["a", {"b": None}], {}, {"a": 1}, {"a": {"b": [1, {"c": "d"}]}}, {"b": 2, "a": 1}, "é", "a\0b",
    {1, 2}, datetime.date(2026, 1, 1), uuid.UUID(int=1), b"x", (1, 2), HumanMessage("x", id="1"), Colour.RED, Point(1, 2.0),
]  # fmt: skip


def encodable(value: Any) -> bool:
    try:
        InMemorySaver().serde.dumps_typed(value)
    except Exception:
        return False
    return True


def test_any_key_and_any_value_can_be_filtered_by_and_finds_what_inmemorysaver_finds(open_face: Any) -> None:
    face = open_face(synchronous="normal")
    rng = random.Random(8)
    memory = InMemorySaver()
    for number in range(120):
        metadata = {key: rng.choice(VALUES) for key in rng.sample(KEYS, 4)}
        metadata = {key: value for key, value in metadata.items() if encodable({key: value})}
        for saver in (face, memory):
            saver.put(config(), checkpoint(id=f"{number:05}"), metadata, {})
    found_anything = 0
    for key in KEYS:
        for value in rng.sample(VALUES, 16 if face.name == "sync" else 4):
            for wanted in ({key: value}, {key: value, rng.choice(KEYS): rng.choice(VALUES)}):
                found = [item.config for item in face.list(config(), filter=wanted)]
                assert found == [item.config for item in memory.list(config(), filter=wanted)], wanted
                found_anything += bool(found)
    assert found_anything > 20
    assert len(list(face.list(None))) == 120


def test_none_finds_what_has_no_such_key(face: Face) -> None:
    at = stored(face, {"a": 1})
    stored(face, {"a": 1, "b": 2})
    assert [item.config for item in face.list(None, filter={"b": None})] == [at]


def test_true_and_one_are_equal_as_in_python_and_text_is_not(face: Face) -> None:
    at = stored(face, {"flag": True, "step": True})
    stored(face, {"flag": "1", "step": "1"})
    stored(face, {"flag": "True"})
    for wanted in ({"flag": 1}, {"flag": 1.0}, {"flag": True}, {"step": 1}, {"step": 1.0}, {"step": True}):
        assert [item.config for item in face.list(None, filter=wanted)] == [at], wanted


def test_nan_is_equal_to_nothing(face: Face) -> None:
    stored(face, {"a": math.nan, "step": math.nan})
    assert list(face.list(None, filter={"a": math.nan})) == []
    assert list(face.list(None, filter={"step": math.nan})) == []


@pytest.mark.parametrize(
    "injected",
    [
        "x') OR 1=1 --",
        "x' UNION SELECT * FROM checkpoint --",
        "$') = 1 OR (1",
        'x" OR ""="',
        "step = 1; DELETE FROM checkpoint",
    ],
)
def test_a_filter_key_that_is_sql_is_a_key_that_nobody_has(face: Face, injected: str) -> None:
    for number in range(3):
        stored(face, {"n": number}, config(f"t{number}"))
    for wanted in ({injected: 1}, {injected: injected}, {"n": injected}, {"source": injected}, {"run_id": injected}):
        assert list(face.list(None, filter=wanted)) == []
    assert len(list(face.list(None))) == 3


@pytest.mark.parametrize(
    "wanted", [{"run_id": "new"}, {"run_id": "old"}, {"source": "update"}, {"source": "input"}, {"step": 2}, {"step": 1}]
)
def test_a_filter_looks_at_the_metadata_that_a_checkpoint_was_last_put_with(face: Face, wanted: Any) -> None:
    memory = InMemorySaver()
    for saver in (face, memory):
        saver.put(config(), checkpoint(id="1"), {"run_id": "old", "source": "input", "step": 1}, {})
        saver.put(config(), checkpoint(id="1"), {"run_id": "new", "source": "update", "step": 2}, {})
    assert len(list(face.list(None, filter=wanted))) == len(list(memory.list(config(), filter=wanted)))


@pytest.mark.parametrize(
    ("key", "value", "asked"),
    [
        ("source", Source.FORK, "fork"),
        ("any key", Source.FORK, "fork"),
        ("any key", "fork", Source.FORK),
        ("source", "fork", Source.FORK),
        ("run_id", Source.FORK, "fork"),
        ("step", decimal.Decimal(1), 1),
        ("step", 1, decimal.Decimal(1)),
        ("step", 1 + 0j, 1),
        ("step", 2**53 + 1, 2**53 + 1),
        ("source", "loop", "loop"),
        ("step", -1, -1),
    ],
)
def test_narrowing_by_columns_never_hides_what_python_calls_equal(face: Face, key: str, value: Any, asked: Any) -> None:
    at = stored(face, {key: value})
    if face.get_tuple(at).metadata[key] == asked:
        assert [item.config for item in face.list(None, filter={key: asked})] == [at]
    else:
        assert list(face.list(None, filter={key: asked})) == []
        assert isinstance(value, complex)  # not storable: kept as its text


def test_a_filter_may_hold_objects_that_compare_as_they_like(face: Face) -> None:
    class AtLeastTwo:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, int) and other >= 2

        __hash__ = None  # type: ignore[assignment]

    for number in range(4):
        stored(face, {"n": number, "step": number})
    assert [item.metadata["n"] for item in face.list(None, filter={"n": AtLeastTwo(), "step": AtLeastTwo()})] == [3, 2]


def test_a_selective_filter_finds_its_few_among_many(face: Face) -> None:
    for number in range(800):
        stored(face.saver, {"n": number % 400})
    assert [item.metadata["n"] for item in face.list(config(), filter={"n": 7})] == [7, 7]
    assert len(list(face.list(config(), filter={"n": 7}, limit=1))) == 1


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False)
    | st.text(string.printable + "é日🎉", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(string.printable, max_size=4), inner, max_size=3),
    max_leaves=6,
)
metadata_dicts = st.dictionaries(
    st.sampled_from(["a", "b.c", "source", "step", "run_id", "é '\""]), json_values, max_size=4
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(given_metadata=st.lists(metadata_dicts, min_size=1, max_size=6), wanted=metadata_dicts)
def test_on_any_metadata_and_any_filter_both_savers_agree(
    given_metadata: list[dict[str, Any]], wanted: dict[str, Any]
) -> None:
    memory = InMemorySaver()
    with SqliteSaver(":memory:") as saver:
        for number, metadata in enumerate(given_metadata):
            for each in (saver, memory):
                each.put(config(), checkpoint(id=f"{number:03}"), metadata, {})
        assert [item.metadata for item in saver.list(config())] == [item.metadata for item in memory.list(config())]
        for asked in (wanted, *given_metadata):
            assert [item.config for item in saver.list(config(), filter=asked)] == [
                item.config for item in memory.list(config(), filter=asked)
            ]
