"""How many observations a betting test needs, before the first one is made.

Assumption: observations are alike and independent, each outcome with the probability given. Under one bet
log E is then a random walk with

    drift g = Σ P(outcome) log factor(outcome),   variance s² = Σ P(outcome) (log factor(outcome) - g)²

nats an observation, and its first passage of a bar b is close to that of a Brownian motion: inverse Gaussian,
with mean b/g and shape b²/s². The mixture is taken as its fastest bet, against the bar that is left of
log(1/α) once the other bets have helped as far as they do where the expected mixture reaches it. A planning
figure: simulated medians lie within a third of it (``tests/statistical``).

Two things are exact: before ``n`` of its most favourable outcome no test rejects, whatever comes; and how
many observations it takes where all are the same. Refusing a margin rests on these alone: on arms that agree
every time, which is the best that an equal candidate can do.

Source: Folks & Chhikara, The inverse Gaussian distribution and its statistical application (JRSS-B 1978);
growth rates of bets: Waudby-Smith & Ramdas, JRSS-B 2024, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from comparator.sequential import BernoulliTest, MeanTest, PartingTest, Side, threshold_nats
from comparator.sequential.elementary import log, log1p, log_sum_exp

Outcomes = Sequence[tuple[float, float]]
"""(value, probability), probabilities summing to 1."""

_Row = tuple[tuple[float, float], ...]
"""One bet: (probability, log factor) of each outcome."""

_MOST = 1e12
"""Beyond so many observations it is as good as never."""


class Needed(msgspec.Struct, frozen=True, kw_only=True):
    """Observations to a verdict; infinite where it is not to be expected at all."""

    median: float
    p90: float

    def scaled(self, factor: float) -> Needed:
        """In a unit of which one observation takes ``factor``."""
        return Needed(median=self.median * factor, p90=self.p90 * factor)


NEVER = Needed(median=math.inf, p90=math.inf)


def paired(difference: float, discordance: float) -> Outcomes:
    """Outcomes of a paired yes/no difference.

    Args:
        difference: mean of candidate minus baseline, in [-discordance, discordance].
        discordance: share of pairs whose two outcomes differ, 0 to 1.

    Raises:
        ValueError: a difference larger than the discordance, which no pairs have.
    """
    if not 0.0 <= discordance <= 1.0 or not abs(difference) <= discordance:
        raise ValueError(f"difference {difference} cannot come of a discordance of {discordance}")
    return (
        (-1.0, (discordance - difference) / 2),
        (0.0, 1.0 - discordance),
        (1.0, (discordance + difference) / 2),
    )


def mean_needs(test: MeanTest, outcomes: Outcomes, alpha: float) -> Needed:
    """Observations until a mean test rejects at level ``alpha``."""
    factors = [(p, test.log_factors(value)) for value, p in outcomes if p > 0.0]
    rows = [tuple((p, row[k]) for p, row in factors) for k in range(len(test.bets.points))]
    return _needed(test.bets.weights, rows, alpha)


def share_needs(test: BernoulliTest, probability: float, alpha: float) -> Needed:
    """Events that bet (ties left out) until a Bernoulli test rejects at level ``alpha``."""
    rows = []
    for q in test.alternatives.points:
        one, zero = log1p((q - test.p0) / test.p0), log1p((test.p0 - q) / (1.0 - test.p0))
        outcomes = ((probability, one), (1.0 - probability, zero))
        rows.append(tuple((p, nats) for p, nats in outcomes if p > 0.0))
    return _needed(test.alternatives.weights, rows, alpha)


def parting_needs(test: PartingTest, rate: float, tokens: int, alpha: float) -> Needed:
    """Comparisons of one replicate until "the arms part at a rate of ``limit`` or more" is rejected.

    Args:
        rate: at which same-seed answers part at each token, 0 to 1.
        tokens: of an answer that never parts.
    """
    ends = [((1.0 - rate) ** (t - 1) * rate, 1.0 - test.limit * t) for t in range(1, tokens + 1)]
    ends.append(((1.0 - rate) ** tokens, -test.limit * tokens))
    rows = [tuple((p, log1p(-bet * excess)) for p, excess in ends if p > 0.0) for bet in test.bets.points]
    return _needed(test.bets.weights, rows, alpha)


def fewest_for_mean(test: MeanTest, alpha: float) -> float:
    """Observations before which a mean test cannot reject, whatever they are. Exact."""
    best = test.upper if test.side is Side.ABOVE else test.lower
    return _fewest(test.bets.weights, test.log_factors(best), alpha)


def fewest_for_share(test: BernoulliTest, alpha: float) -> float:
    """Events before which a Bernoulli test cannot reject, whatever they are. Exact."""
    if test.side is Side.ABOVE:
        gains = [log1p((q - test.p0) / test.p0) for q in test.alternatives.points]
    else:
        gains = [log1p((test.p0 - q) / (1.0 - test.p0)) for q in test.alternatives.points]
    return _fewest(test.alternatives.weights, gains, alpha)


def _fewest(weights: Sequence[float], gains: Sequence[float], alpha: float) -> float:
    """The first n at which the same gain every time reaches the bar."""
    bar = threshold_nats(alpha)

    def reached(n: float) -> bool:
        return log_sum_exp([log(w) + n * g for w, g in zip(weights, gains, strict=True)]) >= bar

    return _first(reached)


def _needed(weights: Sequence[float], rows: Sequence[_Row], alpha: float) -> Needed:
    bar = threshold_nats(alpha)
    drifts = [math.fsum(p * nats for p, nats in row) for row in rows]
    fastest = max(range(len(rows)), key=drifts.__getitem__)
    n = _fewest(weights, drifts, alpha) if drifts[fastest] > 0.0 else math.inf
    if n > _MOST:
        return NEVER
    mixed = log_sum_exp([log(w) + n * g for w, g in zip(weights, drifts, strict=True)])
    return _passage(bar + n * drifts[fastest] - mixed, rows[fastest])


def _passage(bar: float, row: _Row) -> Needed:
    drift = math.fsum(p * nats for p, nats in row)
    variance = math.fsum(p * (nats - drift) ** 2 for p, nats in row)
    if drift <= 0.0:
        return NEVER
    if variance <= 0.0:
        n = float(math.ceil(bar / drift))
        return Needed(median=n, p90=n)
    mean, shape = bar / drift, bar * bar / variance
    if mean > _MOST:
        return NEVER
    return Needed(
        median=_first(lambda n: _passed(n, mean, shape) >= 0.5),
        p90=_first(lambda n: _passed(n, mean, shape) >= 0.9),
    )


def _passed(n: float, mean: float, shape: float) -> float:
    """P(the bar is passed by n): the inverse Gaussian distribution function."""
    root = math.sqrt(shape / n)
    return _normal(root * (n / mean - 1.0)) + _exp_normal(2.0 * shape / mean, -root * (n / mean + 1.0))


def _normal(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2.0))


def _exp_normal(exponent: float, x: float) -> float:
    """exp(exponent) Φ(x) for large exponents and very negative x, by the asymptotic series where Φ is 0."""
    if x > -30.0:
        tail = _normal(x)
        return math.exp(exponent + math.log(tail)) if tail > 0.0 else 0.0
    return math.exp(exponent - 0.5 * x * x) / (-x * math.sqrt(2.0 * math.pi))


def _first(reached: Callable[[float], bool]) -> float:
    high = 1
    while not reached(high):
        high *= 2
        if high > _MOST:
            return math.inf
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return float(high)
