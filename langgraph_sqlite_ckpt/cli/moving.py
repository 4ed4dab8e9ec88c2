"""copy, import, export, load: threads in and out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from langgraph_sqlite_ckpt.cli import drawing
from langgraph_sqlite_ckpt.cli.app import (
    PROBLEMS,
    AsJson,
    File,
    Thread,
    command,
    console,
    keys,
    many,
    out,
    out_json,
    progress,
    to_read,
)
from langgraph_sqlite_ckpt.errors import CheckpointError, OpenError
from langgraph_sqlite_ckpt.importing import import_file
from langgraph_sqlite_ckpt.portable import Exported, export_thread, load_thread
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.transfer import Copied, copy_threads

Some = Annotated[list[str] | None, typer.Option("--thread", help="Only this thread; may be repeated.")]
Target = Annotated[
    Path, typer.Argument(help="The SqliteSaver's file to add to, made if need be.", metavar="FILE", show_default=False)
]


class ServerError(CheckpointError):
    """PostgreSQL, or its packages, could not do it."""


@command("copy agent.db postgresql://me@server/agents")
def copy(
    source: Annotated[str, typer.Argument(help="A SqliteSaver's file, or postgresql://...", metavar="FROM")],
    target: Annotated[str, typer.Argument(help="Another file (made if need be), or postgresql://...", metavar="TO")],
    *,
    thread: Some = None,
    as_json: AsJson = False,
) -> None:
    """Copy threads with all their history; they go on there. What is there already is skipped."""
    with _source(source) as one, _target(target) as other, progress("checkpoints") as report:
        copied = copy_threads(one, other, thread_ids=thread, progress=report)
    _told(copied, as_json=as_json)


@command("import checkpoints.sqlite agent.db", name="import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(help="A file of langgraph-checkpoint-sqlite or LangGraph.js. It is never changed.", metavar="FROM"),
    ],
    target: Target,
    *,
    thread: Some = None,
    as_json: AsJson = False,
) -> None:
    """Import threads from the official SQLite saver's file. What is there already is skipped."""
    if not source.is_file():
        raise OpenError(f"{source}: there is no such file")
    with SqliteSaver(target, synchronous="normal", keys=keys()) as saver:
        with progress("checkpoints") as report:
            imported = import_file(source, saver, thread_ids=thread, progress=report)
        saver.compact()  # it also brings everything to the disk
    _told(imported, as_json=as_json)


@command("export agent.db job-1 job-1.thread --redact")
def export(
    file: File,
    thread: Thread,
    target: Annotated[Path, typer.Argument(help="The file to make.", metavar="TO", show_default=False)],
    *,
    redact: Annotated[bool, typer.Option("--redact", help="Only types and sizes of values, not what they say.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write one thread to one file, for a bug report or an archive."""
    with to_read(file) as saver:
        _moved("exported", export_thread(saver, thread, target, redact=redact), as_json=as_json)


@command("load agent.db job-1.thread --name job-1-again")
def load(
    file: Target,
    source: Annotated[Path, typer.Argument(help="A file that `export` made.", metavar="FROM")],
    *,
    name: Annotated[str | None, typer.Option(help="Another name for the thread.")] = None,
    as_json: AsJson = False,
) -> None:
    """Store an exported thread. Everything in it is checked, nothing in it is run."""
    if not source.is_file():
        raise OpenError(f"{source}: there is no such file")
    with SqliteSaver(file, keys=keys()) as saver:
        _moved("loaded", load_thread(saver, source, thread_id=name), as_json=as_json)


def _moved(what: str, moved: Exported, *, as_json: bool) -> None:
    if as_json:
        out_json(moved._asdict())
        return
    redacted = ", redacted" if moved.redacted else ""
    counts = f"{many(moved.checkpoints, 'checkpoint')}, {many(moved.writes, 'write')}"
    out(f"{what} {drawing.safe(moved.thread_id)!r}: {counts}{redacted}")


def _told(copied: Copied, *, as_json: bool) -> None:
    """Exit code 1 where something does not read back the same."""
    problems = copied.problems
    if as_json:
        out_json({**copied._asdict(), "problems": [problem._asdict() for problem in problems]})
    else:
        skipped = f"; {copied.skipped:,} were there already" if copied.skipped else ""
        same = "" if problems else ". All read back the same" if copied.checkpoints else ""
        counts = f"{many(copied.checkpoints, 'checkpoint')} and {many(copied.writes, 'write')} copied"
        out(f"{many(copied.threads, 'thread')}: {counts}{skipped}{same}")
        for problem in problems:
            console().print(Text(drawing.safe(problem.detail), "red"))
    if problems:
        raise typer.Exit(PROBLEMS)


# --- ends ---


@contextmanager
def _source(name: str) -> Iterator[Any]:
    with _postgres(name) if _is_postgres(name) else to_read(Path(name)) as saver:
        yield saver


@contextmanager
def _target(name: str) -> Iterator[Any]:
    if _is_postgres(name):
        with _postgres(name) as saver:
            saver.setup()
            yield saver
    else:
        with SqliteSaver(name, keys=keys()) as saver:
            yield saver


def _is_postgres(name: str) -> bool:
    return re.match(r"postgres(ql)?://", name) is not None


@contextmanager
def _postgres(address: str) -> Iterator[Any]:
    """The official PostgresSaver. The address may hold a password: it is never shown."""
    try:
        import psycopg
        from langgraph.checkpoint.postgres import PostgresSaver
    except ImportError as error:
        raise ServerError(
            f'PostgreSQL needs two more packages: pip install langgraph-checkpoint-postgres "psycopg[binary]" ({error})'
        ) from error
    try:
        with PostgresSaver.from_conn_string(address) as saver:
            yield saver
    except psycopg.Error as error:
        raise ServerError(f"PostgreSQL: {error}") from error
