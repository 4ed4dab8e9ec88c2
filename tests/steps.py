"""Steps of a run without a graph, and what of them somebody else sees on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conftest import checkpoint, config
from sqlfile import sql


def step(face: Any, parent: Any = None, *, due: Sequence[str] = ("work",), at: Any = None, **options: Any) -> Any:
    """One checkpoint in the middle of a run, after which these nodes are due."""
    values = {**options.pop("values", {}), **{f"branch:to:{node}": None for node in due}}
    made = checkpoint(values)
    metadata = {"source": "loop", "step": 0, "parents": {}} | options
    return face.put(parent or at or config(), made, metadata, dict(made["channel_versions"]))


def begun(face: Any, **options: Any) -> Any:
    """An input, which is on disk at once."""
    return step(face, source="input", due=["__start__"], **options)


def write(face: Any, parent: Any, channel: str = "a", value: Any = 1, task: str = "task") -> None:
    face.put_writes(parent, [(channel, value)], task)


def on_disk(path: Path) -> int:
    """Checkpoints, seen by somebody else."""
    return sql(path, "SELECT count(*) FROM checkpoint")[0][0]


def writes_on_disk(path: Path) -> int:
    return sql(path, "SELECT count(*) FROM write")[0][0]


def ids_on_disk(path: Path) -> list[str]:
    return [id for (id,) in sql(path, "SELECT checkpoint_id FROM checkpoint ORDER BY seq")]


def id_of(stored: Any) -> str:
    return stored["configurable"]["checkpoint_id"]
