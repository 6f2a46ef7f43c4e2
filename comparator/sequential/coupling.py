"""An upper bound on the total-variation distance from how often same-seed draws differ.

Assumption: both arms draw from their own distribution with the same sampler and seed, that is, by some
coupling of the two. Formula: for any coupling (X, Y) of P and Q, TV(P, Q) ≤ P(X ≠ Y) (the coupling
inequality; Levin, Peres & Wilmer, Markov Chains and Mixing Times, Proposition 4.7). So an upper confidence
sequence for the mismatch probability bounds TV, at all n at once, with probability at least 1 - α. It is
tight for a maximal coupling; an exponential race (Gumbel) at TV d mismatches with probability at most
2d/(1 + d).

One draw (or one sequence) per cluster; the bound is for the average, over prompts, of the distributions' TV.
"""

from __future__ import annotations

import math

from comparator.sequential.bernoulli import SHARES, Tally, shortfall
from comparator.sequential.elementary import log, log1p, log_sum_exp, remembered_log
from comparator.sequential.errors import SequentialError
from comparator.sequential.levels import check_alpha, threshold_nats
from comparator.sequential.mixture import Mixture

_BITS = 40


def mismatch_bound(state: Tally, alpha: float, *, shares: Mixture = SHARES) -> float:
    """Smallest multiple of 2⁻⁴⁰ that "mismatch probability at least this" rejects at α; 1 if none is.

    ``state.ones`` counts mismatches. The value bounds TV from above with probability at least 1 - α under any
    stopping rule. With no mismatch in n draws it is about log(1/α)/n and some, never 0.

    Raises:
        SequentialError: α outside (0, 1), or a share outside (0, 1).
    """
    check_alpha(alpha)
    shortfall(0.5, shares)  # refuses shares outside (0, 1), with its words
    bar = threshold_nats(alpha)
    kept, rejected = 0, 1 << _BITS
    while rejected - kept > 1:
        middle = (kept + rejected) // 2
        if _log_e(state, math.ldexp(middle, -_BITS), shares) >= bar:
            rejected = middle
        else:
            kept = middle
    return math.ldexp(rejected, -_BITS)


def race_bound(tv: float) -> float:
    """Largest mismatch probability of an exponential race between distributions at TV d: 2d/(1 + d).

    Raises:
        SequentialError: a distance outside [0, 1].
    """
    if not 0.0 <= tv <= 1.0:
        raise SequentialError(f"tv: {tv} is outside [0, 1]")
    return 2.0 * tv / (1.0 + tv)


def _log_e(state: Tally, p0: float, shares: Mixture) -> float:
    """log E of shortfall(p0), without making a test for each p0: q = p0 (1 - s)."""
    if not state.n:
        return 0.0
    terms = []
    for share, weight in zip(shares.points, shares.weights, strict=True):
        one, zero = log1p(-share), log(1.0 + p0 * share / (1.0 - p0))
        terms.append(math.fsum((remembered_log(weight), state.ones * one, state.zeros * zero)))
    return log_sum_exp(terms)
