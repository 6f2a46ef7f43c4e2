"""Levels: what α may be, how it is split, and what is compared with it."""

from __future__ import annotations

import math

import pytest

from comparator.errors import ComparatorError
from comparator.sequential import SequentialError, anytime_p, rejects, split_alpha, threshold_nats


def test_the_bar_is_log_one_over_alpha():
    assert threshold_nats(0.05) == pytest.approx(math.log(20), rel=1e-15)
    assert rejects(threshold_nats(0.05), 0.05)
    assert not rejects(math.nextafter(threshold_nats(0.05), 0.0), 0.05)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, 2.0, math.nan, math.inf])
def test_alpha_outside_its_range_is_refused(alpha: float):
    with pytest.raises(SequentialError, match=r"alpha: .* is outside \(0, 1\)"):
        threshold_nats(alpha)
    with pytest.raises(ComparatorError):
        split_alpha(alpha, {"accuracy": 1.0})


def test_an_undefined_e_value_is_no_answer():
    with pytest.raises(SequentialError, match="log_e: NaN"):
        rejects(math.nan, 0.05)
    with pytest.raises(SequentialError, match="NaN"):
        anytime_p(math.nan)


def test_a_p_value_is_the_inverse_of_the_highest_e():
    assert anytime_p(math.log(50)) == pytest.approx(0.02)
    assert anytime_p(-3.0) == 1.0
    assert anytime_p(1e9) == 0.0


def test_parts_add_up_to_the_whole():
    parts = split_alpha(0.05, {"accuracy": 2.0, "errors": 1.0, "forks": 1.0})
    assert parts == pytest.approx({"accuracy": 0.025, "errors": 0.0125, "forks": 0.0125})
    assert math.fsum(parts.values()) == pytest.approx(0.05, rel=1e-15)


@pytest.mark.parametrize(
    ("shares", "words"),
    [({}, "at least one question"), ({"a": 0.0}, r"shares\['a'\]: 0.0"), ({"a": math.nan}, "nan")],
)
def test_shares_without_sense_are_refused(shares, words: str):
    with pytest.raises(SequentialError, match=words):
        split_alpha(0.05, shares)
