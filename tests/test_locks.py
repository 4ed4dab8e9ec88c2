"""Loops, threads, cancellation, forks, other processes: nobody waits for ever, and nothing stays open."""

import asyncio
import operator
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from calls import CALLS, READS
from conftest import Face, checkpoint, config, put
from langgraph.graph import END, START, StateGraph
from scripts import run
from sqlfile import KNOWS_CODES, Tap, can_write_at_once, nothing_is_held, sql, tap, write_lock

from langgraph_sqlite_ckpt import (
    BusyError,
    CheckpointError,
    ClosedError,
    SafeSerializer,
    SqliteSaver,
    StorageError,
)

__all__ = ["tap"]  # a fixture

Busy = BusyError if KNOWS_CODES else StorageError
FORKING = ["-W", "ignore::DeprecationWarning"]  # Python 3.12 warns of every fork of a process with threads


def fill(saver: Any, count: int = 30, at: Any = None) -> None:
    parent = at or config()
    for number in range(count):
        parent = put(saver, {"a": [f"{number} " * 100]}, parent=parent)
        saver.put_writes(parent, [("a", [number]), ("b", number)], f"task {number}")


# --- list ---


@pytest.mark.parametrize("name", CALLS)
def test_any_method_may_be_called_inside_a_list_loop(saver: SqliteSaver, name: str) -> None:
    fill(saver)
    items = saver.list(None)
    next(items)
    CALLS[name](saver)
    assert len(list(items)) >= 7  # of the page that was read; "prune" and "delete" take the others away


@pytest.mark.parametrize("name", CALLS)
def test_any_async_method_may_be_called_inside_an_async_list_loop(saver: SqliteSaver, name: str) -> None:
    fill(saver)

    class Here:
        """A face on the loop that is running: what a call gives is awaited by the test."""

        def __getattr__(self, method: str) -> Callable[..., Any]:
            if method == "list":
                return lambda *args, **kwargs: iter([saver.alist(*args, **kwargs)])
            return getattr(saver, "a" + method)

    async def main() -> int:
        items = saver.alist(None)
        await anext(items)
        outcome = CALLS[name](Here())
        if isinstance(outcome, list):
            assert [item async for item in outcome[0]] != None
        else:
            await outcome
        return len([item async for item in items])

    assert asyncio.run(asyncio.wait_for(main(), 20)) >= 7


def test_a_loop_over_the_history_that_writes_at_each_item_sees_each_checkpoint_once(face: Face) -> None:
    fill(face)
    seen = []
    for item in face.list(config()):
        seen.append(item.config["configurable"]["checkpoint_id"])
        put(face, {"a": ["written inside the loop"]})
    assert len(seen) == len(set(seen)) == 30


def test_a_list_that_is_paused_between_two_items_holds_nothing(saver: SqliteSaver, path: Path) -> None:
    fill(saver)
    for taken in (1, 8, 9, 20):
        items = saver.list(None)
        for _ in range(taken):
            next(items)
        assert nothing_is_held(path), taken
        assert len(list(items)) == 30 - taken


def test_an_async_list_that_is_paused_or_abandoned_holds_nothing(saver: SqliteSaver, path: Path) -> None:
    fill(saver)

    async def main() -> int:
        paused = saver.alist(None)
        for taken in range(20):
            await anext(paused)
            assert nothing_is_held(path), taken
        async for _ in saver.alist(None):
            break
        await paused.aclose()
        assert nothing_is_held(path)
        return len([item async for item in saver.alist(None)])

    assert asyncio.run(main()) == 30


def test_a_list_that_is_abandoned_unread_holds_nothing_and_close_does_not_wait_for_it(path: Path) -> None:
    saver = SqliteSaver(path)
    fill(saver)
    unread, half_read = saver.list(None), saver.list(None)
    next(half_read)
    assert nothing_is_held(path)
    saver.close()
    with pytest.raises(ClosedError):
        list(half_read)
    with pytest.raises(ClosedError):
        next(unread)


def test_a_list_may_go_on_in_another_thread(saver: SqliteSaver) -> None:
    fill(saver)
    items, rest = saver.list(None), []
    next(items)
    thread = threading.Thread(target=lambda: rest.extend(items))
    thread.start()
    thread.join(20)
    assert len(rest) == 29


