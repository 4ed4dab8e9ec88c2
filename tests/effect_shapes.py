"""Graphs of every shape whose nodes do something outside, killed with SIGKILL at every point of it and started again.

Run as a program it forks a process for each try, so that nothing is imported twice, and prints what came out as JSON.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from langgraph_sqlite_ckpt import EffectInDoubt, SqliteSaver
from langgraph_sqlite_ckpt.effects import Call

POINTS = ("before the entry", "before the effect", "in it, before it happens", "in it, after that", "before the result")
KNOWS_CONFIG = sys.version_info >= (3, 11)  # LangGraph's async tasks do not before
LATER = ("after the result",)
DELAY = 0.01  # seconds


def union(old: list[str], new: list[str]) -> list[str]:
    """Also for what a subgraph gives back beside its own."""
    return sorted({*old, *new})


class State(TypedDict, total=False):
    sent: Annotated[list[str], union]


class Try(NamedTuple):
    shape: str
    face: str
    durability: str
    point: str


class SlowSaver(SqliteSaver):
    """Stores a checkpoint when its step has long begun: what a busy disk does to durability="async"."""

    def put(self, *call: Any) -> Any:
        time.sleep(DELAY)
        return super().put(*call)

    async def aput(self, *call: Any) -> Any:
        await asyncio.sleep(DELAY)
        return await super().aput(*call)


class Office:
    """The outside: a ledger of what was sent, on the disk; and the kill."""

    def __init__(self, saver: SqliteSaver, ledger: Path, point: str | None, nth: int) -> None:
        self.saver, self.ledger, self.point, self.nth = saver, ledger, point, nth

    def reached(self, point: str) -> None:
        if point == self.point:
            self.nth -= 1
            if self.nth == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def send(self, letter: str, key: str) -> str:
        self.reached(POINTS[2])
        with self.ledger.open("a") as file:
            file.write(f"{key} {letter}\n")
            file.flush()
            os.fsync(file.fileno())
        self.reached(POINTS[3])
        return f"sent {letter}"

    def letters(self) -> list[str]:
        return [line.split()[1] for line in self.ledger.read_text().splitlines()] if self.ledger.exists() else []

    def knows(self, key: str) -> str | None:
        lines = dict(line.split() for line in self.ledger.read_text().splitlines()) if self.ledger.exists() else {}
        return lines.get(key)

    def node(self, letter_of: Callable[[Any], str]) -> Any:
        """Sends one letter; both faces."""

        def sync(state: Any, config: RunnableConfig) -> State:
            letter = letter_of(state)
            sent = self.saver.once("letter", lambda key: self.send(letter, key))
            self.reached(LATER[0])
            return {"sent": [sent]}

        async def unsync(state: Any, config: RunnableConfig) -> State:
            letter = letter_of(state)
            sent = await self.saver.aonce("letter", lambda key: self.send(letter, key), config=config)
            self.reached(LATER[0])
            return {"sent": [sent]}

        return RunnableLambda(sync, unsync)


def line(office: Office, *letters: str, saver: Any = None) -> Any:
    builder, previous = StateGraph(State), START
    for letter in letters:
        builder.add_node(letter, office.node(lambda _, letter=letter: letter))
        builder.add_edge(previous, letter)
        previous = letter
    return builder.compile(checkpointer=saver)


def loop(office: Office) -> Any:
    builder = StateGraph(State)
    builder.add_node("again", office.node(lambda state: f"letter-{len(state.get('sent', []))}"))
    builder.add_edge(START, "again")
    builder.add_conditional_edges("again", lambda state: END if len(state["sent"]) == 3 else "again")
    return builder.compile(checkpointer=office.saver)


def parallel(office: Office) -> Any:
    builder = StateGraph(State)
    for letter in ("a", "b", "c"):
        builder.add_node(letter, office.node(lambda _, letter=letter: letter))
        builder.add_edge(START, letter)
    return builder.compile(checkpointer=office.saver)


def sends(office: Office) -> Any:
    builder = StateGraph(State)
    builder.add_node("each", office.node(lambda state: state["to"]))
    builder.add_conditional_edges(START, lambda _: [Send("each", {"to": letter}) for letter in ("a", "b", "c")], ["each"])
    return builder.compile(checkpointer=office.saver)


def within(checkpointer: Any) -> Callable[[Office], Any]:
    def make(office: Office) -> Any:
        builder = StateGraph(State)
        builder.add_node("inner", line(office, "b", "c", saver=checkpointer))
        builder.add_node("a", office.node(lambda _: "a"))
        builder.add_edge(START, "a")
        builder.add_edge("a", "inner")
        return builder.compile(checkpointer=office.saver)

    return make


def nested(office: Office) -> Any:
    outer = StateGraph(State)
    outer.add_node("middle", within(None)(office))
    outer.add_edge(START, "middle")
    return outer.compile(checkpointer=office.saver)


def functional(office: Office) -> Any:
    node = office.node(lambda letter: letter)

    @task
    def send(letter: str, *, config: RunnableConfig) -> str:
        return str(node.invoke(letter, config)["sent"][0])

    @task
    async def asend(letter: str, *, config: RunnableConfig) -> str:
        return str((await node.ainvoke(letter, config))["sent"][0])

    @entrypoint(checkpointer=office.saver)
    def sync(state: Any) -> State:
        return {"sent": [send(letter).result() for letter in ("a", "b", "c")]}

    @entrypoint(checkpointer=office.saver)
    async def unsync(state: Any) -> State:
        return {"sent": [await asend(letter) for letter in ("a", "b", "c")]}

    return {"sync": sync, "async": unsync}


SHAPES: dict[str, Callable[[Office], Any]] = {
    "line": lambda office: line(office, "a", "b", "c", saver=office.saver),
    "loop": loop,
    "parallel": parallel,
    "sends": sends,
    "subgraph": within(None),
    "subgraph with a memory": within(True),
    "subgraph in a subgraph": nested,
    "functional": functional,
}


def run(one: Try, folder: Path, *, killed: bool) -> list[str]:
    """From wherever it stands to its end, doubts resolved by asking outside. Returns the state's letters."""
    with SlowSaver(folder / "agent.db", synchronous="normal") as saver:  # a SIGKILL loses nothing of it
        office = Office(saver, folder / "ledger", one.point if killed else None, nth=2)
        if killed:
            watch(office)
        app = SHAPES[one.shape](office)
        app = app[one.face] if isinstance(app, dict) else app
        while True:
            try:
                return list(invoke(one, app, saver)["sent"])
            except EffectInDoubt as doubt:
                letter = office.knows(doubt.key)
                saver.resolve(doubt.key, happened=letter is not None, result=letter and f"sent {letter}")


