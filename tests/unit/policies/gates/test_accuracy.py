"""Accuracy and structured output: over a frozen suite once a stage, over live requests at any time."""

from __future__ import annotations

import math

import msgspec
import pytest

from policies.gates import Accuracy, StructuredOutput
from policies.verdict import Answer
from tests.support.exchanges import pair
from tests.support.suite_answers import ALPHA, answer, answers, failing, fold, ref, right, says, scores


def test_equal_arms_pass_once_the_whole_suite_was_seen_and_not_before():
    items = answers("answer", right(300), right(300))
    state = fold(Accuracy(), items[:-1])
    early = Accuracy().verdict(state, ALPHA)
    assert early.answer is Answer.INCONCLUSIVE
    assert early.reason == (
        "suite starter at shadow: 1499 of 1500 answers compared; accuracy is judged once, when all are"
    )
    verdict = Accuracy().verdict(fold(Accuracy(), items[-1:], state), ALPHA)
    assert verdict.answer is Answer.PASS
    assert verdict.reason == (
        "accuracy is 1.0000 on the candidate, 1.0000 on the baseline over 300 samples in 5 passes: "
        "lower by at most 0.0020 (the rollout's alpha 0.05), within 0.005"
    )
    assert (verdict.value, verdict.limit, verdict.n, verdict.estimand) == (0.0, -0.005, 300, "suite")
    assert verdict.alpha == ALPHA.rollback


def test_a_suite_too_small_for_its_margin_stays_inconclusive_and_says_so():
    verdict = says(Accuracy(), answers("answer", right(100), right(100)))
    assert verdict.answer is Answer.INCONCLUSIVE
    assert "neither shows that it is within 0.005 nor that it is beyond 0.005" in verdict.reason
    assert "more samples or passes would tell" in verdict.reason


def test_a_proved_drop_fails_with_its_least_size():
    verdict = says(Accuracy(), answers("answer", right(300, wrong=9), right(300)))
    assert verdict.answer is Answer.FAIL
    assert verdict.value == pytest.approx(-0.03)
    assert verdict.interval is not None
    assert verdict.interval[1] < -0.005
    assert verdict.reason.endswith(
        ": lower by at least 0.0239 (this gate's alpha 0.01), more than the margin of 0.005"
    )


@pytest.mark.parametrize(("wrong", "expected"), [(2, Answer.PASS), (6, Answer.INCONCLUSIVE)])
def test_a_drop_inside_the_margin_passes_and_one_at_its_edge_does_neither(wrong: int, expected: Answer):
    items = answers("answer", right(1_000, wrong=wrong), right(1_000))
    assert says(Accuracy(), items).answer is expected


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_suite_that_the_baseline_gets_wrong_proves_nothing_and_does_not_pass(known: int):
    """Nothing is lower than nothing: every candidate would pass."""
    passed = says(Accuracy(), answers("answer", right(300, wrong=300), right(300, wrong=300 - known)))
    assert passed.answer is (Answer.ERROR if known < 2 else Answer.INCONCLUSIVE)
    if known < 2:
        assert passed.reason.startswith("could not measure: accuracy is 0.0000 on the candidate")
        assert passed.reason.endswith("no candidate could be seen to have less")


def test_structured_output_rolls_back_a_proved_drop_that_accuracy_would_bear():
    dropped = right(1_000, wrong=4)
    verdict = says(StructuredOutput(), answers("structured", dropped, right(1_000)))
    assert verdict.answer is Answer.FAIL
    assert "more than nothing" in verdict.reason
    assert says(Accuracy(), answers("answer", dropped, right(1_000))).answer is not Answer.FAIL


def test_samples_that_do_not_ask_are_seen_and_not_counted():
    verdict = says(Accuracy(), answers("answer", right(300), right(300), samples=500))
    assert (verdict.answer, verdict.n) == (Answer.PASS, 300)


@pytest.mark.parametrize(("holes", "expected"), [(4, Answer.PASS), (24, Answer.INCONCLUSIVE)])
def test_a_few_unmeasured_answers_count_at_their_worst(holes: int, expected: Answer):
    candidate = right(1_000)
    for key in list(candidate)[:holes]:
        candidate[key][0] = "scorer 'tone': no answer within 5 s"
    verdict = says(Accuracy(), answers("answer", candidate, right(1_000)))
    assert verdict.answer is expected
    assert f"({holes / 5_000:.2%} of them unmeasured, counted at their worst)" in verdict.reason


def test_too_many_unmeasured_answers_are_an_error_with_an_example():
    candidate = right(100)
    for key in list(candidate)[:30]:
        candidate[key][1] = "scorer 'tone': it crashed"
    verdict = says(Accuracy(), answers("answer", candidate, right(100)))
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == (
        "could not measure: 30 of 1000 answers of suite starter have no accuracy (1.0% may lack one), "
        "such as sample s0000 in pass 1: candidate: scorer 'tone': it crashed"
    )


