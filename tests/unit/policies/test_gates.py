"""Gates: what each reads, when it speaks, and that its state is all there is."""

from __future__ import annotations

import itertools
import math

import msgspec
import pytest

from comparator.pair import ForkSeen, Pair
from comparator.records import Arm, CaptureId, Fact, Outcome
from policies.gates import ErrorRate, GateState, TokenEquality, Ttft
from policies.gates.base import Alpha
from policies.gates.histogram import STEPS, bin_of, middle_s, quantile_s
from policies.gates.window import BLOCKS, Window
from policies.verdict import Answer
from tests.support.exchanges import comparison, live, pair

ALPHA = Alpha(rollback=0.01, promotion=0.05)
T0 = 1_700_000_000.0


def fork_seen(capture_id: str = "f", right_arm: Arm = Arm.CANDIDATE) -> ForkSeen:
    fork = pair((1, 2), (1, 5)).fork
    assert fork is not None
    return ForkSeen(
        capture_id=CaptureId(capture_id),
        rollout="old-to-new",
        tenant="acme",
        left_arm=Arm.BASELINE,
        right_arm=right_arm,
        fork=fork,
    )


def fold(gate, items):
    state = gate.initial()
    for item in items:
        state = gate.fold(state, comparison(item) if isinstance(item, Pair) else item)
    return state


class TestTokenEquality:
    gate = TokenEquality(minimum_pairs=3)

    def test_no_data_is_inconclusive(self):
        assert self.gate.verdict(self.gate.initial(), ALPHA).answer is Answer.INCONCLUSIVE

    def test_equal_pairs_pass_only_after_the_minimum(self):
        answers = [self.gate.verdict(fold(self.gate, [pair()] * n), ALPHA).answer for n in (2, 3)]
        assert answers == [Answer.INCONCLUSIVE, Answer.PASS]

    def test_a_fork_seen_in_mid_stream_fails_at_once_and_names_the_capture(self):
        verdict = self.gate.verdict(fold(self.gate, [fork_seen("f")]), ALPHA)
        assert verdict.answer is Answer.FAIL
        assert verdict.deciding_id == "f"
        assert "output token 1 of capture f" in verdict.reason

    def test_the_finished_pair_of_a_seen_fork_is_counted_once(self):
        state = fold(self.gate, [fork_seen("f"), pair((1, 2), (1, 5), capture_id="f"), pair()])
        assert (state.pairs, state.forks, state.deciding_id) == (2, 1, "f")
        verdict = self.gate.verdict(state, ALPHA)
        assert (verdict.value, verdict.n) == (1.0, 2)

    def test_nothing_takes_a_fork_back(self):
        state = fold(self.gate, [pair((1,), (2,), capture_id="f"), *[pair()] * 100])
        assert self.gate.verdict(state, ALPHA).answer is Answer.FAIL

    def test_a_proper_prefix_is_a_fork(self):
        verdict = self.gate.verdict(fold(self.gate, [pair((1, 2), (1, 2, 3))]), ALPHA)
        assert verdict.answer is Answer.FAIL

    def test_the_control_arm_forks_without_breach(self):
        state = fold(self.gate, [fork_seen(right_arm=Arm.CONTROL), pair((1,), (2,), right_arm=Arm.CONTROL)])
        assert state == self.gate.initial()

    @pytest.mark.parametrize(
        "set_aside",
        [
            pair((1,), (2,), right={"prompt": (0,)}),
            pair((1,), (2,), right={"digest": Fact(value="x"), "facts": {
                "declared_environment_digest": Fact(value="y")}}),
        ],
        ids=["encoding", "digest"],
    )  # fmt: skip
    def test_a_pair_set_aside_is_no_evidence(self, set_aside):
        assert not set_aside.valid
        assert fold(self.gate, [set_aside]) == self.gate.initial()

    def test_a_candidate_that_broke_off_is_not_counted_as_equal(self):
        broken = pair((1, 2, 3), (1, 2), right={"outcome": Outcome.FAILED})
        assert broken.valid
        assert fold(self.gate, [broken]).pairs == 0

    def test_live_records_say_nothing_of_tokens(self):
        assert fold(self.gate, [live(canary=True, status=500)]) == self.gate.initial()


