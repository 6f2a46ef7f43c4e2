"""Quantiles of Student's t with the same bits on every machine.

A suite's verdict rests on a t interval and must be recomputed bit for bit, which a C library's functions do
not promise (see :mod:`comparator.sequential.elementary`, whose log, exp and log Γ are used here). The tail is
the regularised incomplete beta function, P(T > t) = ½ I_x(ν/2, ½) with x = ν/(ν + t²), by its continued
fraction (Lentz's method; DLMF 8.17.5 and 8.17.22); the quantile is found by bisection.
"""

from __future__ import annotations

import functools
import math

from comparator.sequential.elementary import exp, log, log_gamma

MOST_DEGREES = 10_000.0
"""More are taken as this many: the quantile is then too large, by about (t² + 1)/40,000 of itself."""
_TINY = 1e-300
_CLOSE = 1e-15


@functools.lru_cache(maxsize=1 << 10)
def t_quantile(tail: float, degrees: float) -> float:
    """The t that is exceeded with probability ``tail``.

    Args:
        tail: inside (0, 0.5).
        degrees: of freedom, above 0, whole or not; infinity is allowed.

    Raises:
        ValueError: an argument outside its domain.
    """
    if not 0.0 < tail < 0.5:
        raise ValueError(f"tail: {tail} is outside (0, 0.5)")
    if not degrees > 0.0:
        raise ValueError(f"degrees: {degrees} of freedom; there must be more than none")
    degrees = min(degrees, MOST_DEGREES)
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > tail:
        low, high = high, 2.0 * high
    while True:
        middle = 0.5 * (low + high)
        if not low < middle < high or high - low <= 1e-12 * high:
            return high
        if t_tail(middle, degrees) > tail:
            low = middle
        else:
            high = middle


def t_tail(t: float, degrees: float) -> float:
    """P(T > t) for t ≥ 0."""
    if t == 0.0:
        return 0.5
    square = t * t
    a, b = 0.5 * degrees, 0.5
    x, rest = degrees / (degrees + square), square / (degrees + square)
    front = exp(math.fsum((log_gamma(a + b), -log_gamma(a), -log_gamma(b), a * log(x), b * log(rest))))
    if x < (a + 1.0) / (a + b + 2.0):
        return 0.5 * front * _fraction(a, b, x) / a
    return 0.5 * (1.0 - front * _fraction(b, a, rest) / b)


def _fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of I_x(a, b), x below (a + 1)/(a + b + 2)."""
    c, d = 1.0, _away(1.0 - (a + b) * x / (a + 1.0))
    d = 1.0 / d
    value = d
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1.0) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1.0)),
        ):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            value *= d * c
        if abs(d * c - 1.0) < _CLOSE:
            break
    return value


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
