"""The t quantile and the bounds that suite verdicts rest on, against scipy and by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from policies.gates.predicted import History, from_passes, stated
from policies.gates.repeated import difference_of
from policies.gates.student import t_quantile, t_tail


@pytest.mark.parametrize("degrees", [1.0, 1.5, 4.0, 4.31, 57.2, 999.0, 9_999.0])
@pytest.mark.parametrize("tail", [0.4, 0.1, 0.0125, 0.001, 1e-8])
def test_the_t_quantile_is_scipys(tail: float, degrees: float):
    assert t_quantile(tail, degrees) == pytest.approx(stats.t.isf(tail, degrees), rel=1e-10)
    assert t_tail(t_quantile(tail, degrees), degrees) == pytest.approx(tail, rel=1e-10)


def test_infinite_degrees_are_the_normal_to_two_parts_in_ten_thousand():
    assert t_quantile(0.025, math.inf) == pytest.approx(stats.norm.isf(0.025), rel=2e-4)
    assert t_quantile(0.025, math.inf) >= stats.norm.isf(0.025)


@pytest.mark.parametrize(
    ("tail", "degrees", "message"),
    [
        (0.0, 4.0, "tail: 0.0 is outside (0, 0.5)"),
        (0.5, 4.0, "tail: 0.5 is outside (0, 0.5)"),
        (math.nan, 4.0, "tail: nan is outside (0, 0.5)"),
        (0.1, 0.0, "degrees: 0.0 of freedom; there must be more than none"),
    ],
)
def test_a_quantile_outside_its_domain_is_refused(tail: float, degrees: float, message: str):
    with pytest.raises(ValueError) as caught:
        t_quantile(tail, degrees)
    assert str(caught.value) == message


def test_with_nothing_varying_the_bound_is_that_of_unseen_flips():
    found = difference_of([[(1.0, 1.0)] * 5] * 200)
    assert (found.mean, found.variance, found.degrees) == (0.0, 0.0, math.inf)
    assert found.at_least(0.05) == pytest.approx(-math.log(20.0) / 1_000)
    assert found.at_most(0.05) == pytest.approx(math.log(20.0) / 1_000)


def test_an_unseen_flip_reaches_further_where_the_arms_always_differ():
    found = difference_of([[(0.0, 1.0)] * 5] + [[(1.0, 1.0)] * 5] * 199)
    assert found.mean == pytest.approx(-0.005)
    assert found.at_most(0.05) - found.mean == pytest.approx(2.0 * math.log(20.0) / 1_000)
    assert found.mean - found.at_least(0.05) == pytest.approx(math.log(20.0) / 1_000)


def test_the_seen_noise_is_welchs():
    """Two samples of different spread: variance and degrees as by hand."""
    one = [(1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    other = [(1.0, 0.0), (0.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 0.0)]
    found = difference_of([one, other, [(1.0, 1.0)] * 5])
    first, second = 0.2 / 5, 0.3 / 5
    assert found.variance == pytest.approx((first + second) / 9)
    assert found.degrees == pytest.approx((first + second) ** 2 / ((first**2 + second**2) / 4))
    expected = stats.t.isf(0.005, found.degrees) * math.sqrt(found.variance) + math.log(200.0) / 15
    assert found.at_most(0.01) - found.mean == pytest.approx(expected)


def test_unmeasured_passes_widen_both_bounds_by_all_they_could_be():
    whole = difference_of([[(1.0, 1.0)] * 5] * 10)
    holes = difference_of([[(1.0, 1.0)] * 4 + [(None, 1.0)]] + [[(1.0, 1.0)] * 5] * 9)
    assert holes.unmeasured == pytest.approx(1 / 50)
    assert whole.at_least(0.05) - holes.at_least(0.05) == pytest.approx(1 / 50)
    assert holes.at_most(0.05) - whole.at_most(0.05) == pytest.approx(1 / 50)


@pytest.mark.parametrize("samples", [[], [[(1.5, 0.0)] * 5]])
def test_no_sample_or_an_unbounded_score_makes_no_difference(samples):
    with pytest.raises(ValueError, match=r"no sample|outside 0-1"):
        difference_of(samples)


def test_a_stated_history_is_the_usual_prediction_interval():
    found = stated(History(mean=50.0, sd=2.0, runs=9), 0.95)
    half = stats.t.isf(0.025, 8) * 2.0 * math.sqrt(1 + 1 / 9)
    assert (found.low, found.high) == (pytest.approx(50.0 - half), pytest.approx(50.0 + half))


def test_passes_that_vary_more_than_samples_widen_the_interval():
    steady = [[float(i % 7) for i in range(50)]] * 5
    shaken = [[float(i % 7) + shift for i in range(50)] for shift in (0.0, 3.0, 6.0, 9.0, 12.0)]
    narrow = from_passes(steady, coverage=0.95, span=0.0)
    wide = from_passes(shaken, coverage=0.95, span=0.0)
    variance = sum((float(i % 7) - narrow.mean) ** 2 for i in range(50)) / 49 / 50
    assert narrow.overdispersion == 1.0
    assert narrow.high - narrow.mean == pytest.approx(stats.t.isf(0.0125, 49) * math.sqrt(variance * 1.2))
    assert wide.overdispersion == pytest.approx(22.5 / variance)
    assert wide.high - wide.mean == pytest.approx(stats.t.isf(0.0125, 4) * math.sqrt(22.5 * 1.2))


def test_a_rate_that_never_varied_may_still_be_that_of_a_few_samples():
    found = from_passes([[0.0] * 1_000] * 5, coverage=0.95, span=1.0)
    assert (found.mean, found.high) == (0.0, pytest.approx(math.log(80.0) / 1_000))


def test_a_history_of_too_little_has_no_spread():
    with pytest.raises(ValueError, match=r"^1 passes of 2 samples make no spread; at least 2 of 2 do$"):
        from_passes([[1.0, 2.0]], coverage=0.95, span=1.0)
