"""Our own log, exp and log Γ against 50-digit arithmetic, and against their own bits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.sequential.elementary import exp, log, log1p, log_gamma, log_sum_exp
from comparator.sequential.errors import SequentialError

ULPS = 4
positive = st.floats(min_value=1e-300, max_value=1e300)


def apart(got: float, exact: Decimal) -> float:
    """Units in the last place of the exact value."""
    return float(abs(Decimal(got) - exact)) / math.ulp(float(exact))


def exactly(function: str, x: float) -> Decimal:
    with localcontext() as context:
        context.prec = 50
        return getattr(Decimal(x), function)()


@settings(max_examples=50, deadline=None)
@given(positive)
def test_log_is_exact_to_the_last_places(x: float):
    assert log(x) == 0.0 if x == 1.0 else apart(log(x), exactly("ln", x)) <= ULPS


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=-0.999999, max_value=1e6).filter(lambda x: abs(x) > 1e-300))
def test_log1p_is_exact_to_the_last_places_near_zero_too(x: float):
    with localcontext() as context:
        context.prec = 400  # 1 + 1e-300 has its digits
        exact = (1 + Decimal(x)).ln()
    assert apart(log1p(x), exact) <= ULPS


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=-700, max_value=700))
def test_exp_is_exact_to_the_last_places(x: float):
    assert apart(exp(x), exactly("exp", x)) <= ULPS


@pytest.mark.parametrize("sign", [1, -1])
def test_exp_is_exact_at_the_ends_of_its_series(sign: int):
    # the rest after ln 2 is taken out is largest here, up to ½ ln 2
    worst = max(apart(exp(x), exactly("exp", x)) for x in (sign * (0.34 + k * 1e-5) for k in range(650)))
    assert worst <= 1.5


def test_exp_ends_at_zero_and_infinity():
    assert (exp(-1e6), exp(-746.0), exp(0.0), exp(1e6)) == (0.0, 0.0, 1.0, math.inf)
    assert exp(-745.0) == pytest.approx(math.exp(-745.0), rel=1.0, abs=0)  # one of the smallest floats


@pytest.mark.parametrize("x", [1e-3, 0.5, 1.0, 1.5, 2.0, 3.7, 15.999, 16.0, 17.3, 1000.5, 1e6, 1e9])
def test_log_gamma_agrees_with_the_c_library_and_factorials(x: float):
    assert log_gamma(x) == pytest.approx(math.lgamma(x), rel=2e-15, abs=2e-14)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 300))
def test_log_gamma_of_an_integer_is_the_log_of_a_factorial(n: int):
    with localcontext() as context:
        context.prec = 50
        exact = float(Decimal(math.factorial(n)).ln())
    assert log_gamma(n + 1.0) == pytest.approx(exact, rel=2e-15, abs=3e-14)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_log_sum_exp_has_the_same_bits_in_any_order(terms: list[float], random):
    shuffled = list(terms)
    random.shuffle(shuffled)
    assert log_sum_exp(shuffled) == log_sum_exp(terms)
    assert max(terms) <= log_sum_exp(terms) <= max(terms) + math.log(len(terms)) + 1e-12


def test_log_sum_exp_of_nothing_is_minus_infinity():
    assert log_sum_exp([]) == log_sum_exp([-math.inf]) == -math.inf


def test_the_bits_are_those_written_down():
    # any machine with IEEE doubles gives these; a change of algorithm changes stored verdicts and must show
    assert [value.hex() for value in (log(3.7), log1p(0.0123), exp(-2.5), log_gamma(7.25))] == [
        "0x1.4eeee650ae550p+0",
        "0x1.90967a5c9c89fp-7",
        "0x1.50385c094f425p-4",
        "0x1.c35701a50ff04p+2",
    ]


@pytest.mark.parametrize("call", [lambda: log(0.0), lambda: log(-1.0), lambda: log(math.nan),
                                  lambda: log(math.inf), lambda: log1p(-1.0), lambda: log1p(math.nan),
                                  lambda: exp(math.nan), lambda: log_gamma(0.0),
                                  lambda: log_gamma(math.nan)])  # fmt: skip
def test_arguments_outside_the_domain_are_refused(call):
    with pytest.raises(SequentialError):
        call()
