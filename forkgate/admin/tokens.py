"""Whose token is this: compared by hash, in a time that tells nothing.

A token is never kept. Every entry is compared with every attempt, expired ones too, and the loop has no
early exit, so that neither the number of right characters nor the place in the list shows in the time.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from pathlib import Path

from forkgate.config.admin import TOKEN_CHARS, AdminToken, expiry_unix_s

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 4_096
_NEVER = bytes(32)
"""Stands for a token whose file cannot be read. No SHA-256 that anybody knows of is all zeros."""


class TokenFileError(Exception):
    """A token's file cannot be used: what, where, what to do."""


class Entry:
    """One configured token."""

    def __init__(self, token: AdminToken) -> None:
        self.token = token
        self.expires_unix_s = None if token.expires is None else expiry_unix_s(token.expires)
        self._hash = bytes.fromhex(token.sha256) if token.sha256 is not None else _NEVER
        self._seen: tuple[int, int, int] | None = None
        self.trouble: str | None = None

    def hash(self) -> bytes:
        """SHA-256 of the token. A file is read again when it is another one than before."""
        if self.token.file is None:
            return self._hash
        try:
            stat = os.stat(self.token.file)
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen != self._seen:
                self._hash = hashlib.sha256(read_token(Path(self.token.file))).digest()
                self._seen, self.trouble = seen, None
        except (OSError, TokenFileError) as error:
            # Nobody gets in with a token that was taken away.
            self._hash, self._seen = _NEVER, None
            trouble = f"admin token {self.token.name}: {self.token.file}: {error}"
            if trouble != self.trouble:
                log.error(
                    "an admin token cannot be used", extra={"token": self.token.name, "why": str(error)}
                )
            self.trouble = trouble
        return self._hash


class Tokens:
    """All tokens of one admin API."""

    def __init__(self, tokens: Sequence[AdminToken]) -> None:
        self._entries = [Entry(token) for token in tokens]

    def owner(self, given: str, unix_s: float) -> AdminToken | str:
        """The token that was given, or in words why it is none.

        Args:
            given: as the client sent it.
            unix_s: now.
        """
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        found: Entry | None = None
        for entry in self._entries:
            if hmac.compare_digest(digest, entry.hash()):
                found = entry
        if found is None:
            return "this token is not known here"
        if found.expires_unix_s is not None and unix_s >= found.expires_unix_s:
            return f"the token {found.token.name!r} has expired, at {found.token.expires}"
        return found.token

    def troubles(self) -> list[str]:
        """Token files that cannot be read, in words."""
        return [entry.trouble for entry in self._entries if entry.trouble is not None]

    def check(self) -> list[str]:
        """Read every file now, and say what is wrong."""
        for entry in self._entries:
            entry.hash()
        return self.troubles()


def read_token(path: Path) -> bytes:
    """A token's file without its closing newline. Raises OSError, TokenFileError."""
    with path.open("rb") as file:
        raw = file.read(MAX_FILE_BYTES + 1).strip()
    if len(raw) > MAX_FILE_BYTES:
        raise TokenFileError(f"over {MAX_FILE_BYTES} bytes, put one token into it")
    if len(raw) < TOKEN_CHARS:
        raise TokenFileError(
            f"{len(raw)} characters, a token has {TOKEN_CHARS} at least: make one with `openssl rand -hex 32`"
        )
    if any(not 0x21 <= byte <= 0x7E for byte in raw):
        raise TokenFileError("holds a space or a character that no header can carry, put one token into it")
    return raw


def given_token(authorization: str | None) -> str | None:
    """The token of an Authorization header: ``Bearer TOKEN``, or ``Basic`` with the token as password.

    Basic is for clients that can be given nothing but a URL (``https://forkgate:TOKEN@host``), such as
    Flagger's webhooks. The user name counts for nothing.
    """
    if authorization is None:
        return None
    scheme, _, rest = authorization.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer":
        return rest or None
    if scheme.lower() == "basic":
        try:
            text = base64.b64decode(rest, validate=True).decode()
        except ValueError:  # not ASCII, not base64, not UTF-8
            return None
        return text.partition(":")[2] or None
    return None


WINDOW_S = 60.0
MAX_SOURCES = 1_024
"""Addresses that failures are remembered of; the one that was seen longest ago is forgotten first."""


class Failures:
    """Wrong tokens by address within the last minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._most = per_minute
        self._clock = clock
        self._times: OrderedDict[str, deque[float]] = OrderedDict()

    def note(self, source: str) -> None:
        """One more from there."""
        times = self._times.setdefault(source, deque(maxlen=self._most))
        times.append(self._clock())
        self._times.move_to_end(source)
        while len(self._times) > MAX_SOURCES:
            self._times.popitem(last=False)

    def wait_s(self, source: str) -> float:
        """How long this address has to wait; 0 when it need not."""
        times = self._times.get(source)
        if times is None:
            return 0.0
        now = self._clock()
        while times and now - times[0] >= WINDOW_S:
            times.popleft()
        if not times:
            del self._times[source]
        return WINDOW_S - (now - times[0]) if len(times) == self._most else 0.0
