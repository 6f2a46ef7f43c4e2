"""Keys for what stands in a store: what they look like as text, and what is derived from one. Pure.

A key is 32 random bytes, written as 64 hex digits or as base64 (``openssl rand -base64 32``). It encrypts no
value itself: from it, by HKDF (RFC 5869) with a label each, come the key that wraps a store's data keys, the
one that seals whole files, and the one that hashes are keyed with. So no two algorithms share key material.
Its ID comes from it too, so that an ID can neither be mistyped nor mean two keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Sequence

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from comparator.errors import ComparatorError

KEY_BYTES = 32
NONCE_BYTES = 12
"""96 bits, what GCM takes without another hash (NIST SP 800-38D, 8.2)."""

_FILE_MAGIC = b"forkgate sealed file 1\n"
_SALT_BYTES = 32
_ID_CHARS = 16


class KeyTextError(ComparatorError):
    """Text that is no key. Never repeats the text."""


class SealedFileError(ComparatorError):
    """A sealed file that none of the keys opens, or that was changed."""


class SealedKeyError(SealedFileError):
    """Its key is not among those given: it is whole, and whoever has the key can read it."""


class Key:
    """One key. Shows its ID and nothing else."""

    __slots__ = ("_secret", "id")

    def __init__(self, secret: bytes) -> None:
        """
        Raises:
            KeyTextError: not 32 bytes.
        """
        if len(secret) != KEY_BYTES:
            raise KeyTextError(
                f"{len(secret)} bytes, a key has {KEY_BYTES}: `openssl rand -base64 32` makes one"
            )
        self._secret = secret
        self.id = self.derive(b"key id").hex()[:_ID_CHARS]
        """16 hex digits that name it in a store, in status and in errors."""

    def __repr__(self) -> str:
        return f"Key({self.id})"

    def derive(self, purpose: bytes, salt: bytes | None = None) -> bytes:
        """32 bytes for one purpose."""
        return HKDF(SHA256(), KEY_BYTES, salt, b"forkgate evidence 1: " + purpose).derive(self._secret)


class Keyring(msgspec.Struct, frozen=True, kw_only=True):
    """The key that new values are sealed with, and older ones that can still be read."""

    current: Key | None = None
    """None: new values are written as they are."""
    old: tuple[Key, ...] = ()

    def get(self, key_id: str) -> Key | None:
        """The key of this ID."""
        for key in (self.current, *self.old):
            if key is not None and key.id == key_id:
                return key
        return None

    @property
    def ids(self) -> tuple[str, ...]:
        """All that can be read with it, the current one first."""
        return tuple(key.id for key in (self.current, *self.old) if key is not None)


NO_KEYS = Keyring()


def key_of(text: str | bytes) -> Key:
    """A key from a file, a variable or a command's output; space around it does not count.

    Raises:
        KeyTextError: neither 64 hex digits nor base64 of 32 bytes.
    """
    raw = text.encode() if isinstance(text, str) else text
    raw = raw.strip()
    if len(raw) == 2 * KEY_BYTES:
        try:
            return Key(bytes.fromhex(raw.decode("ascii")))
        except ValueError:
            pass  # 48 bytes in base64 are as long, and are refused below
    try:
        secret = base64.b64decode(raw, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise KeyTextError(
            f"no key: {len(raw)} characters that are neither 64 hex digits nor base64 of {KEY_BYTES} bytes; "
            "`openssl rand -base64 32` makes one (a passphrase is none)"
        )
    return Key(secret)


def keyed_hash(key: bytes, ids: Sequence[int]) -> str:
    """Hex HMAC-SHA256 over token IDs, each as 8 bytes little-endian."""
    return hmac.new(
        key, b"".join(int(one).to_bytes(8, "little", signed=True) for one in ids), hashlib.sha256
    ).hexdigest()


def seal_file(key: Key, purpose: str, content: bytes) -> bytes:
    """A whole small file under a key of its own, which a fresh salt gives each time it is written."""
    salt = os.urandom(_SALT_BYTES)
    nonce = os.urandom(NONCE_BYTES)
    head = _FILE_MAGIC + key.id.encode() + b"\n"
    sealed = AESGCM(key.derive(b"file", salt)).encrypt(nonce, content, head + purpose.encode())
    return head + salt + nonce + sealed


def open_file(keys: Keyring, purpose: str, content: bytes) -> bytes:
    """What :func:`seal_file` was given; content that is not sealed comes back as it is.

    Raises:
        SealedKeyError: its key is not here.
        SealedFileError: it was changed.
    """
    if not content.startswith(_FILE_MAGIC):
        return content
    end = len(_FILE_MAGIC) + _ID_CHARS + 1
    head, salt = content[:end], content[end : end + _SALT_BYTES]
    key_id = head[len(_FILE_MAGIC) : -1].decode("ascii", "replace")
    key = keys.get(key_id)
    if key is None:
        raise SealedKeyError(f"sealed with key {key_id}, which is not among those given ({_given(keys)})")
    rest = content[end + _SALT_BYTES :]
    try:
        return AESGCM(key.derive(b"file", salt)).decrypt(
            rest[:NONCE_BYTES], rest[NONCE_BYTES:], head + purpose.encode()
        )
    except (InvalidTag, ValueError) as exc:
        raise SealedFileError(f"changed since it was sealed with key {key_id}, or cut short") from exc


def _given(keys: Keyring) -> str:
    return ", ".join(keys.ids) or "none"
