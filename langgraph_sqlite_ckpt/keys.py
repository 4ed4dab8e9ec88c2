"""Keys, and the one cipher: AES-256-GCM, from `cryptography` (the extra `encryption`).

What is sealed is bound to its place (see `sealing.py`): bytes from elsewhere do not open there. Each seal has a random
nonce of 96 bits, which is good for 4,000,000,000 of them with one key: change keys before (`rekey`). A checkpoint takes two
or three, a value, a write and an effect one each.

A key is 32 random bytes. There are no passphrases: stretching one is the business of whoever keeps it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Union

from langgraph_sqlite_ckpt.errors import InvalidRequest, OpenError

Where = tuple[Union[str, int, float, None], ...]
"""The place that bytes are bound to, spelled out."""

_LENGTH, _NONCE, _TAG = 32, 12, 16  # bytes
_FORMAT = "langgraph_sqlite_ckpt 1"
ALWAYS_CLEAR = ("source", "step", "run_id", "parents")  # of the metadata; parents are ids of checkpoints


class Unopened(bytes):
    """Stored bytes in the place of those that they should have opened to. Whoever needs those is told why."""

    why: str
    missing: bool
    """The right key may open them."""
    key_id: int | None

    @classmethod
    def of(cls, stored: object, why: str, *, missing: bool = False, key_id: int | None = None) -> Unopened:
        unopened = cls(stored if isinstance(stored, bytes) else b"")
        unopened.why, unopened.missing, unopened.key_id = why, missing, key_id
        return unopened


class UnopenedText(str):
    """The same in the place of a text: it says why."""

    __slots__ = ("unopened",)
    unopened: Unopened

    @classmethod
    def of(cls, unopened: Unopened) -> UnopenedText:
        text = cls(f"({unopened.why})")
        text.unopened = unopened
        return text


class Keyring:
    """The first key is for what is written, all are for what is read; None stands for no encryption. Thread-safe."""

    def __init__(self, keys: Sequence[bytes | None] = (None,), clear: Collection[str] = ()) -> None:
        self._ciphers: Mapping[int | None, Any] = {_id_of(key): _cipher(key) for key in keys}
        self.key_id: int | None = next(iter(self._ciphers))
        self._clear = frozenset((*ALWAYS_CLEAR, *clear))
        self.fits = False  # the file's newest row opens with one of these

    def __repr__(self) -> str:
        return f"<Keyring of {len(self._ciphers)}>"

    def __contains__(self, key_id: int | None) -> bool:
        return key_id in self._ciphers

    def clear_part(self, metadata: str) -> str:
        """Of JSON: what everybody who has the file may read."""
        return json.dumps({key: value for key, value in json.loads(metadata).items() if key in self._clear})

    def seal(self, data: bytes, where: Where) -> bytes:
        nonce = os.urandom(_NONCE)
        sealed: bytes = nonce + self._ciphers[self.key_id].encrypt(nonce, data, _bound_to(where))
        return sealed

    def open(self, key_id: Any, sealed: Any, where: Where) -> bytes:
        """`Unopened` where it is not what was sealed there, or with another key."""
        if key_id not in self._ciphers:
            return Unopened.of(sealed, missing_key(key_id), missing=True, key_id=key_id)
        if key_id is None:
            return sealed  # type: ignore[no-any-return]  # what stands in a damaged row is looked at by who unpacks it
        try:
            opened: bytes = self._ciphers[key_id].decrypt(sealed[:_NONCE], sealed[_NONCE:], _bound_to(where))
        except Exception:  # it is no bytes, too short, or from elsewhere
            return Unopened.of(sealed, "it is not what was encrypted at this place")
        return opened


def tag(sealed: bytes | None) -> str | None:
    """What is as good as the whole of it to bind others to."""
    return sealed[-_TAG:].hex() if isinstance(sealed, bytes) else None


def missing_key(key_id: object) -> str:
    if key_id is None:
        return (
            "it is not encrypted, and only what is encrypted is taken. If the file is older than its key: "
            "keys=[key, None], and rekey() encrypts the rest"
        )
    return f"it is encrypted with the key of id {key_id}, which was not given: key=..., or keys=[new, old]"


def _bound_to(where: Where) -> bytes:
    return json.dumps([_FORMAT, *where]).encode()


def _id_of(key: bytes | None) -> int | None:
    """Names a key in the file, and tells nothing of it."""
    if key is None:
        return None
    return int.from_bytes(hashlib.sha256(b"langgraph_sqlite_ckpt key id\0" + key).digest()[:8], "big", signed=True)


def _cipher(key: bytes | None) -> Any:
    if key is None:
        return None
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise InvalidRequest(
            "encryption needs the package `cryptography`: pip install 'langgraph-sqlite-ckpt[encryption]'"
        ) from error
    return AESGCM(key)


# --- what a caller gives ---


def keyring_of(key: object, keys: object, clear_metadata: object) -> Keyring:
    """From a saver's arguments. No error shows a key."""
    if key is not None and keys is not None:
        raise InvalidRequest("key= is one key, keys= is several: give one of the two")
    given = keys if keys is not None else (key,)
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)) or not given:
        raise InvalidRequest("keys is a list, [the key to write with, ...others to read with]; None stands for none")
    for each in given:
        if each is not None and not (isinstance(each, bytes) and len(each) == _LENGTH):
            raise InvalidRequest(f"a key is {_LENGTH} random bytes (os.urandom({_LENGTH})); read_key(path) reads a file")
    names = clear_metadata
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest("clear_metadata is a list of metadata keys that are not encrypted")
    return Keyring(tuple(given), names)


def read_key(path: str | os.PathLike[str]) -> bytes:
    """A key from a file that holds nothing else: 32 bytes as they are, or as 64 hex digits (`openssl rand -hex 32`).

    Raises:
        OpenError: The file cannot be read.
        InvalidRequest: It holds something else.
    """
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise OpenError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) == _LENGTH:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != _LENGTH:
        raise InvalidRequest(f"{path}: no key: it must hold {_LENGTH} bytes, or {2 * _LENGTH} hex digits, and nothing else")
    return key


def keys_of_files(paths: Sequence[str | os.PathLike[str]]) -> Sequence[bytes] | None:
    """For `keys=`; None where there are none."""
    return [read_key(path) for path in paths] or None
