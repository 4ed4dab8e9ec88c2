"""`once`: what a task does outside happens at most once, or is in doubt; and what people can do about a doubt."""

import asyncio
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypedDict
from uuid import UUID

import pytest
from conftest import config
from effect_shapes import SHAPES, Try, some_tries
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph._internal import _constants
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy
from scripts import run
from sqlfile import forge, sql

from langgraph_sqlite_ckpt import (
    CheckpointError,
    Effect,
    EffectInDoubt,
    EffectNotDone,
    EffectRunning,
    EncodeError,
    InvalidRequest,
    SqliteSaver,
    effects,
)

KNOWS_ITS_CONTEXT = sys.version_info >= (3, 11)


class State(TypedDict, total=False):
    result: Any


class Receipt(NamedTuple):
    number: int


class Outside:
    """Counts calls, with their keys; the first ones raise what they are told to."""

    def __init__(self, *errors: BaseException, result: Any = "sent") -> None:
        self.keys: list[str] = []
        self._errors, self._result = list(errors), result

    def __call__(self, key: str) -> Any:
        self.keys.append(key)
        if self._errors:
            raise self._errors.pop(0)
        return self._result


class Agent:
    """A graph of one node, "send", which does something outside and then, the first time, may fail."""

    def __init__(self, saver: Any, face: str, *, checkpointer: Any = None, retry: RetryPolicy | None = None) -> None:
        self.saver, self.face = saver, face
        self.fails_after = False
        self.durability: Any = "async"
        builder = StateGraph(State)
        builder.add_node("send", RunnableLambda(self._sync, self._unsync), retry_policy=retry)
        builder.add_edge(START, "send")
        self.app = builder.compile(checkpointer=checkpointer if checkpointer is not None else saver)
        self.asked: tuple[str, Callable[[str], Any], dict[str, Any]] = ("mail", Outside(), {})

    def asks(self, effect: Callable[[str], Any], name: str = "mail", **options: Any) -> "Agent":
        self.asked = (name, effect, options)
        return self

    def _sync(self, state: State) -> State:
        name, effect, options = self.asked
        return self._end(self.saver.once(name, effect, **options))

    async def _unsync(self, state: State, config: RunnableConfig) -> State:
        name, effect, options = self.asked
        known = {} if KNOWS_ITS_CONTEXT else {"config": config}
        return self._end(await self.saver.aonce(name, effect, **known, **options))

    def _end(self, result: Any) -> State:
        if self.fails_after:
            self.fails_after = False
            raise ConnectionError("after the effect")
        return {"result": result}

    def start(self, thread: str = "t") -> Any:
        return self._invoke({"result": None}, thread)

    def resume(self, thread: str = "t") -> Any:
        return self._invoke(None, thread)

    def _invoke(self, given: Any, thread: str) -> Any:
        if self.face == "sync":
            return self.app.invoke(given, config(thread), durability=self.durability)["result"]
        return asyncio.run(self.app.ainvoke(given, config(thread), durability=self.durability))["result"]

    def tried(self, thread: str = "t") -> None:
        """Started, and ended by an error."""
        with pytest.raises(BaseException):  # noqa: B017, PT011  # whichever it was told to raise
            self.start(thread)


@pytest.fixture(params=["sync", "async"])
def agent(request: pytest.FixtureRequest, saver: SqliteSaver) -> Agent:
    return Agent(saver, request.param)


def in_doubt(agent: Agent, thread: str = "t") -> Effect:
    """A thread whose effect broke off."""
    agent.asks(Outside(ConnectionError("reset by peer"))).tried(thread)
    [effect] = agent.saver.effects(thread)
    return effect


# --- once ---


def test_a_resumed_task_gets_the_stored_result_and_calls_nothing(agent: Agent) -> None:
    outside = Outside(result={"id": 7})
    agent.asks(outside).fails_after = True
    agent.tried()

    assert agent.resume() == {"id": 7}
    assert len(outside.keys) == 1


def test_a_retried_task_gets_the_stored_result_and_calls_nothing(saver: SqliteSaver) -> None:
    outside = Outside()
    agent = Agent(saver, "sync", retry=RetryPolicy(initial_interval=0, jitter=False)).asks(outside)
    agent.fails_after = True

    assert agent.start() == "sent"
    assert len(outside.keys) == 1


@pytest.mark.parametrize("result", [None, b"", "", 0, ["x" * 10_000], Receipt(3)])
def test_any_result_comes_back(agent: Agent, result: Any) -> None:
    agent.asks(Outside(result=result)).fails_after = True
    agent.tried()

    assert agent.resume() == result


