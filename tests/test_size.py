"""Size follows the distinct content, reads a constant number of statements, and nothing the number of ancestors or channels."""

import json
import random
import sqlite3
import string
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from conftest import checkpoint, config, put
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from sqlfile import Tap, sql, tap

from langgraph_sqlite_ckpt import SafeSerializer, SqliteSaver
from langgraph_sqlite_ckpt.encoding import share_versions

__all__ = ["tap"]  # a fixture


def words(rng: random.Random, size: int) -> str:
    """Text that compresses as text does."""
    vocabulary = [("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9)))) for _ in range(300)]
    text = ""
    while len(text) < size:
        text += rng.choice(vocabulary) + " "
    return text[:size]


def versions_of(values: dict[str, Any], step: int) -> dict[str, str]:
    return {name: f"{step:032}.{step:016}" for name in values}


def size_of(path: Path) -> int:
    """Of the whole file, the -wal copied back."""
    sql(path, "PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


def steps(face: Any, states: list[dict[str, Any]], thread: str = "t") -> int:
    """One checkpoint for each state; the sum of the states' bytes as the serializer writes them."""
    total, at = 0, config(thread)
    for step, values in enumerate(states):
        made = checkpoint(values, versions_of(values, step))
        at = face.put(at, made, {"source": "loop", "step": step}, dict(made["channel_versions"]))
        total += len(SafeSerializer().dumps_typed(values)[1])
    return total


# --- what a thread takes ---


def growing(count: int, size: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    items = [{"role": "tool", "content": words(rng, size), "id": f"{number}"} for number in range(count)]
    return [{"messages": items[: number + 1]} for number in range(count)]


def test_a_list_that_grows_takes_a_small_part_of_the_sum_of_its_states(open_face: Any, path: Path) -> None:
    face = open_face(synchronous="normal")
    states = growing(100, 2000)
    total = steps(face, states)
    assert total > 10_000_000
    assert size_of(path) * 12 < total
    for step, item in enumerate(reversed(list(face.list(None)))):
        assert item.checkpoint["channel_values"] == states[step]


def trimmed(count: int) -> list[dict[str, Any]]:
    """A window of the last thirty messages."""
    return [{"messages": each["messages"][-30:]} for each in growing(count, 1500, seed=2)]


def nested(count: int) -> list[dict[str, Any]]:
    """One of twenty lists, deep inside, grows."""
    rng = random.Random(3)
    state: dict[str, list[str]] = {f"file {number}": [words(rng, 1500)] for number in range(20)}
    made = []
    for step in range(count):
        state = {**state, f"file {step % 20}": [*state[f"file {step % 20}"], words(rng, 300)]}
        made.append({"workspace": {"open": True, "files": state}})
    return made


def edited(count: int) -> list[dict[str, Any]]:
    """A document in which a word changes here and there."""
    rng = random.Random(4)
    document = words(rng, 40_000).split(" ")
    made = []
    for _ in range(count):
        document = list(document)
        for _ in range(3):
            document[rng.randrange(len(document))] = words(rng, 8)
        made.append({"document": " ".join(document)})
    return made


@pytest.mark.parametrize(("make", "times"), [(trimmed, 8), (nested, 8), (edited, 4)])
def test_values_that_are_trimmed_nested_or_edited_take_a_small_part_too(
    path: Path, make: Callable[[int], Any], times: int
) -> None:
    with SqliteSaver(path, synchronous="normal") as saver:
        states = make(80)
        total = steps(saver, states)
        assert size_of(path) * times < total
        assert [item.checkpoint["channel_values"] for item in saver.list(None)] == states[::-1]


def test_twice_the_steps_take_about_twice_the_bytes(tmp_path: Path) -> None:
    sizes = []
    for count in (60, 120):
        path = tmp_path / f"{count}.db"
        with SqliteSaver(path, synchronous="normal") as saver:
            steps(saver, growing(count, 2000))
            sizes.append(size_of(path))
    assert sizes[1] < sizes[0] * 2.4


def test_another_process_goes_on_as_economically_as_the_first(path: Path) -> None:
    states = growing(60, 2000)
    at = config()
    for step, values in enumerate(states):
        if step % 10 == 0:
            saver = SqliteSaver(path, synchronous="normal")  # nothing in memory
        made = checkpoint(values, versions_of(values, step))
        at = saver.put(at, made, {}, dict(made["channel_versions"]))
        if step % 10 == 9:
            saver.close()
    assert size_of(path) * 8 < sum(len(SafeSerializer().dumps_typed(values)[1]) for values in states)


@pytest.mark.parametrize("old", ["by its id", "in a listing", "by another saver"])
def test_reading_old_checkpoints_between_the_steps_makes_no_larger_file(old: str, open_face: Any, tmp_path: Path) -> None:
    """What comes next leans on the newest value, not on the one that was read last."""

    def size(name: str, read: Callable[[Any, Any], Any]) -> int:
        face = open_face(tmp_path / name, synchronous="normal")
        at, first = config(), None
        for step, values in enumerate(growing(80, 2000)):
            made = checkpoint(values, versions_of(values, step))
            at = face.put(at, made, {}, dict(made["channel_versions"]))
            first = first or at
            read(face, first)
        return size_of(tmp_path / name)

    def look(face: Any, first: Any) -> None:
        if old == "by its id":
            assert face.get_tuple(first) is not None
        elif old == "in a listing":
            assert list(face.list(config()))
        else:
            assert open_face(tmp_path / "read", read_only=True).get_tuple(first) is not None

    assert size("read", look) <= size("unread", lambda face, first: None) * 1.05 + 4096


def test_telling_a_value_that_is_gone_from_one_that_never_was_costs_a_byte() -> None:
    """None for a scalar, which is in no blob."""
    versions = {f"channel {number}": f"{number + 1:032}.0123456789012345" for number in range(10)}

    def length(stored: Any) -> int:
        return len(json.dumps(share_versions({"channel_versions": versions, "versions_seen": {}}, stored)))

    unmarked = length(())
    assert length(["no such channel"]) == unmarked
    assert unmarked < length(versions) <= unmarked + len(versions) + 1  # ~9 has a digit more


def test_a_document_that_never_changes_is_stored_once(open_face: Any, path: Path) -> None:
    face = open_face(synchronous="normal")
    document = random.Random(5).randbytes(300_000)
    at = config()
    for step in range(20):
        values = {"document": document, "count": [step] * 100}
        versions = {"document": "1", "count": str(step)}
        made = checkpoint(values, versions)
        at = face.put(at, made, {}, versions if step == 0 else {"count": str(step)})
    assert size_of(path) < 500_000
    assert sql(path, "SELECT count(*) FROM blob WHERE channel = 'document'") == [(1,)]
    assert all(item.checkpoint["channel_values"]["document"] == document for item in face.list(None))


def test_a_document_whose_version_changes_but_whose_bytes_do_not_costs_next_to_nothing(path: Path) -> None:
    document = random.Random(6).randbytes(300_000)
    with SqliteSaver(path, synchronous="normal") as saver:
        steps(saver, [{"document": document}] * 20)
        assert size_of(path) < 700_000
        assert all(item.checkpoint["channel_values"]["document"] == document for item in saver.list(None))


def test_a_graph_with_a_document_and_a_counter_stores_the_document_once(saver: SqliteSaver, path: Path) -> None:
    class State(TypedDict, total=False):
        document: bytes
        count: int

    document = random.Random(7).randbytes(300_000)
    builder = StateGraph(State)
    builder.add_node("count", lambda state: {"count": state["count"] + 1})
    builder.add_edge(START, "count")
    builder.add_conditional_edges(
        "count", lambda state: "count" if state["count"] < 15 else "__end__", ["count", "__end__"]
    )
    result = builder.compile(checkpointer=saver).invoke({"document": document, "count": 0}, config())
    assert result == {"document": document, "count": 15}
    assert size_of(path) < 1_300_000  # as the input, and as the channel


def test_an_empty_step_costs_less_than_a_page_and_a_half(path: Path) -> None:
    with SqliteSaver(path, synchronous="normal") as saver:
        steps(saver, [{"n": number} for number in range(50)])
        before = size_of(path)
        steps(saver, [{"n": number} for number in range(200)], thread="another")
        assert (size_of(path) - before) / 200 < 1.5 * 4096


def test_random_changes_to_random_channels_come_back_as_inmemorysaver_has_them(open_face: Any) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    rng = random.Random(8)
    face, memory = open_face(synchronous="normal"), InMemorySaver()
    values: dict[str, Any] = {}
    versions: dict[str, str] = {}
    at = config()
    for step in range(70):
        new = {}
        for channel in rng.sample("abcdefgh", rng.randint(0, 4)):
            versions[channel] = new[channel] = f"{step:032}.0"
            kind = rng.random()
            if kind < 0.15:
                values.pop(channel, None)  # it has a version and no value
            else:
                values[channel] = step if kind < 0.3 else None if kind < 0.35 else [words(rng, 100)] * rng.randint(0, 20)
        made = checkpoint(dict(values), dict(versions), id=f"{step:04}")
        for saver in (face, memory):
            stored = saver.put(at, made, {"step": step}, dict(new))
        at = stored
        if rng.random() < 0.2:
            at = config("t", "", f"{rng.randint(0, step):04}")  # a fork
            found = face.get_tuple(at).checkpoint
            values, versions = dict(found["channel_values"]), dict(found["channel_versions"])
    assert [item.checkpoint for item in face.list(None)] == [item.checkpoint for item in memory.list(config())]


# --- statements ---


def statements(tap: Tap, call: Callable[[], Any]) -> int:
    tap.forget()
    call()
    return len(tap.statements)


def test_a_page_of_a_listing_takes_a_constant_number_of_statements(tap: Tap, path: Path) -> None:
    with SqliteSaver(path, synchronous="normal") as saver:
        at = config()
        for number in range(300):
            at = put(saver, {f"channel {each}": [f"{number} {each}"] * 100 for each in range(5)}, parent=at)
            saver.put_writes(at, [("a", number), ("b", [number])], "task")
        taken = {
            limit: statements(tap, lambda limit=limit: list(saver.list(config(), limit=limit)))
            for limit in (1, 8, 100, 300)
        }
        filtered = statements(tap, lambda: list(saver.list(config(), filter={"source": "loop"}, limit=100)))
        beginning = statements(tap, lambda: list(saver.list(config(), before=at, limit=8)))
    assert taken[8] <= taken[1] + 6
    assert taken[100] < 60
    assert taken[300] < 100  # not one per checkpoint
    assert filtered < 90
    assert beginning < 30


def test_reading_one_checkpoint_takes_a_handful_of_statements_whatever_its_history(tap: Tap, path: Path) -> None:
    with SqliteSaver(path, synchronous="normal") as saver:
        steps(saver, growing(80, 500))
        put(saver, {f"channel {each}": ["x" * 300] for each in range(100)}, at=config("wide"))
    with SqliteSaver(path) as saver:
        assert statements(tap, lambda: saver.get_tuple(config())) < 12
        assert statements(tap, lambda: saver.get_tuple(config("wide"))) < 12
        assert statements(tap, lambda: saver.get_tuple(config("nobody"))) < 8


def test_a_step_takes_a_handful_of_statements_however_many_went_before(tap: Tap, path: Path) -> None:
    with SqliteSaver(path, synchronous="normal") as saver:
        counts = []
        at, items = config(), []
        for number in range(60):
            items.append(f"message {number} " * 20)
            tap.forget()
            at = put(saver, {"messages": list(items)}, parent=at)
            saver.put_writes(at, [("messages", ["x"])], "task")
            counts.append(len(tap.statements))
    assert max(counts[5:]) <= min(counts[5:]) + 6
    assert max(counts) < 30


def test_listing_threads_touches_no_value(path: Path, tap: Tap) -> None:
    with SqliteSaver(path, synchronous="normal") as saver:
        for number in range(5):
            put(saver, {"a": ["x" * 5000]}, at=config(number))
        tap.forget()
        assert len(saver.threads()) == len(saver.runs()) == 5
    touching = [each for each in tap.statements if " blob" in each]
    assert touching == []
    assert tap.statements


# --- limits of SQLite ---


def limit_variables(db: sqlite3.Connection, statement: str) -> None:
    db.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 100)


def joined(state: list[str] | None, writes: list[list[str]]) -> list[str]:
    return [*(state or []), *(item for write in writes for item in write)]


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.10 cannot set SQLite's limits")
def test_delta_history_with_three_thousand_ancestors_and_twenty_channels_meets_no_limit_of_sqlite(
    open_face: Any, tap: Tap
) -> None:
    tap.after = limit_variables
    face = open_face(synchronous="normal")
    channels = [f"channel {number}" for number in range(20)]
    at = put(face.saver, {"channel 0": ["seed"] * 100})
    for number in range(3000):
        saver = face.saver
        made = {
            "v": 4,
            "id": f"{number:05}",
            "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {},
            "channel_versions": {},
            "versions_seen": {},
            "updated_channels": None,
        }
        saver.put_writes(at, [(channels[number % 20], number)], f"task {number}")
        at = saver.put(at, made, {}, {})
    found = face.get_delta_channel_history(config=at, channels=channels)
    assert found["channel 0"]["seed"] == ["seed"] * 100
    assert [[value for _, _, value in found[channel]["writes"]] for channel in channels] == [
        list(range(number, 3000, 20)) for number in range(20)
    ]


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "setlimit"), reason="Python 3.10 cannot set SQLite's limits")
def test_wide_checkpoints_long_lists_of_ids_and_many_writes_meet_no_limit_of_sqlite(open_face: Any, tap: Tap) -> None:
    tap.after = limit_variables
    face = open_face(synchronous="normal")
    values = {f"channel {number}": [number] * 200 for number in range(300)}
    at = put(face, values, run_id="run 7")
    assert face.get_tuple(at).checkpoint["channel_values"] == values
    face.put_writes(at, [(f"channel {number}", number) for number in range(500)], "task")
    [item] = face.list(config())
    assert len(item.pending_writes) == 500
    assert len(face.get_delta_channel_history(config=at, channels=list(values))) == 300
    face.copy_thread("t", "copy")
    face.prune([f"thread {number}" for number in range(500)] + ["t"])
    face.delete_for_runs([f"run {number}" for number in range(500)])
    assert list(face.list(None)) == []


def test_a_delta_channel_in_a_graph_of_hundreds_of_steps_keeps_its_state(saver: SqliteSaver) -> None:
    class State(TypedDict, total=False):
        log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=1000)]

    builder = StateGraph(State)
    builder.add_node("step", lambda state: {"log": [f"{len(state['log'])}"]})
    builder.add_edge(START, "step")
    builder.add_conditional_edges(
        "step", lambda state: "step" if len(state["log"]) < 300 else "__end__", ["step", "__end__"]
    )
    app = builder.compile(checkpointer=saver)
    app.invoke({"log": ["in"]}, {**config(), "recursion_limit": 1000})
    assert app.get_state(config()).values["log"] == ["in", *map(str, range(1, 300))]


# --- memory ---


def test_what_a_saver_keeps_at_hand_is_bounded(path: Path) -> None:
    import gc

    with SqliteSaver(path, synchronous="normal") as saver:
        for number in range(120):
            put(saver, {"big": random.Random(number).randbytes(1_000_000)}, at=config(number))
        gc.collect()
        held = sum(len(each) for each in gc_bytes())
    assert held < 100_000_000


def gc_bytes() -> list[bytes]:
    """The large values that tuples, lists and dicts hold now."""
    import gc

    found: dict[int, bytes] = {}
    for holder in gc.get_objects():
        if isinstance(holder, (tuple, list, dict)):
            for each in holder.values() if isinstance(holder, dict) else holder:
                if type(each) is bytes and len(each) > 500_000:
                    found[id(each)] = each
    return list(found.values())
