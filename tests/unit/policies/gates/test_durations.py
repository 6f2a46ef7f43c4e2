"""ttft and tpot: a frozen threshold, blocks of time, and plain caps."""

from __future__ import annotations

import math

import msgspec
import pytest

from comparator.comparison import SampleRef
from comparator.pair import Pair
from comparator.records import LiveRecord, Outcome
from policies.gates import Tpot, Ttft
from policies.gates.base import Alpha
from policies.gates.blocks import Sums
from policies.verdict import Answer
from tests.support.exchanges import comparison, live, pair

ALPHA = Alpha(rollback=0.01, promotion=0.05)
T0 = 1_700_000_040.0  # a block of 60 s begins here
SUITE = SampleRef(
    suite="s", digest="d", stage="shadow", sample_id="1", category="c", passage=0, samples=1, passes=1
)


def fold(gate, items):
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return state


def judge(gate, items):
    return gate.verdict(fold(gate, items), ALPHA)


def block(number: int, *, baseline: list[float], candidate: list[float]) -> list[LiveRecord]:
    """Live answers that end within one block of 60 s, by their first bytes' times."""
    records = []
    for canary, values in ((False, baseline), (True, candidate)):
        for value_s in values:
            record = live(canary=canary, first_byte_s=value_s, started_unix_s=T0 + 60.0 * number)
            records.append(msgspec.structs.replace(record, total_s=5.0))
    return records


def timing(number: int, left_s: float, right_s: float, **changes):
    """A comparison without logprobs whose arms take so long a token."""
    first = pair((1, 2, 3), (1, 2, 3))

    def timed(exchange, gap_s):
        value = msgspec.structs.replace(exchange.timing, ttft_s=2 * gap_s, last_token_s=4 * gap_s)
        return msgspec.structs.replace(exchange, timing=value)

    made = msgspec.structs.replace(first, left=timed(first.left, left_s), right=timed(first.right, right_s))
    return comparison(made, **({"timing": True, "unix_s": T0 + 60.0 * number} | changes))


class TestTest:
    gate = Ttft(margin=0.1, threshold_s=1.0, maximum_n=400)

    def test_a_candidate_that_is_over_more_often_fails(self):
        slow = [
            record
            for number in range(60)
            for record in block(number, baseline=[0.5, 0.5], candidate=[2.0, 0.5])
        ]
        verdict = judge(self.gate, slow)
        assert verdict.answer is Answer.FAIL
        assert (verdict.n, verdict.limit) == (58, 1.0)  # the last two blocks are still open
        assert verdict.value == pytest.approx(2.0, rel=0.01)
        assert verdict.reason == (
            "live ttft p95: the candidate's share over 1 s is the baseline's +0.5000 in 58 blocks of 60 s; "
            "+0.1 may be"
        )

    def test_an_equal_one_passes_and_shows_its_quantile(self):
        equal = [
            record
            for number in range(150)
            for record in block(number, baseline=[0.5, 0.6], candidate=[0.5, 0.6])
        ]
        verdict = judge(self.gate, equal)
        assert verdict.answer is Answer.PASS
        assert verdict.interval is not None
        assert verdict.interval[0] <= verdict.value <= verdict.interval[1]

    def test_one_slow_minute_is_one_observation(self):
        once = block(0, baseline=[0.5] * 300, candidate=[9.0] * 300)
        after = [r for n in range(1, 4) for r in block(n, baseline=[0.5], candidate=[0.5])]
        state = fold(self.gate, once + after)
        assert state.differences.n == 2
        assert self.gate.verdict(state, ALPHA).answer is Answer.INCONCLUSIVE

    def test_the_threshold_itself_is_not_over(self):
        state = fold(self.gate, block(0, baseline=[1.0], candidate=[1.0]))
        assert list(state.blocks.open.values()) == [Sums(baseline=(0, 1), candidate=(0, 1))]

    def test_a_block_with_one_arm_does_not_bet_and_is_told(self):
        items = [r for n in range(5) for r in block(n, baseline=[0.5], candidate=[] if n else [0.5])]
        verdict = judge(self.gate, items)
        assert (verdict.n, verdict.answer) == (1, Answer.INCONCLUSIVE)
        assert "2 blocks without one of the arms" in verdict.reason

    def test_it_bets_by_the_end_of_an_answer_so_that_slow_ones_are_not_late(self):
        slow = live(canary=True, first_byte_s=290.0, started_unix_s=T0)
        slow = msgspec.structs.replace(slow, total_s=300.0)
        state = fold(self.gate, [*block(4, baseline=[0.5], candidate=[0.5]), slow])
        assert state.blocks.late == 0
        assert sum(sums.candidate[0] for sums in state.blocks.open.values()) == 1

    def test_at_its_maximum_it_stays_as_it_is(self):
        gate = Ttft(margin=0.1, threshold_s=1.0, maximum_n=10)
        verdict = judge(gate, [r for n in range(30) for r in block(n, baseline=[0.5], candidate=[0.5])])
        assert (verdict.n, verdict.answer) == (10, Answer.INCONCLUSIVE)
        assert verdict.reason.endswith("undecided at its maximum of 10 blocks, for good")

    def test_it_spends_alpha_and_a_cap_alone_does_not(self):
        assert self.gate.spends_alpha
        assert not Ttft(maximum_s=1.0).spends_alpha


