"""Go back to an earlier step, change what the agent believed there, and let it go on from that: history becomes a tree.

Every step is a checkpoint with a parent. ``get_state_history`` walks them, ``update_state`` on an earlier one starts a
branch with other values, and ``invoke(None, config)`` runs the branch to its end. Nothing is overwritten: both ends
stay in the file, and each can be read, or gone on from, by its checkpoint's id.

To use a real model, let ``pick_topic`` and ``write`` call one.
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.types import StateSnapshot

from langgraph_sqlite_ckpt import SqliteSaver


class State(TypedDict, total=False):
    question: str
    topic: str
    facts: list[str]
    report: str


LIBRARY = {
    "the snake": ["has no venom", "swallows its prey whole"],
    "the language": ["has generators", "counts its indentation"],
}


def pick_topic(state: State) -> State:
    """Guess what the question is about, and guess wrong."""
    return {"topic": "the snake"}


def research(state: State) -> State:
    return {"facts": LIBRARY[state["topic"]]}


def write(state: State) -> State:
    return {"report": f"Python, {state['topic']}, {' and '.join(state['facts'])}."}


def agent(saver: SqliteSaver) -> Any:
    builder = StateGraph(State)
    builder.add_node("pick_topic", pick_topic).add_node("research", research).add_node("write", write)
    builder.add_edge(START, "pick_topic").add_edge("pick_topic", "research")
    builder.add_edge("research", "write").add_edge("write", END)
    return builder.compile(checkpointer=saver)


def id_in(config: RunnableConfig | None) -> str:
    """The checkpoint's id in a config; "" where there is none, as above the first checkpoint."""
    return str(config["configurable"]["checkpoint_id"]) if config else ""


def describe(snapshot: StateSnapshot) -> str:
    """One checkpoint on one line: step, how it came about, what is due next, and what is newest in its values."""
    assert snapshot.metadata is not None
    step, source = snapshot.metadata["step"], snapshot.metadata["source"]
    due = f"next: {', '.join(snapshot.next)}" if snapshot.next else "the end"
    newest = snapshot.values.get("report") or snapshot.values.get("topic", "")
    return f"step {step:>2}  {source:<6}  {due:<16}  {newest}"


def tree(history: list[StateSnapshot], parent: str = "", indent: str = "") -> Iterator[str]:
    """The lines of the tree below a checkpoint: its only child straight below it, several ones as branches."""
    children = [snapshot for snapshot in reversed(history) if id_in(snapshot.parent_config) == parent]
    mark, rest = ("+- ", "|  ") if len(children) > 1 else ("", "")
    for child in children:
        yield f"{indent}{mark}{describe(child)}"
        yield from tree(history, id_in(child.config), indent + rest)


def print_tree(title: str, history: list[StateSnapshot]) -> None:
    print(f"{title}: {len(history)} checkpoints")
    for line in tree(history):
        print(f"  {line.rstrip()}")
    print()


def demonstrate(saver: SqliteSaver) -> None:
    graph = agent(saver)
    thread: RunnableConfig = {"configurable": {"thread_id": f"report-{uuid4().hex[:8]}"}}

    graph.invoke({"question": "What is special about Python?"}, thread)
    history = list(graph.get_state_history(thread))  # newest first
    print_tree("the run", history)

    first_end = history[0].config
    wrong = next(snapshot for snapshot in history if snapshot.next == ("research",))
    print(f"back to the checkpoint that says {wrong.values['topic']!r}: make it 'the language'\n")
    branch = graph.update_state(wrong.config, {"topic": "the language"})
    graph.invoke(None, branch)
    print_tree("both branches", list(graph.get_state_history(thread)))

    print("the first end, by its id:", graph.get_state(first_end).values["report"])
    print("the thread now          :", graph.get_state(thread).values["report"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="keep the file here (default: a temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, SqliteSaver(args.db or Path(folder) / "agent.db") as saver:
        demonstrate(saver)


if __name__ == "__main__":
    main()
