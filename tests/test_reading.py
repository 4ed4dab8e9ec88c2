"""Reading costs what is asked for, not what is there: lists, filters, and the history of DeltaChannels."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from sqlfile import sql
from threads import multiply, saver
from watch import Watch, watch

from langgraph_sqlite_ckpt import DamagedError, InvalidRequest, SafeSerializer, SqliteSaver

__all__ = ["saver", "watch"]  # fixtures


def ids(items: Any) -> list[str]:
    return [item.config["configurable"]["checkpoint_id"] for item in items]


# --- a page, whatever the length ---

SCOPES: dict[str, Any] = {
    "a namespace": config(),
    "a thread": {"configurable": {"thread_id": "t"}},
    "everything": None,
    "root namespaces": {"configurable": {"checkpoint_ns": ""}},
}
scopes = pytest.mark.parametrize("scope", SCOPES)


def long_thread(saver: SqliteSaver, path: Path, count: int) -> None:
    put(saver, {"list": ["x" * 30] * 50, "n": 1})
    for number in range(3):
        put(saver, {"list": ["x" * 30] * 50}, at=config("t", f"node:{number}"))
    multiply(path, count)


def cost(watch: Watch, read: Callable[[], Any]) -> int:
    read()  # statements are prepared
    watch.forget()
    read()
    return watch.steps


@scopes
def test_the_newest_of_ten_thousand_costs_as_much_as_the_newest_of_ten(
    watch: Watch, open_face: Any, tmp_path: Path, scope: str
) -> None:
    def newest(length: int) -> tuple[int, int]:
        face = open_face(tmp_path / f"{length}.db", synchronous="normal")
        long_thread(face.saver, tmp_path / f"{length}.db", length)
        found: list[Any] = []
        steps = cost(watch, lambda: found.extend(face.list(SCOPES[scope], limit=1)))
        assert ids(found) == [f"copy {length:08}"] * 2
        return steps, len(watch.statements)

    of_ten, of_ten_thousand = newest(10), newest(10_000)

    assert of_ten_thousand[0] <= of_ten[0] + 50
    assert of_ten_thousand[1] == of_ten[1]


@scopes
def test_a_page_from_the_middle_costs_as_much_as_the_first(
    watch: Watch, saver: SqliteSaver, path: Path, scope: str
) -> None:
    long_thread(saver, path, 5000)
    middle = config("t", "", "copy 00002500")

    first = cost(watch, lambda: list(saver.list(SCOPES[scope], limit=5)))
    found: list[Any] = []
    later = cost(watch, lambda: found.extend(saver.list(SCOPES[scope], before=middle, limit=5)))

    assert ids(found[:5]) == [f"copy {number:08}" for number in range(2499, 2494, -1)]
    assert later < first + 300  # the bound is looked up


def test_the_whole_history_is_read_in_few_pages_and_each_row_once(watch: Watch, saver: SqliteSaver, path: Path) -> None:
    long_thread(saver, path, 2000)
    watch.forget()
    found = ids(saver.list(config()))
    assert len(found) == len(set(found)) == 2001
    assert watch.count("BEGIN") < 30
    assert watch.steps < 2001 * 400


def test_a_page_takes_the_same_statements_whatever_is_in_it(watch: Watch, face: Face) -> None:
    for number in range(8):
        put(face, {"a": [number] * 200}, at=config("thin"))
        at = put(face, {f"channel {each}": [number, each] * 200 for each in range(30)}, at=config("thick"))
        for task in range(10):
            face.put_writes(at, [("a", [task] * 100), ("b", task)], f"task {task}")

    def statements(thread: str, limit: int) -> int:
        watch.forget()
        assert len(list(face.list(config(thread), limit=limit))) == limit
        return len(watch.statements)

    statements("thin", 1)  # connections are opened
    assert {statements(thread, limit) for thread in ("thin", "thick") for limit in (1, 4, 8)} == {statements("thin", 1)}
    assert statements("thin", 1) <= 5


def test_no_more_is_read_than_is_taken(watch: Watch, saver: SqliteSaver, path: Path) -> None:
    long_thread(saver, path, 5000)
    whole = cost(watch, lambda: list(saver.list(config())))
    few = cost(watch, lambda: [item for item, _ in zip(saver.list(config()), range(3), strict=False)])
    assert few < whole / 100


@pytest.mark.parametrize("limit", [0, 1, 7, 8, 9, 100])
def test_a_limit_is_kept(face: Face, limit: int) -> None:
    at = config()
    for step in range(20):
        at = put(face, {"a": step}, parent=at, step=step, source="input" if step % 2 else "loop")
    assert [item.metadata["step"] for item in face.list(config(), limit=limit)] == list(range(19, -1, -1))[:limit]
    assert [item.metadata["step"] for item in face.list(None, filter={"source": "input"}, limit=limit)] == list(
        range(19, -1, -2)
    )[:limit]


def test_a_negative_limit_is_refused(face: Face) -> None:
    with pytest.raises(InvalidRequest, match="negative"):
        list(face.list(config(), limit=-1))


# --- filters ---


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,000 checkpoints in ten threads of two namespaces, every hundredth an input; a run has ten."""
    path = tmp_path_factory.mktemp("reading") / "many.db"
    with SqliteSaver(path, synchronous="normal") as saver:
        for number in range(2000):
            at = config(f"t {number % 10}", "" if number % 3 else "sub:1")
            put(
                saver,
                {"n": number},
                at=at,
                step=number // 10,
                source="loop" if number % 100 else "input",
                run_id=f"run {number // 10}",
                note="ü" if number == 777 else "u",
            )
    return path


