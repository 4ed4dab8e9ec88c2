"""Encryption at rest: what the file shows without the key, what it takes as its own, and how a key is changed."""

import json
import os
import pickle
import random
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from scripts import environment
from sqlfile import sql

from langgraph_sqlite_ckpt import (
    CheckpointError,
    DamagedError,
    EffectInDoubt,
    Flush,
    InvalidRequest,
    KeyNeeded,
    NewerStateError,
    OpenError,
    SqliteSaver,
    export_thread,
    load_thread,
    read_key,
    rename_channel,
    rename_node,
    restore,
)
from langgraph_sqlite_ckpt.keys import Keyring

pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SECRET = "a word that nobody may read"
TABLES = ("checkpoint", "blob", "write", "effect")


def fill(face: Any, thread: str = "t", steps: int = 3) -> Any:
    """Values that lean on each other, scalars, metadata and writes, all of which say it."""
    parent, grown = config(thread), [SECRET] * 40
    for step in range(steps):
        grown = [*grown, f"{SECRET} {step}"]
        values = {"log": grown, "short": SECRET}
        parent = put(face, values, parent=parent, step=step, user=SECRET, odd=UUID(int=step), team=f"team {step}")
        face.put_writes(parent, [("log", [SECRET * 20]), ("short", SECRET)], "task")
    return parent


def everything(saver: Any, thread: str | None = None) -> list[Any]:
    return [
        (item.checkpoint, item.metadata, item.pending_writes) for item in saver.list(config(thread) if thread else None)
    ]


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in path.parent.glob(path.name + "*"))


