"""A confidence sequence for a quantile, from order statistics alone.

Assumption: given the past, each observation has the same p-quantile Q = inf{x: F(x) ≥ p}; atoms are fine.
Formula: for a value x let N(x) be how many observations are ≤ x. Then

- Q > x when the one-sided test of "P(X ≤ x) ≥ p" (:func:`~comparator.sequential.bernoulli.shortfall`)
  rejects at α/2 on N(x) ones: so Q is at least the smallest observation that is not rejected;
- Q ≤ x when the test of "P(X ≤ x) ≤ p" (:func:`~comparator.sequential.bernoulli.exceedance`) rejects at α/2:
  then already at some smaller value F reaches p. So Q is at most the smallest observation that is rejected.

Both tests are monotone in x, so only the one at Q itself must not err, and the interval holds Q at all n at
once with probability at least 1 - α. Source: Howard & Ramdas, Sequential estimation of quantiles with
applications to A/B testing and best-arm identification (Bernoulli 2022), section 3 (a fixed quantile from a
boundary for Bernoulli sums); here with a discrete mixture in the place of their beta mixture, which keeps the
one-sided tests valid with atoms.

The state is :class:`Counts` of the values, merged exactly. Latencies take many values: count them in frozen
bins (each value replaced by its bin's upper edge); the interval then is that of the binned quantile, which
lies at most one bin above the true one.
"""

from __future__ import annotations

from collections.abc import Callable

from comparator.sequential.bernoulli import BernoulliTest, Tally, exceedance, shortfall
from comparator.sequential.counts import Counts
from comparator.sequential.errors import SequentialError
from comparator.sequential.interval import Interval
from comparator.sequential.levels import check_alpha, rejects
from comparator.sequential.mixture import Mixture

SHARES = Mixture.geometric(1.0 / 1024.0, 0.95, 14)


def quantile_interval(state: Counts, p: float, alpha: float, *, shares: Mixture = SHARES) -> Interval:
    """The confidence sequence for the p-quantile at this state; a side that nothing bounds yet is None.

    Raises:
        SequentialError: p or α outside (0, 1).
    """
    check_alpha(alpha)
    if not 0.0 < p < 1.0:
        raise SequentialError(f"p: {p} is outside (0, 1); the median is 0.5")
    n = state.n
    below: list[int] = []
    running = 0
    for count in state.counts:
        running += count
        below.append(running)

    def says(test: BernoulliTest, ones: int) -> bool:
        return rejects(test.log_e(Tally(ones=ones, zeros=n - ones)), 0.5 * alpha)

    too_few, too_many = shortfall(p, shares), exceedance(p, shares)
    first_kept = _first(len(below), lambda index: not says(too_few, below[index]))
    first_over = _first(len(below), lambda index: says(too_many, below[index]))
    # below every observation N is 0; only where that is rejected has Q a lower bound at all
    bounded_below = first_kept is not None and says(too_few, 0)
    return Interval(
        low=state.values[first_kept] if bounded_below and first_kept is not None else None,
        high=None if first_over is None else state.values[first_over],
        alpha=alpha,
        n=n,
    )


def _first(size: int, holds: Callable[[int], bool]) -> int | None:
    """The first index at which a condition holds that, once true, stays true; None if it never does."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < size else None
