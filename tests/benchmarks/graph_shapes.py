"""Shapes that run graphs: chats, states of several kinds, LangGraph's own benchmark graphs, many runs at once."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from . import graphs
from .content import text, texts
from .savers import Peer
from .shape import ON_DISK, Samples, ms, repeat, shape, thread

STEPS = 200
TURNS = STEPS // graphs.TURN_STEPS


# Graphs ---------------------------------------------------------------------------------------------------------------


def talk(graph: Any, turns: int) -> None:
    for turn in range(turns):
        graph.invoke({"messages": [HumanMessage(text(f"question-{turn}", 200))]}, thread())


@shape("chat-1kb", "Chat of 200 steps, tool outputs of 1 kB", {"step": "ms"})
def chat_1kb(peer: Peer, folder: Path) -> Samples:
    outputs = texts("tool", 200, 1000)
    with peer.open(folder) as saver:
        graph = graphs.chat(outputs).compile(checkpointer=saver)
        return {"step": [ms(lambda: talk(graph, TURNS)) / STEPS]}


@shape(
    "chat-10kb",
    "Chat of 200 steps, tool outputs of 10 kB; then its latest state and its newest 20 checkpoints",
    {"step": "ms", "get latest": "ms", "get latest, new saver": "ms", "list(limit=20)": "ms"},
)
def chat_10kb(peer: Peer, folder: Path) -> Samples:
    outputs = texts("tool", 200, 10_000)
    with peer.open(folder) as saver:
        graph = graphs.chat(outputs).compile(checkpointer=saver)
        step = ms(lambda: talk(graph, TURNS)) / STEPS
        latest = repeat(10, lambda: saver.get_tuple(thread()))
        listed = repeat(3, lambda: list(saver.list(thread(), limit=20)))
    cold = []
    for _ in range(5):
        with peer.open(folder) as saver:
            cold.append(ms(lambda: saver.get_tuple(thread())))
    return {"step": [step], "get latest": latest, "get latest, new saver": cold, "list(limit=20)": listed}


@shape("chat-10kb-async", "The same chat through ainvoke", {"step": "ms"}, asynchronous=True, full_only=True)
def chat_10kb_async(peer: Peer, folder: Path) -> Samples:
    outputs = texts("tool", 200, 10_000)

    async def play() -> float:
        async with peer.aopen(folder) as saver:
            graph = graphs.chat(outputs, asynchronous=True).compile(checkpointer=saver)
            start = time.perf_counter()
            for turn in range(TURNS):
                await graph.ainvoke({"messages": [HumanMessage(text(f"question-{turn}", 200))]}, thread())
            return 1000 * (time.perf_counter() - start)

    return {"step": [asyncio.run(play()) / STEPS]}


@shape(
    "growth",
    "Growth of the file: the 10 kB chat at 200, 400 and 800 steps",
    {"200 steps": "MB", "400 steps": "MB", "800 steps": "MB", "400 / 200": "x", "800 / 400": "x"},
    peers=("ours", "SqliteSaver"),
    rounds=1,
    full_only=True,
    weighed=False,
)
def growth(peer: Peer, folder: Path) -> Samples:
    outputs = texts("tool", 800, 10_000)
    sizes = []
    for turns in (TURNS, TURNS, 2 * TURNS):
        with peer.open(folder) as saver:
            talk(graphs.chat(outputs).compile(checkpointer=saver), turns)
        sizes.append((peer.size(folder) or 0) / 1e6)
    at_200, at_400, at_800 = sizes
    return {
        "200 steps": [at_200],
        "400 steps": [at_400],
        "800 steps": [at_800],
        "400 / 200": [at_400 / at_200],
        "800 / 400": [at_800 / at_400],
    }


def looped(
    builder: graphs.Builder,
    start: Mapping[str, Any],
    peer: Peer,
    folder: Path,
    *,
    steps: int = STEPS,
    name: str = "thread",
) -> Samples:
    """Time per step of a graph that runs through in one invoke."""
    with peer.open(folder) as saver:
        graph = builder.compile(checkpointer=saver)
        return {"step": [ms(lambda: graph.invoke({"step": 0, **start}, thread(name))) / steps]}


@shape("window", "The last 50 messages, two new ones a step, 200 steps", {"step": "ms"})
def window(peer: Peer, folder: Path) -> Samples:
    return looped(graphs.window(STEPS, texts("window", STEPS, 1500)), {"messages": []}, peer, folder)


@shape("nested", "A dict of dicts of lists that grow inside, 200 steps", {"step": "ms"})
def nested(peer: Peer, folder: Path) -> Samples:
    return looped(graphs.nested(STEPS), {"plan": {}}, peer, folder)


@shape("document", "A constant document of 512 kB beside a counter, 200 steps", {"step": "ms"})
def document(peer: Peer, folder: Path) -> Samples:
    return looped(graphs.document(STEPS), {"document": text("document", 512 * 1024)}, peer, folder)


@shape("small", "A counter and a short string, 200 steps", {"step": "ms"})
def small(peer: Peer, folder: Path) -> Samples:
    return looped(graphs.small(STEPS), {"note": ""}, peer, folder)


@shape("wide", "LangGraph's wide state: 50 channels, three change in each of 100 steps", {"step": "ms"})
def wide(peer: Peer, folder: Path) -> Samples:
    values = texts("wide", 64, 2000)
    start = {f"field_{n}": values[n] for n in range(50)}
    return looped(graphs.wide(100), start, peer, folder, steps=100)


@shape("fan-out", "LangGraph's fan-out: 10 subgraph calls at once, three steps in each, 5 turns", {"turn": "ms"})
def fan_out(peer: Peer, folder: Path) -> Samples:
    with peer.open(folder) as saver:
        graph = graphs.fan_out().compile(checkpointer=saver)
        subjects = {"subjects": [f"subject {n}" for n in range(10)]}
        return {"turn": repeat(5, lambda: graph.invoke(subjects, thread()))}


@shape("react", "LangGraph's react agent: create_agent, ten tool calls of 2 kB a turn, 5 turns", {"turn": "ms"})
def react(peer: Peer, folder: Path) -> Samples:
    with peer.open(folder) as saver:
        graph = graphs.React().compile(checkpointer=saver)
        return {"turn": repeat(5, lambda: graph.invoke({"messages": [HumanMessage("Go on.")]}, thread()))}


# Many at once ---------------------------------------------------------------------------------------------------------


@shape("threads-50", "50 concurrent async threads of 20 small steps", {"rate": "steps/s"}, asynchronous=True)
def threads_50(peer: Peer, folder: Path) -> Samples:
    async def play() -> float:
        async with peer.aopen(folder) as saver:
            graph = graphs.small(20, asynchronous=True).compile(checkpointer=saver)
            await graph.ainvoke({"step": 0, "note": ""}, thread("warm-up"))
            start = time.perf_counter()
            await asyncio.gather(*(graph.ainvoke({"step": 0, "note": ""}, thread(str(n))) for n in range(50)))
            return 50 * 20 / (time.perf_counter() - start)

    return {"rate": [asyncio.run(play())]}


@shape(
    "processes-8",
    "8 processes of 100 small steps on one file",
    {"wall": "s", "errors": "runs"},
    peers=ON_DISK,
    rounds=3,
)
def processes_8(peer: Peer, folder: Path) -> Samples:
    """All start at one barrier, after their imports. A run that ends in an exception is an error and stops there."""
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(8), spawn.Queue()
    processes = [spawn.Process(target=one_process, args=(peer, folder, n, barrier, answers), daemon=True) for n in range(8)]
    for process in processes:
        process.start()
    reports = [answers.get(timeout=300) for _ in processes]
    for process in processes:
        process.join()
    for error in {error for _, _, error in reports if error}:
        print(f"  {peer.name}: {error}")
    wall = max(end for _, end, _ in reports) - min(start for start, _, _ in reports)
    return {"wall": [wall], "errors": [sum(error is not None for _, _, error in reports)]}


def one_process(peer: Peer, folder: Path, number: int, barrier: Any, answers: Any) -> None:
    """Run in each process; answers with (start, end, error) on the clock that all processes share."""
    barrier.wait()
    start, error = time.monotonic(), None
    try:
        looped(graphs.small(100), {"note": ""}, peer, folder, steps=100, name=f"process-{number}")
    except Exception as problem:  # every kind counts
        error = f"{type(problem).__name__}: {problem}"
    answers.put((start, time.monotonic(), error))
