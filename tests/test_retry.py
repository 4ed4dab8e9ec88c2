"""What is transient is tried again, within `busy_timeout`; everything else is reported at once."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import config, put
from sqlfile import Tap, can_write_at_once, tap

from langgraph_sqlite_ckpt import BusyError, OpenError, SqliteSaver, StorageError

__all__ = ["tap"]  # a fixture

BUSY, BUSY_RECOVERY, BUSY_SNAPSHOT, PROTOCOL = 5, 261, 517, 15
IOERR, FULL, READONLY, CORRUPT, CANTOPEN = 10, 13, 8, 11, 14


def failing(tap: Tap, prefix: str, code: int, times: int) -> list[str]:
    """So many times, at the statements that begin like this; what was tried."""
    tried: list[str] = []

    def fail(db: sqlite3.Connection, statement: str) -> None:
        if statement.startswith(prefix):
            tried.append(statement)
            if len(tried) <= times:
                error = sqlite3.OperationalError("injected")
                error.sqlite_errorcode = code  # type: ignore[misc]  # as Python sets it from 3.11 on
                raise error

    tap.forget()
    tap.before = fail
    return tried


@pytest.mark.parametrize("code", [BUSY, BUSY_RECOVERY, BUSY_SNAPSHOT, PROTOCOL])
def test_a_lock_that_sqlite_does_not_wait_for_is_waited_for(open_face: Any, tap: Tap, code: int) -> None:
    face = open_face()
    tried = failing(tap, "BEGIN IMMEDIATE", code, 3)
    stored = put(face, {"a": 1})
    assert len(tried) == 4
    assert face.get_tuple(config()).config == stored


@pytest.mark.parametrize("code", [BUSY, PROTOCOL])
def test_it_is_waited_for_no_longer_than_busy_timeout(open_face: Any, tap: Tap, path: Path, code: int) -> None:
    face = open_face(busy_timeout=0.3)
    tried = failing(tap, "BEGIN IMMEDIATE", code, 10_000)
    begun = time.monotonic()
    with pytest.raises(BusyError, match="busy_timeout="):
        put(face)
    assert 0.25 < time.monotonic() - begun < 3
    assert len(tried) > 3
    tap.forget()
    assert can_write_at_once(path)
    put(face)


@pytest.mark.parametrize("code", [IOERR, FULL, READONLY, CORRUPT, CANTOPEN])
def test_anything_else_is_reported_at_once(open_face: Any, tap: Tap, code: int) -> None:
    face = open_face()
    tried = failing(tap, "BEGIN IMMEDIATE", code, 10_000)
    with pytest.raises(StorageError):
        put(face)
    assert len(tried) == 1


def test_who_opens_a_file_waits_while_others_change_its_mode(path: Path, tap: Tap) -> None:
    tried = failing(tap, "PRAGMA journal_mode = ", BUSY, 3)
    with SqliteSaver(path) as saver:
        put(saver)
    assert len(tried) == 4


def test_a_file_system_that_cannot_have_wal_mode_is_named_and_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    class Stubborn(sqlite3.Connection):
        def execute(self, statement: str, *parameters: Any) -> Any:
            asked = statement.replace("PRAGMA journal_mode = wal", "PRAGMA journal_mode")
            return super().execute(asked, *parameters)

    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, **options | {"factory": Stubborn}))
    with pytest.raises(OpenError, match='journal_mode="delete"'):
        SqliteSaver(path)
    SqliteSaver(path, journal_mode="delete").close()
