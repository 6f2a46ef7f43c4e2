"""Properties 3, 4 and 5: how soon the tests decide, beside what a plan with a fixed n would need."""

from __future__ import annotations

import functools
import math
from concurrent.futures import Executor
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from bench.statistics import streams
from bench.statistics.findings import Finding, Scale
from bench.statistics.walks import check_against_core, walk_bernoulli, walk_mean
from comparator.sequential import Counts, Mixture, fork_hazard, promotion, rollback, threshold_nats

MARGIN, ALPHA, POWER = 0.005, 0.05, 0.8
DISCORDANCES = (0.013, 0.027, 0.05, 0.09)
LONGEST = 3.0
"""A stream is given up at this many times the fixed n; it counts as slower than any quantile shown."""
PIECE = 2_048

TOKENS = 64
NOISE = 1.5
LOGIT_ALPHA = 0.001
LOGIT_BETS = Mixture.geometric(0.1, 0.95, 5)
DIFR_TOKENS = 10_000

HAZARD_ALPHA = 0.01
RATIOS = (1.5, 2.0, 3.0)
HAZARD_BAR = 185


def fixed_n(discordance: float, margin: float, alpha: float, power: float) -> int:
    """Pairs of a one-sided z test that looks once: (z_{1-α} + z_power)² · Var D / δ², D with mean 0."""
    z = NormalDist().inv_cdf(1 - alpha) + NormalDist().inv_cdf(power)
    return math.ceil(z * z * discordance / margin**2)


def quantile_of(times: npt.NDArray[np.int64], share: float) -> float:
    """Quantile of stopping times in which 0 means: never."""
    never = np.where(times > 0, times, np.iinfo(np.int64).max)
    value = int(np.sort(never)[math.ceil(share * len(never)) - 1])
    return math.inf if value == np.iinfo(np.int64).max else float(value)


def promotion_times(
    work: tuple[np.random.SeedSequence, float], rows: int
) -> tuple[float, npt.NDArray[np.int64]]:
    """Samples to promotion of equal environments at one discordance."""
    seed, discordance = work
    rng = np.random.default_rng(seed)
    test = promotion(MARGIN)
    longest = math.ceil(LONGEST * fixed_n(discordance, MARGIN, ALPHA, POWER))
    walk = walk_mean(test, streams.DIFFERENCES, rows, ALPHA)
    times = np.zeros(rows, dtype=np.int64)
    left = np.arange(rows)
    kept: npt.NDArray[np.uint8] = np.empty((min(rows, 20), 0), dtype=np.uint8)
    for start in range(0, longest, PIECE):
        size = min(PIECE, longest - start)
        shares = np.full((len(left), size), discordance, dtype=np.float32)
        codes = streams.mostly_agreeing(rng, shares, 0.0)
        if start == 0:
            kept = codes[:20].copy()
        walk.feed(codes)
        done = walk.crossed
        times[left[done]] = walk.first[done]
        left = left[~done]
        walk.keep(~done)
        if not len(left):
            break
    early = np.where(times[: len(kept)] <= kept.shape[1], times[: len(kept)], 0)
    check_against_core(test, kept, early, threshold_nats(ALPHA), streams.DIFFERENCES)
    return discordance, times


def stopping_times(pool: Executor, seed: np.random.SeedSequence, scale: Scale) -> Finding:
    """Property 3."""
    rows = scale.pick(400, 2_000)
    work = list(zip(seed.spawn(len(DISCORDANCES)), DISCORDANCES, strict=True))
    worst, detail = 0.0, {}
    for discordance, times in pool.map(functools.partial(promotion_times, rows=rows), work):
        fixed = fixed_n(discordance, MARGIN, ALPHA, POWER)
        median, p90 = quantile_of(times, 0.5), quantile_of(times, 0.9)
        worst = max(worst, median / fixed)
        slow = f"{p90:.0f}" if math.isfinite(p90) else f"over {LONGEST * fixed:.0f}"
        detail[f"discordance {discordance:g}"] = f"median {median:.0f}, p90 {slow}, fixed n {fixed}"
    return Finding(
        name="3 median over fixed n",
        value=worst,
        bar=1.25,
        holds=worst <= 1.25,
        detail={
            "what": f"equal environments promoted at δ={MARGIN:g}, α={ALPHA:g}, {rows} streams",
            **detail,
        },
    )


