"""A self-check that users can run: every row is what was written, and everything is there that others lean on."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, Protocol

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.blobs import Chain, Damaged, Key, Locked, Recent, Value, base_position
from langgraph_sqlite_ckpt.database import Read
from langgraph_sqlite_ckpt.encoding import Body, place_of, readable_metadata, unpack_effect, unpack_write
from langgraph_sqlite_ckpt.errors import CheckpointError, DamagedError, KeyNeeded, Place
from langgraph_sqlite_ckpt.reading import body_or_damage
from langgraph_sqlite_ckpt.schema import STEPS, statements
from langgraph_sqlite_ckpt.tables import BlobRow, CheckpointRow, Weight

KEY = "key"
"""The kind of a problem that is none of the file: some rows took a key that was not given."""
_BYTES_AT_ONCE, _ROWS_AT_ONCE = 4 * 1024 * 1024, 500


class Problem(NamedTuple):
    """Something that `verify` found: what is wrong, and where."""

    kind: str
    detail: str


class Unsound(Exception):
    """Rows that this package would not have written."""


def verify(read: Read) -> Iterator[Problem]:
    """Reads a few rows at a time, so that writers go on meanwhile, no read is long, and little is held in memory."""
    locked = set[Problem]()
    for problem in _problems(read):
        if problem not in locked:
            yield problem
        if problem.kind == KEY:
            locked.add(problem)


def _problems(read: Read) -> Iterator[Problem]:
    yield from _found(read, _file)
    try:
        with read() as db:
            namespaces = [(namespace, tables.name_of_namespace(db, namespace)) for namespace in tables.all_namespaces(db)]
    except CheckpointError as error:
        yield Problem("file", str(error))
        return
    for namespace, named in namespaces:
        if named is not None:
            yield from _namespace(read, namespace, Place(*named))


def _found(read: Read, look: Callable[[sqlite3.Connection], Iterable[Problem]]) -> list[Problem]:
    found: list[Problem] = []
    try:
        with read() as db:
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


def _namespace(read: Read, namespace: int, place: Place) -> Iterator[Problem]:
    values = _Values(place)
    for weights, look in (
        (tables.weights_of_checkpoints, _checkpoints),
        (tables.weights_of_writes, partial(_writes, place)),
        (tables.weights_of_effects, partial(_effects, place)),
        (tables.weights_of_blobs, values.look),
    ):
        yield from _in_batches(read, partial(weights, namespace=namespace), look)


class Look(Protocol):
    def __call__(self, db: sqlite3.Connection, keys: Sequence[int]) -> Iterable[Problem]: ...


def _in_batches(read: Read, weigh: Callable[[sqlite3.Connection], Sequence[Weight]], look: Look) -> Iterator[Problem]:
    """A read for each few rows. Those that somebody deletes in between are simply not there any more."""
    try:
        with read() as db:
            weights = weigh(db)
    except CheckpointError as error:
        yield Problem("file", str(error))
        return
    for keys in _batches(weights):
        yield from _found(read, partial(look, keys=keys))


def _batches(weights: Iterable[Weight]) -> Iterator[Sequence[int]]:
    keys: list[int] = []
    held = 0
    for weight in weights:
        keys.append(weight.key)
        held += weight.bytes
        if held >= _BYTES_AT_ONCE or len(keys) >= _ROWS_AT_ONCE:
            yield keys
            keys, held = [], 0
    if keys:
        yield keys


def _checkpoints(db: sqlite3.Connection, keys: Sequence[int]) -> Iterator[Problem]:
    rows = tables.checkpoints_at(db, keys)
    bodies = [body_or_damage(row) for row in rows]
    names = [name for body in bodies if isinstance(body, Body) for name in body.names]
    there = {(head.channel, head.version) for head in tables.blobs_named(db, names)}
    for row, body in zip(rows, bodies, strict=True):
        yield from _attempted("checkpoint", place_of(row), partial(_read_whole, row, body))
        if isinstance(body, Body):
            found = {channel for channel, version in body.versions.items() if (channel, version) in there}
            yield from _attempted("value", place_of(row), partial(body.require_stored, found))


def require_sound(db: sqlite3.Connection, namespace: int) -> None:
    """In a transaction. Raises `Unsound` for the first row that could not have been written."""
    named = tables.name_of_namespace(db, namespace)
    assert named is not None  # whoever asks has just stored it
    for problem in _namespace(lambda: nullcontext(db), namespace, Place(*named)):
        raise Unsound(problem.detail)


def _read_whole(row: CheckpointRow, body: Body | DamagedError) -> None:
    if isinstance(body, DamagedError):
        raise body
    body.unpacked_rest()
    readable_metadata(row)


def _writes(place: Place, db: sqlite3.Connection, keys: Sequence[int]) -> Iterator[Problem]:
    for write in tables.writes_at(db, keys):
        at = place._replace(checkpoint_id=write.checkpoint_id, channel=write.channel)
        yield from _attempted("write", at, partial(unpack_write, write))


def _effects(place: Place, db: sqlite3.Connection, keys: Sequence[int]) -> Iterator[Problem]:
    for effect in tables.effects_at(db, keys):
        at = place._replace(checkpoint_id=effect.checkpoint_id)
        yield from _attempted("effect", at, partial(unpack_effect, effect))


class _Values:
    """Rebuilds every value of a namespace, each step once; of what is rebuilt it keeps what later ones lean on."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._recent = Recent(0)  # of one channel, the last

    def look(self, db: sqlite3.Connection, keys: Sequence[int]) -> Iterator[Problem]:
        for row in tables.blobs_at(db, keys):
            yield from _attempted("value", self._place._replace(channel=row.channel), partial(self._rebuild, db, row))

    def _rebuild(self, db: sqlite3.Connection, row: BlobRow) -> None:
        key = (self._place.thread_id, self._place.checkpoint_ns, row.channel)
        held = self._base(key, row)
        at_hand = held is not None and held.blob == row.base
        chain = Chain([row], [held] if held is not None and at_hand else ())
        if row.base is not None and not at_hand:  # repacked by a prune, forked, or damaged
            chain = Chain(tables.chain(db, [row.id]))
        raw = chain.raw(row.id)
        if isinstance(row.position, int) and row.position >= 0:
            self._recent.remember(key, Value(row.id, row.version, row.position, row.type, raw))

    def _base(self, key: Key, row: BlobRow) -> Value | None:
        if not isinstance(row.position, int) or row.position < 1:
            return None
        return self._recent.at(key, base_position(row.position))


def _attempted(kind: str, place: Place, attempt: Callable[[], object]) -> Iterator[Problem]:
    try:
        attempt()
    except (Locked, KeyNeeded) as error:
        yield Problem(KEY, _unchecked(error.key_id))
    except Damaged as error:
        yield Problem(kind, f"{place}: {error}")
    except DamagedError as error:
        yield Problem(kind, str(error))


def _unchecked(key_id: int | None) -> str:
    if key_id is None:
        return "rows that are not encrypted, where only encrypted ones are taken: keys=[key, None] and rekey() encrypt them"
    return f"rows that are encrypted with the key of id {key_id}, which was not given, were checked by their checksums only"
