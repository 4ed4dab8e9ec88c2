"""Claims: one saver alone runs a thread, for as long as it is there."""

import asyncio
import math
import os
import random
import subprocess
import threading
import time
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated, Any

import pytest
from conftest import Face, config, put
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from scripts import start
from sqlfile import KNOWS_CODES, rows, sql, write_lock
from threads import thread
from typing_extensions import TypedDict

from langgraph_sqlite_ckpt import BusyError, InvalidRequest, ReadOnlyError, SqliteSaver, StorageError, ThreadBusy
from langgraph_sqlite_ckpt.schema import SILENCE


@pytest.fixture
def other(path: Path, saver: SqliteSaver) -> Any:
    with SqliteSaver(path, synchronous="normal") as other:
        yield other


class Claims:
    """`with` or `async with`, from one body."""

    def __init__(self, face: Face) -> None:
        self.face = face

    def take(self, saver: SqliteSaver, thread_id: object = "t", **options: Any) -> Any:
        claim = saver.claim(thread_id, **options)
        return claim.__enter__() if self.face.name == "sync" else self.face._run(claim.__aenter__())

    def give_back(self, claim: Any) -> None:
        if self.face.name == "sync":
            claim.__exit__(None, None, None)
        else:
            self.face._run(claim.__aexit__(None, None, None))


@pytest.fixture
def claims(face: Face) -> Claims:
    return Claims(face)


def is_free(saver: SqliteSaver, thread_id: object = "t") -> bool:
    try:
        with saver.claim(thread_id):
            return True
    except ThreadBusy:
        return False


# --- exclusive ---


def test_a_claimed_thread_is_busy_for_everybody_and_others_are_free(claims: Claims, saver: Any, other: Any) -> None:
    claim = claims.take(saver)

    for whoever in (saver, other):
        with pytest.raises(ThreadBusy, match="'t' has been claimed by"):
            claims.take(whoever)
        claims.give_back(claims.take(whoever, "another"))
    claims.give_back(claim)

    claims.give_back(claims.take(other))


def test_threads_of_one_saver_take_turns(saver: SqliteSaver) -> None:
    inside, most, turns = 0, 0, 0

    def work() -> None:
        nonlocal inside, most, turns
        for _ in range(5):
            with saver.claim("t", timeout=60):
                inside += 1
                most = max(most, inside)
                time.sleep(0.001)
                inside -= 1
                turns += 1

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert (most, turns) == (1, 20)


async def test_tasks_of_two_savers_take_turns(saver: SqliteSaver, other: SqliteSaver) -> None:
    inside, most, turns = 0, 0, 0

    async def work(saver: SqliteSaver) -> None:
        nonlocal inside, most, turns
        for _ in range(3):
            async with saver.claim("t", timeout=math.inf):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1
                turns += 1

    await asyncio.gather(*map(work, [saver, other] * 4))

    assert (most, turns) == (1, 24)


HOLDING = """
saver = SqliteSaver(PATH)
with saver.claim("t"):
    print("ready", flush=True)
    sys.stdin.readline()
    print("left")
sys.stdin.readline()
saver.close()
"""


