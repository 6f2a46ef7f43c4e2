"""Is the mean of a bounded outcome within a margin? Betting e-processes with fixed bets.

Assumption: each observation lies in [lower, upper], and its mean *given the past* is on the null's side.
Observations need not be independent or of one distribution: load and difficulty may drift, as long as each
difference, given what came before, is fair.

Formula: with null m,

- rejecting "mean ≤ m" (evidence *above*): E_n = Σ_k w_k Π_i (1 + λ_k (x_i - m)), 0 < λ_k < 1/(m - lower)
- rejecting "mean ≥ m" (evidence *below*): E_n = Σ_k w_k Π_i (1 - λ_k (x_i - m)), 0 < λ_k < 1/(upper - m)

Each factor is positive within these limits and its expectation under the null is at most 1, so that E is a
nonnegative supermartingale from 1 and Ville's inequality bounds P(E_n ≥ 1/α for any n) by α.

Source: Waudby-Smith & Ramdas, Estimating means of bounded random variables by betting (JRSS-B 2024), section
4 (capital processes), with the fixed-bet mixtures that they call grid Kelly; Shekhar & Ramdas, Nonparametric
two-sample testing by betting (IEEE TIT 2024). Fixed bets, not predictable ones, so that counts are the state.
"""

from __future__ import annotations

import enum
import math

import msgspec

from comparator.sequential.counts import Counts
from comparator.sequential.elementary import log, log_sum_exp, remembered_log, remembered_log1p
from comparator.sequential.errors import SequentialError
from comparator.sequential.mixture import Mixture

USUAL_BETS = Mixture.geometric(0.03, 0.5, 6)
"""For paired outcomes in [-1, 1] that mostly agree (a few per cent of discordant pairs)."""


class Side(enum.StrEnum):
    """Where the mean must lie for the test to grow."""

    ABOVE = "above"
    BELOW = "below"


class MeanTest(msgspec.Struct, frozen=True, kw_only=True):
    """One-sided test of a bounded mean. Its state is :class:`Counts`; merging shards is exact."""

    null: float
    side: Side
    bets: Mixture = USUAL_BETS
    lower: float = -1.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        if not -math.inf < self.lower < self.null < self.upper < math.inf:
            raise SequentialError(
                f"null: {self.null} is not inside ({self.lower}, {self.upper}), the range of the outcome"
            )
        room = self.null - self.lower if self.side is Side.ABOVE else self.upper - self.null
        limit = 1.0 / room
        for bet in self.bets.points:
            if not 0.0 < bet < limit or not bet * room < 1.0:
                raise SequentialError(
                    f"bets: {bet} is outside (0, {limit:.6g}); a larger bet could lose more than all"
                )

    def log_factors(self, value: float) -> tuple[float, ...]:
        """What one observation adds to the log of each bet's product, nats.

        Raises:
            SequentialError: NaN, or a value outside [lower, upper].
        """
        if not self.lower <= value <= self.upper:
            raise SequentialError(
                f"value {value} is outside [{self.lower}, {self.upper}], which this test assumes"
            )
        gain = value - self.null if self.side is Side.ABOVE else self.null - value
        return tuple(remembered_log1p(bet * gain) for bet in self.bets.points)

    def log_e(self, state: Counts) -> float:
        """log E of all observations so far, nats; 0 with none. The same bits for the same counts.

        Raises:
            SequentialError: the state holds a value outside [lower, upper].
        """
        if not state.values:
            return 0.0
        factors = [self.log_factors(value) for value in state.values]
        terms = [
            remembered_log(weight)
            + math.fsum(count * row[k] for count, row in zip(state.counts, factors, strict=True))
            for k, weight in enumerate(self.bets.weights)
        ]
        return log_sum_exp(terms)


class TwoSidedTest(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects "the mean lies in [below.null, above.null]": half the stake on either side.

    E = ½ E_above + ½ E_below, a mean of two e-processes for nulls that both hold there.
    """

    above: MeanTest
    below: MeanTest

    def __post_init__(self) -> None:
        if self.above.side is not Side.ABOVE or self.below.side is not Side.BELOW:
            raise SequentialError("two-sided: 'above' takes evidence above its null, 'below' below it")
        if self.below.null > self.above.null:
            raise SequentialError(
                f"two-sided: no mean lies in [{self.below.null}, {self.above.null}]; swap the nulls"
            )

    def log_e(self, state: Counts) -> float:
        """log E, nats; see :meth:`MeanTest.log_e`."""
        if not state.values:
            return 0.0
        return log_sum_exp((self.above.log_e(state), self.below.log_e(state))) - log(2.0)


def promotion(margin: float, bets: Mixture = USUAL_BETS) -> MeanTest:
    """Rejects "the candidate is worse by ``margin`` or more", E[D] ≤ -δ.

    D = candidate's outcome minus baseline's, in [-1, 1], larger is better. Bets: 0 < λ < 1/(1 - δ).
    "Not worse at all" cannot be proved: at δ = 0 equal environments never gather evidence.

    Raises:
        SequentialError: a margin outside [0, 1), or a bet outside its range.
    """
    return MeanTest(null=-_margin(margin) + 0.0, side=Side.ABOVE, bets=bets)


def rollback(margin: float, bets: Mixture = USUAL_BETS) -> MeanTest:
    """Rejects "the candidate is within the margin", E[D] ≥ -δ. Bets: 0 < λ < 1/(1 + δ).

    Raises:
        SequentialError: a margin outside [0, 1), or a bet outside its range.
    """
    return MeanTest(null=-_margin(margin) + 0.0, side=Side.BELOW, bets=bets)


def two_sided(margin: float, bets: Mixture = USUAL_BETS) -> TwoSidedTest:
    """Rejects "better or worse by at most ``margin``", |E[D]| ≤ δ.

    Raises:
        SequentialError: a margin outside [0, 1), or a bet outside (0, 1/(1 + δ)).
    """
    return TwoSidedTest(
        above=MeanTest(null=_margin(margin), side=Side.ABOVE, bets=bets),
        below=MeanTest(null=-_margin(margin) + 0.0, side=Side.BELOW, bets=bets),
    )


def _margin(margin: float) -> float:
    if not 0.0 <= margin < 1.0:
        raise SequentialError(
            f"margin: {margin} is outside [0, 1); give it as a share, half a point is 0.005"
        )
    return margin
