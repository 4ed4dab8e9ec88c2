"""effects, resolve: what tasks did outside through `saver.once`, and a word on what is in doubt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.cli import drawing
from langgraph_sqlite_ckpt.cli.app import (
    AsJson,
    File,
    Limit,
    NotThere,
    Yes,
    age,
    command,
    console,
    out,
    out_json,
    sure,
    to_read,
    to_write,
)
from langgraph_sqlite_ckpt.effects import Effect
from langgraph_sqlite_ckpt.errors import InvalidRequest


@command("effects agent.db --status in_doubt")
def effects(
    file: File,
    thread: Annotated[str | None, typer.Argument(help="Only those of this thread.", metavar="THREAD")] = None,
    *,
    status: Annotated[str | None, typer.Option(help="Only these: running, done or in_doubt.")] = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """What tasks did outside through `saver.once`. "in_doubt": it was begun, and nobody knows whether it happened."""
    with to_read(file) as saver:
        found = saver.effects(thread, status=status, limit=limit)
        if thread is not None and not found:
            with saver._shared.read() as db:
                if not tables.namespaces_of(db, thread):
                    raise NotThere(f"there is no thread {thread!r}")
    if as_json:
        out_json([_as_data(effect) for effect in found])
    elif found:
        _show(found)
    else:
        out("nothing")


def _show(found: Sequence[Effect]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("STATUS", "EFFECT", "NODE", "THREAD", "AGE", "KEY", "WHY"):
        table.add_column(heading, overflow="fold")
    now = datetime.now(timezone.utc)
    for effect in found:
        table.add_row(
            Text(effect.status, drawing.COLOURS[effect.status]),
            *(drawing.one_line(text) for text in (effect.name, effect.node, effect.thread_id)),
            age((now - effect.started_at).total_seconds()),
            effect.key,
            _why(effect),
        )
    console().print(table)


def _why(effect: Effect) -> str:
    if effect.status != "in_doubt":
        return "-"
    return drawing.one_line(effect.error or "its process ended before it could say")


def _as_data(effect: Effect) -> dict[str, Any]:
    told = {name: value for name, value in effect._asdict().items() if name != "number"}
    finished = None if effect.finished_at is None else effect.finished_at.isoformat()
    return told | {"started_at": effect.started_at.isoformat(), "finished_at": finished}


@command("""resolve agent.db KEY --happened --result '"receipt 42"'""")
def resolve(
    file: File,
    key: Annotated[str, typer.Argument(help="The effect's key, as `effects` shows it.", metavar="KEY", show_default=False)],
    *,
    happened: Annotated[
        bool | None,
        typer.Option("--happened/--not-happened", help="It did: its task gets the result. It did not: it is called again."),
    ] = None,
    result: Annotated[str | None, typer.Option(help="What it would have given, as JSON. Default: null.")] = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Say what became of an effect that is in doubt. Then resume its thread in your program."""
    if happened is None:
        raise InvalidRequest("say what became of it: --happened or --not-happened")
    value = _parsed(result)
    with to_write(file) as saver:
        effect = _of_key(saver.effects(status="in_doubt"), key)
        what = f"Effect {drawing.one_line(effect.name)!r} of thread {drawing.one_line(effect.thread_id)!r}"
        course = "happened, and is never called again" if happened else "did not happen, and is called again"
        sure(f"{what}: it {course}? This cannot be taken back.", yes=yes, quiet=as_json)
        saver.resolve(key, happened=happened, result=value)
    if as_json:
        out_json({"key": key, "thread_id": effect.thread_id, "name": effect.name, "happened": happened})
    else:
        out(f"{what} {'happened' if happened else 'did not happen'}. Resume the thread in your program.")


def _parsed(result: str | None) -> Any:
    try:
        return None if result is None else json.loads(result)
    except ValueError as error:
        raise InvalidRequest(f"""--result is JSON, a text for example '"receipt 42"', not {result!r}: {error}""") from error


def _of_key(found: Sequence[Effect], key: str) -> Effect:
    for effect in found:
        if effect.key == key:
            return effect
    raise NotThere(f"no effect with the key {key!r} is in doubt: `effects FILE --status in_doubt` lists those that are")
