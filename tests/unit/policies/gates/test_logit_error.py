"""The logprob error before the first fork: cap, exceedance, sign."""

from __future__ import annotations

import math

import msgspec
import pytest

from comparator.comparison import Comparison, SampleRef
from comparator.fork import step_error_nats
from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId
from policies.gates import LogitError
from policies.gates.base import Alpha
from policies.gates.logit_error import LogitErrorState
from policies.gates.step_errors import MOST_NATS, mean_sign, usable_nats
from policies.verdict import Answer, Verdict
from tests.support.exchanges import comparison, live, pair, step
from tests.support.triples import steps_of, triple

ALPHA = Alpha(rollback=0.01, promotion=0.05)
SUITE = SampleRef(
    suite="s", digest="d", stage="shadow", sample_id="1", category="c", passage=0, samples=1, passes=1
)


def fold(gate: LogitError, items) -> LogitErrorState:
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return state


def judge(gate: LogitError, items) -> Verdict:
    return gate.verdict(fold(gate, items), ALPHA)


def errs(number: int, candidate: float, control: float, **changes) -> Comparison:
    """Each arm errs by so many nats from the baseline at every step."""
    return triple(
        f"c{number}",
        candidate=steps_of(8, error_nats=candidate),
        control=steps_of(8, error_nats=control),
        **changes,
    )


class TestCap:
    gate = LogitError(maximum_nats=0.5)

    def test_an_error_over_it_fails_at_once_with_its_capture(self):
        verdict = judge(self.gate, [errs(1, 0.1, 0.1), errs(2, 0.7, 0.1), errs(3, 0.2, 0.1)])
        assert verdict.answer is Answer.FAIL
        assert verdict.value == pytest.approx(0.7)
        assert (verdict.limit, verdict.n, verdict.deciding_id) == (0.5, 3, "c2")
        assert verdict.reason == (
            "a logprob error of 0.7 nats before the first fork, in capture c2, is over the maximum of 0.5"
        )

    def test_the_maximum_itself_is_within(self):
        just = pair(left={"steps": steps_of(3)}, right={"steps": steps_of(3, error_nats=0.5)})
        assert just.max_error_nats == pytest.approx(0.5)
        gate = LogitError(maximum_nats=just.max_error_nats)
        assert judge(gate, [comparison(just)]).answer is Answer.INCONCLUSIVE

    def test_it_acts_on_a_fork_seen_in_mid_stream(self):
        forked = pair(left={"steps": steps_of(3)}, right={"steps": steps_of(3, fork_at=2, error_nats=0.8)})
        assert forked.fork is not None
        seen = ForkSeen(
            capture_id=CaptureId("f"),
            rollout="old-to-new",
            tenant="acme",
            left_arm=Arm.BASELINE,
            right_arm=Arm.CANDIDATE,
            fork=forked.fork,
        )
        assert judge(self.gate, [seen]).deciding_id == "f"
        control = msgspec.structs.replace(seen, right_arm=Arm.CONTROL)
        assert fold(self.gate, [control]) == self.gate.initial()
        assert fold(LogitError(), [seen]) == LogitError().initial()

    def test_it_reads_the_samples_of_suites_and_repeats(self):
        for changes in ({"sample": SUITE}, {"repeat": True}):
            verdict = judge(self.gate, [errs(1, 0.9, 0.0, **changes)])
            assert verdict.answer is Answer.FAIL

    def test_alone_it_passes_after_its_minimum_and_spends_no_alpha(self):
        gate = LogitError(maximum_nats=0.5, minimum_pairs=3, exceedance=None, margin=None)
        assert not gate.spends_alpha
        verdict = judge(gate, [errs(i, 0.2, 0.0) for i in range(2)])
        assert verdict.reason == "2 pairs with a logprob error, none over 0.5 nats; 3 are needed"
        verdict = judge(gate, [errs(i, 0.2, 0.0) for i in range(3)])
        assert (verdict.answer, verdict.n, verdict.alpha) == (Answer.PASS, 3, None)
        assert verdict.reason == "the largest logprob error of 3 pairs is 0.2 nats, within 0.5"

    def test_the_controls_error_is_none_of_its_business(self):
        assert judge(self.gate, [errs(1, 0.0, 0.9)]).answer is Answer.INCONCLUSIVE

    def test_an_arm_that_calls_a_likely_token_impossible_is_over_any_cap(self):
        impossible = [step(1, [(1, -0.1), (2, -math.inf), (3, -9.0)])]
        possible = [step(1, [(1, -0.1), (2, -3.0), (3, -9.0)])]
        verdict = judge(
            LogitError(maximum_nats=MOST_NATS - 1),
            [comparison(pair(left={"steps": possible}, right={"steps": impossible}))],
        )
        assert (verdict.answer, verdict.value) == (Answer.FAIL, MOST_NATS)


