"""A confidence sequence for a bounded mean, because people read intervals.

Assumption: as for :mod:`comparator.sequential.mean`, the mean given the past is the same μ for every
observation. Formula (hedged grid Kelly): rescale x to [0, 1]; for each candidate mean m

    K⁺(m) = Σ_k w_k Π_i (1 + c_k (x_i - m)/m),  K⁻(m) = Σ_k w_k Π_i (1 - c_k (x_i - m)/(1 - m)),  0 < c_k < 1

and keep m while K⁺(m) < 2/α and K⁻(m) < 2/α. At m = μ each is a nonnegative martingale from 1, so the
interval holds μ at all n at once with probability at least 1 - α. Every factor of K⁺ falls in m and every
factor of K⁻ rises, so what is kept is an interval, found by bisection and rounded outwards to 2⁻²⁴ of the
range where nobody asks for less.

Source: Waudby-Smith & Ramdas (JRSS-B 2024), section 4.1 (hedged capital process), with fixed bets as in their
grid Kelly, so that counts are the whole state and shards merge. The running intersection of the intervals is
valid too, but needs the path; a caller who shows it keeps it with :meth:`Interval.intersect`.

One look costs over a hundred times one ``log_e``: take it when somebody looks, not at every observation.
"""

from __future__ import annotations

import math

import msgspec

from comparator.sequential.counts import Counts
from comparator.sequential.elementary import log, log_sum_exp, remembered_log
from comparator.sequential.errors import SequentialError
from comparator.sequential.levels import check_alpha, threshold_nats
from comparator.sequential.mixture import Mixture

SHARES = Mixture.geometric(1.0 / 1024.0, 0.95, 14)
"""Bets as shares of the largest one, c_k: from a few observations to some millions."""
_BITS = 24


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """One look at a confidence sequence. A bound of None is no bound at all."""

    low: float | None
    high: float | None
    alpha: float
    n: int

    def intersect(self, later: Interval) -> Interval:
        """Both at once, as the theory allows for one sequence at one α.

        Raises:
            SequentialError: different α. Disjoint intervals give low > high: the assumption (one mean, in
            range) does not hold, which is for the caller to say.
        """
        if self.alpha != later.alpha:
            raise SequentialError(f"alpha: {self.alpha} and {later.alpha} are not one sequence")
        lows = [bound for bound in (self.low, later.low) if bound is not None]
        highs = [bound for bound in (self.high, later.high) if bound is not None]
        return Interval(
            low=max(lows, default=None),
            high=min(highs, default=None),
            alpha=self.alpha,
            n=max(self.n, later.n),
        )


def mean_interval(
    state: Counts,
    alpha: float,
    *,
    lower: float = -1.0,
    upper: float = 1.0,
    shares: Mixture = SHARES,
    bits: int = _BITS,
) -> Interval:
    """The confidence sequence for the mean at this state; [lower, upper] with no observation.

    Args:
        state: observations so far.
        alpha: 1 minus the coverage, at all looks together.
        lower: smallest value that an observation may have.
        upper: largest value.
        shares: bets, as shares of the largest one.
        bits: bounds are rounded outwards to 2^-bits of the range; fewer cost less.

    Raises:
        SequentialError: α or a share outside (0, 1), lower ≥ upper, or a value outside the range.
    """
    check_alpha(alpha)
    if not -math.inf < lower < upper < math.inf:
        raise SequentialError(f"range: [{lower}, {upper}] is empty or not finite")
    if not (shares.points[0] > 0.0 and shares.points[-1] < 1.0):
        raise SequentialError(f"shares: {shares.points[0]} to {shares.points[-1]} leave (0, 1)")
    state.within(lower, upper)
    if not state.values:
        return Interval(low=lower, high=upper, alpha=alpha, n=0)
    width = upper - lower
    scaled = [(value - lower) / width for value in state.values]
    counts = list(state.counts)
    mirrored = [(upper - value) / width for value in state.values]
    bar = threshold_nats(0.5 * alpha)
    low = lower + width * _lowest_kept(scaled, counts, shares, bar, bits)
    high = upper - width * _lowest_kept(mirrored, counts, shares, bar, bits)
    # rounding of the last step must not push a bound inwards past the range
    return Interval(low=max(lower, low), high=min(upper, high), alpha=alpha, n=state.n)


def _lowest_kept(scaled: list[float], counts: list[int], shares: Mixture, bar: float, bits: int) -> float:
    """Largest multiple of 2^-bits at which K⁺ still rejects, or 0: everything below it is rejected too."""
    rejected, kept = 0, 1 << bits
    while kept - rejected > 1:
        middle = (rejected + kept) // 2
        if _log_wealth(scaled, counts, shares, math.ldexp(middle, -bits)) >= bar:
            rejected = middle
        else:
            kept = middle
    return math.ldexp(rejected, -bits)


def _log_wealth(scaled: list[float], counts: list[int], shares: Mixture, mean: float) -> float:
    """log K⁺(m), m in (0, 1)."""
    terms = []
    for share, weight in zip(shares.points, shares.weights, strict=True):
        # 1 + c (x - m)/m written so that it stays positive in floating point: c < 1
        logs = (
            count * log((1.0 - share) + share * (value / mean))
            for value, count in zip(scaled, counts, strict=True)
        )
        terms.append(remembered_log(weight) + math.fsum(logs))
    return log_sum_exp(terms)
