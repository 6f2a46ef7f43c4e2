"""Sampled answers of equal arms, and the sequential MMD over many streams of them at once.

A comparison is a prompt of its own: a distribution over a small vocabulary whose temperature follows the
load, :data:`REPLICATES` answers of :data:`TOKENS` tokens an arm. The arms are exchangeable and by no means
alike: in each comparison one of them, by a coin, draws from a distribution of its own (another batch, another
kernel), all its replicates together; and half the replicates share a seed, so that most of their tokens
agree.

The walk does what :meth:`comparator.sequential.mmd.MmdTest.step` does, with the buckets of the core's own
hash, for all streams at once; :func:`check_against_core` asks the core itself.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from bench.statistics.walks import WalkError
from comparator.sequential import MmdTest, threshold_nats
from comparator.sequential.answers import positions_of, words_of
from comparator.sequential.mmd import FIRST, SHRINKAGE

REPLICATES, TOKENS, VOCABULARY = 2, 5, 24
PROMPTS = 64
"""Distributions that prompts are made of."""
WARMEST = 2
"""The load is rounded to this many steps to either side."""

Tokens = npt.NDArray[np.int64]
"""(streams, 2, REPLICATES, TOKENS): one comparison of every stream."""


class Draws:
    """Comparisons of equal arms, one after another, for many streams."""

    def __init__(self, rng: np.random.Generator, level: npt.NDArray[np.float32]) -> None:
        self._rng = rng
        self._warmth = np.clip(np.rint(level) + WARMEST, 0, 2 * WARMEST).astype(np.int64)
        logits = 1.5 * rng.standard_normal((PROMPTS, TOKENS, VOCABULARY))
        other = logits + 0.4 * rng.standard_normal(logits.shape)
        temperature = np.exp(0.3 * (np.arange(2 * WARMEST + 1) - WARMEST))[:, None, None, None, None]
        weights = np.exp(np.stack([logits, other]) / temperature)
        # by load, kind, prompt and position: below which uniform draw a token or an earlier one comes
        self._below = (weights.cumsum(-1) / weights.sum(-1, keepdims=True))[..., :-1].astype(np.float32)

    def at(self, n: int) -> Tokens:
        """The n-th comparison of each stream."""
        rng, rows = self._rng, self._warmth.shape[0]
        prompt = rng.integers(0, PROMPTS, size=rows)
        drawn = rng.random((rows, 2, REPLICATES, TOKENS), dtype=np.float32)
        shared = rng.random((rows, REPLICATES)) < 0.5
        drawn[:, 1] = np.where(shared[..., None], drawn[:, 0], drawn[:, 1])
        moved = (rng.random(rows) < 0.5).astype(np.int64)
        below = np.stack(
            [self._below[self._warmth[:, n], kind, prompt] for kind in (moved, 1 - moved)], axis=1
        )
        steps: np.ndarray = (drawn[..., None] >= below[:, :, None]).sum(axis=-1)
        return steps


class MmdWalk:
    """:class:`MmdTest` over many streams; ``first`` is where log E reached the bar, 0 where it has not."""

    def __init__(self, test: MmdTest, rows: int, alpha: float) -> None:
        buckets = test.buckets
        words = range(VOCABULARY)
        self._places = np.array([list(positions_of([token] * TOKENS, buckets)) for token in words])
        self._tokens = np.array([next(words_of([token], buckets)) for token in words])
        self._openers = np.array([list(words_of([token], buckets))[1] for token in words])
        self._neighbours = np.array(
            [[list(words_of([before, token], buckets))[3] for before in words] for token in words]
        )
        self._counts = np.zeros((2, 2, rows * buckets), dtype=np.int32)  # family, arm
        self._starts = (np.arange(rows) * buckets)[:, None]
        self._squares = np.zeros((rows, 5))
        self._nonzero = np.zeros((rows, 5), dtype=np.int64)
        self._bets = np.array(test.bets)
        self._wealths = np.zeros((rows, 5, len(test.bets)))
        self._against = np.zeros((rows, 3, len(test.bets)))
        """Wealths of the unlearned payoffs' bets the other way."""
        self.bar = threshold_nats(alpha)
        self.first = np.zeros(rows, dtype=np.int64)
        self.n = 0

    def feed(self, tokens: Tokens) -> None:
        """One more comparison of every stream."""
        payoffs = np.empty((len(tokens), 5))
        before = np.concatenate(
            [self._openers[tokens[..., :1]], self._neighbours[tokens[..., 1:], tokens[..., :-1]]], axis=-1
        )
        places = self._places[tokens, np.arange(TOKENS)]
        families = (places, np.concatenate([self._tokens[tokens], before], axis=-1))
        flat = [family.reshape(len(tokens), 2, -1) for family in families]
        for family, indices in enumerate(flat):
            mine = [self._starts + indices[:, arm] for arm in (0, 1)]
            first, second = self._counts[family]
            payoff = np.zeros(len(tokens))
            for places, sign in zip(mine, (1.0, -1.0), strict=True):
                b, c = first[places], second[places]
                payoff += sign * ((b - c) / (b + c + SHRINKAGE)).sum(axis=1)
            # what is the same on both arms cancels exactly in the core, and only nearly in these sums
            payoffs[:, family] = np.where(np.abs(payoff) < 1e-12, 0.0, payoff)
            for places, counts in zip(mine, (first, second), strict=True):
                np.add.at(counts, places, np.int32(1))
        agree = (tokens[:, :, 0] == tokens[:, :, 1]).sum(axis=-1)
        payoffs[:, 2] = agree[:, 0] - agree[:, 1]
        bags = (tokens[..., None] == np.arange(VOCABULARY)).sum(axis=-2)
        common = bags.min(axis=2).sum(axis=-1)
        payoffs[:, 3] = common[:, 0] - common[:, 1]
        payoffs[:, 4] = 0.0  # all answers are as long
        self._bet(payoffs)

    def log_e(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """log E of these streams now."""
        learned = self._wealths[rows, :2].reshape(len(rows), -1)
        halves = [part[rows].reshape(len(rows), -1) for part in (self._wealths[:, 2:], self._against)]
        terms = np.concatenate([learned, *(half - math.log(2.0) for half in halves)], axis=1)
        found: npt.NDArray[np.float64] = np.logaddexp.reduce(terms, axis=1) - math.log(5 * len(self._bets))
        return found

    def _bet(self, payoffs: npt.NDArray[np.float64]) -> None:
        self.n += 1
        bets = (payoffs != 0) & (self._nonzero >= FIRST)
        scale = np.sqrt(self._squares / np.maximum(self._nonzero, 1))
        scaled = np.where(bets, payoffs / np.where(bets, scale, 1.0), 0.0)
        u = scaled[:, :, None] * self._bets
        grown = math.log(2.0) - np.log1p(np.exp(-2.0 * u))  # log(1 + tanh u); of -u it is 2u less
        self._wealths += grown
        self._against += grown[:, 2:] - 2.0 * u[:, 2:]
        most = np.maximum(self._wealths.max(axis=(1, 2)), self._against.max(axis=(1, 2)))
        near = np.flatnonzero((most >= self.bar) & (self.first == 0))
        if near.size:
            self.first[near[self.log_e(near) >= self.bar]] = self.n
        self._squares += payoffs * payoffs
        self._nonzero += payoffs != 0


def check_against_core(test: MmdTest, streams: list[list[Tokens]], walked: npt.NDArray[np.float64]) -> None:
    """Ask the core at the end of a few streams.

    Raises:
        WalkError: it says otherwise (by more than rounding).
    """
    for row, comparisons in enumerate(streams):
        state = test.initial()
        for tokens in comparisons:
            state = test.step(state, tokens[0].tolist(), tokens[1].tolist())
        if abs(test.log_e(state) - walked[row]) > 1e-6:
            raise WalkError(f"stream {row}: the core says {test.log_e(state)}, the walk {walked[row]}")