@pytest.fixture
def of_many(many: Path, path: Path, open_face: Any, watch: Watch) -> Face:
    shutil.copy(many, path)
    face: Face = open_face()
    return face


WITHIN: dict[str, Any] = {
    "everything": None,
    "a thread": {"configurable": {"thread_id": "t 0"}},
    "a namespace": config("t 0"),
}
INDEXED: list[tuple[str, dict[str, Any], str, int]] = [
    ("everything", {"source": "input"}, "checkpoint_by_source_anywhere", 20),
    ("a thread", {"source": "input"}, "checkpoint_by_namespace_source", 20),
    ("a namespace", {"source": "input"}, "checkpoint_by_namespace_source", 13),
    ("everything", {"run_id": "run 50"}, "checkpoint_by_run", 10),
    ("a thread", {"run_id": "run 50"}, "checkpoint_by_run", 1),
    ("a namespace", {"run_id": "run 50"}, "checkpoint_by_run", 1),
    ("a thread", {"step": 50}, "checkpoint_by_step", 1),
    ("a namespace", {"step": 50.0}, "checkpoint_by_step", 1),
    ("a namespace", {"step": 50, "run_id": "run 50"}, "checkpoint_by_", 1),
    ("everything", {"source": "fork"}, "checkpoint_by_source_anywhere", 0),
]


@pytest.mark.parametrize(("within", "wanted", "index", "count"), INDEXED, ids=str)
def test_filters_by_source_run_and_step_use_an_index(
    of_many: Face, watch: Watch, within: str, wanted: Any, index: str, count: int
) -> None:
    """As SQLite's plan of the statement that is really run says, and the steps that it takes."""
    watch.forget()

    found = list(of_many.list(WITHIN[within], filter=wanted))

    assert len(found) == count
    plan = watch.plan("SELECT c.seq, n.thread_id", "c.metadata")
    assert any(line.startswith("SEARCH c USING") and index in line for line in plan), plan
    assert not any(line.startswith("SCAN c") for line in plan), plan
    assert watch.steps < 1500 + 250 * count, "2,000 rows were looked at"


def test_the_newest_ten_of_many_inputs_are_found_without_looking_at_the_others(of_many: Face, watch: Watch) -> None:
    found = list(of_many.list(None, filter={"source": "input"}, limit=10))
    assert [item.checkpoint["channel_values"]["n"] for item in found] == list(range(1900, 900, -100))
    assert watch.steps < 6000


