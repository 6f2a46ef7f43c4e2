"""The A/A floor: how much an environment differs from itself.

From pairs of baseline and control, over positions up to and including each pair's fork (the prefix is
shared up to there):

- ``sigma_nats``: root mean square of the change of margin, zeros included.
- ``tv_q99``: 99 % quantile of the total variation distance.

An empty floor (no control) is zero on both: it excuses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from comparator.distribution import step_tv
from comparator.fork import margin_nats
from comparator.pair import Pair

QUANTILE = 0.99


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment differs from itself by; both 0 without a control."""

    sigma_nats: float = 0.0
    tv_q99: float = 0.0


def floor_of(pairs: Iterable[Pair]) -> Floor:
    """The floor of baseline-control pairs; pairs that were set aside are left out."""
    squares: list[float] = []
    distances: list[float] = []
    for pair in pairs:
        if not pair.valid:
            continue
        last = len(pair.left.steps) if pair.fork is None else pair.fork.fork_index + 1
        for left, right in zip(pair.left.steps[:last], pair.right.steps[:last], strict=False):
            mine, other = margin_nats(left), margin_nats(right)
            if mine is not None and other is not None and math.isfinite(mine) and math.isfinite(other):
                squares.append((mine - other) ** 2)
            distance = step_tv(left, right, pair.left.sampling)
            if distance is not None:
                distances.append(distance)
    if not squares and not distances:
        return Floor()
    distances.sort()
    rank = max(1, math.ceil(QUANTILE * len(distances)))
    return Floor(
        sigma_nats=math.sqrt(math.fsum(squares) / len(squares)) if squares else 0.0,
        tv_q99=distances[rank - 1] if distances else 0.0,
    )
