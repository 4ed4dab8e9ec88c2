"""How often to save: what each policy costs, and what a SIGKILL loses with it, side by side.

An agent works through its steps; every twentieth is a payment, which must not be forgotten. For each policy it is killed
with SIGKILL in a step, in a process of its own, and another one looks at what is on disk. Then it runs undisturbed, and
its steps per second, commits and bytes are measured. All policies keep the whole history; they differ in when it is
written.

To use a real model, let ``work`` call one. A step then takes seconds, and a commit a millisecond: save every step.
"""

import argparse
import operator
import os
import signal
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph

from langgraph_sqlite_ckpt import Flush, SqliteSaver

STEPS = 100
KILLED_IN = 58
PAY_AFTER = 20
ON_THREAD: RunnableConfig = {"configurable": {"thread_id": "agent"}, "recursion_limit": 10 * STEPS}

POLICIES: dict[str, Flush | None] = {
    "every step": None,
    "steps=5": Flush(steps=5),
    "steps=20": Flush(steps=20),
    "seconds=0.1": Flush(seconds=0.1),
    "nodes={'pay'}": Flush(nodes={"pay"}),
    "steps=5, nodes={'pay'}": Flush(steps=5, nodes={"pay"}),
}


class State(TypedDict):
    step: int
    notes: Annotated[list[str], operator.add]


def work(state: State) -> dict[str, Any]:
    step = state["step"] + 1
    return {"step": step, "notes": [f"step {step}: " + f"found {step * 7919 % 1000}, " * 20]}


def killed(state: State) -> dict[str, Any]:
    if state["step"] + 1 == KILLED_IN:
        os.kill(os.getpid(), signal.SIGKILL)
    return work(state)


def next_node(state: State) -> str:
    if state["step"] >= STEPS:
        return END
    return "pay" if state["step"] % PAY_AFTER == PAY_AFTER - 1 else "work"


def agent(saver: SqliteSaver, node: Any) -> Any:
    builder = StateGraph(State).add_node("work", node).add_node("pay", node).add_edge(START, "work")
    builder.add_conditional_edges("work", next_node, ["work", "pay", END])
    builder.add_conditional_edges("pay", next_node, ["work", "pay", END])
    return builder.compile(checkpointer=saver)


def run(db: Path, flush: Flush | None, node: Any, **options: Any) -> None:
    with SqliteSaver(db, flush=flush, **options) as saver:
        agent(saver, node).invoke({"step": 0, "notes": []}, ON_THREAD, durability="sync")


def lost_in_a_kill(db: Path, flush: Flush | None) -> int:
    """Steps that were finished and are not on disk after a SIGKILL."""
    process = get_context("fork").Process(target=run, args=(db, flush, killed))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with SqliteSaver(db) as saver:
        return KILLED_IN - 1 - int(agent(saver, work).get_state(ON_THREAD).values.get("step", 0))


class Cost(NamedTuple):
    steps_per_second: float
    commits: int
    kilobytes: int
    checkpoints: int


def cost(db: Path, flush: Flush | None) -> Cost:
    events: list[str] = []
    begin = time.perf_counter()
    run(db, flush, work, on_event=lambda event: events.append(event.operation))
    seconds = time.perf_counter() - begin
    with SqliteSaver(db) as saver:
        assert saver.verify() == []
        kilobytes, checkpoints = db.stat().st_size // 1024, len(list(saver.list(ON_THREAD)))
        return Cost(STEPS / seconds, events.count("commit"), kilobytes, checkpoints)


def demonstrate(folder: Path) -> None:
    lost = {name: lost_in_a_kill(folder / f"killed {name}.db", flush) for name, flush in POLICIES.items()}
    print(f"an agent of {STEPS} steps; a kill in step {KILLED_IN}, so {KILLED_IN - 1} are finished\n")
    print(f"{'policy':<24}{'steps/s':>9}{'commits':>9}{'file':>9}{'checkpoints':>13}{'a kill loses':>14}")
    for name, flush in POLICIES.items():
        one = cost(folder / f"{name}.db", flush)
        print(
            f"{name:<24}{one.steps_per_second:>9.0f}{one.commits:>9}{one.kilobytes:>6} kB{one.checkpoints:>13}"
            f"{lost[name]:>8} steps"
        )


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