def test_other_filters_look_through_metadata_without_loading_what_does_not_match(of_many: Face, watch: Watch) -> None:
    watch.forget()
    [found] = of_many.list(None, filter={"note": "ü"})
    assert found.checkpoint["channel_values"]["n"] == 777
    assert watch.count("SELECT c.seq, c.namespace") == 1, "bodies were read for more than the one that matched"


# --- the history of DeltaChannels ---


def step_of(
    face: Any, parent: Any, *, writes: Any = (), seeds: dict[str, Any] | None = None, id: str | None = None, at: Any = None
) -> Any:
    """A checkpoint after `parent`, to which these writes were made; `seeds` are stored whole."""
    if writes:
        face.put_writes(parent, writes, f"task of {len(writes)}")
    made = checkpoint(seeds or {}, id=id)
    return face.put(parent or at or config(), made, {"source": "loop", "step": 0}, dict(made["channel_versions"]))


def history(face: Any, at: Any, *channels: str) -> dict[str, tuple[Any, list[Any]]]:
    """By channel: the seed and the values that were written since."""
    found = face.get_delta_channel_history(config=at, channels=channels)
    return {channel: (entry.get("seed"), [value for _, _, value in entry["writes"]]) for channel, entry in found.items()}


def test_only_ancestors_by_parent_link_count(face: Face) -> None:
    root = step_of(face, None)
    one = step_of(face, root, writes=[("log", "to the root")])
    other = step_of(face, one, writes=[("log", "to the trunk")], id="ffffffff")  # the greater id
    branch = step_of(face, one, id="00000000")
    face.put_writes(other, [("log", "to the other branch")], "task")
    leaf = step_of(face, branch, writes=[("log", "to the branch")])

    assert history(face, leaf, "log") == {"log": (None, ["to the root", "to the trunk", "to the branch"])}
    assert history(face, branch, "log") == {"log": (None, ["to the root", "to the trunk"])}
    assert history(face, root, "log") == {"log": (None, [])}
    face.put_writes(leaf, [("log", "not yet applied")], "task")
    assert history(face, config(), "log") == history(face, leaf, "log")


def test_each_channel_ends_at_its_own_nearest_stored_value(face: Face) -> None:
    at = step_of(face, None, seeds={"a": _DeltaSnapshot(["a of old"]), "b": _DeltaSnapshot(["b of old"]), "scalar": 5})
    at = step_of(face, at, writes=[("a", 1), ("b", 1), ("c", 1), ("scalar", 1)])
    at = step_of(face, at, writes=[("a", 2), ("b", 2), ("c", 2), ("scalar", 2)], seeds={"a": _DeltaSnapshot(["a until 2"])})
    at = step_of(face, at, writes=[("a", 3), ("b", 3), ("c", 3), ("scalar", 3)])

    assert history(face, at, "a", "b", "c", "scalar", "never") == {
        "a": (_DeltaSnapshot(["a until 2"]), [3]),
        "b": (_DeltaSnapshot(["b of old"]), [1, 2, 3]),
        "c": (None, [1, 2, 3]),
        "scalar": (5, [1, 2, 3]),
        "never": (None, []),
    }


def test_the_history_is_that_of_memory(face: Face) -> None:
    memory, channels = InMemorySaver(), ("a", "b", "c")
    for target in (face, memory):
        at = config()
        for number in range(60):
            seeds = {
                channel: _DeltaSnapshot([number])
                for channel in channels
                if (number + len(channel)) % 17 == ord(channel) % 7
            }
            writes = [(channel, [number, each]) for each, channel in enumerate(channels) if number % (each + 2) == 0]
            at = step_of(target, at if number else None, writes=writes if number else (), seeds=seeds, id=f"{number:08}")
    for number in (0, 1, 13, 30, 59):
        at = config("t", "", f"{number:08}")
        assert history(face, at, *channels) == history(memory, at, *channels)
    assert history(face, config("nobody"), "a") == {"a": (None, [])}
    assert history(face, config("t", "", "no such"), "a") == {"a": (None, [])}
    assert dict(face.get_delta_channel_history(config=config(), channels=[])) == {}


