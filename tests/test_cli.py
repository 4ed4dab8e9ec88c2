"""The command line: what it says, what it exits with, and that it leaves alone what it only looks at."""

import hashlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from conftest import config, put
from langgraph.graph import START, StateGraph
from moving import THREADS, finish, held, tell
from postgres import server
from scripts import crash, environment

from langgraph_sqlite_ckpt import SqliteSaver
from langgraph_sqlite_ckpt.overview import STATUSES

testing = pytest.importorskip("typer.testing", reason="the extra `cli` is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 warns of forks

from langgraph_sqlite_ckpt.cli.app import age, app, duration, size  # noqa: E402
from langgraph_sqlite_ckpt.cli.changes import MISSING, changes  # noqa: E402

COMMANDS = (
    "threads runs history show diff effects resolve stats verify compact rekey backup restore sweep delete prune copy import"
    " export load"
).split()


class Said:
    def __init__(self, result: Any) -> None:
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr
        assert "Traceback" not in self.err, self.err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def say(*arguments: object, answer: str | None = None, code: int = 0) -> Said:
    result = testing.CliRunner().invoke(app, [str(argument) for argument in arguments], input=answer)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    said = Said(result)
    assert said.code == code, (said.out, said.err)
    return said


@pytest.fixture
def told(path: Path) -> Path:
    with SqliteSaver(path) as saver:
        tell(saver)
    return path


def steps(path: Path, thread: str) -> list[Any]:
    return say("history", path, thread, "--json").json["steps"]


# --- looking ---


def test_threads_and_what_waits_with_the_question(told: Path) -> None:
    out = say("threads", told).out
    assert [line.split("  ")[0] for line in out.splitlines()[1:]] == ["fails", "forked", "done", "asks inside", "asks"]
    assert re.search(r"asks inside +interrupted +inner +2 +", out)

    assert 'two: {"question": "Pay 100 to Ann?"}' in say("threads", told, "--waiting").out
    with SqliteSaver(told) as saver:
        finish(saver)
    waiting = say("threads", told, "--waiting", "--json").json
    assert [(row["thread_id"], row["questions"][0]["value"]) for row in waiting] == [
        ("fails", {"question": "Pay 100 to Ann?"})
    ]
    assert {row["thread_id"] for row in say("threads", told, "--status", "completed", "--json").json} == {*THREADS} - {
        "fails"
    }


def test_filters_of_threads_and_runs(told: Path) -> None:
    assert len(say("threads", told, "--limit", "2", "--json").json) == 2
    assert say("threads", told, "--older-than", "1h").out == "nothing\n"
    assert len(say("threads", told, "--newer-than", "1h", "--json").json) == 5
    assert len(say("runs", told, "done", "--json").json) == 2
    assert {row["status"] for row in say("runs", told, "--status", "completed", "--json").json} == {"completed"}
    assert "Is it right?" in say("runs", told, "--waiting").out


def test_history_shows_forks_subgraphs_questions_and_errors(told: Path) -> None:
    out = say("history", told, "forked").out
    assert out.startswith("forked · 8 checkpoints · 2 runs · interrupted\n")
    assert re.search(
        r"├──   1 plan → one, two .*\n│   ├── \? two .*\n│   └── branch\n│       └──   2 one, two → inner", out
    )
    assert re.search(r"subgraph inner:.*\n *│? *.*-1 input", out)
    assert re.search(r"└──   2 update → one, two .* ← latest\n    └── \? two asks", out)
    assert "✖ one: ValueError('the bank is <closed>')" in say("history", told, "fails").out
    assert "■ end" in say("history", told, "done").out


def test_history_as_json_has_every_checkpoint_and_its_parent(told: Path) -> None:
    with SqliteSaver(told) as saver:
        for thread in THREADS:
            found = {(step["checkpoint_ns"], step["checkpoint_id"]): step["parent_id"] for step in steps(told, thread)}
            assert found == {(ns, item[0]["id"]): item[2] for ns, items in held(saver, thread).items() for item in items}


def test_mermaid_names_every_step_and_edge(told: Path) -> None:
    lines = say("history", told, "forked", "--mermaid").out.splitlines()
    assert lines[0] == "flowchart TD"
    assert sum("-->" in line for line in lines) == 6
    assert sum("-. inner .->" in line for line in lines) == 1
    assert all(
        re.fullmatch(r' {4}(s\d+\["[^"<>{}]*(<br/>[^"<>{}]*)*"\]|s\d+ -.*> s\d+|style .*)', line) for line in lines[1:]
    )


def test_show_reads_as_a_person_would(told: Path) -> None:
    out = say("show", told, "done").out
    assert out.startswith("thread done, step 7: interrupted\n")
    for line in (
        "  next       one, two",
        '  ? two asks: {"question": "Pay 100 to Ann?"}',
        "    [0] human: Pay Ann 100",
        '    [1] ai: I will pay. → pay({"to": "Ann"})',
        '  order: {"type": "moving.Order", "value": {"name": "Ann", "amount": 100}}',
        '  seen: ["plan"]',
    ):
        assert line in out.splitlines()
    assert "branch:to" not in out


def test_show_by_step_by_id_and_inside_a_subgraph(told: Path) -> None:
    all_steps = steps(told, "done")
    third = next(step for step in all_steps if step["step"] == 3)
    assert say("show", told, "done", "3", "--json").json["checkpoint_id"] == third["checkpoint_id"]
    assert say("show", told, "done", third["checkpoint_id"], "--json").json == say("show", told, "done", "3", "--json").json
    assert say("show", told, "done", third["checkpoint_id"][:20], "--json").json["step"] == 3
    assert say("show", told, "done", "--json", "--", "-1").json["source"] == "input"
    inner = next(step for step in all_steps if step["checkpoint_ns"])
    assert "look" in say("show", told, "done", "--ns", inner["checkpoint_ns"], "--json").json["state"]["log"]
    assert "more than one checkpoint" in say("show", told, "done", "1f", code=4).err


def test_a_deltas_snapshot_and_what_was_written_since_are_shown(told: Path) -> None:
    assert say("show", told, "done", "2", "--json").json["state"]["history"] == {
        "snapshot": None,
        "written since": [["planned"], ["one"], ["yes"]],
    }
    assert say("show", told, "done", "--json").json["state"]["history"] == ["planned", "one", "yes", "planned"]


def test_large_values_are_cut_with_their_size(path: Path) -> None:
    with SqliteSaver(path) as saver:
        put(saver, {"text": "word " * 10_000})

    out = say("show", path, "t").out
    assert len(out) < 2000
    assert "… (50,000 characters)" in out
    assert len(say("show", path, "t", "--full").out) > 50_000


def test_diff_between_steps_and_between_threads(told: Path) -> None:
    assert [
        change["path"] for change in say("diff", told, "done", "--json").json["changes"] if "branch" not in change["path"]
    ] == [
        "messages[3]",
        "log[12]",
        "history",
    ]
    assert "+ log[10]: audit x" in say("diff", told, "done", "3", "4").out
    assert "- log[10]: audit x" in say("diff", told, "done", "4", "3").out
    assert say("diff", told, "done", "3", "3").out.endswith("nothing changed\n")
    assert "another road" in say("diff", told, "asks", "--with", "forked").out


def test_stats_and_verify(told: Path) -> None:
    assert re.search(r"threads +5\ncheckpoints +34\n", say("stats", told).out)
    assert say("stats", told, "--json").json["threads"] == 5
    assert say("verify", told).out == "every row is what was written\n"
    assert say("verify", told, "--json").json == []
    db = sqlite3.connect(told)
    db.execute("UPDATE blob SET data = x'00' WHERE id = 3")
    db.commit()
    db.close()
    assert "checksum" in say("verify", told, code=1).out
    assert say("verify", told, "--json", code=1).json[0]["kind"] == "value"


# --- what is only looked at stays as it is ---

LOOKING = (
    ["threads", "FILE", "--waiting"],
    ["runs", "FILE"],
    ["history", "FILE", "done"],
    ["history", "FILE", "done", "--html", "PAGE"],
    ["show", "FILE", "done"],
    ["diff", "FILE", "done"],
    ["stats", "FILE"],
    ["verify", "FILE"],
    ["effects", "FILE"],
    ["backup", "FILE", "COPY"],
    ["export", "FILE", "done", "EXPORT"],
    ["copy", "FILE", "COPY"],
)


def filled(arguments: list[str], path: Path, folder: Path) -> list[object]:
    names = {"FILE": path, "PAGE": folder / "page.html", "EXPORT": folder / "export", "COPY": folder / "copy.db"}
    return [names.get(argument, argument) for argument in arguments]


@pytest.mark.parametrize("arguments", LOOKING, ids=lambda arguments: arguments[0])
def test_looking_changes_nothing_and_works_beside_a_writer(told: Path, tmp_path: Path, arguments: list[str]) -> None:
    before = hashlib.sha256(told.read_bytes()).hexdigest()
    writer = sqlite3.connect(told, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE checkpoint SET source = source")
    say(*filled(arguments, told, tmp_path))
    writer.execute("ROLLBACK")
    writer.close()

    assert hashlib.sha256(told.read_bytes()).hexdigest() == before


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "load"])
def test_no_command_makes_a_file_that_it_should_read(tmp_path: Path, command: str) -> None:
    missing = tmp_path / "missing.db"
    more: dict[str, list[object]] = {name: ["t"] for name in ("history", "show", "diff", "delete", "prune")} | {
        "sweep": ["--idle-for", "1d"],
        "copy": [tmp_path / "new.db"],
        "backup": [tmp_path / "new.db"],
        "restore": [tmp_path / "new.db"],
        "resolve": ["key", "--happened"],
        "import": [tmp_path / "new.db"],
        "export": ["t", tmp_path / "x"],
    }

    assert "no such file" in say(command, missing, *more.get(command, []), code=3).err
    assert list(tmp_path.iterdir()) == []


