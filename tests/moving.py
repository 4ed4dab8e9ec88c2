"""Threads of every kind, for tests that move or show them: messages, a fork, a subgraph, a Send, a delta, an error, questions."""

import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from conftest import config
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt


@dataclass
class Order:
    """A class of the user's."""

    name: str
    amount: int


def joined(values: list[str], writes: Any) -> list[str]:
    return [*(values or []), *(item for write in writes for item in write)]


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    seen: set[str]
    order: Order
    history: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=3)]
    fail: bool


class Inner(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def plan(state: State) -> Any:
    return {
        "messages": [AIMessage("I will pay.", tool_calls=[{"name": "pay", "args": {"to": "Ann"}, "id": "c1"}])],
        "log": ["plan"],
        "seen": {"plan"},
        "order": Order("Ann", 100),
        "history": ["planned"],
    }


def one(state: State) -> Any:
    if state.get("fail"):
        raise ValueError("the bank is <closed>")
    return {"log": ["one"], "history": ["one"]}


def two(state: State) -> Any:
    return {"log": ["two"], "history": [str(interrupt({"question": "Pay 100 to Ann?"}))]}


def each(state: State) -> Any:
    return [Send("audit", {"log": [name]}) for name in ("x", "y")]


def inner() -> Any:
    builder = StateGraph(Inner)
    builder.add_node("look", lambda state: {"log": ["look"]})
    builder.add_node("ask", lambda state: {"log": [str(interrupt("Is it right?"))]})
    return builder.add_edge(START, "look").add_edge("look", "ask").add_edge("ask", END).compile()


def graph(saver: Any) -> Any:
    builder = StateGraph(State)
    for name, node in {"plan": plan, "one": one, "two": two, "inner": inner()}.items():
        builder.add_node(name, node)
    builder.add_node("audit", lambda state: {"log": [f"audit {state['log'][-1]}"]})
    builder.add_edge(START, "plan").add_edge("plan", "one").add_edge("plan", "two").add_edge(["one", "two"], "inner")
    builder.add_conditional_edges("inner", each, ["audit"])
    return builder.compile(checkpointer=saver)


def begin(saver: Any, thread: str, **state: Any) -> Any:
    return graph(saver).invoke({"messages": [HumanMessage("Pay Ann 100")], "log": ["start"], **state}, config(thread))


def tell(saver: Any) -> None:
    """All of them, in this order."""
    told = graph(saver)
    begin(saver, "asks")
    begin(saver, "asks inside")
    told.invoke(Command(resume="yes"), config("asks inside"))
    begin(saver, "done")
    told.invoke(Command(resume="yes"), config("done"))
    told.invoke(Command(resume="right"), config("done"))
    told.invoke({"messages": [HumanMessage("Again")]}, config("done"))
    begin(saver, "forked")
    told.invoke(Command(resume="no"), config("forked"))
    earlier = [state for state in told.get_state_history(config("forked")) if state.next == ("one", "two")][0]
    branch = told.update_state(earlier.config, {"log": ["another road"]}, as_node="plan")
    told.invoke(None, branch)
    try:
        begin(saver, "fails", fail=True)
    except ValueError:
        pass


def finish(saver: Any) -> dict[str, Any]:
    """Every thread that waits is answered; what is in each in the end."""
    told = graph(saver)
    answers = {"asks": ["yes", "right"], "asks inside": ["right"], "forked": ["yes", "right"], "done": ["yes", "right"]}
    for thread, given in answers.items():
        for answer in given:
            told.invoke(Command(resume=answer), config(thread))
    return {thread: plain(told.get_state(config(thread)).values) for thread in answers}


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Without the ids of messages, which are drawn anew."""
    messages = [(message.type, message.content) for message in values["messages"]]
    return {**values, "messages": messages, "seen": sorted(values["seen"])}


def held(saver: Any, thread: str) -> Any:
    """All that the contract shows of a thread, by namespace, newest first."""
    found: dict[str, list[Any]] = {}
    for item in saver.list({"configurable": {"thread_id": thread}}):
        parent = item.parent_config["configurable"]["checkpoint_id"] if item.parent_config else None
        found.setdefault(item.config["configurable"]["checkpoint_ns"], []).append(
            (item.checkpoint, dict(item.metadata), parent, item.pending_writes or [])
        )
    return found


THREADS = ("asks", "asks inside", "done", "forked", "fails")
