"""Properties 1 and 2: how often equal environments are rolled back, and unequal ones promoted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import Executor

import numpy as np

from bench.statistics import draws, streams
from bench.statistics.findings import Finding, Scale, at_most
from bench.statistics.walks import Walk, check_against_core, walk_bernoulli, walk_mean
from comparator.sequential import (
    BernoulliTest,
    Counts,
    MeanTest,
    Mixture,
    MmdTest,
    exceedance,
    fork_hazard,
    promotion,
    quantile_interval,
    rollback,
    shortfall,
)
from comparator.sequential.quantile import SHARES

ALPHA = 0.05
ROWS = 250
"""Streams of one batch; with 20,000 requests of float32 it is 20 MB an array."""
AVERAGE_BETS = Mixture.geometric(0.1, 0.95, 5)
"""For observations that are averages (of signs, of a time block) and so vary little: larger bets."""

ROLLBACK_GATES: dict[str, tuple[MeanTest | BernoulliTest, tuple[float, ...]]] = {
    "accuracy δ=.005": (rollback(0.005), streams.DIFFERENCES),
    "structured output δ=0": (rollback(0.0), streams.DIFFERENCES),
    "fork hazard ρ=1": (fork_hazard(1.0), ()),
    "logit error": (rollback(0.0, AVERAGE_BETS), streams.SIGN_MEANS),
    "ttft exceedance": (rollback(0.0, AVERAGE_BETS), streams.BLOCK_DIFFERENCES),
    "errors": (rollback(0.0, AVERAGE_BETS), streams.BLOCK_DIFFERENCES),
}
PROMOTION_GATES = {"accuracy": 0.005, "structured output": 0.002, "ttft exceedance": 0.01}
QUANTILES = (0.5, 0.99)
CHECKED = 60
"""Comparisons after which the core is asked what the walk of the sampling test says."""


def _walk(test: MeanTest | BernoulliTest, values: tuple[float, ...], rows: int, alpha: float) -> Walk:
    if isinstance(test, MeanTest):
        return walk_mean(test, values, rows, alpha)
    return walk_bernoulli(test, rows, alpha)


def rollback_batch(seed: np.random.SeedSequence, n: int) -> dict[str, int]:
    """Streams with an alarm: by gate at the whole α, of any gate at its part, and of a z-test peeked at."""
    rng = np.random.default_rng(seed)
    level = streams.level_of(rng, ROWS, n)
    drawn: dict[str, Callable[[], streams.Codes]] = {
        "accuracy δ=.005": lambda: streams.fair_outcomes(rng, level, 1.0, 1.5),
        "structured output δ=0": lambda: streams.fair_outcomes(rng, level, 6.0, 0.8),
        "fork hazard ρ=1": lambda: streams.fair_forks(rng, level),
        "logit error": lambda: streams.fair_signs(rng, level),
        "ttft exceedance": lambda: streams.fair_blocks(rng, level, -4.6),
        "errors": lambda: streams.fair_blocks(rng, level, -6.0, outages=0.02),
    }
    found: dict[str, int] = {}
    any_part = np.zeros(ROWS, dtype=bool)
    for name, (test, values) in ROLLBACK_GATES.items():
        codes = drawn[name]()
        whole = _walk(test, values, ROWS, ALPHA)
        whole.feed(codes)
        check_against_core(test, codes, whole.first, whole.bar, values, most=2)
        found[name] = int(whole.crossed.sum())
        suspects = whole.crossed  # a part of α has the higher bar
        part = _walk(test, values, int(suspects.sum()), ALPHA / len(ROLLBACK_GATES))
        if suspects.any():
            part.feed(codes[suspects])
            any_part[suspects] |= part.crossed
        if name == "accuracy δ=.005":
            found["peeked z"] = int(_peeked_z(codes).sum())
    found["any"] = int(any_part.sum())
    return found


def _peeked_z(codes: streams.Codes) -> np.ndarray:
    """Streams in which McNemar's one-sided z passes 1.645 at some look, from 10 discordant pairs on."""
    ever = np.zeros(codes.shape[0], dtype=bool)
    up = np.zeros(codes.shape[0])
    down = np.zeros(codes.shape[0])
    for start in range(0, codes.shape[1], 500):
        part = codes[:, start : start + 500]
        ups = up[:, None] + np.cumsum(part == 2, axis=1)
        downs = down[:, None] + np.cumsum(part == 0, axis=1)
        total = ups + downs
        ever |= ((downs - ups > 1.645 * np.sqrt(total)) & (total >= 10)).any(axis=1)
        up, down = ups[:, -1], downs[:, -1]
    return ever


def quantile_batch(seed: np.random.SeedSequence, n: int) -> dict[str, int]:
    """Streams in which the interval ever leaves the true quantile out.

    The spread follows the load, the quantile stays: whether a latency is at most its quantile is then a fair
    draw, and the interval misses just when one of its two tests rejects there. The core's own interval is
    asked where a walk says so.
    """
    rng = np.random.default_rng(seed)
    level = streams.level_of(rng, ROWS, n)
    found = {}
    for p in QUANTILES:
        uniform = rng.random((ROWS, n))
        latency = np.exp(0.5 * level) * (uniform - p)  # the p-quantile is 0, at every load
        codes = (latency <= 0.0).astype(np.uint8)
        high = walk_bernoulli(exceedance(p, SHARES), ROWS, ALPHA / 2)
        low = walk_bernoulli(shortfall(p, SHARES), ROWS, ALPHA / 2)
        high.feed(codes)
        low.feed(codes)
        missed = high.crossed | low.crossed
        for row in np.flatnonzero(missed)[:2]:
            end = int(min(first for first in (high.first[row], low.first[row]) if first))
            interval = quantile_interval(Counts.of(latency[row, :end].tolist()), p, ALPHA)
            inside = (interval.low is None or interval.low <= 0.0) and (
                interval.high is None or interval.high >= 0.0
            )
            if inside:
                raise AssertionError(f"quantile {p}, n = {end}: a walk rejects what {interval} holds")
        found[f"quantile {p:g}"] = int(missed.sum())
    return found