def test_the_entry_is_in_the_file_before_the_effect_is_called(agent: Agent, path: Path) -> None:
    agent.asks(lambda key: sql(path, "SELECT name, finished_at FROM effect WHERE key = ?", key))

    assert [tuple(row) for row in agent.start()] == [("mail", None)]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="asks Linux which file it is")
@pytest.mark.parametrize("face", ["sync", "async"])
def test_with_synchronous_normal_too_the_entry_is_forced_to_the_disk(
    path: Path, face: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: forced.append(os.readlink(f"/proc/self/fd/{file}")))
    with SqliteSaver(path, synchronous="normal") as saver:
        agent = Agent(saver, face).asks(lambda key: list(forced))

        assert agent.start() == [f"{path}-wal"]


def test_a_second_call_of_that_name_in_a_task_gets_the_result_of_the_first(saver: SqliteSaver) -> None:
    outside = Outside()

    def twice(state: State) -> State:
        return {"result": [saver.once("mail", outside), saver.once("mail", Outside(result="another"))]}

    builder = StateGraph(State)
    builder.add_node("twice", twice)
    builder.add_edge(START, "twice")

    assert builder.compile(checkpointer=saver).invoke({"result": 0}, config())["result"] == ["sent", "sent"]


def test_the_key_is_a_uuid_of_its_thread_task_and_name_alone(agent: Agent) -> None:
    outside = Outside(EffectNotDone("busy"), EffectNotDone("busy"))
    agent.asks(outside).tried()
    with pytest.raises(EffectNotDone):
        agent.resume()
    agent.resume()
    agent.asks(outside).start("another")
    agent.asks(outside, "another").start("t")

    assert len(set(outside.keys[:3])) == 1
    assert len(set(outside.keys)) == 3
    assert all(str(UUID(key)) == key for key in outside.keys)


def test_an_effect_may_be_a_coroutine_function_where_it_is_awaited(saver: SqliteSaver) -> None:
    async def outside(key: str) -> str:
        await asyncio.sleep(0)
        return "sent"

    assert Agent(saver, "async").asks(outside).start() == "sent"
    with pytest.raises(InvalidRequest, match="await aonce"):
        saver.once("mail", outside)


def test_threads_that_a_node_starts_pass_its_config(saver: SqliteSaver) -> None:
    outside = Outside()

    def send(state: State, config: RunnableConfig) -> State:
        sending = [
            threading.Thread(target=saver.once, args=(f"mail {number}", outside), kwargs={"config": config})
            for number in range(3)
        ]
        for thread in sending:
            thread.start()
        for thread in sending:
            thread.join()
        return {"result": None}

    builder = StateGraph(State)
    builder.add_node("send", send)
    builder.add_edge(START, "send")
    builder.compile(checkpointer=saver).invoke({"result": 0}, config())

    assert len(set(outside.keys)) == 3
    assert {effect.name for effect in saver.effects()} == {"mail 0", "mail 1", "mail 2"}


# --- doubt ---


def test_an_exception_out_of_the_effect_leaves_it_in_doubt_and_comes_through(agent: Agent) -> None:
    outside = Outside(ConnectionError("reset by peer"))
    agent.asks(outside)
    with pytest.raises(ConnectionError):
        agent.start()
    with pytest.raises(EffectInDoubt) as doubt:
        agent.resume()

    [effect] = agent.saver.effects(status="in_doubt")
    assert effect.error == "ConnectionError: reset by peer"
    assert len(outside.keys) == 1
    for said in ("thread 't'", "'send'", "'mail'", effect.key, "reset by peer", "saver.resolve(", "status='in_doubt'"):
        assert said in str(doubt.value)
    assert doubt.value.key == effect.key == outside.keys[0]


def test_an_interrupt_in_the_effect_leaves_it_in_doubt(saver: SqliteSaver) -> None:
    Agent(saver, "sync").asks(Outside(KeyboardInterrupt())).tried()

    assert [effect.status for effect in saver.effects()] == ["in_doubt"]


def test_a_retry_policy_does_not_call_what_is_in_doubt(saver: SqliteSaver) -> None:
    outside = Outside(ConnectionError())
    agent = Agent(saver, "sync", retry=RetryPolicy(initial_interval=0, jitter=False)).asks(outside)
    with pytest.raises(EffectInDoubt):
        agent.start()

    assert len(outside.keys) == 1


