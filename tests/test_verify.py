"""`verify()`: silent on every good file; names whatever is damaged; never raises, and holds nobody up."""

import os
import random
import re
import shutil
import sqlite3
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from sqlfile import Tap, can_write_at_once, forge, rows, sql, tap
from threads import DAY, NOW, STATUSES, saver, thread
from typing_extensions import TypedDict

from langgraph_sqlite_ckpt import CheckpointError, SqliteSaver
from langgraph_sqlite_ckpt.verification import Problem

__all__ = ["saver", "tap"]  # fixtures
PAGE = 4096


def growing(face: Any, name: str, steps: int = 12) -> Any:
    """Values that lean on each other, scalars, odd metadata and writes."""
    at = config(name)
    for step in range(steps):
        lines = [f"{name} line {line}" for line in range(30 * step + 30)]
        at = put(face, {"list": lines, "n": step, "other": [name, step] * 60}, parent=at, step=step, odd={step})
        face.put_writes(at, [("list", [f"write {step}"] * 60), ("n", step)], f"task {step}")
    return at


# --- good files ---


def of_graphs(face: Any) -> None:
    class State(TypedDict, total=False):
        log: Annotated[
            list[str],
            DeltaChannel(
                lambda state, writes: [*(state or []), *(item for write in writes for item in write)], snapshot_frequency=3
            ),
        ]
        answer: str

    sub = StateGraph(State)
    sub.add_node("in", lambda state: {"log": ["in the subgraph"]})
    sub.add_edge(START, "in")
    builder = StateGraph(State)
    builder.add_node("work", lambda state: {"log": ["worked"]})
    builder.add_node("sub", sub.compile())
    builder.add_node("ask", lambda state: {"answer": interrupt("well?")})
    builder.add_edge(START, "work")
    builder.add_edge("work", "sub")
    builder.add_edge("sub", "ask")
    graph = builder.compile(checkpointer=face.saver)
    for turn in range(4):
        graph.invoke({"log": [f"turn {turn}"]}, config())


def pruned_and_copied(face: Any) -> None:
    for name in ("a", "b"):
        growing(face, name)
    face.copy_thread("a", "copy")
    face.prune(["a"])
    growing(face, "copy", 3)
    face.delete_thread("b")
    face.sweep(keep_last=2)


def put_again(face: Any) -> None:
    """Values that are replaced while later ones lean on them."""
    at, lines = config(), [f"line {line}" for line in range(200)]
    for step in range(5):
        made = checkpoint({"a": [*lines, step]})
        face.put(at, made, {"step": step}, dict(made["channel_versions"]))
        after = checkpoint({"a": [*lines, step, "more"]})
        at = face.put(config("t", "", made["id"]), after, {"step": step}, dict(after["channel_versions"]))
        made["channel_values"]["a"] = ["quite", "another"] * 100
        face.put(config(), made, {"step": step}, dict(made["channel_versions"]))


def odd_names_and_values(face: Any) -> None:
    for name in ("", "ü", "a|b:c", "'; DROP TABLE blob; --", "x" * 5000, 7):
        at = put(
            face,
            {"": [b"\0" * 1000], "ünï": os.urandom(9000), "empty": [], "deep": {"a": [{}] * 90}},
            at=config(name, str(name)),
            note=float("nan"),
            when=NOW,
        )
        face.put_writes(at, [("ch", None), ("__error__", "no")], "tâsk")


def writes_without_checkpoints(face: Any) -> None:
    face.put_writes(config("t", "", "to come"), [("a", [1] * 900)], "task")


def values_that_scalars_replace(face: Any) -> None:
    at = config()
    for value in ([1] * 500, 5, [2] * 500, None, "x" * 900, "short"):
        at = put(face, {"a": value, "b": [value] * 300}, parent=at)


def large_ones(face: Any) -> None:
    at = config()
    for step in range(3):
        at = put(face, {"document": os.urandom(2_000_000), "text": "the same again " * 200_000 + str(step)}, parent=at)


def in_every_state(face: Any) -> None:
    for status in STATUSES:
        thread(face, status, status, at=NOW - DAY, values={"a": [1] * 400})


