"""Deploy a new release while agents wait: yesterday's threads go on under today's state and today's names.

Release 1 keeps ``notes``, and stops in its node ``act`` to ask a person. Its process ends. Release 2 has a state with
``version`` and ``tool_calls``, calls the notes ``messages`` and the node ``use_tools``. It gives the saver a list of
migrations, one entry for each of these changes; entries are appended, never edited, so the list's length is the version of
a state. The old thread is read in its new shape, answered, and ends like one that began under release 2. Then
``migrate_all`` rewrites what nobody has touched, and release 1, started once more by mistake, is refused.

To use a real model, let ``act`` and ``use_tools`` ask one which tools to call.
"""

import argparse
import operator
import tempfile
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from langgraph_sqlite_ckpt import NewerStateError, SqliteSaver, rename_channel, rename_node


class State1(TypedDict):
    question: str
    notes: Annotated[list[str], operator.add]


class ToolCall(TypedDict):
    tool: str
    argument: str


class State2(TypedDict):
    version: int
    question: str
    messages: Annotated[list[str], operator.add]
    tool_calls: Annotated[list[ToolCall], operator.add]


def add_tool_calls(values: dict[str, Any]) -> dict[str, Any]:
    """A function of ours: from the values of one version to those of the next. What was never written is not there."""
    searches = [note.removeprefix("searched: ") for note in values.get("messages", []) if note.startswith("searched: ")]
    return {**values, "version": 2, "tool_calls": [{"tool": "search", "argument": search} for search in searches]}


MIGRATIONS = [rename_channel("notes", "messages"), add_tool_calls, rename_node("act", "use_tools")]


def research1(state: State1) -> dict[str, Any]:
    return {"notes": [f"searched: {state['question']}"]}


def act(_state: State1) -> dict[str, Any]:
    return {"notes": [f"the person said: {interrupt('May I send the report?')}"]}


def release1(saver: SqliteSaver) -> Any:
    builder = StateGraph(State1).add_node("research", research1).add_node("act", act)
    return builder.add_edge(START, "research").add_edge("research", "act").compile(checkpointer=saver)


def research2(state: State2) -> dict[str, Any]:
    search: ToolCall = {"tool": "search", "argument": state["question"]}
    return {"version": 2, "messages": [f"searched: {state['question']}"], "tool_calls": [search]}


def use_tools(_state: State2) -> dict[str, Any]:
    answer = interrupt("May I send the report?")
    send: ToolCall = {"tool": "send", "argument": "report"}
    return {"messages": [f"the person said: {answer}"], "tool_calls": [send] if answer == "yes" else []}


def release2(saver: SqliteSaver) -> Any:
    builder = StateGraph(State2).add_node("research", research2).add_node("use_tools", use_tools)
    return builder.add_edge(START, "research").add_edge("research", "use_tools").compile(checkpointer=saver)


def on(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def show(title: str, values: dict[str, Any]) -> None:
    print(title)
    for name, value in sorted(values.items()):
        print(f"    {name:<11} {value}")


def yesterday(db: Path) -> None:
    """The process of release 1: two threads begin and wait."""
    with SqliteSaver(db) as saver:
        for thread in ("report-1", "report-2"):
            release1(saver).invoke({"question": "What is new in SQLite?", "notes": []}, on(thread))
        waiting = release1(saver).get_state(on("report-1"))
        show(f"release 1: report-1 waits in {waiting.next[0]!r} with", waiting.values)


def today(db: Path) -> None:
    """The process of release 2."""
    with SqliteSaver(db, migrations=MIGRATIONS) as saver:
        graph = release2(saver)
        waiting = graph.get_state(on("report-1"))
        show(f"release 2: report-1 waits in {waiting.next[0]!r} with", waiting.values)
        print(f"    it asks     {waiting.interrupts[0].value}\n")
        ended = graph.invoke(Command(resume="yes"), on("report-1"))
        show("answered; report-1 ended with", ended)

        graph.invoke({"question": "What is new in SQLite?"}, on("fresh"))
        fresh = graph.invoke(Command(resume="yes"), on("fresh"))
        end = "the same" if fresh == ended else f"ANOTHER STATE: {fresh}"
        print(f"a thread of release 2 from its start ends with {end}\n")

        dry, done, again = saver.migrate_all(dry_run=True), saver.migrate_all(), saver.migrate_all()
        print(f"migrate_all would rewrite {dry.checkpoints} checkpoints (errors: {len(dry.errors)}), ", end="")
        print(f"rewrote {done.checkpoints}, then {again.checkpoints}; problems in the file: {len(saver.verify())}\n")


def by_mistake(db: Path) -> None:
    """Release 1 again, on a file that it does not understand any more."""
    try:
        SqliteSaver(db)
    except NewerStateError as error:
        print(f"release 1 started again is refused: {str(error).removeprefix(f'{db}: ')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="keep the file here, a new one (default: a temporary folder)")
    args = parser.parse_args()
    if args.db and args.db.exists():
        parser.error(f"{args.db} is there already")
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or Path(folder) / "agent.db"
        for release in (yesterday, today, by_mistake):
            process = get_context("spawn").Process(target=release, args=(db,))
            process.start()
            process.join()
            print(f"[process {process.pid} ended with exit code {process.exitcode}]\n")


if __name__ == "__main__":
    main()
