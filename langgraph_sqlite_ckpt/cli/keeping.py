"""stats, verify, compact, rekey, backup, restore, sweep, delete, prune: a file that stays small and well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.backup import restore as restore_file
from langgraph_sqlite_ckpt.cli import drawing
from langgraph_sqlite_ckpt.cli.app import (
    PROBLEMS,
    AsJson,
    File,
    NotThere,
    Yes,
    command,
    console,
    duration,
    keys,
    many,
    out,
    out_json,
    progress,
    size,
    sure,
    to_read,
    to_write,
)
from langgraph_sqlite_ckpt.errors import CheckpointError, InvalidRequest
from langgraph_sqlite_ckpt.file import normalise_path
from langgraph_sqlite_ckpt.overview import Size
from langgraph_sqlite_ckpt.saver import SqliteSaver
from langgraph_sqlite_ckpt.sweeping import FINISHED, Swept

Threads = Annotated[list[str], typer.Argument(help="The threads' ids.", metavar="THREAD", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]


@command("stats agent.db")
def stats(
    file: File, *, top: Annotated[int, typer.Option(min=0, help="How many of the largest.")] = 10, as_json: AsJson = False
) -> None:
    """What takes the space: the file, its largest threads and channels."""
    with to_read(file) as saver:
        found = saver.stats(top=top)
    if as_json:
        largest = {
            "threads_by_size": [item._asdict() for item in found.threads_by_size],
            "channels_by_size": [item._asdict() for item in found.channels_by_size],
        }
        out_json({**found._asdict(), **largest})
        return
    out(f"file         {size(found.file_bytes)}, of which free {size(found.free_bytes)}; -wal {size(found.wal_bytes)}")
    out(f"threads      {found.threads:,}")
    out(f"checkpoints  {found.checkpoints:,}")
    _largest("THREAD", found.threads_by_size)
    _largest("CHANNEL", found.channels_by_size)


def _largest(heading: str, sizes: Iterable[Size]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(heading, overflow="fold")
    table.add_column("STORED", justify="right")
    table.add_column("UNPACKED", justify="right")
    for item in sizes:
        table.add_row(drawing.safe(item.name), size(item.stored), size(item.uncompressed))
    if table.row_count:
        out("")
        console().print(table)


@command("verify agent.db")
def verify(file: File, *, as_json: AsJson = False) -> None:
    """Read the whole file and check that every row is what was written. Exit code 1: it is not."""
    with to_read(file) as saver:
        problems = saver.verify()
    if as_json:
        out_json([problem._asdict() for problem in problems])
    for problem in () if as_json else problems:
        console().print(Text(f"{problem.kind}: {drawing.safe(problem.detail)}", "red"))
    if problems:
        raise typer.Exit(PROBLEMS)
    if not as_json:
        out("every row is what was written")


@command("compact agent.db")
def compact(file: File, *, as_json: AsJson = False) -> None:
    """Give free pages back to the disk, in short steps, beside writers."""
    with to_write(file) as saver, progress("bytes given back") as report:
        given = saver.compact(report)
    if as_json:
        out_json({"bytes": given})
    else:
        out(f"gave {size(given)} back to the disk")


@command("rekey agent.db")
def rekey(
    file: File,
    *,
    plain: Annotated[bool, typer.Option("--plain", help="Also rows that are not encrypted: the file had no key.")] = False,
    as_json: AsJson = False,
) -> None:
    """Encrypt every row with the first key, in short steps, beside writers. Exit code 1: damaged rows stay.

    The keys stand before the command: --key-file new.key --key-file old.key rekey FILE
    """
    to_read(file).close()
    given = keys()
    if given is None:
        raise InvalidRequest("name the key: --key-file new.key --key-file old.key rekey FILE")
    with SqliteSaver(file, keys=[*given, *([None] if plain else [])]) as saver, progress("rows") as report:
        done = saver.rekey(report)
    if as_json:
        out_json({"rows": done.rows, "errors": [str(error) for error in done.errors]})
    else:
        out(f"encrypted {many(done.rows, 'row')}")
        for error in done.errors:
            console().print(Text(drawing.safe(error), "red"))
    if done.errors:
        raise typer.Exit(PROBLEMS)


@command("backup agent.db /backups/agent.db --yes")
def backup(
    file: File,
    target: Annotated[Path, typer.Argument(help="The file to make.", metavar="TO", show_default=False)],
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Copy the file as it is at one moment, also while it is used. Asks before it replaces a file (a former backup)."""
    with to_read(file) as saver:
        if Path(normalise_path(target)).exists():
            sure(f"Replace {_described(target)}?", yes=yes, quiet=as_json)
        with progress("bytes copied") as report:
            saver.backup(target, report)
    copied = Path(normalise_path(target)).stat().st_size
    if as_json:
        out_json({"path": str(target), "bytes": copied})
    else:
        out(f"copied {size(copied)} to {target}")