GOOD: dict[str, Callable[[Any], None]] = {
    "nothing": lambda face: None,
    "growing values": lambda face: growing(face, "t"),
    "graphs": of_graphs,
    "pruned and copied": pruned_and_copied,
    "put again": put_again,
    "odd names and values": odd_names_and_values,
    "writes without checkpoints": writes_without_checkpoints,
    "scalars": values_that_scalars_replace,
    "large values": large_ones,
    "every state": in_every_state,
}


@pytest.mark.parametrize("good", GOOD)
def test_of_a_good_file_there_is_nothing_to_say(face: Face, path: Path, good: str) -> None:
    GOOD[good](face)
    before = rows(path)
    assert list(face.verify()) == []
    assert rows(path) == before


@pytest.mark.parametrize("keep_last", [1, 3])
def test_a_saver_that_keeps_few_leaves_a_good_file(open_face: Any, path: Path, keep_last: int) -> None:
    face = open_face(keep_last=keep_last, synchronous="normal")
    growing(face, "t", 30)
    of_graphs(face)
    assert list(face.verify()) == []
    with SqliteSaver(path, read_only=True) as reader:
        assert list(reader.verify()) == []


def test_a_private_memory_can_be_checked_too(open_face: Any) -> None:
    face = open_face(at=":memory:")
    growing(face, "t")
    assert list(face.verify()) == []