def watch(office: Office) -> None:
    """The points that lie in the package."""
    for method, point in (("begin", POINTS[0]), ("run", POINTS[1]), ("finish", POINTS[4])):
        original = getattr(Call, method)

        def reached(*call: Any, original: Any = original, point: str = point) -> Any:
            office.reached(point)
            return original(*call)

        setattr(Call, method, reached)


def invoke(one: Try, app: Any, saver: SqliteSaver) -> Any:
    config: Any = {"configurable": {"thread_id": "t"}}
    given = None if saver.get_tuple(config) is not None else {"sent": []}
    if one.face == "async":
        return asyncio.run(app.ainvoke(given, config, durability=one.durability))
    return app.invoke(given, config, durability=one.durability)


def tries() -> Iterator[Try]:
    """Every shape and point on both faces, with both kinds of durability that store steps."""
    for face, durability in product(("sync", "async"), ("sync", "async")):
        for shape, point in product(SHAPES, (*POINTS, *LATER)):
            yield Try(shape, face, durability, point)


def some_tries() -> Iterator[Try]:
    """A quarter of them: the point that tells most with each shape, the others, the faces and durabilities in turn."""
    points = (*POINTS, *LATER)
    for number, shape in enumerate(SHAPES):
        chosen = points if shape == "line" else (points[3], points[number % 3], points[4 + number % 2])
        for turn, point in enumerate(chosen):
            face = ("sync", "async")[(number + turn) % 2]
            yield Try(
                shape,
                face if KNOWS_CONFIG or shape != "functional" else "sync",
                ("async", "async", "sync")[turn % 3],
                point,
            )


def in_a_process(work: Callable[[], object]) -> int:
    """How it ended: 0, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def attempt(one: Try, folder: Path) -> dict[str, Any]:
    folder.mkdir()
    first = in_a_process(lambda: run(one, folder, killed=True))
    second = in_a_process(lambda: (folder / "state").write_text(json.dumps(run(one, folder, killed=False))))
    ledger = (folder / "ledger").read_text().split()[1::2]
    state = json.loads((folder / "state").read_text()) if second == 0 else None
    with SqliteSaver(folder / "agent.db") as saver:
        problems = len(saver.verify())
        statuses = sorted({effect.status for effect in saver.effects()})
    found = {"ended": [first, second], "ledger": sorted(ledger), "state": state, "problems": problems, "statuses": statuses}
    return {**one._asdict(), **found}


def main(folder: str, chosen: Callable[[], Iterator[Try]]) -> None:
    for number, one in enumerate(chosen()):
        print(json.dumps(attempt(one, Path(folder) / str(number))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], tries)
