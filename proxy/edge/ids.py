"""UUIDv7 at the price of a string format (RFC 9562 section 5.7).

``uuid.uuid4`` costs about 2 µs, most of it one system call for 16 random bytes. Here random bytes are drawn
4 KiB at a time, and the millisecond's prefix is kept as long as the millisecond lasts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

_DRAW_BYTES: Final = 4096
_TAIL_BYTES: Final = 8  # of one ID: the variant's two bits and rand_b
# RFC 9562 section 4.1: the variant is the two bits 10 in front of rand_b.
_WITH_VARIANT: Final = bytes(0x80 | (byte & 0x3F) for byte in range(256))
_COUNT: Final = [f"{number:03x}" for number in range(4096)]


class RequestIds:
    """A stream of fresh UUIDv7 in their usual spelling. Not thread-safe; one a worker.

    48 bits of Unix milliseconds; rand_a counts within the millisecond from a random start below half, so
    that IDs of one worker rise (section 6.2, method 1); rand_b is random.
    """

    __slots__ = ("_at", "_clock", "_count", "_millisecond", "_prefix", "_tails")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._millisecond = -1
        self._prefix = ""
        self._count = 0
        self._tails = b""
        self._at = 0

    def new(self) -> str:
        at = self._at
        if at >= len(self._tails):
            at = self._draw()
        tail = self._tails[at : at + _TAIL_BYTES]
        self._at = at + _TAIL_BYTES
        now_ms = int(self._clock() * 1000)
        if now_ms > self._millisecond:
            self._begin(now_ms, tail)
        self._count = count = self._count + 1
        if count > 4095:  # more than two thousand in one millisecond: borrow the next (section 6.2)
            self._begin(self._millisecond + 1, tail)
            count = self._count
        return f"{self._prefix}{_COUNT[count]}-{tail.hex('-', 6)}"

    def _draw(self) -> int:
        drawn = bytearray(os.urandom(_DRAW_BYTES))
        drawn[::_TAIL_BYTES] = drawn[::_TAIL_BYTES].translate(_WITH_VARIANT)
        self._tails = bytes(drawn)
        return 0

    def _begin(self, millisecond: int, random: bytes) -> None:
        self._millisecond = millisecond
        stamp = f"{millisecond & 0xFFFF_FFFF_FFFF:012x}"
        self._prefix = f"{stamp[:8]}-{stamp[8:]}-7"
        self._count = random[7] << 3
