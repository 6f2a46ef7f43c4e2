"""Medians, percentiles, and how far to trust them. Pure functions; randomness is seeded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

VOID_HALF_WIDTH = 0.15
"""An interval that reaches further than this share of its value to either side says too little."""
_RESAMPLES = 10_000


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A median over blocks with its bootstrap interval."""

    value: float
    low: float
    high: float
    blocks: int

    @property
    def too_wide(self) -> bool:
        return max(self.high - self.value, self.value - self.low) > VOID_HALF_WIDTH * self.value


def median_with_interval(blocks: Sequence[float], *, level: float = 0.90, seed: int = 20260101) -> Estimate:
    """Median of independent blocks, with the percentile bootstrap interval over blocks (Efron 1979).

    Assumes that blocks are exchangeable: interleaved, of equal length, none chosen after the fact.

    Raises:
        ValueError: no block at all, or one that is not finite.
    """
    values = np.asarray(blocks, dtype=np.float64)
    if values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"cannot take a median of {list(blocks)}")
    draws = np.random.default_rng(seed).integers(0, values.size, size=(_RESAMPLES, values.size))
    medians = np.median(values[draws], axis=1)
    tail = (1 - level) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Estimate(value=float(np.median(values)), low=float(low), high=float(high), blocks=int(values.size))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Block by block, ours over theirs; both were measured next to each other in time."""
    return [mine / yours for mine, yours in zip(ours, theirs, strict=True)]


def quantile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least ``share`` of all samples do not exceed (no interpolation)."""
    return float(np.quantile(np.asarray(samples, dtype=np.float64), share, method="inverted_cdf"))