def change(path: Path, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(statement, parameters).rowcount > 0
        db.commit()


# --- what is hidden ---


def test_what_was_stored_comes_back_and_is_nowhere_in_the_file(open_face: Callable[..., Face], path: Path) -> None:
    plain = open_face(path.with_name("plain.db"))
    face = open_face(key=KEY)
    for each in (face, plain):
        fill(each)

    def told(each: Face) -> list[Any]:
        return [
            (item.checkpoint["channel_values"], item.metadata, item.pending_writes, item.metadata["odd"])
            for item in each.list(None)
        ]

    assert told(face) == told(plain)
    assert face.verify() == []
    assert SECRET.encode() in bytes_of(path.with_name("plain.db"))
    assert SECRET.encode() not in bytes_of(path)
    assert KEY not in bytes_of(path)


def test_people_see_ids_steps_and_sources_and_the_metadata_that_was_named(path: Path) -> None:
    with SqliteSaver(path, key=KEY, clear_metadata=["team"]) as saver:
        fill(saver)

    [*_, newest] = sql(path, "SELECT thread_id, step, source, metadata FROM checkpoints ORDER BY seq")

    assert newest[:3] == ("t", 2, "loop")
    assert json.loads(newest[3]) == {"source": "loop", "step": 2, "parents": {}, "team": "team 2"}


@pytest.mark.parametrize("clear", [(), ("team", "user")])
@pytest.mark.parametrize(
    "wanted", [{"team": "team 1"}, {"user": SECRET, "step": 2}, {"source": "loop"}, {"odd": UUID(int=1)}, {"user": "x"}]
)
def test_filters_mean_the_same_with_a_key(path: Path, wanted: dict[str, Any], clear: tuple[str, ...]) -> None:
    with SqliteSaver(path, key=KEY, clear_metadata=clear) as saver, SqliteSaver(":memory:") as plain:
        fill(saver)
        fill(plain)

        found = [item.metadata for item in saver.list(None, filter=wanted)]
        assert found == [item.metadata for item in plain.list(None, filter=wanted)]


def test_the_metadata_that_is_in_clear_may_change_from_one_opening_to_the_next(path: Path) -> None:
    for clear in ((), ("team",), ("user",)):
        with SqliteSaver(path, key=KEY, clear_metadata=clear) as saver:
            put(saver, team="red", user="ann")
            found = list(saver.list(None, filter={"team": "red", "user": "ann"}))
    assert len(found) == 3


def test_an_effect_and_its_error_are_hidden(path: Path) -> None:
    class State(TypedDict, total=False):
        sent: str

    with SqliteSaver(path, key=KEY) as saver:

        def send(_state: State) -> State:
            return {"sent": saver.once("send", lambda _key: SECRET)}

        def fail(_state: State) -> State:
            saver.once("fail", explode)
            return {}

        def explode(_key: str) -> None:
            raise RuntimeError(SECRET)

        builder = StateGraph(State)
        builder.add_node("send", send)
        builder.add_node("fail", fail)
        builder.add_edge(START, "send")
        builder.add_edge("send", "fail")
        graph = builder.compile(checkpointer=saver)
        with pytest.raises(RuntimeError):
            graph.invoke({"sent": ""}, config())
        with pytest.raises(EffectInDoubt, match=SECRET):
            graph.invoke(None, config())
        saver.copy_thread("t", "copy")
        assert [effect.error for effect in saver.effects() if effect.error] == [f"RuntimeError: {SECRET}"] * 2
        assert saver.verify() == []
        assert saver.rekey().rows == 0
    assert SECRET.encode() not in bytes_of(path)
    with SqliteSaver(path) as blind:
        assert all("encrypted" in effect.error for effect in blind.effects(status="in_doubt") if effect.error)
        with pytest.raises(KeyNeeded):
            blind.copy_thread("t", "another")
    with SqliteSaver(path, keys=[OTHER, KEY]) as saver:
        assert saver.rekey().rows > 0
        [key] = {effect.key for effect in saver.effects(status="in_doubt")}
        saver.resolve(key, happened=True, result=SECRET)
        assert saver.verify() == []
        assert [effect.status for effect in saver.effects()] == ["done"] * 4


# --- without the key, or with another ---


def test_without_the_key_a_file_opens_and_whoever_needs_a_value_is_told(
    open_face: Callable[..., Face], path: Path, tmp_path: Path
) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        at = fill(saver)
    key_id = Keyring((KEY,)).key_id
    face = open_face()

    assert [thread.thread_id for thread in face.threads()] == ["t"]
    assert face.stats().checkpoints == 3
    for call in (
        lambda: face.get_tuple(config()),
        lambda: list(face.list(None)),
        lambda: list(face.list(None, filter={"user": SECRET})),
        lambda: face.get_delta_channel_history(config=at, channels=["log"]),
        lambda: put(face),
        lambda: face.put_writes(at, [("log", 1)], "late"),
        lambda: face.prune(["t"]),
        lambda: face.copy_thread("t", "copy"),
        lambda: export_thread(face.saver, "t", tmp_path / "t.thread"),
    ):
        with pytest.raises(KeyNeeded, match=str(key_id)) as caught:
            call()
        assert caught.value.key_id == key_id
    assert [problem.kind for problem in face.verify()] == ["key"]
    with SqliteSaver(path, key=KEY) as saver:
        assert len(everything(saver)) == 3
    face.delete_thread("t")
    assert face.threads() == []


def test_another_key_reads_and_writes_nothing(open_face: Callable[..., Face], path: Path) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        fill(saver)
    face = open_face(key=OTHER)
    before = sql(path, "SELECT count(*) FROM checkpoint")

    with pytest.raises(KeyNeeded):
        face.get_tuple(config())
    with pytest.raises(KeyNeeded):
        put(face, {"a": [1]}, at=config("new"))
    assert sql(path, "SELECT count(*) FROM checkpoint") == before


def test_a_plain_file_is_read_with_a_key_only_where_that_is_said(path: Path) -> None:
    with SqliteSaver(path) as saver:
        fill(saver)
    with SqliteSaver(path, key=KEY) as saver:
        with pytest.raises(KeyNeeded, match="not encrypted"):
            saver.get_tuple(config())
        with pytest.raises(KeyNeeded, match="not encrypted"):
            put(saver)
        assert [problem.kind for problem in saver.verify()] == ["key"]
    with SqliteSaver(path, keys=[KEY, None]) as saver:
        put(saver, {"log": [SECRET]})
        assert len(everything(saver)) == 4


@pytest.mark.parametrize("rows", [1, 3])
def test_a_plain_row_among_encrypted_ones_is_refused(path: Path, rows: int) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        at = fill(saver)
    with SqliteSaver(path.with_name("plain.db")) as plain:
        fill(plain)
    with closing(sqlite3.connect(path)) as db:
        db.execute("ATTACH ? AS plain", [str(path.with_name("plain.db"))])
        for table, names in (
            ("blob", "type, codec, base, position, size, checksum, key_id, data"),
            ("write", "type, codec, size, checksum, key_id, data"),
        ):
            key = "id"
            db.execute(
                f"UPDATE {table} SET ({names}) = (SELECT {names} FROM plain.{table} p WHERE p.{key} = {table}.{key})"
                f" WHERE {key} <= ?",
                [rows],
            )
        db.commit()
    with SqliteSaver(path, key=KEY) as saver:
        with pytest.raises(KeyNeeded, match="not encrypted"):
            everything(saver)
        assert {problem.kind for problem in saver.verify()} == {"key"}
    assert at


# --- what is bound to its place ---


@pytest.fixture
def filled(path: Path) -> Path:
    with SqliteSaver(path, key=KEY) as saver:
        fill(saver)
        fill(saver, "u")
        put(saver, {"log": [SECRET] * 9}, at=config("t", "sub:1"))
    return path


def columns(path: Path, table: str) -> list[str]:
    return [row[1] for row in sql(path, f"PRAGMA table_info({table})")]


SEALED = {
    "checkpoint": ["metadata", "exact_type", "exact", "body_codec", "body_size", "body", "beside", "rest_type"]
    + ["rest_codec", "rest_size", "rest", "checksum", "key_id", "state_version"],
    "blob": ["channel", "version", "type", "codec", "position", "size", "checksum", "key_id", "state_version", "data"],
    "write": ["task_id", "idx", "task_path", "channel", "type", "codec", "size", "checksum", "key_id", "data"],
}


@pytest.mark.parametrize(("table", "column"), [(table, column) for table, names in SEALED.items() for column in names])
def test_a_row_with_any_column_changed_does_not_open(filled: Path, table: str, column: str) -> None:
    with SqliteSaver(filled, key=KEY) as saver:
        good = everything(saver)
    [(old,)] = sql(filled, f"SELECT {column} FROM {table} ORDER BY rowid LIMIT 1")
    row = f"rowid = (SELECT min(rowid) FROM {table})"
    for new in list(changed(old)):
        change(filled, f"UPDATE {table} SET {column} = ? WHERE {row}", new)
        if (table, column) == ("checkpoint", "state_version") and new > 0:  # nothing is even looked at
            with pytest.raises(NewerStateError):
                SqliteSaver(filled, key=KEY)
            continue
        with SqliteSaver(filled, key=KEY) as saver:
            assert saver.verify() != [], new
            read = [item for thread in ("t", "u") for item in until_an_error(saver, thread)]
            assert all(item in good for item in read)
            assert len(read) < len(good)
        change(filled, f"UPDATE {table} SET {column} = ? WHERE {row}", old)
    with SqliteSaver(filled, key=KEY) as saver:
        assert saver.verify() == []


def until_an_error(saver: SqliteSaver, thread: str) -> Iterator[Any]:
    with suppress(CheckpointError):
        for item in saver.list(config(thread)):
            yield item.checkpoint, item.metadata, item.pending_writes


def changed(old: Any) -> Iterator[Any]:
    if isinstance(old, bytes):
        for at in sorted({0, 11, 12, len(old) // 2, len(old) - 17, len(old) - 1} & set(range(len(old)))):
            yield old[:at] + bytes([old[at] ^ 1]) + old[at + 1 :]
        yield from (b"", old[:-1], old + b"\0")
    elif isinstance(old, int):
        yield from (old + 7, old - 7)
    elif isinstance(old, str):
        yield "9" + old
    else:
        yield from (7, b"x", "x")


@pytest.mark.parametrize(
    ("table", "names", "which"),
    [
        ("blob", "type, codec, base, position, size, checksum, key_id, data", "of another thread"),
        ("blob", "type, codec, position, size, checksum, key_id, data", "of another version"),
        ("write", "type, codec, size, checksum, key_id, data", "of another thread"),
        ("write", "type, codec, size, checksum, key_id, data", "of another version"),
        ("checkpoint", "metadata, exact_type, exact, body_codec, body_size, body, checksum, key_id", "of another thread"),
        ("checkpoint", "metadata, exact_type, exact, body_codec, body_size, body, checksum, key_id", "of another version"),
        ("checkpoint", "rest_type, rest_codec, rest_size, rest", "of another version"),
        ("checkpoint", "metadata, exact_type, exact", "of another version"),
    ],
)
def test_a_row_from_elsewhere_does_not_open(filled: Path, table: str, names: str, which: str) -> None:
    [(t, u)] = sql(filled, "SELECT min(id), max(id) FROM namespace WHERE checkpoint_ns = ''")
    rows = [row for (row,) in sql(filled, f"SELECT rowid FROM {table} WHERE namespace = {t} ORDER BY rowid")]
    others = [row for (row,) in sql(filled, f"SELECT rowid FROM {table} WHERE namespace = {u} ORDER BY rowid")]
    source = others[0] if which == "of another thread" else rows[-1 if table != "write" else 2]
    change(
        filled,
        f"UPDATE {table} SET ({names}) = (SELECT {names} FROM {table} o WHERE o.rowid = ?) WHERE rowid = ?",
        source,
        rows[0],
    )
    with SqliteSaver(filled, key=KEY) as saver:
        with pytest.raises(DamagedError, match="encrypted at this place"):
            everything(saver, "t")
        assert "encrypted at this place" in saver.verify()[0].detail


def test_threads_that_changed_names_do_not_open(filled: Path) -> None:
    change(filled, "UPDATE namespace SET thread_id = 'v' WHERE thread_id = 't' AND checkpoint_ns = ''")
    with SqliteSaver(filled, key=KEY) as saver, pytest.raises(DamagedError, match="thread 'v'"):
        saver.get_tuple(config("v"))


def test_an_older_rest_does_not_go_with_a_newer_body(path: Path) -> None:
    """Of one checkpoint that was put twice: all its parts are of one put."""
    made = checkpoint({"short": "old"})
    with SqliteSaver(path, key=KEY) as saver:
        saver.put(config(), made, {"step": 0}, {})
        [(old,)] = sql(path, "SELECT rest FROM checkpoint")
        saver.put(config(), {**made, "channel_values": {"short": "new"}}, {"step": 0}, {})
    change(path, "UPDATE checkpoint SET rest = ?", old)
    with SqliteSaver(path, key=KEY) as saver, pytest.raises(DamagedError):
        saver.get_tuple(config())


# --- what moves rows ---


def test_copies_and_what_is_pruned_stay_readable(open_face: Callable[..., Face], path: Path) -> None:
    face = open_face(key=KEY)
    fill(face, steps=12)
    values = face.get_tuple(config()).checkpoint["channel_values"]

    face.copy_thread("t", "copy")
    face.prune(["t"])

    assert face.verify() == []
    assert face.get_tuple(config()).checkpoint["channel_values"] == values
    assert [item[0]["channel_values"] for item in everything(face, "copy")][0] == values
    assert SECRET.encode() not in bytes_of(path)


def test_keep_last_and_a_buffer_work_with_a_key(path: Path) -> None:
    with SqliteSaver(path, key=KEY, keep_last=2, flush=Flush(steps=3)) as saver:
        fill(saver, steps=20)
    with SqliteSaver(path, key=KEY) as saver:
        assert saver.get_tuple(config()).checkpoint["channel_values"]["log"][-1] == f"{SECRET} 19"
        assert saver.verify() == []
        assert len(everything(saver)) < 8
    assert SECRET.encode() not in bytes_of(path)


def test_renamed_nodes_and_channels_work_with_a_key(path: Path) -> None:
    class Inner(TypedDict, total=False):
        notes: str

    def ask(_state: Inner) -> Inner:
        return {"notes": interrupt(SECRET)}

    def graph(saver: SqliteSaver, name: str) -> Any:
        inner = StateGraph(Inner)
        inner.add_node("ask", ask)
        inner.add_edge(START, "ask")
        outer = StateGraph(Inner)
        outer.add_node(name, inner.compile())
        outer.add_edge(START, name)
        return outer.compile(checkpointer=saver)

    with SqliteSaver(path, key=KEY) as saver:
        graph(saver, "work").invoke({"notes": ""}, config())
    with SqliteSaver(path, key=KEY, migrations=[rename_node("work", "job"), rename_channel("gone", "away")]) as saver:
        assert graph(saver, "job").invoke(Command(resume="yes"), config()) == {"notes": "yes"}
        assert saver.migrate_all().errors == ()
        assert saver.verify() == []


def test_an_export_is_plain_and_a_load_encrypts(path: Path, tmp_path: Path) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        fill(saver)
        export_thread(saver, "t", tmp_path / "t.thread")
        before = everything(saver)
    with SqliteSaver(tmp_path / "other.db", key=OTHER) as saver:
        load_thread(saver, tmp_path / "t.thread")
        assert everything(saver) == before
        assert saver.verify() == []
    assert SECRET.encode() not in bytes_of(tmp_path / "other.db")


def test_a_backup_is_as_encrypted_as_its_file(path: Path, tmp_path: Path) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        fill(saver)
        before = everything(saver)
        saver.backup(tmp_path / "backup.db")
        saver.delete_thread("t")
    restore(tmp_path / "backup.db", path)
    with SqliteSaver(path, key=KEY) as saver:
        assert everything(saver) == before
    assert SECRET.encode() not in bytes_of(tmp_path / "backup.db")


# --- changing keys ---


@pytest.mark.parametrize(("old", "new"), [(KEY, OTHER), (None, KEY), (KEY, None)], ids=["change", "begin", "end"])
def test_rekey_seals_every_row_with_the_first_key(
    open_face: Callable[..., Face], path: Path, old: bytes | None, new: bytes | None
) -> None:
    with SqliteSaver(path, keys=[old]) as saver:
        fill(saver)
        fill(saver, "u")
        before = everything(saver)
    reports: list[tuple[int, int]] = []
    face = open_face(keys=[new, old])
    assert everything(face) == before

    rekeyed = face.rekey(lambda done, total: reports.append((done, total)))

    assert rekeyed.errors == ()
    assert reports[-1] == (rekeyed.rows, rekeyed.rows)
    assert everything(face) == before
    assert face.verify() == []
    assert face.rekey().rows == 0
    for table in TABLES[:3]:
        assert {key for (key,) in sql(path, f"SELECT DISTINCT key_id FROM {table}")} == {Keyring((new,)).key_id}
    face.close()
    with SqliteSaver(path, keys=[new]) as saver:
        assert everything(saver) == before
    if new is not None:
        assert SECRET.encode() not in bytes_of(path), "of what was there before, too"


def test_both_keys_may_write_to_one_file_until_it_is_rekeyed(path: Path) -> None:
    with SqliteSaver(path, keys=[KEY, OTHER]) as one, SqliteSaver(path, keys=[OTHER, KEY]) as other:
        at = config()
        for step in range(8):
            grown = [SECRET] * (20 + step)
            at = put((one, other)[step % 2], {"log": grown}, parent=at)
        for saver in (one, other):
            assert [len(item[0]["channel_values"]["log"]) for item in everything(saver)] == list(range(27, 19, -1))
            assert saver.verify() == []


def test_a_damaged_row_does_not_keep_the_rest_from_being_rekeyed(filled: Path) -> None:
    change(filled, "UPDATE write SET data = x'00' WHERE id = 2")
    with SqliteSaver(filled, keys=[OTHER, KEY]) as saver:
        rekeyed = saver.rekey()
        [error] = rekeyed.errors
        assert isinstance(error, DamagedError)
        assert saver.rekey() == (0, rekeyed.errors) or saver.rekey().rows == 0
    assert sql(filled, f"SELECT count(*) FROM write WHERE key_id = {Keyring((KEY,)).key_id}") == [(1,)]


def test_rekey_without_the_old_key_stops_and_says_which(filled: Path) -> None:
    with SqliteSaver(filled, keys=[OTHER]) as saver, pytest.raises(KeyNeeded, match=str(Keyring((KEY,)).key_id)):
        saver.rekey()


def test_who_is_stopped_while_rekeying_goes_on_with_the_rest(path: Path) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        fill(saver, steps=40)
        before = everything(saver)

    class Stop(Exception):
        pass

    def stop(_done: int, _total: int) -> None:
        raise Stop

    with SqliteSaver(path, keys=[OTHER, KEY]) as saver:
        with pytest.raises(Stop):
            saver.rekey(stop)
        assert everything(saver) == before
        assert saver.verify() == []
        assert saver.rekey().rows > 0
    with SqliteSaver(path, key=OTHER) as saver:
        assert everything(saver) == before


_KILLED = """
import os, signal, sys
from langgraph_sqlite_ckpt import SqliteSaver, tables, rekeying
path, batch = sys.argv[1], int(sys.argv[2])
rekeying._BYTES_AT_ONCE = 1000
left = [batch]
def tell(done, total):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
SqliteSaver(path, keys=[bytes(range(1, 33)), bytes(range(32))]).rekey(tell)
"""


@pytest.mark.parametrize("batch", [1, 4, 9])
def test_a_kill_in_the_middle_of_rekey_loses_nothing(path: Path, batch: int) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        fill(saver, steps=30)
        before = everything(saver)
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(path), str(batch)], env=environment(), timeout=60)
    assert killed.returncode == -signal.SIGKILL
    with SqliteSaver(path, keys=[OTHER, KEY]) as saver:
        assert everything(saver) == before
        assert saver.verify() == []
        assert saver.rekey().errors == ()
    with SqliteSaver(path, key=OTHER) as saver:
        assert everything(saver) == before


# --- arguments, and what is never shown ---


@pytest.mark.parametrize(
    "options",
    [
        {"key": b"short"},
        {"key": "x" * 32},
        {"key": KEY, "keys": [KEY]},
        {"keys": []},
        {"keys": KEY},
        {"keys": [KEY, b"short"]},
        {"clear_metadata": "user"},
    ],
)
def test_what_is_no_key_is_refused_and_not_shown(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SqliteSaver(path, **options)
    assert not path.exists()
    assert "short" not in str(caught.value) and "xxx" not in str(caught.value)


def test_no_error_and_no_repr_shows_a_key(filled: Path) -> None:
    change(filled, "UPDATE blob SET data = zeroblob(40)")
    with SqliteSaver(filled, keys=[OTHER, KEY]) as saver:
        said = [repr(saver._shared.database.keyring), repr(saver)]
        try:
            saver.get_tuple(config())
        except DamagedError as error:
            said.append("".join(traceback.format_exception(error)))
    assert len(said) == 3
    assert not any(form in text for key in (KEY, OTHER) for form in (key.hex(), repr(key)[2:20]) for text in said)


def test_an_error_about_a_key_crosses_processes() -> None:
    with SqliteSaver(":memory:", key=KEY) as saver:
        put(saver)
        saver._shared.database.keyring._ciphers = {None: None}  # type: ignore[assignment]
        with pytest.raises(KeyNeeded) as caught:
            saver.get_tuple(config())
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.key_id, copy.place) == (str(caught.value), caught.value.key_id, caught.value.place)


def test_a_missing_package_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidRequest, match=r"langgraph-sqlite-ckpt\[encryption\]"):
        SqliteSaver(path, key=KEY)
    SqliteSaver(path).close()


