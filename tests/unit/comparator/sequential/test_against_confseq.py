"""The core beside ``confseq`` 0.0.11, by authors of the papers that it follows.

The package needs Boost and a compiler, so its answers stand here as it gave them:

- ``betting.betting_mart`` with a fixed bet, outcomes mapped to [0, 1];
- ``boundaries.bernoulli_confidence_interval(successes, n, .05, 250, .05)``;
- ranks of a quantile from ``boundaries.beta_binomial_mixture_bound``: (n p (1 - p), .025, 1000 p (1 - p), p,
  1 - p, .025) upwards, and with p and 1 - p swapped downwards.

Capital is the same process and must be equal. Confidence sequences are not: confseq mixes over a beta density
that was chosen for about a thousand observations, this core over a few bets that serve all n. Both must hold
the truth, so neither may lie beside the other, and ours may not be much the wider.
"""

from __future__ import annotations

import math

import pytest

from comparator.sequential import Counts, Mixture, mean_interval, promotion, quantile_interval, rollback

CAPITAL = [
    # margin, bet, how often D was -1, 0 and 1, log capital above -margin, log capital below it
    (0.005, 0.03, (5, 385, 10), 0.20326699492214606, -0.21682711501978144),
    (0.005, 0.2, (5, 385, 10), 1.1068813996466922, -1.7216965803613988),
    (0.005, 0.5, (5, 385, 10), 1.5918045554837754, -5.926317102773172),
    (0.05, 0.03, (37, 349, 14), -0.1125138594995443, 0.06776475014390304),
    (0.05, 0.2, (37, 349, 14), -1.6553276564023838, -0.3714075185997797),
    (0.05, 0.5, (37, 349, 14), -9.315566071578118, -4.877736013486139),
    (0.0, 0.03, (21, 334, 45), 0.6905027436906187, -0.7499294897394525),
    (0.0, 0.2, (21, 334, 45), 3.5184554781295523, -6.21270711646639),
    (0.0, 0.5, (21, 334, 45), 3.689839073108546, -22.676855854926085),
]
SHARES = [
    # successes, n, confidence sequence at .05
    (0, 50, 0.0, 0.13385947855715585),
    (3, 200, 0.00053046038840634, 0.055595345517624115),
    (30, 200, 0.08322409247409723, 0.23597216141805574),
    (50, 100, 0.34742531805909493, 0.6525746819411324),
    (450, 1000, 0.4010826963488171, 0.499478431327384),
    (990, 1000, 0.9771809133153556, 0.9974052425491392),
    (200, 10000, 0.015460674520172689, 0.02519429501121493),
]
RANKS = [
    # n, quantile, ranks between which it lies at .05
    (200, 0.5, 76.30247921352975, 123.69752078647025),
    (200, 0.95, 178.38200279035362, 198.89497054253752),
    (1000, 0.5, 452.03748864460636, 547.9625113553936),
    (1000, 0.95, 927.7079150566102, 969.4209387775686),
    (1000, 0.99, 979.000366917527, 997.8079783575549),
]


@pytest.mark.parametrize(("margin", "bet", "counts", "above", "below"), CAPITAL)
def test_capital_of_a_fixed_bet_is_the_same(
    margin: float, bet: float, counts: tuple[int, int, int], above: float, below: float
):
    state = Counts(values=(-1.0, 0.0, 1.0), counts=counts)
    bets = Mixture(points=(bet,), weights=(1.0,))
    assert promotion(margin, bets).log_e(state) == pytest.approx(above, abs=1e-9)
    assert rollback(margin, bets).log_e(state) == pytest.approx(below, abs=1e-9)


@pytest.mark.parametrize(("successes", "n", "low", "high"), SHARES)
def test_the_sequence_for_a_share_is_about_as_wide_and_lies_there(
    successes: int, n: int, low: float, high: float
):
    kept = [(value, count) for value, count in ((0.0, n - successes), (1.0, successes)) if count]
    state = Counts(values=tuple(value for value, _ in kept), counts=tuple(count for _, count in kept))
    found = mean_interval(state, 0.05, lower=0.0, upper=1.0)
    assert found.low is not None
    assert found.high is not None
    assert max(found.low, low) <= successes / n <= min(found.high, high)
    assert 0.9 <= (found.high - found.low) / (high - low) <= 1.3


@pytest.mark.parametrize(("n", "quantile", "low", "high"), RANKS)
def test_the_sequence_for_a_quantile_ends_at_about_the_same_ranks(
    n: int, quantile: float, low: float, high: float
):
    state = Counts(values=tuple(float(rank) for rank in range(1, n + 1)), counts=(1,) * n)
    found = quantile_interval(state, quantile, 0.05)
    assert found.low is not None
    assert found.high is not None
    most = math.ceil(0.08 * (high - low)) + 1  # ranks are whole numbers
    assert abs(found.low - low) <= most
    assert abs(found.high - high) <= most
