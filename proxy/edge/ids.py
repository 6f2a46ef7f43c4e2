"""UUIDv7 at the price of a string format (RFC 9562 section 5.7).

``uuid.uuid4`` costs about 2 µs, most of it one system call for 16 random bytes. Here random bytes are drawn
4 KiB at a time, and the millisecond's prefix is kept as long as the millisecond lasts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_DRAW_BYTES = 4096
_VARIANT = dict(zip("0123456789abcdef", "89ab" * 4, strict=True))


class RequestIds:
    """A stream of fresh UUIDv7 in their usual spelling. Not thread-safe; one a worker."""

    __slots__ = ("_clock", "_hex", "_millisecond", "_position", "_prefix")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._millisecond = -1
        self._prefix = ""
        self._hex = ""
        self._position = 0

    def new(self) -> str:
        """48 bits of Unix milliseconds, then 74 random bits, with version 7 and variant 2 in their places."""
        now_ms = int(self._clock() * 1000)
        if now_ms != self._millisecond:
            self._millisecond = now_ms
            stamp = f"{now_ms & 0xFFFFFFFFFFFF:012x}"
            self._prefix = f"{stamp[:8]}-{stamp[8:]}-7"
        at = self._position
        digits = self._hex
        if at + 19 > len(digits):
            digits = self._hex = os.urandom(_DRAW_BYTES).hex()
            at = 0
        self._position = at + 19
        return (
            f"{self._prefix}{digits[at : at + 3]}-{_VARIANT[digits[at + 3]]}{digits[at + 4 : at + 7]}"
            f"-{digits[at + 7 : at + 19]}"
        )
