"""Slow references for the sequential tests: 60-digit arithmetic, and every path at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from typing import TypeVar

State = TypeVar("State", bound=Hashable)

_WIDE = Context(prec=60, Emax=10**9, Emin=-(10**9))


def log_of(value: Fraction) -> float:
    """The natural logarithm of an exact positive number."""
    return float(_WIDE.ln(_decimal(value)))


def log_mixture(
    weights: Sequence[float], factors: Sequence[Sequence[Fraction]], counts: Sequence[int]
) -> float:
    """log Σ_k w_k Π_v factors[k][v]^counts[v], for exact positive factors."""
    total = Decimal(0)
    for weight, row in zip(weights, factors, strict=True):
        product = Decimal(weight)
        for factor, count in zip(row, counts, strict=True):
            product = _WIDE.multiply(product, _WIDE.power(_decimal(factor), count))
        total = _WIDE.add(total, product)
    return float(_WIDE.ln(total))


def chance_of_ever(
    start: State,
    moves: Sequence[tuple[float, Callable[[State], State]]],
    stops: Callable[[State], bool],
    steps: int,
) -> float:
    """Probability that a walk meets ``stops`` within ``steps`` moves, over all its paths.

    Each move has its probability, the same at each step; states that many paths share are walked once.
    """
    here: dict[State, float] = {start: 1.0}
    stopped = 0.0
    for _ in range(steps):
        after: dict[State, float] = {}
        for state, mass in here.items():
            for probability, move in moves:
                moved = move(state)
                after[moved] = after.get(moved, 0.0) + mass * probability
        here = {}
        for state, mass in after.items():
            if stops(state):
                stopped += mass
            else:
                here[state] = mass
    return stopped


def _decimal(value: Fraction) -> Decimal:
    return _WIDE.divide(Decimal(value.numerator), Decimal(value.denominator))
