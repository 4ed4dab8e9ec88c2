"""A worker with runs in flight, killed with SIGKILL again and again: started again, it finishes every run.

The worker does what a service does when it starts: ``arecover`` goes on with all that its predecessor left unfinished, then
new jobs are begun. The supervisor only starts it, kills it (here on purpose), and starts it again. In the end each job's
state is compared with that of a run that nobody disturbed, and each job's steps are counted.

To use a real model, let ``work`` call one; ``saver.once`` keeps a step's mail from being sent twice.
"""

import argparse
import asyncio
import operator
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph

from langgraph_sqlite_ckpt import SqliteSaver

JOBS = [f"job-{number}" for number in range(1, 9)]
STEPS = 12
AT_ONCE = 4


class State(TypedDict):
    job: str
    step: int
    found: Annotated[list[int], operator.add]


async def work(state: State) -> dict[str, Any]:
    await asyncio.sleep(0.03)  # a model thinks
    step = state["step"] + 1
    return {"step": step, "found": [random.Random(f"{state['job']} {step}").randint(1, 1000)]}


def agent(saver: Any) -> Any:
    builder = StateGraph(State).add_node("work", work).add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: "work" if state["step"] < STEPS else END, ["work", END])
    return builder.compile(checkpointer=saver)


def on(job: str) -> RunnableConfig:
    return {"configurable": {"thread_id": job}}


# --- the worker ---


async def serve(db: Path) -> None:
    """What was running when the last worker died, then what was not begun yet."""
    async with SqliteSaver(db) as saver:
        graph = agent(saver)
        print("serving", flush=True)
        async for run in saver.arecover(graph, concurrency=AT_ONCE, max_attempts=20):
            print(f"    {run.thread_id} recovered: {run.outcome}", flush=True)
        begun = {thread.thread_id for thread in await saver.athreads()}
        free = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(begin(graph, job, free) for job in JOBS if job not in begun))


async def begin(graph: Any, job: str, free: asyncio.Semaphore) -> None:
    async with free:
        await graph.ainvoke({"job": job, "step": 0, "found": []}, on(job))
        print(f"    {job} completed", flush=True)


# --- the supervisor ---


def supervise(db: Path, most: int, chance: random.Random) -> int:
    """Start the worker until it ends by itself; kill it after a moment each time, at most so often. How often that was."""
    kills = 0
    while not ended_by_itself(db, seconds=chance.uniform(0.1, 0.5) if kills < most else None):
        kills += 1
        print(f"worker {kills} killed; in flight: {', '.join(threads(db, 'crashed')) or 'nothing'}", flush=True)
    return kills


def ended_by_itself(db: Path, seconds: float | None) -> bool:
    """Start a worker; SIGKILL it so many seconds after it began to serve (None: never), if it still has work."""
    with subprocess.Popen([sys.executable, __file__, "--serve", str(db)], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "serving\n"
        try:
            worker.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            if len(threads(db, "completed")) < len(JOBS):
                worker.send_signal(signal.SIGKILL)
        print(worker.stdout.read(), end="", flush=True)
    if worker.returncode not in (0, -signal.SIGKILL):
        raise SystemExit(f"the worker failed with exit code {worker.returncode}")
    return worker.returncode == 0


def threads(db: Path, status: str) -> list[str]:
    with SqliteSaver(db, read_only=True) as saver:
        return [thread.thread_id for thread in saver.threads(status=status)]


async def undisturbed() -> dict[str, Any]:
    graph = agent(InMemorySaver())
    states = await asyncio.gather(*(graph.ainvoke({"job": job, "step": 0, "found": []}, on(job)) for job in JOBS))
    return dict(zip(JOBS, states, strict=True))


def faults(db: Path) -> Iterator[str]:
    expected = asyncio.run(undisturbed())
    with SqliteSaver(db) as saver:
        graph = agent(saver)
        for job in JOBS:
            if graph.get_state(on(job)).values != expected[job]:
                yield f"{job}: another state"
            steps = [one.metadata["step"] for one in saver.list(on(job))][::-1]
            if steps != list(range(-1, STEPS + 1)):
                yield f"{job}: steps {steps}"
        yield from (f"{thread.thread_id}: {thread.status}" for thread in saver.threads() if thread.status != "completed")
        yield from map(str, saver.verify())


def demonstrate(db: Path, most: int, seed: int) -> bool:
    print(f"{len(JOBS)} jobs of {STEPS} steps, {AT_ONCE} at a time, on {db}")
    began = time.monotonic()
    kills = supervise(db, most, random.Random(seed))
    found = list(faults(db))
    print(f"\n{kills} workers killed, all jobs finished after {time.monotonic() - began:.1f} s")
    print("states equal those of undisturbed runs, every step is there once: " + ("yes" if not found else "NO"))
    for fault in found:
        print("  " + fault)
    print("PASS" if kills and not found else "FAIL")
    return bool(kills) and not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", type=Path, help="the file (default: a new one in a temporary folder)")
    parser.add_argument("--kills", type=int, default=6, help="at most so many")
    parser.add_argument("--seed", type=int, default=7, help="when the workers are killed")
    parser.add_argument("--serve", type=Path, metavar="DB", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return 0 if demonstrate(options.db or Path(folder, "agent.db"), options.kills, options.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
