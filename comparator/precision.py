"""How finely an arm can tell two logprobs apart, declared or seen.

``spacing_nats`` (u in the taxonomy) is the size of a difference that the precision alone makes: bf16
keeps 8 significant bits, so logits of 16 to 32 lie .125 apart, and two roundings move a margin by up to
twice that. Where an environment declares no precision, the lattice on which its logprob *differences* lie
is used: the softmax normaliser cancels in a difference, so that what is left is the grid of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

from comparator.fork import sorted_top
from comparator.records import Exchange, Step

SPACING_NATS = {"bf16": 0.25, "fp16": 0.03, "fp32": 2e-6}
"""Declared precision → spacing."""

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
} | {name: name for name in SPACING_NATS}
"""Names that engines give precisions → ours."""

TV_PER_NAT = 0.4
"""Total variation that one spacing of logit noise makes at most in practice: bf16's .25 nats allow .1."""

_STEPS = [2.0**-k for k in range(10)]  # 1 nat ... 2e-3 nats
_TOLERANCE_NATS = 1e-5  # logprobs are float32, and engines print six decimals
_SHARE = 0.95
_MINIMUM_DIFFERENCES = 32


def declared_precision(exchange: Exchange) -> str | None:
    """A key of :data:`SPACING_NATS`, as the arm's environment tells it (fact ``dtype``); None where it tells
    none, or one that says nothing about the logits (a quantization, say)."""
    fact = exchange.facts.get("dtype")
    return None if fact is None else DTYPES.get(str(fact.value))


def lattice_step_nats(steps: Iterable[Step]) -> float | None:
    """The coarsest power of two of which nearly all logprob differences are multiples, or None.

    Domain: steps with at least two entries; under 32 non-zero differences nothing is concluded. A random
    difference lies on the finest grid tried with probability 1 %, so that fp32 shows none.
    """
    differences = []
    for step in steps:
        _, logprobs = sorted_top(step.top_ids, step.top_logprobs)
        for higher, lower in pairwise(logprobs):
            difference = higher - lower
            if _TOLERANCE_NATS < difference < math.inf:
                differences.append(difference)
    if len(differences) < _MINIMUM_DIFFERENCES:
        return None
    for grid in _STEPS:
        on_grid = sum(abs(d - grid * round(d / grid)) <= _TOLERANCE_NATS for d in differences)
        if on_grid >= _SHARE * len(differences):
            return grid
    return None


def spacing_nats(declared: str | None, steps: Iterable[Step]) -> float:
    """The spacing of one arm: as declared, else the lattice seen, else fp32's.

    Args:
        declared: a key of :data:`SPACING_NATS`; others (a quantization, say) tell nothing about the logits.
        steps: what the arm said.
    """
    if declared in SPACING_NATS:
        return SPACING_NATS[declared]
    seen = lattice_step_nats(steps)
    return SPACING_NATS["fp32"] if seen is None else seen
