"""Many e-processes at once: one row a stream, a look after every observation.

A walk keeps Σ log factors for each bet of a mixture. log E = log Σ_k w_k e^(sum_k) costs an exponential a
bet, so it is worked out only in the rows where it can reach the bar: log E ≤ max_k(log w_k + sum_k) + log K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from comparator.sequential import BernoulliTest, Counts, MeanTest, Tally

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.uint8]

TILE = 256
"""Observations worked on at a time; small, so that a tile stays in the cache."""


class WalkError(Exception):
    """A walk and the core disagree: the simulation would say nothing about the product."""


class Walk:
    """One test over many streams.

    Args:
        factors: (bets, values), the log factor of each bet for each possible observation, coded 0, 1, ...
        weights: (bets,), of the mixture.
        rows: streams.
        bar: log E at which a stream is done.

    ``first`` is the observation (from 1) at which a stream reached the bar, 0 if it has not.
    """

    def __init__(self, factors: Floats, weights: Sequence[float], rows: int, bar: float) -> None:
        self.factors = factors
        self.log_weights = np.log(np.asarray(weights))
        self.bar = bar
        self.sums = np.zeros((len(weights), rows))
        self.first = np.zeros(rows, dtype=np.int64)
        self.seen = 0

    @property
    def crossed(self) -> npt.NDArray[np.bool_]:
        return self.first > 0

    def feed(self, codes: Codes) -> None:
        """More observations: (streams, n) codes."""
        for start in range(0, codes.shape[1], TILE):
            self._tile(codes[:, start : start + TILE])

    def _tile(self, codes: Codes) -> None:
        values = self.factors.shape[1]
        size = codes.shape[1]
        steps = np.arange(1, size + 1, dtype=np.float64)
        # the commonest code is the one that needs no counting of its own
        common = int(np.bincount(codes.ravel(), minlength=values).argmax()) if values <= 4 else 0
        if values <= 4:
            others = [code for code in range(values) if code != common]
            counted = [np.cumsum(codes == code, axis=1, dtype=np.float64) for code in others]
        paths = []
        for bet, row in enumerate(self.factors):
            if values <= 4:
                path = row[common] * steps + self.sums[bet][:, None]
                for code, count in zip(others, counted, strict=True):
                    path += (row[code] - row[common]) * count
            else:
                path = np.cumsum(row[codes], axis=1)
                path += self.sums[bet][:, None]
            paths.append(path)
        self._look(paths)
        for bet, path in enumerate(paths):
            self.sums[bet] = path[:, -1]
        self.seen += size

    def _look(self, paths: list[Floats]) -> None:
        top = paths[0] + self.log_weights[0]
        for path, log_weight in zip(paths[1:], self.log_weights[1:], strict=True):
            np.maximum(top, path + log_weight, out=top)
        near = (top.max(axis=1) + math.log(len(paths)) >= self.bar) & ~self.crossed
        for row in np.flatnonzero(near):
            terms = np.stack([path[row] for path in paths]) + self.log_weights[:, None]
            highest = terms.max(axis=0)
            log_e = highest + np.log(np.exp(terms - highest).sum(axis=0))
            over = np.flatnonzero(log_e >= self.bar)
            if over.size:
                self.first[row] = self.seen + over[0] + 1

    def keep(self, rows: npt.NDArray[np.bool_]) -> None:
        """Go on with these streams only."""
        self.sums = self.sums[:, rows]
        self.first = self.first[rows]


def walk_mean(test: MeanTest, values: Sequence[float], rows: int, alpha: float) -> Walk:
    """A walk of a mean test whose observations are coded by their place in ``values``."""
    factors = np.array([test.log_factors(value) for value in values]).T
    return Walk(factors, test.bets.weights, rows, -math.log(alpha))


def walk_bernoulli(test: BernoulliTest, rows: int, alpha: float) -> Walk:
    """Codes: 0 it did not happen, 1 it did, 2 a tie."""
    q = np.array(test.alternatives.points)
    zero, one = np.log((1 - q) / (1 - test.p0)), np.log(q / test.p0)
    factors = np.stack([zero, one, np.zeros_like(q)], axis=1)
    return Walk(factors, test.alternatives.weights, rows, -math.log(alpha))


def check_against_core(
    test: MeanTest | BernoulliTest,
    codes: Codes,
    first: npt.NDArray[np.int64],
    bar: float,
    values: Sequence[float] = (),
    most: int = 20,
) -> None:
    """Ask the core at the counts where some walks reached the bar, and one observation before.

    Raises:
        WalkError: it says otherwise (by more than rounding).
    """
    for row in np.flatnonzero(first > 0)[:most]:
        end = int(first[row])
        for n, reached in ((end, True), (end - 1, False)):
            counts = np.bincount(codes[row, :n], minlength=3).tolist()
            if isinstance(test, MeanTest):
                kept = sorted((value, count) for value, count in zip(values, counts, strict=False) if count)
                state = Counts(values=tuple(v for v, _ in kept), counts=tuple(c for _, c in kept))
                log_e = test.log_e(state)
            else:
                log_e = test.log_e(Tally(zeros=counts[0], ones=counts[1], ties=counts[2]))
            if (log_e >= bar) != reached and abs(log_e - bar) > 1e-9:
                raise WalkError(f"stream {row} at n = {n}: the core says {log_e}, the walk's bar is {bar}")
