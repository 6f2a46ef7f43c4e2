"""Forks that show another distribution, beyond those of the control."""

from __future__ import annotations

import math

import msgspec
import pytest

from comparator.comparison import Comparison, SampleRef
from comparator.floor import Floors
from comparator.records import Fact, Outcome, Sampling
from comparator.taxonomy import ForkClass
from policies.gates import DistributionShift
from policies.gates.base import Alpha
from policies.gates.distribution_shift import DistributionShiftState
from policies.verdict import Answer, Verdict
from tests.support.exchanges import comparison, live, pair, step
from tests.support.triples import steps_of, triple

ALPHA = Alpha(rollback=0.01, promotion=0.05)
GATE = DistributionShift()
SUITE = SampleRef(
    suite="s", digest="d", stage="shadow", sample_id="1", category="c", passage=0, samples=1, passes=1
)
SHIFTED = steps_of(8, fork_at=2, error_nats=3.0, gap_nats=1.5)
"""Its error is far over the cap, and its margin far over any tie."""


def fold(items, gate: DistributionShift = GATE) -> DistributionShiftState:
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return state


def judge(items, gate: DistributionShift = GATE) -> Verdict:
    return gate.verdict(fold(items, gate), ALPHA)


def shifted(n: int, *, start: int = 0, **changes) -> list[Comparison]:
    return [triple(f"s{start + i}", candidate=SHIFTED, control=None, **changes) for i in range(n)]


def test_shifts_beyond_the_controls_fail_with_the_last_of_them_in_words():
    verdict = judge(shifted(25))
    assert verdict.answer is Answer.FAIL
    assert (verdict.value, verdict.limit, verdict.n, verdict.deciding_id) == (1.0, 0.01, 25, "s24")
    assert "25 of 25 pairs of the candidate are a distribution shift" in verdict.reason
    assert "; the last: largest logprob error" in verdict.reason


def test_equal_arms_pass_in_the_end():
    verdict = judge([triple(f"c{i}") for i in range(300)])
    assert (verdict.answer, verdict.value) == (Answer.PASS, 0.0)


def test_a_control_that_shifts_as_often_is_no_evidence():
    both = [triple(f"b{i}", candidate=SHIFTED, control=SHIFTED) for i in range(40)]
    state = fold(both)
    assert (state.shifts.mean, state.shifts.n) == (0.0, 40)
    assert state.control_shifts == state.classes[ForkClass.DISTRIBUTION_SHIFT]
    assert GATE.verdict(state, ALPHA).answer is not Answer.FAIL


def test_shifts_of_pairs_without_a_control_are_counted_and_do_not_bet():
    alone = [msgspec.structs.replace(one, pairs=one.pairs[:1]) for one in shifted(30)]
    state = fold(alone)
    assert (state.classes[ForkClass.DISTRIBUTION_SHIFT], state.shifts.n) == (30, 0)
    assert GATE.verdict(state, ALPHA).answer is Answer.INCONCLUSIVE


@pytest.mark.parametrize("outcomes", [("failed", "completed"), ("completed", "failed")])
def test_an_arm_that_broke_off_without_a_fork_shows_nothing(outcomes):
    broken = triple(
        candidate=steps_of(3),
        control=steps_of(3),
        candidate_outcome=Outcome(outcomes[0]),
        control_outcome=Outcome(outcomes[1]),
    )
    if outcomes[0] == "completed":  # it then ended early, of its own: a truncation
        assert fold([broken]).classes == {ForkClass.TRUNCATION: 1}
    else:
        assert fold([broken]).classes == {}
    assert fold([broken]).shifts.n == 0


def test_drift_only_warns():
    drifted = steps_of(8, fork_at=2, gap_nats=0.4)
    verdict = judge([triple(f"d{i}", candidate=drifted) for i in range(30)])
    assert verdict.value == 0.0
    assert "; warning: 30 pairs drift in precision" in verdict.reason