def sampling_batch(seed: np.random.SeedSequence, n: int) -> dict[str, int]:
    """Streams in which the sequential MMD tells equal arms apart, a look at every comparison."""
    rng = np.random.default_rng(seed)
    test = MmdTest()
    drawn = draws.Draws(rng, streams.level_of(rng, ROWS, n))
    walk = draws.MmdWalk(test, ROWS, ALPHA)
    seen = []
    for index in range(n):
        tokens = drawn.at(index)
        walk.feed(tokens)
        if index < CHECKED:
            seen.append(tokens[0])
        if index + 1 == CHECKED:
            draws.check_against_core(test, [seen], walk.log_e(np.arange(1)))
    return {"sampling MMD": int((walk.first > 0).sum())}


def promotion_batch(seed: np.random.SeedSequence, n: int) -> dict[str, int]:
    """Streams promoted, by gate at the whole α, with E[D | past] = -δ exactly at every observation."""
    rng = np.random.default_rng(seed)
    level = streams.level_of(rng, ROWS, n)
    found = {}
    for name, margin in PROMOTION_GATES.items():
        test = promotion(margin)
        discordance = np.clip(0.03 * np.exp(0.7 * level), max(0.004, 2 * margin), 0.5).astype(np.float32)
        codes = streams.mostly_agreeing(rng, discordance, -margin)
        walk = walk_mean(test, streams.DIFFERENCES, ROWS, ALPHA)
        walk.feed(codes)
        check_against_core(test, codes, walk.first, walk.bar, streams.DIFFERENCES, most=2)
        found[name] = int(walk.crossed.sum())
    return found


def _total(
    pool: Executor,
    batch: Callable[[np.random.SeedSequence, int], dict[str, int]],
    seed: np.random.SeedSequence,
    rows: int,
    n: int,
) -> tuple[dict[str, int], int]:
    batches = math.ceil(rows / ROWS)
    total: dict[str, int] = {}
    for found in pool.map(batch, seed.spawn(batches), itertools.repeat(n)):
        for name, count in found.items():
            total[name] = total.get(name, 0) + count
    return total, batches * ROWS


def false_rollbacks(pool: Executor, seed: np.random.SeedSequence, scale: Scale) -> Finding:
    """Property 1."""
    gates_seed, quantiles_seed, sampling_seed = seed.spawn(3)
    n = scale.pick(10_000, 20_000)
    found, rows = _total(pool, rollback_batch, gates_seed, scale.pick(2_000, 10_000), n)
    shown, shown_rows = _total(pool, quantile_batch, quantiles_seed, scale.pick(2_000, 2_000), 2_000)
    sampled_n = 2_000
    sampled, sampled_rows = _total(pool, sampling_batch, sampling_seed, 2_000, sampled_n)
    peeked, any_part = found.pop("peeked z"), found.pop("any")
    alone = {name: count / rows for name, count in found.items()}
    intervals = {name: count / shown_rows for name, count in shown.items()}
    quiet = at_most(any_part, rows, ALPHA)
    quiet &= all(at_most(count, rows, ALPHA) for count in found.values())
    quiet &= all(at_most(count, shown_rows, ALPHA) for count in shown.values())
    quiet &= all(at_most(count, sampled_rows, ALPHA) for count in sampled.values())
    sees = not at_most(peeked, rows, ALPHA)
    return Finding(
        name="1 false rollback",
        value=any_part / rows,
        bar=ALPHA,
        holds=quiet and sees,
        detail={
            "what": f"any of {len(found)} gates at its part of α, {rows} streams x {n}, a look at every one",
            "each gate alone at the whole α": alone,
            f"intervals that ever left the truth out, {shown_rows} x 2000": intervals,
            f"sequential MMD at the whole α, {sampled_rows} x {sampled_n}": {
                name: count / sampled_rows for name, count in sampled.items()
            },
            "a peeked McNemar z on the same streams (must fail here)": peeked / rows,
        },
    )


def false_promotions(pool: Executor, seed: np.random.SeedSequence, scale: Scale) -> Finding:
    """Property 2."""
    n = scale.pick(10_000, 20_000)
    found, rows = _total(pool, promotion_batch, seed, scale.pick(2_000, 10_000), n)
    return Finding(
        name="2 false promotion",
        value=max(found.values()) / rows,
        bar=ALPHA,
        holds=all(at_most(count, rows, ALPHA) for count in found.values()),
        detail={
            "what": f"the worst gate alone, exactly on its margin, {rows} streams x {n}",
            "by gate": {f"{name} δ={PROMOTION_GATES[name]:g}": count / rows for name, count in found.items()},
        },
    )
