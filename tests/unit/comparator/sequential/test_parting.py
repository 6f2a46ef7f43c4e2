"""How soon same-seed answers part, and what that bounds."""

from __future__ import annotations

import math

import pytest

from comparator.sequential import PartingState, PartingTest, SequentialError, run_together
from comparator.sequential.parting import BETS, RATES

TEST = PartingTest(limit=0.05)


def grown(comparisons: int, together: int, parted: bool) -> PartingState:
    state = PartingState()
    for _ in range(comparisons):
        state = TEST.step(state, [together, together], [parted, False])
    return state


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ((1, 2, 3), (1, 2, 3), (3, False)),
        ((1, 2, 3), (1, 9, 3), (2, True)),
        ((1, 2, 3), (1, 2), (3, True)),
        ((), (4,), (1, True)),
        ((), (), (0, False)),
    ],
)
def test_answers_run_together_up_to_the_token_at_which_they_part(first, second, found):
    assert run_together(first, second) == found
    assert run_together(second, first) == found


def test_the_wealth_is_the_product_that_the_docstring_gives():
    state = TEST.step(TEST.step(PartingState(), [10, 4], [False, True]), [3], [True])
    excesses = [(1 - 0.05 * 14) / 2, 1 - 0.05 * 3]
    expected = sum(
        weight * math.prod(1 - bet * excess for excess in excesses)
        for bet, weight in zip(BETS.points, BETS.weights, strict=True)
    )
    assert TEST.log_e(state) == pytest.approx(math.log(expected), abs=1e-12)
    assert (state.partings, state.tokens, state.n) == (2, 17, 2)


def test_answers_that_never_part_bound_the_rate_by_what_was_seen():
    bounds = [TEST.bound(grown(n, 20, False), 0.05) for n in (1, 5, 20, 100, 400)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 0.1
    assert bounds[-1] == RATES[0]


def test_the_bound_lies_above_the_rate_and_comes_down_to_it():
    state = grown(600, 20, True)
    assert state.rate == pytest.approx(1 / 40)
    assert 1 / 40 < TEST.bound(state, 0.05) < 1.5 / 40


def test_the_bound_is_the_limit_just_when_the_limit_is_rejected():
    state = PartingState()
    for _ in range(200):
        state = TEST.step(state, [12], [False])
        rejected = TEST.log_e(state) >= math.log(20)
        assert (TEST.bound(state, 0.05) <= 0.05) == rejected


def test_before_the_first_comparison_nothing_is_bounded():
    assert TEST.bound(PartingState(), 0.05) == 1.0
    assert TEST.log_e(PartingState()) == 0.0
    assert PartingState().rate is None


def test_what_makes_no_sense_is_refused():
    with pytest.raises(SequentialError, match="2 lengths and 1 ends"):
        TEST.step(PartingState(), [3, 3], [True])
    with pytest.raises(SequentialError, match="to part takes a token"):
        TEST.step(PartingState(), [0], [True])
    with pytest.raises(SequentialError, match=r"limit: 1\.0"):
        PartingTest(limit=1.0)
    with pytest.raises(SequentialError, match="wealths are not of a test"):
        TEST.step(PartingState(n=1, log_wealths=(0.0,)), [3], [False])
