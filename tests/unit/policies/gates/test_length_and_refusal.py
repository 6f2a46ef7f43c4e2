"""Length and refusal: inside passes, outside holds, and only proof rolls back."""

from __future__ import annotations

import math

import pytest

from comparator.comparison import Comparison
from policies.gates import Length, Refusal
from policies.gates.predicted import History
from policies.verdict import Answer
from tests.support.suite_answers import answer, answers, failing, of_length, ref, says


def sized(change: float = 1.0, n: int = 100, passes: int = 5) -> list[Comparison]:
    """Answers of 10 to 30 tokens on the baseline, ``change`` times that on the candidate."""
    return [
        of_length(ref(f"s{i:03}", passage, samples=n), max(1, round(change * (10 + i % 21))), 10 + i % 21)
        for passage in range(passes)
        for i in range(n)
    ]


def test_equal_lengths_pass_with_the_interval_beside_them():
    verdict = says(Length(), sized())
    assert (verdict.answer, verdict.hold, verdict.estimand) == (Answer.PASS, False, "suite")
    assert verdict.value == pytest.approx(19.6)
    assert verdict.interval is not None
    low, high = verdict.interval
    assert low < 19.6 < high
    assert verdict.reason == (
        "mean length over 100 samples in 5 passes is 19.6 tokens on the candidate; "
        f"95% of the baseline's runs lie between {low:.4g} and {high:.4g}"
    )


def test_empty_answers_have_no_length_to_compare():
    silent = [of_length(ref(f"s{i}", passage, samples=20), 0, 0) for passage in range(5) for i in range(20)]
    verdict = says(Length(), silent)
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == "could not measure: every answer of the baseline to suite starter is empty"


def test_lengths_outside_the_interval_hold_and_do_not_roll_back():
    gate = Length(history=History(mean=19.6, sd=0.1, runs=20))
    verdict = says(gate, sized(1.04))
    assert (verdict.answer, verdict.hold) == (Answer.INCONCLUSIVE, True)
    assert verdict.value is not None
    assert verdict.limit is not None
    assert verdict.value > verdict.limit > 19.6
    assert verdict.reason.endswith(
        ": outside, so the step is held for a person to look; no proof of a difference to roll back"
    )


def test_lengths_that_are_proved_to_differ_roll_back():
    verdict = says(Length(), sized(0.5))
    assert (verdict.answer, verdict.hold) == (Answer.FAIL, False)
    assert verdict.rollback_nats is not None
    assert verdict.rollback_nats >= math.log(100.0)
    assert "sample by sample it differs by more than 0.05" in verdict.reason


def test_a_difference_sample_by_sample_inside_the_interval_holds():
    """Short answers doubled, the few long ones that make the mean and its spread left alone."""
    items = [
        of_length(ref(f"s{i:03}", passage, samples=100), *((400, 400) if i < 10 else (8, 4)))
        for passage in range(5)
        for i in range(100)
    ]
    verdict = says(Length(), items)
    assert (verdict.answer, verdict.hold) == (Answer.INCONCLUSIVE, True)
    assert ": inside, yet sample by sample it differs by more than 0.05 (log E " in verdict.reason


def test_a_baseline_whose_whole_passes_shift_lets_nothing_roll_back():
    items = [
        of_length(ref(f"s{i:03}", passage, samples=100), 200, 20 + 5 * passage)
        for passage in range(5)
        for i in range(100)
    ]
    verdict = says(Length(), items)
    assert (verdict.answer, verdict.hold) == (Answer.INCONCLUSIVE, True)
    assert "the baseline's own passes differ more than its samples explain" in verdict.reason
    assert verdict.rollback_nats is not None
    assert verdict.rollback_nats >= math.log(100.0)


def test_a_sample_bets_once_however_many_passes_it_had():
    five, ten = says(Length(), sized(0.5)), says(Length(), sized_in_ten(0.5))
    assert five.rollback_nats == ten.rollback_nats


def sized_in_ten(change: float) -> list[Comparison]:
    return [
        of_length(
            ref(f"s{i:03}", passage, samples=100, passes=10),
            max(1, round(change * (10 + i % 21))),
            10 + i % 21,
        )
        for passage in range(10)
        for i in range(100)
    ]


def test_an_arm_without_an_answer_has_no_length():
    lost = [answer(ref(f"s{95 + i:03}", 4, samples=100), pairs=(failing(),)) for i in range(5)]
    items = [*sized()[:-5], *lost]
    verdict = says(Length(), items)
    assert verdict.answer is Answer.PASS
    assert "(5 answers unmeasured, counted at their worst)" in verdict.reason
    assert says(Length(maximum_missing=0.0), items).answer is Answer.ERROR


def refused(candidate: int, baseline: int, n: int = 200) -> list[Comparison]:
    """The first samples are refused, on each arm and in every pass."""
    return answers(
        "refusal",
        {f"s{i:03}": [float(i < candidate)] * 5 for i in range(n)},
        {f"s{i:03}": [float(i < baseline)] * 5 for i in range(n)},
    )


@pytest.mark.parametrize(
    ("candidate", "baseline", "expected", "hold"),
    [
        (10, 10, Answer.PASS, False),
        (0, 0, Answer.PASS, False),
        (3, 0, Answer.PASS, False),
        (6, 0, Answer.INCONCLUSIVE, True),
        (100, 0, Answer.FAIL, False),
        (0, 100, Answer.FAIL, False),
    ],
)
def test_refusals_pass_inside_hold_outside_and_roll_back_on_proof(
    candidate: int, baseline: int, expected: Answer, hold: bool
):
    verdict = says(Refusal(), refused(candidate, baseline))
    assert (verdict.answer, verdict.hold) == (expected, hold)


def test_a_suite_of_one_sample_has_no_spread_to_judge_by():
    verdict = says(Refusal(), refused(0, 0, n=1))
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == "could not measure: suite starter has too few samples for a refusal rate"


def test_the_rollbacks_test_is_there_to_be_asked():
    (test,) = Length().tests
    assert (test.above.null, test.below.null) == (0.05, -0.05)
    (widest,) = Refusal(margin=0.5).tests
    assert widest.above.null == 0.5
