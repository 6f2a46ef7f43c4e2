"""The sample-ratio check against the product of its own predictions, in exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import msgspec
import pytest

from comparator.sequential import RatioState, SampleRatioTest, SequentialError, rejects
from tests.support.exact import chance_of_ever, log_of


@pytest.mark.parametrize("sequence", [[0] * 40, [0, 1, 2] * 30, [2] * 5 + [0] * 60 + [1]])
def test_it_is_the_product_of_one_step_predictions(sequence: list[int]):
    """Dirichlet-multinomial: the next sample is i with probability (α_i + n_i)/(A + n)."""
    shares, concentration = (0.5, 0.25, 0.25), 40.0
    test = SampleRatioTest(shares=shares, concentration=concentration)
    seen, exact = [0, 0, 0], Fraction(1)
    state = test.initial()
    for n, category in enumerate(sequence):
        prediction = (Fraction(concentration * shares[category]) + seen[category]) / (
            Fraction(concentration) + n
        )
        exact *= prediction / Fraction(shares[category])
        seen[category] += 1
        state = state.add(category)
    assert test.log_e(state) == pytest.approx(log_of(exact), abs=1e-10)


def test_over_every_path_true_shares_are_rejected_with_chance_at_most_alpha():
    """Exact: all paths of 200 samples, α = .05."""
    test = SampleRatioTest(shares=(0.9, 0.1), concentration=20.0)
    chance = chance_of_ever(
        (0, 0),
        [(0.9, lambda s: (s[0] + 1, s[1])), (0.1, lambda s: (s[0], s[1] + 1))],
        lambda s: rejects(test.log_e(RatioState(counts=s)), 0.05),
        200,
    )
    assert 0.0 < chance <= 0.05


def test_a_few_per_cent_too_many_are_found_and_true_shares_are_not():
    test = SampleRatioTest(shares=(0.5, 0.5))
    assert rejects(test.log_e(RatioState(counts=(10_600, 9_400))), 0.001)
    assert test.log_e(RatioState(counts=(10_010, 9_990))) < 0
    assert test.log_e(test.initial()) == 0.0


def test_shards_give_the_bits_of_the_whole():
    test = SampleRatioTest(shares=(0.7, 0.2, 0.1))
    one, two = RatioState(counts=(701, 180, 90)), RatioState(counts=(3, 0, 9))
    stored = msgspec.json.decode(msgspec.json.encode(two), type=RatioState)
    assert test.log_e(one.merge(stored)).hex() == test.log_e(two.merge(one)).hex()


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SampleRatioTest(shares=(1.0,)), "at least two categories"),
        (lambda: SampleRatioTest(shares=(0.5, 0.6)), "they sum to 1.1"),
        (lambda: SampleRatioTest(shares=(1.0, 0.0)), r"shares\[0\]: 1.0 is outside"),
        (lambda: SampleRatioTest(shares=(0.5, math.nan)), r"shares\[1\]: nan is outside"),
        (lambda: SampleRatioTest(shares=(0.5, 0.5), concentration=0.0), "concentration: 0.0"),
        (lambda: RatioState(counts=(1, -1)), "a count is not negative"),
        (lambda: SampleRatioTest(shares=(0.5, 0.5)).log_e(RatioState(counts=(1,))), "1 categories for 2"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_words(build, words: str):
    with pytest.raises(SequentialError, match=words):
        build()