# --- loops ---


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def graph(saver: SqliteSaver, *, inside: Any = None) -> Any:
    def first(state: State) -> State:
        return {"log": ["first"]}

    async def second(state: State) -> State:
        if inside is not None:
            inside()
        return {"log": ["second"]}

    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(checkpointer=saver)


def sync_graph(saver: SqliteSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("only", lambda state: {"log": ["sync"]})
    builder.add_edge(START, "only")
    builder.add_edge("only", END)
    return builder.compile(checkpointer=saver)


def test_one_object_serves_invoke_and_ainvoke_of_one_app_in_turn(saver: SqliteSaver) -> None:
    app, sync_app = graph(saver), sync_graph(saver)
    for turn in range(3):
        asyncio.run(app.ainvoke({"log": [f"a{turn}"]}, config()))
        sync_app.invoke({"log": [f"s{turn}"]}, config())
    expected = [word for turn in range(3) for word in (f"a{turn}", "first", "second", f"s{turn}", "sync")]
    assert sync_app.get_state(config()).values["log"] == expected


def test_get_state_history_and_update_work_inside_a_coroutine_and_inside_a_node(saver: SqliteSaver) -> None:
    looked = []

    def inside() -> None:
        looked.append(app.get_state(config()).values["log"])

    app = graph(saver, inside=inside)

    async def main() -> Any:
        await app.ainvoke({"log": ["in"]}, config(), durability="sync")
        looked.append(app.get_state(config()).values["log"])
        app.update_state(config(), {"log": ["by hand"]}, as_node="second")
        looked.append((await app.aget_state(config())).values["log"])
        return len(list(app.get_state_history(config())))

    assert asyncio.run(asyncio.wait_for(main(), 30)) == 5
    assert looked == [["in", "first"], ["in", "first", "second"], ["in", "first", "second", "by hand"]]


@pytest.mark.parametrize("name", CALLS)
def test_any_sync_method_just_works_on_a_running_loop(saver: SqliteSaver, name: str) -> None:
    fill(saver, 3)
    expected = CALLS[name](saver) if name in READS else None

    async def main() -> Any:
        return CALLS[name](saver)

    given = asyncio.run(asyncio.wait_for(main(), 20))
    assert name not in READS or given == expected


def test_sync_calls_on_the_loop_do_not_wait_for_async_ones_that_the_loop_has_yet_to_serve(saver: SqliteSaver) -> None:
    async def main() -> None:
        for _ in range(20):
            tasks = [asyncio.create_task(saver.aput(config(), checkpoint({"a": "x" * 500}), {}, {})) for _ in range(5)]
            tasks += [asyncio.create_task(saver.aget_tuple(config())) for _ in range(5)]
            await asyncio.sleep(0)
            put(saver, {"a": 1}, at=config("sync"))
            assert saver.get_tuple(config("sync")) is not None
            await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 40))
    assert len(list(saver.list(config()))) == 100
    assert len(list(saver.list(config("sync")))) == 20


