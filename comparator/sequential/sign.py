"""Which arm has the larger outcome? The paired sign test, for outcomes that only an order compares.

Assumption: given the past and that the two outcomes differ, each is the larger with probability ½
(two-sided), or the candidate with probability at most ½. Exchangeability of the arms implies both. Ties do
not bet: they say nothing about the direction. Formula: :mod:`comparator.sequential.bernoulli` at p0 = ½ over
the untied pairs (the sign test of Arbuthnot 1710, as a likelihood-ratio martingale).

It tests the direction, not the size: a candidate that is a little worse often and much better sometimes is
worse to it. For sizes take the mean test.

Offered to whoever builds on this package: no gate asks by order alone.
"""

from __future__ import annotations

import math

from comparator.sequential.bernoulli import BernoulliTest, TwoSidedBernoulliTest, exceedance, shortfall
from comparator.sequential.errors import SequentialError
from comparator.sequential.mixture import Mixture

SIGN_SHARES = Mixture.geometric(0.05, 0.9, 6)
"""Alternatives at ½ ± share/2: from 52.5 % wins to 95 %."""


def sign_of(candidate: float, baseline: float) -> bool | None:
    """True when the candidate's outcome is larger, None for a tie; feeds :meth:`Tally.add`.

    Raises:
        SequentialError: NaN, which no order holds. An infinite outcome is fine.
    """
    if math.isnan(candidate) or math.isnan(baseline):
        raise SequentialError(f"sign of {candidate} against {baseline}: NaN has no order; set the pair aside")
    return None if candidate == baseline else candidate > baseline


def candidate_larger(shares: Mixture = SIGN_SHARES) -> BernoulliTest:
    """Rejects "the candidate's outcome is the larger in at most half of the untied pairs"."""
    return exceedance(0.5, shares)


def either_larger(shares: Mixture = SIGN_SHARES) -> TwoSidedBernoulliTest:
    """Rejects "each arm's outcome is the larger equally often"."""
    return TwoSidedBernoulliTest(above=exceedance(0.5, shares), below=shortfall(0.5, shares))
