"""One damaged row: reaching it says which one it is; everything else still reads."""

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from calls import CALLS
from conftest import Face, checkpoint, config, put
from sqlfile import forge, sql

from langgraph_sqlite_ckpt import CheckpointError, DamagedError, DecodeError, ForeignFileError, OpenError, SqliteSaver

STEPS = 6


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three threads of six steps with values, scalars, odd metadata and writes; "b" is the one that is damaged."""
    path = tmp_path_factory.mktemp("damage") / "template.db"
    with SqliteSaver(path, synchronous="normal") as saver:
        for step in range(STEPS):
            for thread in ("a", "b", "c"):
                made = checkpoint(
                    {
                        "text": [f"{thread} some text {each}" for each in range(60 * step + 60)],
                        "n": step,
                        "own": [thread, step] * 40,
                    },
                    id=f"{thread}{step}",
                )
                parent = config(thread, "", f"{thread}{step - 1}") if step else config(thread)
                at = saver.put(parent, made, {"source": "loop", "step": step, "odd": {1}}, dict(made["channel_versions"]))
                saver.put_writes(at, [("text", [f"write {step}"] * 40), ("own", step)], f"task {step}")
    return path


@pytest.fixture
def damaged(template: Path, path: Path) -> Path:
    shutil.copy(template, path)
    return path


def seq_of(path: Path, checkpoint_id: str) -> int:
    return int(sql(path, "SELECT seq FROM checkpoint WHERE checkpoint_id = ?", checkpoint_id)[0][0])


def blob_of(path: Path, thread: str, channel: str, step: int) -> int:
    found = sql(
        path,
        "SELECT b.id FROM blob b JOIN namespace n ON n.id = b.namespace WHERE n.thread_id = ? AND b.channel = ? ORDER BY b.id",
        thread,
        channel,
    )
    return int(found[step][0])


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 0x40])


def flip_column(path: Path, table: str, row: int, column: str) -> None:
    """One bit, as a failing disk does; the checksum stays."""
    key = "seq" if table == "checkpoint" else "id"
    [(data,)] = sql(path, f"SELECT CAST({column} AS BLOB) FROM {table} WHERE {key} = ?", row)
    as_text = column == "metadata"
    sql(path, f"UPDATE {table} SET {column} = {'CAST(? AS TEXT)' if as_text else '?'} WHERE {key} = ?", flip(data), row)


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a value": (lambda path: flip_column(path, "blob", blob_of(path, "b", "own", 3), "data"), "channel 'own'"),
    "a body": (lambda path: flip_column(path, "checkpoint", seq_of(path, "b3"), "body"), "checkpoint 'b3'"),
    "a rest": (lambda path: flip_column(path, "checkpoint", seq_of(path, "b3"), "rest"), "checkpoint 'b3'"),
    "a write": (
        lambda path: flip_column(
            path, "write", sql(path, "SELECT min(id) FROM write WHERE checkpoint_id = 'b3'")[0][0], "data"
        ),
        "channel 'text'",
    ),
    "the exact metadata": (lambda path: flip_column(path, "checkpoint", seq_of(path, "b3"), "exact"), "checkpoint 'b3'"),
    "the metadata": (lambda path: flip_column(path, "checkpoint", seq_of(path, "b3"), "metadata"), "checkpoint 'b3'"),
    "metadata that is no UTF-8": (
        lambda path: sql(
            path, "UPDATE checkpoint SET metadata = CAST(x'7bff7d' AS TEXT) WHERE seq = ?", seq_of(path, "b3")
        ),
        "checkpoint 'b3'",
    ),
    "a value that is gone": (
        lambda path: sql(path, "DELETE FROM blob WHERE id = ?", blob_of(path, "b", "own", 3)),
        "channel 'own'",
    ),
    "a value whose base is gone": (
        lambda path: sql(
            path, "UPDATE blob SET base = 999999 WHERE base IS NOT NULL AND id = ?", blob_of(path, "b", "text", 3)
        ),
        "channel 'text'",
    ),
}


def step_of(item: Any) -> int:
    return int(item.config["configurable"]["checkpoint_id"][1:])


@pytest.mark.parametrize("name", DAMAGE)
def test_one_damaged_row_is_named_when_it_is_reached_and_nothing_else_fails(
    damaged: Path, open_face: Any, template: Path, name: str
) -> None:
    damage, named = DAMAGE[name]
    damage(damaged)
    face = open_face()
    with SqliteSaver(template, read_only=True) as sound:
        expected = {item.config["configurable"]["checkpoint_id"]: item for item in sound.list(None)}
    # others' threads: all of it
    for thread in ("a", "c"):
        assert face.get_tuple(config(thread)) == expected[f"{thread}{STEPS - 1}"]
        assert [item.config["configurable"]["checkpoint_id"] for item in face.list(config(thread))] == [
            f"{thread}{step}" for step in reversed(range(STEPS))
        ]
        assert len(list(face.list(config(thread), filter={"step": 3}))) == 1
    # its own: what is there is right, the damaged one says so
    failed = []
    for step in range(STEPS):
        try:
            assert face.get_tuple(config("b", "", f"b{step}")) == expected[f"b{step}"]
        except (DamagedError, DecodeError) as error:
            failed.append(step)
            assert "thread 'b'" in str(error)
            assert named in str(error)
    assert 3 in failed
    # a listing gives all that stand before it
    given = []
    with pytest.raises((DamagedError, DecodeError), match="thread 'b'"):
        if face.name == "sync":
            for item in face.list(config("b")):
                given.append(item)
        else:
            asyncio.run(collect(face.saver, given))
    assert [step_of(item) for item in given] == list(range(STEPS - 1, max(failed), -1))
    assert all(item == expected[item.config["configurable"]["checkpoint_id"]] for item in given)
    # and one can go on behind it
    below = [item for item in face.list(config("b"), before=config("b", "", f"b{min(failed)}"))]
    assert [step_of(item) for item in below] == list(range(min(failed) - 1, -1, -1))


async def collect(saver: SqliteSaver, given: list[Any]) -> None:
    async for item in saver.alist(config("b")):
        given.append(item)


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_thread_can_be_continued_copied_over_deleted_and_pruned_or_says_why_not(
    damaged: Path, open_face: Any, name: str
) -> None:
    DAMAGE[name][0](damaged)
    face = open_face()
    with SqliteSaver(damaged, read_only=True) as reader:
        others = list(reader.list(config("a")))
    put(face, {"text": ["new"] * 100, "n": 1}, at=config("b"))
    assert face.get_tuple(config("b")).checkpoint["channel_values"] == {"text": ["new"] * 100, "n": 1}
    for call in (
        lambda: face.copy_thread("b", "copy"),
        lambda: face.delete_for_runs(["b1"]),
        lambda: face.prune(["a", "b"]),
    ):
        try:
            call()
        except (DamagedError, DecodeError) as error:
            assert "thread 'b'" in str(error)
    assert face.get_tuple(config("b")).checkpoint["channel_values"] == {"text": ["new"] * 100, "n": 1}
    assert face.get_tuple(config("a")).checkpoint == others[0].checkpoint
    assert face.get_tuple(config("a")).pending_writes == others[0].pending_writes
    face.delete_thread("b")
    assert face.get_tuple(config("b")) is None


def test_a_graph_cannot_go_on_from_a_damaged_latest_checkpoint_in_silence(damaged: Path, open_face: Any) -> None:
    flip_column(damaged, "checkpoint", seq_of(damaged, f"b{STEPS - 1}"), "body")
    face = open_face()
    with pytest.raises(DamagedError, match=r"damaged row \(thread 'b', checkpoint 'b5'\).*backup"):
        face.get_tuple(config("b"))
    assert [step_of(item) for item in face.list(config("b"), before=config("b", "", "b5"))] == [4, 3, 2, 1, 0]


def test_delta_history_over_a_damaged_ancestor_says_so_and_no_other_does(damaged: Path, open_face: Any) -> None:
    sql(damaged, "DELETE FROM blob WHERE channel = 'own' AND namespace = 2")
    write = sql(damaged, "SELECT max(id) FROM write WHERE checkpoint_id = 'b2'")[0][0]
    forge(damaged, "write", write, checksum=1)
    face = open_face()
    with pytest.raises(DamagedError, match="thread 'b'.*checkpoint 'b2'.*channel 'own'"):
        face.get_delta_channel_history(config=config("b", "", "b5"), channels=["own"])
    assert len(face.get_delta_channel_history(config=config("b", "", "b2"), channels=["own"])["own"]["writes"]) == 2
    assert len(face.get_delta_channel_history(config=config("b", "", "b5"), channels=["text"])["text"]["writes"]) == 1


ODD: list[object] = [
    None,
    0,
    -1,
    2**62,
    1.5,
    "",
    "text",
    "99999999999999999999",
    b"",
    b"\x00\xff",
    b"x" * 1000,
    "\U0001f389",
]
COLUMNS = {
    "checkpoint": (
        "checkpoint_id",
        "parent_id",
        "run_id",
        "step",
        "source",
        "next",
        "created_at",
        "has_child",
        "metadata",
        "exact_type",
        "exact",
        "body_codec",
        "body_size",
        "body",
        "rest_type",
        "rest_codec",
        "rest_size",
        "rest",
        "checksum",
        "namespace",
    ),
    "blob": ("channel", "version", "type", "codec", "base", "position", "size", "checksum", "data", "namespace"),
    "write": (
        "checkpoint_id",
        "task_id",
        "idx",
        "task_path",
        "channel",
        "type",
        "codec",
        "size",
        "checksum",
        "data",
        "namespace",
    ),
    "namespace": ("thread_id", "checkpoint_ns"),
}


@pytest.mark.parametrize("table", COLUMNS)
def test_whatever_stands_in_a_column_of_one_row_only_errors_of_ours_come_out_and_others_read(
    damaged: Path, table: str
) -> None:
    rng = random.Random(13)
    key = "seq" if table == "checkpoint" else "id"
    row = {
        "checkpoint": seq_of(damaged, "b3"),
        "blob": blob_of(damaged, "b", "text", 3),
        "write": sql(damaged, "SELECT min(id) FROM write WHERE checkpoint_id = 'b3'")[0][0],
        "namespace": 2,
    }[table]
    columns = [name for (_, name, *_) in sql(damaged, f"PRAGMA table_info({table})") if name in COLUMNS[table]]
    assert len(columns) >= len(COLUMNS[table]) - 2  # a column that is renamed is to be renamed here, too
    [stored] = sql(damaged, f"SELECT {', '.join(columns)} FROM {table} WHERE {key} = ?", row)
    with SqliteSaver(damaged, read_only=True) as reader:
        others = {thread: list(reader.list(config(thread))) for thread in ("a", "c")}
    tried = errors = 0
    with SqliteSaver(damaged, synchronous="normal") as writer:
        for name, kept in zip(columns, stored, strict=True):
            for odd in rng.sample(ODD, 6):
                if not set_column(damaged, table, row, name, odd, right_checksum=rng.random() < 0.5):
                    continue  # the schema itself refuses it
                tried += 1
                with SqliteSaver(damaged, read_only=True) as fresh:
                    for call in READING:
                        try:
                            call(fresh)
                        except CheckpointError:
                            errors += 1
                    for thread, expected in others.items():
                        assert list(fresh.list(config(thread))) == expected, (name, odd)
                for call in WRITING:
                    before = sql(damaged, "SELECT count(*), total(length(data)) FROM blob")
                    try:
                        writer._shared.database.write(call(writer))
                    except CheckpointError:
                        errors += 1
                    except Undone:
                        pass
                    assert sql(damaged, "SELECT count(*), total(length(data)) FROM blob") == before
                restore(damaged, table, key, row, dict(zip(columns, stored, strict=True)))
    assert tried > len(columns) * 2
    assert errors > 5


class Undone(CheckpointError):
    """Raised at the end of a write, so that it can be tried and leaves no trace."""


def undone(operation: Any) -> Any:
    apply = operation.apply

    def then_undo(db: Any) -> None:
        apply(db)
        raise Undone

    operation.apply = then_undo
    return operation


READING: list[Callable[[SqliteSaver], Any]] = [
    lambda saver: saver.get_tuple(config("b")),
    lambda saver: saver.get_tuple(config("b", "", "b3")),
    lambda saver: list(saver.list(config("b"))),
    lambda saver: list(saver.list(config("b"), filter={"step": 3})),
    lambda saver: list(saver.list(config("b"), filter={"odd": {1}}, before=config("b", "", "b4"))),
    lambda saver: list(saver.list(None)),
    lambda saver: saver.get_delta_channel_history(config=config("b", "", "b5"), channels=["text", "n", "own", "none"]),
]
WRITING: list[Callable[[SqliteSaver], Any]] = [
    lambda saver: undone(saver._prune(["b"], "keep_latest")),
    lambda saver: undone(saver._copy_thread("b", "copy")),
    lambda saver: undone(saver._delete_for_runs(["b0"])),
    lambda saver: undone(saver._delete_thread("b")),
]


def set_column(path: Path, table: str, row: int, name: str, value: object, *, right_checksum: bool) -> bool:
    import sqlite3

    try:
        if right_checksum and table in ("checkpoint", "blob", "write"):
            forge(path, table, row, **{name: value})
        else:
            sql(path, f"UPDATE {table} SET {name} = ? WHERE {'seq' if table == 'checkpoint' else 'id'} = ?", value, row)
    except (sqlite3.IntegrityError, TypeError, AttributeError):
        return False
    return True


def restore(path: Path, table: str, key: str, row: int, columns: dict[str, object]) -> None:
    assignments = ", ".join(f"{name} = ?" for name in columns)
    sql(path, f"UPDATE {table} SET {assignments} WHERE {key} = ?", *columns.values(), row)


def test_a_file_that_is_cut_off_or_overwritten_is_an_error_of_ours(template: Path, tmp_path: Path) -> None:
    whole = template.read_bytes()
    rng = random.Random(14)
    errors = 0
    for number in range(25):
        path = tmp_path / f"{number}.db"
        content = bytearray(whole[: rng.choice([len(whole), len(whole) // 2, 5000, 4096])])
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(100, len(content))
            content[at : at + 200] = os.urandom(min(200, len(content) - at))
        path.write_bytes(content)
        try:
            with SqliteSaver(path) as saver:
                for name, call in CALLS.items():
                    try:
                        call(saver)
                    except CheckpointError:
                        errors += 1
                    for thread in ("a", "b", "c"):
                        try:
                            saver.get_tuple(config(thread))
                            list(saver.list(config(thread)))
                        except CheckpointError:
                            errors += 1
                    assert name
        except CheckpointError:
            errors += 1
    assert errors > 20


def test_a_damaged_file_is_not_called_somebody_elses(template: Path, path: Path) -> None:
    content = bytearray(template.read_bytes())
    content[100:4096] = os.urandom(3996)  # the schema; the header says whose file it is
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(CheckpointError) as caught:
            SqliteSaver(path, read_only=read_only)
        assert not isinstance(caught.value, ForeignFileError), caught.value
        assert str(path) in str(caught.value)
    assert issubclass(ForeignFileError, OpenError)


def test_what_sits_in_memory_hides_no_damage_for_longer_than_the_saver_lives(damaged: Path, open_face: Any) -> None:
    face = open_face()
    at = config("b", "", f"b{STEPS - 1}")
    found = face.get_tuple(at)
    flip_column(damaged, "blob", blob_of(damaged, "b", "own", STEPS - 1), "data")
    try:
        assert face.get_tuple(at) == found
    except DamagedError:
        pass
    with pytest.raises(DamagedError):
        open_face().get_tuple(at)
    face.put(at, {**found.checkpoint, "id": "next"}, {}, {})
    with pytest.raises(DamagedError):
        Face(face.saver, "sync").saver.with_allowlist([("a", "b")]) and open_face().get_tuple(config("b", "", "next"))