def test_a_saver_made_outside_serves_any_number_of_loops_one_after_another_and_at_once(saver: SqliteSaver) -> None:
    errors: list[BaseException] = []

    async def work(name: str) -> None:
        for _ in range(5):
            await saver.aput(config(name), checkpoint(), {}, {})
            await asyncio.gather(saver.aget_tuple(config(name)), saver.aput_writes(config(name, "", "x"), [("a", 1)], "t"))

    def run_loop(name: str) -> None:
        try:
            for _ in range(3):
                asyncio.run(asyncio.wait_for(work(name), 30))
        except BaseException as error:
            errors.append(error)

    run_loop("alone")
    threads = [threading.Thread(target=run_loop, args=(f"loop {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert [len(list(saver.list(config(name)))) for name in ("alone", "loop 0", "loop 1", "loop 2", "loop 3")] == [15] * 5


class WhereSerializer(SafeSerializer):
    """Notes the threads that it works in; reading waits at a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.reading = threading.Event()

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.threads.add(threading.get_ident())
        return super().dumps_typed(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        self.threads.add(threading.get_ident())
        self.reading.set()
        assert self.gate.wait(30)
        return super().loads_typed(data)


def test_encoding_and_decoding_never_run_on_the_event_loop(path: Path) -> None:
    serde = WhereSerializer()
    with SqliteSaver(path, serde=serde) as saver:

        async def main() -> int:
            stored = await saver.aput(config(), big := checkpoint({"a": ["x" * 1000]}), {"odd": {1, 2}}, {})
            await saver.aput_writes(stored, [("a", ["y" * 1000])], "task")
            assert (await saver.aget_tuple(config())).checkpoint["channel_values"] == big["channel_values"]
            assert [item async for item in saver.alist(None, filter={"odd": {1, 2}})]
            await saver.aget_delta_channel_history(config=stored, channels=["a"])
            return threading.get_ident()

        loop_thread = asyncio.run(main())
    assert serde.threads
    assert loop_thread not in serde.threads


def test_a_loop_that_is_closed_while_a_cancelled_read_still_runs_harms_no_later_loop(path: Path) -> None:
    serde = WhereSerializer()
    with SqliteSaver(path, serde=serde) as saver:
        put(saver, {"a": ["x"]})
        serde.gate.clear()
        serde.reading.clear()

        async def impatient() -> None:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(saver.aget_tuple(config()), 0.1)
            assert serde.reading.is_set()

        asyncio.run(impatient())
        threading.Timer(0.05, serde.gate.set).start()
        assert asyncio.run(asyncio.wait_for(saver.aget_tuple(config()), 20)) is not None
        assert asyncio.run(asyncio.wait_for(saver.aput(config(), checkpoint(), {}, {}), 20))


class ExitingSerializer(SafeSerializer):
    """A user's code that raises what is no `Exception`."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if obj == ["exit"]:
            raise SystemExit("a user's code")
        return super().dumps_typed(obj)


def test_a_serializer_that_exits_leaves_no_async_call_waiting(path: Path) -> None:
    with SqliteSaver(path, serde=ExitingSerializer()) as saver:

        async def store(value: Any) -> Any:
            made = checkpoint({"a": value})
            return await saver.aput(config(), made, {}, dict(made["channel_versions"]))

        async def main() -> list[Any]:
            calls = [store(["fine"]), store(["exit"]), store(["fine"])]
            return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)

        try:
            outcomes: list[Any] = asyncio.run(main())
        except SystemExit:
            outcomes = []
        assert sum(isinstance(outcome, dict) for outcome in outcomes) <= 2
        assert asyncio.run(asyncio.wait_for(store(["after"]), 20))
        assert can_write_at_once(path)


# --- other connections' locks ---


def test_another_connections_lock_is_waited_for(face: Face, path: Path) -> None:
    held = 0.5
    with write_lock(path) as db:
        threading.Timer(held, db.execute, ["ROLLBACK"]).start()
        begun = time.monotonic()
        put(face, {"a": 1})
        assert time.monotonic() - begun > held * 0.8
    assert face.get_tuple(config()).checkpoint["channel_values"] == {"a": 1}


def test_the_event_loop_runs_on_and_reads_are_served_while_a_write_waits_for_a_lock(saver: SqliteSaver, path: Path) -> None:
    put(saver, {"a": "before"})

    async def main(db: sqlite3.Connection) -> int:
        write = asyncio.create_task(saver.aput(config(), checkpoint({"a": "after"}), {}, {}))
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.01)
            latest = await saver.aget_tuple(config())
            assert latest.checkpoint["channel_values"] == {"a": "before"}
            assert saver.get_tuple(config()) == latest
            ticks += 1
        assert not write.done()
        db.execute("ROLLBACK")
        await asyncio.wait_for(write, 20)
        return ticks

    with write_lock(path) as db:
        assert asyncio.run(main(db)) == 20
    assert saver.get_tuple(config()).checkpoint["channel_values"] == {"a": "after"}


def test_a_lock_held_longer_than_busy_timeout_is_reported_with_advice_and_the_saver_goes_on(
    open_face: Any, path: Path
) -> None:
    face = open_face(busy_timeout=0.2)
    put(face, {"a": 1})
    with write_lock(path):
        begun = time.monotonic()
        with pytest.raises(Busy) as caught:
            put(face, {"a": 2})
        assert 0.1 < time.monotonic() - begun < 5
        assert face.get_tuple(config()).checkpoint["channel_values"] == {"a": 1}
    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, sqlite3.OperationalError)
    if KNOWS_CODES:
        assert all(word in str(caught.value) for word in ("backup", "another process", "busy_timeout="))
    assert can_write_at_once(path)
    put(face, {"a": 3})
    assert [item.checkpoint["channel_values"]["a"] for item in face.list(config())] == [3, 1]


