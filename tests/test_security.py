"""Whoever can write to the file, or choose an id, gets no code run, no import, no memory, and nobody else's thread."""

import importlib
import json
import os
import pickle
import random
import string
import struct
import sys
import tracemalloc
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from conftest import Face, checkpoint, config, put
from langgraph.checkpoint.serde import jsonplus
from sqlfile import Tap, forge, rows, sql, tap

from langgraph_sqlite_ckpt import CheckpointError, DamagedError, DecodeError, InvalidRequest, SafeSerializer, SqliteSaver

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["tap"]  # a fixture

HERE = __name__
CALLED: list[Any] = []


def record(*args: Any, **kwargs: Any) -> str:
    """A function that nobody may call on behalf of stored bytes."""
    CALLED.append((args, kwargs))
    return "called"


class NoData:
    """A class that is no data class, with effects at every door."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        CALLED.append(("init", args, kwargs))

    @classmethod
    def fire(cls, *args: Any) -> None:
        CALLED.append(("fire", args))

    @classmethod
    def model_construct(cls, **kwargs: Any) -> None:
        CALLED.append(("construct", kwargs))

    construct = model_construct


@dataclass
class Data:
    a: int

    @classmethod
    def fire(cls, *args: Any) -> None:
        CALLED.append(("fire", args))

    def __reduce__(self) -> Any:
        return record, ()


@pytest.fixture(autouse=True)
def nothing_is_called() -> Iterator[None]:
    CALLED.clear()
    yield
    assert CALLED == []


def packed(value: Any) -> bytes:
    return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)


def extension(code: int, *fields: Any) -> bytes:
    return packed(ormsgpack.Ext(code, packed(fields)))


SINGLE, POSITIONAL, KEYWORDS, METHOD, PYDANTIC_1, PYDANTIC_2, NUMPY, DELTA = range(8)


def test_the_codes_are_those_that_langgraph_writes() -> None:
    assert (jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG, jsonplus.EXT_CONSTRUCTOR_POS_ARGS, jsonplus.EXT_CONSTRUCTOR_KW_ARGS) == (
        SINGLE,
        POSITIONAL,
        KEYWORDS,
    )
    assert (jsonplus.EXT_METHOD_SINGLE_ARG, jsonplus.EXT_PYDANTIC_V1, jsonplus.EXT_PYDANTIC_V2) == (
        METHOD,
        PYDANTIC_1,
        PYDANTIC_2,
    )
    assert (jsonplus.EXT_NUMPY_ARRAY, jsonplus.EXT_DELTA_SNAPSHOT) == (NUMPY, DELTA)


# --- forged rows ---


class Forger:
    """A thread whose stored bytes somebody replaced, in each of the places where bytes of the serializer are; and a victim."""

    def __init__(self, face: Face, path: Path) -> None:
        self.face, self.path = face, path
        self.places = ("blob", "write", "rest", "metadata")
        self.victim = put(face, {"c": ["the victim's"] * 50}, at=config("victim"), odd={1})
        self.expected = face.get_tuple(config("victim"))
        self.renew(put(face, {"c": ["x"] * 50, "beside": 5}, at=config("forged"), odd={1}))
        face.put_writes(self.at, [("c", ["w"] * 50)], "task")

    def renew(self, at: Any) -> None:
        """The checkpoint that is forged from now on; its child's history leans on it."""
        self.at, self.child = at, self.face.put(at, checkpoint(), {}, {})

    def forge(self, place: str, raw: bytes, kind: str = "msgpack") -> None:
        if place in ("blob", "write"):
            [(row,)] = sql(self.path, f"SELECT max(id) FROM {place}")
            forge(self.path, place, row, type=kind, codec=0, size=len(raw), data=raw)
        else:
            [(row,)] = sql(
                self.path, "SELECT seq FROM checkpoint WHERE checkpoint_id = ?", self.at["configurable"]["checkpoint_id"]
            )
            columns = (
                {"rest": raw, "rest_type": kind, "rest_codec": 0, "rest_size": len(raw)}
                if place == "rest"
                else {"exact": raw, "exact_type": kind}
            )
            forge(self.path, "checkpoint", row, **columns)

    def reads(self) -> list[Any]:
        """What every way to the forged values gives: a value or an error. The victim's are always there."""
        outcomes: list[Any] = []
        with SqliteSaver(self.path, read_only=True) as fresh:  # that has nothing in memory
            face = Face(fresh, self.face.name)
            for call in (
                lambda: face.get_tuple(self.at),
                lambda: list(face.list(config("forged", "", self.at["configurable"]["checkpoint_id"]))),
                lambda: list(face.list(config("forged"), filter={"odd": {1}})),
                lambda: face.get_delta_channel_history(config=self.child, channels=["c", "beside"]),
            ):
                try:
                    outcomes.append(call())
                except CheckpointError as error:
                    outcomes.append(error)
            assert face.get_tuple(config("victim")) == self.expected
            assert list(face.list(config("victim"))) == [self.expected]
        return outcomes

    def refused(self, place: str, raw: bytes, kind: str = "msgpack") -> str:
        """What the error says, after checking that the forged bytes became nothing at all."""
        self.forge(place, raw, kind)
        errors = [outcome for outcome in self.reads() if isinstance(outcome, CheckpointError)]
        assert errors, "it was read"
        assert all(isinstance(error, (DecodeError, DamagedError)) for error in errors)
        assert all("thread 'forged'" in str(error) for error in errors)
        return str(errors[0])


