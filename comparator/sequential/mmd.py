"""Do two arms draw their answers from one distribution? A sequential kernel two-sample test by betting.

Observation: one comparison, that is, one prompt's answers of the baseline and of the candidate, R replicates
each (:mod:`comparator.sequential.answers`). It bets once, whatever R is.

Assumption (the null): given the past, the two arms' answers to this prompt are exchangeable as wholes: to
swap all the baseline's with all the candidate's is no less likely. Prompts, load and the distributions
themselves may drift from comparison to comparison; replicates may depend on each other; arms that share
seeds may agree as much as they like. An arm that is always asked later, or in another batch size, and is
moved by that, is not exchangeable: a control arm shows it.

Payoffs. From the comparisons *before* this one the test holds integer counts of hashed features, B of the
baseline and C of the candidate. Each payoff z is odd: swapping this comparison's arms turns it to -z.

- *witness* payoffs, one a family of features: z = mean over replicates of g(baseline) - g(candidate) with
  g(answer) = Σ_j φ_j(answer)·(B_j - C_j)/(B_j + C_j + κ). Without the denominator, g is the empirical witness
  of the maximum mean discrepancy between the arms so far, under the kernel in which φ is linear. With it,
  frequent features, whose counts differ most by chance, do not drown the rest (a diagonal whitening; near
  equal arms it is half the log ratio of the counts).
- *likeness* payoffs, in places and in words: how much the baseline's replicates resemble each other minus how
  much the candidate's do. They need no past, and no two prompts that have a word in common.
- *length*: tokens of the baseline minus tokens of the candidate.

Formula. With s the root mean square of the same payoff's past values, and bets c_k,

    E_n = Σ_k w_k Π_i (1 + tanh(c_k z_i/s_i))

over payoffs and bets together; a payoff whose sign is learned from no past is bet on both ways. Given the
past and |z|, z is as often negative as positive, and tanh is odd and within (-1, 1): each factor is positive
and has mean exactly 1, so that E is a nonnegative martingale from 1 and P(E_n ≥ 1/α for any n) ≤ α (Ville).
The factor is 2p, where p = 1/(1 + e^(-2cz/s)) is a logistic guess at which arm is which: tanh is the shape
that a normal z of known size would want, and it needs no bound on z.

A payoff of 0 (arms that agree) neither bets nor enters the scale; the first few of a payoff only set its
scale.

Sources: Shekhar & Ramdas, Nonparametric two-sample testing by betting (IEEE TIT 2024), section 4 (kernel
witness from the past, bets on its payoff); Gretton et al., A kernel two-sample test (JMLR 2012), for witness
and kernel. Why not the unbiased MMD² *within* a prompt, which replicates would allow: its sign is fair only
if each replicate's arms can be swapped alone, and replicates of one arm share a batch and a moment.

The state is bounded and serialisable. It **depends on order and cannot be merged**: what one shard learned
was not the past of the other's bets. Shards' own E may be averaged, with weights fixed beforehand. Replaying
the same comparisons in the same order gives the same bits (integers, IEEE arithmetic,
:mod:`comparator.sequential.elementary`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import msgspec

from comparator.sequential.answers import Answer, check_answers, difference, likeness
from comparator.sequential.elementary import exp, log, log1p, log_sum_exp
from comparator.sequential.errors import SequentialError

SHRINKAGE = 8.0
"""κ: a feature seen fewer times than this says little of either arm."""
FIRST = 4
"""Values of a payoff that only set its scale."""
_LN2 = log(2.0)
MOST_COUNT = (1 << 32) - 1

FAMILIES = (False, True)
"""Of features, by whether they are words: positions first."""
_UNLEARNED = 3
"""Payoffs whose sign no past gives: likeness of either family, and length."""

BETS = (0.1, 0.2, 0.4, 0.8)
"""c: from effects of a tenth of a comparison's noise to effects of its size."""


