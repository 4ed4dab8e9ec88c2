"""Kill an agent at every point of sending an e-mail, and start it again: no mail goes out twice.

The agent writes a reminder and mails it through ``saver.once("reminder", ...)``. It runs in a process of its own, which
kills itself with SIGKILL at one of six points. A second process resumes the thread. Where the first one died between
the entry and the result, nobody on this side can know whether the mail went out: the effect is in doubt, and the agent
asks the mail server, which knows the idempotency keys of what it has sent. The server is a file beside the database that
is forced to the disk with every mail.

    python examples/send_email.py               killed at each point in turn
    python examples/send_email.py --async       through ainvoke and aonce

To use a real model, let ``write`` call for example ``init_chat_model("openai:gpt-5-mini")``; to send real mail, pass the
key on in ``MailServer.send`` (services call it idempotency key, or client request id).
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.graph import START, StateGraph

from langgraph_sqlite_ckpt import EffectInDoubt, SqliteSaver

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has no SIGKILL: there, os.kill ends a process at once
PROCESSES: Any = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
PROCESSES.set_forkserver_preload(["langgraph_sqlite_ckpt", "langgraph.graph"])  # so that each need not import them anew
POINTS = (
    "before once",
    "before the server is called",
    "in the server, before it sends",
    "in the server, after it has sent",
    "before the result is stored",
    "after once",
)


class Job(NamedTuple):
    """What a process must know: where the files are, and where to die."""

    folder: Path
    use_async: bool = False
    kill_at: str | None = None

    def passes(self, point: str) -> None:
        if point == self.kill_at:
            os.kill(os.getpid(), KILL)


# --- The outside: a mail server that counts.


class MailServer:
    """Sends whatever it is asked to, and can tell later what it has sent under a key."""

    def __init__(self, job: Job) -> None:
        self._job, self._outbox = job, job.folder / "outbox"

    def send(self, text: str, key: str) -> str:
        self._job.passes("in the server, before it sends")
        with self._outbox.open("a") as file:
            file.write(f"{key} {text}\n")
            file.flush()
            os.fsync(file.fileno())
        self._job.passes("in the server, after it has sent")
        return f"receipt {key[:8]}"

    def sent(self) -> list[str]:
        return self._outbox.read_text().splitlines() if self._outbox.exists() else []

    def receipt(self, key: str) -> str | None:
        """Of a mail that was sent under that key."""
        return f"receipt {key[:8]}" if any(line.startswith(key) for line in self.sent()) else None


# --- The agent: write, send, file the receipt.


class State(TypedDict, total=False):
    customer: str
    text: str
    receipt: str


def agent(job: Job, saver: SqliteSaver) -> Any:
    server = MailServer(job)

    def write(state: State) -> State:
        return {"text": f"Dear {state['customer']}, invoice 17 is due."}

    def mail(text: str, key: str) -> str:
        job.passes("before the server is called")
        receipt = server.send(text, key)
        job.passes("before the result is stored")
        return receipt

    def send(state: State, config: RunnableConfig) -> State:
        job.passes("before once")
        receipt = saver.once("reminder", lambda key: mail(state["text"], key))
        job.passes("after once")
        return {"receipt": receipt}

    async def asend(state: State, config: RunnableConfig) -> State:
        job.passes("before once")
        receipt = await saver.aonce("reminder", lambda key: mail(state["text"], key), config=config)
        job.passes("after once")
        return {"receipt": receipt}

    builder = StateGraph(State)
    builder.add_node("write", write)
    builder.add_node("send", RunnableLambda(send, asend))
    builder.add_edge(START, "write")
    builder.add_edge("write", "send")
    return builder.compile(checkpointer=saver)


# --- One process: start the thread, or go on with it. The same call after every crash.


def run(job: Job) -> None:
    with SqliteSaver(job.folder / "agent.db") as saver:
        try:
            step(job, saver)
        except EffectInDoubt as doubt:
            receipt = MailServer(job).receipt(doubt.key)
            print(f"  in doubt: the server says it {'sent' if receipt else 'did not send'} a mail of that key", flush=True)
            saver.resolve(doubt.key, happened=receipt is not None, result=receipt)
            step(job, saver)


def step(job: Job, saver: SqliteSaver) -> None:
    config: RunnableConfig = {"configurable": {"thread_id": "customer-17"}}
    given = None if saver.get_tuple(config) is not None else {"customer": "Ada"}
    if job.use_async:
        asyncio.run(agent(job, saver).ainvoke(given, config))
    else:
        agent(job, saver).invoke(given, config)


def run_in_new_process(job: Job) -> int | None:
    """Run the job in a process of its own and return its exit code: -9 after a SIGKILL."""
    process = PROCESSES.Process(target=run, args=(job,))
    process.start()
    process.join()
    return process.exitcode


# --- The demonstration.


def demonstrate(job: Job) -> bool:
    """Killed at one point and started again: did exactly one mail go out, and does the agent have its receipt?"""
    job.folder.mkdir()
    print(f"killed {job.kill_at}", flush=True)
    first = run_in_new_process(job)
    second = run_in_new_process(job._replace(kill_at=None))
    with SqliteSaver(job.folder / "agent.db") as saver:
        values = agent(job, saver).get_state({"configurable": {"thread_id": "customer-17"}}).values
        [effect] = saver.effects()
    server = MailServer(job)
    print(f"  exit codes {first} and {second}; mails sent: {len(server.sent())}; {values.get('receipt')}", flush=True)
    good = values.get("receipt") == server.receipt(effect.key) and effect.status == "done"
    return good and len(server.sent()) == 1 and first in (-KILL, KILL) and second == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--async", action="store_true", dest="use_async", help="run the agent with ainvoke")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        jobs = [Job(Path(folder) / str(number), args.use_async, point) for number, point in enumerate(POINTS)]
        good = [demonstrate(job) for job in jobs]
    print("PASS: one mail each time." if all(good) else "FAIL: see above.")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
