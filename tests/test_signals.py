"""A signal handler runs in the middle of whatever its thread was doing: nobody waits for ever, and nothing stays counted."""

import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import config, put
from sqlfile import Tap, can_write_at_once, tap

from langgraph_sqlite_ckpt import ClosedError, InvalidRequest, SqliteSaver, StorageError

__all__ = ["tap"]  # a fixture
pytestmark = pytest.mark.timeout(20)

on = pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there are no such signals")


class Signal:
    """Arrives before a statement that begins so, once; then `handler` runs, on the thread that executes it."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self.outcomes: list[Any] = []

    def at(self, beginning: str, handler: Callable[[], Any]) -> None:
        def arrives(db: sqlite3.Connection, statement: str) -> None:
            if statement.startswith(beginning) and not self.outcomes:
                signal.raise_signal(signal.SIGUSR1)

        def handle(*_: object) -> None:
            self.outcomes.append(None)  # once
            try:
                self.outcomes[0] = handler()
            except Exception as error:
                self.outcomes[0] = error

        signal.signal(signal.SIGUSR1, handle)
        self._tap.before = arrives


@pytest.fixture
def arriving(tap: Tap) -> Iterator[Signal]:
    before = signal.getsignal(signal.SIGUSR1)
    yield Signal(tap)
    signal.signal(signal.SIGUSR1, before)


@on
@pytest.mark.parametrize("moment", ["BEGIN IMMEDIATE", "INSERT INTO checkpoint", "COMMIT"])
@pytest.mark.parametrize("at", ["agent.db", ":memory:"])
def test_a_signal_handler_that_closes_the_saver_lets_the_put_that_it_interrupted_end_first(
    arriving: Signal, tmp_path: Path, at: str, moment: str
) -> None:
    path = at if at == ":memory:" else tmp_path / at
    saver = SqliteSaver(path)
    put(saver, {"a": 1})
    arriving.at(moment, saver.close)
    stored = put(saver, {"a": 2})
    assert arriving.outcomes == [None]
    with pytest.raises(ClosedError):
        saver.get_tuple(config())
    if at != ":memory:":
        with SqliteSaver(path) as again:
            assert again.get_tuple(config()).config == stored  # type: ignore[union-attr]


@on
@pytest.mark.parametrize("at", ["agent.db", ":memory:"])
def test_a_signal_handler_may_close_the_saver_in_the_middle_of_a_read(arriving: Signal, tmp_path: Path, at: str) -> None:
    saver = SqliteSaver(at if at == ":memory:" else tmp_path / at)
    stored = put(saver, {"a": 1})
    arriving.at("SELECT", saver.close) if at == ":memory:" else arriving.at("ROLLBACK", saver.close)
    found = saver.get_tuple(config())
    assert found is not None
    assert found.config == stored
    assert arriving.outcomes == [None]
    with pytest.raises(ClosedError):
        put(saver, {"a": 2})


@on
@pytest.mark.parametrize("moment", ["BEGIN IMMEDIATE", "INSERT INTO checkpoint", "COMMIT"])
def test_a_put_in_a_signal_handler_in_a_put_is_refused_and_the_first_one_is_stored(
    arriving: Signal, saver: SqliteSaver, moment: str
) -> None:
    put(saver, {"a": 1})
    arriving.at(moment, lambda: put(saver, {"a": "of the handler"}))
    stored = put(saver, {"a": 2})
    assert isinstance(arriving.outcomes[0], InvalidRequest)
    assert "signal handler" in str(arriving.outcomes[0])
    assert saver.get_tuple(config()).config == stored  # type: ignore[union-attr]
    assert len(list(saver.list(config()))) == 2
    put(saver, {"a": 3})
    assert len(list(saver.list(config()))) == 3


@on
def test_a_signal_handler_reads_in_the_middle_of_a_put(arriving: Signal, saver: SqliteSaver) -> None:
    before = put(saver, {"a": 1})
    arriving.at("COMMIT", lambda: saver.get_tuple(config()))
    put(saver, {"a": 2})
    assert arriving.outcomes[0].config == before


def test_a_ctrl_c_while_a_read_ends_leaves_no_connection_counted_as_in_use(
    tap: Tap, saver: SqliteSaver, path: Path
) -> None:
    """A fork waits for those that are."""
    stored = put(saver, {"a": 1})

    def interrupt(db: sqlite3.Connection, statement: str) -> None:
        if statement == "ROLLBACK":
            raise KeyboardInterrupt

    tap.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        saver.get_tuple(config())
    tap.forget()
    assert saver._shared.database._borrowed == 0
    assert can_write_at_once(path)
    assert saver.get_tuple(config()).config == stored  # type: ignore[union-attr]


def test_who_queues_while_another_waits_for_a_lock_in_vain_still_has_its_own_time_to_wait(
    tap: Tap, saver: SqliteSaver
) -> None:
    outcomes: list[Any] = []
    late = threading.Thread(target=lambda: outcomes.append(put(saver, {"a": 2}, at=config("late"))))

    def busy(db: sqlite3.Connection, statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and not late.ident:
            late.start()
            while len(saver._shared.database._queue) < 2:
                pass
            raise sqlite3.OperationalError("database is locked")

    tap.before = busy
    with pytest.raises(StorageError, match="locked"):
        put(saver, {"a": 1}, at=config("first"))
    late.join(20)
    assert [outcome["configurable"]["thread_id"] for outcome in outcomes] == ["late"]
    assert [item.config["configurable"]["thread_id"] for item in saver.list(None)] == ["late"]
