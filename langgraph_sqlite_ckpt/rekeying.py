"""Every row sealed with the key of today: another key, the first one, or none any more.

In short transactions, beside writers; a row is sealed anew whole or not at all, and reads before and after. What was done
is found done by whoever starts again. Savers of other processes need the new key before (`keys=[old, new]`), or they cannot
read what was sealed with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from langgraph_sqlite_ckpt import tables
from langgraph_sqlite_ckpt.database import Database
from langgraph_sqlite_ckpt.errors import CheckpointError, DamagedError, KeyNeeded
from langgraph_sqlite_ckpt.operations import Statement
from langgraph_sqlite_ckpt.tables import Weight
from langgraph_sqlite_ckpt.wholefile import Progress, nobody

_BYTES_AT_ONCE = 4 * 1024 * 1024


class Rekeyed(NamedTuple):
    """What `rekey` sealed anew: rows. `errors`: one for each damaged row that it had to leave as it is."""

    rows: int
    errors: tuple[CheckpointError, ...] = ()


class _Kind(NamedTuple):
    """Rows of one table: the next ones with another key, and how they are sealed anew."""

    find: Callable[[sqlite3.Connection, int | None, int], Sequence[Weight]]
    reseal: Callable[[sqlite3.Connection, Sequence[int]], None]


_KINDS = (  # values and writes before checkpoints: a saver looks at the newest checkpoint to see whether it has the key
    _Kind(tables.blobs_of_other_keys, tables.reseal_blobs),
    _Kind(tables.writes_of_other_keys, tables.reseal_writes),
    _Kind(tables.effects_of_other_keys, tables.reseal_effects),
    _Kind(tables.checkpoints_of_other_keys, tables.reseal_checkpoints),
)


def rekey(database: Database, progress: Progress | None) -> Rekeyed:
    with database.read() as db:
        total = tables.count_of_other_keys(db, database.keyring.key_id)
    done, errors, tell = 0, list[CheckpointError](), progress or nobody
    for kind in _KINDS:
        for keys in _batches(database, kind):
            failed = list(_resealed(database, kind, keys))
            done, errors = done + len(keys) - len(failed), [*errors, *failed]
            tell(done, max(done, total))
    database.maintain(tables.copy_wal_back, patience=0)  # the old ones are in there too
    return Rekeyed(done, tuple(errors))


def _batches(database: Database, kind: _Kind) -> Iterator[Sequence[int]]:
    last = -1
    while True:
        with database.read() as db:
            found = kind.find(db, database.keyring.key_id, last)
        if not found:
            return
        keys = list(_some(found))
        last = keys[-1]
        yield keys


def _some(found: Iterable[Weight]) -> Iterator[int]:
    held = 0
    for weight in found:
        if held >= _BYTES_AT_ONCE:
            return
        held += weight.bytes
        yield weight.key


def _resealed(database: Database, kind: _Kind, keys: Sequence[int]) -> Iterator[CheckpointError]:
    """One error for each damaged row; a key that is missing ends it all."""
    try:
        database.write(Statement(partial(_apply, kind, keys)))
    except KeyNeeded:
        raise
    except DamagedError as error:
        if len(keys) == 1:
            yield error
            return
        for key in keys:
            yield from _resealed(database, kind, [key])


def _apply(kind: _Kind, keys: Sequence[int], db: sqlite3.Connection) -> None:
    tables.overwrite_what_is_freed(db)
    kind.reseal(db, keys)
