"""An upper bound on the total variation of the next token, from how soon same-seed answers part.

Observation: one comparison's same-seed answers, by replicate: over how many tokens they ran together (the
one at which they part included), and whether they parted at all.

Assumption: both arms draw with one sampler and seed, or by any other coupling. At a token that both reach
with the same prefix they part with probability at least the total variation (TV) of the two next-token
distributions (the coupling inequality, as in :mod:`comparator.sequential.coupling`). So with F a comparison's
partings and N its tokens run together, both averaged over replicates, E[F] ≥ E[Σ TV over those tokens], and

    the TV of the next token, averaged over tokens run together, is at most E[F]/E[N].

Formula: "it is p or more" implies E[F - pN | past] ≥ 0, which is rejected by

    E_n = Σ_k w_k Π_i (1 - λ_k (F_i - p N_i)),  0 < λ_k < 1,

a nonnegative supermartingale from 1 as F ≤ 1 (Waudby-Smith & Ramdas, JRSS-B 2024; see
:mod:`comparator.sequential.mean`). Each factor rises in p, so the rates that are rejected are an upper end;
the bound is the least of a fixed grid that is, and holds at all n at once with probability at least 1 - α.

Why not the TV of whole answers, which the share of answers that differ bounds? Because for any two machines
it grows to 1 with length: equal bfloat16 servers that differ in their batches may part at a few per cent of
tokens, hence in half of all answers. The TV of a token compares environments whatever the length.

The state is a wealth for each rate and bet, small and serialisable; sums of floats, so that it depends on
order in its last bits and is not merged.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from comparator.sequential.elementary import log1p, log_sum_exp, remembered_log
from comparator.sequential.errors import SequentialError
from comparator.sequential.levels import threshold_nats
from comparator.sequential.mixture import Mixture

RATES = Mixture.geometric(0.001, 0.9, 36).points
"""Each 1.21 times the one before."""
BETS = Mixture.geometric(0.05, 0.95, 5)


class PartingState(msgspec.Struct, frozen=True, kw_only=True):
    """Sums, and log Π of each rate and bet."""

    n: int = 0
    partings: int = 0
    """Over all replicates."""
    tokens: int = 0
    """Run together, over all replicates."""
    log_wealths: tuple[float, ...] = ()
    """By rate, then bet; empty before the first comparison."""

    @property
    def rate(self) -> float | None:
        """Partings a token; None before the first token."""
        return self.partings / self.tokens if self.tokens else None


class PartingTest(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds the rate of parting, and with it the TV of the next token."""

    limit: float
    """The rate that a promotion must exclude; one more point of the grid."""
    bets: Mixture = BETS

    def __post_init__(self) -> None:
        if not 0.0 < self.limit < 1.0:
            raise SequentialError(f"limit: {self.limit} is outside (0, 1)")
        if not (self.bets.points[0] > 0.0 and self.bets.points[-1] < 1.0):
            raise SequentialError(f"bets: {self.bets.points[0]} to {self.bets.points[-1]} leave (0, 1)")

    def step(self, state: PartingState, together: Sequence[int], parted: Sequence[bool]) -> PartingState:
        """The state after one more comparison. Never mutates ``state``.

        Args:
            state: before it.
            together: tokens that each replicate's arms ran together, that at which they part included.
            parted: whether they did.

        Raises:
            SequentialError: no replicate, lists of unequal length, or a parting at no token.
        """
        if not together or len(together) != len(parted):
            raise SequentialError(f"replicates: {len(together)} lengths and {len(parted)} ends")
        if any(tokens < parts for tokens, parts in zip(together, parted, strict=True)):
            raise SequentialError(f"together: {list(together)}; to part takes a token, none has fewer than 0")
        size = len(together)
        partings, tokens = sum(parted), sum(together)
        rates = (self.limit, *RATES)
        wealths = state.log_wealths or (0.0,) * (len(rates) * len(self.bets.points))
        if len(wealths) != len(rates) * len(self.bets.points):
            raise SequentialError(
                f"state: {len(wealths)} wealths are not of a test with {len(self.bets.points)} bets"
            )
        grown, at = [], 0
        for rate in rates:
            excess = (partings - rate * tokens) / size
            for bet in self.bets.points:
                grown.append(wealths[at] + log1p(-bet * excess))
                at += 1
        return PartingState(
            n=state.n + 1,
            partings=state.partings + partings,
            tokens=state.tokens + tokens,
            log_wealths=tuple(grown),
        )

    def log_e(self, state: PartingState) -> float:
        """log E against "the next token's TV is ``limit`` or more", nats."""
        return self._log_e(state, 0)

    def bound(self, state: PartingState, alpha: float) -> float:
        """The least rate of the grid that is rejected at α; 1 if none is."""
        bar = threshold_nats(alpha)
        low, high = 0, len(RATES)
        while low < high:  # rejected rates are an upper end
            middle = (low + high) // 2
            if self._log_e(state, middle + 1) >= bar:
                high = middle
            else:
                low = middle + 1
        found = RATES[low] if low < len(RATES) else 1.0
        return min(found, self.limit) if self.log_e(state) >= bar else found

    def _log_e(self, state: PartingState, index: int) -> float:
        if not state.log_wealths:
            return 0.0
        size = len(self.bets.points)
        mine = state.log_wealths[index * size : (index + 1) * size]
        return log_sum_exp(
            [remembered_log(weight) + wealth for weight, wealth in zip(self.bets.weights, mine, strict=True)]
        )


def run_together(first: Sequence[int], second: Sequence[int]) -> tuple[int, bool]:
    """How many tokens two answers share, that at which they part included, and whether they part.

    One that ends where the other goes on parts there.
    """
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index + 1, True
    if len(first) != len(second):
        return min(len(first), len(second)) + 1, True
    return len(first), False
