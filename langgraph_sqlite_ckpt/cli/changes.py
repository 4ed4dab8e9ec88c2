"""What is different between two values, as far down as it can be told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Missing:
    """Stands for a value that is not there."""

    def __repr__(self) -> str:
        return "nothing"


MISSING: Any = Missing()


class Change(NamedTuple):
    """A place in the state, and what was and is there. `MISSING`: nothing."""

    path: str
    before: Any
    after: Any


def changes(before: Any, after: Any, path: str = "") -> Iterator[Change]:
    """Of plain data (see `as_data`)."""
    if type(before) is type(after) and before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from changes(before.get(key, MISSING), after.get(key, MISSING), f"{path}.{key}" if path else str(key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _in_list(before, after, path)
    else:
        yield Change(path, before, after)


def _in_list(before: list[Any], after: list[Any], path: str) -> Iterator[Change]:
    """What is the same at both ends is left out."""
    start = _same(before, after)
    end = _same(before[start:][::-1], after[start:][::-1])
    was, now = before[start : len(before) - end], after[start : len(after) - end]
    if len(was) == len(now):
        for number, (one, other) in enumerate(zip(was, now, strict=True), start):
            yield from changes(one, other, f"{path}[{number}]")
        return
    for number, item in enumerate(was, start):
        yield Change(f"{path}[{number}]", item, MISSING)
    for number, item in enumerate(now, start):
        yield Change(f"{path}[{number}]", MISSING, item)


def _same(one: Sequence[Any], other: Sequence[Any]) -> int:
    count = 0
    for item, another in zip(one, other, strict=False):
        if item != another:
            break
        count += 1
    return count
