"""Evidence by blocks of time: what is old falls out, and shards merge.

A :class:`Window` maps block number (``floor(unix_s / block_s)``) to counts by small integer bin. It keeps
the newest ``BLOCKS`` blocks that it has seen, so its size is bounded whatever the traffic, and a fault
after a long good time is not averaged away. Counts are integers: merging two windows, in any order, gives
the window of all their evidence, exactly.

Clocks of several edges differ, and one may step. Evidence that looks older than the window is new all the
same (it just arrived), so it counts in the newest block: a record from the future may empty the window,
but can never blind a gate to what follows. Exact merging holds for evidence that came within the window.
"""

from __future__ import annotations

import math

import msgspec

BLOCKS = 10
"""Blocks in a window; the oldest of them is up to one block longer ago than ``window_s``."""


class Window(msgspec.Struct, frozen=True):
    """Counts by block and bin."""

    counts: dict[int, dict[int, int]] = {}

    def add(self, unix_s: float, block_s: float, bins: tuple[int, ...]) -> Window:
        """With one item that counts once in each of ``bins``. Older than the window: in its newest block."""
        block = math.floor(unix_s / block_s)
        newest = max(self.counts, default=block)
        if block <= newest - BLOCKS:
            block = newest
        old = self.counts.get(block, {})
        changed = dict(old)
        for index in bins:
            changed[index] = changed.get(index, 0) + 1
        counts = {**self.counts, block: changed}
        if block > newest:
            counts = {number: kept for number, kept in counts.items() if number > block - BLOCKS}
        return Window(counts)

    def merge(self, other: Window) -> Window:
        """The window over both; associative and commutative."""
        newest = max((*self.counts, *other.counts), default=0)
        merged: dict[int, dict[int, int]] = {}
        for counts in (self.counts, other.counts):
            for block, bins in counts.items():
                if block > newest - BLOCKS:
                    into = merged.setdefault(block, {})
                    for index, count in bins.items():
                        into[index] = into.get(index, 0) + count
        return Window(merged)

    def totals(self) -> dict[int, int]:
        """Counts by bin over all blocks."""
        total: dict[int, int] = {}
        for bins in self.counts.values():
            for index, count in bins.items():
                total[index] = total.get(index, 0) + count
        return total
