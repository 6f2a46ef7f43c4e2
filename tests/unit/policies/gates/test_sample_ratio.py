"""Copies and answers in the shares that they should have."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from comparator.comparison import SampleRef
from comparator.records import Arm, Outcome
from policies.gates import SampleRatio
from policies.gates.base import Alpha
from policies.gates.sample_ratio import SampleRatioState
from policies.verdict import Answer
from tests.support.exchanges import comparison, live, pair

ALPHA = Alpha(rollback=0.01, promotion=0.05)
GATE = SampleRatio(expected_percent=25.0, tolerance=0.2)
SUITE = SampleRef(
    suite="s", digest="d", stage="shadow", sample_id="1", category="c", passage=0, samples=1, passes=1
)


def fold(gate, items) -> SampleRatioState:
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return state


def judge(gate, items):
    return gate.verdict(fold(gate, items), ALPHA)


def answers(n: int, every: int, *, tenant: str = "acme"):
    """``n`` live answers, each ``every``-th of them copied."""
    return [msgspec.structs.replace(live(tenant=tenant), sampled=i % every == 0) for i in range(n)]


FAILED = comparison(pair((1,), (), right={"outcome": Outcome.TIMED_OUT}))
ANSWERED = comparison(pair())


def test_copies_that_are_lost_hold_and_never_roll_back():
    verdict = judge(GATE, answers(1_000, 8))
    assert (verdict.answer, verdict.hold) == (Answer.FAIL, True)
    assert (verdict.value, verdict.limit, verdict.n, verdict.alpha) == (0.125, 0.25, 1_000, 0.005)
    assert verdict.reason == (
        "125 of 1000 live answers were copied, 25 % are expected; copies are lost or made on the way, so no "
        "comparison is to be trusted"
    )


def test_what_no_draw_was_made_for_is_no_copy_that_was_lost():
    """While a rollout makes its checks nothing is copied, and other paths never are."""
    checks = [msgspec.structs.replace(one, drawable=False) for one in answers(5_000, 10_000)]
    assert fold(GATE, checks) == GATE.initial()
    assert judge(GATE, [*checks, *answers(3_000, 4)]).answer is Answer.PASS


def test_copies_beyond_the_percent_hold_as_well():
    assert judge(GATE, answers(400, 2)).hold


def test_the_configured_share_passes_once_it_is_shown_to_be_near():
    verdict = judge(GATE, answers(3_000, 4))
    assert (verdict.answer, verdict.hold) == (Answer.PASS, False)
    assert verdict.interval is not None
    assert verdict.interval[0] < 0.25 < verdict.interval[1]
    verdict = judge(GATE, answers(100, 4))
    assert verdict.answer is Answer.INCONCLUSIVE
    assert verdict.reason.endswith("undecided after 100 of at most 1000000 answers")


def test_missing_answers_of_the_candidate_hold():
    verdict = judge(GATE, [*answers(3_000, 4), *[FAILED] * 10, *[ANSWERED] * 20])
    assert (verdict.answer, verdict.hold) == (Answer.FAIL, True)
    assert verdict.reason == (
        "the candidate's answer is missing in 10 of 30 comparisons, a share of 0.05 may be; what is left to "
        "compare is a selection"
    )


def test_a_candidate_that_was_never_compared_is_missing():
    never = comparison(pair(right_arm=Arm.CONTROL))
    assert fold(GATE, [never]).missing.ones == 1


@pytest.mark.parametrize(
    "nothing",
    [
        comparison(pair(left={"outcome": Outcome.FAILED})),
        comparison(pair(right={"outcome": Outcome.ABORTED})),
        comparison(pair(right={"prompt": (0,)})),
        comparison(pair((1,), (), right={"outcome": Outcome.FAILED}), sample=SUITE),
        live(streamed=False),
        live(status=500),
        live(aborted_by="client"),
    ],
    ids=["baseline", "aborted", "encoding", "suite", "whole", "failed", "client"],
)
def test_what_says_nothing_leaves_the_state_itself(nothing):
    before = GATE.initial()
    assert GATE.fold(before, nothing) is before


def test_only_tenants_that_are_copied_count():
    gate = SampleRatio(expected_percent=25.0, tenants=("acme",))
    state = fold(gate, [*answers(40, 4), *answers(40, 1_000, tenant="other")])
    assert state.copied.counts == (10, 30)


def test_at_its_maximum_it_stays_as_it_is():
    gate = SampleRatio(expected_percent=25.0, maximum_n=100)
    state = fold(gate, [*answers(150, 4), *[ANSWERED] * 150])
    assert (state.copied.n, state.missing.n) == (100, 100)
    assert "undecided at its maximum of 100 answers, for good" in gate.verdict(state, ALPHA).reason


def test_shards_merge_in_any_order_to_the_whole():
    items = [*answers(60, 4), *[FAILED] * 3, *[ANSWERED] * 9]
    whole = fold(GATE, items)
    shards = [fold(GATE, items[:20]), fold(GATE, items[20:61]), fold(GATE, items[61:])]
    for one, two, three in itertools.permutations(shards):
        merged = one.merge(two).merge(three)
        assert (merged.copied, merged.missing) == (whole.copied, whole.missing)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"expected_percent": 100.0},
            (
                "expected_percent: 100.0 is outside 0-100, both excluded (with all or nothing copied there "
                "is no ratio; leave the gate out)"
            ),
        ),
        (
            {"expected_percent": 5.0, "tolerance": 0.0},
            "tolerance: 0.0 is outside 0.01-1 (a share of expected_percent)",
        ),
        (
            {"expected_percent": 80.0, "tolerance": 0.5},
            "tolerance: 0.5 is outside 0.01-0.25 (a share of expected_percent)",
        ),
        (
            {"expected_percent": 5.0, "maximum_missing": 1.0},
            "maximum_missing: 1.0 is outside 0-1, both excluded",
        ),
        (
            {"expected_percent": 5.0, "maximum_n": 5},
            "maximum_n: 5 is under 100; fewer answers decide nothing",
        ),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    with pytest.raises(ValueError) as caught:
        SampleRatio(**limits)
    assert str(caught.value) == message
