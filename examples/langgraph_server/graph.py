"""A graph for LangGraph's server, whose checkpoints are in one SQLite file of ours: see langgraph.json beside this file.

    pip install "langgraph-cli[inmem]"
    LANGGRAPH_SQLITE_CKPT=agent.db langgraph dev

The server compiles the graph with the checkpointer that langgraph.json names; the graph itself brings none.
"""

from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt


class State(TypedDict, total=False):
    amount: int
    outcome: str


def pay(state: State) -> State:
    answer = interrupt({"question": f"Pay {state['amount']}?"})
    return {"outcome": f"paid {state['amount']}" if answer == "yes" else "not paid"}


graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").add_edge("pay", END).compile()