@pytest.mark.parametrize("content", [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\n"])
def test_a_key_is_read_from_a_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    assert read_key(tmp_path / "key") == KEY


@pytest.mark.parametrize("content", [b"", KEY[:-1], KEY.hex().encode()[:-2], b"a passphrase", KEY + b"\n"])
def test_a_file_with_something_else_is_no_key(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InvalidRequest, match="64 hex digits"):
        read_key(tmp_path / "key")
    with pytest.raises(OpenError, match="cannot be read"):
        read_key(tmp_path / "none")


def test_nonces_differ(path: Path) -> None:
    with SqliteSaver(path, key=KEY) as saver:
        fill(saver, steps=20)
    sealed = [data for table in ("blob", "write") for (data,) in sql(path, f"SELECT data FROM {table}")]
    sealed += [part for row in sql(path, "SELECT exact, body, rest FROM checkpoint") for part in row]
    assert len({data[:12] for data in sealed}) == len(sealed) == 20 * (1 + 2 + 3)


# --- the size of it ---


def test_a_chat_takes_hardly_more_room_with_a_key(tmp_path: Path) -> None:
    sizes = {}
    for name, key in (("plain", None), ("key", KEY)):
        words = random.Random(1)
        with SqliteSaver(tmp_path / name, key=key, synchronous="normal") as saver:
            at, grown = config(), list[str]()
            for step in range(60):
                grown = [*grown, words.randbytes(2500).hex()]
                at = put(saver, {"messages": grown}, parent=at, step=step)
            saver.compact()
        sizes[name] = os.path.getsize(tmp_path / name)
    assert sizes["key"] < 1.2 * sizes["plain"]


# --- the command line ---


def test_the_command_line_takes_keys_from_files_only(path: Path, tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing", reason="the extra `cli` is not installed")
    from langgraph_sqlite_ckpt.cli.app import app

    def say(*arguments: object, code: int = 0, **env: str) -> str:
        result = testing.CliRunner().invoke(app, [str(argument) for argument in arguments], env=env)
        assert result.exit_code == code, result.output
        return str(result.output)

    old, new = tmp_path / "old.key", tmp_path / "new.key"
    old.write_text(KEY.hex())
    new.write_bytes(OTHER)
    with SqliteSaver(path) as saver:
        fill(saver)

    assert "not encrypted" in say("--key-file", old, "show", path, "t", code=5)
    assert "encrypted" in say("--key-file", old, "rekey", path, "--plain")
    assert "KEY" not in say("show", path, "t", code=5)
    assert SECRET in say("--key-file", old, "show", path, "t")
    assert SECRET in say("show", path, "t", LANGGRAPH_SQLITE_CKPT_KEY_FILE=str(old))
    say("--key-file", new, "--key-file", old, "rekey", path)
    assert SECRET in say("--key-file", new, "show", path, "t")
    say("--key-file", new, "verify", path)
    say("verify", path, code=1)
    say("rekey", path, code=2)


def test_langgraphs_server_takes_keys_from_files(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from langgraph_sqlite_ckpt.server import checkpointer

    (tmp_path / "key").write_text(KEY.hex())
    monkeypatch.setenv("LANGGRAPH_SQLITE_CKPT", str(path))
    monkeypatch.setenv("LANGGRAPH_SQLITE_CKPT_KEY_FILE", str(tmp_path / "key"))

    async def run() -> None:
        async with checkpointer() as saver:
            fill(saver)

    asyncio.run(run())
    assert SECRET.encode() not in bytes_of(path)
