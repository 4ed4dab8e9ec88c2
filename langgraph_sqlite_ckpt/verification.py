"""A self-check that users can run: every row is what was written, and everything is there that others lean on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import NamedTuple

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain, Damaged
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.encoding import Body, readable_metadata, unpack_write
from langgraph_sqlite_ckpt.errors import CheckpointError, DamagedError, Place
from langgraph_sqlite_ckpt.schema import STEPS, statements
from langgraph_sqlite_ckpt.tables import CheckpointRow


class Problem(NamedTuple):
    """Something that `verify` found: what is wrong, and where."""

    kind: str
    detail: str


class Unsound(Exception):
    """Rows that this package would not have written."""


def verify(database: Database) -> Iterator[Problem]:
    """Reads the file namespace by namespace, so that writers go on meanwhile and no single read is longer than needed."""
    yield from _found(database, _file)
    try:
        with database.read() as db:
            namespaces = tables.all_namespaces(db)
    except CheckpointError as error:
        yield Problem("file", str(error))
        return
    for namespace in namespaces:
        yield from _found(database, partial(_namespace, namespace=namespace))


def _found(database: Database, look: Callable[[sqlite3.Connection], Iterable[Problem]]) -> list[Problem]:
    found: list[Problem] = []
    try:
        with database.read() as db:
            found.extend(look(db))
    except CheckpointError as error:  # so broken that SQLite cannot read on
        found.append(Problem("file", str(error)))
    return found


def _file(db: sqlite3.Connection) -> Iterator[Problem]:
    yield from (Problem("integrity", complaint) for complaint in tables.integrity_check(db))
    missing = _expected_objects() - set(tables.objects(db))
    yield from (Problem("schema", f"{kind} {name} is missing") for kind, name in sorted(missing))
    yield from (Problem("orphan", f"{kind}: row {row}") for kind, row in tables.orphans(db))


def _expected_objects() -> set[tuple[str, str]]:
    made = {tuple(statement.split()[:3]) for step in STEPS for statement in statements(step)}
    return {(words[1].lower(), words[2]) for words in made if words[0] == "CREATE"}


def _namespace(db: sqlite3.Connection, namespace: int) -> Iterator[Problem]:
    named = tables.name_of_namespace(db, namespace)
    if named is None:  # deleted meanwhile
        return
    place = Place(*named)
    for checkpoint_id, _ in tables.ids_of(db, namespace):
        row = tables.find_checkpoint(db, namespace, checkpoint_id)
        if row is not None:
            yield from _attempted("checkpoint", place._replace(checkpoint_id=checkpoint_id), partial(_read_whole, row))
    for write in tables.writes_of_namespace(db, namespace):
        at = place._replace(checkpoint_id=write.checkpoint_id, channel=write.channel)
        yield from _attempted("write", at, partial(unpack_write, write))
    for channel, rows in groupby(tables.blob_rows_of(db, namespace), key=lambda row: row.channel):
        blobs = list(rows)
        chain = Chain(blobs)
        for blob in blobs:
            yield from _attempted("value", place._replace(channel=channel), partial(chain.raw, blob.id))


def require_sound(db: sqlite3.Connection, namespace: int) -> None:
    """Raises `Unsound` for the first row that could not have been written."""
    for problem in _namespace(db, namespace):
        raise Unsound(problem.detail)


def _read_whole(row: CheckpointRow) -> None:
    Body.of(row).unpacked_rest()
    readable_metadata(row)


def _attempted(kind: str, place: Place, attempt: Callable[[], object]) -> Iterator[Problem]:
    try:
        attempt()
    except Damaged as error:
        yield Problem(kind, f"{place}: {error}")
    except DamagedError as error:
        yield Problem(kind, str(error))
