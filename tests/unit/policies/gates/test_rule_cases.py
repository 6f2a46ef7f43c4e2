"""Rule cases: a breach at once, flaky rules set aside, and no answer where none was measured."""

from __future__ import annotations

import pytest

from comparator.comparison import Comparison
from policies.gates import RuleCases
from policies.verdict import Answer
from tests.support.suite_answers import Said, answer, failing, fold, ref, says, scores


def ruled(passage: int = 0, key: str = "a", *, samples: int = 1, passes: int = 2, **arms: Said) -> Comparison:
    said: dict[str, Said] = {"candidate": 1.0, "baseline": 1.0, "control": 1.0} | arms
    return answer(ref(key, passage, samples=samples, passes=passes), *scores("rules", **said))


def test_one_failing_case_is_a_breach_at_once_and_names_its_capture():
    verdict = says(RuleCases(), [ruled(candidate=0.0, samples=300)])
    assert (verdict.answer, verdict.deciding_id) == (Answer.FAIL, "a/0")
    assert verdict.reason == (
        "rule case a failed on the candidate in pass 0 while baseline and control held (capture a/0); "
        "1 of 1 cases failed so far"
    )
    assert (verdict.estimand, verdict.alpha) == ("suite", None)


def test_the_earliest_pass_is_the_one_that_is_named():
    items = [ruled(1, "a", candidate=0.0, samples=2), ruled(0, "b", candidate=0.0, samples=2)]
    for order in (items, items[::-1]):
        assert says(RuleCases(), order).deciding_id == "b/0"


def test_a_rule_that_holds_in_part_has_failed():
    assert says(RuleCases(), [ruled(candidate=0.9)]).answer is Answer.FAIL


def test_cases_that_all_hold_pass_when_the_suite_is_complete():
    early = says(RuleCases(), [ruled(0)])
    assert early.answer is Answer.INCONCLUSIVE
    assert early.reason == "suite starter at shadow: 1 of 2 answers compared; no rule case has failed"
    verdict = says(RuleCases(), [ruled(0), ruled(1, control=None)])
    assert (verdict.answer, verdict.reason) == (Answer.PASS, "all 1 rule cases held in 2 passes")


@pytest.mark.parametrize("arm", ["baseline", "control"])
@pytest.mark.parametrize("candidate", [0.0, 1.0])
def test_a_rule_that_the_baseline_breaks_too_is_set_aside_and_named(arm: str, candidate: float):
    items = [
        ruled(0, candidate=candidate, samples=2, **{arm: 0.0}),
        ruled(1, candidate=0.0, samples=2),
        ruled(0, "b", samples=2),
        ruled(1, "b", samples=2),
    ]
    aside = "flaky on the baseline itself and set aside: a"
    verdict = says(RuleCases(maximum_flaky=0.5), items)
    assert verdict.answer is Answer.PASS
    assert verdict.reason == f"all 1 rule cases held in 2 passes; {aside}"
    verdict = says(RuleCases(), items)
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == (
        f"could not measure: 1 of 2 rule cases fail on the baseline itself (10.0% may); {aside}"
    )


def test_many_flaky_cases_are_counted_after_the_first_few():
    items = [ruled(0, f"s{i}", samples=8, passes=1, baseline=0.0) for i in range(8)]
    assert says(RuleCases(), items).reason.endswith("set aside: s0, s1, s2, s3, s4 and 3 more")


def test_a_failure_without_a_control_proves_nothing_and_is_counted():
    verdict = says(RuleCases(), [ruled(0, candidate=0.0, control=None), ruled(1)])
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == (
        "could not measure: 1 of 2 answers to rule cases have no score (1.0% may lack one), such as a in "
        "pass 0: it failed on the candidate, and no control ran to rule out a flaky rule"
    )


def test_a_scorer_that_breaks_is_an_error_and_no_breach():
    items = [ruled(0, candidate="rules[0]: it hung"), ruled(1)]
    verdict = says(RuleCases(), items)
    assert verdict.answer is Answer.ERROR
    assert verdict.reason.endswith("such as a in pass 0: candidate: rules[0]: it hung")
    within = says(RuleCases(maximum_missing=0.5), items)
    assert within.answer is Answer.PASS
    assert within.reason.endswith("; 1 answers could not be scored")


def test_cases_that_the_candidate_never_answers_are_missed():
    items = [answer(ref("a", passage, passes=2), pairs=(failing(),)) for passage in range(2)]
    verdict = says(RuleCases(), items)
    assert verdict.answer is Answer.ERROR
    assert "candidate timed_out" in verdict.reason


def test_a_sample_without_rules_that_failed_once_is_no_case():
    items = [
        answer(ref("a", 0, samples=2, passes=2), pairs=(failing(),)),
        answer(ref("a", 1, samples=2, passes=2)),
        ruled(0, "b", samples=2),
        ruled(1, "b", samples=2),
    ]
    assert says(RuleCases(), items).answer is Answer.PASS


def test_a_suite_without_rules_is_an_error():
    assert says(RuleCases(), [answer(ref(passes=1))]).reason == (
        "could not measure: no sample of suite starter has rules"
    )


def test_shards_merge_to_the_state_of_all_their_evidence():
    items = [
        ruled(passage, f"s{i}", samples=12, candidate=float(i != 3), baseline=float(i != 5))
        for passage in range(2)
        for i in range(12)
    ]
    gate = RuleCases()
    merged = fold(gate, items[::2]).merge(fold(gate, items[1::2]))
    assert merged == fold(gate, items) == fold(gate, items[1::2]).merge(fold(gate, items[::2]))
