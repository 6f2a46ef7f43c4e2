"""Blocks of time that bet once: for what comes in bursts.

A burst of errors, or a slow minute, hits many requests at once; as so many observations it would be evidence
out of nothing. So requests are added up by block, on both arms, and a block is one observation. It should be
longer than an outage lasts.

A block is *closed*, and bets, when something of the block after the next has been seen: items come out of
order across edges, by seconds. Items are dated by their **end**, for that is when they are told: dated by its
start, a request that hung would always come too late, and those that are late must not be the slow ones. What
comes for a closed block is counted as late and does not bet.

A clock that stepped ahead closes everything behind it. After :data:`LATE_RUN` late items in a row the newest
block is taken to have been an error, and counting starts anew at the items' own time.

Not mergeable: a block bets once on all its items, so its items must meet in one place.
"""

from __future__ import annotations

import math

import msgspec

LAG = 2
"""Block k is closed once an item of block k + LAG has come."""
LATE_RUN = 100

MOST_BLOCK_S = 86_400.0


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """What one block adds up to: two counts for each arm, whose meaning is the gate's."""

    baseline: tuple[int, int] = (0, 0)
    candidate: tuple[int, int] = (0, 0)


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks that are still open: at most ``LAG``."""

    open: dict[int, Sums] = {}
    open_from: int | None = None
    """Blocks before this one are closed; None before the first item."""
    late: int = 0
    """Items that came for a closed block."""
    late_run: int = 0
    """Of them, the last in a row."""

    def add(
        self, unix_s: float, block_s: float, *, candidate: bool, amounts: tuple[int, int]
    ) -> tuple[Blocks, tuple[Sums, ...]]:
        """With one more item, and the blocks that it closed, oldest first.

        Args:
            unix_s: when the item ended; finite.
            block_s: a block's length.
            candidate: which arm it is of.
            amounts: what it adds to that arm's two counts.
        """
        block = math.floor(unix_s / block_s)
        late, opened = self.late, dict(self.open)
        closed: tuple[Sums, ...] = ()
        open_from = block - LAG + 1 if self.open_from is None else self.open_from
        if block < open_from:
            late += 1
            if self.late_run + 1 < LATE_RUN:
                return msgspec.structs.replace(self, late=late, late_run=self.late_run + 1), ()
            opened, open_from = {}, block - LAG + 1
        elif block >= open_from + LAG:
            open_from = block - LAG + 1
            closed = tuple(opened.pop(number) for number in sorted(opened) if number < open_from)
        before = opened.get(block, Sums())
        arm = before.candidate if candidate else before.baseline
        arm = (arm[0] + amounts[0], arm[1] + amounts[1])
        opened[block] = (
            Sums(baseline=before.baseline, candidate=arm)
            if candidate
            else Sums(baseline=arm, candidate=before.candidate)
        )
        return Blocks(open=opened, open_from=open_from, late=late), closed


def check_block_s(block_s: float) -> None:
    """Refuse a length that makes no block.

    Raises:
        ValueError: naming the field.
    """
    if not 1.0 <= block_s <= MOST_BLOCK_S:
        raise ValueError(
            f"block_s: {block_s} is outside 1-{MOST_BLOCK_S:g} seconds; longer than an outage, such as 60"
        )


def share_difference(sums: Sums) -> float | None:
    """Baseline's share minus the candidate's, where the counts are (bad, all); None with an arm missing."""
    (bad, n), (candidate_bad, candidate_n) = sums.baseline, sums.candidate
    if not n or not candidate_n:
        return None
    return bad / n - candidate_bad / candidate_n