class TestExceedance:
    gate = LogitError(floor_requests=60, exceedance=0.1)

    def controls(self, n: int = 60) -> list[Comparison]:
        return [errs(i, 0.02, 0.02 + 0.001 * (i % 7)) for i in range(n)]

    def test_more_requests_over_the_frozen_ceiling_than_tolerated_fail(self):
        bad = [errs(1_000 + i, 0.2, 0.02) for i in range(10)]
        state = fold(self.gate, [*self.controls(), *bad])
        assert (state.candidate_over, state.control_over, state.over.n) == (10, 0, 10)
        # ten of ten at a tolerated tenth: the sign test is far from anything yet
        verdict = self.gate.verdict(state, Alpha(rollback=0.05, promotion=0.05))
        assert verdict.answer is Answer.FAIL
        assert (verdict.value, verdict.limit, verdict.n, verdict.deciding_id) == (1.0, 0.1, 10, "c1009")
        assert verdict.alpha == 0.025
        assert verdict.reason.startswith(
            "a larger logprob error than the first 60 of baseline and control in 10 of 10 requests, in 0 for "
            "the control; a share of 0.1 more may"
        )

    def test_a_busy_hour_in_which_both_arms_exceed_an_early_ceiling_blames_nobody(self):
        gate = LogitError(floor_requests=60, exceedance=0.1, margin=None)
        busy = [errs(1_000 + i, *((0.3, 0.2) if i % 2 else (0.2, 0.3))) for i in range(200)]
        state = fold(gate, [*self.controls(), *busy])
        assert (state.candidate_over, state.control_over) == (200, 200)
        assert gate.verdict(state, ALPHA).answer is not Answer.FAIL

    def test_a_candidate_in_another_band_or_without_a_control_does_not_bet(self):
        alone = errs(900, 0.5, 0.02)
        alone = msgspec.structs.replace(alone, pairs=alone.pairs[:1])
        state = fold(self.gate, [*self.controls(), alone, errs(901, 0.5, 0.02, bands=(9, 1))])
        assert state.over.n == 0

    def test_before_the_ceiling_is_frozen_nothing_is_asked(self):
        state = fold(self.gate, [*self.controls(58), errs(900, 0.5, 0.02)])
        assert state.over.n == 0
        verdict = self.gate.verdict(state, ALPHA)
        assert verdict.answer is Answer.INCONCLUSIVE  # though the sign alone would pass
        assert verdict.reason == "59 of 60 control pairs for a threshold of the logprob error"

    def test_requests_within_it_pass_in_the_end(self):
        gate = LogitError(floor_requests=60, exceedance=0.1, margin=None)
        verdict = judge(gate, self.controls(180))
        assert (verdict.answer, verdict.value) == (Answer.PASS, 0.0)
        assert verdict.n == 120
        assert verdict.alpha == ALPHA.rollback

    def test_once_frozen_a_louder_control_does_not_raise_it(self):
        state = fold(self.gate, [*self.controls(), errs(900, 0.02, 0.9), errs(901, 0.5, 0.02)])
        assert (state.candidate_over, state.control_over) == (1, 1)
        assert max(ceiling.nats for ceiling in state.ceilings.values()) < 0.03

    def test_ceilings_are_by_band(self):
        other = errs(900, 0.5, 0.02, bands=(9, 9))
        state = fold(self.gate, [*self.controls(), other])
        assert (state.over.n, len(state.ceilings)) == (0, 2)


