"""Is an event more (or less) likely than tolerated? Exceedances, and wins among untied pairs.

Assumption: given the past, each event has a probability on the null's side of p0. Formula, with alternatives
q_j on the other side:

    E_n = Σ_j w_j (q_j/p0)^ones ((1 - q_j)/(1 - p0))^zeros

This is the betting process of :mod:`comparator.sequential.mean` on {0, 1} with λ = |q - p0|/(p0 (1 - p0)),
written as the likelihood ratio that it is (Wald 1945; Waudby-Smith & Ramdas 2024). Where every
q_j > p0, each factor's expectation is 1 at p0 and below 1 for smaller probabilities, so the test holds
against the whole half-line p ≤ p0, and likewise the other way round.
"""

from __future__ import annotations

import math

import msgspec

from comparator.sequential.elementary import log, log_sum_exp, remembered_log, remembered_log1p
from comparator.sequential.errors import SequentialError
from comparator.sequential.mean import Side
from comparator.sequential.mixture import Mixture


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """Ones, zeros and what was neither. Shards add up exactly, in any order."""

    ones: int = 0
    zeros: int = 0
    ties: int = 0
    """Seen and kept for the record, but without a bet."""

    def __post_init__(self) -> None:
        for name in ("ones", "zeros", "ties"):
            if getattr(self, name) < 0:
                raise SequentialError(f"{name}: {getattr(self, name)}; a count is not negative")

    def add(self, happened: bool | None) -> Tally:
        """One more observation; None is a tie."""
        if happened is None:
            return Tally(ones=self.ones, zeros=self.zeros, ties=self.ties + 1)
        return Tally(ones=self.ones + happened, zeros=self.zeros + (not happened), ties=self.ties)

    def merge(self, other: Tally) -> Tally:
        """Counts of both, in any order."""
        return Tally(ones=self.ones + other.ones, zeros=self.zeros + other.zeros, ties=self.ties + other.ties)

    @property
    def n(self) -> int:
        """Observations that bet."""
        return self.ones + self.zeros


class BernoulliTest(msgspec.Struct, frozen=True, kw_only=True):
    """One-sided: rejects p ≤ p0 when every alternative is above it, p ≥ p0 when every one is below."""

    p0: float
    alternatives: Mixture

    def __post_init__(self) -> None:
        if not 0.0 < self.p0 < 1.0:
            raise SequentialError(f"p0: {self.p0} is outside (0, 1)")
        first, last = self.alternatives.points[0], self.alternatives.points[-1]
        if not (self.p0 < first and last < 1.0) and not (first > 0.0 and last < self.p0):
            raise SequentialError(
                f"alternatives: {first} to {last} lie neither all in ({self.p0}, 1) nor all in "
                f"(0, {self.p0}); one that is not on its side of p0 would make the bound wrong"
            )

    @property
    def side(self) -> Side:
        """Which way the alternatives lie from ``p0``."""
        return Side.ABOVE if self.alternatives.points[0] > self.p0 else Side.BELOW

    def log_e(self, state: Tally) -> float:
        """log E, nats; 0 before the first bet. The same bits for the same counts."""
        if not state.n:
            return 0.0
        terms = []
        for q, weight in zip(self.alternatives.points, self.alternatives.weights, strict=True):
            one = remembered_log1p((q - self.p0) / self.p0)
            zero = remembered_log1p((self.p0 - q) / (1.0 - self.p0))
            terms.append(math.fsum((remembered_log(weight), state.ones * one, state.zeros * zero)))
        return log_sum_exp(terms)


class TwoSidedBernoulliTest(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects "p lies in [below.p0, above.p0]": half the stake on either side."""

    above: BernoulliTest
    below: BernoulliTest

    def __post_init__(self) -> None:
        if self.above.side is not Side.ABOVE or self.below.side is not Side.BELOW:
            raise SequentialError("two-sided: 'above' takes alternatives above its p0, 'below' below it")
        if self.below.p0 > self.above.p0:
            raise SequentialError(
                f"two-sided: no p lies in [{self.below.p0}, {self.above.p0}]; swap the nulls"
            )

    def log_e(self, state: Tally) -> float:
        """log E, nats; see :meth:`BernoulliTest.log_e`."""
        if not state.n:
            return 0.0
        return log_sum_exp((self.above.log_e(state), self.below.log_e(state))) - log(2.0)


SHARES = Mixture.geometric(1.0 / 512.0, 0.9, 12)
"""How far from p0 towards 1 (or 0) alternatives lie when none are given: small effects and large."""


def exceedance(p0: float, shares: Mixture = SHARES) -> BernoulliTest:
    """Rejects "the event's probability is at most ``p0``"; alternatives at p0 + share·(1 - p0).

    For the exceedance of a threshold τ that was frozen before the first observation. One bet a cluster: an
    outage that hits many requests is one time block.

    Raises:
        SequentialError: p0 outside (0, 1), or a share outside (0, 1).
    """
    _check(p0, shares)
    points = tuple(p0 + share * (1.0 - p0) for share in shares.points)
    return BernoulliTest(p0=p0, alternatives=Mixture(points=points, weights=shares.weights))


def shortfall(p0: float, shares: Mixture = SHARES) -> BernoulliTest:
    """Rejects "the event's probability is at least ``p0``"; alternatives at p0·(1 - share).

    Raises:
        SequentialError: p0 outside (0, 1), or a share outside (0, 1).
    """
    _check(p0, shares)
    points = tuple(p0 * (1.0 - share) for share in reversed(shares.points))
    return BernoulliTest(p0=p0, alternatives=Mixture(points=points, weights=shares.weights[::-1]))


def _check(p0: float, shares: Mixture) -> None:
    if not 0.0 < p0 < 1.0:
        raise SequentialError(f"p0: {p0} is outside (0, 1)")
    if not (shares.points[0] > 0.0 and shares.points[-1] < 1.0):
        raise SequentialError(f"shares: {shares.points[0]} to {shares.points[-1]} leave (0, 1)")
