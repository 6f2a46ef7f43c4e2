"""Do samples arrive in the shares that were configured? The multinomial sample-ratio check.

Assumption: given the past, each sample falls into category i with probability θ_i, the configured share.
Formula: the Bayes factor of a Dirichlet(α) mixture against θ,

    E_n = Γ(A)/Γ(A + n) · Π_i Γ(α_i + n_i)/Γ(α_i) · Π_i θ_i^(-n_i),   α_i = concentration · θ_i, A = Σ α_i

a martingale from 1 under θ. Source: Lindon & Malek, Anytime-valid inference for multinomial count data
(NeurIPS 2022), section 2 (the multinomial test).

A sample-ratio mismatch does not say which arm is wrong; it says that pairs are lost or made in a way that the
comparison does not know of, so the other gates' numbers are not to be trusted.
"""

from __future__ import annotations

import math

import msgspec

from comparator.sequential.elementary import log, log_gamma
from comparator.sequential.errors import SequentialError


class RatioState(msgspec.Struct, frozen=True, kw_only=True):
    """Samples by category, in the order of the test's shares. Shards add up exactly."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        if any(count < 0 for count in self.counts):
            raise SequentialError(f"counts: {self.counts}; a count is not negative")

    def add(self, category: int, times: int = 1) -> RatioState:
        """One category seen ``times`` more. Raises SequentialError for one unknown, or ``times`` < 1."""
        if not 0 <= category < len(self.counts):
            raise SequentialError(f"category: {category} is not one of 0..{len(self.counts) - 1}")
        if times < 1:
            raise SequentialError(f"times: {times}; a sample is added at least once")
        counts = list(self.counts)
        counts[category] += times
        return RatioState(counts=tuple(counts))

    def merge(self, other: RatioState) -> RatioState:
        """Counts of both. Raises SequentialError when they count other categories."""
        if len(self.counts) != len(other.counts):
            raise SequentialError(f"merge: {len(self.counts)} categories with {len(other.counts)}")
        return RatioState(counts=tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))

    @property
    def n(self) -> int:
        """Samples counted."""
        return sum(self.counts)


class SampleRatioTest(msgspec.Struct, frozen=True, kw_only=True):
    """Rejects "samples arrive in these shares"."""

    shares: tuple[float, ...]
    concentration: float = 1000.0
    """Weight of the prior at θ, in samples: a mismatch of relative size ε is found soonest when about
    1/ε² samples are worth as much. 1000 looks for a few per cent."""

    def __post_init__(self) -> None:
        if len(self.shares) < 2:
            raise SequentialError(f"shares: {len(self.shares)}; a ratio needs at least two categories")
        for index, share in enumerate(self.shares):
            if not 0.0 < share < 1.0:
                raise SequentialError(f"shares[{index}]: {share} is outside (0, 1)")
        if abs(math.fsum(self.shares) - 1.0) > 1e-12:
            raise SequentialError(f"shares: they sum to {math.fsum(self.shares)}, not to 1")
        if not 0.0 < self.concentration < math.inf:
            raise SequentialError(f"concentration: {self.concentration} is not positive and finite")

    def initial(self) -> RatioState:
        """Before the first sample."""
        return RatioState(counts=(0,) * len(self.shares))

    def log_e(self, state: RatioState) -> float:
        """log E, nats. The same bits for the same counts.

        Raises:
            SequentialError: the state has another number of categories.
        """
        if len(state.counts) != len(self.shares):
            raise SequentialError(f"counts: {len(state.counts)} categories for {len(self.shares)} shares")
        if not state.n:
            return 0.0
        terms = [log_gamma(self.concentration), -log_gamma(self.concentration + state.n)]
        for share, count in zip(self.shares, state.counts, strict=True):
            prior = self.concentration * share
            terms += [log_gamma(prior + count), -log_gamma(prior), -count * log(share)]
        return math.fsum(terms)
