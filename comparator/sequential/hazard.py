"""Does the candidate fork from the baseline earlier than the control does? Needs no logprobs.

Observation: a triple (baseline, control, candidate) of one captured request, all in one concurrency band.
x = 1 if the candidate forks from the baseline before the control does, 0 if after; both at the same token, or
neither at all, is a tie and does not bet.

Assumption: given the past and that it is no tie, P(x = 1) ≤ p0 = ρ/(1 + ρ), where ρ is the tolerated hazard
ratio: at each token before the first fork the odds that the candidate forks there are at most ρ times the
control's. (With hazards h per token, P(candidate first)/P(control first) = h_c (1 - h_0)/(h_0 (1 - h_c)), and
one token's ratio averaged over tokens keeps the bound; for small hazards it is the ratio of hazards.) At
ρ = 1 exchangeability of candidate and control given the baseline is enough, whatever the prompts are.

Formula: E = Σ_j w_j Π (q_j/p0)^x ((1 - q_j)/(1 - p0))^(1 - x), every q_j in (p0, 1), with the ground of
:mod:`comparator.sequential.bernoulli`. The bet on the first fork is a rank test of two censored times (Gehan
1965), played sequentially.
"""

from __future__ import annotations

import math

from comparator.sequential.bernoulli import BernoulliTest
from comparator.sequential.errors import SequentialError
from comparator.sequential.mixture import Mixture

USUAL_ALTERNATIVES = Mixture.linear(0.58, 0.85, 6)
"""For ρ = 1: hazard ratios from about 1.4 to 5.7."""


def fork_hazard(ratio: float = 1.0, alternatives: Mixture | None = None) -> BernoulliTest:
    """Rejects "the candidate's fork hazard is at most ``ratio`` times the control's".

    Args:
        ratio: ρ ≥ 1, tolerated.
        alternatives: probabilities that the candidate forks first; without any, the usual six with their odds
            multiplied by ρ, so that effects beyond ρ are covered as effects beyond 1 are.

    Raises:
        SequentialError: ρ under 1 or not finite, or an alternative outside (p0, 1).
    """
    if not 1.0 <= ratio < math.inf:
        raise SequentialError(
            f"ratio: {ratio}; a tolerated hazard ratio is at least 1, the control's own floor"
        )
    p0 = ratio / (1.0 + ratio)
    if alternatives is None:
        odds = [ratio * q / (1.0 - q) for q in USUAL_ALTERNATIVES.points]
        points = USUAL_ALTERNATIVES.points if ratio == 1.0 else tuple(o / (1.0 + o) for o in odds)
        alternatives = Mixture(points=points, weights=USUAL_ALTERNATIVES.weights)
    if not (p0 < alternatives.points[0] and alternatives.points[-1] < 1.0):
        raise SequentialError(
            f"alternatives: {alternatives.points[0]} to {alternatives.points[-1]} leave ({p0:.6g}, 1), "
            f"where ratio {ratio} wants them"
        )
    return BernoulliTest(p0=p0, alternatives=alternatives)
