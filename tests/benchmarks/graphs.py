"""The graphs that the benchmarks run: one builder each, without a model, a network or a sleep in any node."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, cast

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.messages.tool import ToolCall, tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

from .content import record, text, texts

Node = Any  # a function of the state, sync or not: add_node's own type has no name that is public
Builder = Any  # StateGraph, or an agent's factory: whatever has compile(checkpointer=…)

ROUNDS_OF_TOOLS = 12
TURN_STEPS = 2 * ROUNDS_OF_TOOLS + 1
"""Steps in one turn of the chat: model and tools by turns, and the model's last word. 8 turns make 200 steps."""


def as_async(node: Node) -> Node:
    """The same node as a coroutine, so that an async graph runs it on the loop and not in a thread."""

    async def call(state: Any) -> Any:
        return node(state)

    return call


def loop(schema: type, work: Node, steps: int, *, asynchronous: bool = False) -> Builder:
    """One node that runs `steps` times, as counted by the state's own `step`."""

    def route(state: Any) -> str:
        return "work" if state["step"] < steps else END

    face = as_async if asynchronous else lambda node: node
    builder: Builder = StateGraph(schema)
    builder.add_node("work", face(work))
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", face(route), ["work", END])
    return builder


# Chat -----------------------------------------------------------------------------------------------------------------


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def chat(outputs: Sequence[str], *, asynchronous: bool = False) -> Builder:
    """An agent's loop: the model asks for two tools at once, both answer, and so on; `TURN_STEPS` steps a turn.

    Two calls a step is what models do when they may, and it makes the state grow by one output per step on average.
    """

    def model(state: Chat) -> dict[str, Any]:
        since = since_human(state["messages"])
        return {"messages": [ai_message(since, calls=2 if since < 3 * ROUNDS_OF_TOOLS else 0)]}

    def tools(state: Chat) -> dict[str, Any]:
        asked = cast(AIMessage, state["messages"][-1]).tool_calls
        return {"messages": [tool_message(call, outputs, len(state["messages"]) + n) for n, call in enumerate(asked)]}

    def route(state: Chat) -> str:
        return "tools" if cast(AIMessage, state["messages"][-1]).tool_calls else END

    face = as_async if asynchronous else lambda node: node
    builder = StateGraph(Chat)
    builder.add_node("model", face(model))
    builder.add_node("tools", face(tools))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", face(route), ["tools", END])
    builder.add_edge("tools", "model")
    return builder


def since_human(messages: Sequence[BaseMessage]) -> int:
    """How many messages have come since the person's last one."""
    return next(n for n, message in enumerate(reversed(messages)) if isinstance(message, HumanMessage))


def ai_message(number: int, *, calls: int) -> AIMessage:
    """A model's answer with what real ones carry: usage, response metadata, calls. LangGraph gives it its random id."""
    return AIMessage(
        text(f"answer-{number}", 120),
        tool_calls=[
            tool_call(name="search", args={"query": text(f"query-{number}-{n}", 40)}, id=f"call_{number}_{n}")
            for n in range(calls)
        ],
        response_metadata={"model_name": "fake-1", "finish_reason": "tool_calls" if calls else "stop"},
        usage_metadata={"input_tokens": 900 + number, "output_tokens": 40, "total_tokens": 940 + number},
    )


def tool_message(call: ToolCall, outputs: Sequence[str], number: int) -> ToolMessage:
    return ToolMessage(outputs[number % len(outputs)], name=call["name"], tool_call_id=call["id"] or "")


# States of other kinds, in a loop -------------------------------------------------------------------------------------


class Counted(TypedDict):
    step: int


class Window(Counted):
    messages: Annotated[list[AnyMessage], add_messages]


def window(steps: int, outputs: Sequence[str], keep: int = 50) -> Builder:
    """Two messages more in each step, and all but the last `keep` removed."""

    def work(state: Window) -> dict[str, Any]:
        step, messages = state["step"], state["messages"]
        old = [RemoveMessage(id=message.id or "") for message in messages[: max(0, len(messages) + 2 - keep)]]
        new = [HumanMessage(text(f"question-{step}", 200)), AIMessage(outputs[step % len(outputs)])]
        return {"messages": [*old, *new], "step": step + 1}

    return loop(Window, work, steps)