class Counting(SafeSerializer):
    """Knows what it decoded."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[Any] = []

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        value = super().loads_typed(data)
        self.loaded.append(value)
        return value


def test_only_what_is_returned_is_decoded(open_face: Any) -> None:
    serde = Counting()
    face = open_face(serde=serde, synchronous="normal")
    at = step_of(face, None, seeds={"log": _DeltaSnapshot(["of old"]), "other": ["x"] * 300})
    for number in range(20):
        seeds = {"other": ["y", number] * 300} | ({"log": _DeltaSnapshot([f"until {number}"])} if number == 14 else {})
        at = step_of(face, at, writes=[("log", f"line {number}"), ("other", ["z"] * 100)], seeds=seeds)
    serde.loaded.clear()

    assert history(face, at, "log") == {
        "log": (_DeltaSnapshot(["until 14"]), [f"line {number}" for number in range(15, 20)])
    }

    assert len(serde.loaded) == 6
    assert [value for value in serde.loaded if isinstance(value, str)] == [f"line {number}" for number in range(15, 20)]


CHANNELS = [f"channel {number}" for number in range(50)]
ANCESTORS = 5000


def long_history(path: Path, *, seeds: dict[str, Any]) -> None:
    """5,000 ancestors, each with a write to one of 50 channels, above one that has the seeds."""
    with SqliteSaver(path, synchronous="normal") as saver:
        first = step_of(saver, config("t", "", "oldest"), id="first")
        step_of(saver, None, seeds=seeds, id="oldest")
        saver.put_writes(first, [("channel 0", "the first write")], "task")
    multiply(path, ANCESTORS)
    with closing(sqlite3.connect(path)) as db, db:
        columns = ", ".join(
            name
            for (_, name, *_) in db.execute("PRAGMA table_info(write)")
            if name not in ("id", "checkpoint_id", "channel")
        )
        db.execute(
            f"INSERT INTO write (checkpoint_id, channel, {columns}) SELECT c.checkpoint_id, 'channel ' || (c.seq % 50), w.{columns.replace(', ', ', w.')}"
            " FROM checkpoint c CROSS JOIN write w WHERE w.id = 1 AND c.checkpoint_id LIKE 'copy %'"
        )


def limit_variables(watch: Watch, number: int) -> None:
    if hasattr(sqlite3.Connection, "setlimit"):  # since Python 3.11
        watch.prepare = lambda db: db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, number)


@pytest.mark.parametrize("seeds", [{}, {"channel 0": _DeltaSnapshot(["seed"]), "channel 1": 5}], ids=["no seeds", "seeds"])
def test_five_thousand_ancestors_and_fifty_channels_meet_no_limit_and_take_few_statements(
    watch: Watch, open_face: Any, path: Path, seeds: Any
) -> None:
    long_history(path, seeds=seeds)
    limit_variables(watch, 100)
    face = open_face(synchronous="normal")
    watch.forget()

    found = history(face, config("t", "", f"copy {ANCESTORS:08}"), *CHANNELS)

    assert [len(writes) for _, writes in found.values()] == [
        101 if number == 0 else 100 - (number == 2) for number in range(50)
    ]
    assert {channel: seed for channel, (seed, _) in found.items() if seed is not None} == seeds
    assert watch.count("SELECT", "WITH") < 12
    assert watch.steps < ANCESTORS * 400


def test_reads_and_upkeep_of_a_wide_and_long_thread_meet_no_limit_of_variables_either(
    watch: Watch, open_face: Any, path: Path
) -> None:
    limit_variables(watch, 100)
    face = open_face(synchronous="normal")
    at = config()
    for step in range(3):
        at = put(face, {f"channel {number}": [step, number] * 200 for number in range(120)}, parent=at, step=step)
        face.put_writes(at, [(f"channel {number}", number) for number in range(120)], "task")
    multiply(path, 120)
    assert len(face.get_tuple(at).checkpoint["channel_values"]) == 120
    assert len(list(face.list(config()))) == 123
    face.prune(["t", *(f"nobody {number}" for number in range(120))])
    assert len(list(face.list(config()))) == 1
    face.delete_for_runs([f"nobody {number}" for number in range(120)])
    assert face.sweep(keep_last=1).checkpoints == 0
    assert list(face.verify()) == []


@pytest.fixture(params=["of two", "of itself", "of many"])
def looping(request: pytest.FixtureRequest, face: Face, path: Path) -> Iterator[Face]:
    at = None
    for number in range(8):
        at = step_of(face, at, writes=[("log", number)] if at else (), id=f"c {number}")
    ends = {"of two": ("c 6", "c 7"), "of itself": ("c 7", "c 7"), "of many": ("c 2", "c 6")}[request.param]
    sql(path, "UPDATE checkpoint SET parent_id = ? WHERE checkpoint_id = ?", ends[1], ends[0])
    yield face


@pytest.mark.timeout(30)
def test_parents_that_go_round_in_a_circle_keep_nothing_busy_for_ever(looping: Face) -> None:
    at = config("t", "", "c 7")
    [(seed, writes)] = history(looping, at, "log").values()
    assert seed is None
    assert len(writes) == len(set(writes)) < 8
    assert len(list(looping.list(config()))) == 8
    looping.copy_thread("t", "copy")
    looping.prune(["t"])
    assert looping.get_tuple(config()) is not None
    assert len(list(looping.list(config("copy")))) == 8


def test_reading_a_state_reads_no_value_of_its_ancestors(watch: Watch, saver: SqliteSaver, path: Path) -> None:
    """Unless its own was compressed against theirs, which takes a few, however many there are."""
    at = config()
    for step in range(150):
        at = put(saver, {"list": [f"line {line}" for line in range(step + 40)], "text": str(step) * 300}, parent=at)
    with SqliteSaver(path) as fresh:
        watch.forget()
        found = fresh.get_tuple(config())
    assert found is not None
    assert len(found.checkpoint["channel_values"]["list"]) == 189
    assert watch.steps < 6000


def test_a_serializer_of_ones_own_is_asked_for_as_little(open_face: Any) -> None:
    class Serde(JsonPlusSerializer):
        calls = 0

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            Serde.calls += 1
            return super().loads_typed(data)

    face = open_face(serde=Serde(), synchronous="normal")
    at = config()
    for step in range(10):
        at = put(face, {"a": [step] * 300, "b": step}, parent=at)
        face.put_writes(at, [("a", step)], "task")

    def calls(read: Callable[[], Sequence[Any]]) -> int:
        Serde.calls = 0
        read()
        return Serde.calls

    one = calls(lambda: [face.get_tuple(config())])
    assert one == 3  # the value, the scalar beside it, the write
    assert calls(lambda: list(face.list(config(), limit=1))) == one
    assert calls(lambda: list(face.list(config(), filter={"step": 99}))) == 0
    assert calls(lambda: face.threads()) == calls(lambda: face.runs()) == 0


def test_a_history_whose_stored_value_is_gone_says_so_instead_of_reaching_back_too_far(face: Face, path: Path) -> None:
    at = put(face, {"log": ["of old"] * 100})
    face.put_writes(at, [("log", "old")], "task")
    at = put(face, {"log": ["seed"] * 100}, parent=at)
    face.put_writes(at, [("log", "new")], "task")
    at = put(face, {"n": 1}, parent=at)
    found = face.get_delta_channel_history(config=at, channels=["log"])["log"]
    assert (found["seed"], [value for _, _, value in found["writes"]]) == (["seed"] * 100, ["new"])
    sql(path, "DELETE FROM blob WHERE id = (SELECT max(id) FROM blob)")
    with pytest.raises(DamagedError, match="channel 'log'.*gone"):
        face.get_delta_channel_history(config=at, channels=["log"])
