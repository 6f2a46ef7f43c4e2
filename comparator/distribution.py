"""Next-token distributions from two top-k lists, and how far apart they are.

Two arms' lists rarely hold the same tokens: an engine may put the drawn token in, displacing the k-th. So
they are compared on the tokens that both hold, renormalised; over the union, the displaced token alone
would look like a difference of up to .017 where the truth is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from comparator.fork import Top, sorted_top
from comparator.records import Sampling, Step


def common_tv(
    left: Top,
    right: Top,
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
    if sampling.temperature <= 0 or (sampling.top_k <= 0 and sampling.top_p >= 1.0 and sampling.min_p <= 0.0):
        quick = _whole_tv(left, right, sampling.temperature if sampling.temperature > 0 else 1.0)
        if quick is not None:
            return quick
    mine = dict(zip(*sorted_top(*left), strict=True))
    other = dict(zip(*sorted_top(*right), strict=True))
    p = _drawn_from({i: logprob for i, logprob in mine.items() if i in other}, sampling)
    q = _drawn_from({i: logprob for i, logprob in other.items() if i in mine}, sampling)
    if p is None or q is None:
        return None
    return 0.5 * math.fsum(abs(p.get(i, 0.0) - q.get(i, 0.0)) for i in p.keys() | q.keys())  # exact: no order


def _whole_tv(left: Top, right: Top, temperature: float) -> float | None:
    """The same where nothing is truncated, so that order does not matter; None: look closer.

    The judge asks this of every step of a control above temperature 0.
    """
    mine, other = dict(zip(*left, strict=True)), dict(zip(*right, strict=True))
    if len(mine) != len(left[0]) or len(other) != len(right[0]):  # an ID came twice
        return None
    common = [(logprob, other[i]) for i, logprob in mine.items() if i in other]
    if not common:
        return None
    top_p, top_q = max(p for p, _ in common), max(q for _, q in common)
    if top_p == -math.inf or top_q == -math.inf:
        return None
    ps = [math.exp((p - top_p) / temperature) for p, _ in common]
    qs = [math.exp((q - top_q) / temperature) for _, q in common]
    total_p, total_q = math.fsum(ps), math.fsum(qs)
    return 0.5 * math.fsum(abs(p / total_p - q / total_q) for p, q in zip(ps, qs, strict=True))


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
