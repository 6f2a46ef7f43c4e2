"""Choices from a seed, the same on every Python version.

``random`` promises a stable stream only for ``random.random()``; the suite is frozen by the digest of its
bytes, so it draws from BLAKE2b in counter mode instead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Draw:
    """A stream of choices named by its key; equal keys give equal choices."""

    __slots__ = ("_count", "_key")

    def __init__(self, *key: object) -> None:
        self._key = "/".join(str(part) for part in key).encode()
        self._count = 0

    def below(self, n: int) -> int:
        """A whole number from 0 to ``n - 1``. 64 bits reduced: the bias is under n / 2^64."""
        self._count += 1
        digest = hashlib.blake2b(self._key + b"#%d" % self._count, digest_size=8).digest()
        return int.from_bytes(digest) % n

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def pick(self, among: Sequence[T]) -> T:
        return among[self.below(len(among))]

    def shuffled(self, among: Sequence[T]) -> list[T]:
        """All of them, in a drawn order (Fisher-Yates)."""
        out = list(among)
        for last in range(len(out) - 1, 0, -1):
            other = self.below(last + 1)
            out[last], out[other] = out[other], out[last]
        return out