def sign_means(rng: np.random.Generator, rows: int, requests: int, noise: float) -> npt.NDArray[np.float64]:
    """Per request, mean sign of (candidate's error - A/A error) over the steps up to the earlier fork.

    Errors at a step are |normal| times a scale that both arms share (log-normal by request, s.d. .5, median
    .05 nats), the candidate's times ``noise``; each arm also has a factor of its own by request (log-normal,
    s.d. .2), so that tokens of one request agree; errors lie on a lattice of 2⁻⁸ nats, so that ties happen.
    One step in a hundred is a fork.
    """
    shape = (rows, requests, TOKENS)
    shared = 0.05 * np.exp(0.5 * rng.standard_normal((rows, requests, 1)))
    errors = []
    for factor in (1.0, noise):
        own = np.exp(0.2 * rng.standard_normal((rows, requests, 1)))
        drawn = np.abs(rng.standard_normal(shape)) * (shared * own * factor)
        errors.append(np.rint(drawn * 256))
    steps = np.minimum(rng.geometric(0.01, size=(rows, requests)), TOKENS)
    counted = np.arange(TOKENS) < steps[:, :, None]
    return np.asarray((np.sign(errors[1] - errors[0]) * counted).sum(axis=2) / steps)


def logit_times(
    seed: np.random.SeedSequence, rows: int, requests: int, noise: float
) -> npt.NDArray[np.int64]:
    """Requests until the error is called larger; the error's mean sign is bad when it is above 0."""
    rng = np.random.default_rng(seed)
    worse = -sign_means(rng, rows, requests, noise)  # larger is better, as everywhere
    test = rollback(0.0, LOGIT_BETS)
    terms = np.stack(
        [
            np.cumsum(np.log1p(-bet * worse), axis=1) + math.log(weight)
            for bet, weight in zip(test.bets.points, test.bets.weights, strict=True)
        ]
    )
    top = terms.max(axis=0)
    log_e = top + np.log(np.exp(terms - top).sum(axis=0))
    over = log_e >= threshold_nats(LOGIT_ALPHA)
    times = np.where(over.any(axis=1), over.argmax(axis=1) + 1, 0)
    for row in range(min(rows, 3)):
        end = int(times[row]) or requests
        core = test.log_e(Counts.of(worse[row, :end].tolist()))
        if abs(core - log_e[row, end - 1]) > 1e-9:
            raise AssertionError(f"the core says {core}, the walk {log_e[row, end - 1]}")
    return times.astype(np.int64)


def logit_noise(pool: Executor, seed: np.random.SeedSequence, scale: Scale) -> Finding:
    """Property 4."""
    batches, rows, requests = scale.pick(8, 40), 50, 200
    louder, equal = seed.spawn(2)
    run = functools.partial(logit_times, rows=rows, requests=requests)
    times = np.concatenate(list(pool.map(functools.partial(run, noise=NOISE), louder.spawn(batches))))
    same = np.concatenate(list(pool.map(functools.partial(run, noise=1.0), equal.spawn(batches))))
    p95 = quantile_of(times, 0.95)
    return Finding(
        name="4 logit noise x1.5, requests p95",
        value=p95 if math.isfinite(p95) else None,
        bar=DIFR_TOKENS / TOKENS,
        holds=p95 <= DIFR_TOKENS / TOKENS,
        detail={
            "what": f"requests of {TOKENS} tokens, α={LOGIT_ALPHA:g}, {len(times)} streams, simulated errors",
            "in tokens": p95 * TOKENS,
            "median requests": quantile_of(times, 0.5),
            "beside it": f"Token-DiFR's fixed-n order of {DIFR_TOKENS} tokens (an 8-bit KV cache)",
            f"equal noise called larger within {requests} requests": float((same > 0).mean()),
        },
    )


def fork_times(seed: np.random.SeedSequence, ratio: float, rows: int, triples: int) -> npt.NDArray[np.int64]:
    """Discordant triples until a hazard ratio is found."""
    rng = np.random.default_rng(seed)
    codes = (rng.random((rows, triples), dtype=np.float32) < ratio / (1 + ratio)).astype(np.uint8)
    test = fork_hazard(1.0)
    walk = walk_bernoulli(test, rows, HAZARD_ALPHA)
    walk.feed(codes)
    check_against_core(test, codes, walk.first, walk.bar)
    return walk.first


def hazard_times(pool: Executor, seed: np.random.SeedSequence, scale: Scale) -> Finding:
    """Property 5."""
    rows = scale.pick(2_000, 10_000)
    run = functools.partial(fork_times, rows=rows, triples=1_200)
    found = dict(zip(RATIOS, pool.map(run, seed.spawn(len(RATIOS)), RATIOS), strict=True))
    p90 = quantile_of(found[2.0], 0.9)
    return Finding(
        name="5 fork hazard x2, triples p90",
        value=p90,
        bar=HAZARD_BAR,
        holds=p90 <= HAZARD_BAR,
        detail={
            "what": f"discordant triples, no logprobs, ρ=1, α={HAZARD_ALPHA:g}, {rows} streams",
            **{
                f"ratio {ratio:g}": f"median {quantile_of(t, 0.5):.0f}, p90 {quantile_of(t, 0.9):.0f}"
                for ratio, t in found.items()
            },
        },
    )
