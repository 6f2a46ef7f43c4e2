"""First fork earlier than the control's: who bets, who does not, and in which words."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from comparator.comparison import Comparison, SampleRef
from comparator.pair import Pair
from comparator.records import Arm, Outcome, Sampling
from comparator.sequential import threshold_nats
from policies.gates import ForkHazard
from policies.gates.base import Alpha
from policies.gates.fork_hazard import ForkHazardState
from policies.verdict import Answer, Verdict
from tests.support.exchanges import comparison, live, pair
from tests.support.triples import steps_of, triple

ALPHA = Alpha(rollback=0.01, promotion=0.05)
GATE = ForkHazard()
SUITE = SampleRef(
    suite="s", digest="d", stage="shadow", sample_id="1", category="c", passage=0, samples=1, passes=1
)


def fold(items, gate: ForkHazard = GATE) -> ForkHazardState:
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return state


def judge(items, gate: ForkHazard = GATE) -> Verdict:
    return gate.verdict(fold(items, gate), ALPHA)


def earlier(n: int) -> list[Comparison]:
    return [triple(f"c{i}", candidate=2, control=5) for i in range(n)]


def later(n: int) -> list[Comparison]:
    return [triple(f"l{i}", candidate=None, control=5) for i in range(n)]


def test_no_evidence_is_inconclusive_with_a_limit_and_no_value():
    verdict = judge([])
    assert (verdict.answer, verdict.value, verdict.n) == (Answer.INCONCLUSIVE, None, 0)
    assert verdict.limit == pytest.approx(0.6)
    assert (verdict.rollback_nats, verdict.promotion_nats, verdict.alpha) == (0.0, 0.0, 0.01)


def test_a_candidate_that_always_forks_first_fails_and_names_the_newest_capture():
    verdict = judge(earlier(20))
    assert verdict.answer is Answer.FAIL
    assert verdict.rollback_nats is not None
    assert verdict.rollback_nats >= threshold_nats(0.01)
    assert (verdict.value, verdict.n, verdict.deciding_id) == (1.0, 20, "c19")
    assert verdict.reason == (
        "the candidate forked before the control in 20 of 20 triples, 0 ties; 12.0 would be 1.5 times the "
        "control's hazard"
    )


def test_one_that_forks_as_often_as_the_control_passes():
    mixed = [item for two in zip(earlier(400), later(400), strict=True) for item in two]
    verdict = judge(mixed)
    assert verdict.answer is Answer.PASS
    assert verdict.interval is not None
    low, high = verdict.interval
    assert low < 0.5 < high < 0.6


def test_arms_that_never_fork_pass_though_their_ratio_is_unknown():
    quiet = [triple(f"q{i}") for i in range(350)]
    verdict = judge(quiet)
    assert (verdict.answer, verdict.value, verdict.n) == (Answer.PASS, None, 0)
    assert judge(quiet[:150]).answer is Answer.INCONCLUSIVE


def test_a_candidate_that_alone_forks_now_and_then_does_not_pass_for_that():
    items = [triple(f"q{i}", candidate=None if i % 20 else 2) for i in range(350)]
    assert judge(items).answer is not Answer.PASS


@pytest.mark.parametrize(
    ("candidate", "control", "tallied"),
    [
        (2, 5, (1, 0, 0)),
        (5, 2, (0, 1, 0)),
        (None, 5, (0, 1, 0)),
        (2, None, (1, 0, 0)),
        (2, 2, (0, 0, 1)),
        (None, None, (0, 0, 1)),
    ],
)
def test_who_forks_first(candidate, control, tallied):
    first = fold([triple(candidate=candidate, control=control)]).first
    assert (first.ones, first.zeros, first.ties) == tallied


@pytest.mark.parametrize(
    ("equal_for", "control", "tallied"),
    [(3, 5, None), (3, 3, None), (3, 2, (0, 1, 0)), (3, None, None)],
)
def test_an_arm_that_broke_off_settles_only_what_it_reached(equal_for, control, tallied):
    broken = triple(candidate=steps_of(equal_for), control=control, candidate_outcome=Outcome.FAILED)
    state = fold([broken])
    first = state.first
    assert (first.ones, first.zeros, first.ties) == (tallied or (0, 0, 0))
    assert state.unsettled == (tallied is None)


def test_a_candidate_that_breaks_off_each_time_never_passes_for_not_forking():
    verdict = judge(
        [triple(f"b{i}", candidate=steps_of(2), candidate_outcome=Outcome.FAILED) for i in range(400)]
    )
    assert (verdict.answer, verdict.n) == (Answer.INCONCLUSIVE, 0)
    assert "400 broken off before a fork" in verdict.reason


def test_a_broken_control_settles_only_what_it_reached():
    for fork, ones in ((1, 1), (5, 0)):
        broken = triple(candidate=fork, control=steps_of(3), control_outcome=Outcome.TIMED_OUT)
        assert fold([broken]).first.ones == ones


@pytest.mark.parametrize(
    "nothing",
    [
        triple(candidate=1, repeat=True),
        triple(candidate=1, sample=SUITE),
        live(canary=True, status=500),
    ],
    ids=["repeat", "suite", "live record"],
)
def test_what_it_does_not_read_leaves_the_state_itself(nothing):
    before = GATE.initial()
    assert GATE.fold(before, nothing) is before


@pytest.mark.parametrize("bands", [(1, 2), (None, None), (None, 1), (4, 8)])
def test_unmatched_bands_do_not_bet_and_are_said(bands):
    verdict = judge([triple(candidate=1, bands=bands)])
    assert (verdict.answer, verdict.n) == (Answer.INCONCLUSIVE, 0)
    assert "left out: 1 comparisons in unmatched bands of concurrency" in verdict.reason


def test_bands_that_hold_several_numbers_match():
    assert fold([triple(candidate=1, bands=(4, 7))]).first.ones == 1


def test_a_comparison_without_a_control_is_counted_and_said():
    verdict = judge([comparison(pair((1, 2), (1, 3)))])
    assert "1 without a control" in verdict.reason


def test_replicates_bet_once_by_the_first_that_differ():
    tie, first = triple("a", candidate=3, control=3), triple("a", candidate=1, control=4)
    pairs: list[Pair] = [*tie.pairs]
    for one in first.pairs:
        left = msgspec.structs.replace(one.left, replicate=1)
        pairs.append(msgspec.structs.replace(one, left=left))
    state = fold([msgspec.structs.replace(tie, pairs=tuple(pairs))])
    assert (state.first.ones, state.first.n) == (1, 1)


def test_another_sampling_stream_disables_the_gate_with_its_reason():
    drawn = Sampling(max_tokens=16, temperature=1.0, seed=5)
    base = steps_of(6)
    # the same distributions, another choice: the list is the baseline's, the token is not
    other = tuple(
        msgspec.structs.replace(one, token_id=one.top_ids[1]) if i == 2 else one for i, one in enumerate(base)
    )
    streams = [triple(f"s{i}", candidate=other, baseline=base, tokens=6, sampling=drawn) for i in range(4)]
    state = fold(streams)
    assert (state.streams, state.first.n) == (4, 0)
    verdict = GATE.verdict(state, ALPHA)
    assert verdict.answer is Answer.INCONCLUSIVE
    assert verdict.reason.startswith("disabled: in 4 of 4 comparisons the arms drew from equal distributions")


@pytest.mark.parametrize(("stream_at", "bets"), [(4, (0, 1)), (1, (0, 0))])
def test_a_stream_after_the_controls_fork_takes_nothing_from_the_control(stream_at, bets):
    """The more forks a candidate makes, the more often one follows the control's: left out for that, triples
    that the control won would be missing, and a candidate on the tolerated ratio would exceed it."""
    drawn = Sampling(max_tokens=16, temperature=1.0, seed=5)
    base = steps_of(6)
    stream = tuple(
        msgspec.structs.replace(one, token_id=one.top_ids[1]) if i == stream_at else one
        for i, one in enumerate(base)
    )
    control = steps_of(6, fork_at=2, gap_nats=1.5)
    item = triple("s", candidate=stream, control=control, baseline=base, tokens=6, sampling=drawn)
    state = fold([item])
    assert (state.first.ones, state.first.zeros) == bets
    assert state.streams == 1 - sum(bets)


def test_at_its_maximum_it_stays_as_it_is():
    gate = ForkHazard(maximum_n=10)
    state = fold([item for two in zip(earlier(5), later(5), strict=True) for item in two], gate)
    assert gate.fold(state, earlier(1)[0]) is state
    verdict = gate.verdict(state, ALPHA)
    assert verdict.answer is Answer.INCONCLUSIVE
    assert verdict.reason.endswith("undecided at its maximum of 10 triples, for good")


def test_shards_merge_to_the_whole():
    items = [*earlier(7), *later(5), triple("t", candidate=1, bands=(1, 2))]
    whole = fold(items)
    for order in itertools.permutations([fold(items[:3]), fold(items[3:9]), fold(items[9:])]):
        merged = order[0].merge(order[1]).merge(order[2])
        assert (merged.first, merged.unmatched) == (whole.first, whole.unmatched)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"ratio": 0.5}, "ratio: 0.5 is outside 1-100; 1 is the control's own hazard"),
        ({"ratio": float("nan")}, "ratio: nan is outside 1-100; 1 is the control's own hazard"),
        (
            {"ratio": 1.0},
            (
                "promotion_ratio: missing, and ratio 1.0 lets nothing pass, for no evidence shows "
                "'not earlier at all'; give one above 1, such as 1.5"
            ),
        ),
        (
            {"ratio": 2.0, "promotion_ratio": 1.5},
            "promotion_ratio: 1.5 is outside 2-100 (at least the ratio)",
        ),
        ({"negligible": 0.0}, "negligible: 0.0 is outside 0-1, both excluded (a share of triples)"),
        ({"maximum_n": 3}, "maximum_n: 3 is under 10; fewer triples decide nothing"),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    with pytest.raises(ValueError) as caught:
        ForkHazard(**limits)
    assert str(caught.value) == message


def test_the_controls_fork_alone_never_fails_it():
    assert all(p.right.arm in (Arm.CANDIDATE, Arm.CONTROL) for p in later(1)[0].pairs)
    assert judge(later(200)).answer is Answer.PASS
