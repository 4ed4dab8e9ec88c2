"""Rows sealed on the way in and opened on the way out, where the file has a key (see `sealing.py`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from langgraph_sqlite_ckpt import sealing
from langgraph_sqlite_ckpt.keys import Keyring
from langgraph_sqlite_ckpt.sealing import Names
from langgraph_sqlite_ckpt.tables.rows import (
    BlobOfThread,
    BlobRow,
    CheckpointOfThread,
    CheckpointRow,
    EffectHead,
    EffectOfThread,
    EffectRow,
    MetadataRow,
    NewWrite,
    WriteOfThread,
    WriteRow,
)


class Connection(sqlite3.Connection):
    """To a file whose rows may be sealed."""

    keyring: Keyring


_PLAIN = Keyring()
_PLAIN.fits = True  # nobody opened the file as a saver does


def keyring_of(db: sqlite3.Connection) -> Keyring:
    keyring: Keyring = getattr(db, "keyring", _PLAIN)
    return keyring


class Opener:
    """Rows as others know them, from those that end with the id of their key."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db, self.keyring_of = db, keyring_of(db)
        self._takes_plain = None in self.keyring_of
        self._names: dict[int, Names] = {}

    def _is_plain(self, row: Sequence[Any]) -> bool:
        return row[-1] is None and self._takes_plain

    def _of(self, namespace: int) -> Names:
        names = self._names.get(namespace)
        if names is None:
            names = self._names[namespace] = names_of(self._db, namespace)
        return names

    def checkpoint(self, row: Sequence[Any], names: Names | None = None) -> CheckpointRow:
        made = CheckpointRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_checkpoint(self.keyring_of, row[-1], names or (made.thread_id, made.checkpoint_ns), made)

    def metadata(self, row: Sequence[Any]) -> MetadataRow:
        made = MetadataRow._make(row[:-1])
        return made if self._is_plain(row) else sealing.open_metadata(self.keyring_of, row[-1], made)

    def blob(self, row: Sequence[Any], names: Names | None = None) -> BlobRow:
        made = BlobRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_blob(self.keyring_of, row[-1], names or self._of(made.namespace), made)

    def write(self, row: Sequence[Any], names: Names | None = None) -> WriteRow:
        made = WriteRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_write(self.keyring_of, row[-1], names or self._of(made.namespace), made)

    def effect(self, row: Sequence[Any], names: Names | None = None) -> EffectRow:
        made = EffectRow._make(row[:-1])
        if self._is_plain(row):
            return made
        return sealing.open_effect(self.keyring_of, row[-1], names or (made.thread_id, made.checkpoint_ns), made)

    def effect_head(self, row: Sequence[Any]) -> EffectHead:
        made = EffectHead._make(row[:-1])
        if self._is_plain(row):
            return made
        names = made.thread_id, made.checkpoint_ns
        return made._replace(error=sealing.open_error(self.keyring_of, row[-1], names, made))

    # Rows that leave the file have to be open.

    def blob_of(self, thread_id: str, row: Sequence[Any]) -> BlobOfThread:
        made = BlobOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_blob(self.keyring_of, row[-1], names, made)
        sealing.require_open(names, made.data)
        return made

    def checkpoint_of(self, thread_id: str, row: Sequence[Any]) -> CheckpointOfThread:
        made = CheckpointOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_checkpoint(self.keyring_of, row[-1], names, made)
        sealing.require_open(names, made.exact, made.body, made.rest)
        return made

    def write_of(self, thread_id: str, row: Sequence[Any]) -> WriteOfThread:
        made = WriteOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_write(self.keyring_of, row[-1], names, made)
        sealing.require_open(names, made.data)
        return made

    def effect_of(self, thread_id: str, row: Sequence[Any]) -> EffectOfThread:
        made = EffectOfThread._make(row[:-1])
        names = thread_id, made.checkpoint_ns
        if not self._is_plain(row):
            made = sealing.open_effect(self.keyring_of, row[-1], names, made)
        sealing.require_open(names, made.data, made.error)
        return made


class Sealer:
    """Rows for one namespace as the file gets them: sealed with the first key, if that is one."""

    def __init__(self, db: sqlite3.Connection, names: Names) -> None:
        self.keyring_of, self._names = keyring_of(db), names
        self.key_id = self.keyring_of.key_id
        _require_the_key_of_the_file(db, self.keyring_of)

    @classmethod
    def of(cls, db: sqlite3.Connection, namespace: int) -> Sealer:
        return cls(db, ("", "") if keyring_of(db).key_id is None else names_of(db, namespace))

    def checkpoint(self, row: sealing.Checkpoint) -> sealing.Checkpoint:
        sealing.require_open(self._names, row.exact, row.body, row.rest)
        return row if self.key_id is None else sealing.seal_checkpoint(self.keyring_of, self._names, row)

    def blob(self, row: sealing.Blob) -> sealing.Blob:
        sealing.require_open(self._names, row.data)
        return row if self.key_id is None else sealing.seal_blob(self.keyring_of, self._names, row)

    def write(self, checkpoint_id: str, row: NewWrite) -> NewWrite:
        sealing.require_open(self._names, row.data)
        return row if self.key_id is None else sealing.seal_write(self.keyring_of, self._names, checkpoint_id, row)

    def effect(self, row: sealing.Effect) -> sealing.Effect:
        sealing.require_open(self._names, row.data, row.error)
        return row if self.key_id is None else sealing.seal_effect(self.keyring_of, self._names, row)


def names_of(db: sqlite3.Connection, namespace: int) -> Names:
    return name_of_namespace(db, namespace) or ("", "")


def _require_the_key_of_the_file(db: sqlite3.Connection, keyring: Keyring) -> None:
    """Once: who forgot the key, or has another, must not go on without."""
    if keyring.fits:
        return
    row = db.execute(
        "SELECT c.key_id, n.thread_id FROM checkpoint c JOIN namespace n ON n.id = c.namespace ORDER BY c.seq DESC LIMIT 1"
    ).fetchone()
    if row is not None:
        sealing.require_key(keyring, row[0], (row[1], ""))
    keyring.fits = True


def name_of_namespace(db: sqlite3.Connection, namespace: int) -> tuple[str, str] | None:
    """Its thread_id and checkpoint_ns; None where somebody deleted it."""
    row: tuple[str, str] | None = db.execute(
        "SELECT thread_id, checkpoint_ns FROM namespace WHERE id = ?", (namespace,)
    ).fetchone()
    return row
