"""What the tests share: a saver on a file on disk, and one body for both faces of the contract."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.base.id import uuid6

from langgraph_sqlite_ckpt import SqliteSaver

# Before Python 3.11 LangGraph's async nodes do not know their config, so they cannot interrupt.
ASYNC_INTERRUPTS = (
    "test_an_answer_that_was_being_worked_on_is_not_asked_for_again[async]",
    "test_a_run_that_comes_to_a_question_waits_there[async]",
    "test_the_state_is_as_if_nothing_had_happened[async-functional]",
    "test_a_person_approves_edits_and_rejects_and_the_agents_go_on",
    "test_two_people_who_answer_at_once_pay_once",
    "test_results_history_and_time_travel_are_those_of_memory[questions-async",
    "test_changed_and_forked_checkpoints_are_those_of_memory[questions-async",
    "test_a_thread_that_is_pruned_after_every_turn_goes_on_as_in_memory[questions-async",
    "test_after_pruning_a_pending_interrupt_only_what_had_not_finished_runs[async]",
    "test_after_pruning_a_subgraph_that_waits_goes_on_where_it_was[async]",
    "test_a_subgraph_that_persists_keeps_its_newest[async]",
    "test_a_copy_tells_what_its_source_tells_and_goes_on_alone[questions]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if sys.version_info < (3, 11):
        for item in items:
            if item.name.startswith(ASYNC_INTERRUPTS):
                item.add_marker(pytest.mark.skip(reason="LangGraph cannot interrupt async graphs there"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.db"


@pytest.fixture
def saver(path: Path) -> Iterator[SqliteSaver]:
    with SqliteSaver(path) as saver:
        yield saver


class Face:
    """The contract through its sync methods, or the same calls through the async ones; tests are written once."""

    def __init__(self, saver: SqliteSaver, name: str) -> None:
        self.saver, self.name = saver, name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if self.name == "sync":
            return getattr(self.saver, method)
        if method == "list":
            return lambda *args, **kwargs: iter(self._run(self._collect(*args, **kwargs)))
        return lambda *args, **kwargs: self._run(getattr(self.saver, "a" + method)(*args, **kwargs))

    async def _collect(self, *args: Any, **kwargs: Any) -> list[Any]:
        return [item async for item in self.saver.alist(*args, **kwargs)]

    def _run(self, call: Awaitable[Any]) -> Any:
        async def main() -> Any:
            return await call

        return asyncio.run(main())


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, saver: SqliteSaver) -> Face:
    return Face(saver, request.param)


@pytest.fixture(params=["sync", "async"])
def open_face(request: pytest.FixtureRequest, path: Path) -> Iterator[Callable[..., Face]]:
    """Like `face`, for savers with options: `open_face(read_only=True)`. All are closed in the end."""
    with ExitStack() as stack:
        yield lambda at=path, **options: Face(stack.enter_context(SqliteSaver(at, **options)), request.param)


def config(thread_id: object = "t", checkpoint_ns: str = "", checkpoint_id: str | None = None) -> Any:
    configurable = {"thread_id": thread_id, "checkpoint_ns": checkpoint_ns}
    return {"configurable": configurable | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


def checkpoint(values: dict[str, Any] | None = None, versions: dict[str, Any] | None = None, id: str | None = None) -> Any:
    """As LangGraph makes them: every value has a version."""
    values = values or {}
    return {
        "v": 4,
        "id": id or str(uuid6(clock_seq=-1)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": versions if versions is not None else {name: f"{1:032}.{uuid4().int}" for name in values},
        "versions_seen": {},
        "updated_channels": None,
    }


def put(face: Any, values: dict[str, Any] | None = None, *, parent: Any = None, at: Any = None, **metadata: Any) -> Any:
    """One checkpoint with new versions for all its values; returns its config."""
    made = checkpoint(values)
    return face.put(
        parent or at or config(),
        made,
        {"source": "loop", "step": 0, "parents": {}} | metadata,
        dict(made["channel_versions"]),
    )
