"""Which prompts and conversations a rollout has met already, in fixed memory.

A prompt bets once a rollout: asked again, it is no new evidence. Whether a cluster has been met is kept in a
Bloom filter: it forgets none, and now and then takes a new one for an old one, which skips a bet and makes no
error. At a million clusters 1 in 55 new ones is skipped, at two million 1 in 5; past that little is learned
from further prompts anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_BITS = 1 << 23
"""One MiB a rollout."""
_PROBES = 6
_MASK = _BITS - 1


class Clusters:
    """A set of cluster keys that only grows."""

    def __init__(self) -> None:
        self._bits: bytearray | None = None  # a rollout without traffic costs nothing
        self.count = 0
        """Clusters met for the first time, as far as the filter can tell."""

    def add(self, key: str) -> bool:
        """Note a key. Returns whether it had been met before."""
        if self._bits is None:
            self._bits = bytearray(_BITS // 8)
        met = True
        for place, bit in _places(key):
            if not self._bits[place] & bit:
                met = False
                self._bits[place] |= bit
        self.count += not met
        return met

    def update(self, keys: Iterable[str]) -> None:
        """Note many."""
        for key in keys:
            self.add(key)

    def __contains__(self, key: str) -> bool:
        bits = self._bits
        return bits is not None and all(bits[place] & bit for place, bit in _places(key))


def _places(key: str) -> Iterable[tuple[int, int]]:
    """Byte and bit of each probe, by double hashing (Kirsch & Mitzenmacher 2006)."""
    digest = int.from_bytes(blake2b(key.encode(), digest_size=16).digest(), "little")
    first, second = digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64 | 1
    for number in range(_PROBES):
        index = (first + number * second) & _MASK
        yield index >> 3, 1 << (index & 7)
