"""Which pairs may be timed."""

from __future__ import annotations

from comparator.comparison import Comparison
from comparator.pair import Pair
from comparator.records import Outcome


def timed_pairs(comparison: Comparison) -> list[Pair]:
    """Valid pairs of baseline and candidate whose times are those of live traffic, both arms whole.

    Only comparisons drawn beforehand to run without logprobs: asking for them distorts every step. A suite's
    samples come in bursts of our own making. A token-only arm may be cut after a fork, which censors its
    time.
    """
    if not comparison.timing or comparison.sample is not None:
        return []
    return [
        pair
        for pair in comparison.candidates
        if pair.valid
        and all(
            exchange.outcome is Outcome.COMPLETED and not exchange.token_only
            for exchange in (pair.left, pair.right)
        )
    ]
