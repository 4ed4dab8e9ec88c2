"""A web page on which a person sees what waits for an answer, and approves, edits or rejects; the agents go on.

    pip install starlette uvicorn
    python examples/approval_app.py --db agent.db      (then open http://127.0.0.1:8000)

Nothing of the page's state is in the process: what waits is in the file, so the app may be restarted at any time, or run
in several processes. The saver is opened and closed with the app (its lifespan). Two people who answer the same question
at the same moment are told apart by the question's id: the second one is told that it was answered already.

To use a real model, let a node before ``pay`` ask one for the payment, for example with
``init_chat_model("openai:gpt-5-mini").with_structured_output(...)``.
"""

import argparse
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import parse_qs

from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from langgraph_sqlite_ckpt import SqliteSaver


class State(TypedDict, total=False):
    to: str
    amount: int
    outcome: str


def pay(state: State) -> State:
    """A resumed node runs again from its first line, so what has effects comes after the question."""
    answer = interrupt({"to": state["to"], "amount": state["amount"]})
    if answer["decision"] == "reject":
        return {"outcome": "rejected"}
    return {"amount": answer["amount"], "outcome": f"paid {answer['amount']} to {state['to']}"}


def agent(saver: SqliteSaver) -> Any:
    return StateGraph(State).add_node("pay", pay).add_edge(START, "pay").add_edge("pay", END).compile(checkpointer=saver)


def on(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


class Approvals:
    """The two pages: what waits, and an answer."""

    def __init__(self, db: Path) -> None:
        self.db = db

    @asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        async with SqliteSaver(self.db) as saver:
            self.saver, self.agent = saver, agent(saver)
            yield

    async def waiting(self, _request: Request) -> Response:
        forms = []
        for thread in await self.saver.athreads(status="interrupted"):
            state = await self.agent.aget_state(on(thread.thread_id))
            forms += [form(thread.thread_id, question) for question in state.interrupts]
        done = [f"<li>{escape(line)}</li>" for line in await self.outcomes()]
        return page(f"<h1>{len(forms)} waiting</h1>{''.join(forms)}<h2>Done</h2><ul>{''.join(done)}</ul>")

    async def outcomes(self) -> list[str]:
        threads = await self.saver.athreads(status="completed", limit=20)
        states = [(thread.thread_id, await self.agent.aget_state(on(thread.thread_id))) for thread in threads]
        return [f"{name}: {state.values.get('outcome')}" for name, state in states]

    async def answer(self, request: Request) -> Response:
        given = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        thread, question = given.get("thread", ""), given.get("question", "")
        try:
            answer = {"decision": given["decision"], "amount": int(given["amount"])}
        except (KeyError, ValueError):
            return page("<h1>An amount is a whole number</h1>", 400)
        async with self.saver.claim(thread, timeout=30):  # in however many processes this app runs
            state = await self.agent.aget_state(on(thread))
            if question not in [asked.id for asked in state.interrupts]:
                return page("<h1>Somebody has answered this already</h1><a href='/'>Back</a>", 409)
            await self.agent.ainvoke(Command(resume={question: answer}), on(thread))
        return RedirectResponse("/", 303)


def form(thread: str, question: Any) -> str:
    asked = question.value
    return (
        f"<form method=post action=/answer><b>{escape(thread)}</b>: pay {escape(str(asked['to']))} "
        f'<input name=amount size=8 value="{escape(str(asked["amount"]))}">'
        f'<input type=hidden name=thread value="{escape(thread)}"><input type=hidden name=question value="{question.id}">'
        "<button name=decision value=approve>Approve</button> <button name=decision value=reject>Reject</button></form>"
    )


def page(body: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(f"<!doctype html><meta charset=utf-8><title>Approvals</title>{body}", status)


def app(db: Path) -> Starlette:
    approvals = Approvals(db)
    routes = [Route("/", approvals.waiting), Route("/answer", approvals.answer, methods=["POST"])]
    return Starlette(routes=routes, lifespan=approvals.lifespan)


def fill(db: Path, requests: dict[str, State]) -> None:
    """Start some agents; each stops at its question."""
    with SqliteSaver(db) as saver:
        for thread, request in requests.items():
            agent(saver).invoke(request, on(thread))


def main(serve: Callable[..., Any] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", type=Path, default=Path("agent.db"))
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    fill(options.db, {"invoice-1": {"to": "Alice", "amount": 100}, "invoice-2": {"to": "Bob", "amount": 20000}})
    if serve is None:
        import uvicorn

        serve = uvicorn.run
    serve(app(options.db), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