# --- damaged rows ---


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three threads, "b" is the one that is damaged."""
    path = tmp_path_factory.mktemp("verify") / "template.db"
    with SqliteSaver(path, synchronous="normal") as saver:
        for name in ("a", "b", "c"):
            growing(saver, name)
            put(saver, {"list": ["of a subgraph"] * 90}, at=config(name, "node:1"))
    return path


@pytest.fixture
def damaged(template: Path, path: Path) -> Path:
    shutil.copy(template, path)
    return path


B = "(SELECT id FROM namespace WHERE thread_id = 'b' AND checkpoint_ns = '')"


def found(path: Path) -> list[Problem]:
    """By a saver that knows nothing of the file yet."""
    with SqliteSaver(path) as saver:
        return list(saver.verify())


def flip(path: Path, table: str, column: str, number: int, position: float, bit: int) -> tuple[Any, ...]:
    """One bit in one row of thread b, as a failing disk does. Returns the row."""
    key = "seq" if table == "checkpoint" else "id"
    row = sql(
        path, f"SELECT *, CAST({column} AS BLOB) FROM {table} WHERE namespace = {B} AND {column} IS NOT NULL ORDER BY {key}"
    )[number]
    data = bytearray(row[-1])
    data[int(position * (len(data) - 1))] ^= 1 << bit
    as_column = "CAST(? AS TEXT)" if column in ("metadata", "beside") else "?"
    sql(path, f"UPDATE {table} SET {column} = {as_column} WHERE {key} = ?", bytes(data), row[0])
    return tuple(row)


FLIPPED = {
    ("blob", "data"): "value",
    ("checkpoint", "body"): "checkpoint",
    ("checkpoint", "rest"): "checkpoint",
    ("checkpoint", "metadata"): "checkpoint",
    ("checkpoint", "exact"): "checkpoint",
    ("checkpoint", "beside"): "checkpoint",
    ("write", "data"): "write",
}


@pytest.mark.parametrize(("position", "bit"), [(0, 0), (0, 7), (0.5, 3), (0.9, 6), (1, 0), (1, 7)])
@pytest.mark.parametrize(("table", "column"), FLIPPED)
def test_a_single_bit_that_changed_is_found_and_its_place_is_named(
    damaged: Path, table: str, column: str, position: float, bit: int
) -> None:
    row = flip(damaged, table, column, -1, position, bit)

    [problem] = found(damaged)

    assert problem.kind == FLIPPED[table, column]
    assert "thread 'b'" in problem.detail
    assert {"checkpoint": f"checkpoint {row[2]!r}", "blob": f"channel {row[2]!r}", "write": f"checkpoint {row[2]!r}"}[
        table
    ] in problem.detail


@pytest.mark.parametrize("table", ["blob", "checkpoint", "write"])
def test_a_row_that_was_cut_off_or_replaced_is_found(damaged: Path, table: str) -> None:
    column = "body" if table == "checkpoint" else "data"
    for value in (
        "zeroblob(0)",
        f"substr({column}, 1, length({column}) - 1)",
        f"{column} || x'00'",
        "randomblob(50)",
        "'text'",
        "5",
    ):
        shutil.copy(damaged, f"{damaged}.kept")
        sql(
            damaged,
            f"UPDATE {table} SET {column} = {value} WHERE rowid = (SELECT max(rowid) FROM {table} WHERE namespace = {B})",
        )
        assert [problem.kind for problem in found(damaged)] == [{"blob": "value"}.get(table, table)], value
        shutil.copy(f"{damaged}.kept", damaged)


def test_a_value_that_later_ones_were_compressed_against_takes_them_with_it_and_each_is_named(damaged: Path) -> None:
    flip(damaged, "blob", "data", 0, 0.5, 0)
    [[leaning]] = sql(
        damaged,
        f"WITH RECURSIVE l (id) AS (SELECT min(id) FROM blob WHERE namespace = {B} UNION SELECT blob.id FROM l JOIN blob ON base = l.id) SELECT count(*) FROM l",
    )
    problems = found(damaged)
    assert len(problems) == leaning > 5
    assert {(problem.kind, "channel 'list'" in problem.detail) for problem in problems} == {("value", True)}


def test_a_missing_base_is_found_with_all_that_leans_on_it(damaged: Path) -> None:
    [[base]] = sql(damaged, f"SELECT min(base) FROM blob WHERE namespace = {B}")
    leaning = [id for (id,) in sql(damaged, "SELECT id FROM blob WHERE base = ?", base)]
    sql(damaged, "DELETE FROM blob WHERE id = ?", base)

    problems = found(damaged)

    assert {problem.detail for problem in problems if problem.kind == "orphan"} == {
        f"value whose base is gone: row {id}" for id in leaning
    }
    assert {problem.kind for problem in problems} == {"orphan", "value"}
    assert all("channel 'list'" in problem.detail for problem in problems if problem.kind == "value")


def test_values_that_lean_on_each_other_in_a_circle_are_found(damaged: Path) -> None:
    sql(
        damaged,
        f"UPDATE blob SET base = (SELECT max(id) FROM blob WHERE namespace = {B} AND channel = 'list') WHERE id = (SELECT min(id) FROM blob WHERE namespace = {B} AND channel = 'list')",
    )
    assert {problem.kind for problem in found(damaged)} == {"value"}


LOST: dict[str, tuple[str, str, str]] = {
    "the namespace": (f"DELETE FROM namespace WHERE id = {B}", "orphan", "without a namespace"),
    "a checkpoint's namespace": (
        f"UPDATE checkpoint SET namespace = 999 WHERE seq = (SELECT max(seq) FROM checkpoint WHERE namespace = {B})",
        "orphan",
        "checkpoint without a namespace",
    ),
    "a write's namespace": (
        f"UPDATE write SET namespace = 999 WHERE id = (SELECT max(id) FROM write WHERE namespace = {B})",
        "orphan",
        "write without a namespace",
    ),
    "a value's namespace": (
        f"UPDATE blob SET namespace = 999 WHERE id = (SELECT max(id) FROM blob WHERE namespace = {B})",
        "orphan",
        "value without a namespace",
    ),
    "all need of a value": (
        f"UPDATE blob SET version = NULL WHERE id = (SELECT max(id) FROM blob WHERE namespace = {B})",
        "orphan",
        "value that nothing needs",
    ),
    "a value": (
        f"DELETE FROM blob WHERE id = (SELECT max(id) FROM blob WHERE namespace = {B})",
        "value",
        "thread 'b', checkpoint '.*', channel '.*its value is gone",
    ),
    "an index": ("DROP INDEX blob_by_base", "schema", "index blob_by_base is missing"),
    "a view": ("DROP VIEW threads", "schema", "view threads is missing"),
    "a trigger": ("DROP TRIGGER checkpoint_has_child", "schema", "trigger checkpoint_has_child is missing"),
}


@pytest.mark.parametrize("lost", LOST)
def test_what_was_lost_is_named(damaged: Path, lost: str) -> None:
    statement, kind, words = LOST[lost]
    with closing(sqlite3.connect(damaged)) as db, db:
        assert db.execute(statement).rowcount in (1, -1)

    problems = found(damaged)

    assert kind in {problem.kind for problem in problems} <= {kind, "value"}  # a value that went may be missed too
    assert any(re.search(words, problem.detail) for problem in problems)


@pytest.mark.parametrize("metadata", ["[]", "no json", "", "5", '{"a": '])
def test_metadata_that_is_none_is_found_even_where_its_checksum_fits(damaged: Path, metadata: str) -> None:
    [[row]] = sql(damaged, f"SELECT max(seq) FROM checkpoint WHERE namespace = {B}")
    sql(damaged, "UPDATE checkpoint SET beside = NULL, rest = NULL, exact = NULL WHERE seq = ?", row)
    forge(damaged, "checkpoint", row, metadata=metadata)
    [problem] = found(damaged)
    assert problem.kind == "checkpoint"
    assert "metadata" in problem.detail


def test_every_index_view_and_trigger_is_missed(damaged: Path) -> None:
    objects = [
        (kind, name)
        for kind, name in sql(
            damaged, "SELECT type, name FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
        )
        if kind != "table"
    ]
    with closing(sqlite3.connect(damaged)) as db, db:
        for kind, name in objects:
            db.execute(f"DROP {kind} {name}")
    assert {problem.detail for problem in found(damaged)} == {f"{kind} {name} is missing" for kind, name in objects}
    assert len(objects) > 8


def test_all_damage_is_named_at_once_and_what_is_well_is_not(damaged: Path) -> None:
    for number in (2, 5, 8):
        flip(damaged, "checkpoint", "body", number, 0.5, 0)
        flip(damaged, "write", "data", number, 0.5, 0)
    flip(damaged, "blob", "data", -1, 0.5, 0)
    sql(damaged, "DROP VIEW runs")
    problems = found(damaged)
    assert sorted(problem.kind for problem in problems) == [*["checkpoint"] * 3, "schema", "value", *["write"] * 3]
    assert all("'b'" in problem.detail for problem in problems if problem.kind != "schema")


def test_a_damaged_file_is_checked_on_both_faces_and_read_only(damaged: Path, open_face: Any) -> None:
    flip(damaged, "checkpoint", "body", 3, 0.5, 0)
    whole = found(damaged)
    assert list(open_face(damaged).verify()) == list(open_face(damaged, read_only=True).verify()) == whole
    assert all(isinstance(problem, Problem) for problem in whole)


def test_what_the_saver_has_at_hand_hides_no_damage(face: Face, path: Path) -> None:
    growing(face, "b")
    flip(path, "blob", "data", -1, 0.5, 0)
    flip(path, "checkpoint", "metadata", -1, 0.5, 0)
    assert sorted(problem.kind for problem in face.verify()) == ["checkpoint", "value"]


# --- damaged pages ---


def pages(path: Path) -> int:
    return path.stat().st_size // PAGE


def spoil(path: Path, page: int, how: str) -> None:
    with path.open("r+b") as file:
        if how == "cut off":
            file.truncate(page * PAGE)
            return
        file.seek(page * PAGE)
        file.write(
            {
                "zeros": bytes(PAGE),
                "noise": random.Random(page).randbytes(PAGE),
                "the page before": path.read_bytes()[(page - 1) * PAGE : page * PAGE],
            }[how]
        )


@pytest.mark.parametrize("how", ["zeros", "noise", "the page before", "cut off"])
def test_no_page_is_damaged_unnoticed_and_nothing_but_errors_of_ours_comes_out(
    template: Path, path: Path, how: str
) -> None:
    """Where the file cannot even be opened that says so; otherwise `verify` does, and does not raise."""
    refused = named = 0
    for page in range(1, pages(template)):
        shutil.copy(template, path)
        spoil(path, page, how)
        if path.read_bytes() == template.read_bytes():  # two empty pages are alike
            continue
        try:
            saver = SqliteSaver(path, read_only=True)
        except CheckpointError:
            refused += 1
            continue
        with saver:
            assert saver.verify(), page
        named += 1
    assert refused + named > pages(template) - 5
    assert (refused if how == "cut off" else named) > pages(
        template
    ) / 2  # of a file that is too short SQLite reads nothing


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_written_over_a_file_verify_does_not_raise(template: Path, path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        shutil.copy(template, path)
        with path.open("r+b") as file:
            for _ in range(rng.choice([1, 5, 40])):
                file.seek(rng.randrange(PAGE, template.stat().st_size))
                file.write(rng.randbytes(rng.choice([1, 3, 100])))
        try:
            saver = SqliteSaver(path, read_only=True)
        except CheckpointError:
            continue
        with saver:
            assert all(isinstance(problem, Problem) for problem in saver.verify())


# --- beside others ---


def test_checking_a_channel_of_many_values_holds_few_of_them_in_memory(saver: SqliteSaver) -> None:
    at = config()
    for _ in range(300):
        at = put(saver, {"random": [os.urandom(100_000)], "grows": ["x"]}, parent=at)
    tracemalloc.start()
    try:
        assert list(saver.verify()) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 15_000_000


def test_no_single_read_of_a_check_loads_a_whole_namespace(tap: Tap, open_face: Any) -> None:
    face = open_face(synchronous="normal")
    at = config()
    for _ in range(60):
        at = put(face, {"random": [os.urandom(200_000)]}, parent=at)
    tap.forget()
    assert list(face.verify()) == []
    assert tap.count("SELECT b.id, b.namespace") >= 3


def test_writers_go_on_while_a_file_is_checked(tap: Tap, open_face: Any, path: Path) -> None:
    face = open_face(synchronous="normal")
    growing(face, "t", 3)
    tap.forget()
    could: list[bool] = []

    def look(db: Any, statement: str) -> None:
        if statement.startswith("SELECT") or "integrity" in statement:
            could.append(can_write_at_once(path))

    tap.after = look
    assert list(face.verify()) == []
    tap.after = lambda db, statement: None
    assert len(could) > 5
    assert all(could)


def test_no_single_read_lasts_for_more_than_a_namespace(tap: Tap, open_face: Any) -> None:
    face = open_face(synchronous="normal")
    for number in range(10):
        growing(face, f"t {number}", 1)
    tap.forget()
    face.verify()
    assert tap.count("BEGIN") >= 10
    assert tap.count("BEGIN") == tap.count("ROLLBACK")


def test_threads_that_are_deleted_or_made_meanwhile_are_no_problem(tap: Tap, open_face: Any) -> None:
    """Between the look at what there is to check and the checking, and in the middle of it."""
    face, other = open_face(synchronous="normal"), open_face(synchronous="normal").saver
    for number in range(12):
        growing(face, f"t {number}", 2)
    tap.forget()
    begun = 0

    def change(db: Any, statement: str) -> None:
        nonlocal begun
        if statement == "BEGIN" and threading.current_thread().name != "changing":
            begun += 1
            thread = threading.Thread(target=other_changes, args=(begun,), name="changing")
            thread.start()
            thread.join()

    def other_changes(number: int) -> None:
        other.delete_thread(f"t {(number * 5) % 12}")
        put(other, {"a": [1] * 400}, at=config(str(uuid4())))

    tap.before = change
    assert list(face.verify()) == []
    tap.before = lambda db, statement: None
    assert begun > 3
    assert not {row.thread_id for row in face.threads()} & {f"t {(number * 5) % 12}" for number in range(1, begun + 1)}


def test_a_file_is_good_at_every_moment_of_a_run_with_upkeep(face: Face, path: Path) -> None:
    """Checked by another process, so to say, again and again while one writes, prunes, copies and deletes."""
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for number in range(12):
                growing(face.saver, f"t {number % 3}", 3)
                face.saver.prune([f"t {(number + 1) % 3}"])
                face.saver.copy_thread(f"t {number % 3}", f"copy {number}")
                face.saver.delete_thread(f"copy {number - 2}")
        except BaseException as error:
            failed.append(error)

    checks = 0
    with SqliteSaver(path) as reader:
        worker = threading.Thread(target=work)
        worker.start()
        while worker.is_alive():
            assert list(reader.verify()) == []
            checks += 1
    assert failed == []
    assert checks > 2
    assert sorted(row.thread_id for row in face.threads()) == ["copy 10", "copy 11", "t 0", "t 1", "t 2"]
