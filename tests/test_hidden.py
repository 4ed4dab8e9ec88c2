"""A checkpoint that is kept only for the DeltaChannels of others is there, and nobody is shown it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import Face, checkpoint, config, put
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from sqlfile import sql
from threads import multiply, saver
from watch import Watch, watch

from langgraph_sqlite_ckpt import SqliteSaver, export_thread, load_thread, rename_channel

__all__ = ["saver", "watch"]  # fixtures
COUNTED = {"counters_since_delta_snapshot": {"log": (1, 1)}}


def step(face: Any, number: int, parent: Any = None, *, thread: str = "t", **metadata: Any) -> Any:
    """A checkpoint as LangGraph puts it: what was written to the DeltaChannel is with its parent."""
    if parent is not None:
        face.put_writes(parent, [("log", number)], f"task {number}")
    made = checkpoint({}, {"log": f"{number + 1:032}.0"}, f"1f000000-0000-6000-8000-{number:012}")
    whole = {"source": "loop" if parent else "input", "step": number, "parents": {}} | COUNTED | metadata
    return face.put(parent or config(thread), made, whole, made["channel_versions"])


def steps(face: Any, numbers: range, parent: Any = None, **metadata: Any) -> list[Any]:
    made = [parent] if parent else []
    for number in numbers:
        made.append(step(face, number, made[-1] if made else None, **metadata))
    return made


def log(face: Any, at: Any) -> list[int]:
    history = face.get_delta_channel_history(config=at, channels=["log"])
    return [value for _, _, value in history["log"]["writes"]]


def shown(face: Any, at: Any = None) -> list[int]:
    return [item.metadata["step"] for item in face.list(at)]


def hidden(path: Path) -> list[int]:
    return [number for (number,) in sql(path, "SELECT step FROM checkpoint WHERE hidden ORDER BY seq")]


@pytest.fixture
def pruned(face: Face) -> Face:
    """The last of five checkpoints, which needs the writes of all others."""
    steps(face, range(5), run_id="run")
    face.prune(["t"])
    return face


def id_of(number: int) -> str:
    return f"1f000000-0000-6000-8000-{number:012}"


def test_what_is_rebuilt_of_it_is_there_and_it_is_not_shown(pruned: Face, path: Path) -> None:
    assert log(pruned, config()) == [1, 2, 3, 4]
    assert hidden(path) == [0, 1, 2, 3]
    for scope in (None, config(), {"configurable": {"thread_id": "t"}}):
        assert shown(pruned, scope) == [4]
    for number in range(4):
        at = config("t", "", id_of(number))
        assert pruned.get_tuple(at) is None
        assert list(pruned.list(at)) == []
        assert log(pruned, at) == []
    for wanted in ({"source": "input"}, {"step": 2}, {"run_id": "run", "step": 3}):
        assert list(pruned.list(None, filter=wanted)) == []
    assert list(pruned.verify()) == []


def test_its_child_has_no_parent(pruned: Face, path: Path) -> None:
    assert pruned.get_tuple(config()).parent_config is None
    assert [item.parent_config for item in pruned.list(config())] == [None]
    assert sql(path, "SELECT parent_checkpoint_id FROM checkpoints") == [(None,)]
    step(pruned, 5, pruned.get_tuple(config()).config)
    assert pruned.get_tuple(config()).parent_config == config("t", "", id_of(4))
    assert log(pruned, config()) == [1, 2, 3, 4, 5]


def test_nothing_counts_it(pruned: Face, path: Path) -> None:
    [thread], [run] = pruned.threads(), pruned.runs()
    assert (thread.checkpoints, run.checkpoints, run.run_id) == (1, 1, "run")
    assert thread.created_at == thread.updated_at == run.created_at
    assert pruned.stats().checkpoints == 1
    assert [count for (count,) in sql(path, "SELECT count(*) FROM checkpoints")] == [1]


def test_sweep_counts_what_is_shown_no_more(face: Face, path: Path) -> None:
    steps(face, range(6))
    promised = face.sweep(keep_last=2, statuses=["completed"], dry_run=True)
    assert face.sweep(keep_last=2, statuses=["completed"]) == promised
    assert promised.checkpoints == 4
    assert (shown(face), hidden(path)) == ([5, 4], [0, 1, 2, 3])
    assert face.sweep(keep_last=2, statuses=["completed"]).checkpoints == 0


def test_it_bounds_no_list(pruned: Face) -> None:
    """As where it was deleted: then ids are compared."""
    made = pruned.get_tuple(config()).config
    for number in (5, 6):
        made = step(pruned, number, made)
    pruned.prune(["t"])
    step(pruned, 7, pruned.get_tuple(config()).config)
    assert [item.metadata["step"] for item in pruned.list(config(), before=config("t", "", id_of(5)))] == []
    assert [item.metadata["step"] for item in pruned.list(config(), before=config("t", "", id_of(7)))] == [6]


@pytest.mark.parametrize("how", ["prune", "delete_for_runs"])
def test_it_goes_when_nobody_needs_it_any_more(face: Face, path: Path, how: str) -> None:
    *_, last = steps(face, range(5), run_id="old")
    face.prune(["t"])
    made = checkpoint({"log": _DeltaSnapshot([1, 2, 3, 4])}, {"log": f"{9:032}.0"}, id_of(8))
    face.put(last, made, {"source": "loop", "step": 8, "parents": {}, "run_id": "new"}, made["channel_versions"])
    assert len(hidden(path)) == 4
    face.prune(["t"]) if how == "prune" else face.delete_for_runs(["old"])
    assert (shown(face), hidden(path)) == ([8], [])
    assert sql(path, "SELECT DISTINCT checkpoint_id FROM write") == []
    assert list(face.verify()) == []


@pytest.mark.parametrize("how", ["delete_thread", "delete_for_runs"])
def test_it_does_not_outlive_those_that_need_it(pruned: Face, path: Path, how: str) -> None:
    pruned.delete_thread("t") if how == "delete_thread" else pruned.delete_for_runs(["run"])
    for table in ("checkpoint", "namespace", "write"):
        assert sql(path, f"SELECT * FROM {table}") == []


def test_what_is_put_again_is_shown_again(pruned: Face, path: Path) -> None:
    made = checkpoint({}, {"log": f"{4:032}.0"}, id_of(3))
    pruned.put(config("t", "", id_of(2)), made, {"source": "loop", "step": 3, "parents": {}} | COUNTED, {})
    assert (shown(pruned, config()), hidden(path)) == ([4, 3], [0, 1, 2])
    assert pruned.get_tuple(config()).parent_config == config("t", "", id_of(3))
    assert pruned.get_tuple(config("t", "", id_of(3))).parent_config is None


def test_a_copy_has_it_too(pruned: Face, path: Path) -> None:
    pruned.copy_thread("t", "copy")
    pruned.delete_thread("t")
    assert shown(pruned) == [4]
    assert hidden(path) == [0, 1, 2, 3]
    assert log(pruned, config("copy")) == [1, 2, 3, 4]
    assert list(pruned.verify()) == []


def test_a_thread_that_is_exported_has_it_too(pruned: Face, path: Path, tmp_path: Path) -> None:
    export_thread(pruned.saver, "t", tmp_path / "t.json")
    pruned.delete_thread("t")
    load_thread(pruned.saver, tmp_path / "t.json")
    assert (shown(pruned), hidden(path)) == ([4], [0, 1, 2, 3])
    assert log(pruned, config()) == [1, 2, 3, 4]


def test_it_is_migrated_and_stays_hidden(pruned: Face, path: Path) -> None:
    with SqliteSaver(path, migrations=[rename_channel("log", "diary")]) as today:
        for rewritten in (False, True):
            if rewritten:
                today.migrate_all()
            [item] = today.list(None)
            assert item.parent_config is None
            found = today.get_delta_channel_history(config=config(), channels=["diary"])["diary"]["writes"]
            assert [value for _, _, value in found] == [1, 2, 3, 4]
            assert hidden(path) == [0, 1, 2, 3]
        assert sql(path, "SELECT DISTINCT state_version FROM checkpoint") == [(1,)]
        today.prune(["t"])
        assert len(today.get_delta_channel_history(config=config(), channels=["diary"])["diary"]["writes"]) == 4
        assert list(today.verify()) == []


def test_verify_finds_one_that_is_damaged_and_one_that_nobody_needs(pruned: Face, path: Path) -> None:
    sql(path, "UPDATE checkpoint SET body = zeroblob(9) WHERE step = 1")
    assert [problem.kind for problem in pruned.verify()] == ["checkpoint"]
    sql(path, "DELETE FROM checkpoint WHERE hidden = 0")
    orphans = [problem.detail for problem in pruned.verify() if problem.kind == "orphan"]
    assert len(orphans) == 4
    assert orphans[0].startswith("hidden checkpoint that nobody needs")


# --- keep_last= on the saver ---


@pytest.mark.parametrize("keep_last", [1, 3])
def test_after_each_put_the_last_are_shown_and_no_other(open_face: Any, path: Path, keep_last: int) -> None:
    face, at = open_face(keep_last=keep_last, synchronous="normal"), None
    for number in range(40):
        at = step(face, number, at)
        assert shown(face) == list(range(number, max(-1, number - keep_last), -1))
        assert log(face, at) == list(range(1, number + 1))
        parent = face.get_tuple(at).parent_config
        assert (parent is None) == (keep_last == 1 or number == 0)
    assert list(face.verify()) == []


def test_what_is_needed_no_more_does_not_stay_for_long(open_face: Any, path: Path) -> None:
    """Every tenth has a snapshot: no more than twice what the last ones can need is ever there."""
    face, at = open_face(keep_last=2, synchronous="normal"), None
    for number in range(100):
        snapshot = {"log": _DeltaSnapshot([number])} if number % 10 == 0 else {}
        made = checkpoint(snapshot, {"log": f"{number + 1:032}.0"}, id_of(number))
        at = face.put(
            at or config(),
            made,
            {"source": "loop", "step": number, "parents": {}} | ({} if snapshot else COUNTED),
            made["channel_versions"],
        )
        assert len(hidden(path)) <= 20
    assert list(face.verify()) == []


def test_a_put_costs_the_same_however_many_are_hidden(watch: Watch, saver: SqliteSaver, path: Path) -> None:
    """But for the seldom one that looks for what is needed."""
    parent = step(saver, 0)

    def costs(face: Any, numbers: range) -> list[int]:
        nonlocal parent
        found = []
        for number in numbers:
            watch.forget()
            parent = step(face, number, parent)
            found.append(watch.steps)
        return found

    with SqliteSaver(path, keep_last=2, synchronous="normal") as few:
        of_few, of_many = costs(few, range(1, 100)), costs(few, range(100, 500))
    ordinary = sorted(of_few)[len(of_few) // 2]
    assert sum(cost > ordinary + 50 for cost in of_many) <= 3


# --- reading past many of them ---


def with_many_hidden(path: Path, count: int) -> None:
    with SqliteSaver(path, synchronous="normal") as saver:
        put(saver, {"n": 1}, source="input", run_id="run")
        multiply(path, count, source="'input'", run_id="'run'")
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("UPDATE checkpoint SET hidden = 1 WHERE seq > 1 AND seq % 1000 <> 0")


@pytest.mark.parametrize("scope", [config(), {"configurable": {"thread_id": "t"}}], ids=["namespace", "thread"])
@pytest.mark.parametrize("wanted", [None, {"source": "input"}, {"run_id": "run"}], ids=str)
def test_what_is_shown_is_found_without_a_look_at_what_is_hidden(
    watch: Watch, open_face: Any, path: Path, scope: Any, wanted: Any
) -> None:
    with_many_hidden(path, 5000)
    face = open_face(synchronous="normal")
    watch.forget()
    assert len(list(face.list(scope, filter=wanted))) == 6
    assert watch.steps < 3500


def test_threads_and_runs_are_counted_without_a_look_at_what_is_hidden(watch: Watch, open_face: Any, path: Path) -> None:
    with_many_hidden(path, 5000)
    face = open_face(synchronous="normal")
    watch.forget()
    assert [(row.run_id, row.checkpoints) for row in face.threads()] == [("run", 6)]
    assert watch.steps < 1500
    watch.forget()
    assert [row.checkpoints for row in face.runs(thread_id="t")] == [6]
    assert watch.steps < 2500
