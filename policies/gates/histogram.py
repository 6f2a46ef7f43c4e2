"""Quantiles from a bounded number of integer counts, the same on every machine.

Bins split each power of two into :data:`STEPS` equal parts (as HdrHistogram does): a bin's middle is within
0.4 % of everything in it. ``math.frexp`` is exact, so that a value falls into the same bin everywhere,
which a logarithm does not promise. Values are clamped to 2**-20 .. 2**20 seconds, hence at most 40 x 64
bins.
"""

from __future__ import annotations

import math

STEPS = 64
_LOWEST, _HIGHEST = -20, 20


def bin_of(value_s: float) -> int:
    """The bin of a duration; NaN and negative values are the caller's to refuse."""
    if value_s <= 2.0**_LOWEST:
        return _LOWEST * STEPS
    fraction, exponent = math.frexp(min(value_s, 2.0**_HIGHEST))  # value = fraction * 2**exponent, [.5, 1)
    return exponent * STEPS + int((fraction - 0.5) * 2 * STEPS)


def middle_s(index: int) -> float:
    """The middle of a bin, seconds."""
    exponent, part = divmod(index, STEPS)
    return math.ldexp(0.5 + (part + 0.5) / (2 * STEPS), exponent)


def quantile_s(counts: dict[int, int], quantile: float) -> float | None:
    """The value below which a ``quantile`` of the items lie (nearest rank), to 0.4 %; None without items."""
    n = sum(counts.values())
    if n == 0:
        return None
    rank = max(1, math.ceil(quantile * n))
    seen = 0
    for index in sorted(counts):
        seen += counts[index]
        if seen >= rank:
            return middle_s(index)
    raise AssertionError("ranks run out before the counts do")
