"""Files of langgraph-checkpoint-sqlite and of LangGraph.js come in whole, and stay as they are."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import config
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver as Reference
from langgraph.types import Interrupt
from moving import THREADS, finish, graph, held, tell

from langgraph_sqlite_ckpt import (
    CopyError,
    ForeignFileError,
    InvalidRequest,
    OpenError,
    SafeSerializer,
    SqliteSaver,
    import_file,
)

JAVASCRIPT = Path(__file__).parent / "data" / "langgraph_js.json"


@contextmanager
def reference(path: Path) -> Iterator[Any]:
    db = sqlite3.connect(path, check_same_thread=False)
    try:
        yield Reference(db, serde=SafeSerializer())
    finally:
        db.close()


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    path = tmp_path / "theirs" / "checkpoints.sqlite"
    path.parent.mkdir()
    with reference(path) as saver:
        tell(saver)
    return path


def without_paths(path: Path) -> None:
    """As old releases made the table."""
    db = sqlite3.connect(path)
    db.executescript("ALTER TABLE writes DROP COLUMN task_path; VACUUM;")
    db.close()


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("paths", [True, False])
def test_every_thread_comes_in_whole_and_goes_on(theirs: Path, saver: SqliteSaver, paths: bool) -> None:
    if not paths:
        without_paths(theirs)
    before = content(theirs.parent)

    imported = import_file(theirs, saver)

    assert content(theirs.parent) == before
    assert (imported.threads, imported.skipped, imported.problems) == (5, 0, [])
    assert saver.verify() == []
    with reference(theirs) as other:
        for thread in THREADS:
            here, there = held(saver, thread), held(other, thread)
            assert [[item[1:3] for item in here[ns]] for ns in here] == [[item[1:3] for item in there[ns]] for ns in here]
            assert here.keys() == there.keys()
        assert finish(saver) == finish(other)


def test_statuses_are_those_that_the_same_graphs_have_here(theirs: Path, saver: SqliteSaver) -> None:
    import_file(theirs, saver)
    with SqliteSaver(":memory:") as here:
        tell(here)

        assert [(thread.thread_id, thread.status, thread.next) for thread in saver.threads()] == [
            (thread.thread_id, thread.status, thread.next) for thread in here.threads()
        ]


def test_a_file_in_use_is_read_with_what_is_not_in_its_main_file_yet(tmp_path: Path, saver: SqliteSaver) -> None:
    path = tmp_path / "theirs.sqlite"
    with reference(path) as other:
        tell(other)
        assert Path(f"{path}-wal").stat().st_size > 0

        assert import_file(path, saver).threads == 5

        graph(other).invoke({"log": ["more"]}, config("new"))
        assert import_file(path, saver).problems == []
    assert {thread.thread_id for thread in saver.threads()} == {*THREADS, "new"}


def test_what_is_there_is_skipped_and_what_is_missing_comes(theirs: Path, saver: SqliteSaver) -> None:
    first = import_file(theirs, saver, thread_ids=["done", "asks"])
    rest = import_file(theirs, saver)
    again = import_file(theirs, saver)

    assert rest.skipped == first.checkpoints
    assert (again.checkpoints, again.skipped) == (0, first.checkpoints + rest.checkpoints)
    assert saver.verify() == []


def test_a_thread_that_went_on_after_its_import_is_left_alone(theirs: Path, saver: SqliteSaver) -> None:
    import_file(theirs, saver)
    finish(saver)
    before = {thread: held(saver, thread) for thread in THREADS}

    import_file(theirs, saver)

    assert {thread: held(saver, thread) for thread in THREADS} == before


def test_an_import_that_was_cut_short_goes_on(theirs: Path, saver: SqliteSaver) -> None:
    class Cut(Exception):
        pass

    def cut(done: int, total: int) -> None:
        if done == total // 2:
            raise Cut

    with pytest.raises(Cut):
        import_file(theirs, saver, progress=cut)
    assert import_file(theirs, saver).problems == []
    assert saver.verify() == []
    with reference(theirs) as other:
        assert finish(saver) == finish(other)


def test_no_class_of_the_users_is_needed(theirs: Path, saver: SqliteSaver) -> None:
    db = sqlite3.connect(theirs)
    db.execute("UPDATE checkpoints SET checkpoint = replace(checkpoint, 'moving', 'nowher')")
    db.execute("UPDATE writes SET value = CAST(replace(value, 'moving', 'nowher') AS BLOB)")
    db.commit()
    db.close()

    assert import_file(theirs, saver).problems == []


def test_the_order_of_commits_counts_and_parents_come_first(theirs: Path, saver: SqliteSaver) -> None:
    db = sqlite3.connect(theirs)
    oldest = db.execute("SELECT * FROM checkpoints WHERE thread_id = 'asks' ORDER BY rowid LIMIT 1").fetchone()
    db.execute("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", oldest)  # put again: it is the newest row
    db.commit()
    db.close()

    import_file(theirs, saver)

    with reference(theirs) as other:
        assert saver.get_tuple(config("asks")).config == other.get_tuple(config("asks")).config


def test_a_row_that_cannot_be_read_names_its_place(theirs: Path, saver: SqliteSaver) -> None:
    db = sqlite3.connect(theirs)
    db.execute("UPDATE checkpoints SET checkpoint = x'c1' WHERE thread_id = 'forked'")
    db.commit()
    db.close()

    with pytest.raises(CopyError, match="thread 'forked', checkpoint"):
        import_file(theirs, saver)


def test_an_encrypted_file_needs_its_serde(theirs: Path, saver: SqliteSaver) -> None:
    db = sqlite3.connect(theirs)
    db.execute("UPDATE checkpoints SET type = 'msgpack+aes'")
    db.commit()
    db.close()

    with pytest.raises(CopyError, match="pass a saver with that serde"):
        import_file(theirs, saver)


def test_what_is_no_such_file_is_refused(tmp_path: Path, path: Path, saver: SqliteSaver) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE x (y)").connection.close()

    with pytest.raises(ForeignFileError, match="no file of langgraph-checkpoint-sqlite"):
        import_file(other, saver)
    with pytest.raises(ForeignFileError):
        import_file(path, saver)
    with pytest.raises(OpenError, match="no such file"):
        import_file(tmp_path / "missing.db", saver)
    assert not (tmp_path / "missing.db").exists()


def test_a_thread_that_is_not_there_is_refused(theirs: Path, saver: SqliteSaver) -> None:
    with pytest.raises(InvalidRequest, match="no thread 'x' in that file"):
        import_file(theirs, saver, thread_ids=["x"])
    with pytest.raises(InvalidRequest, match="list of ids"):
        import_file(theirs, saver, thread_ids="x")


def test_opening_one_by_mistake_names_the_command(theirs: Path) -> None:
    with pytest.raises(ForeignFileError, match=f"langgraph-sqlite-ckpt import {theirs} agent.db"):
        SqliteSaver(theirs)


# --- LangGraph.js ---


def javascript(path: Path) -> sqlite3.Connection:
    """What @langchain/langgraph-checkpoint-sqlite 1.x did, statement by statement, for a graph that asks a person."""
    db = sqlite3.connect(path)
    for kind, statement, *arguments in json.loads(JAVASCRIPT.read_text()):
        if kind == "exec":
            db.executescript(statement)
        else:
            db.execute(statement, [arg["b"].encode() if isinstance(arg, dict) else arg for arg in arguments[0]])
    db.commit()
    return db


def test_a_file_of_langgraph_js_comes_in(tmp_path: Path, saver: SqliteSaver) -> None:
    javascript(tmp_path / "js.sqlite").close()

    assert import_file(tmp_path / "js.sqlite", saver).problems == []

    [thread] = saver.threads()
    assert (thread.thread_id, thread.status, thread.next) == ("js-1", "interrupted", ("pay",))
    found = saver.get_tuple(config("js-1"))
    asked, answered = found.checkpoint["channel_values"]["messages"]
    assert (type(asked), asked.content) == (HumanMessage, "Pay Ann 100")
    assert (type(answered), answered.tool_calls[0]["args"]) == (AIMessage, {"to": "Ann", "amount": 100})
    assert found.checkpoint["channel_values"]["tags"] == {"a", "b"}
    [(_, channel, [question])] = [write for write in found.pending_writes if write[1] == "__interrupt__"]
    assert question == Interrupt({"question": "Pay 100 to Ann?"}, id=question.id)
    versions = found.checkpoint["channel_versions"].values()
    assert all(isinstance(version, str) and saver.get_next_version(version, None) > version for version in versions)


def test_branches_whose_versions_have_the_same_number_stay_apart(tmp_path: Path, saver: SqliteSaver) -> None:
    db = javascript(tmp_path / "js.sqlite")
    rows = db.execute("SELECT checkpoint_id, parent_checkpoint_id, checkpoint FROM checkpoints ORDER BY rowid").fetchall()
    for number, told in enumerate(["another", "third"]):  # two more branches beside the last checkpoint
        branch = json.loads(rows[-1][2])
        branch["channel_values"]["total"] = [told]
        db.execute(
            "INSERT INTO checkpoints VALUES ('js-1', '', ?, ?, 'json', ?, ?)",
            (f"2{number}", rows[-1][1], json.dumps(branch), b"{}"),
        )
        branch["channel_values"]["later"] = 1
        db.execute(
            "INSERT INTO checkpoints VALUES ('js-1', '', ?, ?, 'json', ?, ?)",
            (f"3{number}", f"2{number}", json.dumps(branch), b"{}"),
        )
    db.commit()
    db.close()

    assert import_file(tmp_path / "js.sqlite", saver).problems == []

    totals = {
        item.config["configurable"]["checkpoint_id"]: item.checkpoint["channel_values"].get("total")
        for item in saver.list(config("js-1"))
    }
    assert [totals[key] for key in (rows[-1][0], "20", "30", "21", "31")] == [
        100,
        ["another"],
        ["another"],
        ["third"],
        ["third"],
    ]
    assert import_file(tmp_path / "js.sqlite", saver).checkpoints == 0


def test_stored_json_runs_nothing(tmp_path: Path, saver: SqliteSaver) -> None:
    db = javascript(tmp_path / "js.sqlite")
    evil = {"lc": 2, "type": "constructor", "id": ["os", "system"], "args": [f"touch {tmp_path}/ran"], "kwargs": {}}
    db.execute("UPDATE writes SET value = ? WHERE channel = 'total'", (json.dumps(evil).encode(),))
    db.commit()
    db.close()

    import_file(tmp_path / "js.sqlite", saver)

    with pytest.raises(Exception, match="os.system is not a data class"):
        list(saver.list(config("js-1")))
    assert not (tmp_path / "ran").exists()
