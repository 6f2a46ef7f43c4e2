"""Values of a store sealed with AES-256-GCM, each bound to the place that it stands in.

Theory of operation. A writer makes itself a fresh random *data key* each time it opens the store, and again
after :data:`WORN` values. Data keys stand in the file, wrapped by the key that a person gives
(:mod:`comparator.evidence.keys`). A sealed value is::

    0xC1 | 1 | data key's ID, 4 bytes little-endian | nonce, 12 bytes | ciphertext | tag, 16 bytes

0xC1 begins no MessagePack, no JSON and no journal body, so a value says itself whether it is sealed.

*Nonces.* 96 random bits from the system, under a data key that one process life alone uses for at most 2^30
values: the chance that any two of them meet is under 2^-37 a data key (SP 800-38D allows 2^32 values). A
counter would be certain, but not in a virtual machine that is restored from a snapshot.

*Place.* The additional data are the store's own random ID, table, column and the row's key. A value that is
moved to another row, column or store does not open. What this does not tell: that a value was put back to an
older one of the same place, or a row removed. Whoever can write to the file can do both.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from comparator.evidence.errors import EvidenceDamaged, EvidenceLocked
from comparator.evidence.keys import KEY_BYTES, NO_KEYS, NONCE_BYTES, Keyring

WORN = 1 << 30
"""Values that one data key seals at most."""

_MAGIC = b"\xc1\x01"
_HEAD = struct.Struct("<2sI")


def is_sealed(value: object) -> bool:
    """Whether a stored value is one of :meth:`Sealer.seal`'s."""
    return isinstance(value, bytes) and value[:2] == _MAGIC


def data_key_of(value: bytes) -> int:
    """The ID of the data key that a sealed value needs."""
    return int(_HEAD.unpack_from(value)[1])


class Sealer:
    """One open store's seals. With no current key it passes values through; it still opens sealed ones."""

    def __init__(self, db: sqlite3.Connection, path: Path, keys: Keyring = NO_KEYS) -> None:
        self._db = db
        self._path = path
        self.keys = keys
        self._opened: dict[int, AESGCM] = {}
        self._current: tuple[int, AESGCM] | None = None
        self._sealed = 0
        self._store: bytes | None = None

    @property
    def active(self) -> bool:
        """New values are sealed."""
        return self.keys.current is not None

    def ready(self) -> None:
        """Have a data key that is not worn; the writer's, outside of any transaction: a data key must be kept
        before anything that is sealed with it."""
        key = self.keys.current
        if key is None or (self._current is not None and self._sealed < WORN):
            return
        secret, nonce = os.urandom(KEY_BYTES), os.urandom(NONCE_BYTES)
        self._db.execute("BEGIN IMMEDIATE")
        try:
            made = self._db.execute(
                "INSERT INTO data_key (key_id, wrapped) VALUES (?, x'')", (key.id,)
            ).lastrowid
            assert made is not None
            wrapped = nonce + AESGCM(key.derive(b"wrap")).encrypt(nonce, secret, self._data_key_place(made))
            self._db.execute("UPDATE data_key SET wrapped = ? WHERE id = ?", (wrapped, made))
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._current = (made, AESGCM(secret))
        self._opened[made] = self._current[1]
        self._sealed = 0

    def seal(self, place: str, value: bytes) -> bytes:
        """``value`` sealed for ``place`` (``table.column``, NUL, and the row's key), or as it is."""
        if self._current is None:
            assert not self.active, "ready() comes first"
            return value
        number, cipher = self._current
        nonce = os.urandom(NONCE_BYTES)
        self._sealed += 1
        return _HEAD.pack(_MAGIC, number) + nonce + cipher.encrypt(nonce, value, self._place(place))

    def seal_text(self, place: str, text: str | None) -> str | bytes | None:
        """The same for text; none stays none, and empty text, which says nothing, stays text."""
        if not text or not self.active:
            return text
        return self.seal(place, text.encode("utf-8", "surrogatepass"))

    def open(self, place: str, value: bytes) -> bytes:
        """What was sealed for this place; a value that is not sealed comes back as it is.

        Raises:
            EvidenceLocked: its key is not here.
            EvidenceDamaged: it is not what was written at this place.
        """
        if value[:2] != _MAGIC:
            return value
        number = data_key_of(value)
        body = value[_HEAD.size :]
        try:
            return self._cipher(number).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], self._place(place))
        except (InvalidTag, ValueError) as exc:
            said = place.replace("\0", " ")
            raise EvidenceDamaged(
                self._path, f"{said}: not what was sealed there: it was changed, cut, or moved from elsewhere"
            ) from exc

    def open_text(self, place: str, value: str | bytes | None) -> str | None:
        """The same for text."""
        if isinstance(value, bytes):
            return self.open(place, value).decode("utf-8", "surrogatepass")
        return value

    def stale(self, value: object) -> bool:
        """A value that stands otherwise than this sealer would write it: plain, or under another key."""
        if not is_sealed(value):
            return self.active and bool(value)
        assert isinstance(value, bytes)
        key = self.keys.current
        return key is None or self._key_id(data_key_of(value)) != key.id

    def _cipher(self, number: int) -> AESGCM:
        known = self._opened.get(number)
        if known is not None:
            return known
        row = self._db.execute("SELECT key_id, wrapped FROM data_key WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise EvidenceDamaged(self._path, f"data key {number} is missing; values sealed with it are lost")
        key = self.keys.get(row[0])
        if key is None:
            given = ", ".join(self.keys.ids) or "none"
            raise EvidenceLocked(
                self._path,
                f"sealed with key {row[0]}, and that key is not given (given: {given}); name the "
                "configuration that has it under evidence.encryption, or a file that holds it",
            )
        wrapped = row[1]
        try:
            secret = AESGCM(key.derive(b"wrap")).decrypt(
                wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], self._data_key_place(number)
            )
        except (InvalidTag, ValueError) as exc:
            raise EvidenceDamaged(
                self._path, f"data key {number} was changed; values sealed with it are lost"
            ) from exc
        self._opened[number] = cipher = AESGCM(secret)
        return cipher

    def _key_id(self, number: int) -> str | None:
        row = self._db.execute("SELECT key_id FROM data_key WHERE id = ?", (number,)).fetchone()
        return None if row is None else str(row[0])

    def _place(self, place: str) -> bytes:
        if self._store is None:
            row = self._db.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
            self._store = b"" if row is None else str(row[0]).encode()
        return b"forkgate 1\0" + self._store + b"\0" + place.encode("utf-8", "surrogatepass")

    def _data_key_place(self, number: int) -> bytes:
        return self._place(f"data_key.wrapped\0{number}")
