"""What the tests share: a saver on a file on disk, and one body for both faces of the contract."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.base.id import uuid6

from langgraph_sqlite_ckpt import SqliteSaver


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
