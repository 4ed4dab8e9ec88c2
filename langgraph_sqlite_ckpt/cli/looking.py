"""threads, runs, history, show, diff: what there is, and what happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from langgraph.checkpoint.base import CheckpointTuple
from rich.console import Console
from rich.table import Table
from rich.text import Text

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.cli import drawing, page
from langgraph_sqlite_ckpt.cli.app import (
    AsJson,
    File,
    Limit,
    NotThere,
    Thread,
    age,
    command,
    console,
    duration,
    out,
    out_json,
    size,
    to_read,
)
from langgraph_sqlite_ckpt.cli.changes import changes
from langgraph_sqlite_ckpt.cli.timeline import State, Step, is_internal, timeline, waiting
from langgraph_sqlite_ckpt.errors import InvalidRequest, OpenError, Place
from langgraph_sqlite_ckpt.file import normalise_path
from langgraph_sqlite_ckpt.opaque import as_data
from langgraph_sqlite_ckpt.overview import STATUSES, Run
from langgraph_sqlite_ckpt.overview import Thread as ThreadRow
from langgraph_sqlite_ckpt.reading import configuration
from langgraph_sqlite_ckpt.saver import SqliteSaver

Status = Annotated[str | None, typer.Option(help=f"Only these: {', '.join(STATUSES)}.")]
Waiting = Annotated[bool, typer.Option("--waiting", help="Only what waits for a person, with the question.")]
Namespace = Annotated[str, typer.Option("--ns", help="A subgraph's namespace, as `history` shows it.")]
Full = Annotated[bool, typer.Option("--full", help="Do not cut large values.")]


@command("threads agent.db --waiting")
def threads(
    file: File,
    *,
    status: Status = None,
    waiting_only: Waiting = False,
    older_than: Annotated[
        str | None, typer.Option(help="Only those without a new checkpoint for so long: 30d, 12h.")
    ] = None,
    newer_than: Annotated[str | None, typer.Option(help="Only those with a new checkpoint since: 1h.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """The threads: status, what is due next, age and size."""
    with to_read(file) as saver:
        found = saver.threads(
            status="interrupted" if waiting_only else status,
            updated_before=_ago(older_than),
            updated_after=_ago(newer_than),
            limit=limit,
        )
        _show_rows(saver, found, "THREAD", waiting_only=waiting_only, as_json=as_json)


@command("runs agent.db job-1 --status failed")
def runs(
    file: File,
    thread: Annotated[str | None, typer.Argument(help="Only those of this thread.", metavar="THREAD")] = None,
    *,
    status: Status = None,
    waiting_only: Waiting = False,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """The runs, each an execution of a task from its input to its end: status, what is due next, age."""
    with to_read(file) as saver:
        found = saver.runs(thread, status="interrupted" if waiting_only else status, limit=limit)
        if thread is not None and not found and not saver.runs(thread, limit=1):
            raise NotThere(f"there is no thread {thread!r}")
        _show_rows(saver, found, "RUN", waiting_only=waiting_only, as_json=as_json)


def _ago(text: str | None) -> datetime | None:
    return None if text is None else datetime.now(timezone.utc) - duration(text)


def _show_rows(
    saver: SqliteSaver, found: Sequence[ThreadRow] | Sequence[Run], kind: str, *, waiting_only: bool, as_json: bool
) -> None:
    asked = {row.thread_id: waiting(saver, row.thread_id) for row in found} if waiting_only or as_json else {}
    bytes_of = _bytes(saver, found) if kind == "THREAD" else {}
    if as_json:
        out_json([_row_as_data(row, asked, bytes_of) for row in found])
        return
    if not found:
        out("nothing")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in (kind, *(["THREAD"] if kind == "RUN" else []), "STATUS", "NEXT", "STEP", "AGE"):
        table.add_column(heading, overflow="fold")
    table.add_column("SIZE" if bytes_of else "CHECKPOINTS", justify="right")
    if waiting_only:
        table.add_column("QUESTION", overflow="fold")
    now = datetime.now(timezone.utc)
    for row in found:
        cells = [row.thread_id] if kind == "THREAD" else [row.run_id, row.thread_id]
        cells = [drawing.safe(cell) for cell in cells]
        questions = "\n".join(f"{item['node']}: {drawing.one_line(item['value'])}" for item in asked.get(row.thread_id, ()))
        table.add_row(
            *cells,
            Text(row.status, drawing.COLOURS.get(row.status, "")),
            drawing.safe(", ".join(row.next)) or "-",
            str(row.step),
            age((now - row.updated_at).total_seconds()),
            size(bytes_of[row.thread_id]) if bytes_of else str(row.checkpoints),
            *([questions] if waiting_only else []),
        )
    console().print(table)


def _bytes(saver: SqliteSaver, found: Iterable[ThreadRow | Run]) -> dict[str, int]:
    with saver._shared.read() as db:
        return {row.thread_id: tables.stored_bytes(db, row.thread_id) for row in found}


def _row_as_data(row: ThreadRow | Run, asked: dict[str, Any], bytes_of: dict[str, int]) -> dict[str, Any]:
    told = {name: value for name, value in row._asdict().items() if name != "number"}
    told |= {"created_at": row.created_at.isoformat(), "updated_at": row.updated_at.isoformat()}
    told |= {"bytes": bytes_of[row.thread_id]} if bytes_of else {}
    return told | ({"questions": asked[row.thread_id]} if row.status == "interrupted" else {})


@command("history agent.db job-1 --html job-1.html")
def history(
    file: File,
    thread: Thread,
    *,
    as_mermaid: Annotated[bool, typer.Option("--mermaid", help="As a Mermaid flowchart.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page: tree, states, changes.")] = None,
    as_json: AsJson = False,
) -> None:
    """The steps as a tree, with forks, subgraphs, questions and errors."""
    with to_read(file) as saver:
        told = timeline(saver, thread)
        if html is not None:
            _write(html, page.page(told, _states(saver, thread), file.name))
    if html is not None:
        out(f"wrote {html}")
    elif as_json:
        out_json({"thread_id": thread, "steps": [step.as_data() for step in told.steps]})
    elif as_mermaid:
        out(drawing.mermaid(told))
    else:
        console().print(drawing.tree(told))


def _write(path: Path, text: str) -> None:
    try:
        Path(normalise_path(path)).write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        raise OpenError(f"{path}: cannot be written: {error.strerror or error}") from error


def _states(saver: SqliteSaver, thread: str) -> Iterator[tuple[tuple[str, str], State]]:
    """Of every step, newest first."""
    for item in saver.list({"configurable": {"thread_id": thread}}):
        place = item.config["configurable"]
        yield (place["checkpoint_ns"], place["checkpoint_id"]), _state(saver, item)


def _state(saver: SqliteSaver, item: CheckpointTuple) -> State:
    values = {**item.checkpoint["channel_values"], **_deltas(saver, item)}
    writes = [(task_id, channel, as_data(value)) for task_id, channel, value in item.pending_writes or ()]
    return State(as_data(values), as_data(dict(item.metadata)), writes)


def _deltas(saver: SqliteSaver, item: CheckpointTuple) -> dict[str, Any]:
    """A DeltaChannel's value needs its reducer, which is the user's: its last snapshot and what was written since."""
    counted: Any = item.metadata.get("counters_since_delta_snapshot") or {}
    channels = [name for name in counted if name not in item.checkpoint["channel_values"]]
    found = saver.get_delta_channel_history(config=item.config, channels=channels)
    return {
        channel: {"snapshot": history.get("seed"), "written since": [value for _, _, value in history["writes"]]}
        for channel, history in found.items()
    }


@command("show agent.db job-1 3")
def show(
    file: File,
    thread: Thread,
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            help="A step's number, a checkpoint's id or its beginning. Default: the latest.", metavar="CHECKPOINT"
        ),
    ] = None,
    *,
    namespace: Namespace = "",
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """A step: its state, what is due next, what was written, its metadata."""
    with to_read(file) as saver:
        step = timeline(saver, thread).find(checkpoint, namespace)
        state = _state(saver, _read(saver, thread, step))
    if as_json:
        writes = [{"task_id": task_id, "channel": channel, "value": value} for task_id, channel, value in state.writes]
        out_json({**step.as_data(), "state": state.values, "writes": writes, "metadata": state.metadata})
        return
    length = 10**9 if full else 500
    said = console()
    _head(said, thread, step)
    for text in drawing.said(step, length):
        said.print(Text("  ") + text)
    _section(said, "state", state.values.items(), length)
    _section(said, "written by the tasks after it", _by_task(state.writes), length)
    _section(said, "metadata", state.metadata.items(), length)


def _head(said: Console, thread: str, step: Step) -> None:
    said.print(
        Text.assemble(
            (f"thread {drawing.safe(thread)}, step {step.step}: ", "bold"),
            (step.standing, drawing.COLOURS.get(step.standing, "")),
        )
    )
    for name, value in (
        ("checkpoint", step.checkpoint_id),
        ("namespace", step.checkpoint_ns or "the graph itself"),
        ("parent", step.parent_id or "none"),
        ("run", step.run_id),
        ("stored", f"{step.created_at.astimezone():%Y-%m-%d %H:%M:%S}"),
        ("came from", step.name),
        ("next", step.due or "nothing: it is the end"),
    ):
        said.print(Text.assemble((f"  {name:<11}", "dim"), drawing.safe(value)))


def _by_task(writes: Iterable[tuple[str, str, Any]]) -> Iterator[tuple[str, Any]]:
    for task_id, channel, value in writes:
        if not is_internal(channel):
            yield f"task {task_id[:8]} → {channel}", value


def _section(said: Console, title: str, items: Iterable[tuple[str, Any]], length: int) -> None:
    items = [item for item in items if not is_internal(item[0])]
    said.print(Text(f"{title}{'' if items else ': nothing'}", "bold"))
    for name, value in items:
        lines = list(drawing.lines_of(value, length))
        if len(lines) == 1:
            said.print(Text(f"  {drawing.safe(name)}: {lines[0]}"))
            continue
        said.print(Text(f"  {drawing.safe(name)}:"))
        for line in lines:
            said.print(Text(f"    {line}"))


def _read(saver: SqliteSaver, thread: str, step: Step) -> CheckpointTuple:
    found = saver.get_tuple(configuration(Place(thread, step.checkpoint_ns), step.checkpoint_id))
    if found is None:
        raise NotThere(f"checkpoint {step.checkpoint_id!r} was deleted a moment ago")
    return found


@command("diff agent.db job-1 2 5")
def diff(
    file: File,
    thread: Thread,
    a: Annotated[
        str | None, typer.Argument(help="A step, or a checkpoint. Default: the one before B.", metavar="A")
    ] = None,
    b: Annotated[str | None, typer.Argument(help="Another one. Default: the latest.", metavar="B")] = None,
    *,
    other: Annotated[str | None, typer.Option("--with", help="Another thread, in which B is looked for.")] = None,
    namespace: Namespace = "",
    full: Full = False,
    as_json: AsJson = False,
) -> None:
    """What changed in the state between two steps of a thread, or of two threads."""
    with to_read(file) as saver:
        told = timeline(saver, thread)
        later = (told if other is None else timeline(saver, other)).find(b, namespace)
        if a is None and other is None and later.parent_id is None:
            raise InvalidRequest("the step has none before it: name two steps")
        earlier = told.find(a if a is not None or other is not None else later.parent_id, namespace)
        before = _state(saver, _read(saver, thread, earlier))
        after = _state(saver, _read(saver, other or thread, later))
    found = [change for change in changes(before.values, after.values) if as_json or not is_internal(change.path)]
    if as_json:
        out_json({"from": earlier.as_data(), "to": later.as_data(), "changes": drawing.changes_as_data(found)})
        return
    said = console()
    ends = [f"step {step.step} of {drawing.safe(of)}" for step, of in ((earlier, thread), (later, other or thread))]
    said.print(Text(f"from {ends[0]} to {ends[1]}", "bold"))
    for text in drawing.changes_as_text(found, 10**9 if full else 300):
        said.print(text)
    if not found:
        out("nothing changed")