@pytest.fixture
def forger(path: Path) -> Iterator[Forger]:
    with SqliteSaver(path, synchronous="normal") as saver:
        yield Forger(Face(saver, "sync"), path)


@pytest.fixture
def async_forger(path: Path) -> Iterator[Forger]:
    """What decodes is the same on both faces; one place is enough here."""
    with SqliteSaver(path, synchronous="normal") as saver:
        yield Forger(Face(saver, "async"), path)


CALLS = {
    f"{what} {code}": extension(code, *fields)
    for what, module, name in (
        ("a function of the system", "os", "system"),
        ("eval", "builtins", "eval"),
        ("a function", HERE, "record"),
        ("a class that is no data class", HERE, "NoData"),
    )
    for code, fields in (
        (SINGLE, (module, name, "exit 3")),
        (POSITIONAL, (module, name, ["exit 3"])),
        (KEYWORDS, (module, name, {"command": "exit 3"})),
        (METHOD, (module, name, "exit 3", "fire")),
        (METHOD, (module, name, "exit 3", "__call__")),
        (PYDANTIC_1, (module, name, {"command": "exit 3"})),
        (PYDANTIC_2, (module, name, {"command": "exit 3"}, "model_construct")),
    )
}
CALLS["a method of a data class"] = extension(METHOD, HERE, "Data", 1, "fire")
CALLS["another method of a safe class"] = extension(METHOD, "datetime", "datetime", 0, "fromtimestamp")
CALLS["a method of a path"] = extension(METHOD, "pathlib", "Path", "x", "mkdir")
CALLS["a dotted name"] = extension(SINGLE, "os", "path.join", "x")
CALLS["a dotted class"] = extension(SINGLE, HERE, "Data.fire", 1)


