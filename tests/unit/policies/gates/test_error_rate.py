"""The test beside the cap: the candidate's failures against the baseline's own, by blocks of time."""

from __future__ import annotations

import math

import msgspec
import pytest

from comparator.records import Arm, Outcome
from policies.gates import ErrorRate
from policies.gates.base import Alpha
from policies.gates.blocks import Sums
from policies.verdict import Answer
from tests.support.exchanges import comparison, live, pair

ALPHA = Alpha(rollback=0.01, promotion=0.05)
T0 = 1_700_000_040.0
GATE = ErrorRate(source="live", margin=0.05)


def fold(gate, items):
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return state


def judge(gate, items):
    return gate.verdict(fold(gate, items), ALPHA)


def block(number: int, *, baseline_bad: int = 0, candidate_bad: int = 0, each: int = 10):
    return [
        live(canary=canary, status=500 if i < bad else 200, started_unix_s=T0 + 60.0 * number)
        for canary, bad in ((False, baseline_bad), (True, candidate_bad))
        for i in range(each)
    ]


def test_a_candidate_that_fails_more_often_than_the_baseline_fails():
    verdict = judge(GATE, [r for n in range(50) for r in block(n, candidate_bad=5)])
    assert verdict.answer is Answer.FAIL
    assert (verdict.value, verdict.limit, verdict.n, verdict.alpha) == (0.5, 0.05, 48, 0.01)
    assert verdict.reason == (
        "the candidate's share of failed live requests is the baseline's +0.5000 in 48 blocks of 60 s; "
        "+0.05 may be"
    )


def test_one_that_fails_as_often_passes():
    items = [r for n in range(250) for r in block(n, baseline_bad=2, candidate_bad=2)]
    verdict = judge(GATE, items)
    assert (verdict.answer, verdict.value) == (Answer.PASS, 0.0)
    assert verdict.interval is not None


def test_an_outage_is_one_observation():
    items = [r for n in range(4) for r in block(n, candidate_bad=0 if n else 300, each=300)]
    state = fold(GATE, items)
    assert state.differences.n == 2
    assert GATE.verdict(state, ALPHA).answer is Answer.INCONCLUSIVE


def test_a_timeout_bets_in_the_block_of_its_end():
    hung = msgspec.structs.replace(
        live(canary=True, aborted_by="timeout", started_unix_s=T0), total_s=600.0, status=0
    )
    state = fold(GATE, [*block(9), hung])
    assert state.blocks.late == 0
    assert sum(sums.candidate[0] for sums in state.blocks.open.values()) == 1


def test_a_block_without_an_arm_does_not_bet_and_is_told():
    alone = [live(canary=True, started_unix_s=T0 + 60.0 * n) for n in range(6)]
    verdict = judge(GATE, alone)
    assert verdict.n == 0
    assert "4 blocks without one of the arms" in verdict.reason


def test_late_requests_are_told():
    verdict = judge(GATE, [*block(5), *block(0, each=2)])
    assert verdict.reason.endswith("; 4 requests came late")


def test_cap_and_test_speak_together():
    gate = ErrorRate(source="live", margin=0.05, maximum=0.02, minimum_requests=5)
    quiet = [r for n in range(3) for r in block(n)]
    verdict = judge(gate, quiet)
    assert verdict.answer is Answer.INCONCLUSIVE  # the cap passes, the test is still open
    assert "undecided after 1 of at most 5000 blocks" in verdict.reason
    verdict = judge(gate, [*quiet, *block(3, baseline_bad=9, candidate_bad=9)])
    assert (verdict.answer, verdict.limit) == (Answer.FAIL, 0.02)  # both fail alike, and the cap is absolute


def test_only_a_test_spends_alpha():
    assert GATE.spends_alpha
    assert not ErrorRate(source="live", maximum=0.1).spends_alpha
    assert not ErrorRate.performance


def test_at_its_maximum_the_test_stays_as_it_is():
    gate = ErrorRate(source="live", margin=0.05, maximum_n=10)
    verdict = judge(gate, [r for n in range(30) for r in block(n)])
    assert (verdict.n, verdict.answer) == (10, Answer.INCONCLUSIVE)
    assert verdict.reason.endswith("undecided at its maximum of 10 blocks, for good")


def test_a_candidate_that_never_answered_is_a_failure():
    gate = ErrorRate(source="shadow", maximum=0.1, minimum_requests=1)
    missing = comparison(pair(right_arm=Arm.CONTROL))
    assert judge(gate, [missing]).value == 1.0


@pytest.mark.parametrize(
    "said",
    [
        pair(right={"outcome": Outcome.ABORTED}),
        pair(right={"prompt": (0,)}),
        pair(left={"outcome": Outcome.FAILED}),
    ],
    ids=["aborted", "other question", "baseline"],
)
def test_what_is_not_the_candidates_fault_is_not_counted(said):
    gate = ErrorRate(source="shadow", maximum=0.1)
    assert fold(gate, [comparison(said)]) == gate.initial()


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_record_without_a_length_or_date_stops_nothing(wrong):
    for field in ("total_s", "started_unix_s"):
        record = msgspec.structs.replace(live(canary=True, status=500), **{field: wrong})
        state = fold(GATE, [record])
        assert list(state.blocks.open.values()) in ([], [Sums(candidate=(1, 1))])
    shadow = ErrorRate(source="shadow", maximum=0.1)
    assert fold(shadow, [comparison(pair(), unix_s=wrong)]) == shadow.initial()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"source": "live"}, "maximum or margin: give at least one, or the gate limits nothing"),
        (
            {"source": "shadow", "margin": 0.1},
            (
                "margin: tests live requests only, since a shadow exists only where the baseline answered, "
                "which hides its failures; set source: live, or give maximum instead"
            ),
        ),
        (
            {"source": "live", "maximum": 0.1, "promotion_margin": 0.1},
            "promotion_margin: given without margin, so that nothing is tested; give both",
        ),
        (
            {"source": "live", "margin": 0.1, "block_s": 0.0},
            "block_s: 0.0 is outside 1-86400 seconds; longer than an outage, such as 60",
        ),
        (
            {"source": "live", "margin": 0.1, "maximum_n": 1},
            "maximum_n: 1 is under 10; fewer blocks decide nothing",
        ),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    with pytest.raises(ValueError) as caught:
        ErrorRate(**limits)
    assert str(caught.value) == message
