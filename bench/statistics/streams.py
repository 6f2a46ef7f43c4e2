"""What the simulated tests watch: two arms under one drifting load, fair or unfair by a stated amount.

``level`` is a first-order autoregression with standard deviation 1 and a correlation of .99 from one request
to the next: minutes of high load, hard prompts in runs. Both arms of a pair live under the same level, so
that outcomes are strongly dependent in time and between arms, and yet, given the past, exchangeable.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import signal

Floats32 = npt.NDArray[np.float32]
Codes = npt.NDArray[np.uint8]

MEMORY = 0.99
DIFFERENCES = (-1.0, 0.0, 1.0)
"""Values of a paired difference, by code."""
BLOCK = 10
"""Requests in one time block."""
BLOCK_DIFFERENCES = tuple((code - BLOCK) / BLOCK for code in range(2 * BLOCK + 1))
SIGN_TOKENS = 64
SIGN_MEANS = tuple((2 * code - SIGN_TOKENS) / SIGN_TOKENS for code in range(SIGN_TOKENS + 1))


def level_of(rng: np.random.Generator, rows: int, n: int) -> Floats32:
    """The load of n requests in a row, for each stream."""
    noise = rng.standard_normal((rows, n), dtype=np.float32)
    noise[:, 1:] *= np.float32(np.sqrt(1 - MEMORY**2))
    drifted = signal.lfilter([np.float32(1.0)], np.array([1.0, -MEMORY], dtype=np.float32), noise, axis=1)
    return np.asarray(drifted, dtype=np.float32)


def _logistic(x: Floats32) -> Floats32:
    return (np.float32(1.0) / (np.float32(1.0) + np.exp(-x))).astype(np.float32)


def fair_outcomes(rng: np.random.Generator, level: Floats32, centre: float, slope: float) -> Codes:
    """D of two arms, each successful with probability logistic(centre - slope·level), independently."""
    chance = _logistic(np.float32(centre) - np.float32(slope) * level)
    candidate = rng.random(level.shape, dtype=np.float32) < chance
    baseline = rng.random(level.shape, dtype=np.float32) < chance
    return (candidate.astype(np.int8) - baseline.astype(np.int8) + 1).astype(np.uint8)


def mostly_agreeing(rng: np.random.Generator, discordance: Floats32, mean: float) -> Codes:
    """D with P(D ≠ 0) = discordance and E[D | past] = mean exactly."""
    u = rng.random(discordance.shape, dtype=np.float32)
    down = np.float32(0.5) * (discordance - np.float32(mean))
    return (1 - (u < down).astype(np.int8) + (u >= 1 - (discordance - down)).astype(np.int8)).astype(np.uint8)


def fair_forks(rng: np.random.Generator, level: Floats32, tokens: int = 64) -> Codes:
    """Fork order of candidate and control, equal hazards that rise with load: 1 candidate first, 2 a tie."""
    hazard = np.float32(0.01) * np.exp(np.float32(0.7) * level)
    candidate = np.floor(rng.standard_exponential(level.shape, dtype=np.float32) / hazard)
    control = np.floor(rng.standard_exponential(level.shape, dtype=np.float32) / hazard)
    np.minimum(candidate, tokens, out=candidate)
    np.minimum(control, tokens, out=control)
    codes: Codes = (candidate < control).astype(np.uint8)
    codes[candidate == control] = 2
    return codes


def fair_signs(rng: np.random.Generator, level: Floats32) -> Codes:
    """Mean sign of an error difference over 64 tokens: symmetric, wider under load (tokens then agree)."""
    spread = np.float32(4.0) * np.exp(np.float32(0.3) * np.clip(level, -2, 2))
    k = np.rint(32 + spread * rng.standard_normal(level.shape, dtype=np.float32))
    codes: Codes = np.clip(k, 0, SIGN_TOKENS).astype(np.uint8)  # alike on both sides, so still symmetric
    return codes


def fair_blocks(rng: np.random.Generator, level: Floats32, centre: float, outages: float = 0.0) -> Codes:
    """Block means of "baseline's event minus candidate's" over BLOCK requests.

    With probability ``outages`` a block holds an outage of either arm (a coin says which) that fails up to
    all its requests: a burst within a block, as blocks are longer than an outage.
    """
    rows, n = level.shape[0], level.shape[1] // BLOCK
    blocks = level[:, : n * BLOCK : BLOCK]
    chance = _logistic(np.float32(centre) + blocks)
    counts = [rng.binomial(BLOCK, chance).astype(np.int16) for _ in range(2)]
    if outages:
        hit = rng.random((rows, n), dtype=np.float32) < outages
        side = rng.random((rows, n), dtype=np.float32) < 0.5
        size = rng.integers(1, BLOCK + 1, size=(rows, n), dtype=np.int16)
        for arm, which in enumerate((side, ~side)):
            counts[arm] = np.where(hit & which, np.maximum(counts[arm], size), counts[arm])
    return (counts[0] - counts[1] + BLOCK).astype(np.uint8)
