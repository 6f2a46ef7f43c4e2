"""What gates that test share: margins, rounding, looks."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from comparator.sequential import Counts, Side, mean_interval, on_grid
from policies.gates import ErrorRate, Ttft
from policies.gates.base import Alpha
from policies.gates.betting import (
    FEWEST_SHOWN,
    Differences,
    Look,
    Margins,
    answer_of,
    check_margins,
    together,
    undecided,
)
from policies.verdict import Answer

MARGINS = Margins(margin=0.02, promotion_margin=0.05, steps=64)
NO_MARGIN = {"margin": 0.0, "promotion_margin": 0.05}


def of(values: list[float], margins: Margins = MARGINS) -> Differences:
    so_far = Differences()
    for value in values:
        so_far = margins.add(so_far, value)
    return so_far


def test_rounding_is_allowed_for_on_both_sides_of_a_margin():
    rollback, promotion = MARGINS.tests
    assert (rollback.side, rollback.null) == (Side.BELOW, -(0.02 + 1 / 128))
    assert (promotion.side, promotion.null) == (Side.ABOVE, -(0.05 - 1 / 128))


def test_at_margin_zero_the_null_is_exchangeability_and_rounding_is_symmetric():
    rollback, _ = Margins(margin=0.0, promotion_margin=0.1, steps=32).tests
    assert rollback.null == 0.0
    rng = random.Random(1)
    values = [rng.uniform(-1, 1) for _ in range(300)]
    there, back = of(values), of([-value for value in values])
    assert there.mean == -(back.mean or 0.0)


@pytest.mark.parametrize("gate", [ErrorRate(source="live", **NO_MARGIN), Ttft(**NO_MARGIN)])
def test_no_bet_expects_to_win_from_arms_that_fail_alike_however_unequal_their_numbers(gate):
    """All but the baseline's 10,000 requests in a block round to a share of nothing at the grid's step."""
    baseline, candidate, share = 10_000, 10, 0.0003
    rollback, _ = gate.margins.tests
    expected = [0.0] * len(rollback.bets.points)
    for bad in range(40):
        for candidate_bad in range(candidate + 1):
            chance = stats.binom.pmf(bad, baseline, share) * stats.binom.pmf(candidate_bad, candidate, share)
            d = on_grid(bad / baseline - candidate_bad / candidate, gate.margins.steps)
            for k, factor in enumerate(rollback.log_factors(d)):
                expected[k] += chance * math.exp(factor)
    assert max(expected) <= 1.0


def test_what_it_has_won_is_a_function_of_the_counts_alone():
    rng = random.Random(2)
    values = [rng.choice([-1.0, -0.25, 0.0, 0.0, 0.0, 0.5]) for _ in range(60)]
    whole = of(values)
    shuffled = values[:]
    rng.shuffle(shuffled)
    again = of(shuffled)
    assert (again.counts, again.rollback_nats, again.promotion_nats) == (
        whole.counts,
        whole.rollback_nats,
        whole.promotion_nats,
    )
    rollback, promotion = MARGINS.tests
    assert whole.rollback_nats == rollback.log_e(whole.counts)
    assert whole.promotion_nats == promotion.log_e(whole.counts)


def test_an_interval_is_taken_anew_when_there_are_half_as_many_again():
    looked, look = [], Look()
    for n in range(1, 200):
        if look.due(n):
            look = Look(n=n)
            looked.append(n)
    assert looked == [16, 24, 36, 54, 81, 122, 183]


def test_the_interval_holds_the_mean_that_it_stands_beside():
    rng = random.Random(3)
    values = [rng.choice([-1.0, 0.0, 0.0, 1.0]) for _ in range(FEWEST_SHOWN)]
    so_far = of(values)
    assert so_far.look.span is not None
    low, high = so_far.look.span
    assert low < (so_far.mean or 0.0) < high
    finer = mean_interval(Counts.of(values), 0.05)
    assert finer.low is not None
    assert abs(low - finer.low) < 0.2  # seven bets for a look, fourteen there


@pytest.mark.parametrize(
    ("margin", "promotion_margin", "message"),
    [
        (-0.1, None, "margin: -0.1 is outside 0-0.9 (a share)"),
        (1.0, None, "margin: 1.0 is outside 0-0.9 (a share)"),
        (float("nan"), None, "margin: nan is outside 0-0.9 (a share)"),
        (
            0.0,
            None,
            (
                "promotion_margin: missing, and margin 0.0 lets nothing pass, for no evidence shows "
                "'not worse at all'; give one from 0.001 on"
            ),
        ),
        (0.1, 0.05, "promotion_margin: 0.05 is outside 0.1-0.9 (a share, at least the margin)"),
        (0.0, 0.0, "promotion_margin: 0.0 is outside 0.001-0.9 (a share, at least the margin)"),
    ],
)
def test_margins_that_mean_nothing_are_refused(margin, promotion_margin, message):
    with pytest.raises(ValueError) as caught:
        check_margins(margin, promotion_margin, 1024, "a share")
    assert str(caught.value) == message


def test_every_margin_that_is_allowed_makes_two_tests():
    for margin, promotion_margin in ((0.0, 0.001), (0.001, None), (0.9, None), (0.0, 0.9), (0.3, 0.4)):
        check_margins(margin, promotion_margin, 1024, "a share")
        _, promotion = Margins(margin=margin, promotion_margin=promotion_margin, steps=1024).tests
        assert promotion.null < 0.0


def test_a_margin_that_the_grid_swallows_is_refused():
    with pytest.raises(ValueError, match=r"give one from 0\.03125 on"):
        check_margins(0.01, None, 32, "a share")


@pytest.mark.parametrize(
    ("rollback_nats", "promotion_nats", "answer"),
    [
        (4.7, 0.0, Answer.FAIL),
        (4.5, 0.0, Answer.INCONCLUSIVE),
        (0.0, 3.0, Answer.PASS),
        (0.0, 2.9, Answer.INCONCLUSIVE),
        (9.0, 9.0, Answer.FAIL),
    ],
)
def test_rollback_has_its_share_and_promotion_the_whole(rollback_nats, promotion_nats, answer):
    assert answer_of(rollback_nats, promotion_nats, Alpha(rollback=0.01, promotion=0.05)) is answer


def test_of_several_questions_any_fails_and_all_must_pass():
    every = [Answer.PASS, Answer.INCONCLUSIVE, Answer.ERROR, Answer.FAIL]
    assert [together(every[: n + 1]) for n in range(4)] == every


def test_an_undecided_test_says_how_far_it_is():
    assert undecided(3, 10, "blocks") == "undecided after 3 of at most 10 blocks"
    assert undecided(10, 10, "blocks") == "undecided at its maximum of 10 blocks, for good"
