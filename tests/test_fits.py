"""Where people already are: FastAPI's lifespan, a notebook, gunicorn's preloaded workers; the README's lines, run."""

import ast
import asyncio
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import types
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import config
from langgraph.graph import END, START, StateGraph
from scripts import crash, environment

from langgraph_sqlite_ckpt import SqliteSaver

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12 warns of forks

AGENT = """
    import os, signal
    from typing import TypedDict
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        steps: int

    def work(state: State) -> State:
        return {"steps": state["steps"] + 1}

    builder = StateGraph(State).add_node("work", work).add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["steps"] >= 3 else "work", ["work", END])
"""

FASTAPI = """
    from contextlib import asynccontextmanager
    import asyncio
    from fastapi import FastAPI
    from langgraph_sqlite_ckpt import SqliteSaver

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        async with SqliteSaver("agent.db") as saver:
            app.state.graph = builder.compile(checkpointer=saver)
            going_on = asyncio.create_task(recover(saver, app.state.graph))
            yield
            going_on.cancel()
            await asyncio.gather(going_on, return_exceptions=True)

    async def recover(saver, graph):
        async for run in saver.arecover(graph, statuses=("crashed", "stopped")):
            print(run.thread_id, run.outcome)

    app = FastAPI(lifespan=lifespan)

    @app.post("/threads/{thread_id}")
    async def start(thread_id: str, task: dict) -> dict:
        return await app.state.graph.ainvoke(task, {"configurable": {"thread_id": thread_id}})
"""

CELLS = (
    """
    from langgraph_sqlite_ckpt import SqliteSaver
    saver = SqliteSaver("agent.db")
    graph = builder.compile(checkpointer=saver)
    """,
    """
    await graph.ainvoke({"steps": 0}, {"configurable": {"thread_id": "notebook"}})
    """,
    """
    print(graph.get_state({"configurable": {"thread_id": "notebook"}}).values)
    """,
)

GUNICORN = """
    import json
    from langgraph_sqlite_ckpt import SqliteSaver

    graph = builder.compile(checkpointer=SqliteSaver("agent.db"))

    def app(environ, start_response):
        config = {"configurable": {"thread_id": environ["PATH_INFO"].strip("/")}}
        result = graph.invoke({"steps": 0}, config)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(result | {"pid": os.getpid()}).encode()]
"""


def module(*texts: str) -> types.ModuleType:
    """A module of these lines; annotations are looked up in it."""
    made = types.ModuleType("lines_of_the_readme")
    sys.modules[made.__name__] = made
    exec("\n".join(map(textwrap.dedent, texts)), made.__dict__)
    return made


@pytest.fixture
def here(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory is where `agent.db` is."""
    monkeypatch.chdir(path.parent)
    return path


# --- FastAPI ---


def test_a_fastapi_app_goes_on_with_what_a_crash_left_and_serves(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("fastapi")
    import httpx

    def killed(saver: SqliteSaver) -> None:
        lines = module(AGENT)

        def work(state: Any) -> Any:
            if state["steps"] == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return {"steps": state["steps"] + 1}

        builder = StateGraph(lines.State).add_node("work", work).add_edge(START, "work")
        builder.add_conditional_edges("work", lambda _: "work", ["work", END])
        builder.compile(checkpointer=saver).invoke({"steps": 0}, config("crashed"), durability="sync")

    crash(here, killed)
    app = module(AGENT, FASTAPI).app

    async def serve() -> Any:
        async with app.router.lifespan_context(app):
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://app") as client:
                answers = await asyncio.gather(*(client.post(f"/threads/{n}", json={"steps": 0}) for n in range(5)))
            printed = ""
            while "crashed completed\n" not in printed:
                await asyncio.sleep(0.01)
                printed += capsys.readouterr().out
            return [answer.json() for answer in answers]

    assert asyncio.run(asyncio.wait_for(serve(), 30)) == [{"steps": 3}] * 5
    with SqliteSaver(here) as saver:
        assert {thread.status for thread in saver.threads()} == {"completed"}
        assert len(saver.threads()) == 6


# --- notebooks ---


def test_cells_of_a_notebook_run_on_its_loop_and_can_be_run_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = vars(module(AGENT))

    async def kernel() -> None:
        """As IPython does it: each cell on the one loop that runs already, with `await` at its top."""
        for cell in CELLS * 2:
            if "SqliteSaver(" in cell and "saver" in names:
                names["saver"].close()  # else Python warns, where it is told to, that nobody did
            code = compile(textwrap.dedent(cell), "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)
            if inspect.isawaitable(result):
                await result

    asyncio.run(kernel())
    names["saver"].close()
    assert capsys.readouterr().out == "{'steps': 3}\n" * 2
    with SqliteSaver(here) as saver:
        assert [run.status for run in saver.runs("notebook")] == ["completed"] * 2


# --- gunicorn ---


@contextmanager
def gunicorn(folder: Path) -> Iterator[str]:
    (folder / "wsgi.py").write_text("\n".join(map(textwrap.dedent, (AGENT, GUNICORN))))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--preload", "--workers", "3", "--bind", address, "--worker-tmp-dir", str(folder), "wsgi:app"]
    log = folder / "gunicorn.log"
    with (
        log.open("w") as out,
        subprocess.Popen(
            [sys.executable, "-m", "gunicorn", *options], cwd=folder, env=environment(), stdout=out, stderr=out
        ) as process,
    ):
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            assert process.wait(30) == 0, log.read_text()


def fetch(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def fetch_when_up(url: str) -> Any:
    deadline = time.monotonic() + 30
    while True:
        try:
            return fetch(url)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_workers_that_gunicorn_forks_share_the_file_of_the_preloaded_saver(path: Path) -> None:
    pytest.importorskip("gunicorn")
    with gunicorn(path.parent) as url:
        answers = [fetch_when_up(f"{url}/0")]
        while len({answer["pid"] for answer in answers}) < 2 or len(answers) < 12:
            assert len(answers) < 500, "one worker does everything"
            answers.append(fetch(f"{url}/{len(answers)}"))
    assert {answer["steps"] for answer in answers} == {3}
    with SqliteSaver(path) as saver:
        assert {thread.status for thread in saver.threads()} == {"completed"}
        assert len(saver.threads()) == len(answers)
        assert saver.verify() == []