def test_a_near_tie_is_benign_once_the_floor_is_known():
    tie = steps_of(8, fork_at=2, gap_nats=0.1)
    noisy = [triple(f"n{i}", control=steps_of(8, error_nats=0.2), bands=(2, 3)) for i in range(5)]
    state = fold([*noisy, triple("t", candidate=tie, bands=(2, 2))])
    assert state.classes == {ForkClass.NONE: 5, ForkClass.TIE_FLIP: 1}
    before = fold([triple("t", candidate=tie, bands=(2, 2))])
    assert before.classes == {ForkClass.PRECISION_DRIFT: 1}
    assert before.missing == "no noise floor for vllm 0.32.0/tokens band 1: no control ran there yet"


def test_candidate_and_control_are_held_against_the_floors_of_the_past():
    first = triple("a", candidate=SHIFTED, control=steps_of(8, error_nats=2.0))
    state = fold([first])
    assert state.classes == {ForkClass.DISTRIBUTION_SHIFT: 1}
    assert state.floors == Floors().add(first.controls[0])


def test_another_sampling_stream_is_told_and_does_not_count():
    drawn = Sampling(max_tokens=16, temperature=1.0, seed=5)
    base = steps_of(6)
    other = (msgspec.structs.replace(base[0], token_id=base[0].top_ids[1]), *base[1:])
    verdict = judge([triple("s", candidate=other, tokens=6, sampling=drawn)])
    assert verdict.value == 0.0
    assert "1 pairs draw from another sampling stream, which disables same-seed gates" in verdict.reason


def test_forks_without_logprobs_do_not_bet_and_are_told():
    bare, other = (step(1), step(2)), (step(1), step(3))
    verdict = judge([triple("u", candidate=other, control=bare, baseline=bare)])
    assert verdict.n == 0
    assert "1 pairs without logprobs cannot be classed" in verdict.reason


@pytest.mark.parametrize(
    "nothing",
    [
        *shifted(1, repeat=True),
        *shifted(1, sample=SUITE),
        *shifted(1, timing=True),
        live(canary=True),
        comparison(pair(right={"prompt": (0,)})),
        comparison(pair((1,), (2,), right={"sampling": Sampling(max_tokens=3)})),
    ],
    ids=["repeat", "suite", "timing", "live", "encoding", "configuration"],
)
def test_what_it_does_not_read_leaves_the_state_itself(nothing):
    before = GATE.initial()
    assert GATE.fold(before, nothing) is before


def test_unmatched_bands_do_not_bet_and_are_said():
    verdict = judge(shifted(30, bands=(1, 2)))
    assert verdict.n == 0
    assert "30 triples in unmatched bands of concurrency" in verdict.reason


def test_precision_is_as_declared_else_learned_once_from_the_logprobs():
    lattice = tuple(
        step(i, [(i, -0.5)] + [(100 * i + j, -0.5 - 0.25 * ((j * (i + 3)) % 19 + 1)) for j in range(1, 20)])
        for i in range(8)
    )
    state = fold([triple("l", candidate=lattice, control=lattice, baseline=lattice)])
    assert state.spacings == {"old": 0.25, "new": 0.25}
    declared = triple("m", candidate=lattice, control=lattice, baseline=lattice)
    pairs = tuple(
        msgspec.structs.replace(
            one,
            left=msgspec.structs.replace(one.left, facts={"dtype": Fact(value="float16")}),
            right=msgspec.structs.replace(one.right, facts={"dtype": Fact(value="float16")}),
        )
        for one in declared.pairs
    )
    assert fold([msgspec.structs.replace(declared, pairs=pairs)]).spacings == {}


def test_at_its_maximum_it_stays_as_it_is():
    gate = DistributionShift(maximum_n=10)
    state = fold([triple(f"c{i}") for i in range(10)], gate)
    assert gate.fold(state, triple("more")) is state
    assert "undecided at its maximum of 10 comparisons with a control, for good" in (
        gate.verdict(state, ALPHA).reason
    )


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"margin": -1.0}, "margin: -1.0 is outside 0-0.9 (a share of pairs)"),
        ({"cap_nats": 0.0}, "cap_nats: 0.0 is outside 0-100 nats, 0 excluded; 1 is usual"),
        ({"cap_nats": math.nan}, "cap_nats: nan is outside 0-100 nats, 0 excluded; 1 is usual"),
        ({"maximum_n": 1}, "maximum_n: 1 is under 10; fewer comparisons decide nothing"),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    with pytest.raises(ValueError) as caught:
        DistributionShift(**limits)
    assert str(caught.value) == message
