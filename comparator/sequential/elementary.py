"""Logarithm, exponential and log-gamma with the same bits on every machine.

A verdict must come out of its stored counts bit for bit, on any machine. ``math.log`` and ``math.exp`` do
not promise that: they are the C library's, which is not correctly rounded and picks its code by processor
(glibc has variants with and without fused multiply-add). IEEE 754 fixes ``+ - * /``, ``frexp`` and
``ldexp`` to the last bit, Python rounds after each operation, and ``math.fsum`` is exact; so the functions
here are made of these alone.

Errors are a few units in the last place (``log``, ``log1p``, ``exp``) and 1e-15 of the largest term
(``log_gamma``); all are checked against 50-digit arithmetic in the tests.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from comparator.sequential.errors import SequentialError

_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
"""ln 2 in two pieces; a binary exponent times the first is exact."""
_ROOT_HALF = 0.7071067811865476
_ATANH = tuple(1.0 / (2 * k + 1) for k in range(12, 0, -1))
"""atanh(s)/s - 1 in powers of s², highest first; at |s| ≤ .172 the first term left out is under 2⁻⁶⁴."""
_EXP = tuple(1.0 / math.factorial(k) for k in range(15, -1, -1))
"""exp on |r| ≤ .347, highest first; the first term left out is under 2⁻⁶⁸."""
_STIRLING = (
    1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400,
)  # fmt: skip
"""B₂ₖ / (2k (2k - 1)): the tail of log Γ in odd powers of 1/x; from x = 16 on it is good to 1e-19."""
_STIRLING_FROM = 16.0
_HALF_LN_TWO_PI = 0.9189385332046728


def _twice_atanh(s: float) -> float:
    z = s * s
    tail = 0.0
    for coefficient in _ATANH:
        tail = tail * z + coefficient
    return 2.0 * s + 2.0 * s * (z * tail)


def log(x: float) -> float:
    """Natural logarithm of a finite x > 0.

    x = m·2ᵉ with m in [√½, √2), and log m = 2 atanh((m - 1)/(m + 1)).
    """
    if not 0.0 < x < math.inf:
        raise SequentialError(f"log of {x}: only positive finite numbers have one here")
    mantissa, exponent = math.frexp(x)
    if mantissa < _ROOT_HALF:
        mantissa *= 2.0
        exponent -= 1
    small = _twice_atanh((mantissa - 1.0) / (mantissa + 1.0))
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + small)


def log1p(x: float) -> float:
    """log(1 + x) for -1 < x < ∞, exact to the last places near 0."""
    if -0.25 < x < 0.4:
        return _twice_atanh(x / (2.0 + x))
    return log(1.0 + x)


@functools.lru_cache(maxsize=1 << 14)
def remembered_log1p(x: float) -> float:
    """:func:`log1p` for arguments that come again: the bets of a test on the values that it has seen."""
    return log1p(x)


@functools.lru_cache(maxsize=1 << 10)
def remembered_log(x: float) -> float:
    """:func:`log` for the weights of mixtures."""
    return log(x)


def exp(x: float) -> float:
    """eˣ; 0 below the smallest float, ``inf`` above the largest. NaN is refused."""
    if x != x:
        raise SequentialError("exp of NaN")
    if x > 709.78:
        return math.inf
    if x < -745.2:
        return 0.0
    exponent = math.floor(x / (_LN2_HIGH + _LN2_LOW) + 0.5)
    rest = (x - exponent * _LN2_HIGH) - exponent * _LN2_LOW
    value = 0.0
    for coefficient in _EXP:
        value = value * rest + coefficient
    return math.ldexp(value, exponent)


def log_sum_exp(terms: Sequence[float]) -> float:
    """log Σ eᵗ without overflow. Its value does not depend on the order of the terms.

    ``-inf`` is a term of nothing; of no terms at all, or only such, the answer is ``-inf``.
    """
    top = max(terms, default=-math.inf)
    if top == -math.inf:
        return top
    return top + log(math.fsum(exp(term - top) for term in terms))


def log_gamma(x: float) -> float:
    """log Γ(x) for finite x > 0 (Stirling's series; small x are lifted by Γ(x + 1) = x Γ(x))."""
    if not 0.0 < x < math.inf:
        raise SequentialError(f"log Γ of {x}: only positive finite numbers have one here")
    lifted = []
    while x < _STIRLING_FROM:
        lifted.append(-log(x))
        x += 1.0
    inverse = 1.0 / x
    square = inverse * inverse
    tail = 0.0
    for coefficient in reversed(_STIRLING):
        tail = tail * square + coefficient
    return math.fsum([(x - 0.5) * log(x), -x, _HALF_LN_TWO_PI, tail * inverse, *lifted])
