"""The traffic gates' wiring: equal arms stay quiet, a real effect is found within the numbers promised.

Evidence goes in by ``fold`` and answers come out of ``verdict``, looked at after every item, as a judge does.
Each test states its own false-alarm bound: the chance that it fails although the promise holds, over all
seeds. Seeds are fixed, so that a run repeats.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
from scipy import stats

from comparator.comparison import Comparison
from comparator.records import LiveRecord, Step
from policies.gates import (
    DistributionShift,
    ErrorRate,
    ForkHazard,
    LogitError,
    SampleRatio,
    Throughput,
    Ttft,
)
from policies.gates.base import Alpha
from policies.verdict import Answer
from tests.support.exchanges import comparison, live, pair
from tests.support.triples import steps_of, triple

CHANCE = 1e-6
T0 = 1_700_000_040.0


def most(trials: int, alpha: float) -> int:
    """Events that ``trials`` of probability at most α exceed with chance at most CHANCE."""
    return int(stats.binom.isf(CHANCE, trials, alpha))


def fewest(trials: int, share: float) -> int:
    """Events that ``trials`` of probability at least ``share`` fall short of with chance at most CHANCE."""
    return int(stats.binom.ppf(CHANCE, trials, share))


def when(gate: Any, items: Iterable[Any], alpha: Alpha, answer: Answer = Answer.FAIL) -> int | None:
    """How many items it took until the gate first said ``answer``; None: it never did."""
    state = gate.initial()
    for number, item in enumerate(items, 1):
        after = gate.fold(state, item)
        if after is not state and gate.verdict(after, alpha).answer is answer:
            return number
        state = after
    return None


def level(rng: np.random.Generator, n: int) -> np.ndarray:
    """A load that drifts over minutes, mean 0 and standard deviation 1."""
    noise = rng.standard_normal(n)
    drifted = np.empty(n)
    drifted[0] = noise[0]
    for i in range(1, n):
        drifted[i] = 0.98 * drifted[i - 1] + 0.199 * noise[i]
    return drifted


class TestForkHazard:
    gate = ForkHazard(ratio=1.0, promotion_ratio=1.5)
    alpha = Alpha(rollback=0.01, promotion=0.05)
    first, second, tie = triple("a", candidate=1, control=4), triple("b", control=4), triple("c")

    def forks(self, rng: np.random.Generator, ratio: float, n: int) -> Iterable[Comparison]:
        """Discordant triples of one hazard ratio, with ties between them that must not matter."""
        for u in rng.random(n):
            if rng.random() < 0.2:
                yield self.tie
            yield self.first if u < ratio / (1 + ratio) else self.second

    def test_a_hazard_ratio_of_two_is_found_in_185_discordant_triples_at_p90(self):
        """250 streams; false alarm at most 1e-6."""
        rng = np.random.default_rng(1)
        found = 0
        for _ in range(250):
            discordant = (item for item in self.forks(rng, 2.0, 185) if item is not self.tie)
            found += when(self.gate, discordant, self.alpha) is not None
        assert found >= fewest(250, 0.9)

    def test_equal_hazards_under_a_drifting_load_stay_quiet(self):
        """150 streams x 300 triples at α .05; false alarm at most 1e-6."""
        rng, wrong = np.random.default_rng(2), 0
        kinds = {-1: self.first, 0: self.tie, 1: self.second}
        for _ in range(150):
            hazard = 0.02 * np.exp(0.7 * level(rng, 300))
            candidate, control = rng.geometric(np.minimum(hazard, 1), size=(2, 300))
            order = np.sign(np.minimum(candidate, 64) - np.minimum(control, 64))
            items = [kinds[int(x)] for x in order]
            wrong += when(self.gate, items, Alpha(rollback=0.05, promotion=0.05)) is not None
        assert wrong <= most(150, 0.05)

    def test_a_hazard_ratio_on_the_promotion_margin_is_rarely_promoted(self):
        """150 streams x 300 triples at α .05; false alarm at most 1e-6."""
        rng, wrong = np.random.default_rng(3), 0
        gate = ForkHazard(ratio=1.5)
        for _ in range(150):
            items = self.forks(rng, 1.5, 300)
            wrong += when(gate, items, Alpha(rollback=1e-9, promotion=0.05), Answer.PASS) is not None
        assert wrong <= most(150, 0.05)


class TestLogitError:
    gate = LogitError()
    tokens = 16

    def noisy(self, rng: np.random.Generator, noise: float, hour: float = 1.0) -> Comparison:
        """Candidate and control err at every step, the candidate ``noise`` times as much."""
        scale = 0.05 * hour * np.exp(0.5 * rng.standard_normal())
        sides = []
        for factor in (noise, 1.0):
            drawn = np.abs(rng.standard_normal(self.tokens)) * scale * factor
            errors = (np.rint(256 * drawn) / 256).tolist()
            sides.append(tuple(moved(one, error) for one, error in zip(BASE, errors, strict=True)))
        return triple(candidate=sides[0], control=sides[1], baseline=BASE)

    def test_half_again_the_noise_is_found_and_equal_noise_is_not(self):
        """30 streams of 120 requests of 16 tokens, found by at least nine in ten at α .01; 60 equal streams
        of 60 requests at α .05 (the gate's share, of which the sign has half). False alarm at most 2e-6."""
        rng = np.random.default_rng(4)
        found = sum(
            when(self.gate, (self.noisy(rng, 1.5) for _ in range(120)), Alpha(rollback=0.01, promotion=0.05))
            is not None
            for _ in range(30)
        )
        assert found >= fewest(30, 0.9)
        wrong = sum(
            when(self.gate, (self.noisy(rng, 1.0) for _ in range(60)), Alpha(rollback=0.05, promotion=0.05))
            is not None
            for _ in range(60)
        )
        assert wrong <= most(60, 0.05)

    def test_errors_that_drift_over_hours_blame_no_equal_candidate(self):
        """40 equal streams of 100 floor requests and 200 more in a louder hour, exceedance alone; α .05,
        false alarm 1e-6. Held to a share of requests without the control, nearly all would fail."""
        gate, rng = LogitError(margin=None), np.random.default_rng(5)
        quiet = [self.noisy(rng, 1.0) for _ in range(100)]
        loud = [self.noisy(rng, 1.0, 4.0) for _ in range(200)]
        wrong = over = 0
        for _ in range(40):
            items = [quiet[i] for i in rng.integers(0, len(quiet), size=100)]
            items += [loud[i] for i in rng.integers(0, len(loud), size=200)]
            wrong += when(gate, items, Alpha(rollback=0.05, promotion=1e-9)) is not None
            state = gate.initial()
            for item in items:
                state = gate.fold(state, item)
            over += state.candidate_over
        assert over > 0.2 * 40 * 200  # over an early ceiling twice as often as tolerated, as the control is
        assert wrong <= most(40, 0.05)

    def test_more_requests_over_the_ceiling_than_the_controls_are_found(self):
        """20 streams of 100 floor requests and 100 of three times the noise, α .01, at least nine in ten;
        false alarm at most 1e-6."""
        gate, rng = LogitError(margin=None), np.random.default_rng(15)
        found = 0
        for _ in range(20):
            items = [self.noisy(rng, 1.0) for _ in range(100)] + [self.noisy(rng, 4.0) for _ in range(100)]
            found += when(gate, items, Alpha(rollback=0.01, promotion=1e-9)) is not None
        assert found >= fewest(20, 0.9)


BASE = steps_of(16)


def moved(one: Step, error_nats: float) -> Step:
    """With its second choice further down."""
    first, second, *rest = one.top_logprobs
    return msgspec.structs.replace(one, top_logprobs=(first, second - error_nats, *rest))


class TestDistributionShift:
    gate = DistributionShift()
    shift = steps_of(8, fork_at=2, error_nats=3.0, gap_nats=1.5)

    def kinds(self) -> dict[tuple[bool, bool], Comparison]:
        # a band for each kind, so that the control's own shifts widen nobody else's floor
        return {
            (mine, other): triple(
                f"k{mine}{other}",
                candidate=self.shift if mine else None,
                control=self.shift if other else None,
            )
            for mine in (False, True)
            for other in (False, True)
        }

    def items(self, rng: np.random.Generator, mine: float, other: float, n: int) -> Iterable[Comparison]:
        kinds = self.kinds()
        for u, v in rng.random((n, 2)):
            yield kinds[u < mine, v < other]

    def test_shifts_that_both_arms_show_alike_stay_quiet_and_a_tenth_more_is_found(self):
        """100 equal streams x 150 at α .05, 3 % shifts on either arm; 40 streams x 300 with shifts in 15 % of
        the candidate's answers alone, α .01. False alarm at most 2e-6."""
        rng = np.random.default_rng(6)
        wrong = sum(
            when(self.gate, self.items(rng, 0.03, 0.03, 150), Alpha(rollback=0.05, promotion=0.05))
            is not None
            for _ in range(100)
        )
        assert wrong <= most(100, 0.05)
        found = sum(
            when(self.gate, self.items(rng, 0.15, 0.0, 300), Alpha(rollback=0.01, promotion=0.05)) is not None
            for _ in range(40)
        )
        assert found >= fewest(40, 0.9)


def blocks_of(
    rng: np.random.Generator, n: int, each: int, baseline: np.ndarray, candidate: np.ndarray
) -> Iterable[tuple[int, bool, bool]]:
    """(block, canary, hit) of ``each`` requests an arm and block, an outage of either arm now and then."""
    for number in range(n):
        outage = rng.random() < 0.05
        side = rng.random() < 0.5
        for canary, chance in ((False, baseline[number]), (True, candidate[number])):
            hit = rng.random(each) < (0.9 if outage and canary == side else chance)
            for one in hit:
                yield number, canary, bool(one)


class TestBlocks:
    """One bet a block, with outages that hit one arm's whole block."""

    def chances(self, rng: np.random.Generator, n: int, centre: float) -> np.ndarray:
        return np.asarray(1 / (1 + np.exp(-(centre + 0.8 * level(rng, n)))))

    def errors(self, rng: np.random.Generator, n: int, more: float) -> Iterable[LiveRecord]:
        chance = self.chances(rng, n, -4.0)
        for number, canary, bad in blocks_of(rng, n, 8, chance, np.minimum(chance + more, 1)):
            yield live(canary=canary, status=500 if bad else 200, started_unix_s=T0 + 60.0 * number)

    def slow(self, rng: np.random.Generator, n: int, more: float) -> Iterable[LiveRecord]:
        chance = self.chances(rng, n, -3.0)
        for number, canary, over in blocks_of(rng, n, 8, chance, np.minimum(chance + more, 1)):
            yield live(canary=canary, first_byte_s=2.0 if over else 0.5, started_unix_s=T0 + 60.0 * number)

    def test_errors_in_bursts_on_either_arm_stay_quiet(self):
        """80 equal streams x 100 blocks at α .05; false alarm at most 1e-6."""
        gate, rng = ErrorRate(source="live", margin=0.0, promotion_margin=0.05), np.random.default_rng(7)
        alpha = Alpha(rollback=0.05, promotion=0.05)
        wrong = sum(when(gate, self.errors(rng, 100, 0.0), alpha) is not None for _ in range(80))
        assert wrong <= most(80, 0.05)

    def test_slow_minutes_on_either_arm_stay_quiet(self):
        """80 equal streams x 100 blocks at α .05; false alarm at most 1e-6."""
        gate = Ttft(margin=0.0, promotion_margin=0.05, threshold_s=1.0)
        rng, alpha = np.random.default_rng(8), Alpha(rollback=0.05, promotion=0.05)
        wrong = sum(when(gate, self.slow(rng, 100, 0.0), alpha) is not None for _ in range(80))
        assert wrong <= most(80, 0.05)

    def test_a_fifth_more_failures_or_slow_answers_are_found_within_two_hours_of_minutes(self):
        """Power: 20 streams x 120 blocks each, α .01, at least nine in ten; false alarm at most 2e-6."""
        rng, alpha = np.random.default_rng(9), Alpha(rollback=0.01, promotion=0.05)
        for gate, items in (
            (ErrorRate(source="live", margin=0.02), self.errors),
            (Ttft(margin=0.02, threshold_s=1.0), self.slow),
        ):
            found = sum(when(gate, items(rng, 120, 0.25), alpha) is not None for _ in range(20))
            assert found >= fewest(20, 0.9)

    def test_equal_throughput_stays_quiet_and_a_quarter_less_is_found(self):
        """80 equal streams x 100 blocks at α .05 with no loss tolerated to speak of; 20 streams at three
        quarters of the rate, α .01, a tenth tolerated. False alarm at most 2e-6."""
        rng = np.random.default_rng(10)

        def rates(n: int, ratio: float) -> Iterable[Comparison]:
            load = np.exp(0.3 * level(rng, n))
            for number in range(n):
                made = pair()
                arms = []
                for exchange, factor in ((made.left, 1.0), (made.right, ratio)):
                    rate = 50.0 * factor / load[number] * np.exp(0.1 * rng.standard_normal())
                    timing = msgspec.structs.replace(exchange.timing, tokens=100, total_s=float(100 / rate))
                    arms.append(msgspec.structs.replace(exchange, timing=timing))
                made = msgspec.structs.replace(made, left=arms[0], right=arms[1])
                yield comparison(made, timing=True, unix_s=T0 + 60.0 * number)

        strict, usual = Throughput(maximum_loss=1e-6), Throughput()
        wrong = sum(
            when(strict, rates(100, 1.0), Alpha(rollback=0.05, promotion=0.05)) is not None for _ in range(80)
        )
        assert wrong <= most(80, 0.05)
        found = sum(
            when(usual, rates(80, 0.75), Alpha(rollback=0.01, promotion=0.05)) is not None for _ in range(20)
        )
        assert found >= fewest(20, 0.9)


def test_true_shares_of_copies_are_rarely_held_and_a_lost_fifth_is():
    """60 streams x 300 at α .05 (half of a share of .1); 20 streams x 1,500 with a fifth of the copies lost.
    False alarm at most 2e-6."""
    rng = np.random.default_rng(11)
    gate = SampleRatio(expected_percent=50.0)
    copied, left = (msgspec.structs.replace(live(), sampled=sampled) for sampled in (True, False))

    def items(share: float, n: int) -> Iterable[LiveRecord]:
        return (copied if u < share else left for u in rng.random(n))

    wrong = sum(
        when(gate, items(0.5, 300), Alpha(rollback=0.1, promotion=0.05)) is not None for _ in range(60)
    )
    assert wrong <= most(60, 0.05)
    found = sum(
        when(gate, items(0.4, 1_500), Alpha(rollback=0.01, promotion=0.05)) is not None for _ in range(20)
    )
    assert found >= fewest(20, 0.9)
