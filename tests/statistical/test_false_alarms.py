"""Seeded simulations of what is promised about errors.

Each test states its own false-alarm bound: the chance that it fails although the promise holds, over all
seeds, is at most ``CHANCE`` (a binomial tail). The seeds are fixed, so that a run repeats.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bench.sampling import data, ours
from bench.statistics import draws, false_alarms, streams
from bench.statistics.findings import at_most
from comparator.sequential import (
    Counts,
    Detector,
    DetectorState,
    PartingState,
    PartingTest,
    PositionsTest,
    SampleRatioTest,
    mean_interval,
    rejects,
    rollback,
)

CHANCE = 1e-6


def most(trials: int, alpha: float) -> int:
    """Events that ``trials`` of probability at most α exceed with chance at most CHANCE."""
    return int(stats.binom.isf(CHANCE, trials, alpha))


def batches(batch, seed: int, count: int, n: int) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in np.random.SeedSequence(seed).spawn(count):
        for name, events in batch(part, n).items():
            total[name] = total.get(name, 0) + events
    return total


def test_equal_streams_under_one_drifting_load_are_rarely_rolled_back():
    """1,000 streams x 2,000, eight rates: false alarm at most 8 x 1e-6."""
    found = batches(false_alarms.rollback_batch, 1, 4, 2_000)
    peeked = found.pop("peeked z")
    allowed = most(1_000, false_alarms.ALPHA)
    assert {name: events for name, events in found.items() if events > allowed} == {}
    assert sum(found.values()) > 0  # the walks do reach their bars
    assert not at_most(
        peeked, 1_000, false_alarms.ALPHA
    )  # and a test that may not be peeked at is seen to fail


def test_candidates_exactly_on_the_margin_are_rarely_promoted():
    """1,000 streams x 2,000, three rates: false alarm at most 3 x 1e-6."""
    found = batches(false_alarms.promotion_batch, 2, 4, 2_000)
    assert max(found.values()) <= most(1_000, false_alarms.ALPHA)
    assert sum(found.values()) > 0


def test_quantile_intervals_hold_their_quantile_under_a_drifting_spread():
    """1,000 streams x 1,000, two quantiles: false alarm at most 2 x 1e-6."""
    found = batches(false_alarms.quantile_batch, 3, 4, 1_000)
    assert max(found.values()) <= most(1_000, false_alarms.ALPHA)
    assert sum(found.values()) > 0


def test_a_mean_interval_holds_a_mean_that_a_drifting_variance_surrounds():
    """60 streams, looks at 8 of 2,000 observations: false alarm at most 1e-6."""
    rng, alpha, mean, missed = np.random.default_rng(4), 0.2, -0.05, 0
    looks = np.unique(np.geomspace(5, 2_000, 8).astype(int))
    for _ in range(60):
        spread = 0.1 + 0.8 * (np.sin(np.arange(2_000) / rng.uniform(50, 400)) > 0)
        jumps = rng.random(2_000) < 0.5
        values = np.where(jumps, mean + spread, mean - spread)  # mean -0.05 at every step, given the past
        missed += any(
            not interval.low <= mean <= interval.high
            for interval in (mean_interval(Counts.of(values[:n].tolist()), alpha) for n in looks)
        )
    assert missed <= most(60, alpha)


def test_true_sample_shares_are_rarely_rejected():
    """300 streams x 1,000, looks at 40: false alarm at most 1e-6."""
    rng, test = np.random.default_rng(5), SampleRatioTest(shares=(0.8, 0.15, 0.05), concentration=100.0)
    looks = np.unique(np.geomspace(1, 1_000, 40).astype(int)) - 1
    wrong = 0
    for _ in range(300):
        draws = rng.choice(3, size=1_000, p=test.shares)
        paths = np.stack([np.cumsum(draws == category) for category in range(3)], axis=1)[looks]
        state = test.initial()
        wrong += any(rejects(test.log_e(type(state)(counts=tuple(map(int, row)))), 0.1) for row in paths)
    assert wrong <= most(300, 0.1)


@pytest.mark.parametrize("window", [150])
def test_the_detector_keeps_its_average_run_length_and_its_window(window: int):
    """200 equal streams of a window at α = .25: false alarm at most 1e-6."""
    rng = np.random.default_rng(6)
    detector = Detector.for_window(rollback(0.0), window, 0.25)
    early, waited = 0, []
    for _ in range(200):
        state = DetectorState()
        for value in rng.choice([-1.0, 0.0, 1.0], p=[0.15, 0.7, 0.15], size=window).tolist():
            state = detector.step(state, value)
            if detector.alarms(state):
                early += 1
                break
        waited.append(state.n)
    assert early <= most(200, 0.25)
    assert math.fsum(waited) / len(waited) > window / 2


def test_a_fault_after_the_change_is_found_within_a_fraction_of_the_run_length():
    """Power, not a bound: 30 streams with 10 % more failures after a quiet past of 300."""
    rng = np.random.default_rng(7)
    detector = Detector.for_window(rollback(0.005), 2_000, 0.01)
    delays = []
    for _ in range(30):
        state = DetectorState()
        for value in rng.choice([-1.0, 0.0, 1.0], p=[0.02, 0.96, 0.02], size=300).tolist():
            state = detector.step(state, value)
        delay = 0
        while not detector.alarms(state) and delay < 2_000:
            state = detector.step(state, float(rng.choice([-1.0, 0.0, 1.0], p=[0.12, 0.86, 0.02])))
            delay += 1
        delays.append(delay)
    assert float(np.median(delays)) < 400  # of a run length of 200,000


def test_equal_arms_are_told_apart_by_their_answers_no_more_often_than_alpha():
    """750 streams of 150 comparisons, of which half the replicates share a seed; bound: CHANCE."""
    events = batches(false_alarms.sampling_batch, 31, 3, 150)
    assert events["sampling MMD"] <= most(750, false_alarms.ALPHA)


def test_equal_arms_move_no_position_more_often_than_alpha():
    """200 streams of 60 comparisons, four positions together; bound: CHANCE."""
    rng, test, rows = np.random.default_rng(32), PositionsTest(positions=4, buckets=16), 200
    equal = draws.Draws(rng, streams.level_of(rng, rows, 60))
    states = [test.initial()] * rows
    for n in range(60):
        tokens = equal.at(n).tolist()
        states = [test.step(state, *said) for state, said in zip(states, tokens, strict=True)]
    assert sum(bool(test.moved(state, 0.05)) for state in states) <= most(rows, 0.05)


def test_the_next_tokens_total_variation_is_bounded_at_every_look():
    """400 streams of 80 comparisons, two answers each of up to 24 tokens that part at every token with
    probability .04, all together or each by itself; bound: CHANCE."""
    rng, test, wrong = np.random.default_rng(33), PartingTest(limit=0.1), 0
    for stream in range(400):
        state, ever = PartingState(), False
        for n in range(80):
            part_at = rng.geometric(0.04, size=2) if stream % 2 else np.repeat(rng.geometric(0.04), 2)
            length = rng.integers(1, 25)
            together = np.minimum(part_at, length)
            state = test.step(state, together.tolist(), (part_at <= length).tolist())
            ever |= n % 5 == 4 and test.bound(state, 0.05) < 0.04
        wrong += ever
    assert wrong <= most(400, 0.05)
    assert test.bound(state, 0.05) < 0.08


def test_real_answers_of_one_environment_are_not_told_apart():
    """40 streams of 60 comparisons of a real model's answers, dealt out to two arms; bound: CHANCE."""
    _, answers = data.read()
    stops = ours.mmd_stops((answers["baseline"], answers["again"], False, True, 34, 40, 0.05))
    assert sum(stop is not None for stop in stops) <= most(40, 0.05)