def holding(path: Path) -> "subprocess.Popen[str]":
    process = start(HOLDING, path, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_processes_take_turns_and_a_claim_dies_with_its_process(path: Path, saver: SqliteSaver) -> None:
    with holding(path) as process:
        with pytest.raises(ThreadBusy, match=f"process {process.pid} on "):
            saver.claim("t").__enter__()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        with saver.claim("t", timeout=30):
            pass
        process.kill()
    with holding(path) as process:
        assert not is_free(saver)
        process.kill()
        process.wait()
        assert is_free(saver)
        put(saver, {"a": 1})
    assert is_free(saver)


# --- waiting ---


def test_it_does_not_wait_unless_told_to(claims: Claims, saver: Any, other: Any) -> None:
    claims.take(saver)
    began = time.monotonic()
    with pytest.raises(ThreadBusy):
        claims.take(other)
    at_once = time.monotonic() - began

    with pytest.raises(ThreadBusy):
        claims.take(other, timeout=at_once + 0.3)
    assert time.monotonic() - began >= at_once + 0.3


@pytest.mark.parametrize("timeout", [30, math.inf])
def test_it_waits_until_the_thread_is_free(claims: Claims, saver: Any, other: Any, timeout: float) -> None:
    claim = saver.claim("t").__enter__()
    threading.Timer(0.1, claim.__exit__, [None, None, None]).start()

    claims.take(other, timeout=timeout)


@pytest.mark.parametrize("timeout", ["3", -1, None, True, math.nan])
def test_a_timeout_that_is_none_is_refused(saver: SqliteSaver, timeout: Any) -> None:
    with pytest.raises(InvalidRequest, match="timeout is a number of seconds"):
        saver.claim("t", timeout=timeout)


@pytest.mark.parametrize("thread_id", [None, "a\0b", "\ud800"])
def test_an_id_that_no_thread_can_have_is_refused(saver: SqliteSaver, thread_id: Any) -> None:
    with pytest.raises(InvalidRequest, match="thread_id"):
        saver.claim(thread_id)


def test_ids_are_those_of_configs(saver: SqliteSaver, other: SqliteSaver) -> None:
    with saver.claim(7):
        with pytest.raises(ThreadBusy):
            put(other, {"a": 1}, at=config("7"))
        with pytest.raises(ThreadBusy):
            put(other, {"a": 1}, at=config(7))


# --- giving it back ---


def test_an_error_in_the_block_gives_it_back(saver: SqliteSaver, other: SqliteSaver) -> None:
    with pytest.raises(ZeroDivisionError), saver.claim("t"):
        raise ZeroDivisionError
    assert is_free(other)


def test_closing_in_the_block_gives_it_back(path: Path, claims: Claims, other: SqliteSaver) -> None:
    with SqliteSaver(path) as saver:
        claim = claims.take(saver)
        thread(saver, "t", "running")
        saver.close()
        assert is_free(other)
        claims.give_back(claim)
    assert [each.status for each in other.threads()] == ["stopped"]


def test_a_claim_entered_twice_is_busy_and_given_back_by_its_first_block(saver: SqliteSaver, other: SqliteSaver) -> None:
    claim = saver.claim("t")
    with claim:
        with pytest.raises(ThreadBusy):
            claim.__enter__()
        assert not is_free(other)
    assert is_free(other)
    with claim:
        assert not is_free(other)
    assert is_free(other)


def test_a_claim_on_a_thread_that_does_not_exist_leaves_nothing_behind(path: Path, claims: Claims, saver: Any) -> None:
    claims.give_back(claims.take(saver))

    assert sql(path, "SELECT * FROM custody") == []


def test_a_claim_alone_changes_no_status(path: Path, claims: Claims, saver: Any, other: Any) -> None:
    thread(other, "t", "running")
    other.close()
    claims.give_back(claims.take(saver))

    assert [each.status for each in saver.threads()] == ["stopped"]


def test_what_a_claim_leaves_unfinished_runs_no_more(claims: Claims, saver: Any) -> None:
    claim = claims.take(saver)
    thread(saver, "t", "running")
    assert [each.status for each in saver.threads()] == ["running"]
    claims.give_back(claim)

    assert [each.status for each in saver.threads()] == ["stopped"]


def test_a_file_that_is_locked_says_so_once(path: Path) -> None:
    with SqliteSaver(path, busy_timeout=0.4) as saver, write_lock(path):
        began = time.monotonic()
        with pytest.raises(BusyError if KNOWS_CODES else StorageError):
            saver.claim("t").__enter__()
        assert time.monotonic() - began < 0.75


def test_who_only_reads_claims_nothing(path: Path, saver: SqliteSaver) -> None:
    with SqliteSaver(path, read_only=True) as reader, pytest.raises(ReadOnlyError):
        reader.claim("t").__enter__()


# --- writing meanwhile ---


def test_others_writes_are_refused_whole_and_the_same_savers_are_not(face: Face, path: Path, other: SqliteSaver) -> None:
    other_face = Face(other, face.name)
    last = put(face, {"a": 1})
    with face.saver.claim("t"):
        before = rows(path)
        with pytest.raises(ThreadBusy):
            put(other_face, {"a": 2}, parent=last)
        with pytest.raises(ThreadBusy):
            other_face.put_writes(last, [("a", 1), ("b", 2)], "task")
        with pytest.raises(ThreadBusy):
            put(other_face, {"a": 2}, at=config("t", "sub:1"))
        assert rows(path) == before
        put(other_face, {"a": 2}, at=config("u"))
        put(face, {"a": 3}, parent=last)
        face.put_writes(last, [("a", 1)], "task")
    put(other_face, {"a": 2}, parent=last)


def test_giving_it_back_and_writing_on_in_one_transaction_is_fine(saver: SqliteSaver, other: SqliteSaver) -> None:
    from langgraph_sqlite_ckpt.claims import Claiming, Releasing
    from langgraph_sqlite_ckpt.custody import custody_of

    shared = saver._shared
    owner = shared.owner
    with ExitStack() as stack:
        claim = stack.enter_context(saver.claim("t"))
        write = saver._put_writes(config("t", "", "x"), [("a", 1)], "task", "")
        again = saver._put_writes(config("t", "", "x"), [("a", 2)], "task 2", "")
        releasing = Releasing(owner, "t", claim._number)
        tickets = shared.database.write_all([releasing, write, Claiming(owner, "t", 5, custody_of), again])

        assert [ticket.error for ticket in tickets] == [None] * 4
        assert not is_free(other)
        shared.database.write(Releasing(owner, "t", 5))
    assert is_free(other)


def test_who_was_taken_for_gone_cannot_write_any_more(path: Path, saver: SqliteSaver, other: SqliteSaver) -> None:
    last = thread(saver, "t", "running")
    with saver.claim("t"):
        silent = (datetime.now(timezone.utc) - timedelta(seconds=SILENCE + 1)).isoformat(timespec="microseconds")
        sql(path, "UPDATE owner SET host = 'another', beat_at = ?", silent)
        with other.claim("t"):
            with pytest.raises(ThreadBusy, match="took this saver for gone"):
                put(saver, {"a": 1}, parent=last)
        with pytest.raises(ThreadBusy, match="took this saver for gone"):
            saver.put_writes(last, [("a", 1)], "task")
        put(other, {"b": 1}, parent=last)
    put(saver, {"a": 1}, parent=last)


def test_who_was_taken_for_gone_and_not_replaced_goes_on(path: Path, saver: SqliteSaver, other: SqliteSaver) -> None:
    with saver.claim("t"):
        sql(path, "UPDATE owner SET ended = 'gone'")
        put(saver, {"a": 1})
        assert not is_free(other)
    assert is_free(other)


def test_a_thread_deleted_under_a_claim_stays_claimed(path: Path, saver: SqliteSaver, other: SqliteSaver) -> None:
    put(saver, {"a": 1})
    with saver.claim("t"):
        other.delete_thread("t")
        assert not is_free(other)
        put(saver, {"a": 1})
        saver.delete_thread("t")
        assert not is_free(other)
    assert sql(path, "SELECT * FROM custody") == []


# --- forks ---


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_neither_has_nor_releases_its_parents_claim(saver: SqliteSaver, other: SqliteSaver) -> None:
    ready_made = saver.claim("u")
    with saver.claim("t") as claim:
        child = os.fork()
        if not child:
            failed = 1
            try:
                for wrong, error in (
                    (lambda: put(saver, {"a": 1}), ThreadBusy),
                    (lambda: saver.claim("t").__enter__(), ThreadBusy),
                    (ready_made.__enter__, InvalidRequest),
                ):
                    with pytest.raises(error):
                        wrong()
                claim.__exit__(None, None, None)
                failed = 0
            finally:
                os._exit(failed)
        assert os.waitpid(child, 0)[1] == 0
        assert not is_free(other)
    assert is_free(other)


# --- cancelled ---


async def test_cancelled_at_any_moment_it_leaves_no_claim_behind(
    path: Path, saver: SqliteSaver, other: SqliteSaver
) -> None:
    chance = random.Random(7)

    async def work() -> None:
        async with saver.claim("t", timeout=chance.choice([0, 1])):
            await asyncio.sleep(chance.random() * 0.004)

    for round_ in range(150):
        tasks = [asyncio.create_task(work()) for _ in range(2)]
        await asyncio.sleep(chance.random() * 0.006)
        for task in tasks:
            task.cancel()
            if round_ % 3 == 0:  # an impatient one
                await asyncio.sleep(0)
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    async with other.claim("t", timeout=5):
        pass
    assert saver._shared.owner.claims == {}


def test_a_loop_that_ends_in_the_block_leaves_no_claim_behind(saver: SqliteSaver, other: SqliteSaver) -> None:
    async def hold() -> None:
        async with saver.claim("t"):
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(hold())
        while is_free(other):
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # in the middle of giving it back

    for _ in range(5):
        asyncio.run(main())
        with other.claim("t", timeout=5):
            pass


# --- graphs ---


def add(left: list[Any], right: list[Any]) -> list[Any]:
    return left + right


class State(TypedDict):
    turns: Annotated[list[Any], add]


def chat(saver: SqliteSaver, during: Any = lambda: None) -> Any:
    def answer(state: State) -> Any:
        during()
        return {"turns": [f"answer to {state['turns'][-1]}"]}

    graph = StateGraph(State).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END)
    return graph.compile(checkpointer=saver)