@command("restore /backups/agent.db agent.db")
def restore(
    source: Annotated[Path, typer.Argument(help="A backup. It stays as it is.", metavar="FROM", show_default=False)],
    target: Annotated[Path, typer.Argument(help="The file that it takes the place of.", metavar="TO", show_default=False)],
    *,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Put a backup in the place of a file, or where none is, once it is verified. Nobody may have that file open."""
    to_read(source).close()
    if Path(normalise_path(target)).exists():
        sure(f"Replace {_described(target)} by {_described(source)}?", yes=yes, quiet=as_json)
    restore_file(source, target)
    with to_read(target) as saver:
        found = saver.stats(top=0)
    if as_json:
        out_json({"path": str(target), "threads": found.threads, "checkpoints": found.checkpoints})
    else:
        out(f"restored {target}: {many(found.threads, 'thread')}, {many(found.checkpoints, 'checkpoint')}")


def _described(path: Path) -> str:
    """So that nobody takes one of two files for the other."""
    try:
        with to_read(path) as saver:
            checkpoints, newest = saver.stats(top=0).checkpoints, saver.runs(limit=1)
    except CheckpointError as error:
        return f"{path} (which cannot be read: {error})"
    when = "".join(f", newest run at {run.updated_at.astimezone():%Y-%m-%d %H:%M:%S}" for run in newest)
    return f"{path} ({many(checkpoints, 'checkpoint')}{when})"


@command("sweep agent.db --idle-for 30d --dry-run")
def sweep(
    file: File,
    *,
    idle_for: Annotated[str | None, typer.Option(help="Threads without a new checkpoint for so long go: 30d, 12h.")] = None,
    keep_last: Annotated[int | None, typer.Option(help="Of the others, all but the last so many checkpoints go.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only threads like this; may be repeated. Default: completed, failed."),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete idle threads, and old checkpoints of the others. What may go on stays, unless --status names it."""
    idle = None if idle_for is None else duration(idle_for)
    statuses = tuple(status) if status else FINISHED
    with to_write(file) as saver:
        would = saver.sweep(idle_for=idle, keep_last=keep_last, statuses=statuses, dry_run=True)
        if dry_run or not would.checkpoints:
            _swept("would go", would, as_json=as_json)
            return
        sure(f"Delete {_counts(would)}?", yes=yes, quiet=as_json)
        swept = saver.sweep(idle_for=idle, keep_last=keep_last, statuses=statuses)
    _swept("gone", swept, as_json=as_json)


def _counts(swept: Swept) -> str:
    return f"{many(swept.threads, 'thread')}, {many(swept.checkpoints, 'checkpoint')}, {size(swept.bytes)}"


def _swept(what: str, swept: Swept, *, as_json: bool) -> None:
    if as_json:
        out_json(swept._asdict())
        return
    out(f"{what}: {_counts(swept)}")
    if swept.damaged:
        out(f"{many(swept.damaged, 'thread')} with a damaged row stay: see `verify`")


@command("delete agent.db job-1 job-2")
def delete(file: File, threads: Threads, *, yes: Yes = False, as_json: AsJson = False) -> None:
    """Delete whole threads."""
    with to_write(file) as saver:
        counts = _counts_of(saver, threads)
        sure(f"Delete {many(len(counts), 'thread')} with {many(sum(counts), 'checkpoint')}?", yes=yes, quiet=as_json)
        for thread in threads:
            saver.delete_thread(thread)
    _done("deleted", counts, [0] * len(counts), as_json=as_json)


@command("prune agent.db job-1")
def prune(file: File, threads: Threads, *, yes: Yes = False, as_json: AsJson = False) -> None:
    """Keep only the latest checkpoint of threads, with all that it needs to go on."""
    with to_write(file) as saver:
        counts = _counts_of(saver, threads)
        sure(f"Delete all but the latest of {many(sum(counts), 'checkpoint')}?", yes=yes, quiet=as_json)
        saver.prune(threads, strategy="keep_latest")
        with saver._shared.read() as db:
            left = [tables.count_of_thread(db, thread) for thread in threads]
    _done("pruned", counts, left, as_json=as_json)


def _counts_of(saver: SqliteSaver, threads: Sequence[str]) -> list[int]:
    with saver._shared.read() as db:
        for thread in threads:
            if not tables.namespaces_of(db, thread):
                raise NotThere(f"there is no thread {thread!r}; nothing was deleted")
        return [tables.count_of_thread(db, thread) for thread in threads]


def _done(what: str, before: Sequence[int], left: Sequence[int], *, as_json: bool) -> None:
    gone = sum(before) - sum(left)
    if as_json:
        out_json({"threads": len(before), "checkpoints_deleted": gone, "checkpoints_left": sum(left)})
    else:
        out(f"{what} {many(len(before), 'thread')}: {many(gone, 'checkpoint')} gone, {sum(left):,} left")
