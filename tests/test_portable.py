"""A thread as one file: it comes back to the byte, whatever is in it, and nothing in it is trusted."""

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import config, put
from moving import THREADS, finish, held, tell
from sqlfile import sql

from langgraph_sqlite_ckpt import InvalidRequest, OpenError, PortableFileError, SqliteSaver, export_thread, load_thread
from langgraph_sqlite_ckpt.zstandard import opened_to_read, opened_to_write

ROWS = (
    "SELECT checkpoint_ns, channel, version, type, codec, position, size, checksum, data FROM blob b"
    " JOIN namespace n ON n.id = b.namespace WHERE thread_id = ? ORDER BY b.id",
    "SELECT checkpoint_ns, run_id, checkpoint_id, parent_id, step, source, next, created_at, has_child, metadata, exact,"
    " body, rest, c.checksum FROM checkpoint c JOIN namespace n ON n.id = c.namespace WHERE thread_id = ? ORDER BY c.seq",
    "SELECT checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, data FROM write w"
    " JOIN namespace n ON n.id = w.namespace WHERE thread_id = ? ORDER BY w.id",
)


def rows(path: Path, thread: str) -> list[Any]:
    return [sql(path, query, thread) for query in ROWS]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "thread.jsonl.zst"


@pytest.fixture
def told(saver: SqliteSaver) -> SqliteSaver:
    tell(saver)
    return saver


def lines(file: Path) -> list[Any]:
    with file.open("rb") as raw, opened_to_read(raw) as stream:
        return [json.loads(line) for line in stream]


def rewrite(file: Path, content: list[Any]) -> None:
    with file.open("wb") as raw, opened_to_write(raw) as stream:
        stream.write(b"".join(json.dumps(line).encode() + b"\n" for line in content))


def test_every_row_comes_back_to_the_byte_and_the_thread_goes_on(told: SqliteSaver, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with SqliteSaver(other) as target:
        for thread in THREADS:
            exported = export_thread(told, thread, tmp_path / thread)
            assert load_thread(target, tmp_path / thread) == exported

        assert [rows(other, thread) for thread in THREADS] == [rows(path, thread) for thread in THREADS]
        assert target.verify() == []
        assert [t[:4] for t in target.threads()] == [t[:4] for t in told.threads()]
        assert finish(target) == finish(told)


def test_values_that_grow_stay_small_and_exact(saver: SqliteSaver, file: Path) -> None:
    at, words = config(), []
    for number in range(100):
        words = [*words, f"{number} " + "word " * 200]
        at = put(saver, {"log": words}, parent=at)

    export_thread(saver, "t", file)
    load_thread(saver, file, thread_id="again")

    assert file.stat().st_size < 60_000
    assert [item[0]["channel_values"] for item in held(saver, "again")[""]] == [
        item[0]["channel_values"] for item in held(saver, "t")[""]
    ]
    put(saver, {"log": [*words, "more"]}, parent=config("again"))
    assert saver.verify() == []


def test_pruned_threads_and_lone_writes_move_too(told: SqliteSaver, file: Path, tmp_path: Path) -> None:
    told.prune(["forked"])
    told.put_writes(config("only writes", "", "later"), [("a", ["x"])], "task")

    export_thread(told, "forked", file)
    load_thread(told, file, thread_id="copy")
    lone = export_thread(told, "only writes", tmp_path / "lone")
    load_thread(told, tmp_path / "lone", thread_id="lone copy")

    assert held(told, "copy") == held(told, "forked")
    assert (lone.checkpoints, lone.writes) == (0, 1)
    assert told.verify() == []


def test_redacting_leaves_the_course_and_nothing_that_was_said(told: SqliteSaver, file: Path, path: Path) -> None:
    told.put(config("done"), _odd(), {"source": "update", "step": 9, "parents": {}, "user": "Ann", "tags": {"Ann"}}, {})
    exported = export_thread(told, "done", file, redact=True)

    text = re.sub(r'{"base64": "[^"]*"}', "", json.dumps(lines(file)))
    packed = b"".join(base64.b64decode(item) for item in _base64(lines(file)))
    assert exported.redacted
    for secret in ("Ann", "will pay", "Is it right", "Pay 100"):
        assert secret not in text
        assert secret.encode() not in packed

    load_thread(told, file, thread_id="safe")
    was, now = held(told, "done"), held(told, "safe")
    assert [(item[0]["id"], item[2], item[0]["channel_versions"]) for item in now[""]] == [
        (item[0]["id"], item[2], item[0]["channel_versions"]) for item in was[""]
    ]
    assert [[write[:2] for write in item[3]] for item in now[""]] == [[write[:2] for write in item[3]] for item in was[""]]
    assert "<list of 2>" in str(now[""][-3][0]["channel_values"])
    assert all("<" in str(value) for value in now[""][0][0]["channel_values"].values())
    assert told.verify() == []


def _odd() -> Any:
    from conftest import checkpoint

    return checkpoint({"name": "Ann", "number": 5, "items": ["Ann"]}, versions={"name": "1", "number": "1", "items": "1"})


def _base64(value: Any) -> list[str]:
    if isinstance(value, dict):
        found = [value["base64"]] if value.keys() == {"base64"} else []
        return found + [item for part in value.values() for item in _base64(part)]
    return [item for part in value for item in _base64(part)] if isinstance(value, list) else []


def test_what_is_not_there_or_there_already_is_refused(told: SqliteSaver, file: Path) -> None:
    with pytest.raises(InvalidRequest, match="no thread 'x' to export"):
        export_thread(told, "x", file)
    assert not file.exists()

    export_thread(told, "asks", file)
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidRequest, match="there already"):
        export_thread(told, "asks", file)
    with pytest.raises(InvalidRequest, match="thread 'asks' exists already"):
        load_thread(told, file)
    with pytest.raises(OpenError, match="cannot be made"):
        export_thread(told, "asks", file.parent / "no folder" / "x")
    with pytest.raises(OpenError, match="cannot be read"):
        load_thread(told, file.parent / "missing")