class TestErrorRate:
    gate = ErrorRate(source="live", maximum=0.1, minimum_requests=10, window_s=100.0)

    @pytest.mark.parametrize(
        "record",
        [
            live(canary=True, status=500),
            live(canary=True, status=503),
            live(canary=True, retried=True, pool="old"),
            live(canary=True, aborted_by="upstream"),
            live(canary=True, aborted_by="timeout"),
        ],
    )
    def test_what_fails_a_canary(self, record):
        state = fold(self.gate, [record])
        assert self.gate.verdict(state, ALPHA).value == 1.0

    @pytest.mark.parametrize(
        "record",
        [
            live(canary=True, status=404),
            live(canary=True, status=429),
            live(canary=True, aborted_by="client"),
            live(canary=True, aborted_by="drain"),
            live(canary=True, aborted_by="flip", status=503),
            live(canary=True, aborted_by="flip", retried=True, pool="old"),
            live(canary=True, status=0, aborted_by="client"),
            live(canary=False, status=500),
            pair((1,), (1,), right={"outcome": Outcome.FAILED}),
        ],
    )
    def test_what_says_nothing_of_a_canary(self, record):
        assert fold(self.gate, [record]) == self.gate.initial()

    def test_under_the_minimum_even_all_failed_is_inconclusive(self):
        verdict = self.gate.verdict(fold(self.gate, [live(canary=True, status=500)] * 9), ALPHA)
        assert verdict.answer is Answer.INCONCLUSIVE
        assert verdict.n == 9

    @pytest.mark.parametrize(("bad", "answer"), [(2, Answer.PASS), (3, Answer.FAIL)])
    def test_the_cap_itself_still_passes(self, bad, answer):
        records = [live(canary=True)] * (20 - bad) + [live(canary=True, status=502)] * bad
        verdict = self.gate.verdict(fold(self.gate, records), ALPHA)
        assert verdict.answer is answer
        assert verdict.value == bad / 20
        assert (verdict.limit, verdict.n) == (0.1, 20)

    def test_a_long_good_past_does_not_hide_a_fault(self):
        good = [live(canary=True, started_unix_s=T0 + i) for i in range(1_000)]
        bad = [live(canary=True, status=500, started_unix_s=T0 + 1_000 + i) for i in range(15)]
        assert self.gate.verdict(fold(self.gate, good + bad), ALPHA).answer is Answer.FAIL

    def test_an_old_fault_falls_out_of_the_window(self):
        bad = [live(canary=True, status=500, started_unix_s=T0)] * 20
        good = [live(canary=True, started_unix_s=T0 + 500)] * 20
        assert self.gate.verdict(fold(self.gate, bad + good), ALPHA).answer is Answer.PASS

    def test_shadow_failures_are_the_candidates_own(self):
        gate = ErrorRate(source="shadow", maximum=0.1, minimum_requests=2)
        failed = pair((1,), (), capture_id="f", right={"outcome": Outcome.TIMED_OUT})
        baseline_failed = pair((), (1,), left={"outcome": Outcome.FAILED})
        aborted = pair((1,), (), right={"outcome": Outcome.ABORTED})
        state = fold(gate, [pair(), failed, baseline_failed, aborted, live(canary=True, status=500)])
        verdict = gate.verdict(state, ALPHA)
        assert (verdict.answer, verdict.value, verdict.n) == (Answer.FAIL, 0.5, 2)
        assert verdict.deciding_id == "f"

    def test_an_invalid_answer_of_the_candidate_is_a_failure(self):
        gate = ErrorRate(source="shadow", maximum=0.1, minimum_requests=1)
        state = fold(gate, [pair((1,), (), right={"outcome": Outcome.INVALID})])
        assert gate.verdict(state, ALPHA).value == 1.0


def test_histogram_bins_are_within_half_a_percent_and_ordered():
    values = [1e-4 * 1.003**i for i in range(5_000)]
    for value in values:
        assert middle_s(bin_of(value)) == pytest.approx(value, rel=0.5 / STEPS * 1.01)
    assert [bin_of(v) for v in values] == sorted(bin_of(v) for v in values)


