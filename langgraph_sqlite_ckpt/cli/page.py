"""A thread as one HTML page: the tree, the state of each step, what changed. Nothing is loaded, and no script runs.

All that was stored is escaped, and the page forbids the browser everything but its own style sheet.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from langgraph_sqlite_ckpt.cli.changes import MISSING, Change, changes
from langgraph_sqlite_ckpt.cli.drawing import cut, message, safe
from langgraph_sqlite_ckpt.cli.timeline import State, Step, Timeline, is_internal, line

_LONGEST = 4000  # characters of a value; pages must stay small enough to be attached


Key = tuple[str, str]


def page(told: Timeline, states: Iterable[tuple[Key, State]], file: str) -> str:
    known = dict(states)
    latest = told.latest
    body = "".join(_steps(root, known, latest) for root in told.roots)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(told.thread_id)}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{_text(told.thread_id)} <span class="{_status(latest)}">{_status(latest)}</span></h1>'
        f"<p class=dim>{len(told.steps)} checkpoints in {_text(file)}, the last one stored "
        f"{latest.created_at:%Y-%m-%d %H:%M:%S %Z}</p>"
        f"{body}</body></html>\n"
    )


def _steps(first: Step, states: Mapping[Key, State], latest: Step) -> str:
    items = []
    before: State | None = None
    for step, branches in line(first):
        state = states.get((step.checkpoint_ns, step.checkpoint_id))
        parent = states.get((step.checkpoint_ns, step.parent_id or ""), before)
        inside = "".join(
            f"<div class=inside><h2>subgraph {_text(sub.checkpoint_ns)}</h2>{_steps(sub, states, latest)}</div>"
            for sub in step.inside
        )
        left = "".join(f"<div class=branch><h2>branch</h2>{_steps(branch, states, latest)}</div>" for branch in branches)
        items.append(f"<li>{_step(step, state, parent, is_latest=step is latest)}{inside}{left}</li>")
        before = state
    return f"<ol>{''.join(items)}</ol>"


def _step(step: Step, state: State | None, parent: State | None, *, is_latest: bool) -> str:
    due = f"→ {_text(step.due)}" if step.next else "■ end"
    said = "".join(f"<div class=question>{_asked(step, question)}</div>" for question in step.questions)
    said += "".join(f"<div class=error>✖ {_text(error)}</div>" for error in step.errors)
    return (
        f"<details{' open' if is_latest else ''}><summary><b>{_text(step.step)}</b> {_text(step.name)} "
        f"<span class=dim>{due}</span>{' <b>← latest</b>' if is_latest else ''}{said}</summary>"
        f"<p class=dim>{step.created_at:%Y-%m-%d %H:%M:%S.%f %Z} · checkpoint {_text(step.checkpoint_id)} · "
        f"parent {_text(step.parent_id or 'none')} · run {_text(step.run_id)}</p>{_content(state, parent)}</details>"
    )


def _content(state: State | None, parent: State | None) -> str:
    if state is None:
        return "<p>deleted meanwhile</p>"
    found = changes(dict(parent.values) if parent else {}, dict(state.values))
    changed = "".join(_change(change) for change in found if not is_internal(change.path))
    return (
        f"<h3>What changed</h3><ul>{changed or '<li>nothing</li>'}</ul>"
        + _table("State", state.values.items())
        + _table("Written by the tasks after it", [write[1:] for write in state.writes])
        + _table("Metadata", state.metadata.items())
    )


def _change(change: Change) -> str:
    place = _text(change.path or "the state")
    if change.before is MISSING:
        return f'<li class="new"><code>+ {place}</code> {_value(change.after)}</li>'
    if change.after is MISSING:
        return f'<li class="gone"><code>- {place}</code> {_value(change.before)}</li>'
    return f'<li class="changed"><code>~ {place}</code> {_value(change.before)} ⇒ {_value(change.after)}</li>'


def _table(title: str, items: Iterable[tuple[str, Any]]) -> str:
    told = [(name, value) for name, value in items if not is_internal(name)]
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_value(value)}</td></tr>" for name, value in told)
    return f"<details><summary>{title}</summary><table>{rows}</table></details>" if rows else ""


def _value(value: Any) -> str:
    told = "\n".join(_lines(value))
    return f"<pre>{_text(cut(told, _LONGEST))}</pre>"


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and any(message(item) for item in value):
        for item in value:
            yield message(item) or _as_json(item)
    else:
        yield message(value) or _as_json(value)


def _as_json(value: Any) -> str:
    """In one line where it is short."""
    line = json.dumps(value, ensure_ascii=False, default=str)
    return line if len(line) <= 100 else json.dumps(value, ensure_ascii=False, indent=2, default=str)


def _asked(step: Step, question: Mapping[str, Any]) -> str:
    return f"? {_text(question['node'])} {step.asks}: {_value(question['value'])}"


def _text(value: object) -> str:
    return escape(safe(value), quote=True)


def _status(step: Step) -> str:
    return step.status if step.status.isalpha() else "unknown"


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#1b1f24;background:#fff}
h1{font-size:1.4em}h1 span{font-size:.6em;padding:.2em .6em;border-radius:1em;color:#fff;background:#57606a}
h1 .completed{background:#1a7f37}h1 .interrupted,h1 .stopped{background:#9a6700}
h1 .failed,h1 .crashed,h1 .abandoned{background:#cf222e}
h1 .running{background:#0969da}h2{font-size:.9em;margin:.5em 0 0;color:#57606a}h3{font-size:.9em;margin:.6em 0 .2em}
ol{list-style:none;padding-left:.8em;border-left:2px solid #d0d7de;margin:.3em 0}li{margin:.25em 0}
summary{cursor:pointer}details p{margin:.3em 0}.dim{color:#57606a}details details{margin:.3em 0}
.question{color:#7d4e00;background:#fff8c5;padding:.2em .5em;border-radius:.3em;margin:.2em 0}
.error{color:#a40e26;background:#ffebe9;padding:.2em .5em;border-radius:.3em;margin:.2em 0}
.branch{margin-left:1.5em;border-left:2px dashed #bf8700;padding-left:.6em}
.inside{margin-left:1.5em;border-left:2px dotted #0969da;padding-left:.6em}
pre{display:inline;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,monospace;margin:0}
table{border-collapse:collapse;width:100%}th{text-align:left;vertical-align:top;padding:.2em .8em .2em 0;white-space:nowrap}
td{border-bottom:1px solid #eaeef2;padding:.2em 0}
.new code{color:#1a7f37}.gone code{color:#cf222e}.changed code{color:#9a6700}
"""
