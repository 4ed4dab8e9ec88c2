"""Ask a person before a risky tool runs; the answer may come days later, in another process.

One process starts four agents and ends: each agent stopped at ``interrupt()``, before any money moved. Another process
opens the file, lists what waits for a person, and answers with ``Command(resume=...)``: one payment is approved, one
edited, one rejected. The fourth agent wants two payments in one step, so two interrupts wait side by side; they are
answered by their ids, one first and the other later, and the first does not ask again.

To use a real model, let ``plan`` ask one for the payments, for example with
``init_chat_model("openai:gpt-5-mini").with_structured_output(...)``.
"""

import argparse
import operator
import tempfile
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from langgraph_sqlite_ckpt import SqliteSaver


class Payment(TypedDict):
    to: str
    amount: int


class State(TypedDict):
    request: str
    payments: list[Payment]
    outcome: Annotated[list[str], operator.add]


# What people asked their agents for, each on a thread of its own.
REQUESTS = {
    "invoice-1": "Pay Alice 100",
    "invoice-2": "Pay Bob 20000",
    "invoice-3": "Pay Mallory 999",
    "invoice-4": "Pay Carol 40, Dave 50",
}


def plan(state: State) -> dict[str, list[Payment]]:
    """Turn the request into payments; a real agent would ask its model."""
    words = (part.split() for part in state["request"].removeprefix("Pay ").split(","))
    return {"payments": [{"to": name, "amount": int(amount)} for name, amount in words]}


def each_payment(state: State) -> list[Send]:
    return [Send("pay", payment) for payment in state["payments"]]


def pay(state: Payment) -> dict[str, list[str]]:
    """Ask, then pay. A resumed node runs again from its first line, so what has effects comes after the question."""
    decision = interrupt(state)
    if decision["type"] == "reject":
        return {"outcome": [f"did not pay {state['to']}: {decision['reason']}"]}
    agreed = decision["payment"] if decision["type"] == "edit" else state
    return {"outcome": [f"paid {agreed['amount']} to {agreed['to']}"]}


def agent(saver: SqliteSaver) -> Any:
    builder = StateGraph(State).add_node("plan", plan).add_node("pay", pay, input_schema=Payment)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", each_payment, ["pay"])
    return builder.compile(checkpointer=saver)


def on(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


def ask(db: Path) -> None:
    """The first process: start every request, and end."""
    with SqliteSaver(db) as saver:
        for thread, request in REQUESTS.items():
            agent(saver).invoke({"request": request, "payments": [], "outcome": []}, on(thread))


class Question(NamedTuple):
    thread: str
    id: str
    payment: Payment


def waiting(saver: SqliteSaver) -> Iterator[Question]:
    """Every question of every thread in the file that nobody has answered yet."""
    threads = {saved.config["configurable"]["thread_id"] for saved in saver.list(None)}
    for thread in sorted(threads):
        for question in agent(saver).get_state(on(thread)).interrupts:
            yield Question(thread, question.id, question.value)


def list_waiting(saver: SqliteSaver) -> list[Question]:
    questions = list(waiting(saver))
    print(f"waiting for a person: {len(questions)}")
    for thread, id_, payment in questions:
        print(f"  {thread}  {id_[:8]}  pay {payment['to']:<8} {payment['amount']:>6}")
    return questions


def answer(saver: SqliteSaver, thread: str, what: str, resume: Any) -> None:
    """Give a person's answer and let the graph go on, as far as it can."""
    state = agent(saver).invoke(Command(resume=resume), on(thread))
    left = len(state.get("__interrupt__", ()))
    end = f"{left} still waits" if left else ", ".join(state["outcome"])
    print(f"  {thread}  {what:<17} -> {end}")


def decide(saver: SqliteSaver) -> None:
    """The second process: list, and answer."""
    questions = list_waiting(saver)
    first, second = (question.id for question in questions if question.thread == "invoice-4")

    print("\nthe answers")
    answer(saver, "invoice-1", "approve", {"type": "approve"})
    answer(saver, "invoice-2", "edit: 200 is due", {"type": "edit", "payment": {"to": "Bob", "amount": 200}})
    answer(saver, "invoice-3", "reject", {"type": "reject", "reason": "we do not know them"})
    answer(saver, "invoice-4", f"approve {first[:8]}", {first: {"type": "approve"}})

    print()
    list_waiting(saver)
    print("\nthe last answer")
    answer(saver, "invoice-4", f"reject {second[:8]}", {second: {"type": "reject", "reason": "paid last week"}})
    print()
    list_waiting(saver)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="keep the file here, a new one (default: a temporary folder)")
    args = parser.parse_args()
    if args.db and args.db.exists():
        parser.error(f"{args.db} is there already")
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or Path(folder) / "agent.db"
        process = get_context("spawn").Process(target=ask, args=(db,))
        process.start()
        process.join()
        print(f"process {process.pid} started {len(REQUESTS)} agents and ended (exit code {process.exitcode})\n")
        with SqliteSaver(db) as saver:
            decide(saver)


if __name__ == "__main__":
    main()
