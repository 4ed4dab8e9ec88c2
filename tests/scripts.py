"""Python scripts in processes of their own, for what a test's own process cannot try."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conftest import config, put

from langgraph_sqlite_ckpt import SqliteSaver

TESTS = Path(__file__).parent
_BEGINNING = """
import asyncio, multiprocessing, os, sqlite3, sys, threading, time
from conftest import checkpoint, config, put
from langgraph_sqlite_ckpt import *
PATH = sys.argv[1]

def become_somebody():
    # Root may write anywhere. What the package imports late is imported before.
    with SqliteSaver(":memory:") as saver:
        put(saver, {"a": 1})
        asyncio.run(saver.aget_tuple(config()))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
"""


def environment() -> dict[str, str]:
    paths = [str(TESTS.parent), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}


def start(script: str, *args: object, flags: Sequence[str] = (), **popen: Any) -> "subprocess.Popen[str]":
    """`PATH` is the first argument; conftest's helpers and the package are imported."""
    return subprocess.Popen(
        [sys.executable, *flags, "-c", _BEGINNING + textwrap.dedent(script), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        **popen,
    )


def run(script: str, *args: object, flags: Sequence[str] = (), seconds: float = 60, **popen: Any) -> str:
    """What it printed. It must end by itself, well, and without a traceback."""
    with start(script, *args, flags=flags, **popen) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, out + err
    assert "Traceback" not in err, err
    return out


def crash(path: Path, work: Callable[[SqliteSaver], object]) -> None:
    """Work in a forked process that is killed in it, or right after."""
    child = os.fork()
    if not child:
        try:
            work(SqliteSaver(path, synchronous="normal"))
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def folder_for_anyone() -> "tempfile.TemporaryDirectory[str]":
    """A folder that other users can reach, which pytest's own are not."""
    folder = tempfile.TemporaryDirectory(prefix="ckpt-")
    Path(folder.name).chmod(0o755)
    return folder


def write_some(path: str, name: str, count: int) -> None:
    """For processes made by `spawn`, which import what they run."""
    with SqliteSaver(path) as saver:
        for number in range(count):
            put(saver, {"a": number}, at=config(name))