class TestThreshold:
    gate = Ttft(margin=0.1, quantile=0.9, freeze_n=20)

    def test_it_is_frozen_from_the_baselines_first_values_which_do_not_bet(self):
        state = fold(self.gate, block(0, baseline=[0.1 * (i + 1) for i in range(20)], candidate=[9.0]))
        assert state.threshold_s == pytest.approx(1.8, rel=0.01)
        assert state.freezing == {}
        assert list(state.blocks.open.values()) == [Sums(candidate=(1, 1))]
        assert sum(state.values.values()) == 1  # the candidate's quantile is shown all the same

    def test_until_then_it_says_how_far_it_is(self):
        verdict = judge(self.gate, block(0, baseline=[0.5] * 7, candidate=[9.0] * 50))
        assert verdict.answer is Answer.INCONCLUSIVE
        assert verdict.reason == "live ttft p90: 7 of 20 baseline values for a threshold"

    def test_once_frozen_it_does_not_move(self):
        items = block(0, baseline=[0.5] * 20, candidate=[])
        later = [r for n in range(1, 9) for r in block(n, baseline=[50.0] * 20, candidate=[50.0])]
        assert fold(self.gate, items + later).threshold_s == fold(self.gate, items).threshold_s


class TestCaps:
    gate = Ttft(quantile=0.5, maximum_ratio=1.2, minimum_requests=10)

    def records(self, canary, value_s, n=20):
        return [live(canary=canary, first_byte_s=value_s)] * n

    def test_a_slower_candidate_fails_with_both_values(self):
        verdict = judge(self.gate, self.records(False, 0.2) + self.records(True, 0.3))
        assert verdict.answer is Answer.FAIL
        assert verdict.value == pytest.approx(1.5, rel=0.01)
        assert (verdict.limit, verdict.alpha) == (1.2, None)
        assert "live ttft p50" in verdict.reason

    def test_an_equal_one_passes(self):
        items = self.records(False, 0.2) + self.records(True, 0.21)
        assert judge(self.gate, items).answer is Answer.PASS

    @pytest.mark.parametrize(("base", "mine"), [(9, 20), (20, 9), (0, 20), (0, 0)])
    def test_too_few_on_either_pool_is_inconclusive(self, base, mine):
        items = self.records(False, 0.2, base) + self.records(True, 9.0, mine)
        assert judge(self.gate, items).answer is Answer.INCONCLUSIVE

    def test_an_absolute_cap_needs_no_baseline(self):
        gate = Ttft(quantile=0.5, maximum_s=0.25, minimum_requests=10)
        assert judge(gate, self.records(True, 0.3)).answer is Answer.FAIL
        assert judge(gate, self.records(True, 0.2)).answer is Answer.PASS

    def test_a_cap_has_no_maximum(self):
        gate = Ttft(quantile=0.5, maximum_s=0.25, minimum_requests=10, maximum_n=10, margin=0.5)
        items = [r for n in range(30) for r in block(n, baseline=[0.2] * 10, candidate=[0.2] * 10)]
        assert judge(gate, items + self.records(True, 0.9, 400)).answer is Answer.FAIL

    def test_with_a_test_beside_it_both_must_pass(self):
        gate = Ttft(quantile=0.5, maximum_s=0.25, minimum_requests=1, margin=0.2, threshold_s=0.3)
        few = [r for n in range(4) for r in block(n, baseline=[0.2], candidate=[0.2])]
        many = [r for n in range(90) for r in block(n, baseline=[0.2], candidate=[0.2])]
        assert judge(gate, few).answer is Answer.INCONCLUSIVE
        assert judge(gate, many).answer is Answer.PASS