def test_two_runs_at_once_under_claims_lose_no_turn(saver: SqliteSaver, other: SqliteSaver) -> None:
    def talk(saver: SqliteSaver, who: str) -> None:
        graph = chat(saver, lambda: time.sleep(0.002))
        for number in range(4):
            with saver.claim("t", timeout=60):
                graph.invoke({"turns": [f"{who}{number}"]}, config())

    talkers = [threading.Thread(target=talk, args=[each, who]) for each, who in ((saver, "a"), (other, "b"), (saver, "c"))]
    for talker in talkers:
        talker.start()
    for talker in talkers:
        talker.join()

    turns = chat(saver).get_state(config()).values["turns"]
    assert len(turns) == 24
    assert turns[1::2] == [f"answer to {turn}" for turn in turns[::2]]
    assert sorted(turns[::2]) == [f"{who}{number}" for who in "abc" for number in range(4)]


def test_a_run_that_was_refused_can_be_done_again_after(saver: SqliteSaver, other: SqliteSaver) -> None:
    graph, refused = chat(saver), chat(other)
    graph.invoke({"turns": ["one"]}, config())
    with saver.claim("t"):
        with pytest.raises(ThreadBusy):
            refused.invoke({"turns": ["two"]}, config())
        assert graph.get_state(config()).values["turns"] == ["one", "answer to one"]

    assert refused.invoke({"turns": ["two"]}, config())["turns"] == ["one", "answer to one", "two", "answer to two"]


