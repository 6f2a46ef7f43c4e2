"""Confidence sequences for means, quantiles and mismatches: slow references and exact coverage."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.sequential import (
    Counts,
    Interval,
    Mixture,
    SequentialError,
    Tally,
    exceedance,
    mean_interval,
    mismatch_bound,
    quantile_interval,
    race_bound,
    rejects,
    shortfall,
)
from comparator.sequential import interval as interval_module
from tests.support.exact import chance_of_ever, log_mixture

SHARES = interval_module.SHARES


def exact_wealth(state: Counts, mean: Fraction, *, upwards: bool) -> float:
    """log K⁺ or log K⁻ at a mean in (0, 1), values already in [0, 1]."""
    values = [Fraction(value) for value in state.values]
    gains = [(x - mean) / mean if upwards else (mean - x) / (1 - mean) for x in values]
    factors = [[1 + Fraction(share) * gain for gain in gains] for share in SHARES.points]
    return log_mixture(SHARES.weights, factors, state.counts)


@pytest.mark.parametrize("values", [[0.0] * 5, [0.5] * 3 + [0.25] * 9, [1.0] * 2 + [0.0] * 90, [0.7] * 200])
def test_each_bound_is_where_the_exact_wealth_crosses_the_bar(values: list[float]):
    state, alpha = Counts.of(values), 0.1
    found = mean_interval(state, alpha, lower=0.0, upper=1.0)
    bar, step = math.log(2 / alpha), Fraction(1, 2**23)
    for bound, upwards in ((found.low, True), (found.high, False)):
        assert bound is not None
        inside = Fraction(bound) + (step if upwards else -step)
        if 0.0 < bound < 1.0:
            assert exact_wealth(state, Fraction(bound), upwards=upwards) >= bar - 1e-9
        if 0 < inside < 1:
            assert exact_wealth(state, inside, upwards=upwards) < bar + 1e-9


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0]), max_size=60), st.sampled_from([0.01, 0.2]))
def test_the_interval_holds_the_observed_mean_and_mirrors(values: list[float], alpha: float):
    found = mean_interval(Counts.of(values), alpha)
    mirrored = mean_interval(Counts.of([-value for value in values]), alpha)
    assert (found.low, found.high) == (pytest.approx(-mirrored.high), pytest.approx(-mirrored.low))
    assert -1.0 <= found.low < found.high <= 1.0
    if values:
        assert found.low <= Counts.of(values).mean <= found.high


@pytest.mark.parametrize("mean", [0.05, 0.5, 0.9])
def test_over_every_path_the_mean_is_ever_left_out_with_chance_at_most_alpha(mean: float):
    """Exact: all paths of 120 zeros and ones, α = .1."""

    def misses(state: tuple[int, int]) -> bool:
        kept = [(v, c) for v, c in zip((0.0, 1.0), state, strict=True) if c]
        counts = Counts(values=tuple(v for v, _ in kept), counts=tuple(c for _, c in kept))
        return any(
            interval_module._log_wealth(list(v), list(counts.counts), SHARES, m) >= math.log(20)
            for v, m in ((counts.values, mean), ([1 - x for x in counts.values], 1 - mean))
        )

    chance = chance_of_ever(
        (0, 0),
        [(1 - mean, lambda s: (s[0] + 1, s[1])), (mean, lambda s: (s[0], s[1] + 1))],
        misses,
        120,
    )
    assert 0.0 < chance <= 0.1


def test_it_narrows_about_as_fast_as_a_fixed_n_interval():
    # 5 % discordant pairs: the fixed-n half width is 1.96 sqrt(.05/n)
    for n, most in ((1_000, 2.2), (100_000, 2.2)):
        state = Counts(values=(-1.0, 0.0, 1.0), counts=(n // 40, n - n // 20, n // 40))
        found = mean_interval(state, 0.05)
        assert (found.high - found.low) / 2 <= most * 1.96 * math.sqrt(0.05 / n)


def test_nothing_seen_says_nothing():
    assert mean_interval(Counts(), 0.05) == Interval(low=-1.0, high=1.0, alpha=0.05, n=0)
    assert quantile_interval(Counts(), 0.5, 0.05) == Interval(low=None, high=None, alpha=0.05, n=0)
    assert mismatch_bound(Tally(), 0.05) == 1.0


def test_a_sequence_may_be_intersected_with_itself_only():
    one, two = mean_interval(Counts.of([0.0] * 50), 0.05), mean_interval(Counts.of([0.0] * 49 + [1.0]), 0.05)
    both = one.intersect(two)
    assert (both.low, both.high) == (max(one.low, two.low), min(one.high, two.high))
    open_ended = Interval(low=None, high=None, alpha=0.05, n=3)
    assert open_ended.intersect(one) == one
    with pytest.raises(SequentialError, match=r"alpha: 0.05 and 0.1"):
        one.intersect(Interval(low=None, high=None, alpha=0.1, n=3))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.sampled_from([0.1, 0.5, 0.95]))
def test_quantile_bounds_equal_a_walk_over_every_value(values: list[int], p: float):
    state, alpha = Counts.of(values), 0.2
    found = quantile_interval(state, p, alpha)

    def tally(x: float) -> Tally:
        ones = sum(value <= x for value in values)
        return Tally(ones=ones, zeros=len(values) - ones)

    over = [x for x in state.values if rejects(exceedance(p, SHARES).log_e(tally(x)), alpha / 2)]
    kept = [x for x in state.values if not rejects(shortfall(p, SHARES).log_e(tally(x)), alpha / 2)]
    assert found.high == (over[0] if over else None)
    everywhere = not rejects(shortfall(p, SHARES).log_e(tally(-1.0)), alpha / 2)
    assert found.low == (None if everywhere else kept[0])


def test_the_smallest_observation_bounds_a_quantile_that_all_of_them_lie_above():
    found = quantile_interval(Counts.of([3.0] * 12), 0.5, 0.05)
    assert (found.low, found.high) == (3.0, 3.0)


def test_a_thousand_values_bound_their_median_and_their_p99():
    state = Counts.of(k / 1000 for k in range(1000))
    median = quantile_interval(state, 0.5, 0.05)
    assert 0.43 < median.low < 0.5 < median.high < 0.57
    tail = quantile_interval(state, 0.99, 0.05)
    assert tail.low < 0.99 < tail.high
    assert quantile_interval(Counts.of([0.1, 0.2]), 0.99, 0.05).high is None


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 60), st.integers(0, 2000), st.sampled_from([0.001, 0.05]))
def test_the_mismatch_bound_is_the_edge_of_what_is_rejected(ones: int, zeros: int, alpha: float):
    tally = Tally(ones=ones, zeros=zeros)
    bound = mismatch_bound(tally, alpha)
    assert tally.ones <= bound * max(tally.n, 1)
    if bound < 1.0:
        assert rejects(shortfall(bound * (1 + 1e-9)).log_e(tally), alpha)
        assert not rejects(shortfall(bound * (1 - 1e-6)).log_e(tally), alpha)


def test_no_mismatch_bounds_but_never_proves_zero():
    assert 0.003 < mismatch_bound(Tally(zeros=1000), 0.05) < 0.007
    assert mismatch_bound(Tally(ones=33, zeros=967), 0.05) > 0.033


@pytest.mark.parametrize("p", [0.1, 0.3])
def test_over_every_path_the_mismatch_bound_is_ever_too_low_with_chance_at_most_alpha(p: float):
    """Exact: all paths of 150 draws; the bound is under p just when p itself is rejected."""
    test = shortfall(p)
    chance = chance_of_ever(
        (0, 0),
        [(p, lambda s: (s[0] + 1, s[1])), (1 - p, lambda s: (s[0], s[1] + 1))],
        lambda s: rejects(test.log_e(Tally(ones=s[0], zeros=s[1])), 0.1),
        150,
    )
    assert 0.0 < chance <= 0.1


def test_a_race_mismatches_at_most_twice_the_distance():
    assert [race_bound(0.0), race_bound(1.0)] == [0.0, 1.0]
    assert race_bound(0.025) == pytest.approx(0.05 / 1.025)
    with pytest.raises(SequentialError, match=r"tv: 1\.5"):
        race_bound(1.5)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, math.nan])
def test_alpha_must_be_one(alpha: float):
    for call in (
        lambda: mean_interval(Counts.of([0.5]), alpha),
        lambda: quantile_interval(Counts.of([0.5]), 0.5, alpha),
        lambda: mismatch_bound(Tally(ones=1), alpha),
    ):
        with pytest.raises(SequentialError, match=r"alpha: .* is outside \(0, 1\)"):
            call()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: mean_interval(Counts.of([1.5]), 0.05), r"value 1.5 is outside \[-1.0, 1.0\]"),
        (lambda: mean_interval(Counts.of([-3.0, 0.0]), 0.05), r"value -3.0 is outside"),
        (lambda: mean_interval(Counts(), 0.05, lower=1.0, upper=0.0), r"range: \[1.0, 0.0\]"),
        (lambda: mean_interval(Counts(), 0.05, shares=Mixture.even((1.0,))), r"shares: 1.0 to 1.0 leave"),
        (lambda: quantile_interval(Counts(), 1.0, 0.05), r"p: 1.0 is outside"),
        (lambda: mismatch_bound(Tally(), 0.05, shares=Mixture.even((1.5,))), r"shares: 1.5 to 1.5 leave"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_words(build, words: str):
    with pytest.raises(SequentialError, match=words):
        build()