class TestSign:
    gate = LogitError()

    def test_a_candidate_that_errs_more_than_the_control_fails(self):
        verdict = judge(self.gate, [errs(i, 0.05, 0.02) for i in range(30)])
        assert verdict.answer is Answer.FAIL
        assert (verdict.value, verdict.limit, verdict.n) == (1.0, 0.0, 30)
        assert verdict.alpha == 0.005
        assert verdict.interval is not None
        assert verdict.interval[1] == 1.0
        assert verdict.reason == (
            "mean sign of the candidate's logprob error against the control's: 1.000 in 30 triples; 0 may be"
        )

    def test_one_that_errs_as_the_control_does_passes(self):
        gate = LogitError(exceedance=None)
        items = [errs(i, *((0.03, 0.02) if i % 2 else (0.02, 0.03))) for i in range(300)]
        verdict = judge(gate, items)
        assert (verdict.answer, verdict.value, verdict.alpha) == (Answer.PASS, 0.0, 0.01)

    def test_the_sign_is_a_mean_over_steps_up_to_the_earlier_fork(self):
        base = steps_of(6)
        louder, quiet = steps_of(6, error_nats=0.3), steps_of(6, error_nats=0.1)
        mine = (*quiet[:2], *louder[2:])
        assert mean_sign(triple(candidate=mine, control=quiet, baseline=base).triples[0]) == 4 / 6
        forked = (*mine[:3], *steps_of(6, fork_at=3, error_nats=0.3)[3:])
        assert mean_sign(triple(candidate=forked, control=quiet, baseline=base).triples[0]) == 2 / 4
        assert mean_sign(triple(candidate=mine, control=forked, baseline=base).triples[0]) == -1 / 4

    @pytest.mark.parametrize("bands", [(1, 2), (None, None)])
    def test_unmatched_bands_do_not_bet_and_are_said(self, bands):
        verdict = judge(self.gate, [errs(1, 0.3, 0.0, bands=bands)])
        assert verdict.n == 0
        assert "1 triples in unmatched bands" in verdict.reason

    @pytest.mark.parametrize("changes", [{"repeat": True}, {"sample": SUITE}])
    def test_a_repeat_and_a_suite_do_not_bet(self, changes):
        assert fold(self.gate, [errs(1, 0.3, 0.0, **changes)]).signs.n == 0

    def test_at_its_maximum_it_stays_as_it_is_and_the_cap_goes_on(self):
        gate = LogitError(maximum_n=10, maximum_nats=0.5, exceedance=None)
        items = [errs(i, 0.02, 0.02) for i in range(12)]
        state = fold(gate, items)
        assert state.signs.n == 10
        assert "undecided at its maximum of 10 triples, for good" in gate.verdict(state, ALPHA).reason
        assert gate.verdict(gate.fold(state, errs(99, 0.9, 0.0)), ALPHA).answer is Answer.FAIL


def test_no_logprobs_anywhere_is_an_error_and_never_a_pass():
    bare = pair(left={"steps": [step(1)]}, right={"steps": [step(1)]})
    verdict = judge(LogitError(), [comparison(bare)] * 10)
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == "could not measure: none of 10 pairs has logprobs on both arms"


def test_what_it_does_not_read_leaves_the_state_itself():
    gate = LogitError()
    before = gate.initial()
    for nothing in (
        errs(1, 0.9, 0.0, timing=True),
        live(canary=True),
        comparison(pair(right={"prompt": (0,)})),
    ):
        assert gate.fold(before, nothing) is before


@pytest.mark.parametrize(
    ("error", "usable"),
    [(None, None), (math.nan, None), (math.inf, MOST_NATS), (2e9, MOST_NATS), (0.25, 0.25), (0.0, 0.0)],
)
def test_what_is_no_error_is_not_measured(error, usable):
    assert usable_nats(error) == usable


def test_nan_logprobs_are_not_measured_and_stop_nothing():
    broken = tuple(
        msgspec.structs.replace(one, top_logprobs=(math.nan, *one.top_logprobs[1:])) for one in steps_of(8)
    )
    one = errs(1, 0.3, 0.1)
    candidate, control = one.pairs
    right = msgspec.structs.replace(candidate.right, steps=broken)
    wrong = msgspec.structs.replace(candidate, right=right, max_error_nats=math.nan)
    state = fold(LogitError(), [msgspec.structs.replace(one, pairs=(wrong, control))])
    assert (state.measured, state.unmeasured, state.worst_nats) == (0, 1, None)
    assert math.isfinite(state.signs.rollback_nats)


def test_the_error_of_a_triple_is_that_of_the_aligner():
    one = errs(1, 0.3, 0.1)
    steps = zip(one.pairs[0].left.steps, one.pairs[0].right.steps, strict=True)
    assert one.pairs[0].max_error_nats == max(step_error_nats(a, b) or 0.0 for a, b in steps)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            {"exceedance": None, "margin": None},
            "maximum_nats or exceedance: give at least one (or margin), or the gate limits nothing",
        ),
        ({"maximum_nats": 0.0}, "maximum_nats: 0.0 is outside 0-1000 nats, both excluded"),
        ({"maximum_nats": math.inf}, "maximum_nats: inf is outside 0-1000 nats, both excluded"),
        ({"exceedance": 1.0}, "exceedance: 1.0 is outside 0.001-0.9 (a share of requests)"),
        ({"floor_requests": 3}, "floor_requests: 3 is under 10; fewer show too little of a floor"),
        ({"margin": 2.0}, "margin: 2.0 is outside 0-0.9 (a mean sign)"),
        ({"maximum_n": 0}, "maximum_n: 0 is under 10; fewer requests decide nothing"),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    with pytest.raises(ValueError) as caught:
        LogitError(**limits)
    assert str(caught.value) == message
