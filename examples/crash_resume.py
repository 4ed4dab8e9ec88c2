"""Kill an agent with SIGKILL in the middle of its work, and let a new process finish it.

An agent of 10 steps runs in a process of its own, which kills itself inside step 5: nothing is caught, flushed or
closed. A second process opens the same file and calls ``invoke(None, config)``. Its final state is then compared, field
by field, with that of an agent that nobody disturbed; and a ledger beside the database, forced to the disk by every
step, tells whether a finished step ran again.

    python examples/crash_resume.py                     killed in step 5
    python examples/crash_resume.py --at 8 --async      in step 8, through ainvoke
    python examples/crash_resume.py --db agent.db       keep the file, to look into it with sqlite3

To use a real model, put for example ``init_chat_model("openai:gpt-5-mini", temperature=0)`` in the place of
``SeededModel()``. The agent resumes all the same, but two runs are then only as alike as the model's answers.
"""

import argparse
import asyncio
import operator
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import uuid4

from langchain_core.language_models.chat_models import SimpleChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Durability, StateSnapshot

from langgraph_sqlite_ckpt import SqliteSaver

STEPS = 10
TASK = "Which depot loses the most parcels?"
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL: there, os.kill ends a process at once


# --- The agent: plan, four times think and act, report.


class State(TypedDict):
    task: str
    messages: Annotated[list[AnyMessage], add_messages]
    findings: Annotated[list[str], operator.add]
    tokens: Annotated[int, operator.add]
    step: int


Update = dict[str, Any]


class SeededModel(SimpleChatModel):
    """A fake chat model, seeded with the whole conversation: a message lost or doubled changes every later answer."""

    def _call(self, messages: list[Any], *args: Any, **kwargs: Any) -> str:
        dice = random.Random("\n".join(message.text for message in messages))
        return f"depot {dice.choice('ABCD')} in week {dice.randint(1, 52)}"

    @property
    def _llm_type(self) -> str:
        return "seeded"


def think(state: State, message_id: str) -> Update:
    """Ask the model. LangChain would give its answer a random id; the step's lets two runs be compared."""
    answer = SeededModel().invoke(state["messages"])
    answer.id = message_id
    return {"messages": [answer], "tokens": len(answer.text.split())}


def act(state: State, message_id: str) -> Update:
    """Do what the model asked for: the kind of step that must not happen twice."""
    request = state["messages"][-1].text
    lost = random.Random(request).randint(0, 99)
    result = ToolMessage(f"{lost} parcels lost", tool_call_id=message_id, id=message_id)
    return {"messages": [result], "findings": [f"{lost:2} in {request}"]}


def report(state: State, message_id: str) -> Update:
    """Answer the task from what was found: the greatest number, which stands in front."""
    return {"messages": [AIMessage(f"at most {max(state['findings'])}", id=message_id)]}


def after_act(state: State) -> str:
    return "report" if state["step"] == STEPS - 1 else "think"


class Job(NamedTuple):
    """One agent on one thread: what a process must know to start it, or to go on with it."""

    db: Path
    thread: str
    durability: Durability = "sync"
    use_async: bool = False
    kill_at: int | None = None

    @property
    def config(self) -> RunnableConfig:
        return {"configurable": {"thread_id": self.thread}}

    @property
    def ledger(self) -> Path:
        return self.db.with_name(self.db.name + ".ledger")


def agent(job: Job, saver: SqliteSaver) -> Any:
    builder = StateGraph(State)
    for name, work in {"plan": think, "think": think, "act": act, "report": report}.items():
        builder.add_node(name, counted(job, work))
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "think")
    builder.add_edge("think", "act")
    builder.add_conditional_edges("act", after_act, ["think", "report"])
    builder.add_edge("report", END)
    return builder.compile(checkpointer=saver)


def counted(job: Job, work: Callable[[State, str], Update]) -> RunnableLambda[State, Update]:
    """Wrap a step's work: number it, note it in the ledger, and die in it when it is the one."""

    def node(state: State) -> Update:
        step = state["step"] + 1
        note(job, "begin", step)
        if step == job.kill_at:
            os.kill(os.getpid(), KILL)
        update = work(state, f"step-{step}")
        note(job, "end", step)
        return {**update, "step": step}

    return RunnableLambda(node)


# --- The ledger: what really ran, whatever the checkpoints say.


class Event(NamedTuple):
    thread: str
    kind: str
    step: int


def note(job: Job, kind: str, step: int) -> None:
    """Append one line, and have it on the disk before the step goes on."""
    with job.ledger.open("a") as file:
        file.write(f"{job.thread} {kind} {step}\n")
        file.flush()
        os.fsync(file.fileno())


def events(job: Job) -> list[Event]:
    lines = (line.split() for line in job.ledger.read_text().splitlines())
    return [Event(thread, kind, int(step)) for thread, kind, step in lines if thread == job.thread]


def repeated(log: list[Event]) -> list[int]:
    """The steps that came to their end more than once."""
    ended = [event.step for event in log if event.kind == "end"]
    return sorted({step for step in ended if ended.count(step) > 1})


# --- One process: start the thread, or go on with it. The same call after every crash.


