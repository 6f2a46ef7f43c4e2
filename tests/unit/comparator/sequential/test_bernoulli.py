"""Exceedances, signs and fork orders: likelihood ratios against exact arithmetic and over every path."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.sequential import (
    BernoulliTest,
    Counts,
    MeanTest,
    Mixture,
    SequentialError,
    Side,
    Tally,
    TwoSidedBernoulliTest,
    candidate_larger,
    either_larger,
    exceedance,
    fork_hazard,
    rejects,
    shortfall,
    sign_of,
    threshold_nats,
)
from comparator.sequential.elementary import exp
from tests.support.exact import chance_of_ever, log_mixture

counts = st.integers(0, 500)
probabilities = st.sampled_from([0.01, 0.25, 0.5, 0.9])


def exact_log_e(test: BernoulliTest, tally: Tally) -> float:
    p0 = Fraction(test.p0)
    ratios = [(Fraction(q) / p0, (1 - Fraction(q)) / (1 - p0)) for q in test.alternatives.points]
    return log_mixture(test.alternatives.weights, ratios, (tally.ones, tally.zeros))


@settings(max_examples=40, deadline=None)
@given(counts, counts, probabilities)
def test_both_sides_equal_the_likelihood_ratio_in_exact_arithmetic(ones: int, zeros: int, p0: float):
    tally = Tally(ones=ones, zeros=zeros, ties=7)
    for test in (exceedance(p0), shortfall(p0)):
        assert test.log_e(tally) == pytest.approx(exact_log_e(test, tally), rel=1e-12, abs=1e-11)


@settings(max_examples=40, deadline=None)
@given(counts, counts)
def test_it_is_the_betting_process_on_zeros_and_ones(ones: int, zeros: int):
    p0, shares = 0.2, (0.1, 0.5)
    test = exceedance(p0, Mixture.even(shares))
    bets = Mixture.even(tuple(share * (1 - p0) / (p0 * (1 - p0)) for share in shares))
    betting = MeanTest(null=p0, side=Side.ABOVE, bets=bets, lower=0.0, upper=1.0)
    state = Counts.of([1.0] * ones + [0.0] * zeros)
    expected = betting.log_e(state)
    assert test.log_e(Tally(ones=ones, zeros=zeros)) == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("share_of_null", [0.6, 1.0])
@pytest.mark.parametrize("test", [exceedance(0.3), shortfall(0.3), candidate_larger(), fork_hazard(1.5)],
                         ids=["exceedance", "shortfall", "sign", "hazard"])  # fmt: skip
def test_over_every_path_the_null_is_rejected_with_chance_at_most_alpha(test, share_of_null: float):
    """Exact: all paths of 150 bets, at p0 and inside the null, α = .05."""
    p = test.p0 * share_of_null if test.side is Side.ABOVE else 1 - (1 - test.p0) * share_of_null
    chance = chance_of_ever(
        (0, 0),
        [(p, lambda s: (s[0] + 1, s[1])), (1 - p, lambda s: (s[0], s[1] + 1))],
        lambda s: rejects(test.log_e(Tally(ones=s[0], zeros=s[1])), 0.05),
        150,
    )
    assert 0.0 < chance <= 0.05


def test_the_two_sided_sign_test_does_not_care_which_arm_is_which():
    test = either_larger()
    assert test.log_e(Tally(ones=40, zeros=9)) == pytest.approx(
        test.log_e(Tally(ones=9, zeros=40)), rel=1e-12
    )
    assert rejects(test.log_e(Tally(ones=40, zeros=9)), 0.01)
    halves = [exp(side.log_e(Tally(ones=40, zeros=9))) / 2 for side in (test.above, test.below)]
    assert exp(test.log_e(Tally(ones=40, zeros=9))) == pytest.approx(sum(halves), rel=1e-12)
    assert test.log_e(Tally(ties=9)) == 0.0
    chance = chance_of_ever(
        (0, 0),
        [(0.5, lambda s: (s[0] + 1, s[1])), (0.5, lambda s: (s[0], s[1] + 1))],
        lambda s: rejects(test.log_e(Tally(ones=s[0], zeros=s[1])), 0.05),
        150,
    )
    assert 0.0 < chance <= 0.05


def test_the_sign_of_a_pair():
    assert [sign_of(2.0, 1.0), sign_of(1.0, 2.0), sign_of(1.0, 1.0)] == [True, False, None]
    assert sign_of(math.inf, 5.0) is True
    with pytest.raises(SequentialError, match="NaN has no order"):
        sign_of(math.nan, 1.0)


def test_the_hazard_test_at_ratio_one_is_the_formula():
    test = fork_hazard()
    assert test.p0 == 0.5
    assert test.alternatives.points == pytest.approx((0.58, 0.634, 0.688, 0.742, 0.796, 0.85))
    by_hand = math.log(sum((2 * q) ** 50 * (2 * (1 - q)) ** 20 for q in test.alternatives.points) / 6)
    assert test.log_e(Tally(ones=50, zeros=20, ties=999)) == pytest.approx(by_hand, rel=1e-12)


def test_a_tolerated_ratio_moves_every_alternative_beyond_it():
    test = fork_hazard(2.0)
    assert test.p0 == pytest.approx(2 / 3)
    odds = [q / (1 - q) for q in test.alternatives.points]
    usual = [q / (1 - q) for q in fork_hazard().alternatives.points]
    assert odds == pytest.approx([2 * o for o in usual])
    assert test.log_e(Tally(ones=200, zeros=100)) < 0  # exactly the ratio that is tolerated


def test_evidence_needs_the_effect():
    assert fork_hazard().log_e(Tally(ones=120, zeros=60)) > threshold_nats(0.01)
    assert exceedance(0.01).log_e(Tally(ones=12, zeros=340)) > threshold_nats(0.05)
    assert exceedance(0.01).log_e(Tally(ones=3, zeros=297)) < threshold_nats(0.05)
    assert exceedance(0.01).log_e(Tally(ties=50)) == 0.0


def test_a_test_and_its_state_survive_their_json():
    for test in (exceedance(0.01), fork_hazard(1.2)):
        assert msgspec.json.decode(msgspec.json.encode(test), type=BernoulliTest) == test
    tally = Tally(ones=3, zeros=4, ties=5)
    assert msgspec.json.decode(msgspec.json.encode(tally), type=Tally) == tally
    with pytest.raises(msgspec.DecodeError, match="ones: -3"):
        msgspec.json.decode(b'{"ones":-3}', type=Tally)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: exceedance(0.0), r"p0: 0.0 is outside \(0, 1\)"),
        (lambda: shortfall(math.nan), r"p0: nan is outside"),
        (lambda: exceedance(0.5, Mixture.even((0.5, 1.0))), r"shares: 0.5 to 1.0 leave \(0, 1\)"),
        (lambda: BernoulliTest(p0=0.5, alternatives=Mixture.even((0.4, 0.6))), r"neither all in \(0.5, 1\)"),
        (lambda: BernoulliTest(p0=0.5, alternatives=Mixture.even((0.5, 0.6))), r"neither all in"),
        (lambda: BernoulliTest(p0=0.5, alternatives=Mixture.even((0.6, 1.0))), r"neither all in"),
        (lambda: fork_hazard(0.9), r"ratio: 0.9; a tolerated hazard ratio is at least 1"),
        (lambda: fork_hazard(math.nan), r"ratio: nan"),
        (lambda: fork_hazard(1.5, Mixture.linear(0.58, 0.85, 6)), r"leave \(0.6, 1\), where ratio 1.5"),
        (lambda: TwoSidedBernoulliTest(above=shortfall(0.5), below=shortfall(0.5)), r"'above' takes"),
        (lambda: TwoSidedBernoulliTest(above=exceedance(0.4), below=shortfall(0.5)), r"no p lies in"),
    ],
)  # fmt: skip
def test_what_would_break_the_bound_is_refused_in_words(build, words: str):
    with pytest.raises(SequentialError, match=words):
        build()
