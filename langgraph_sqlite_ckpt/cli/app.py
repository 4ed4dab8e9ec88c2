"""The application: opening files, errors as exit codes, questions, progress.

Exit codes: 0 all is well; 1 problems were found, or the answer was no; 2 the command makes no sense; 3 the file cannot be
opened; 4 there is no such thread or checkpoint; 5 SQLite, or another server, could not do it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from langgraph_sqlite_ckpt import __version__
from langgraph_sqlite_ckpt.errors import CheckpointError, InvalidRequest, OpenError
from langgraph_sqlite_ckpt.keys import keys_of_files
from langgraph_sqlite_ckpt.opaque import OpaqueSerializer
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.wholefile import Progress as Report

PROBLEMS, NONSENSE, CANNOT_OPEN, NOT_THERE, FAILED = 1, 2, 3, 4, 5

app = typer.Typer(
    name="langgraph-sqlite-ckpt",
    help="See what LangGraph agents did, and look after the file that keeps it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
F = TypeVar("F", bound=Callable[..., Any])

File = Annotated[Path, typer.Argument(help="The file of a SqliteSaver.", metavar="FILE", show_default=False)]
Thread = Annotated[str, typer.Argument(help="The thread's id.", metavar="THREAD", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document, for scripts.")]
Limit = Annotated[int, typer.Option(min=0, help="At most so many, newest first.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class NotThere(CheckpointError):
    """There is no such thread or checkpoint."""


def command(example: str, *, name: str | None = None) -> Callable[[F], F]:
    """Register a function as a command, with an example in its help and our errors as exit codes."""

    def register(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except CheckpointError as error:
                failed(str(error), _code(error))

        app.command(name or function.__name__, epilog=f"Example: langgraph-sqlite-ckpt {example}")(call)
        return function

    return register


def _code(error: CheckpointError) -> int:
    kinds = ((NotThere, NOT_THERE), (InvalidRequest, NONSENSE), (OpenError, CANNOT_OPEN))
    return next((code for kind, code in kinds if isinstance(error, kind)), FAILED)


def failed(message: str, code: int) -> None:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201  # as it is: rich would wrap paths
    raise typer.Exit(code)


KeyFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--key-file",
        envvar="LANGGRAPH_SQLITE_CKPT_KEY_FILE",
        help="A file with the key of an encrypted FILE: 32 bytes, or 64 hex digits. Several: the one to write with first.",
    ),
]


_KEY_FILES: list[Path] = []  # those of this invocation


@app.callback(invoke_without_command=True)
def about(
    *,
    key_file: KeyFiles = None,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    _KEY_FILES[:] = key_file or ()
    if version:
        out(__version__)
        raise typer.Exit


def run() -> None:
    try:
        app()
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


# --- files ---


def keys() -> Sequence[bytes | None] | None:
    """Those in the files that were named, never on the command line itself: every user of the machine can see that."""
    return keys_of_files(_KEY_FILES)


def to_read(path: Path) -> SqliteSaver:
    """The file, also one in use; nothing is written to it, and no class is needed for what is in it."""
    return SqliteSaver(path, serde=OpaqueSerializer(), read_only=True, keys=keys())


def to_write(path: Path) -> SqliteSaver:
    """A file that is there, and ours."""
    to_read(path).close()
    return SqliteSaver(path, keys=keys())


# --- what is said ---


def console() -> Console:
    """As wide as the terminal; lines of a pipe are as long as they are."""
    return Console(width=None if sys.stdout.isatty() else 240, highlight=False, emoji=False, markup=False)


def out(text: str) -> None:
    print(text)  # noqa: T201  # for a person or a pipe


def out_json(value: Any) -> None:
    out(json.dumps(value, ensure_ascii=not _speaks_unicode(), indent=2, default=str))


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().startswith("utf")


def sure(question: str, *, yes: bool, quiet: bool = False) -> None:
    """Ask before something is destroyed; leaves with 1 where the answer is no."""
    if yes:
        return
    if quiet or not _somebody_is_here():
        raise InvalidRequest(f"{question} Say --yes: nobody is here to be asked")
    if not typer.confirm(question, err=True):
        raise typer.Exit(PROBLEMS)


def _somebody_is_here() -> bool:
    return sys.stdin.isatty()


@contextmanager
def progress(what: str) -> Iterator[Report]:
    """A bar on the error stream, where somebody sees it."""
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# --- words for times and sizes ---

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def duration(text: str) -> timedelta:
    """`30d`, `12h`, `45m`, `2w`."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isdecimal():
        raise InvalidRequest(f"a time is a number and a unit, s, m, h, d or w: 30d, not {text!r}")
    return timedelta(seconds=int(number) * _UNITS[unit])


def age(seconds: float) -> str:
    for unit, length in reversed(_UNITS.items()):
        if seconds >= 2 * length and unit != "w":
            return f"{int(seconds // length)} {unit}"
    return "now"


def many(count: int, what: str) -> str:
    """`1 thread`, `1,200 threads`."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return ""