@pytest.mark.parametrize("name", CALLS)
def test_stored_bytes_never_call_a_function_or_a_method(forger: Forger, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(os, "system", record)
    for place in forger.places:
        forger.refused(place, CALLS[name])


def test_nor_on_the_async_face(async_forger: Forger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "system", record)
    for name, raw in CALLS.items():
        assert async_forger.refused("blob", raw), name


@pytest.mark.parametrize(
    "wrap",
    [
        lambda raw: packed({"deep": [{"down": ormsgpack.Ext(SINGLE, packed((HERE, "record", 1)))}]}),
        lambda raw: packed(ormsgpack.Ext(DELTA, raw)),
        lambda raw: extension(SINGLE, "builtins", "set", [ormsgpack.Ext(SINGLE, packed((HERE, "record", 1)))]),
        lambda raw: extension(KEYWORDS, HERE, "Data", {"a": ormsgpack.Ext(SINGLE, packed((HERE, "record", 1)))}),
    ],
    ids=["in a dict", "in a delta snapshot", "in a set", "in a data class"],
)
def test_nor_from_inside_something_harmless(forger: Forger, wrap: Callable[[bytes], bytes]) -> None:
    raw = wrap(extension(SINGLE, HERE, "record", 1))
    for place in forger.places:
        forger.refused(place, raw)


def test_what_is_refused_names_the_type_and_the_channel(forger: Forger) -> None:
    for place in ("blob", "write"):
        said = forger.refused(place, extension(SINGLE, HERE, "record", 1))
        assert f"{HERE}.record" in said
        assert "channel 'c'" in said


@pytest.mark.parametrize("code", range(6))
def test_stored_bytes_never_import_a_module(
    forger: Forger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    name = f"imported_by_stored_bytes_{code}"
    package = tmp_path / f"{name}_package"
    package.mkdir()
    body = f"import {HERE} as test\ntest.CALLED.append('imported')\nfrom dataclasses import dataclass\n@dataclass\nclass Thing:\n    a: int = 1\n"
    (tmp_path / f"{name}.py").write_text(body)
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(package.name)  # a package that is imported, its module that is not
    before = set(sys.modules)
    argument = {SINGLE: 1, POSITIONAL: [1], KEYWORDS: {"a": 1}}.get(code, {"a": 1})
    for module in (name, f"{package.name}.inner", "antigravity", "idlelib.idle"):
        raw = extension(code, module, "Thing", argument, "x")
        for place in forger.places:
            forger.refused(place, raw)
    assert set(sys.modules) == before


def test_stored_bytes_never_wake_a_lazy_modules_getattr(forger: Forger, monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = types.ModuleType("a_lazy_module")
    lazy.__getattr__ = record  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "a_lazy_module", lazy)
    for code in range(6):
        forger.refused("blob", extension(code, "a_lazy_module", "Thing", {}, "x"))


ENVELOPES = [
    {"lc": 2, "type": "constructor", "id": [HERE, "record"], "args": ["x"]},
    {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": ["exit 3"]},
    {
        "lc": 1,
        "type": "constructor",
        "id": ["langchain_core", "prompts", "prompt", "PromptTemplate"],
        "kwargs": {"template": "{a}", "input_variables": ["a"]},
    },
    {"lc": 1, "type": "secret", "id": ["HOME"]},
]


@pytest.mark.parametrize("envelope", ENVELOPES, ids=str)
def test_json_with_langchains_constructors_is_refused_or_stays_data(forger: Forger, envelope: Any) -> None:
    before = set(sys.modules)
    for place in forger.places:
        forger.refused(place, json.dumps([envelope]).encode(), "json")
    assert set(sys.modules) == before


def test_metadata_that_looks_like_a_constructor_is_data(face: Face) -> None:
    metadata = {"source": "loop", "envelope": ENVELOPES}
    assert face.get_tuple(face.put(config(), checkpoint(), metadata, {})).metadata == metadata
    value = {"value": ENVELOPES}
    assert face.get_tuple(put(face, value)).checkpoint["channel_values"] == value


class Exploit:
    def __reduce__(self) -> Any:
        return record, ("pickled",)


@pytest.mark.parametrize("kind", ["pickle", "Exploit", "yaml", "", "msgpack ", "null+x", "MSGPACK"])
def test_pickles_and_unknown_kinds_are_refused(forger: Forger, kind: str) -> None:
    for place in forger.places:
        forger.refused(place, pickle.dumps(Exploit()), kind)


MALFORMED = {
    "no fields": extension(SINGLE),
    "too few fields": extension(POSITIONAL, "os"),
    "too many fields": extension(KEYWORDS, HERE, "Data", {"a": 1}, 1, 2, 3),
    "fields that are no list": packed(ormsgpack.Ext(SINGLE, packed(5))),
    "a module that is a number": extension(SINGLE, 5, "x", 1),
    "a name that is a list": extension(SINGLE, HERE, ["record"], 1),
    "a module that is a dict": extension(SINGLE, {"a": 1}, "record", 1),
    "empty names": extension(SINGLE, "", "", 1),
    "arguments that are no list": extension(POSITIONAL, HERE, "Data", 5),
    "keywords that are no strings": extension(KEYWORDS, HERE, "Data", {5: 1}),
    "keywords that are no dict": extension(KEYWORDS, HERE, "Data", [1]),
    "an unknown code": packed(ormsgpack.Ext(99, b"x")),
    "a code of the future": packed(ormsgpack.Ext(8, packed(("a", "b", 1)))),
    "nothing inside": packed(ormsgpack.Ext(SINGLE, b"")),
    "rubbish inside": packed(ormsgpack.Ext(SINGLE, b"\xc1\xc1")),
    "rubbish": b"\xc1",
    "nothing": b"",
    "cut off": packed(["x" * 100])[:50],
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a dict of four billion": b"\xdf\xff\xff\xff\xff",
    "a text of four gigabytes": b"\xdb\xff\xff\xff\xff",
    "a nesting of a million": b"\x91" * 1_000_000 + b"\x90",
    "a pattern that is wrong": extension(POSITIONAL, "re", "compile", ["(", 0]),
    "an array of a wrong kind": extension(NUMPY, "O", [1], "C", b"12345678"),
    "an array without end": extension(NUMPY, "f8", [10**12], "C", b"12345678"),
}


def nested_extensions(depth: int) -> bytes:
    raw = packed([])
    for _ in range(depth):
        raw = packed(ormsgpack.Ext(DELTA, raw))
    return raw


MALFORMED["extensions in extensions, 2,000 deep"] = nested_extensions(2000)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_bytes_are_an_error_of_ours_and_cost_no_memory(forger: Forger, name: str) -> None:
    if "without end" in name or "four" in name or "deep" in name:
        tracemalloc.start()  # which is slow
    try:
        for place in forger.places:
            forger.refused(place, MALFORMED[name])
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


def test_malformed_bytes_are_an_error_of_ours_on_the_async_face_too(async_forger: Forger) -> None:
    for name, raw in MALFORMED.items():
        assert async_forger.refused("blob", raw), name


def test_bytes_with_random_changes_become_a_value_or_an_error_of_ours(forger: Forger) -> None:
    rng = random.Random(11)
    serde = SafeSerializer()
    _, original = serde.dumps_typed([Data(1), {1, 2}, {"a": [b"x", "é", 1.5, None]}, Path("/a"), CALLS.keys().__len__()])
    refused = 0
    for _ in range(60):
        raw = bytearray(original)
        for _ in range(rng.randint(1, 3)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        forger.forge("blob", bytes(raw))
        outcomes = forger.reads()
        refused += isinstance(outcomes[0], CheckpointError)
    assert refused > 5


def test_types_that_the_user_allows_are_the_only_ones_beside_data_classes(path: Path) -> None:
    with SqliteSaver(path, allowed_types=[(HERE, "NoData")]) as saver:
        forger = Forger(Face(saver, "sync"), path)
        forger.forge("blob", extension(SINGLE, HERE, "record", 1))
        with pytest.raises(DecodeError):
            list(saver.list(forger.at))
        forger.forge("blob", extension(SINGLE, HERE, "NoData", 1))
        [found] = saver.list(forger.at)
    assert type(found.checkpoint["channel_values"]["c"]) is NoData
    assert CALLED.pop() == ("init", (1,), {})


def test_the_caches_of_a_saver_give_no_way_around_a_refusal(face: Face, path: Path) -> None:
    """The forged bytes stand where the saver believes to know them."""
    at = put(face, {"c": ["x"] * 50})
    assert face.get_tuple(at) is not None
    [(row,)] = sql(path, "SELECT max(id) FROM blob")
    raw = extension(SINGLE, HERE, "record", 1)
    forge(path, "blob", row, type="msgpack", codec=0, size=len(raw), data=raw)
    try:
        found = face.get_tuple(at).checkpoint["channel_values"]["c"]
        assert found == ["x"] * 50
    except DecodeError:
        pass
    with pytest.raises(DecodeError):
        list(face.list(None))


# --- sizes, codecs, bases ---


@pytest.fixture
def chained(forger: Forger) -> Forger:
    """The forged thread has three versions, each leaning on the one before."""
    for number in range(2, 5):
        forger.renew(put(forger.face, {"c": [f"{each} some text" for each in range(100 * number)]}, parent=forger.at))
    assert sql(forger.path, "SELECT count(*) FROM blob WHERE base IS NOT NULL") != [(0,)]
    return forger


def newest_blob(path: Path) -> Any:
    [(row, size, data, base)] = sql(path, "SELECT id, size, data, base FROM blob ORDER BY id DESC LIMIT 1")
    return row, size, data, base


def damaged(forger: Forger, **columns: object) -> None:
    """The newest value with these columns: an error that names the place, and little memory."""
    row = newest_blob(forger.path)[0]
    kept = sql(forger.path, "SELECT codec, base, size, checksum, data FROM blob WHERE id = ?", row)[0]
    forge(forger.path, "blob", row, **columns)
    tracemalloc.start()
    try:
        outcomes = forger.reads()
        assert tracemalloc.get_traced_memory()[1] < 100_000_000, columns
    finally:
        tracemalloc.stop()
    assert isinstance(outcomes[0], DamagedError), (columns, outcomes[0])
    assert "channel 'c'" in str(outcomes[0])
    forge(forger.path, "blob", row, **dict(zip(("codec", "base", "size", "checksum", "data"), kept, strict=True)))


@pytest.mark.parametrize("size", [0, 1, -1, 10**9, 2**62, -(2**63)])
def test_a_size_that_is_not_the_values_own_is_damage_and_is_not_allocated(chained: Forger, size: int) -> None:
    damaged(chained, size=size)
    raw = packed(["x"] * 5000)
    damaged(chained, codec=0, data=raw, size=size)
    damaged(chained, codec=1, data=zstd.compress(raw), size=size, base=None)


@pytest.mark.parametrize("codec", [-1, 4, 99, 2**40])
def test_a_codec_that_nobody_knows_is_damage(chained: Forger, codec: int) -> None:
    damaged(chained, codec=codec)
    damaged(chained, codec=codec, base=None)


def test_a_codec_that_does_not_fit_the_bytes_is_damage(chained: Forger) -> None:
    for codec in range(4):
        if (codec,) not in sql(chained.path, "SELECT codec FROM blob ORDER BY id DESC LIMIT 1"):
            damaged(chained, codec=codec)
            damaged(chained, codec=codec, data=os.urandom(500))
    damaged(chained, codec=3, data=b"")
    damaged(chained, codec=1, data=b"")


def test_a_base_that_is_gone_or_another_or_missing_is_damage(chained: Forger) -> None:
    row, _, _, base = newest_blob(chained.path)
    [(victims,)] = sql(chained.path, "SELECT min(id) FROM blob")
    for other in (None, 10**9, -1, victims):
        damaged(chained, base=other)
    assert base is not None


def test_bases_that_loop_are_damage_and_end(chained: Forger) -> None:
    row, _, _, base = newest_blob(chained.path)
    damaged(chained, base=row)
    [(lowest,)] = sql(chained.path, "SELECT id FROM blob WHERE base IS NULL ORDER BY id DESC LIMIT 1")
    [(codec, size, data)] = sql(chained.path, "SELECT codec, size, data FROM blob WHERE id = ?", lowest)
    forge(chained.path, "blob", lowest, base=row, codec=2)
    damaged(chained, base=lowest)


def test_a_wrong_checksum_is_damage(chained: Forger) -> None:
    for checksum in (0, -1, 1, 2**40):
        damaged(chained, checksum=checksum)


def test_a_decompression_bomb_is_not_unpacked(chained: Forger) -> None:
    zeros = zstd.compress(bytes(300_000_000))
    assert len(zeros) < 20_000
    without_size = zstd.ZstdCompressor(options={zstd.CompressionParameter.content_size_flag: 0})
    nameless = without_size.compress(bytes(300_000_000)) + without_size.flush()
    damaged(chained, codec=1, data=zeros, size=10, base=None)
    damaged(chained, codec=1, data=zstd.compress(b"x" * 10) + zeros, size=10, base=None)
    damaged(chained, codec=1, data=zstd.compress(b"") + zeros, size=0, base=None)
    damaged(chained, codec=1, data=nameless, size=10, base=None)
    for codec in (1, 2):
        base = None if codec == 1 else newest_blob(chained.path)[3]
        damaged(chained, codec=codec, data=zeros, size=10, base=base)


def test_versions_that_double_each_other_are_damage_and_not_a_bomb(chained: Forger) -> None:
    """Each row of thirty bytes twice the one before, and every single size right: thirty such rows would fill any memory."""
    path = chained.path
    [(base, size, namespace)] = sql(
        path, "SELECT id, size, namespace FROM blob WHERE base IS NULL ORDER BY id DESC LIMIT 1"
    )
    for number in range(6):
        data = struct.pack("<5I", 0, 0, size, size, 0) + zstd.compress(b"")
        size *= 2
        sql(
            path,
            "INSERT INTO blob (namespace, channel, version, type, codec, base, position, size, checksum, data) VALUES (?, 'bomb', ?, 'msgpack', 3, ?, 0, ?, 0, ?)",
            namespace,
            f"v{number}",
            base,
            size,
            data,
        )
        [(base,)] = sql(path, "SELECT max(id) FROM blob")
        forge(path, "blob", base, data=data)
    forge(path, "blob", base, channel="c", version="bomb")
    chained.renew(chained.face.put(config("forged"), checkpoint({}, {"c": "bomb"}), {}, {}))
    outcomes = chained.reads()
    assert isinstance(outcomes[0], DamagedError), outcomes[0]


# --- ids, names, filters ---

NASTY: list[Any] = [
    "'; DROP TABLE checkpoint; --", "x' OR '1'='1", '" OR ""="', "%", "_", "*", "[a-z]", "\\", "victim%", "victim'--", "a\0b", "\ud800", "\udcff", "",
    " ", "\n", "victim ", "VICTIM", "victim\0", "é", "e\u0301", "🎉", "x" * 100_000, "../../etc/passwd", "$.a", "{}", "null", "None", "1", "-1", "NaN",
    0, -1, 2**63, 10**400, 1.5, float("nan"), float("inf"), True, None, b"victim", ["victim"], {"victim": 1}, ("a", "b"), object(),
]  # fmt: skip


class Rude:
    def __str__(self) -> str:
        raise RuntimeError("no str")

    __repr__ = __str__


def attempts(face: Face, nasty: Any) -> dict[str, Callable[[], Any]]:
    """Every method with that in every place of it."""
    at = {"configurable": {"thread_id": nasty, "checkpoint_ns": "", "checkpoint_id": "1"}}
    namespace = {"configurable": {"thread_id": "t", "checkpoint_ns": nasty, "checkpoint_id": "1"}}
    id = {"configurable": {"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": nasty}}
    known = config("t", "", "1")
    return {
        **{
            f"get_tuple {name}": lambda where=where: face.get_tuple(where)
            for name, where in (("thread", at), ("namespace", namespace), ("id", id))
        },
        **{
            f"list {name}": lambda where=where: list(face.list(where))
            for name, where in (("thread", at), ("namespace", namespace), ("id", id))
        },
        **{
            f"list before {name}": lambda where=where: list(face.list(config("t"), before=where))
            for name, where in (("thread", at), ("namespace", namespace), ("id", id))
        },
        "list limit": lambda: list(face.list(config("t"), limit=nasty)),
        "list config": lambda: list(face.list(nasty)),
        "filter key": lambda: list(face.list(None, filter={nasty if isinstance(nasty, (str, int, float)) else "k": 1})),
        "filter value": lambda: list(face.list(None, filter={"k": nasty, "source": nasty, "run_id": nasty, "step": nasty})),
        **{
            f"put {name}": lambda where=where: face.put(where, checkpoint({"c": ["x"] * 100}), {}, {})
            for name, where in (("thread", at), ("namespace", namespace), ("parent", id))
        },
        "put id": lambda: face.put(config("t"), {**checkpoint(), "id": nasty}, {}, {}),
        "put ts": lambda: face.put(config("t"), {**checkpoint(), "ts": nasty}, {}, {}),
        "put channel": lambda: face.put(
            config("t"), checkpoint({str(nasty): ["x"] * 100}, {str(nasty): "1"}), {}, {str(nasty): "1"}
        ),
        "put version": lambda: face.put(config("t"), checkpoint({"c": ["x"] * 100}, {"c": nasty}), {}, {"c": nasty}),
        "put metadata": lambda: face.put(
            config("t"), checkpoint(), {"k": nasty, "run_id": nasty, "source": nasty, "step": nasty, "parents": nasty}, {}
        ),
        **{
            f"put_writes {name}": lambda where=where: face.put_writes(where, [("c", ["x"])], "task")
            for name, where in (("thread", at), ("namespace", namespace), ("id", id))
        },
        "put_writes task": lambda: face.put_writes(known, [("c", 1)], nasty),
        "put_writes path": lambda: face.put_writes(known, [("c", 1)], "task", nasty),
        "put_writes channel": lambda: face.put_writes(known, [(nasty, 1)], "task"),
        "delta history": lambda: face.get_delta_channel_history(config=known, channels=[nasty]),
        "delta history config": lambda: face.get_delta_channel_history(config=at, channels=["c"]),
        "delete_thread": lambda: face.delete_thread(nasty),
        "delete_for_runs": lambda: face.delete_for_runs([nasty]),
        "delete_for_runs bare": lambda: face.delete_for_runs(nasty),
        "prune": lambda: face.prune([nasty]),
        "prune away": lambda: face.prune([nasty], strategy="delete"),
        "prune bare": lambda: face.prune(nasty),
        "prune strategy": lambda: face.prune(["t"], strategy=nasty),
        "copy from": lambda: face.copy_thread(nasty, "target"),
        "copy to": lambda: face.copy_thread("t", nasty),
    }


@pytest.mark.parametrize(
    "nasty", [*NASTY, Rude()], ids=lambda nasty: "Rude" if isinstance(nasty, Rude) else repr(nasty)[:25]
)
def test_no_id_name_or_filter_reaches_beyond_its_own_thread_or_raises_what_is_not_ours(
    open_face: Any, path: Path, nasty: Any
) -> None:
    face = open_face(synchronous="normal")
    victim = put(face, {"c": ["the victim's"] * 50, "n": 1}, at=config("victim"), run_id="the victim's run", k="secret")
    face.put_writes(victim, [("c", ["w"])], "task")
    expected = face.get_tuple(victim)
    face.put(config("t"), checkpoint({"c": ["x"]}, id="1"), {}, {})
    for name in (
        attempts(face, nasty)
        if not isinstance(nasty, Rude)
        else ("get_tuple thread", "list thread", "put thread", "put_writes task", "delete_thread", "prune", "copy from")
    ):
        try:
            found = attempts(face, nasty)[name]()
        except (CheckpointError, TypeError, ValueError) as error:
            assert isinstance(error, CheckpointError) or (
                isinstance(error, TypeError) and (name in EXCUSED or not isinstance(nasty, str))
            ), (name, error)
        except RuntimeError:
            assert isinstance(nasty, Rude)
        else:
            if isinstance(found, list) and name.startswith("list") and "config" not in name:
                assert all(item.config["configurable"]["thread_id"] != "victim" for item in found), name
    with SqliteSaver(path, read_only=True) as reader:
        assert [item for item in reader.list(config("victim"))] == [expected]
        assert reader.get_tuple(victim) == expected
        assert isinstance(list(reader.list(None)), list)
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]


EXCUSED = {"prune bare", "delete_for_runs bare", "list limit"}
"""Something else where a list of ids or a number belongs is Python's own TypeError; so is a name that is no text."""


def test_no_text_of_a_callers_ever_enters_sql(tmp_path: Path, tap: Tap) -> None:
    marker = "".join(random.Random(1).choices(string.ascii_lowercase, k=12))
    with SqliteSaver(tmp_path / "agent.db") as saver:
        for name in ("sync", "async"):
            for attempt in attempts(Face(saver, name), marker).values():
                try:
                    attempt()
                except (InvalidRequest, TypeError):
                    pass
            list(
                saver.list(
                    config(marker, marker),
                    filter={marker: marker, "run_id": marker, "source": marker},
                    before=config(marker, marker, marker),
                    limit=3,
                )
            )
    assert len(tap.statements) > 200
    assert not [statement for statement in tap.statements if marker in statement]


def test_the_error_of_a_refused_id_does_not_repeat_megabytes(face: Face) -> None:
    with pytest.raises(InvalidRequest) as caught:
        face.get_tuple(config("x" * 1_000_000 + "\0"))
    assert len(str(caught.value)) < 500


def test_a_read_of_one_thread_touches_no_other_threads_rows(face: Face, path: Path) -> None:
    at = put(face, {"c": ["x"] * 200}, at=config("a"))
    put(face, {"c": ["x"] * 200}, at=config("b"))
    before = rows(path)
    face.delete_thread("b")
    assert face.get_tuple(at) is not None
    assert [row for row in before["checkpoint"] if row in rows(path)["checkpoint"]] == before["checkpoint"][:1]
