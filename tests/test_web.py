"""Where people are already: the approval page by HTTP, LangGraph's own server, an agent package."""

import asyncio
import importlib
import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import config, put
from scripts import environment
from test_examples import EXAMPLES, load

from langgraph_sqlite_ckpt import SqliteSaver

SERVER = EXAMPLES / "langgraph_server"

# --- the approval page ---


@pytest.fixture
def approvals() -> Any:
    pytest.importorskip("starlette")
    return load("approval_app")


@contextmanager
def opened(approvals: Any, path: Path) -> Iterator[Any]:
    """A browser, as far as HTTP goes; the app starts and ends with it."""
    import httpx

    portal: Any = importlib.import_module("anyio.from_thread").start_blocking_portal
    app = approvals.app(path)
    with portal() as thread:
        lifespan = app.router.lifespan_context(app)
        with thread.wrap_async_context_manager(lifespan):
            transport = httpx.ASGITransport(app=app)

            async def call(method: str, url: str, **form: str) -> Any:
                async with httpx.AsyncClient(transport=transport, base_url="http://app", follow_redirects=True) as client:
                    return await client.request(method, url, data=form or None)

            yield lambda method, url, **form: thread.call(lambda: call(method, url, **form))


REQUESTS = {
    "invoice-1": {"to": "Alice", "amount": 100},
    "invoice-2": {"to": "<b>Bob</b>", "amount": 20000},
    "invoice-3": {"to": "Mallory", "amount": 999},
}


def questions(page: str) -> dict[str, str]:
    return dict(re.findall(r'name=thread value="([^"]+)">.*?name=question value="(\w+)"', page))


def test_a_person_approves_edits_and_rejects_and_the_agents_go_on(approvals: Any, path: Path) -> None:
    approvals.fill(path, REQUESTS)
    with opened(approvals, path) as browse:
        page = browse("GET", "/").text
        assert "3 waiting" in page
        assert "<b>Bob" not in page
        asked = questions(page)
        answer = {"decision": "approve", "thread": "invoice-1", "question": asked["invoice-1"], "amount": "100"}
        assert "2 waiting" in browse("POST", "/answer", **answer).text
        assert browse("POST", "/answer", **answer).status_code == 409
        assert browse("POST", "/answer", **answer | {"amount": "many"}).status_code == 400
    with opened(approvals, path) as browse:  # the app was restarted meanwhile
        assert questions(browse("GET", "/").text) == {key: asked[key] for key in ("invoice-2", "invoice-3")}
        browse("POST", "/answer", decision="approve", thread="invoice-2", question=asked["invoice-2"], amount="500")
        page = browse(
            "POST", "/answer", decision="reject", thread="invoice-3", question=asked["invoice-3"], amount="9"
        ).text
    assert "0 waiting" in page
    for line in ("invoice-1: paid 100 to Alice", "invoice-2: paid 500 to &lt;b&gt;Bob", "invoice-3: rejected"):
        assert line in page


def test_two_people_who_answer_at_once_pay_once(approvals: Any, path: Path) -> None:
    approvals.fill(path, {"invoice-1": REQUESTS["invoice-1"]})
    import httpx

    async def both() -> list[int]:
        app = approvals.app(path)
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
                asked = questions((await client.get("/")).text)["invoice-1"]
                form = {"decision": "approve", "thread": "invoice-1", "question": asked, "amount": "100"}
                answers = await asyncio.gather(*(client.post("/answer", data=form) for _ in range(5)))
        return sorted(answer.status_code for answer in answers)

    assert asyncio.run(both()) == [303, 409, 409, 409, 409]


def test_the_app_starts_as_a_script(approvals: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["approval_app.py", "--db", str(path), "--port", "1"])
    served: list[Any] = []
    approvals.main(lambda app, **options: served.append(options))
    assert served == [{"host": "127.0.0.1", "port": 1}]


# --- LangGraph's server ---


def test_the_factory_that_langgraph_json_names_makes_a_saver(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, name = json.loads((SERVER / "langgraph.json").read_text())["checkpointer"]["path"].rpartition(".")
    monkeypatch.setenv("LANGGRAPH_SQLITE_CKPT", str(path))

    async def main() -> Any:
        async with getattr(importlib.import_module(module), name)() as saver:
            put(saver, {"a": ["x"]})
            return await saver.aget_tuple(config())

    assert asyncio.run(main()).checkpoint["channel_values"] == {"a": ["x"]}
    with SqliteSaver(path) as saver:
        assert saver.get_tuple(config()) is not None


@contextmanager
def langgraph_dev(path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--port", str(port)]
    folder = path.parent / "server"  # the server makes files beside its configuration
    shutil.copytree(SERVER, folder)
    settings = {**environment(), "LANGGRAPH_SQLITE_CKPT": str(path), "LANGSMITH_TRACING": "false"}
    log = path.with_suffix(".log")  # a pipe that nobody reads would stop the server
    with log.open("w") as out, subprocess.Popen(command, cwd=folder, env=settings, stdout=out, stderr=out) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


async def up(client: Any) -> None:
    for _ in range(300):
        try:
            await client.assistants.search()
        except Exception:
            await asyncio.sleep(0.2)
        else:
            return
    raise AssertionError("langgraph dev did not come up")


@pytest.mark.timeout(180)
def test_langgraphs_server_runs_interrupts_and_resumes_on_our_file(path: Path) -> None:
    pytest.importorskip("langgraph_api", reason='needs "langgraph-cli[inmem]"')
    from langgraph_sdk import get_client

    async def drive(url: str) -> tuple[str, Any, Any]:
        async with get_client(url=url) as client:
            await up(client)
            thread = await client.threads.create()
            await client.runs.wait(thread["thread_id"], "payments", input={"amount": 5})
            asked = await client.threads.get_state(thread["thread_id"])
            ended = await client.runs.wait(thread["thread_id"], "payments", command={"resume": "yes"})
            history = await client.threads.get_history(thread["thread_id"])
        return thread["thread_id"], (asked["next"], ended), history

    with langgraph_dev(path) as url:
        thread_id, (due, ended), history = asyncio.run(drive(url))

    assert due == ["pay"]
    assert ended["outcome"] == "paid 5"
    with SqliteSaver(path) as saver:
        [thread] = saver.threads()
        assert (thread.thread_id, thread.status, thread.checkpoints) == (thread_id, "completed", len(history))


# --- an agent package ---


def test_a_deep_agent_plans_writes_a_file_and_goes_on_in_another_process(path: Path) -> None:
    deepagents = pytest.importorskip("deepagents")
    from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage

    class Model(GenericFakeChatModel):
        def bind_tools(self, *_: Any, **__: Any) -> Any:
            return self

    def agent(saver: SqliteSaver, *answers: AIMessage) -> Any:
        return deepagents.create_deep_agent(model=Model(messages=iter(answers)), checkpointer=saver)

    def call(name: str, **args: Any) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": name, "args": args, "id": name}])

    with SqliteSaver(path) as saver:
        agent(
            saver,
            call("write_file", file_path="/notes.md", content="remember the milk"),
            AIMessage("Noted."),
        ).invoke({"messages": [("user", "Take a note.")]}, config())
    with SqliteSaver(path) as saver:
        told = agent(saver, call("read_file", file_path="/notes.md"), AIMessage("It says: milk."))
        ended = told.invoke({"messages": [("user", "What did I note?")]}, config())
        assert any("remember the milk" in str(message.content) for message in ended["messages"] if message.type == "tool")
        assert ended["messages"][-1].content == "It says: milk."
        assert saver.verify() == []
        assert [run.status for run in saver.runs("t")] == ["completed", "completed"]