def test_exit_codes_mean_something(told: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE x (y)").connection.close()
    assert "somebody else's" in say("threads", other, code=3).err
    assert "no thread 'nope'" in say("history", told, "nope", code=4).err
    assert "no thread 'nope'" in say("runs", told, "nope", code=4).err
    assert "no checkpoint '99'" in say("show", told, "done", "99", code=4).err
    assert "no thread 'nope'" in say("delete", told, "done", "nope", "--yes", code=4).err
    assert "status is one of" in say("threads", told, "--status", "odd", code=2).err
    assert "30d" in say("sweep", told, "--idle-for", "3 weeks", code=2).err
    assert "say what to sweep" in say("sweep", told, code=2).err
    say("nonsense", code=2)
    assert len(say("threads", told, "--json").json) == 5


# --- destroying ---


def test_nothing_is_destroyed_before_somebody_said_so(told: Path) -> None:
    for arguments in (
        ["delete", told, "done"],
        ["prune", told, "done"],
        ["sweep", told, "--idle-for", "0s", "--status", "interrupted"],
    ):
        assert "--yes" in say(*arguments, answer="y\n", code=2).err  # the answer does not come from a terminal
        say(*arguments, "--json", code=2)
    assert sum(row["checkpoints"] for row in say("threads", told, "--json").json) == 24


def test_a_person_is_asked(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("langgraph_sqlite_ckpt.cli.app._somebody_is_here", lambda: True)

    said = say("delete", told, "done", answer="n\n", code=1)
    assert "Delete 1 thread with 13 checkpoints?" in said.err + said.out
    say("delete", told, "done", answer="y\n")
    assert say("threads", told, "--json").json[0]["thread_id"] != "done"
    say("history", told, "done", code=4)


def test_delete_prune_sweep_and_compact(told: Path) -> None:
    assert say("delete", told, "done", "asks", "--yes").out == "deleted 2 threads: 16 checkpoints gone, 0 left\n"
    assert say("prune", told, "forked", "--yes", "--json").json["checkpoints_deleted"] > 0
    assert say("sweep", told, "--idle-for", "0s", "--status", "interrupted", "--dry-run").out.startswith(
        "would go: 3 threads"
    )
    assert say("sweep", told, "--idle-for", "30d", "--yes").out == "would go: 0 threads, 0 checkpoints, 0 B\n"
    assert say("sweep", told, "--idle-for", "0s", "--status", "interrupted", "--yes", "--json").json["threads"] == 3
    assert say("threads", told).out == "nothing\n"
    assert "back to the disk" in say("compact", told).out
    assert say("compact", told, "--json").json == {"bytes": 0}


# --- backups ---


def test_a_backup_replaces_the_file_that_it_was_made_of(told: Path, tmp_path: Path) -> None:
    copy = tmp_path / "backups" / "agent.db"
    before = say("threads", told, "--json").json
    assert re.fullmatch(rf"copied \d+\.\d kB to {copy}\n", say("backup", told, copy).out)
    say("delete", told, "done", "--yes")
    assert say("restore", copy, told, "--yes").out == f"restored {told}: 5 threads, 34 checkpoints\n"
    assert [{**row, "status": None} for row in say("threads", told, "--json").json] == [
        {**row, "status": None} for row in before
    ]
    assert say("restore", copy, tmp_path / "elsewhere.db", "--json").json["threads"] == 5


def test_no_file_is_replaced_unasked_and_the_question_names_both(
    told: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "copy.db"
    assert say("backup", told, copy, "--json").json == {"path": str(copy), "bytes": copy.stat().st_size}
    for arguments in (["backup", told, copy], ["restore", copy, told]):
        assert "Say --yes" in say(*arguments, code=2).err
        say(*arguments, "--json", code=2)
    monkeypatch.setattr("langgraph_sqlite_ckpt.cli.app._somebody_is_here", lambda: True)
    say("delete", told, "done", "--yes")
    said = say("restore", copy, told, answer="n\n", code=1)
    assert re.search(rf"Replace {told} \(21 check.* by {copy} \(34 checkpoints, .*\)\?", said.err + said.out)
    assert len(say("threads", told, "--json").json) == 4
    say("backup", told, copy, answer="y\n")
    assert len(say("threads", copy, "--json").json) == 4


def test_a_file_in_use_or_a_damaged_backup_is_not_restored(told: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    say("backup", told, copy)
    with SqliteSaver(told):
        assert "has it open" in say("restore", copy, told, "--yes", code=5).err
    db = sqlite3.connect(copy)
    db.execute("UPDATE blob SET data = x'00' WHERE id = 3")
    db.commit()
    db.close()
    assert "damaged" in say("restore", copy, told, "--yes", code=3).err
    assert say("verify", told).code == 0


# --- effects and crashes ---


@pytest.fixture
def doubtful(path: Path) -> Path:
    """One effect is done, one was begun by a process that was killed in it; its run has crashed."""

    def agent(saver: SqliteSaver) -> Any:
        def pay(state: dict[str, Any]) -> dict[str, Any]:
            order = saver.once("book", lambda key: "order 7")
            receipt = saver.once("pay \x1b[31mAnn", lambda key: os.kill(os.getpid(), signal.SIGKILL))
            return {"paid": [order, receipt]}

        builder = StateGraph(dict).add_node("pay", pay).add_edge(START, "pay")
        return builder.compile(checkpointer=saver)

    crash(path, lambda saver: agent(saver).invoke({"paid": []}, config(), durability="sync"))
    return path


def test_effects_are_listed_with_what_is_known_of_them(doubtful: Path) -> None:
    lines = say("effects", doubtful).out.splitlines()
    assert re.match(
        r"in_doubt +pay \\x1b\[31mAnn +pay +t +now +[0-9a-f-]{36} +its process ended before it could say", lines[1]
    )
    assert re.match(r"done +book +pay +t +now +[0-9a-f-]{36} +-", lines[2])
    [row] = say("effects", doubtful, "t", "--status", "in_doubt", "--json").json
    assert (row["thread_id"], row["node"], row["status"], row["finished_at"]) == ("t", "pay", "in_doubt", None)
    assert say("effects", doubtful, "--status", "running").out == "nothing\n"
    assert "no thread 'nope'" in say("effects", doubtful, "nope", code=4).err
    assert "status is one of" in say("effects", doubtful, "--status", "odd", code=2).err


@pytest.mark.parametrize(("word", "left"), [("--happened", "done"), ("--not-happened", None)])
def test_an_effect_in_doubt_is_resolved_once_somebody_said_so(doubtful: Path, word: str, left: str | None) -> None:
    [row] = say("effects", doubtful, "--status", "in_doubt", "--json").json
    result = ["--result", '{"receipt": [42, "ä"]}'] if left else []
    assert "say what became of it" in say("resolve", doubtful, row["key"], code=2).err
    assert "Say --yes" in say("resolve", doubtful, row["key"], word, code=2).err
    assert "is JSON" in say("resolve", doubtful, row["key"], word, "--result", "receipt", code=2).err
    assert "has no result" in say("resolve", doubtful, row["key"], "--not-happened", "--result", "1", "--yes", code=2).err
    assert "Resume the thread" in say("resolve", doubtful, row["key"], word, *result, "--yes").out
    assert "is in doubt: " in say("resolve", doubtful, row["key"], word, "--yes", code=4).err
    assert next((row["status"] for row in say("effects", doubtful, "--json").json if "Ann" in row["name"]), None) == left
    with SqliteSaver(doubtful) as saver:
        builder = StateGraph(dict).add_edge(START, "pay")
        builder.add_node("pay", lambda state: {"paid": saver.once("pay \x1b[31mAnn", lambda key: "paid again")})
        paid = builder.compile(checkpointer=saver).invoke(None, config())
    assert paid == {"paid": {"receipt": [42, "ä"]} if left else "paid again"}


def test_a_crashed_run_is_found_by_its_status(doubtful: Path) -> None:
    assert re.match(r"t +crashed +pay", say("threads", doubtful, "--status", "crashed").out.splitlines()[1])
    assert [row["status"] for row in say("runs", doubtful, "--status", "crashed", "--json").json] == ["crashed"]
    assert say("history", doubtful, "t").out.startswith("t · 2 checkpoints · 1 run · crashed\n")
    for command in ("threads", "runs"):
        out = re.sub(r"\s+", " ", say(command, "--help").out)
        assert all(status in out for status in STATUSES)


# --- moving ---


def test_copies_go_on_and_are_not_made_twice(told: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    assert "All read back the same" in say("copy", told, other, "--thread", "done").out
    assert say("copy", told, other, "--json").json["skipped"] == 13
    with SqliteSaver(told) as source, SqliteSaver(other) as target:
        assert finish(target) == finish(source)


def test_export_load_and_redact(told: Path, tmp_path: Path) -> None:
    file = tmp_path / "done.thread"
    assert say("export", told, "done", file, "--redact").out == "exported 'done': 13 checkpoints, 46 writes, redacted\n"
    assert "exists already" in say("load", told, file, code=2).err
    assert say("load", tmp_path / "new.db", file, "--name", "safe", "--json").json["thread_id"] == "safe"
    assert "Ann" not in say("show", tmp_path / "new.db", "safe").out
    file.write_bytes(b"x")
    assert "no whole export" in say("load", told, file, "--name", "x", code=5).err
    assert "no such file" in say("load", tmp_path / "newer.db", tmp_path / "nothing", code=3).err
    assert not (tmp_path / "newer.db").exists()


def test_import_of_the_official_savers_file(tmp_path: Path, path: Path) -> None:
    from langgraph.checkpoint.sqlite import SqliteSaver as Reference

    theirs = tmp_path / "theirs.sqlite"
    db = sqlite3.connect(theirs, check_same_thread=False)
    tell(Reference(db))
    db.close()

    assert f"langgraph-sqlite-ckpt import {theirs} agent.db" in say("threads", theirs, code=3).err
    assert "5 threads: 34 checkpoints" in say("import", theirs, path).out
    assert say("import", theirs, path, "--json").json["skipped"] == 34
    assert say("verify", path).code == 0
    assert "no file of langgraph-checkpoint-sqlite" in say("import", path, tmp_path / "x.db", code=3).err


def test_to_postgres_and_back(told: Path, tmp_path: Path) -> None:
    back = tmp_path / "back.db"
    with tempfile.TemporaryDirectory(prefix="pg-") as folder, server(Path(folder) / "data") as address:
        assert "34 checkpoints" in say("copy", told, address).out
        assert say("copy", told, address, "--json").json["skipped"] == 34
        assert "34 checkpoints" in say("copy", address, back).out
    with SqliteSaver(told) as source, SqliteSaver(back) as target:
        assert [t[:4] for t in target.threads()] != []
        assert finish(target) == finish(source)


def test_a_server_that_is_not_there_is_said_so_without_the_password(told: Path) -> None:
    pytest.importorskip("langgraph.checkpoint.postgres")
    said = say("copy", told, "postgresql://me:secret@127.0.0.1:1/x", code=5)
    assert said.err.startswith("error: PostgreSQL: ")
    assert "secret" not in said.err + said.out


# --- the page ---

EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b[31m[bold]\u202e&amp;"


@pytest.fixture
def hostile(path: Path) -> Path:
    with SqliteSaver(path) as saver:
        at = put(saver, {EVIL: [EVIL], "a": {EVIL: EVIL}}, at=config(EVIL), source=EVIL, step=1, who=EVIL)
        put(saver, {"branch:to:" + EVIL: None, "a": EVIL}, parent=at, step=2)
        saver.put_writes(at, [("__interrupt__", [EVIL]), ("a", EVIL)], "task", "~x, " + EVIL)
        saver.put_writes(at, [("__error__", EVIL)], EVIL)
    return path


def test_the_page_escapes_whatever_was_stored_and_loads_nothing(hostile: Path, tmp_path: Path) -> None:
    say("history", hostile, EVIL, "--html", tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text()
    assert set(re.findall(r"<(\w+)", page)) <= set(
        "html head meta title style body h1 h2 h3 span p div ol ul li details summary b code pre table tr th td doctype".split()
    )
    assert not re.search(r"<[^>]*\son\w+=", page)
    assert "\x1b" not in page
    assert "default-src 'none'" in page
    assert "http" not in page.replace("http-equiv", "")


def test_the_page_has_the_tree_the_states_and_the_changes(told: Path, tmp_path: Path) -> None:
    say("history", told, "forked", "--html", tmp_path / "page.html")

    page = (tmp_path / "page.html").read_text()
    for text in ("<h2>branch</h2>", "<h2>subgraph inner:", "← latest", "What changed", "human: Pay Ann 100", "two asks"):
        assert text in page
    assert page.count("<summary><b>") == 8
    assert "cannot be written" in say("history", told, "forked", "--html", tmp_path / "no" / "folder", code=3).err


@pytest.mark.parametrize("arguments", [["history"], ["history", "--mermaid"], ["show"], ["diff"]])
def test_a_terminal_is_not_steered_by_what_was_stored(hostile: Path, arguments: list[str]) -> None:
    out = say(arguments[0], hostile, EVIL, *arguments[1:]).out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "bold" in out  # as text


# --- around it ---


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example_and_json(command: str) -> None:
    out = re.sub(r"\s+", " ", say(command, "--help").out)
    assert f"Example: langgraph-sqlite-ckpt {command}" in out
    assert "--json" in out


def test_no_other_command_is_left_out_here() -> None:
    assert sorted(COMMANDS) == sorted(command.name for command in app.registered_commands)


def run(*arguments: object, before: str = "") -> "subprocess.CompletedProcess[str]":
    script = f"import sys; {before}; from langgraph_sqlite_ckpt.__main__ import main; sys.argv[0] = 'x'; main()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())


def test_it_runs_as_a_module_where_no_class_of_the_users_is(told: Path) -> None:
    command = [sys.executable, "-m", "langgraph_sqlite_ckpt", "show", str(told), "done"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())

    assert '{"type": "moving.Order", "value": {"name": "Ann", "amount": 100}}' in done.stdout
    assert (done.returncode, done.stderr) == (0, "")


def test_without_its_packages_it_names_the_extra(told: Path) -> None:
    done = run("threads", told, before="sys.modules['typer'] = None")

    assert done.returncode == 1
    assert 'pip install "langgraph-sqlite-ckpt[cli]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_itself_does_not_load_it() -> None:
    script = "import sys, langgraph_sqlite_ckpt; print([m for m in sys.modules if m.partition('.')[0] == 'typer' or m.startswith('langgraph_sqlite_ckpt.cli')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, env=environment())
    assert done.stdout == "[]\n"


def test_a_reader_that_has_seen_enough_is_no_error(told: Path) -> None:
    script = f"{sys.executable} -m langgraph_sqlite_ckpt history {told} done | head -1"
    done = subprocess.run(script, shell=True, capture_output=True, text=True, timeout=60, env=environment())
    assert done.stdout.startswith("done · 13 checkpoints")
    assert done.stderr == ""


def test_words_for_times_and_sizes() -> None:
    assert [duration(text).total_seconds() for text in ("45s", "30m", "12h", "30d", "2w")] == [
        45,
        1800,
        43200,
        2592000,
        1209600,
    ]
    assert [age(seconds) for seconds in (0, 59, 200, 90000, 2e6)] == ["now", "59 s", "3 m", "25 h", "23 d"]
    assert [size(count) for count in (0, 999, 1500, 2_500_000, 7e12)] == ["0 B", "999 B", "1.5 kB", "2.5 MB", "7000.0 GB"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (1, 1, []),
        (1, True, [("", 1, True)]),
        ({"a": 1}, {"a": 2, "b": 3}, [("a", 1, 2), ("b", MISSING, 3)]),
        ({"a": {"b": [1, {"c": 1}]}}, {"a": {"b": [1, {"c": 2}]}}, [("a.b[1].c", 1, 2)]),
        ([1, 2], [1, 2, 3], [("[2]", MISSING, 3)]),
        ([1, 2, 3], [3], [("[0]", 1, MISSING), ("[1]", 2, MISSING)]),
        ([1, 2, 3], [1, 9, 3], [("[1]", 2, 9)]),
        ([1], [], [("[0]", 1, MISSING)]),
        (None, [], [("", None, [])]),
    ],
)
def test_changes_go_as_far_down_as_they_can(before: Any, after: Any, expected: list[Any]) -> None:
    assert [tuple(change) for change in changes(before, after)] == expected
