"""The sequential two-sample test on answers: what it counts, what it bets on, what it refuses."""

from __future__ import annotations

import math
import random

import pytest

from comparator.sequential import END, MmdState, MmdTest, SequentialError, threshold_nats
from comparator.sequential.answers import bucket, difference, likeness
from comparator.sequential.mmd import FIRST, log_factor, weight_of

TEST = MmdTest(buckets=64)


def answers(
    rng: random.Random, *, warm: float = 1.0, replicates: int = 3, tokens: int = 8
) -> list[list[int]]:
    """Of a distribution that a higher ``warm`` flattens."""
    weights = [math.exp(-token / (4 * warm)) for token in range(20)]
    return [rng.choices(range(20), weights, k=tokens) for _ in range(replicates)]


def test_the_hash_is_the_same_on_every_machine():
    found = [
        bucket(kind, first, second, 1 << 16)
        for kind, first, second in ((1, END, 0), (2, 49_151, 0), (3, 7, 9))
    ]
    assert found == [28_429, 59_792, 22_591]


def test_features_spread_over_the_buckets():
    counts = [0] * 64
    for token in range(6_400):
        counts[bucket(1, token, 3, 64)] += 1
    assert max(counts) < 150
    assert min(counts) > 50


def test_a_token_more_at_the_front_moves_every_position_and_few_words():
    first, shifted = [5, 6, 7, 8, 9], [4, 5, 6, 7, 8, 9]
    places = difference([first], [shifted], 1 << 16, words=False)
    words = difference([first], [shifted], 1 << 16, words=True)
    assert all(a != b for a, b in places.values())
    assert sum(a == b for a, b in words.values()) == 5 + 4  # each token, and each pair but the first


def test_likeness_counts_agreement_in_places_and_in_words():
    said = [[1, 2, 3, 3], [1, 3, 3, 2], [9]]
    assert likeness(said, words=False) == 2
    assert likeness(said, words=True) == 4
    assert likeness([[1, 2]], words=True) == 0


@pytest.mark.parametrize("u", [-30.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 30.0])
def test_a_factor_is_one_plus_a_tanh(u: float):
    assert log_factor(u) == pytest.approx(math.log(2.0) - math.log1p(math.exp(-2.0 * u)), abs=1e-14)


def test_the_two_outcomes_of_a_fair_coin_cancel():
    for u in (0.01, 0.4, 3.0):
        assert math.exp(log_factor(u)) + math.exp(log_factor(-u)) == pytest.approx(2.0, abs=1e-13)


def test_a_weight_is_odd_in_the_arms_and_shrinks_what_was_hardly_seen():
    assert weight_of(7, 3) == -weight_of(3, 7)
    assert weight_of(1, 0) < 0.2 < weight_of(100, 20)


def test_equal_answers_neither_bet_nor_cost():
    state = TEST.initial()
    for number in range(20):
        said = answers(random.Random(number))
        state = TEST.step(state, said, said)
    assert state.n == 20
    assert state.bets == 0
    assert TEST.log_e(state) == pytest.approx(0.0, abs=1e-12)


def test_the_first_values_of_a_payoff_only_set_its_scale():
    rng = random.Random(3)
    state = TEST.initial()
    for _ in range(FIRST):
        state = TEST.step(state, answers(rng), answers(rng, warm=3.0))
        assert state.highest_nats == 0.0
    assert state.squares[3] > 0


def test_another_temperature_is_found_and_the_highest_wealth_is_kept():
    rng = random.Random(7)
    state = TEST.initial()
    bar = threshold_nats(0.01)
    while state.highest_nats < bar:
        state = TEST.step(state, answers(rng), answers(rng, warm=1.5))
        assert state.n < 300
    kept = state.highest_nats
    for _ in range(50):  # from here on the arms are equal, and the wealth falls
        state = TEST.step(state, answers(rng), answers(rng))
    assert TEST.log_e(state) < kept
    assert state.highest_nats >= kept


def test_another_ending_is_found_by_length_alone():
    rng = random.Random(11)
    state = TEST.initial()
    for _ in range(200):
        left = [[*said[: rng.randint(3, 6)], END] for said in answers(rng)]
        right = [[*said[: rng.randint(4, 8)], END] for said in answers(rng)]
        state = TEST.step(state, left, right)
    assert state.highest_nats > threshold_nats(0.001)


def test_a_state_has_one_size_whatever_it_has_seen():
    rng = random.Random(1)
    state = TEST.step(TEST.initial(), answers(rng), answers(rng))
    for _ in range(50):
        state = TEST.step(state, answers(rng, tokens=40), answers(rng, tokens=40))
    assert len(state.counts) == 16 * 64
    assert len(state.log_wealths) == 8 * len(TEST.bets)


def test_what_cannot_bet_is_refused_in_words():
    with pytest.raises(SequentialError, match="2 of the baseline and 1 of the candidate"):
        TEST.step(TEST.initial(), [[1], [2]], [[1]])
    with pytest.raises(SequentialError, match="0 of the baseline"):
        TEST.step(TEST.initial(), [], [])
    with pytest.raises(SequentialError, match="start anew"):
        MmdTest(buckets=32).step(TEST.step(TEST.initial(), [[1]], [[2]]), [[1]], [[2]])
    with pytest.raises(SequentialError, match="power of two"):
        MmdTest(buckets=100)
    with pytest.raises(SequentialError, match="positive and finite"):
        MmdTest(bets=(0.1, -0.2))


def test_before_the_first_comparison_there_is_no_evidence():
    assert TEST.log_e(MmdState()) == 0.0
