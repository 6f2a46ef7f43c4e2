"""How often the peers find a change, at every number of comparisons that they may be given."""

from __future__ import annotations

import numpy as np

from bench.sampling import fixed
from bench.sampling.data import Answers
from bench.sampling.resample import Pool

ALPHA = 0.05
GRID = (5, 10, 14, 20, 28, 40, 57, 80, 113, 160, 226, 320)
"""Comparisons that the fixed-n tests may be given."""
PERMUTATIONS = 200
PEEKED = 0
"""Stands for "at any n of the grid" among the n."""


def fixed_powers(
    job: tuple[Answers, Answers, bool, bool, int, int],
) -> dict[str, dict[int, float]]:
    """Share of resamples in which each fixed-n test rejects, by n."""
    first, second, coupled, equal, seed, resamples = job
    pool = Pool(first, second)
    kernel = fixed.Kernel(pool)
    found: dict[str, dict[int, float]] = {"equality": {}, "paired": {}}
    peeked = {"equality": 0.0, "paired": 0.0}
    grid = [n for n in GRID if n <= pool.most]
    for number in range(resamples):
        rng = np.random.default_rng((seed, number))
        order, picks = pool.stream(rng, coupled=coupled, equal=equal)
        products = fixed.gram(kernel, order, picks)
        ever = {"equality": False, "paired": False}
        for n in grid:
            p = {"paired": fixed.paired_test(products[:n, :n], PERMUTATIONS, rng)}
            if not coupled:  # the published test takes samples to be independent
                p["equality"], _ = fixed.equality_test(kernel, order[:n], picks[:n], PERMUTATIONS, rng)
            for test, value in p.items():
                found[test][n] = found[test].get(n, 0.0) + (value <= ALPHA) / resamples
                ever[test] |= value <= ALPHA
        for test, rejected in ever.items():
            peeked[test] += rejected / resamples
    for test, share in peeked.items():
        if found[test]:
            found[test][PEEKED] = share
    return found
