"""Next-token distributions from two top-k lists, and how far apart they are.

Two arms' lists rarely hold the same tokens: an engine may put the drawn token in, displacing the k-th. So
they are compared on the tokens that both hold, renormalised; over the union, the displaced token alone
would look like a difference of up to .017 where the truth is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from comparator.fork import sorted_top
from comparator.records import Sampling, Step


def common_tv(
    left: tuple[tuple[int, ...], tuple[float, ...]],
    right: tuple[tuple[int, ...], tuple[float, ...]],
    sampling: Sampling,
) -> float | None:
    """Total variation distance on the common tokens, 0 to 1; None when there are none with any mass.

    Args:
        left: IDs and logprobs (nats) of one arm's top-k, any order.
        right: the other arm's.
        sampling: at a temperature above 0 both sides are tempered and truncated (top-k, top-p, min-p, in
            this order) as the sampler does, since that is what was drawn from; at 0 the raw distributions are
            compared.
    """
    mine = dict(zip(*sorted_top(*left), strict=True))
    other = dict(zip(*sorted_top(*right), strict=True))
    p = _drawn_from({i: logprob for i, logprob in mine.items() if i in other}, sampling)
    q = _drawn_from({i: logprob for i, logprob in other.items() if i in mine}, sampling)
    if p is None or q is None:
        return None
    return 0.5 * math.fsum(abs(p.get(i, 0.0) - q.get(i, 0.0)) for i in p.keys() | q.keys())  # exact: no order


def step_tv(left: Step, right: Step, sampling: Sampling) -> float | None:
    """:func:`common_tv` of two steps."""
    return common_tv((left.top_ids, left.top_logprobs), (right.top_ids, right.top_logprobs), sampling)


def _drawn_from(logprobs: Mapping[int, float], sampling: Sampling) -> dict[int, float] | None:
    """Probabilities over these tokens, which come largest first and stay so."""
    temperature = sampling.temperature if sampling.temperature > 0 else 1.0
    top = next(iter(logprobs.values()), -math.inf)
    if top == -math.inf:
        return None
    order = list(logprobs)
    p = _normalised({i: math.exp((logprob - top) / temperature) for i, logprob in logprobs.items()})
    if sampling.temperature > 0:
        if sampling.top_k > 0:
            p = _normalised({i: p[i] for i in order[: sampling.top_k]})
        if sampling.top_p < 1.0:
            kept, mass = {}, 0.0
            for i, probability in p.items():
                kept[i] = probability
                mass += probability
                if mass >= sampling.top_p:
                    break
            p = _normalised(kept)
        if sampling.min_p > 0.0:
            least = sampling.min_p * max(p.values())
            p = _normalised({i: x for i, x in p.items() if x >= least})
    return p


def _normalised(weights: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weights.values())
    return {i: weight / total for i, weight in weights.items()}