def run(job: Job) -> dict[str, Any]:
    """Bring the thread to its end, from wherever it is, and return the final state."""
    with SqliteSaver(job.db) as saver:
        graph = agent(job, saver)
        begun = saver.get_tuple(job.config) is not None
        given = None if begun else {"task": TASK, "messages": [HumanMessage(TASK, id="task")], "tokens": 0, "step": 0}
        if job.use_async:
            final = asyncio.run(graph.ainvoke(given, job.config, durability=job.durability))
        else:
            final = graph.invoke(given, job.config, durability=job.durability)
    return dict(final)


def run_in_new_process(job: Job) -> int | None:
    """Run the job in a fresh interpreter and return its exit code: -9 after a SIGKILL."""
    process = get_context("spawn").Process(target=run, args=(job,))
    process.start()
    process.join()
    return process.exitcode


def saved(job: Job) -> StateSnapshot:
    """What the file knows about the job's thread."""
    with SqliteSaver(job.db) as saver:
        snapshot: StateSnapshot = agent(job, saver).get_state(job.config)
    return snapshot


# --- The comparison.


class Row(NamedTuple):
    field: str
    undisturbed: Any
    resumed: Any

    @property
    def same(self) -> bool:
        return bool(self.undisturbed == self.resumed)

    @property
    def verdict(self) -> str:
        return "same" if self.same else "DIFFERS"


def compare(undisturbed: dict[str, Any], resumed: dict[str, Any]) -> list[Row]:
    """Pair two states field by field; a field that one of them lacks is ``<absent>`` there."""
    fields = dict.fromkeys([*undisturbed, *resumed])
    return [Row(name, undisturbed.get(name, "<absent>"), resumed.get(name, "<absent>")) for name in fields]


def short(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return str(value)
    return f"{len(value)}, last: {getattr(value[-1], 'text', value[-1])}"


def print_table(rows: list[Row]) -> None:
    lines = [("field", "undisturbed", "killed and resumed", "")]
    lines += [(row.field, short(row.undisturbed), short(row.resumed), row.verdict) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(map(str.ljust, line, widths)).rstrip())


# --- The demonstration.


def print_process(title: str, log: list[Event], end: str) -> None:
    """Print the steps that one process began, each in its own column."""
    begun = {event.step for event in log}
    steps = (str(step) if step in begun else "." for step in range(1, STEPS + 1))
    print(f"{title:<11}  steps {' '.join(steps):<{2 * STEPS}}  {end}")


def print_saved(snapshot: StateSnapshot) -> None:
    """Print where the thread stands. Nothing is next when a step's result is there, but not yet its checkpoint."""
    if snapshot.created_at is None:
        print("the file     knows nothing: the agent has to start again")
    else:
        after = ", ".join(snapshot.next) or "what follows it"
        print(f"the file     has the state after step {snapshot.values['step']}; next: {after}")


def demonstrate(job: Job) -> bool:
    """Run one agent undisturbed and one through a kill; say whether all is as it should be."""
    calm = job._replace(thread=f"undisturbed-{uuid4().hex[:8]}", kill_at=None)
    killed = job._replace(thread=f"killed-{uuid4().hex[:8]}")
    call = "ainvoke" if job.use_async else "invoke"
    print(f"An agent of {STEPS} steps, {call}, durability={job.durability!r}, in {job.db}\n")

    undisturbed = run(calm)
    print_process("undisturbed", events(calm), f"{call}(task, config)")

    first_code = run_in_new_process(killed)
    first_log = events(killed)
    name = signal.Signals(KILL).name
    print_process("process 1", first_log, f"{call}(task, config): {name} in step {job.kill_at}, exit code {first_code}")
    found = saved(killed)
    print_saved(found)

    second_code = run_in_new_process(killed._replace(kill_at=None))
    log = events(killed)
    given = "task" if found.created_at is None else "None"
    print_process("process 2", log[len(first_log) :], f"{call}({given}, config): exit code {second_code}")

    print()
    rows = compare(undisturbed, saved(killed).values)
    print_table(rows)
    print(f"\nfinished steps that ran twice: {', '.join(map(str, repeated(log))) or 'none'}")
    codes = first_code in (-KILL, KILL) and second_code == 0
    return codes and all(row.same for row in rows) and as_promised(job, repeated(log))


def as_promised(job: Job, again: list[int]) -> bool:
    """Only ``durability="sync"`` saves each step before the next one begins; the others may lag behind and repeat."""
    return not again or job.durability != "sync"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at", type=int, default=5, metavar="N", help=f"the step to die in, 1 to {STEPS} (default: 5)")
    parser.add_argument("--async", action="store_true", dest="use_async", help="run the agent with ainvoke")
    parser.add_argument("--durability", choices=["sync", "async", "exit"], default="sync", help="(default: sync)")
    parser.add_argument("--db", type=Path, help="keep the file here (default: a temporary folder)")
    args = parser.parse_args()
    if not 1 <= args.at <= STEPS:
        parser.error(f"--at: the agent has the steps 1 to {STEPS}")
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or Path(folder) / "agent.db"
        good = demonstrate(Job(db, "", args.durability, args.use_async, args.at))
    print("PASS: the resumed agent ended exactly as the undisturbed one." if good else "FAIL: see above.")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
