"""How many comparisons the sequential tests take: the very tests that the gates run, stopped at their bar."""

from __future__ import annotations

import numpy as np

from bench.sampling.data import Answers
from bench.sampling.resample import REPLICATES, Pool
from comparator.sequential import (
    Counts,
    MmdTest,
    PartingState,
    PartingTest,
    rollback,
    run_together,
    threshold_nats,
)

Job = tuple[Answers, Answers, bool, bool, int, int, float]
"""First and second arm, coupled, equal, seed of the first stream, streams, alpha."""


def mmd_stops(job: Job) -> list[int | None]:
    """Comparisons to a rejection of each stream; None where there is none."""
    first, second, coupled, equal, seed, streams, alpha = job
    pool, test, bar = Pool(first, second), MmdTest(), threshold_nats(alpha)
    found: list[int | None] = []
    for number in range(streams):
        order, picks = pool.stream(np.random.default_rng((seed, number)), coupled=coupled, equal=equal)
        state, stop = test.initial(), None
        for n, prompt in enumerate(order.tolist(), 1):
            state = test.step(state, *pool.arms(prompt, picks[n - 1]))
            if state.highest_nats >= bar:
                stop = n
                break
        found.append(stop)
    return found


def mismatch_stops(
    baseline: Answers, candidate: Answers, control: Answers, seed: int, streams: int, alpha: float
) -> list[int | None]:
    """Comparisons until "the candidate's same-seed answers differ no more often than the control's" falls.

    D = the control's share of mismatches minus the candidate's, one a comparison, through the core at margin
    0: fair where candidate and control are exchangeable given the baseline.
    """
    pool, aside = Pool(baseline, candidate), Pool(baseline, control)
    test, bar = rollback(0.0), threshold_nats(alpha)
    found: list[int | None] = []
    for number in range(streams):
        order, picks = pool.stream(np.random.default_rng((seed, number)), coupled=True, equal=False)
        counts, stop = Counts(), None
        for n, prompt in enumerate(order.tolist(), 1):
            shares = [_mismatch(*one.arms(prompt, picks[n - 1])) for one in (aside, pool)]
            counts = counts.add(shares[0] - shares[1])
            if test.log_e(counts) >= bar:
                stop = n
                break
        found.append(stop)
    return found


def bounds(baseline: Answers, candidate: Answers, seed: int, streams: int, alpha: float) -> list[float]:
    """The upper bound on the next token's total variation at the end of each stream."""
    pool, test = Pool(baseline, candidate), PartingTest(limit=0.05)
    found = []
    for number in range(streams):
        order, picks = pool.stream(np.random.default_rng((seed, number)), coupled=True, equal=False)
        state = PartingState()
        for n, prompt in enumerate(order.tolist()):
            ends = [run_together(*both) for both in zip(*pool.arms(prompt, picks[n]), strict=True)]
            state = test.step(state, [together for together, _ in ends], [parted for _, parted in ends])
        found.append(test.bound(state, alpha))
    return found


def _mismatch(first: list[tuple[int, ...]], second: list[tuple[int, ...]]) -> float:
    return sum(a != b for a, b in zip(first, second, strict=True)) / REPLICATES
