"""Steps, values and changes for the terminal, and as Mermaid. What was stored is shown as text, whatever is in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.text import Text
from rich.tree import Tree

from langgraph_sqlite_ckpt.cli.changes import MISSING, Change
from langgraph_sqlite_ckpt.cli.timeline import Step, Timeline, line

COLOURS = {
    "completed": "green",
    "interrupted": "yellow",
    "stopped": "yellow",
    "failed": "red",
    "crashed": "red",
    "abandoned": "red",
    "running": "cyan",
    "done": "green",
    "in_doubt": "red",
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def safe(text: object) -> str:
    """Without what would steer a terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", str(text))


def cut(text: str, length: int) -> str:
    """Large values keep their beginning, and say how large they are."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text):,} characters)"


def one_line(value: Any, length: int = 200) -> str:
    """A value in a line; messages as people read them."""
    if value is MISSING:
        return "nothing"
    told = message(value)
    if told is None:
        told = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return cut(safe(told).replace("\n", "⏎"), length)


def message(value: Any) -> str | None:
    """`human: Pay Ann 100`, with the calls that a model asks for; None where it is no message."""
    if not isinstance(value, dict) or "content" not in value or not isinstance(value.get("type"), str):
        return None
    content = value["content"] if isinstance(value["content"], str) else json.dumps(value["content"], ensure_ascii=False)
    calls = [
        f"→ {call.get('name')}({json.dumps(call.get('args'), ensure_ascii=False)})"
        for call in value.get("tool_calls") or ()
        if isinstance(call, dict)
    ]
    name = " ".join(filter(None, [value["type"], str(value.get("name") or "")]))
    return " ".join([f"{name}:", *filter(None, [content, *calls])])


def lines_of(value: Any, length: int) -> Iterator[str]:
    """A value over several lines where that is easier to read."""
    if isinstance(value, list) and value and any(isinstance(item, (dict, list)) or message(item) for item in value):
        for number, item in enumerate(value):
            yield f"[{number}] {one_line(item, length)}"
    elif isinstance(value, dict) and message(value) is None and len(json.dumps(value, default=str)) > 80:
        for key, item in value.items():
            yield f"{safe(key)}: {one_line(item, length)}"
    else:
        yield one_line(value, length)


# --- steps ---


def tree(told: Timeline) -> Tree:
    latest = told.latest
    runs = len({step.run_id for step in told.steps if not step.checkpoint_ns})
    top = Text.assemble(
        (safe(told.thread_id), "bold"),
        f" · {len(told.steps)} checkpoints · {runs} run{'s' if runs != 1 else ''} · ",
        (latest.status, COLOURS.get(latest.status, "")),
    )
    drawn = Tree(top, guide_style="dim")
    for number, root in enumerate(told.roots):
        below = drawn if len(told.roots) == 1 else drawn.add(Text(f"beginning {number + 1}: its parent is gone", "dim"))
        _draw(below, root, latest)
    return drawn


def _draw(below: Tree, first: Step, latest: Step) -> None:
    for step, branches in line(first):
        drawn = below.add(_told(step, latest))
        for text in said(step, 200):
            drawn.add(text)
        for inside in step.inside:
            _draw(drawn.add(Text(f"subgraph {safe(inside.checkpoint_ns)}", "dim")), inside, latest)
        for branch in branches:
            _draw(drawn.add(Text("branch", "magenta")), branch, latest)


def said(step: Step, length: int) -> Iterator[Text]:
    """The questions and the errors of a step."""
    for question in step.questions:
        yield Text(f"? {safe(question['node'])} {step.asks}: {one_line(question['value'], length)}", "yellow")
    for error in step.errors:
        yield Text(f"✖ {one_line(error, length)}", "red")


def _told(step: Step, latest: Step) -> Text:
    due = f" → {safe(step.due)}" if step.next else " ■ end"
    told = Text.assemble(
        (f"{step.step if step.step is not None else '?':>3} ", "bold"),
        safe(step.name),
        (due, "dim" if step is not latest else COLOURS.get(step.status, "")),
        (f"  {step.created_at.astimezone():%Y-%m-%d %H:%M:%S}  {safe(step.checkpoint_id)}", "dim"),
    )
    if step is latest:
        told.append("  ← latest", "bold")
    return told


# --- changes ---


def changes_as_text(found: Iterable[Change], length: int) -> Iterator[Text]:
    for change in found:
        place = safe(change.path) or "the state"
        if change.before is MISSING:
            yield Text(f"+ {place}: {one_line(change.after, length)}", "green")
        elif change.after is MISSING:
            yield Text(f"- {place}: {one_line(change.before, length)}", "red")
        else:
            yield Text(f"~ {place}: {one_line(change.before, length)}  ⇒  {one_line(change.after, length)}", "yellow")


def changes_as_data(found: Iterable[Change]) -> Sequence[dict[str, Any]]:
    return [
        {"path": path} | ({} if before is MISSING else {"before": before}) | ({} if after is MISSING else {"after": after})
        for path, before, after in found
    ]


# --- Mermaid ---


def mermaid(told: Timeline) -> str:
    """A flowchart, for GitHub, an issue, or mermaid.live."""
    names = {id(step): f"s{number}" for number, step in enumerate(told.steps)}
    return "\n".join(["flowchart TD", *_nodes(told, names), *_edges(told, names)])


def _nodes(told: Timeline, names: dict[int, str]) -> Iterator[str]:
    for step in told.steps:
        words = [f"{step.step} · {step.name}", *(f"? {one_line(asked['value'], 60)}" for asked in step.questions)]
        words += [f"✖ {one_line(error, 60)}" for error in step.errors]
        label = "<br/>".join(_escaped(word) for word in words)
        yield f'    {names[id(step)]}["{label}"]'
        if step is told.latest:
            yield f"    style {names[id(step)]} stroke-width:3px"


def _edges(told: Timeline, names: dict[int, str]) -> Iterator[str]:
    for step in told.steps:
        for child in step.children:
            yield f"    {names[id(step)]} --> {names[id(child)]}"
        for inside in step.inside:
            yield f"    {names[id(step)]} -. {_escaped(inside.checkpoint_ns.partition(':')[0])} .-> {names[id(inside)]}"


def _escaped(text: str) -> str:
    """Mermaid reads HTML entities in a label, and nothing else in a quoted one."""
    plain = "".join(letter if letter.isalnum() or letter in " .,:;!?·✖…-_" else f"#{ord(letter)};" for letter in text)
    return plain.strip() or "-"
