"""Every method of the contract as one call on a face, for tests that try them all."""

from collections.abc import Callable, Mapping
from typing import Any

from conftest import checkpoint, config

Call = Callable[[Any], Any]

READS: Mapping[str, Call] = {
    "get": lambda face: face.get(config()),
    "get_tuple": lambda face: face.get_tuple(config()),
    "list": lambda face: list(face.list(config())),
    "list of everything": lambda face: list(face.list(None)),
    "list with a filter": lambda face: list(face.list(None, filter={"source": "loop"})),
    "list before": lambda face: list(face.list(config(), before=config("t", "", "x"), limit=1)),
    "get_delta_channel_history": lambda face: face.get_delta_channel_history(config=config(), channels=["a"]),
}
WRITES: Mapping[str, Call] = {
    "put": lambda face: face.put(config(), checkpoint({"a": ["new"]}), {"step": 9}, {}),
    "put_writes": lambda face: face.put_writes(config("t", "", "x"), [("a", ["new"]), ("b", 2)], "task"),
    "delete_thread": lambda face: face.delete_thread("t"),
    "delete_for_runs": lambda face: face.delete_for_runs(["run"]),
    "prune to the latest": lambda face: face.prune(["t"]),
    "prune away": lambda face: face.prune(["t"], strategy="delete"),
    "copy_thread": lambda face: face.copy_thread("t", "copy"),
}
CALLS: Mapping[str, Call] = {**READS, **WRITES}
