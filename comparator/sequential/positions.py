"""Which position's tokens have moved? A sequential test for each of the first positions of an answer.

Observation and assumption are those of :mod:`comparator.sequential.mmd`: one comparison bets once, and given
the past its arms are exchangeable as wholes. For position t the payoff is its witness alone,

    z_t = Σ over replicates of g_t(baseline) - g_t(candidate),  g_t(answer) = (B - C)/(B + C + κ)

with B and C how often, before this comparison, the arms had a token of the same bucket at t (an answer that
ended by itself has its end there). E_t is the mixture over bets of Π (1 + tanh(c z_t/s)), an e-process of its
own.

Many positions: "some position moved" is rejected at α once E_t ≥ T/α for one of the T positions (Bonferroni:
the positions of one answer depend on each other). The mean of all E_t is an e-process as well, for "none has
moved".

Read the earliest position: tokens after one that has moved follow from it.

State bounded, order-dependent, not mergeable, as there.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import msgspec

from comparator.sequential.answers import Answer, bucket, check_answers
from comparator.sequential.elementary import log, log_sum_exp
from comparator.sequential.errors import SequentialError
from comparator.sequential.levels import threshold_nats
from comparator.sequential.mmd import BETS, FIRST, MOST_COUNT, log_factor, weight_of

_KIND = 4


class PositionsState(msgspec.Struct, frozen=True, kw_only=True):
    """Make the first with :meth:`PositionsTest.initial`."""

    n: int = 0
    counts: bytes = b""
    """B and C by position and bucket: unsigned 32-bit, little-endian, arm by arm."""
    squares: tuple[float, ...] = ()
    nonzero: tuple[int, ...] = ()
    log_wealths: tuple[float, ...] = ()
    """By position, then bet."""
    highest_nats: tuple[float, ...] = ()
    """Largest log E of each position so far."""


class PositionsTest(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects "at no position has the distribution of tokens moved"."""

    positions: int = 16
    """The first positions of an answer, from 0."""
    buckets: int = 64
    """For the tokens of one position, a power of two. A state takes 8 bytes for each."""
    bets: tuple[float, ...] = BETS

    def __post_init__(self) -> None:
        if not 1 <= self.positions <= 256:
            raise SequentialError(f"positions: {self.positions} is outside 1-256")
        if self.buckets < 2 or self.buckets & (self.buckets - 1) or self.buckets > 1 << 12:
            raise SequentialError(f"buckets: {self.buckets} is not a power of two from 2 to 4096")
        if not self.bets or not all(0.0 < bet < math.inf for bet in self.bets):
            raise SequentialError(f"bets: {self.bets}; at least one, each positive and finite")

    def initial(self) -> PositionsState:
        """Before the first comparison."""
        size = 2 * self.positions * self.buckets
        return PositionsState(
            counts=bytes(4 * size),
            squares=(0.0,) * self.positions,
            nonzero=(0,) * self.positions,
            log_wealths=(0.0,) * (self.positions * len(self.bets)),
            highest_nats=(0.0,) * self.positions,
        )

    def step(
        self, state: PositionsState, baseline: Sequence[Answer], candidate: Sequence[Answer]
    ) -> PositionsState:
        """The state after one more comparison. Never mutates ``state``.

        Raises:
            SequentialError: unequal numbers of replicates, or a state of another test.
        """
        check_answers(baseline, candidate)
        size = self.positions * self.buckets
        if len(state.counts) != 8 * size or len(state.log_wealths) != self.positions * len(self.bets):
            raise SequentialError(
                f"state: {len(state.counts)} bytes and {len(state.log_wealths)} bets are not of a test of "
                f"{self.positions} positions with {self.buckets} buckets; start anew with initial()"
            )
        counts = list(struct.unpack(f"<{2 * size}I", state.counts))
        squares, nonzero = list(state.squares), list(state.nonzero)
        wealths, highest = list(state.log_wealths), list(state.highest_nats)
        for position in range(self.positions):
            found = self._at(position, baseline, candidate)
            payoff = math.fsum(
                (first - second) * weight_of(counts[index], counts[size + index])
                for index, (first, second) in found.items()
                if first != second
            )
            for index, (first, second) in found.items():
                counts[index] = min(MOST_COUNT, counts[index] + first)
                counts[size + index] = min(MOST_COUNT, counts[size + index] + second)
            if not payoff:
                continue
            if nonzero[position] >= FIRST:
                scaled = payoff / math.sqrt(squares[position] / nonzero[position])
                start = position * len(self.bets)
                for place, bet in enumerate(self.bets, start):
                    wealths[place] += log_factor(bet * scaled)
                mixed = log_sum_exp(wealths[start : start + len(self.bets)]) - log(float(len(self.bets)))
                highest[position] = max(highest[position], mixed)
            squares[position] += payoff * payoff
            nonzero[position] += 1
        return PositionsState(
            n=state.n + 1,
            counts=struct.pack(f"<{2 * size}I", *counts),
            squares=tuple(squares),
            nonzero=tuple(nonzero),
            log_wealths=tuple(wealths),
            highest_nats=tuple(highest),
        )

    def moved(self, state: PositionsState, alpha: float) -> tuple[int, ...]:
        """Positions whose null is rejected, with an error over all of them of at most α (Bonferroni)."""
        bar = threshold_nats(alpha) + log(float(self.positions))
        return tuple(index for index, nats in enumerate(state.highest_nats) if nats >= bar)

    def corrected_nats(self, state: PositionsState) -> float:
        """Largest log E of any position less log T, nats, not under 0: rejects at log(1/α)."""
        return max(0.0, max(state.highest_nats) - log(float(self.positions)))

    def share_moved(self, state: PositionsState, position: int) -> float:
        """Half the summed differences of bucket shares at a position: what was seen, noise included."""
        size = self.positions * self.buckets
        counts = struct.unpack(f"<{2 * size}I", state.counts)
        start = position * self.buckets
        first = counts[start : start + self.buckets]
        second = counts[size + start : size + start + self.buckets]
        ours, theirs = sum(first), sum(second)
        if not ours or not theirs:
            return 0.0
        return 0.5 * math.fsum(abs(a / ours - b / theirs) for a, b in zip(first, second, strict=True))

    def _at(
        self, position: int, baseline: Sequence[Answer], candidate: Sequence[Answer]
    ) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for arm, answers in enumerate((baseline, candidate)):
            for answer in answers:
                if position < len(answer):
                    index = position * self.buckets + bucket(_KIND, answer[position], position, self.buckets)
                    first, second = found.get(index, (0, 0))
                    found[index] = (first + (arm == 0), second + (arm == 1))
        return found
