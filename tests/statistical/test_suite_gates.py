"""Seeded simulations of what gates about a frozen suite promise about their errors.

Each simulation states its own false-alarm bound: the chance that it fails although the promise holds is at
most ``CHANCE`` for each rate that it checks (a binomial tail). The seeds are fixed, so that a run repeats.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from policies.gates import Accuracy, Length, Refusal
from policies.gates.accuracy import AccuracyState
from policies.gates.base import Alpha
from policies.gates.length import LengthState
from policies.gates.passes import Passes, Values
from policies.gates.predicted import History
from policies.gates.progress import Progress
from policies.gates.refusal import RefusalState
from policies.gates.repeated import Difference, difference_of
from policies.verdict import Answer, Verdict

CHANCE = 1e-6
M = 5
Numbers = NDArray[np.float64]


def most(trials: int, alpha: float) -> int:
    """Events that ``trials`` of probability at most α exceed with chance at most CHANCE."""
    return int(stats.binom.isf(CHANCE, trials, alpha))


def rows(candidate: Numbers, baseline: Numbers) -> list[list[Values]]:
    """Passes of (candidate, baseline) by sample, from two arrays of samples x passes."""
    return [
        list(zip(mine, base, strict=True))
        for mine, base in zip(candidate.tolist(), baseline.tolist(), strict=True)
    ]


def passes_of(candidate: Numbers, baseline: Numbers) -> Passes:
    """A complete suite of these numbers."""
    values = {f"s{i:05}": dict(enumerate(row)) for i, row in enumerate(rows(candidate, baseline))}
    n, m = candidate.shape
    progress = Progress(
        stage="shadow",
        digest="sha256:1",
        samples=n,
        passes=m,
        seen=dict.fromkeys(values, (1 << m) - 1),
        count=n * m,
    )
    return Passes(progress=progress, values=values)


# --- the interval for a set's own mean difference


@functools.cache
def flipped() -> list[Difference]:
    """400 samples, of which 0, 1, 2... flipped against the candidate in one pass."""
    one = [(0.0, 1.0)] + [(1.0, 1.0)] * (M - 1)
    return [difference_of([one] * k + [[(1.0, 1.0)] * M] * (400 - k)) for k in range(400)]


@pytest.mark.parametrize("alpha", [0.05, 0.01, 1e-3, 1e-4, 1e-6])
def test_rare_flips_of_one_direction_are_covered_at_every_rate_exactly(alpha: float):
    """No simulation: X flips in as many samples, X Poisson (the limit of many samples that hardly flip).

    The bound misses when the true count K is over its own; that probability is summed, for K up to 200.
    """
    bounds = np.array([-found.at_least(alpha) * 400 * M for found in flipped()])
    counts = np.arange(len(bounds))
    for true in np.geomspace(0.05, 200.0, 60):
        missed = stats.poisson.pmf(counts, true)[bounds < true].sum()
        assert missed <= alpha


@pytest.mark.parametrize(
    ("candidate", "baseline"),
    [
        ([0.5] * 60, [0.5] * 60),  # every sample a coin on both arms
        ([0.95] * 60, [1.0] * 60),  # all flip a little, one way
        ([0.2] * 6 + [1.0] * 54, [0.8] * 6 + [1.0] * 54),  # few flip much
        ([0.97] * 30 + [0.0] * 30, [0.97] * 30 + [0.03] * 30),  # both ways at once
        (np.linspace(0.0, 1.0, 60).tolist(), np.linspace(0.02, 0.98, 60).tolist()),  # all kinds
    ],
)
@pytest.mark.parametrize("shared", [False, True])
def test_bounds_hold_the_sets_own_difference(candidate: list[float], baseline: list[float], shared: bool):
    """1,000 suites of 60 samples x 5 passes, both sides at α = .05: false alarm at most 2 x 1e-6.

    ``shared``: the arms of a pass draw the same number, as they share a seed.
    """
    rng, alpha, trials = np.random.default_rng(11), 0.05, 1_000
    mine, base = np.array(candidate)[:, None], np.array(baseline)[:, None]
    truth, high, low = float((mine - base).mean()), 0, 0
    for _ in range(trials):
        draw = rng.random((60, M))
        other = draw if shared else rng.random((60, M))
        found = difference_of(rows((draw < mine).astype(float), (other < base).astype(float)))
        high += found.at_most(alpha) < truth
        low += found.at_least(alpha) > truth
    assert max(high, low) <= most(trials, alpha)


def test_a_candidate_on_the_margin_is_rarely_passed_or_failed():
    """1,000 suites of 100 x 5 at a true drop of exactly the margin: false alarm at most 2 x 1e-6."""
    rng, trials, gate = np.random.default_rng(12), 1_000, Accuracy(margin=0.05)
    alpha = Alpha(rollback=0.05, promotion=0.05)
    said = dict.fromkeys(Answer, 0)
    for _ in range(trials):
        mine = (rng.random((100, M)) < 0.85).astype(float)
        base = (rng.random((100, M)) < 0.90).astype(float)
        said[gate.verdict(AccuracyState(passes=passes_of(mine, base)), alpha).answer] += 1
    assert said[Answer.ERROR] == 0
    assert max(said[Answer.PASS], said[Answer.FAIL]) <= most(trials, 0.05)


def test_a_drop_of_two_points_is_found_and_equal_arms_pass_at_the_usual_size():
    """Power, not a bound: 1,000 samples x 5, 2 % of answers flip from run to run, α = .005 to roll back."""
    rng, gate, alpha = np.random.default_rng(13), Accuracy(), Alpha(rollback=0.005, promotion=0.05)
    worse, equal = [], []
    right = np.arange(1_000)[:, None] < 700
    for _ in range(20):
        base = np.where(rng.random((1_000, M)) < 0.02, ~right, right).astype(float)
        same = np.where(rng.random((1_000, M)) < 0.02, ~right, right).astype(float)
        lost = np.where(np.arange(1_000)[:, None] < 20, 0.0, same)
        worse.append(gate.verdict(AccuracyState(passes=passes_of(lost, base)), alpha).answer)
        equal.append(gate.verdict(AccuracyState(passes=passes_of(same, base)), alpha).answer)
    assert worse.count(Answer.FAIL) >= 15
    assert Answer.FAIL not in equal
    assert equal.count(Answer.PASS) >= 5


# --- the interval in which a run of the old environment falls


ALPHA = Alpha(rollback=0.005, promotion=0.05)


def length(candidate: Numbers, baseline: Numbers, gate: Length | None = None) -> Verdict:
    return (gate or Length()).verdict(LengthState(passes=passes_of(candidate, baseline)), ALPHA)


def lengths(rng: np.random.Generator, law: str) -> tuple[Numbers, Numbers]:
    """Two equal arms of 100 samples."""
    own = rng.lognormal(4.0, 0.6, (100, 1))
    if law == "greedy, forks harmlessly":  # each arm the same in all its passes, the arms not alike
        other = np.where(rng.random((100, 1)) < 0.4, rng.lognormal(4.0, 0.6, (100, 1)), own)
        again = np.where(rng.random((100, 1)) < 0.4, rng.lognormal(4.0, 0.6, (100, 1)), own)
        return np.rint(np.repeat(other, M, axis=1)), np.rint(np.repeat(again, M, axis=1))
    if law == "fixed samples, noisy runs":
        spread = rng.lognormal(0.0, 0.2, (2, 100, M))
        return np.rint(own * spread[0]), np.rint(own * spread[1])
    if law == "nothing is fixed":
        drawn = rng.lognormal(4.0, 0.6, (2, 100, M))
        return np.rint(drawn[0]), np.rint(drawn[1])
    assert law == "a whole pass shifts"
    shift = rng.normal(1.0, 0.2, (2, 1, M)).clip(0.1)
    return np.rint(own * shift[0]), np.rint(own * shift[1])


@pytest.mark.parametrize(
    "law",
    ["greedy, forks harmlessly", "fixed samples, noisy runs", "nothing is fixed", "a whole pass shifts"],
)
def test_equal_arms_are_rarely_held_and_hardly_ever_rolled_back_for_length(law: str):
    """400 pairs of equal runs, held at most 1 in 20, failed 5 in 1,000: false alarm at most 2 x 1e-6."""
    rng, trials = np.random.default_rng(14), 400
    held, failed, unguarded = 0, 0, 0
    for _ in range(trials):
        verdict = length(*lengths(rng, law))
        held += verdict.hold
        failed += verdict.answer is Answer.FAIL
        assert verdict.rollback_nats is not None
        unguarded += verdict.rollback_nats >= -math.log(ALPHA.rollback)
    assert held <= most(trials, 0.05)
    assert failed <= most(trials, ALPHA.rollback)
    # where a whole pass shifts, the e-value alone is seen to be no proof
    assert (unguarded > 0.1 * trials) is (law == "a whole pass shifts")


def test_a_stated_history_is_left_one_time_in_twenty():
    """1,000 runs of normal means, sd estimated from 8: held 3 % to 7 % (4 deviations either way)."""
    rng, held, trials = np.random.default_rng(15), 0, 1_000
    for _ in range(trials):
        runs = rng.normal(50.0, 1.0, 8)
        gate = Length(history=History(mean=float(runs.mean()), sd=float(runs.std(ddof=1)), runs=8))
        now = np.full((10, M), rng.normal(50.0, 1.0)) + rng.normal(0.0, 1e-6, (10, M))
        held += length(now, now, gate).hold
    assert abs(held / trials - 0.05) < 4.0 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("rate", [0.0, 0.002, 0.02, 0.2])
@pytest.mark.parametrize("fixed", [False, True])
def test_equal_arms_are_rarely_held_for_refusals(rate: float, fixed: bool):
    """300 pairs of equal runs of 250 samples, at each rate: false alarm at most 2 x 1e-6.

    ``fixed``: a sample is refused in all passes of an arm or in none.
    """
    rng, trials, gate = np.random.default_rng(16), 300, Refusal()
    held, failed = 0, 0
    for _ in range(trials):
        arms = (rng.random((2, 250, 1 if fixed else M)) < rate).astype(float)
        mine, base = (np.repeat(arm, M, axis=1) if fixed else arm for arm in arms)
        verdict = gate.verdict(RefusalState(passes=passes_of(mine, base)), ALPHA)
        held += verdict.hold
        failed += verdict.answer is Answer.FAIL
    assert held <= most(trials, 0.05)
    assert failed <= most(trials, ALPHA.rollback)


def test_a_real_change_of_length_or_refusals_is_held_and_a_large_one_rolled_back():
    """Power, not a bound: 1,000 samples, 6 % longer held, 20 % longer or 5 points more refusals failed."""
    rng = np.random.default_rng(17)
    own = rng.lognormal(4.0, 0.5, (1_000, 1)) * rng.lognormal(0.0, 0.05, (1_000, M))
    assert length(np.rint(own * 1.06), np.rint(own)).hold
    assert length(np.rint(own * 1.20), np.rint(own)).answer is Answer.FAIL
    base = np.repeat((np.arange(1_000) < 50).astype(float)[:, None], M, axis=1)
    mine = np.repeat((np.arange(1_000) < 100).astype(float)[:, None], M, axis=1)
    verdict = Refusal().verdict(RefusalState(passes=passes_of(mine, base)), ALPHA)
    assert verdict.answer is Answer.FAIL
