"""langgraph-checkpoint-conformance: every clause of the contract, on both faces."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance import validate
from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer
from langgraph.checkpoint.conformance.report import CapabilityReport

from langgraph_sqlite_ckpt import Flush, SqliteSaver

CLAUSES = 81


class SyncFace(SqliteSaver):
    """The suite only knows the async contract: here each of its calls is the sync method, on the running loop."""

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        return self.get_tuple(config)

    async def alist(self, config: Any, **options: Any) -> AsyncIterator[CheckpointTuple]:
        for item in self.list(config, **options):
            yield item

    async def aput(self, *call: Any) -> Any:
        return self.put(*call)

    async def aput_writes(self, *call: Any, **options: Any) -> None:
        self.put_writes(*call, **options)

    async def adelete_thread(self, thread_id: str) -> None:
        self.delete_thread(thread_id)

    async def adelete_for_runs(self, run_ids: Any) -> None:
        self.delete_for_runs(run_ids)

    async def acopy_thread(self, *threads: str) -> None:
        self.copy_thread(*threads)

    async def aprune(self, thread_ids: Any, **options: Any) -> None:
        self.prune(thread_ids, **options)

    async def aget_delta_channel_history(self, **call: Any) -> Any:
        return self.get_delta_channel_history(**call)


def test_the_sync_face_leaves_no_async_method_of_ours_in_the_way() -> None:
    contract = {name for name in dir(BaseCheckpointSaver) if name.startswith("a")}
    ours = {name for name in contract if getattr(SqliteSaver, name).__module__.startswith("langgraph_sqlite")}
    assert len(ours) >= 9
    assert ours - vars(SyncFace).keys() == set()


@pytest.mark.parametrize(
    ("path", "options"),
    [("file", {}), (":memory:", {}), ("file", {"flush": Flush(steps=1000)}), ("file", {"key": bytes(range(32))})],
    ids=["file", ":memory:", "file, buffered", "file, encrypted"],
)
@pytest.mark.parametrize("face", [SqliteSaver, SyncFace], ids=["async", "sync"])
async def test_every_clause_of_the_conformance_suite_passes(
    face: Callable[..., SqliteSaver], path: str, options: dict[str, Any], tmp_path: Path
) -> None:
    made = 0

    async def saver() -> AsyncIterator[SqliteSaver]:
        nonlocal made
        made += 1
        with face(path if path == ":memory:" else tmp_path / f"{made}.db", **options) as fresh:
            yield fresh

    report = await validate(RegisteredCheckpointer(face.__name__, saver))

    assert failures(report) == []
    assert counts(report) == {"passed": CLAUSES, "failed": 0, "skipped": 0}


def failures(report: CapabilityReport) -> list[str]:
    return [failure for result in report.results.values() for failure in result.failures]


def counts(report: CapabilityReport) -> dict[str, int]:
    return {
        outcome: sum(getattr(result, f"tests_{outcome}") for result in report.results.values())
        for outcome in ("passed", "failed", "skipped")
    }