@pytest.mark.parametrize(
    "record",
    [
        live(canary=True, streamed=False),
        live(canary=True, status=500),
        live(canary=True, retried=True),
        live(canary=True, aborted_by="client"),
        timing(0, 1.0, 1.0),
    ],
    ids=["whole", "failed", "retried", "client", "comparison"],
)
def test_only_streamed_live_answers_that_went_well_are_timed(record):
    gate = Ttft(maximum_s=1.0)
    before = gate.initial()
    assert gate.fold(before, record) is before


@pytest.mark.parametrize("value_s", [math.nan, math.inf, -1.0])
def test_an_answer_without_a_time_is_counted_as_such(value_s):
    gate = Ttft(maximum_s=1.0, margin=0.1, threshold_s=1.0)
    record = msgspec.structs.replace(live(canary=True), first_byte_s=value_s)
    state = fold(gate, [record])
    assert (state.unmeasured, state.candidate, state.blocks) == (
        1,
        gate.initial().candidate,
        gate.initial().blocks,
    )
    assert gate.verdict(state, ALPHA).reason.endswith("; 1 answers without a time")


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_record_without_a_date_is_counted_as_such(wrong):
    gate = Ttft(margin=0.1, threshold_s=1.0)
    record = msgspec.structs.replace(live(canary=True), started_unix_s=wrong)
    assert fold(gate, [record]).unmeasured == 1


class TestShadow:
    gate = Tpot(margin=0.1, threshold_s=1.0)

    def test_slow_tokens_fail(self):
        verdict = judge(self.gate, [timing(n, 0.5, 2.0) for n in range(40)])
        assert verdict.answer is Answer.FAIL
        assert verdict.value == pytest.approx(2.0, rel=0.01)
        assert verdict.reason.startswith("tpot p95: the candidate's share over 1 s is the baseline's +1.0000")

    def test_the_first_token_of_a_shadow_is_timed_where_it_is_asked_for(self):
        gate = Ttft(source="shadow", margin=0.1, threshold_s=1.0)
        verdict = judge(gate, [timing(n, 0.4, 0.8) for n in range(40)])
        assert verdict.answer is Answer.FAIL
        assert "shadow ttft p95" in verdict.reason

    @pytest.mark.parametrize(
        "nothing",
        [
            timing(0, 0.5, 2.0, timing=False),
            timing(0, 0.5, 2.0, sample=SUITE),
            comparison(pair((1,), (1,)), timing=True),
            comparison(pair(left={"token_only": True}, right={"token_only": True}), timing=True),
            comparison(pair(right={"outcome": Outcome.CUT}), timing=True),
            comparison(pair(right={"prompt": (0,)}), timing=True),
            live(canary=True),
        ],
        ids=["logprobs", "suite", "one token", "token only", "cut", "set aside", "live"],
    )
    def test_what_is_not_timed_leaves_the_state_itself(self, nothing):
        before = self.gate.initial()
        assert self.gate.fold(before, nothing) is before

    def test_a_repeated_prompt_is_new_evidence_of_time(self):
        assert fold(self.gate, [timing(0, 0.5, 0.5, repeat=True)]).blocks.open != {}

    def test_both_arms_or_neither(self):
        one: Pair = pair((1, 2, 3), (1,))
        assert fold(self.gate, [comparison(one, timing=True)]) == self.gate.initial()


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "margin or maximum_s: give at least one (or maximum_ratio), or the gate limits nothing"),
        (
            {"threshold_s": 1.0, "maximum_s": 2.0},
            "threshold_s: given without margin, so that nothing is tested; give a margin too",
        ),
        ({"maximum_s": -1.0}, "maximum_s: -1.0 is not above 0"),
        ({"margin": 0.1, "threshold_s": math.nan}, "threshold_s: nan is not above 0"),
        ({"maximum_s": 1.0, "quantile": 95.0}, "quantile: 95.0 is outside 0-1, both excluded"),
        ({"margin": 0.0}, "promotion_margin: missing, and margin 0.0 lets nothing pass"),
        (
            {"margin": 0.1, "quantile": 0.99, "freeze_n": 50},
            "freeze_n: 50 is under 100; the 0.99 quantile needs that many values",
        ),
        ({"margin": 0.1, "block_s": 0.1}, "block_s: 0.1 is outside 1-86400 seconds"),
        ({"maximum_s": 1.0, "window_s": 0.0}, "window_s: 0.0 is outside 1-604800 seconds"),
        ({"maximum_s": 1.0, "minimum_requests": 0}, "minimum_requests: 0 is under 1; no data is no pass"),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    for kind in (Ttft, Tpot):
        with pytest.raises(ValueError) as caught:
            kind(**limits)
        assert str(caught.value).startswith(message)