def test_no_time_at_all_is_waited_with_a_busy_timeout_of_zero(open_face: Any, path: Path) -> None:
    face = open_face(busy_timeout=0)
    with write_lock(path):
        begun = time.monotonic()
        with pytest.raises(Busy):
            put(face)
        assert time.monotonic() - begun < 1


@pytest.mark.parametrize("name", READS)
def test_a_write_lock_keeps_nobody_from_reading(open_face: Any, path: Path, name: str) -> None:
    face = open_face(busy_timeout=0)
    fill(face, 3)
    with write_lock(path):
        READS[name](face)


# --- cancellation ---


async def cancelled_at_a_random_moment(call: Any, rng: random.Random, longest: float) -> bool:
    """Whether it was cancelled; else it had ended."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(rng.random() * longest)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


def durations(measured: list[float]) -> float:
    return sorted(measured)[len(measured) // 2] * 1.6


async def duration_of(make: Callable[[], Any]) -> float:
    """1.6 times what a call takes, so that some are cancelled and some are not."""
    taken = []
    for _ in range(15):
        begun = time.perf_counter()
        await make()
        taken.append(time.perf_counter() - begun)
    return durations(taken)


def test_an_aput_cancelled_at_any_moment_is_whole_or_absent_and_leaves_nothing_open(saver: SqliteSaver, path: Path) -> None:
    rng = random.Random(4)
    made = []

    def aput() -> Any:
        values = {f"c{number}": [f"{number} " * 200] for number in range(12)}
        made.append(checkpoint(values))
        return saver.aput(config(), made[-1], {"step": 1}, dict(made[-1]["channel_versions"]))

    async def main() -> list[bool]:
        longest = await duration_of(aput)
        made.clear()
        cancelled = []
        for _ in range(140):
            cancelled.append(await cancelled_at_a_random_moment(aput(), rng, longest))
            await saver.aput(config("next"), checkpoint(), {}, {})  # queued behind it: then the worker is idle
            assert can_write_at_once(path)
        return cancelled

    cancelled = asyncio.run(main())
    stored = [saver.get_tuple(config("t", "", each["id"])) for each in made]
    assert all(
        found is None or found.checkpoint["channel_values"] == each["channel_values"] for found, each in zip(stored, made)
    )
    assert all(found is not None for found, was in zip(stored, cancelled) if not was)
    assert 0 < sum(cancelled) < 140


def test_an_aput_writes_cancelled_at_any_moment_is_whole_or_absent_and_leaves_nothing_open(
    saver: SqliteSaver, path: Path
) -> None:
    rng = random.Random(5)
    stored = put(saver)
    writes = [(f"channel {number}", [f"{number} " * 100]) for number in range(10)]
    tasks = iter(range(10_000))

    async def main() -> dict[str, bool]:
        longest = await duration_of(lambda: saver.aput_writes(stored, writes, f"measured {next(tasks)}"))
        cancelled = {}
        for number in range(200):
            call = saver.aput_writes(stored, writes, f"task {number}")
            cancelled[f"task {number}"] = await cancelled_at_a_random_moment(call, rng, longest)
            await saver.aput(config("next"), checkpoint(), {}, {})
            assert can_write_at_once(path)
        return cancelled

    cancelled = asyncio.run(main())
    counts = dict.fromkeys(cancelled, 0)
    for task, _, _ in saver.get_tuple(stored).pending_writes:
        if task in counts:
            counts[task] += 1
    assert set(counts.values()) <= {0, 10}
    assert all(counts[task] == 10 for task, was in cancelled.items() if not was)
    assert 0 < sum(cancelled.values()) < 200


def test_an_alist_or_aget_tuple_cancelled_at_any_moment_leaves_nothing_open(saver: SqliteSaver, path: Path) -> None:
    fill(saver, 40)
    rng = random.Random(6)

    async def all_of_it() -> int:
        return len([item async for item in saver.alist(config())])

    async def main() -> list[bool]:
        longest = await duration_of(all_of_it)
        cancelled = []
        for number in range(150):
            cancelled.append(await cancelled_at_a_random_moment(all_of_it(), rng, longest))
            await cancelled_at_a_random_moment(saver.aget_tuple(config()), rng, longest / 20)
            if number % 10 == 0:
                assert await all_of_it() == 40
                assert nothing_is_held(path)
        assert await all_of_it() == 40
        return cancelled

    assert 0 < sum(asyncio.run(main())) < 150
    assert nothing_is_held(path)


def test_a_run_that_is_cancelled_at_any_moment_can_be_resumed(saver: SqliteSaver, path: Path) -> None:
    rng = random.Random(7)
    app = graph(saver)

    async def main() -> int:
        longest = await duration_of(lambda: app.ainvoke({"log": ["in"]}, config(f"measured {rng.random()}")))
        cancelled = 0
        for number in range(40):
            at = config(f"run {number}")
            cancelled += await cancelled_at_a_random_moment(app.ainvoke({"log": ["in"]}, at), rng, longest)
            if (await app.aget_state(at)).values:
                await app.ainvoke(None, at)
                assert (await app.aget_state(at)).values["log"] == ["in", "first", "second"]
        return cancelled

    assert 0 < asyncio.run(asyncio.wait_for(main(), 90)) < 40
    assert nothing_is_held(path)


# --- threads ---


def test_eight_threads_with_one_saver_lose_nothing(face: Face) -> None:
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            at = config(f"thread {number}")
            for step in range(6):
                at = put(face, {"a": [f"{number}.{step}"], "b": ["x" * 400] * (step + 1)}, parent=at, step=step)
                face.put_writes(at, [("a", [step]), ("b", step)], "task")
                assert face.get_tuple(config(f"thread {number}")).config == at
                assert len(list(face.list(config(f"thread {number}"), filter={"step": step}))) == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    for number in range(8):
        history = list(face.list(config(f"thread {number}")))
        assert [item.checkpoint["channel_values"]["a"] for item in history] == [
            [f"{number}.{step}"] for step in reversed(range(6))
        ]
        assert [len(item.checkpoint["channel_values"]["b"]) for item in history] == [6, 5, 4, 3, 2, 1]
        assert all(len(item.pending_writes) == 2 for item in history)


def test_eight_savers_on_one_file_in_eight_threads_lose_nothing(path: Path) -> None:
    errors: list[BaseException] = []
    ready = threading.Barrier(8)

    def work(number: int) -> None:
        try:
            ready.wait(20)
            with SqliteSaver(path, synchronous="normal") as saver:
                fill(saver, 8, at=config(f"thread {number}"))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    with SqliteSaver(path) as saver:
        assert len(list(saver.list(None))) == 64


# --- processes ---


def test_a_file_that_another_process_builds_between_any_two_statements_of_opening_opens_all_the_same(
    tmp_path: Path, tap: Tap
) -> None:
    outcomes = set()
    for number in range(100):
        path, left = tmp_path / f"{number}.db", [number]

        def somebody_is_first(db: sqlite3.Connection, statement: str, path: Path = path, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == -1:
                try:
                    with SqliteSaver(path, busy_timeout=0) as other:
                        put(other)
                    outcomes.add("built")
                except CheckpointError:  # the first one holds the lock
                    outcomes.add("busy")

        tap.before = somebody_is_first
        with SqliteSaver(path, busy_timeout=5) as saver:
            enough = left[0] >= 0
            tap.forget()
            put(saver)
            assert len(list(saver.list(None))) in (1, 2)
        if enough:
            break
    assert enough
    assert outcomes == {"built", "busy"}


def test_sixteen_processes_start_at_once_on_a_fresh_file_and_none_fails(tmp_path: Path) -> None:
    script = """
        for kind in ("fresh", "fresh again", "empty", "not in WAL mode"):
            path = f"{PATH}/{kind}.db"
            if kind == "empty":
                open(path, "w").close()
            if kind == "not in WAL mode":
                SqliteSaver(path).close()
                with sqlite3.connect(path) as db:
                    db.execute("PRAGMA journal_mode = DELETE")
                db.close()
            gate, go = os.pipe()
            children = []
            for number in range(16):
                pid = os.fork()
                if pid == 0:
                    os.close(go)
                    os.read(gate, 1)
                    code = 1
                    try:
                        with SqliteSaver(path) as saver:
                            put(saver, {"a": ["x" * 300]}, at=config(f"process {number}"))
                            assert saver.get_tuple(config(f"process {number}")) is not None
                        code = 0
                    except BaseException as error:
                        print(kind, number, repr(error), flush=True)
                    os._exit(code)
                children.append(pid)
            os.close(go)  # now
            failed = sum(os.waitpid(pid, 0)[1] != 0 for pid in children)
            with SqliteSaver(path) as saver:
                print(kind, "failed:", failed, "stored:", len(list(saver.list(None))))
    """
    out = run(script, tmp_path, seconds=60)
    kinds = ("fresh", "fresh again", "empty", "not in WAL mode")
    assert out.splitlines() == [f"{kind} failed: 0 stored: 16" for kind in kinds], out


def test_processes_made_by_spawn_share_the_file(path: Path) -> None:
    script = """
        from scripts import write_some
        spawn = multiprocessing.get_context("spawn")
        with SqliteSaver(PATH) as saver:
            processes = [spawn.Process(target=write_some, args=(PATH, f"child {number}", 5)) for number in range(2)]
            for process in processes: process.start()
            for _ in range(5): put(saver, {"a": 1}, at=config("parent"))
            for process in processes: process.join(30)
            print([process.exitcode for process in processes], len(list(saver.list(None))))
    """
    assert run(script, path, seconds=60).strip() == "[0, 0] 15"


CHILD = """
        def child(saver, name, count=12):
            '''What a pre-fork server's child does with the saver that it inherited: both faces, and reading.'''
            code = 1
            try:
                for number in range(count // 2):
                    at = put(saver, {"a": ["x" * 400, number]}, at=config(name))
                    asyncio.run(saver.aput(at, checkpoint({"a": [number]}), {}, {}))
                    assert len(list(saver.list(config(name)))) == 2 * number + 2
                    assert asyncio.run(saver.aget_tuple(config("parent"))) is not None
                code = 0
            except BaseException as error:
                print(repr(error), flush=True)
            os._exit(code)
"""


def forked(script: str, path: Path) -> str:
    out = run(CHILD + script, path, flags=FORKING, seconds=60)
    assert sql(path, "PRAGMA integrity_check") == [("ok",)]
    return out.strip()


def stored(path: Path, *names: str) -> list[int]:
    with SqliteSaver(path) as saver:
        return [len(list(saver.list(config(name)))) for name in names]


def test_after_a_fork_parent_and_child_go_on_and_the_parent_closes_last(path: Path) -> None:
    script = """
        saver = SqliteSaver(PATH)
        put(saver, {"a": 1}, at=config("parent"))
        asyncio.run(saver.aput(config("parent"), checkpoint({"a": 2}), {}, {}))
        pid = os.fork()
        if pid == 0: child(saver, "child")
        for number in range(10): put(saver, {"a": number}, at=config("parent"))
        print(os.waitpid(pid, 0)[1], len(list(saver.list(config("child")))))
        put(saver, {"a": 3}, at=config("parent"))
        saver.close()
    """
    assert forked(script, path) == "0 12"
    assert stored(path, "parent", "child") == [13, 12]


def test_after_a_fork_the_child_goes_on_although_the_parent_closes_first(path: Path) -> None:
    script = """
        saver = SqliteSaver(PATH)
        put(saver, {"a": 1}, at=config("parent"))
        closed, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            put(saver, {"a": 0}, at=config("early child"))
            os.read(closed, 1)
            child(saver, "child")
        put(saver, {"a": 2}, at=config("parent"))
        saver.close()
        os.write(told, b"x")
        print(os.waitpid(pid, 0)[1])
    """
    assert forked(script, path) == "0"
    assert stored(path, "parent", "early child", "child") == [2, 1, 12]


def test_after_a_fork_either_may_be_killed_and_nothing_acknowledged_is_lost(path: Path) -> None:
    script = """
        saver = SqliteSaver(PATH)
        put(saver, {"a": 1}, at=config("parent"))
        pid = os.fork()
        if pid == 0:
            put(saver, {"a": 1}, at=config("child"))
            os.kill(os.getpid(), 9)
        os.waitpid(pid, 0)
        put(saver, {"a": 2}, at=config("parent"))
        pid = os.fork()
        if pid == 0:
            time.sleep(0.3)  # the parent is gone by then
            put(saver, {"a": 2}, at=config("child"))
            os._exit(0)
        print(pid, flush=True)
        os._exit(0)
    """
    forked(script, path)
    deadline = time.monotonic() + 20
    while stored(path, "child") != [2] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stored(path, "parent", "child") == [2, 2]


def test_a_fork_while_threads_write_and_read_leaves_no_lock_behind_in_the_child(path: Path) -> None:
    script = """
        saver = SqliteSaver(PATH, synchronous="normal")
        put(saver, {"a": 1}, at=config("parent"))
        stop, counts, errors = threading.Event(), [0, 0, 0, 0], []
        def write(number):
            try:
                while not stop.is_set():
                    if number % 2: asyncio.run(saver.aput(config(f"writer {number}"), checkpoint({"a": 1}), {}, {}))
                    else: put(saver, {"a": ["x" * 300]}, at=config(f"writer {number}"))
                    counts[number] += 1
                    len(list(saver.list(config("parent"))))
            except BaseException as error: errors.append(repr(error))
        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads: thread.start()
        codes = []
        for number in range(6):
            time.sleep(0.02)
            pid = os.fork()
            if pid == 0: child(saver, f"child {number}", 4)
            codes.append(os.waitpid(pid, 0)[1])
        stop.set()
        for thread in threads: thread.join(20)
        saver.close()
        with SqliteSaver(PATH) as saver:
            stored = [len(list(saver.list(config(f"writer {number}")))) for number in range(4)]
        print(codes, errors, stored == counts, min(counts) > 0)
    """
    assert forked(script, path) == "[0, 0, 0, 0, 0, 0] [] True True"
    assert stored(path, *[f"child {number}" for number in range(6)]) == [4] * 6


def test_threads_that_fork_at_the_same_time_do_not_lock_each_other_out(path: Path) -> None:
    script = """
        saver, other = SqliteSaver(PATH, synchronous="normal"), SqliteSaver(PATH + "2", synchronous="normal")
        stop = threading.Event()
        def write(saver):
            while not stop.is_set():
                put(saver, {"a": 1}, at=config("parent"))
                SqliteSaver(":memory:").close()  # the list of open savers changes all the time
        def fork():
            for _ in range(15):
                pid = os.fork()
                if pid == 0: os._exit(0)
                os.waitpid(pid, 0)
        writers = [threading.Thread(target=write, args=(each,), daemon=True) for each in (saver, other)]
        forkers = [threading.Thread(target=fork, daemon=True) for _ in range(3)]
        for thread in writers + forkers: thread.start()
        for thread in forkers: thread.join(20)
        stop.set()
        for thread in writers: thread.join(20)
        print([thread.is_alive() for thread in forkers + writers], flush=True)
        os._exit(0)
    """
    assert forked(script, path) == str([False] * 5)


def test_a_child_goes_on_with_a_list_that_its_parent_began(path: Path) -> None:
    script = """
        saver = SqliteSaver(PATH)
        for number in range(30): put(saver, {"a": number}, at=config("parent"))
        items = saver.list(config("parent"))
        first = next(items)
        pid = os.fork()
        rest = [item.checkpoint["channel_values"]["a"] for item in items]
        print(rest == list(range(28, -1, -1)), flush=True)
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        saver.close()
    """
    assert forked(script, path).replace("\n", "") == "TrueTrue"  # two processes print, perhaps on one line


def test_a_multiprocessing_pool_that_forks_uses_the_inherited_saver(path: Path) -> None:
    script = """
        saver = SqliteSaver(PATH)
        put(saver, {"a": 1}, at=config("parent"))
        def work(number):
            put(saver, {"a": number}, at=config(f"child {number}"))
            asyncio.run(saver.aput(config(f"child {number}"), checkpoint({"a": number}), {}, {}))
            return len(list(saver.list(config("parent"))))
        with multiprocessing.get_context("fork").Pool(3) as pool:
            print(pool.map_async(work, range(9)).get(30))
            pool.close()
            pool.join()
        put(saver, {"a": 2}, at=config("parent"))
        saver.close()
    """
    assert forked(script, path) == str([1] * 9)
    assert stored(path, "parent", *[f"child {number}" for number in range(9)]) == [2] + [2] * 9


def test_a_memory_saver_is_copied_by_a_fork(path: Path) -> None:
    script = """
        saver = SqliteSaver(":memory:")
        put(saver, {"a": 1}, at=config("parent"))
        pid = os.fork()
        if pid == 0: child(saver, "child")
        code = os.waitpid(pid, 0)[1]
        put(saver, {"a": 2}, at=config("parent"))
        print(code, len(list(saver.list(None))))
        saver.close()
    """
    assert forked(script, path) == "0 2"
