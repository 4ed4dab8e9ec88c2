"""`list`: config, filter, before and limit become pages of checkpoints, newest commit first.

SQL narrows, Python decides: a filter means what it means to InMemorySaver (`metadata.get(key) == value`), for any key and
value, and no text of a caller's ever enters SQL. Nothing is held between two items: a page is read, the transaction left,
then items are decoded and given out one by one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.database import Read
from langgraph_sqlite_ckpt.encoding import decode_metadata, storable_text
from langgraph_sqlite_ckpt.reading import Asked, Page, fetch_page

_FIRST_PAGE, _LARGEST_PAGE, _METADATA_PAGE = 8, 128, 1000
_HEAVY = 4 * 1024 * 1024  # bytes of stored values in a page, after which the next ones are shorter


@dataclass(frozen=True)
class Query:
    """What `list` was asked for, ids normalised. None: no restriction."""

    thread_id: str | None = None
    checkpoint_ns: str | None = None
    checkpoint_id: str | None = None
    filter: Mapping[str, Any] | None = None
    before: Before | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Before:
    """A bound: earlier than this checkpoint. Its thread and namespace are those of its config, where it names them."""

    checkpoint_id: str
    thread_id: str | None = None
    checkpoint_ns: str | None = None


@dataclass(frozen=True)
class Where:
    """Conditions on what is shown, each a literal of this module, with the values bound to them."""

    conditions: tuple[str, ...] = ()
    parameters: tuple[object, ...] = ()

    def also(self, condition: str, *parameters: object) -> Where:
        return Where((*self.conditions, condition), (*self.parameters, *parameters))

    @property
    def sql(self) -> str:
        return "WHERE " + " AND ".join((*self.conditions, "c.hidden = 0"))


def tuples(read: Read, serde: SerializerProtocol, query: Query, asked: Asked) -> Iterator[CheckpointTuple]:
    """Decodes an item when it is asked for; a damaged one raises when it is reached."""
    for page in _pages(read, serde, query, asked):
        for fetched in page.fetched:
            yield fetched.decoded(serde, page.chain, asked.migrations)


def _pages(read: Read, serde: SerializerProtocol, query: Query, asked: Asked) -> Iterator[Page]:
    left, size = query.limit, _FIRST_PAGE
    where = _where(read, query)
    matching = _matching(read, serde, query.filter, where) if query.filter else None
    last: int | None = None
    while left is None or left > 0:
        wanted = size if left is None else min(size, left)
        page = _page(read, where, last, wanted, asked) if matching is None else _chosen(read, matching, wanted, asked)
        if page is None:
            return
        yield page
        if page.fetched:
            last = page.fetched[-1].row.seq
        left = None if left is None else left - len(page.fetched)
        size = min(size * 2, _LARGEST_PAGE) if page.chain.stored < _HEAVY else max(1, size // 4)


def _page(read: Read, where: Where, last: int | None, limit: int, asked: Asked) -> Page | None:
    if last is not None:
        where = where.also("c.seq < ?", last)
    with read() as db:
        rows = tables.select_checkpoints(db, where.sql, where.parameters, limit)
        return fetch_page(db, rows, asked) if rows else None


def _chosen(read: Read, matching: Iterator[int], limit: int, asked: Asked) -> Page | None:
    """The next checkpoints that passed the filter; one deleted in between is simply not there any more."""
    seqs = [seq for _, seq in zip(range(limit), matching, strict=False)]
    if not seqs:
        return None
    chosen = Where().also("c.seq IN (SELECT value FROM json_each(?))", json.dumps(seqs))
    with read() as db:
        return fetch_page(db, tables.select_checkpoints(db, chosen.sql, chosen.parameters, limit), asked)


def _matching(read: Read, serde: SerializerProtocol, wanted: Mapping[str, Any], where: Where) -> Iterator[int]:
    """Looks through the metadata alone, a page at a time."""
    size, last = 64, None
    while True:
        narrowed = where if last is None else where.also("c.seq < ?", last)
        with read() as db:
            rows = tables.select_metadata(db, narrowed.sql, narrowed.parameters, size)
        for row in rows:
            metadata = decode_metadata(serde, row)
            if all(value == metadata.get(key) for key, value in wanted.items()):
                yield row.seq
        if len(rows) < size:
            return
        last, size = rows[-1].seq, _METADATA_PAGE


def _where(read: Read, query: Query) -> Where:
    where = _narrowed(_scope(query), query.filter or {})
    if query.checkpoint_id is not None:
        where = where.also("c.checkpoint_id = ?", query.checkpoint_id)
    return _bounded(read, where, query, query.before) if query.before is not None else where


def _scope(query: Query) -> Where:
    thread_id, checkpoint_ns = query.thread_id, query.checkpoint_ns
    if thread_id is not None and checkpoint_ns is not None:
        one = "c.namespace = (SELECT id FROM namespace WHERE thread_id = ? AND checkpoint_ns = ?)"
        return Where().also(one, thread_id, checkpoint_ns)
    if thread_id is not None:
        return Where().also("c.namespace IN (SELECT id FROM namespace WHERE thread_id = ?)", thread_id)
    if checkpoint_ns is not None:
        return Where().also("n.checkpoint_ns = ?", checkpoint_ns)
    return Where()


def _narrowed(scope: Where, wanted: Mapping[str, Any]) -> Where:
    """By the columns that have an index, where they cannot rule out what Python would let pass."""
    run_id, source, step = wanted.get("run_id"), wanted.get("source"), wanted.get("step")
    where = scope
    if type(run_id) is str and run_id and storable_text(run_id) == run_id:
        where = where.also("c.run_id = ?", run_id)
    if type(source) is str and storable_text(source) == source:
        where = where.also("c.source = ?" if scope.conditions else "c.source || '' = ?", source)
        if source != "loop":
            where = where.also("c.source <> 'loop'")  # the partial indexes are for these
    if isinstance(step, (int, float)) and abs(step) < 2**53:
        where = where.also("c.step = ?", step)
    for key, value in wanted.items():
        if type(value) is str and type(key) is str and all(text.isascii() and text.isprintable() for text in (key, value)):
            # Metadata that is lossless as JSON has this pair as this text; numbers are equal in many spellings.
            pair = f"{json.dumps(key)}: {json.dumps(value)}"
            # Of an encrypted row only what is in clear is there: where the key is not, Python has to look.
            where = where.also(
                "(c.exact_type IS NOT NULL OR instr(c.metadata, ?) > 0"
                " OR (c.key_id IS NOT NULL AND instr(c.metadata, ?) = 0))",
                pair,
                f"{json.dumps(key)}: ",
            )
    return where


def _bounded(read: Read, where: Where, query: Query, before: Before) -> Where:
    """By commit where the bound lies in what is listed; else, as LangGraph's replay asks of a subgraph, by id."""
    found = _scope(query).also("c.checkpoint_id = ?", before.checkpoint_id)
    if before.thread_id is not None:
        found = found.also("n.thread_id = ?", before.thread_id)
    if before.checkpoint_ns is not None:
        found = found.also("n.checkpoint_ns = ?", before.checkpoint_ns)
    with read() as db:
        rows = tables.select_metadata(db, found.sql, found.parameters, 1)
    if rows:
        return where.also("c.seq < ?", rows[0].seq)
    return where.also("c.checkpoint_id < ?", before.checkpoint_id)