def test_arms_that_never_answer_make_an_error_not_a_smaller_suite():
    good = scores("answer", candidate=1.0, baseline=1.0)
    items = []
    for passage in range(5):
        for i in range(20):
            where = ref(f"s{i:02}", passage, samples=20)
            items.append(answer(where, pairs=(failing(),)) if i < 5 else answer(where, *good))
    verdict = says(Accuracy(), items)
    assert verdict.answer is Answer.ERROR
    assert "such as sample s00 in pass 0: candidate timed_out: no answer within 60 s" in verdict.reason


def test_pairs_that_were_set_aside_have_no_score_whatever_was_scored():
    other = pair(right={"prompt": (1, 2)})
    assert not other.valid
    item = answer(ref(), *scores("answer", candidate=1.0, baseline=1.0), pairs=(other,))
    state = fold(Accuracy(), [item])
    assert state.passes.missing == 2
    assert state.passes.trouble.why.startswith("encoding_mismatch: ")


def test_a_suite_in_which_nothing_asks_is_an_error():
    verdict = says(Accuracy(), [answer(ref("a", passage)) for passage in range(5)])
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == "could not measure: no sample of suite starter asks for accuracy"


def test_too_few_passes_are_an_error_from_the_first_answer_on():
    verdict = says(Accuracy(), [answer(ref(passes=4), *scores("answer", candidate=1.0, baseline=1.0))])
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == (
        "could not measure: suite starter is asked 4 times an arm, and run-to-run noise shows from 5 on; "
        "set suites.starter.passes"
    )


GOOD = answer(None, *scores("answer", candidate=1.0, baseline=1.0))
BAD = answer(None, *scores("answer", candidate=0.0, baseline=1.0))


def test_live_scores_bet_once_a_comparison_and_repeats_not_at_all():
    gate = Accuracy(estimand="traffic", margin=0.05, maximum_n=1_000)
    again = msgspec.structs.replace(GOOD, repeat=True)
    lost = answer(None, *scores("answer", candidate="it hung", baseline=1.0))
    both = answer(None, *scores("answer", candidate="it hung", baseline="it hung"))
    state = fold(gate, [GOOD, again, lost, both, answer(None), answer(ref(), *GOOD.scores)])
    assert (state.traffic.n, state.unscored, state.one_armed) == (2, 1, 1)
    reason = gate.verdict(state, ALPHA).reason
    assert reason.endswith("; 1 could not be scored; 1 on one arm alone, the other counted as 0")


def test_a_candidate_that_leaves_hard_questions_unanswered_is_not_judged_by_the_easy_ones():
    gate = Accuracy(estimand="traffic", margin=0.05)
    silent = answer(None, *scores("answer", candidate="no text", baseline=1.0))
    items = [silent if number % 4 == 0 else GOOD for number in range(400)]
    assert says(gate, items).answer is Answer.FAIL


def test_live_scores_pass_and_roll_back_by_e_value():
    gate = Accuracy(estimand="traffic", margin=0.05)
    passed = gate.verdict(fold(gate, [GOOD] * 200), ALPHA)
    assert (passed.answer, passed.estimand) == (Answer.PASS, "traffic")
    assert passed.promotion_nats is not None
    assert passed.promotion_nats >= math.log(20.0)
    assert passed.interval is not None
    failed = gate.verdict(fold(gate, [BAD] * 30), ALPHA)
    assert failed.answer is Answer.FAIL
    assert failed.rollback_nats is not None
    assert failed.rollback_nats >= math.log(100.0)


def test_the_suites_samples_are_no_live_evidence_nor_the_other_way_round():
    live = Accuracy(estimand="traffic")
    item = answer(ref(), *GOOD.scores)
    assert live.fold(live.initial(), item) == live.initial()
    assert Accuracy().fold(Accuracy().initial(), GOOD) == Accuracy().initial()


def test_an_undecided_gate_stays_so_at_its_maximum():
    gate = Accuracy(estimand="traffic", margin=0.005, maximum_n=50)
    state = fold(gate, [GOOD] * 60)
    verdict = gate.verdict(state, ALPHA)
    assert (verdict.n, verdict.answer) == (50, Answer.INCONCLUSIVE)
    assert "undecided at maximum_n, for good" in verdict.reason
    assert gate.fold(state, GOOD) is state


def test_the_tests_of_the_traffic_estimand_are_there_to_be_asked():
    assert [test.null for test in StructuredOutput(estimand="traffic").tests] == [-0.002, 0.0]
    assert StructuredOutput().tests == ()