def test_histogram_clamps_the_absurd():
    assert bin_of(0.0) == bin_of(1e-300) == bin_of(2.0**-20)
    assert bin_of(1e300) == bin_of(math.inf) == bin_of(2.0**20)


@pytest.mark.parametrize(("quantile", "rank"), [(0.5, 50), (0.95, 95), (0.999, 100), (0.001, 1)])
def test_quantiles_are_nearest_rank(quantile, rank):
    counts: dict[int, int] = {}
    for value in range(1, 101):
        counts[bin_of(float(value))] = counts.get(bin_of(float(value)), 0) + 1
    assert quantile_s(counts, quantile) == pytest.approx(rank, rel=0.01)
    assert quantile_s({}, quantile) is None


def test_windows_merge_in_any_order_to_the_same():
    shards = []
    for seed in range(3):
        window = Window()
        for i in range(40):
            window = window.add(T0 + (i * 7 + seed * 13) % 150, 10.0, ((i + seed) % 4,))
        shards.append(window)
    merged = [a.merge(b).merge(c) for a, b, c in itertools.permutations(shards)]
    assert all(window == merged[0] for window in merged)


def test_what_looks_older_than_the_window_counts_as_new():
    window = Window().add(0.0, 1.0, (0,)).add(float(BLOCKS), 1.0, (0,))
    assert window.counts == {BLOCKS: {0: 1}}
    assert window.add(0.5, 1.0, (0,)).counts == {BLOCKS: {0: 2}}
    assert window.add(1.0, 1.0, (0,)).counts == {BLOCKS: {0: 1}, 1: {0: 1}}


def test_a_clock_that_stepped_ahead_blinds_no_gate():
    gate = ErrorRate(source="live", maximum=0.1, minimum_requests=10, window_s=100.0)
    ahead = live(canary=True, started_unix_s=T0 + 1e9)
    bad = [live(canary=True, status=500, started_unix_s=T0 + i) for i in range(12)]
    assert gate.verdict(fold(gate, [ahead, *bad]), ALPHA).answer is Answer.FAIL


def test_a_window_is_bounded_whatever_the_clock_does():
    window = Window()
    for unix_s in [0.0, 1e9, 5.0, 2e9, 1e9, *range(1_000)]:
        window = window.add(float(unix_s), 1.0, (0,))
    assert len(window.counts) <= BLOCKS


@pytest.mark.parametrize(
    "gate",
    [
        TokenEquality(),
        ErrorRate(source="live", maximum=0.1),
        Ttft(maximum_s=1.0, margin=0.02),
    ],
    ids=lambda gate: gate.name,
)
def test_a_state_survives_serialisation_and_gives_the_same_verdict(gate):
    state = fold(gate, [pair((1,), (2,)), live(canary=True), live(), fork_seen()])
    again = msgspec.json.decode(msgspec.json.encode(state), type=GateState)
    assert again == state
    assert gate.verdict(again, ALPHA) == gate.verdict(state, ALPHA)


def test_folding_never_changes_the_state_it_was_given():
    gate = Ttft(maximum_s=1.0, margin=0.02, freeze_n=20)
    state = fold(gate, [live(canary=True)])
    before = msgspec.json.encode(state)
    gate.fold(state, live(canary=True))
    assert msgspec.json.encode(state) == before


def test_the_same_prompt_asked_a_thousand_times_is_one_equal_pair():
    gate = TokenEquality(minimum_pairs=2)
    state = gate.fold(gate.initial(), comparison(pair()))
    for _ in range(1_000):
        state = gate.fold(state, comparison(pair(), repeat=True))
    assert (state.pairs, gate.verdict(state, ALPHA).answer) == (1, Answer.INCONCLUSIVE)
    state = gate.fold(state, comparison(pair((), ()), cluster="another, answered by nothing"))
    assert gate.verdict(state, ALPHA).answer is Answer.INCONCLUSIVE
    forked = gate.fold(state, comparison(pair((1, 2), (1, 3)), repeat=True))
    assert gate.verdict(forked, ALPHA).answer is Answer.FAIL, "a fork counts wherever it is seen"
