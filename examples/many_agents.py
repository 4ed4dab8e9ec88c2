"""Many agents at once on one file: several processes, each with threads and with concurrent async agents.

Every process has one ``SqliteSaver``, which all its agents share: the threads through ``invoke``, the coroutines
through ``ainvoke``. When all have ended, each agent's state, read from the file, is compared with what it has to be,
and its steps are counted: none is lost, none is there twice.

To use a real model, let ``work`` call one. The file will then wait for the models, and not the agents for the file.
"""

import argparse
import asyncio
import operator
import random
import sys
import tempfile
import threading
from datetime import datetime
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from langgraph_sqlite_ckpt import SqliteSaver

PROCESSES = 4
THREADS = 2
COROUTINES = 5
STEPS = 20


class State(TypedDict):
    name: str
    step: int
    notes: Annotated[list[str], operator.add]
    total: Annotated[int, operator.add]


def found(name: str, step: int) -> int:
    """What an agent finds in a step: random, but always the same."""
    return random.Random(f"{name} {step}").randint(1, 1000)


def work(state: State) -> dict[str, Any]:
    step = state["step"] + 1
    value = found(state["name"], step)
    return {"step": step, "notes": [f"{state['name']} found {value}"], "total": value}


def expected(name: str) -> State:
    """An agent's final state, worked out without a graph and without a file."""
    values = [found(name, step) for step in range(1, STEPS + 1)]
    return {"name": name, "step": STEPS, "notes": [f"{name} found {value}" for value in values], "total": sum(values)}


def more_to_do(state: State) -> str:
    return "work" if state["step"] < STEPS else END


def agent(saver: SqliteSaver) -> Any:
    builder = StateGraph(State).add_node("work", work).add_edge(START, "work")
    builder.add_conditional_edges("work", more_to_do, ["work", END])
    return builder.compile(checkpointer=saver)


def on(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def begin(name: str) -> State:
    return {"name": name, "step": 0, "notes": [], "total": 0}


def names(team: str) -> tuple[list[str], list[str]]:
    """The agents of one process: those on threads, and those on the event loop."""
    return [f"{team}-thread-{n}" for n in range(THREADS)], [f"{team}-async-{n}" for n in range(COROUTINES)]


def run_team(db: Path, team: str) -> None:
    """One process: all its agents at the same time, on one saver."""
    on_threads, on_loop = names(team)
    with SqliteSaver(db) as saver:
        graph = agent(saver)
        threads = [threading.Thread(target=graph.invoke, args=(begin(name), on(name))) for name in on_threads]
        for thread in threads:
            thread.start()
        asyncio.run(run_on_loop(graph, on_loop))
        for thread in threads:
            thread.join()


async def run_on_loop(graph: Any, on_loop: list[str]) -> None:
    await asyncio.gather(*(graph.ainvoke(begin(name), on(name)) for name in on_loop))


def start_team(db: Path, team: str, everyone_is_ready: Barrier) -> None:
    everyone_is_ready.wait(timeout=60)
    run_team(db, team)


class Record(NamedTuple):
    """What the file says about one agent."""

    name: str
    values: dict[str, Any]
    steps: list[int]
    times: list[datetime]

    @property
    def good(self) -> bool:
        """Is the state what it has to be, and is every step there once, from the input (-1) on?"""
        return self.values == expected(self.name) and self.steps == list(range(-1, STEPS + 1))


def read(saver: SqliteSaver, name: str) -> Record:
    saved = list(saver.list(on(name)))[::-1]  # list gives the newest first
    steps = [one.metadata["step"] for one in saved]
    times = [datetime.fromisoformat(one.checkpoint["ts"]) for one in saved]
    return Record(name, agent(saver).get_state(on(name)).values, steps, times)


def run_all(db: Path, teams: list[str]) -> list[int | None]:
    """Run every team in a process of its own, all at once, and return their exit codes."""
    spawn = get_context("spawn")
    ready = spawn.Barrier(len(teams))
    processes = [spawn.Process(target=start_team, args=(db, team, ready)) for team in teams]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def demonstrate(db: Path) -> bool:
    tag = uuid4().hex[:6]
    teams = [f"{tag}-team-{number}" for number in range(1, PROCESSES + 1)]
    print(f"{PROCESSES} processes of {THREADS} threads and {COROUTINES} coroutines, each an agent, on {db}\n")
    codes = run_all(db, teams)

    everyone: list[Record] = []
    with SqliteSaver(db) as saver:
        for team, code in zip(teams, codes, strict=True):
            records = [read(saver, name) for group in names(team) for name in group]
            good = sum(record.good for record in records)
            print(f"{team}  exit code {code}  {len(records)} agents, {good} as expected")
            everyone += records

    good = sum(record.good for record in everyone)
    steps = sum(step > 0 for record in everyone for step in record.steps)
    times = [time for record in everyone for time in record.times]
    seconds = (max(times) - min(times)).total_seconds()
    print(f"\n{good} of {len(everyone)} agents ended as expected, with each step saved once")
    print(f"{steps} steps in {seconds:.1f} s: {steps / seconds:.0f} steps/s")
    return good == len(everyone) and not any(codes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="keep the file here (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good = demonstrate(args.db or Path(folder) / "agent.db")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