class Nested(Counted):
    plan: dict[str, dict[str, list[Any]]]


def nested(steps: int) -> Builder:
    """A dict of dicts of lists, without a reducer: in each step one of the inner lists gets one item more."""

    def work(state: Nested) -> dict[str, Any]:
        step = state["step"]
        topic, part = f"topic-{step % 5}", ("notes", "sources")[step % 2]
        topics = dict(state["plan"])
        parts = dict(topics.get(topic, {}))
        parts[part] = [*parts.get(part, []), record(step, 1000)]
        return {"plan": {**topics, topic: parts}, "step": step + 1}

    return loop(Nested, work, steps)


class Document(Counted):
    document: str


def document(steps: int) -> Builder:
    """A document that never changes, beside a counter that does."""
    return loop(Document, count, steps)


class Small(Counted):
    note: str


def small(steps: int, *, asynchronous: bool = False) -> Builder:
    """A counter and a short string: what remains is the saver's fixed cost per step."""

    def work(state: Small) -> dict[str, Any]:
        return {"step": state["step"] + 1, "note": f"step {state['step']} done"}

    return loop(Small, work, steps, asynchronous=asynchronous)


def count(state: Counted) -> dict[str, Any]:
    return {"step": state["step"] + 1}


def wide(steps: int, channels: int = 50) -> Builder:
    """Fifty channels of 2 kB, of which each step changes three."""
    schema = TypedDict("Wide", {"step": int, **{f"field_{n}": str for n in range(channels)}})  # type: ignore[misc]
    values = texts("wide", 64, 2000)

    def work(state: Any) -> dict[str, Any]:
        step = state["step"]
        return {"step": step + 1} | {f"field_{(3 * step + n) % channels}": values[(step + n) % 64] for n in range(3)}

    return loop(schema, work, steps)


def append(state: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*state, *(item for write in writes for item in write)]


class Delta(Counted):
    items: Annotated[list[Any], DeltaChannel(append, snapshot_frequency=1_000_000)]


def delta(steps: int) -> Builder:
    """A DeltaChannel that never snapshots: reading the last state means walking every step back to the first."""

    def work(state: Delta) -> dict[str, Any]:
        return {"step": state["step"] + 1, "items": [text("delta", 100) + str(state["step"])]}

    return loop(Delta, work, steps)


# LangGraph's own graph shapes -----------------------------------------------------------------------------------------


class Jokes(TypedDict):
    subjects: list[str]
    jokes: Annotated[list[str], operator.add]


class Joke(TypedDict):
    subject: str
    jokes: list[str]


def fan_out() -> Builder:
    """One subgraph call per subject, all in one step; three steps in each, as in LangGraph's `fanout_to_subgraph`."""

    def edit(state: Joke) -> dict[str, Any]:
        return {"subject": f"{state['subject']} - hohoho"}

    def tell(state: Joke) -> dict[str, Any]:
        return {"jokes": [f"Joke about {state['subject']}: {text(state['subject'], 500)}"]}

    def bump(state: Joke) -> dict[str, Any]:
        return {"jokes": [f"{joke} and more" for joke in state["jokes"]]}

    inner = StateGraph(Joke).add_sequence([edit, tell, bump]).add_edge(START, "edit")
    outer = StateGraph(Jokes)
    outer.add_node("joke", inner.compile())
    outer.add_conditional_edges(
        START, lambda state: [Send("joke", {"subject": subject}) for subject in state["subjects"]], ["joke"]
    )
    return outer


class FakeModel(BaseChatModel):
    """Asks for one tool ten times a turn, then answers: the model of LangGraph's own `react_agent` benchmark."""

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        since = since_human(messages)
        return ChatResult(generations=[ChatGeneration(message=ai_message(since, calls=1 if since < 20 else 0))])


@tool
def search(query: str) -> str:
    """Search, and return a page of 2 kB."""
    return text(query, 2000)


class React:
    """`create_agent` makes a compiled graph; this gives it the `compile` that the other builders have."""

    def compile(self, checkpointer: Any) -> Any:
        from langchain.agents import create_agent  # takes seconds to import, and each process of a benchmark would

        return create_agent(FakeModel(), [search], checkpointer=checkpointer)