def test_where_surely_nothing_happened_a_retry_policy_calls_again(saver: SqliteSaver) -> None:
    outside = Outside(EffectNotDone("refused"), EffectNotDone("refused"))
    agent = Agent(saver, "sync", retry=RetryPolicy(initial_interval=0, jitter=False)).asks(outside)

    assert agent.start() == "sent"
    assert len(outside.keys) == 3


def test_a_result_that_cannot_be_stored_leaves_it_in_doubt(agent: Agent) -> None:
    agent.asks(Outside(result=threading.Lock()))
    with pytest.raises(EncodeError, match="thread 't'.*lock"):
        agent.start()
    with pytest.raises(EffectInDoubt, match="EncodeError"):
        agent.resume()


def test_on_doubt_retry_calls_again_with_the_same_key(agent: Agent) -> None:
    outside = Outside(ConnectionError())
    agent.asks(outside, on_doubt="retry").tried()

    assert agent.resume() == "sent"
    assert len(outside.keys) == 2
    assert len(set(outside.keys)) == 1
    assert [effect.status for effect in agent.saver.effects()] == ["done"]


def test_a_second_call_that_did_nothing_says_nothing_of_the_first(agent: Agent) -> None:
    agent.asks(Outside(ConnectionError(), EffectNotDone("busy")), on_doubt="retry").tried()
    with pytest.raises(EffectNotDone):
        agent.resume()

    assert [effect.status for effect in agent.saver.effects()] == ["in_doubt"]


def cancelled(saver: SqliteSaver, when: Callable[[], Any], effect: Callable[[str], Any]) -> None:
    async def main() -> None:
        run = asyncio.ensure_future(Agent(saver, "async").asks(effect).app.ainvoke({"result": 0}, config()))
        while not when():
            await asyncio.sleep(0.001)
        run.cancel()
        with suppress(asyncio.CancelledError):
            await run

    asyncio.run(main())


def test_a_task_that_is_cancelled_in_its_effect_leaves_it_in_doubt(saver: SqliteSaver) -> None:
    begun = threading.Event()

    async def outside(key: str) -> None:
        begun.set()
        await asyncio.sleep(60)

    cancelled(saver, begun.is_set, outside)

    assert [effect.status for effect in saver.effects()] == ["in_doubt"]


