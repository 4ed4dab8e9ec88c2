"""Arguments that make no sense are refused in our words, on both faces, and nothing is read or written for them."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config, put
from sqlfile import rows

from langgraph_sqlite_ckpt import InvalidRequest, SqliteSaver, StorageError, tables
from langgraph_sqlite_ckpt.operations import Statement
from langgraph_sqlite_ckpt.tables import NewWrite

ODD: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sweep since before the calendar": ("idle_for", lambda face: face.sweep(idle_for=timedelta.max)),
    "threads until after the calendar": (
        "calendar",
        lambda face: face.threads(updated_before=datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
    ),
    "prune nothing": ("thread_ids", lambda face: face.prune(None)),
    "prune a number": ("thread_ids", lambda face: face.prune(7)),
    "delete no runs": ("run_ids", lambda face: face.delete_for_runs(None)),
    "limit of text": ("limit", lambda face: list(face.list(config(), limit="3"))),
    "limit of a half": ("limit", lambda face: list(face.list(config(), limit=0.5))),
    "filter of a list": ("filter", lambda face: list(face.list(config(), filter=[1]))),
    "filter of text": ("filter", lambda face: list(face.list(config(), filter="source"))),
    "put without metadata": ("metadata", lambda face: face.put(config(), checkpoint({"a": 1}), None, {})),
    "put with metadata of text": ("metadata", lambda face: face.put(config(), checkpoint({"a": 1}), "loop", {})),
    "a write to no channel": ("channel", lambda face: face.put_writes(config("t", "", "x"), [(None, 1)], "task")),
    "a write to a number": ("channel", lambda face: face.put_writes(config("t", "", "x"), [("a", 1), (7, 1)], "task")),
    "history of no channel": ("channel", lambda face: face.get_delta_channel_history(config=config(), channels=[None])),
}


@pytest.mark.parametrize("name", ODD)
def test_an_argument_that_makes_no_sense_is_named_and_nothing_is_done(face: Face, path: Path, name: str) -> None:
    named, call = ODD[name]
    put(face, {"a": 1})
    before = rows(path)
    with pytest.raises(InvalidRequest, match=named):
        call(face)
    assert rows(path) == before


def test_a_write_that_the_table_refuses_is_an_error_and_not_skipped_as_if_it_were_there(saver: SqliteSaver) -> None:
    nameless: Any = NewWrite("task", 0, "", None, "null", 0, 0, 0, b"")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="NOT NULL"):
        saver._shared.database.write(Statement(lambda db: tables.keep_first_writes(db, 1, "x", [nameless])))
