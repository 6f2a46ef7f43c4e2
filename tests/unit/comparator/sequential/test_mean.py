"""The paired betting process against exact rational arithmetic and over every path."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.sequential import (
    Counts,
    MeanTest,
    Mixture,
    SequentialError,
    Side,
    promotion,
    rejects,
    rollback,
    threshold_nats,
    two_sided,
)
from comparator.sequential.elementary import exp
from tests.support.exact import chance_of_ever, log_mixture

VALUES = (-1.0, -1 / 3, 0.0, 0.5, 1.0)
some_counts = st.tuples(*[st.integers(0, 400)] * len(VALUES))
margins = st.sampled_from([0.0, 0.002, 0.005, 0.1, 0.9])


def state_of(counts) -> Counts:
    kept = [(value, count) for value, count in zip(VALUES, counts, strict=True) if count]
    return Counts(values=tuple(v for v, _ in kept), counts=tuple(c for _, c in kept))


@settings(max_examples=50, deadline=None)
@given(some_counts, margins)
def test_both_directions_equal_the_formula_in_exact_arithmetic(counts, margin: float):
    delta, state = Fraction(margin), state_of(counts)
    gains = [Fraction(value) + delta for value in VALUES]
    for test, signed in ((promotion(margin), gains), (rollback(margin), [-gain for gain in gains])):
        factors = [[1 + Fraction(bet) * gain for gain in signed] for bet in test.bets.points]
        exact = log_mixture(test.bets.weights, factors, counts)
        assert test.log_e(state) == pytest.approx(exact, rel=1e-12, abs=1e-11)


def test_one_bet_on_one_value_is_a_power():
    test = promotion(0.25, Mixture.even((0.5,)))
    assert test.log_e(Counts(values=(0.75,), counts=(30,))) == pytest.approx(30 * math.log(1.5), rel=1e-15)


def test_nothing_seen_is_no_evidence():
    assert (
        promotion(0.005).log_e(Counts())
        == rollback(0.0).log_e(Counts())
        == two_sided(0.1).log_e(Counts())
        == 0.0
    )


@settings(max_examples=50, deadline=None)
@given(margins, st.sampled_from(VALUES), st.sampled_from(VALUES))
def test_no_bet_gains_on_average_at_the_margin(margin: float, low: float, high: float):
    null = -Fraction(margin)
    low_x, high_x = Fraction(low), Fraction(high)
    if not low_x < null < high_x:
        return
    chance = (null - low_x) / (high_x - low_x)  # of the higher of two values, so that the mean is the null
    for test, sign in ((promotion(margin), 1), (rollback(margin), -1)):
        for bet in test.bets.points:
            lose, win = (1 + Fraction(bet) * sign * (x - null) for x in (low_x, high_x))
            assert chance * win + (1 - chance) * lose == 1
            assert min(lose, win) > 0


@pytest.mark.parametrize("discordance", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("direction", [promotion, rollback, two_sided])
def test_over_every_path_the_null_is_rejected_with_chance_at_most_alpha(direction, discordance: float):
    """Exact: all paths of 40 pairs whose mean is on the margin (0 for the two-sided test), α = .1."""
    margin, alpha = (0.0, 0.1) if direction is two_sided else (0.05, 0.1)
    test = direction(margin, Mixture.geometric(0.2, 0.9, 4))
    up, down = (discordance - margin) / 2, (discordance + margin) / 2

    def rejected(state: tuple[int, int, int]) -> bool:
        kept = [(v, c) for v, c in zip((-1.0, 0.0, 1.0), state, strict=True) if c]
        counts = Counts(values=tuple(v for v, _ in kept), counts=tuple(c for _, c in kept))
        return rejects(test.log_e(counts), alpha)

    chance = chance_of_ever(
        (0, 0, 0),
        [
            (down, lambda s: (s[0] + 1, s[1], s[2])),
            (1 - up - down, lambda s: (s[0], s[1] + 1, s[2])),
            (up, lambda s: (s[0], s[1], s[2] + 1)),
        ],
        rejected,
        40,
    )
    assert 0.0 < chance <= alpha if discordance == 1.0 else chance <= alpha


def test_evidence_grows_towards_its_own_side_only():
    worse, equal = Counts.of([-1.0] * 60 + [0.0] * 400), Counts.of([0.0] * 4000)
    assert rollback(0.005).log_e(worse) > threshold_nats(1e-4)
    assert promotion(0.005).log_e(worse) < 0
    assert promotion(0.005).log_e(equal) > threshold_nats(0.05)
    assert rollback(0.005).log_e(equal) < 0
    assert promotion(0.0).log_e(equal) == pytest.approx(0.0, abs=1e-15)  # equality cannot be proved


def test_two_sides_share_the_stake():
    state = Counts.of([1.0] * 9 + [0.0] * 30 + [-0.5] * 2)
    test = two_sided(0.01)
    half = 0.5 * exp(test.above.log_e(state)) + 0.5 * exp(test.below.log_e(state))
    assert exp(test.log_e(state)) == pytest.approx(half, rel=1e-13)
    mirrored = Counts.of([-1.0] * 9 + [0.0] * 30 + [0.5] * 2)
    assert test.log_e(mirrored) == test.log_e(state)


@settings(max_examples=50, deadline=None)
@given(some_counts, some_counts, margins)
def test_merged_shards_give_the_bits_of_the_whole(one, two, margin: float):
    first, second = state_of(one), state_of(two)
    test = promotion(margin)
    stored = msgspec.json.decode(msgspec.json.encode(second), type=Counts)
    assert test.log_e(first.merge(stored)).hex() == test.log_e(second.merge(first)).hex()


def test_a_test_survives_its_own_json():
    test = rollback(0.005)
    assert msgspec.json.decode(msgspec.json.encode(test), type=MeanTest) == test


def test_the_bits_are_those_written_down():
    state = Counts(values=(-1.0, 0.0, 1.0), counts=(25, 950, 25))
    assert promotion(0.005).log_e(state).hex() == "-0x1.fbe8a18328330p-4"
    assert rollback(0.005).log_e(state).hex() == "-0x1.e5d07696079d6p-1"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: promotion(-0.1), r"margin: -0.1 is outside \[0, 1\)"),
        (lambda: rollback(1.0), r"margin: 1.0 is outside"),
        (lambda: promotion(math.nan), r"margin: nan is outside"),
        (lambda: rollback(0.5, Mixture.even((0.7,))), r"bets: 0.7 is outside \(0, 0.666667\)"),
        (lambda: promotion(0.5, Mixture.even((2.0,))), r"bets: 2.0 is outside \(0, 2\)"),
        (lambda: promotion(0.0, Mixture.even((-0.1, 0.1))), r"bets: -0.1 is outside"),
        (lambda: MeanTest(null=1.0, side=Side.ABOVE), r"null: 1.0 is not inside \(-1.0, 1.0\)"),
        (lambda: MeanTest(null=math.nan, side=Side.ABOVE), r"null: nan is not inside"),
        (lambda: promotion(0.0).log_e(Counts.of([1.5])), r"value 1.5 is outside \[-1.0, 1.0\]"),
        (lambda: promotion(0.0).log_factors(math.nan), r"value nan is outside"),
        (lambda: Mixture(points=(0.1,), weights=(0.5,)), r"weights: they sum to 0.5"),
        (lambda: Mixture(points=(0.2, 0.1), weights=(0.5, 0.5)), r"points: 0.1 after 0.2"),
        (lambda: Mixture(points=(0.1, 0.2), weights=(1.0,)), r"2 points with 1 weights"),
        (lambda: Mixture(points=(0.1, 0.2), weights=(1.5, -0.5)), r"weights: 1.5 is outside"),
        (lambda: Mixture.even(()), r"points: empty"),
        (lambda: Mixture.geometric(0.5, 0.1, 6), r"needs 0 < low < high"),
        (lambda: Mixture.linear(0.5, 0.6, 1), r"at least two points"),
    ],
)  # fmt: skip
def test_what_would_break_the_bound_is_refused_in_words(build, words: str):
    with pytest.raises(SequentialError, match=words):
        build()


def test_a_grid_has_its_ends_and_equal_ratios():
    points = Mixture.geometric(0.03, 0.5, 6).points
    assert (points[0], points[-1]) == (0.03, 0.5)
    ratios = [b / a for a, b in itertools.pairwise(points)]
    assert ratios == pytest.approx([ratios[0]] * 5, rel=1e-12)
    assert Mixture.linear(0.58, 0.85, 6).points == pytest.approx((0.58, 0.634, 0.688, 0.742, 0.796, 0.85))