def change(kind: str, **fields: Any) -> Callable[[list[Any]], None]:
    def changed(content: list[Any]) -> None:
        next(line[kind] for line in content if kind in line).update(fields)

    return changed


def drop(kind: str) -> Callable[[list[Any]], None]:
    def dropped(content: list[Any]) -> None:
        content.remove(next(line for line in content if kind in line))
        if kind in content[-1].get("end", {}):
            content[-1]["end"][kind] -= 1

    return dropped


FORGED: dict[str, Callable[[list[Any]], None]] = {
    "another format": lambda content: content[0].update(format="x"),
    "a newer version": lambda content: content[0].update(version=2),
    "no name": lambda content: content[0].update(thread_id=5),
    "no end": lambda content: content.pop(),
    "a wrong count": lambda content: content[-1]["end"].update(write=0),
    "more after the end": lambda content: content.append({"x": 1}),
    "an unknown kind": lambda content: content.insert(1, {"trigger": {}}),
    "two kinds in a line": lambda content: content[1].update(write={}),
    "a missing field": lambda content: content[1]["value"].pop("data"),
    "another field": change("checkpoint", owner=1),
    "text for a number": change("value", size="1"),
    "a number for text": change("checkpoint", next=1),
    "yes for a number": change("write", idx=True),
    "text for bytes": change("value", data="x"),
    "no base64": change("value", data={"base64": "!"}),
    "other bytes": change("value", data={"base64": base64.b64encode(b"x").decode()}),
    "another checksum": change("value", checksum=1),
    "another size": change("value", size=10**12),
    "another codec": change("value", codec=9),
    "a base that is not there": change("value", base=999),
    "a damaged body": change("checkpoint", body={"base64": ""}),
    "metadata that is none": change("checkpoint", metadata="[]"),
    "a time that is none": change("checkpoint", created_at="x"),
    "a next that is none": change("checkpoint", next="5"),
    "damaged writes": change("write", checksum=5),
    "twice the same": lambda content: (
        content.insert(1, content[1]),
        content[-1]["end"].update(value=content[-1]["end"]["value"] + 1),
    ),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_file_that_is_not_whole_or_forged_stores_nothing(
    told: SqliteSaver, file: Path, forge: Callable[[list[Any]], None], path: Path
) -> None:
    export_thread(told, "done", file)
    content = lines(file)
    forge(content)
    rewrite(file, content)

    with pytest.raises(PortableFileError, match=str(file)):
        load_thread(told, file, thread_id="forged")
    assert sql(path, "SELECT count(*) FROM namespace WHERE thread_id = 'forged'") == [(0,)]


@pytest.mark.parametrize("cut", [0, 1, 100, -1])
def test_a_file_that_was_cut_off_stores_nothing(told: SqliteSaver, file: Path, cut: int) -> None:
    export_thread(told, "asks", file)
    file.write_bytes(file.read_bytes()[:cut])

    with pytest.raises(PortableFileError, match="no whole export"):
        load_thread(told, file, thread_id="cut")