class MmdState(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered. Make the first with :meth:`MmdTest.initial`."""

    n: int = 0
    """Comparisons seen."""
    bets: int = 0
    """Those in which anything differed between the arms."""
    counts: bytes = b""
    """B and C: unsigned 32-bit, little-endian, arm by arm and family by family; empty before the first."""
    squares: tuple[float, ...] = ()
    """Σ z² of each payoff."""
    nonzero: tuple[int, ...] = ()
    """How many z of each payoff were not 0."""
    log_wealths: tuple[float, ...] = ()
    """log Π of each payoff and bet, nats."""
    highest_nats: float = 0.0
    """Largest log E so far: Ville's inequality is about it."""


class MmdTest(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects "the arms are exchangeable given the past"."""

    buckets: int = 1024
    """Of each family of features, a power of two. A state takes 16 bytes for each."""
    bets: tuple[float, ...] = BETS

    def __post_init__(self) -> None:
        if self.buckets < 2 or self.buckets & (self.buckets - 1) or self.buckets > 1 << 16:
            raise SequentialError(f"buckets: {self.buckets} is not a power of two from 2 to 65536")
        if not self.bets or not all(0.0 < bet < math.inf for bet in self.bets):
            raise SequentialError(f"bets: {self.bets}; at least one, each positive and finite")

    def initial(self) -> MmdState:
        """Before the first comparison."""
        return MmdState()

    def step(self, state: MmdState, baseline: Sequence[Answer], candidate: Sequence[Answer]) -> MmdState:
        """The state after one more comparison, bet on what was known before it. Never mutates ``state``.

        Raises:
            SequentialError: unequal numbers of replicates, or a state of another test.
        """
        check_answers(baseline, candidate)
        size = len(FAMILIES) * self.buckets
        counts = self._unpacked(state, size)
        payoffs: list[float] = []
        for family, words in enumerate(FAMILIES):
            found = difference(baseline, candidate, self.buckets, words=words)
            offset = family * self.buckets
            payoffs.append(_witness(found, counts, offset, size))
            for index, (first, second) in found.items():
                counts[offset + index] = min(MOST_COUNT, counts[offset + index] + first)
                counts[size + offset + index] = min(MOST_COUNT, counts[size + offset + index] + second)
        for words in FAMILIES:
            alike = likeness(baseline, words=words) - likeness(candidate, words=words)
            payoffs.append(float(alike))
        payoffs.append(float(sum(map(len, baseline)) - sum(map(len, candidate))))
        return self._bet(state, payoffs, struct.pack(f"<{2 * size}I", *counts))

    def log_e(self, state: MmdState) -> float:
        """log E now, nats; 0 before the first bet. ``state.highest_nats`` is its largest value so far."""
        if not state.log_wealths:
            return 0.0
        return _log_mean(state.log_wealths, len(self.bets))

    def _unpacked(self, state: MmdState, size: int) -> list[int]:
        if not state.counts:
            return [0] * (2 * size)
        if len(state.counts) != 8 * size or len(state.log_wealths) != self._processes:
            raise SequentialError(
                f"state: {len(state.counts)} bytes and {len(state.log_wealths)} bets are not of a test with "
                f"{self.buckets} buckets and {self._processes} bets; start anew with initial()"
            )
        return list(struct.unpack(f"<{2 * size}I", state.counts))

    @property
    def _processes(self) -> int:
        return (len(FAMILIES) + 2 * _UNLEARNED) * len(self.bets)

    def _bet(self, state: MmdState, payoffs: list[float], counts: bytes) -> MmdState:
        squares = list(state.squares or [0.0] * len(payoffs))
        nonzero = list(state.nonzero or [0] * len(payoffs))
        wealths = list(state.log_wealths or [0.0] * self._processes)
        at = 0
        for index, payoff in enumerate(payoffs):
            signs = (1.0,) if index < len(FAMILIES) else (1.0, -1.0)
            if payoff and nonzero[index] >= FIRST:
                scaled = payoff / math.sqrt(squares[index] / nonzero[index])
                for place, (sign, bet) in enumerate((s, b) for s in signs for b in self.bets):
                    wealths[at + place] += log_factor(sign * bet * scaled)
            if payoff:
                squares[index] += payoff * payoff
                nonzero[index] += 1
            at += len(signs) * len(self.bets)
        now = _log_mean(wealths, len(self.bets))
        return MmdState(
            n=state.n + 1,
            bets=state.bets + any(payoffs),
            counts=counts,
            squares=tuple(squares),
            nonzero=tuple(nonzero),
            log_wealths=tuple(wealths),
            highest_nats=max(state.highest_nats, now),
        )


def log_factor(u: float) -> float:
    """log(1 + tanh u), nats: log 2 - log(1 + e^(-2u)), without losing either tail."""
    if u >= 0.0:
        return _LN2 - log1p(exp(-2.0 * u))
    return _LN2 + 2.0 * u - log1p(exp(2.0 * u))


def weight_of(baseline: int, candidate: int) -> float:
    """A bucket's weight in the witness: (B - C)/(B + C + κ), odd in the arms, within (-1, 1)."""
    return (baseline - candidate) / (baseline + candidate + SHRINKAGE)


def _witness(found: dict[int, tuple[int, int]], counts: Sequence[int], offset: int, size: int) -> float:
    """Σ over replicates of g(baseline) - g(candidate), of one family. fsum: no order of summing, no sign
    lost."""
    return math.fsum(
        (first - second) * weight_of(counts[offset + index], counts[size + offset + index])
        for index, (first, second) in found.items()
        if first != second
    )


def _log_mean(log_wealths: Sequence[float], bets: int) -> float:
    """log of the mixture: payoffs weigh the same, and so do the bets (and signs) of a payoff."""
    learned = len(FAMILIES) * bets
    halves = learned + 2 * _UNLEARNED * bets
    assert len(log_wealths) == halves
    twice = [wealth - _LN2 for wealth in log_wealths[learned:]]
    payoffs = len(FAMILIES) + _UNLEARNED
    return log_sum_exp([*log_wealths[:learned], *twice]) - log(float(payoffs * bets))