def test_a_task_that_is_cancelled_before_its_effect_leaves_nothing(
    saver: SqliteSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside, begun = Outside(), threading.Event()
    apply = effects.Call._begin

    def begin(call: Any, db: Any) -> Any:
        done = apply(call, db)
        begun.set()
        time.sleep(0.05)  # so that the cancellation comes before the commit
        return done

    monkeypatch.setattr(effects.Call, "_begin", begin)
    cancelled(saver, begun.is_set, outside)

    assert outside.keys == []
    assert list(saver.effects()) == []


# --- running ---


def test_an_effect_that_is_running_is_not_called_by_another_saver(path: Path, agent: Agent) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def outside(key: str) -> str:
        begun.set()
        assert may_end.wait(20)
        return "sent"

    first = threading.Thread(target=agent.asks(outside).start)
    first.start()
    assert begun.wait(20)
    another = Outside()
    try:
        with SqliteSaver(path) as saver:
            [effect] = saver.effects(status="running")
            with pytest.raises(EffectRunning, match=f"process {os.getpid()}"):
                Agent(saver, agent.face).asks(another, on_doubt="retry").resume()
            with pytest.raises(EffectRunning, match="this process"):
                Agent(agent.saver, agent.face).asks(another, on_doubt="retry").resume()
            with pytest.raises(InvalidRequest, match="is running"):
                saver.resolve(effect.key, happened=False)
            assert agent.saver.effects(status="running") == [effect]
    finally:
        may_end.set()
        first.join()

    assert another.keys == []
    assert [effect.status for effect in agent.saver.effects()] == ["done"]


# --- resolve ---


def test_an_effect_that_did_happen_is_not_called_and_its_task_gets_the_result(agent: Agent) -> None:
    effect, outside = in_doubt(agent), Outside()
    agent.saver.resolve(effect.key, happened=True, result=Receipt(9))

    assert agent.asks(outside).resume() == Receipt(9)
    assert outside.keys == []


def test_an_effect_that_did_not_happen_is_called_by_the_next_resume(agent: Agent) -> None:
    effect, outside = in_doubt(agent), Outside()
    asyncio.run(agent.saver.aresolve(effect.key, happened=False))

    assert agent.asks(outside).resume() == "sent"
    assert outside.keys == [effect.key]


def test_what_is_not_in_doubt_cannot_be_resolved(face: Any) -> None:
    with pytest.raises(InvalidRequest, match="no effect has the key"):
        face.resolve("nobody's", happened=True)
    Agent(face.saver, "sync").start()
    [effect] = face.effects()
    for happened in (True, False):
        with pytest.raises(InvalidRequest, match="is done"):
            face.resolve(effect.key, happened=happened)

    assert face.effects() == [effect]


@pytest.mark.parametrize(
    "call", [{"happened": None}, {"happened": 1}, {"happened": False, "result": 1}, {"happened": True, "result": object()}]
)
def test_a_resolution_that_makes_no_sense_changes_nothing(face: Any, call: dict[str, Any]) -> None:
    effect = in_doubt(Agent(face.saver, "sync"))
    with pytest.raises((InvalidRequest, EncodeError)):
        face.resolve(effect.key, **call)

    assert face.effects(status="in_doubt") == [effect]


# --- effects ---


def test_effects_come_newest_first_in_pages_by_thread_and_by_status(face: Any) -> None:
    agent = Agent(face.saver, "sync")
    for thread in ("a", "b", "c", "d"):
        agent.start(thread)
    doubted = in_doubt(agent, "e")

    everything = face.effects()
    assert [effect.thread_id for effect in everything] == ["e", "d", "c", "b", "a"]
    assert face.effects("c") == [everything[2]]
    assert face.effects(status="in_doubt") == [doubted]
    assert face.effects(status="done", limit=2, after=everything[1]) == everything[2:4]
    assert (everything[1].node, everything[1].name, everything[1].error) == ("send", "mail", None)
    assert everything[1].started_at < everything[1].finished_at
    assert everything[1].started_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("wrong", [{"status": "lost"}, {"limit": -1}, {"after": "key"}])
def test_a_question_for_effects_that_makes_no_sense_is_refused(face: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        face.effects(**wrong)


# --- where it makes no sense ---


def test_outside_of_a_node_it_is_refused(face: Any) -> None:
    for given in ({}, {"config": config()}, {"config": {}}, {"config": 7}):
        with pytest.raises(InvalidRequest, match=r"node"):
            face.once("mail", Outside(), **given)


@pytest.mark.parametrize("name", ["", 7, None, "a\0b", "\ud800"])
def test_a_name_that_is_none_is_refused(agent: Agent, name: Any) -> None:
    with pytest.raises(InvalidRequest, match="name"):
        agent.asks(Outside(), name).start()


def test_on_doubt_is_one_of_two(agent: Agent) -> None:
    with pytest.raises(InvalidRequest, match="on_doubt"):
        agent.asks(Outside(), on_doubt="ignore").start()


def test_durability_exit_is_refused_at_once(agent: Agent) -> None:
    agent.durability, outside = "exit", Outside()
    begun = time.monotonic()
    with pytest.raises(InvalidRequest, match='durability="exit"'):
        agent.asks(outside).start()

    assert outside.keys == []
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("checkpointer", [InMemorySaver(), "subgraph without"], ids=["in memory", "none"])
def test_a_graph_that_stores_its_steps_elsewhere_or_nowhere_is_refused(path: Path, checkpointer: Any) -> None:
    with SqliteSaver(path, busy_timeout=0) as saver:
        outside = Outside()
        agent = Agent(saver, "sync", checkpointer=False if checkpointer == "subgraph without" else checkpointer)
        if checkpointer == "subgraph without":
            outer = StateGraph(State)
            outer.add_node("outer", agent.app)
            outer.add_edge(START, "outer")
            agent.app = outer.compile(checkpointer=saver)
        with pytest.raises(InvalidRequest, match="not in this file"):
            agent.asks(outside).start()

        assert outside.keys == []


def test_langgraph_still_calls_it_so() -> None:
    ours = (effects.TASK_ID, effects.DURABILITY, effects.CHECKPOINTER)

    assert ours == (
        _constants.CONFIG_KEY_TASK_ID,
        _constants.CONFIG_KEY_DURABILITY,
        _constants.CONFIG_KEY_CHECKPOINTER,
    )


# --- retention, copies, verify ---


@pytest.mark.parametrize(
    "delete",
    [
        lambda face: face.delete_thread("t"),
        lambda face: face.prune(["t"], strategy="delete"),
        lambda face: face.prune(["t"]),
        lambda face: face.sweep(keep_last=1),
        lambda face: face.delete_for_runs([run.run_id for run in face.runs("t")]),
    ],
)
def test_entries_go_with_their_checkpoint(face: Any, delete: Callable[[Any], Any]) -> None:
    Agent(face.saver, "sync").start()
    assert len(face.effects()) == 1
    delete(face)

    assert list(face.effects()) == []
    assert list(face.verify()) == []


@pytest.mark.parametrize("keep", [lambda face: face.prune(["t"]), lambda face: face.sweep(keep_last=1)])
def test_entries_of_a_pending_step_are_kept(face: Any, keep: Callable[[Any], Any]) -> None:
    outside = Outside()
    agent = Agent(face.saver, "sync").asks(outside)
    agent.start()
    agent.fails_after = True
    agent.tried()
    keep(face)

    assert len(face.effects()) == 1
    assert agent.resume() == "sent"
    assert len(outside.keys) == 2


def test_with_keep_last_entries_go_with_their_steps(path: Path) -> None:
    with SqliteSaver(path, keep_last=1) as saver:
        outside = Outside()
        agent = Agent(saver, "sync").asks(outside)
        for _ in range(3):
            agent.start()

        assert list(saver.effects()) == []
        assert len(outside.keys) == 3


def test_a_thread_that_is_deleted_in_the_middle_of_an_effect_leaves_no_entry(agent: Agent) -> None:
    def outside(key: str) -> str:
        agent.saver.delete_thread("t")
        return "sent"

    assert agent.asks(outside).start() == "sent"
    assert list(agent.saver.effects()) == []


def test_a_copy_does_not_repeat_what_the_first_has_done(agent: Agent) -> None:
    outside = Outside()
    agent.asks(outside).fails_after = True
    agent.tried()
    agent.saver.copy_thread("t", "copy")

    assert agent.resume("copy") == "sent"
    assert len(outside.keys) == 1


def test_what_is_in_doubt_is_so_in_a_copy_under_the_same_key_and_one_word_ends_both(agent: Agent) -> None:
    effect, outside = in_doubt(agent), Outside()
    agent.saver.copy_thread("t", "copy")
    agent.asks(outside)
    with pytest.raises(EffectInDoubt, match=effect.key):
        agent.resume("copy")
    agent.saver.resolve(effect.key, happened=True, result="found")

    assert [agent.resume("copy"), agent.resume("t")] == ["found", "found"]
    assert outside.keys == []


def test_each_copy_does_for_itself_what_did_not_happen(agent: Agent) -> None:
    effect, outside = in_doubt(agent), Outside()
    agent.saver.copy_thread("t", "copy")
    agent.saver.resolve(effect.key, happened=False)
    agent.asks(outside).resume("copy")
    agent.resume("t")

    assert len(set(outside.keys)) == 2


def test_verify_finds_a_damaged_result_and_an_entry_without_its_checkpoint(face: Any, path: Path) -> None:
    agent = Agent(face.saver, "sync")
    agent.start("a")
    in_doubt(agent, "b")
    assert list(face.verify()) == []
    sql(path, "UPDATE effect SET data = x'00' WHERE finished_at IS NOT NULL AND error IS NULL")
    sql(path, "UPDATE effect SET checkpoint_id = 'gone' WHERE error IS NOT NULL")

    assert [problem.kind for problem in face.verify()] == ["orphan", "effect"]


def test_a_damaged_result_is_not_taken_for_none(agent: Agent, path: Path) -> None:
    outside = Outside()
    agent.asks(outside).fails_after = True
    agent.tried()
    forge(path, "effect", 1, data=b"\xc1")
    with pytest.raises(CheckpointError, match="thread 't'"):
        agent.resume()

    assert len(outside.keys) == 1


# --- killed ---


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    script = "import effect_shapes\neffect_shapes.main(PATH, effect_shapes.some_tries)"
    out = run(script, tmp_path_factory.mktemp("killed"), seconds=150)
    return [json.loads(line) for line in out.splitlines()]


def those(killed: list[dict[str, Any]], shape: str) -> Iterator[tuple[Try, dict[str, Any]]]:
    for one in killed:
        if one["shape"] == shape:
            yield Try(*(one[field] for field in Try._fields)), one


@pytest.mark.timeout(180)
@pytest.mark.parametrize("shape", SHAPES)
def test_killed_at_any_point_and_resumed_nothing_happens_twice_or_is_left_out(
    shape: str, killed: list[dict[str, Any]]
) -> None:
    found = dict(those(killed, shape))

    assert set(found) == {one for one in some_tries() if one.shape == shape}
    for one, outcome in found.items():
        assert outcome["ended"] == [-9, 0], one
        assert len(outcome["ledger"]) == 3, one
        assert len(set(outcome["ledger"])) == 3, one
        assert [re.sub("^sent ", "", sent) for sent in outcome["state"]] == outcome["ledger"], one
        assert outcome["statuses"] == ["done"], one
        assert outcome["problems"] == 0, one
