"""Levels: what α may be, and what is compared with it."""

from __future__ import annotations

import math

import pytest

from comparator.errors import ComparatorError
from comparator.sequential import SequentialError, rejects, threshold_nats


def test_the_bar_is_log_one_over_alpha():
    assert threshold_nats(0.05) == pytest.approx(math.log(20), rel=1e-15)
    assert rejects(threshold_nats(0.05), 0.05)
    assert not rejects(math.nextafter(threshold_nats(0.05), 0.0), 0.05)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -1.0, 2.0, math.nan, math.inf])
def test_alpha_outside_its_range_is_refused(alpha: float):
    with pytest.raises(SequentialError, match=r"alpha: .* is outside \(0, 1\)"):
        threshold_nats(alpha)
    with pytest.raises(ComparatorError):
        rejects(0.0, alpha)


def test_an_undefined_e_value_is_no_answer():
    with pytest.raises(SequentialError, match="log_e: NaN"):
        rejects(math.nan, 0.05)
