"""What strictness costs: tokens/s and latency with and without, by turns in one run.

Three ways are timed: ``plain`` (PyTorch's own settings, requests share passes), ``strict`` (strict settings,
passes shared) and ``deterministic`` (strict settings and a pass for each request: what
``forkgate engine --deterministic`` serves). Each round runs all three, in an order that turns from round to
round, so that a machine that slows down slows all of them.

The ratio is the median of the rounds' own ratios. Its interval is that of order statistics: for n independent
rounds, the k-th smallest and k-th largest ratio cover the median of their distribution with probability
1 - 2 P(Bin(n, 1/2) < k), whatever the distribution. Under 6 rounds no interval reaches 95 %: none is told.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from engines.determinism import strict, workload
from engines.determinism.workload import Ask, How
from engines.reference.model import LoadedModel

PLAIN, STRICT, DETERMINISTIC = "plain", "strict", "deterministic"
WAYS = (PLAIN, STRICT, DETERMINISTIC)
_LEVEL = 0.95


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the rounds."""

    way: str
    tokens_per_s: float
    """With ``concurrency`` requests under way."""
    ttft_s: float
    """Of a request alone: its first step begins → its first token."""
    tpot_s: float
    """Of a request alone: (last - first)/(tokens - 1)."""


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """``way`` over ``plain``."""

    way: str
    of: str
    ratio: float
    low: float | None
    high: float | None
    covered: float | None
    """Probability that the interval covers the median ratio; None without an interval."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    concurrency: int
    tokens: int
    """Of each request."""
    warn_only: bool
    """Operators without a deterministic implementation ran, with a warning: strictness was not complete."""
    figures: tuple[Figure, ...]
    ratios: tuple[Ratio, ...]


def measure(
    model: LoadedModel,
    asks: Sequence[Ask],
    *,
    rounds: int,
    seed: int,
    how: How,
    warn_only: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> Cost:
    """Time all ways by turns. The first pass over them warms up and is not counted.

    Args:
        asks: run together; the first of them also runs alone.
        warn_only: for a model that the strict settings would stop.
    """
    seen: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        turn = number % len(WAYS)
        for way in (*WAYS[turn:], *WAYS[:turn]):
            timed = _time(model, asks, way, seed=seed, how=how, warn_only=warn_only)
            if number:
                seen[way].append(timed)
        progress(number)
    figures = tuple(
        Figure(
            way=way,
            tokens_per_s=statistics.median(one[0] for one in seen[way]),
            ttft_s=statistics.median(one[1] for one in seen[way]),
            tpot_s=statistics.median(one[2] for one in seen[way]),
        )
        for way in WAYS
    )
    ratios = tuple(
        ratio([one[place] / base[place] for one, base in zip(seen[way], seen[PLAIN], strict=True)], way, of)
        for way in (STRICT, DETERMINISTIC)
        for place, of in enumerate(("tokens_per_s", "ttft_s", "tpot_s"))
    )
    return Cost(
        rounds=rounds,
        concurrency=len(asks),
        tokens=asks[0].params.max_tokens,
        warn_only=warn_only,
        figures=figures,
        ratios=ratios,
    )


def ratio(seen: Sequence[float], way: str, of: str) -> Ratio:
    """Median and interval of paired ratios."""
    ordered = sorted(seen)
    # The narrowest interval that still covers the level.
    held = [k for k in range(1, len(ordered) // 2 + 1) if _covered(len(ordered), k) >= _LEVEL]
    k = max(held, default=0)
    return Ratio(
        way=way,
        of=of,
        ratio=statistics.median(ordered),
        low=ordered[k - 1] if k else None,
        high=ordered[-k] if k else None,
        covered=_covered(len(ordered), k) if k else None,
    )


def _covered(n: int, k: int) -> float:
    return 1 - 2 * sum(math.comb(n, below) for below in range(k)) / float(2**n)


def _time(
    model: LoadedModel, asks: Sequence[Ask], way: str, *, seed: int, how: How, warn_only: bool
) -> tuple[float, float, float]:
    own = way == DETERMINISTIC
    with strict.settings(seed, strict=way != PLAIN, warn_only=warn_only and way != PLAIN):
        began = time.perf_counter()
        together = workload.run(model, asks, how, alone=own)
        took_s = time.perf_counter() - began
        single = workload.run(model, asks[:1], how, alone=own)[0]
    tpot_s = (single.last_s - single.first_s) / (len(single.tokens) - 1)
    return sum(len(one.tokens) for one in together) / took_s, single.first_s, tpot_s
