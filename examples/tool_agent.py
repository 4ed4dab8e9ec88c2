"""A tool-calling agent that waits for a person, and goes on in another process with its whole conversation.

``langchain.agents.create_agent`` with two tools; its ``HumanInTheLoopMiddleware`` stops the agent before ``refund``.
Everything is async and streamed. The process that started the conversation ends while the agent waits; another one
opens the file, allows the refund, and then asks a further question, about something that was said in the first.

To use a real model, put its name in the place of ``ScriptedModel()``: ``create_agent("openai:gpt-5-mini", ...)``.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from langgraph_sqlite_ckpt import SqliteSaver

SCRIPT = [
    AIMessage("", tool_calls=[{"name": "find_order", "args": {"order": "A-17"}, "id": "call-1"}]),
    AIMessage("", tool_calls=[{"name": "refund", "args": {"order": "A-17", "euros": 40}, "id": "call-2"}]),
    AIMessage("It arrived broken, so I have refunded 40 euros."),
    AIMessage("It was order A-17."),
]


class ScriptedModel(BaseChatModel):
    """A fake chat model that reads its place in the script off the conversation, as a real one reads everything."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        said = sum(isinstance(message, AIMessage) for message in messages)
        return ChatResult(generations=[ChatGeneration(message=SCRIPT[said].model_copy())])

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    @property
    def _llm_type(self) -> str:
        return "scripted"


async def find_order(order: str) -> str:
    """Look an order up."""
    return f"{order}: one teapot, 40 euros, arrived broken"


async def refund(order: str, euros: int) -> str:
    """Send money back."""
    return f"{euros} euros sent back for {order}"


def agent(saver: SqliteSaver) -> Any:
    ask_first = HumanInTheLoopMiddleware(interrupt_on={"refund": True})
    return create_agent(ScriptedModel(), [find_order, refund], middleware=[ask_first], checkpointer=saver)


def line(message: BaseMessage) -> str:
    calls = (f"calls {call['name']} {call['args']}" for call in getattr(message, "tool_calls", ()))
    return f"{message.type:<6} {message.text or ', '.join(calls)}"


async def talk(graph: Any, given: Any, config: RunnableConfig) -> None:
    """Print each message as soon as its step is done, and that the agent waits, if it does."""
    async for update in graph.astream(given, config, stream_mode="updates"):
        for node, change in update.items():
            if node in ("model", "tools"):
                for message in change["messages"]:
                    print(f"  {line(message)}")
            elif node == "__interrupt__":
                print("  the agent waits for a person")


def user(text: str) -> dict[str, Any]:
    print(f"  human  {text}")
    return {"messages": [{"role": "user", "content": text}]}


async def start(db: Path, config: RunnableConfig) -> None:
    """The first process: the conversation up to the tool that a person has to allow."""
    async with SqliteSaver(db) as saver:
        await talk(agent(saver), user("My teapot, order A-17, arrived broken. Please refund it."), config)


async def go_on(db: Path, config: RunnableConfig) -> None:
    """The second process: see what waits, allow it, ask on."""
    async with SqliteSaver(db) as saver:
        graph = agent(saver)
        (question,) = (await graph.aget_state(config)).interrupts
        for action in question.value["action_requests"]:
            print(f"  a person allows {action['name']} {action['args']}")
        await talk(graph, Command(resume={"decisions": [{"type": "approve"}]}), config)
        await talk(graph, user("Thank you. Which order was it?"), config)

        print("\nthe whole conversation, read from the file")
        for message in (await graph.aget_state(config)).values["messages"]:
            print(f"  {line(message)}")


def start_process(db: Path, config: RunnableConfig) -> None:
    asyncio.run(start(db, config))


def demonstrate(db: Path) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": f"chat-{uuid4().hex[:8]}"}}
    print("process 1", flush=True)
    process = get_context("spawn").Process(target=start_process, args=(db, config))
    process.start()
    process.join()
    print(f"process 1 has ended (exit code {process.exitcode})\n\nprocess 2")
    asyncio.run(go_on(db, config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, help="keep the file here (default: a temporary folder)")
    args = parser.parse_args()
    if sys.version_info < (3, 11):
        sys.exit("LangGraph can interrupt async code from Python 3.11 on only.")
    with tempfile.TemporaryDirectory() as folder:
        demonstrate(args.db or Path(folder) / "agent.db")


if __name__ == "__main__":
    main()