APPROVING = """
from test_claims import approvals
from langgraph.types import Command
with SqliteSaver(PATH) as saver:
    graph = approvals(saver, sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    with saver.claim("t", timeout=60):
        waits = graph.get_state(config()).interrupts
        if waits:
            graph.invoke(Command(resume="yes"), config())
        print("approved" if waits else "nothing waits")
"""


def approvals(saver: SqliteSaver, done: str) -> Any:
    def gate(state: State) -> Any:
        answer = interrupt("well?")
        with open(done, "a") as file:
            file.write(answer + "\n")
        return {"turns": [answer]}

    graph = StateGraph(State).add_node("gate", gate).add_edge(START, "gate").add_edge("gate", END)
    return graph.compile(checkpointer=saver)


def test_two_who_approve_at_once_run_the_gated_node_once(path: Path, saver: SqliteSaver, tmp_path: Path) -> None:
    done = tmp_path / "done"
    approvals(saver, str(done)).invoke({"turns": []}, config())

    people = [start(APPROVING, path, done, stdin=subprocess.PIPE) for _ in range(2)]
    for person in people:
        assert person.stdout is not None
        assert person.stdout.readline() == "ready\n"
    for person in people:
        assert person.stdin is not None
        person.stdin.write("\n")
        person.stdin.flush()
    said = sorted(person.communicate(timeout=30)[0] for person in people)

    assert said == ["approved\n", "nothing waits\n"]
    assert done.read_text() == "yes\n"
