"""Property 8: sampling verdicts carry an upper bound on total variation, which holds while one watches.

Two arms draw one token a prompt with the same seed. The bound is too low somewhere on a stream just when the
test of "a mismatch is at least as likely as the true distance" rejects, so one walk looks at every n; the
core's own bound is asked at the end of each stream. Then the gate itself (``policies.gates.sampling``) folds
whole comparisons, and each of its verdicts is read as a person would: is there a bound, and is it true?
"""

from __future__ import annotations

import functools
from concurrent.futures import Executor

import numpy as np

from bench.statistics.exchanges import drawn_comparison
from bench.statistics.findings import Finding, Scale, at_most
from bench.statistics.walks import walk_bernoulli
from comparator.sequential import Tally, mismatch_bound, shortfall
from policies.gates.base import Alpha
from policies.gates.sampling import Sampling

ALPHA = 0.05
ROWS, DRAWS, TOKENS = 100, 2_000, 20
SHIFT = 0.08
"""Standard deviation of the candidate's logit change, nats; the mean TV that it makes is measured."""


def batch(seed: np.random.SeedSequence) -> dict[str, list[float]]:
    """Per stream: mean TV, final bound under a race, and whether each coupling's bound was ever too low."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.standard_normal((DRAWS, TOKENS))  # the prompts, the same in every stream of a batch
    moved = logits + SHIFT * rng.standard_normal((DRAWS, TOKENS))
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (logits, moved))
    tv = float((0.5 * np.abs(p - q).sum(axis=1)).mean())
    order = np.stack([rng.permutation(DRAWS) for _ in range(ROWS)])
    race = np.empty((ROWS, DRAWS), dtype=np.uint8)
    maximal = np.empty((ROWS, DRAWS), dtype=np.uint8)
    for row in range(ROWS):
        clocks = rng.standard_exponential((DRAWS, TOKENS))  # the shared seed's exponential race
        first, second = (clocks / x[order[row]] for x in (p, q))
        race[row] = first.argmin(axis=1) != second.argmin(axis=1)
        apart = 0.5 * np.abs(p - q).sum(axis=1)[order[row]]
        maximal[row] = rng.random(DRAWS) < apart  # the least mismatch that any coupling can have
    found: dict[str, list[float]] = {"tv": [tv] * ROWS}
    for name, codes in (("race", race), ("maximal", maximal)):
        walk = walk_bernoulli(shortfall(tv), ROWS, ALPHA)
        walk.feed(codes)
        found[f"{name} too low"] = [float(crossed) for crossed in walk.crossed]
        tallies = [Tally(ones=int(ones), zeros=DRAWS - int(ones)) for ones in codes.sum(axis=1)]
        found[f"{name} bound"] = [mismatch_bound(tally, ALPHA) for tally in tallies]
        found[f"{name} mismatch"] = [float(share) for share in codes.mean(axis=1)]
    return found


def verdicts(seed: np.random.SeedSequence, n: int) -> dict[str, int]:
    """One stream of the gate's verdicts, two replicates of one token: how many lack a bound, was one wrong?

    By a coin, the arms of a stream share their seeds or not: without, mismatches tell nothing, and the bound
    still holds.
    """
    rng = np.random.default_rng(seed)
    gate, alpha = Sampling(tokens=1, maximum_n=n), Alpha(rollback=ALPHA / 10, promotion=ALPHA)
    logits = 1.5 * rng.standard_normal((n, TOKENS))
    moved = logits + SHIFT * rng.standard_normal((n, TOKENS))
    p, q = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (logits, moved))
    tv = float((0.5 * np.abs(p - q).sum(axis=1)).mean())
    shared = bool(rng.random() < 0.5)
    state, bare, wrong = gate.initial(), 0, 0
    for index in rng.permutation(n).tolist():
        clocks = rng.standard_exponential((2, 2, TOKENS))
        if shared:
            clocks[1] = clocks[0]
        first, second = (clocks[arm] / x[index] for arm, x in enumerate((p, q)))
        comparison = drawn_comparison(
            f"{index}", first.argmin(axis=1)[:, None].tolist(), second.argmin(axis=1)[:, None].tolist()
        )
        state = gate.fold(state, comparison)
        said = gate.verdict(state, alpha)
        bare += said.interval is None or "total variation is at most" not in said.reason
        wrong += said.interval is not None and said.interval[1] < tv
    return {"verdicts": n, "bare": bare, "wrong": int(wrong > 0)}


def tv_bounds(pool: Executor, seed: np.random.SeedSequence, scale: Scale) -> Finding:
    """Property 8, for the same-seed mismatch and for the gate's verdicts."""
    bounds_seed, verdicts_seed = seed.spawn(2)
    found: dict[str, list[float]] = {}
    for part in pool.map(functools.partial(batch), bounds_seed.spawn(scale.pick(20, 40))):
        for name, values in part.items():
            found.setdefault(name, []).extend(values)
    streams, n = scale.pick(40, 200), scale.pick(100, 300)
    said = list(pool.map(functools.partial(verdicts, n=n), verdicts_seed.spawn(streams), chunksize=5))
    bare, wrong = (sum(one[name] for one in said) for name in ("bare", "wrong"))
    rows = len(found["tv"])
    low = {name: int(sum(found[f"{name} too low"])) for name in ("race", "maximal")}
    bounds = np.array(found["race bound"])
    told = bool(((bounds > 0) & (bounds < 1)).all())
    return Finding(
        name="8 TV bound missing or too low",
        value=1.0 if bare else max(*low.values(), wrong * rows / streams) / rows,
        bar=ALPHA,
        holds=told
        and not bare
        and at_most(wrong, streams, ALPHA)
        and all(at_most(count, rows, ALPHA) for count in low.values()),
        detail={
            "what": f"same-seed mismatch over {DRAWS} prompts, {rows} streams, a look at every one",
            "by coupling": {name: count / rows for name, count in low.items()},
            "mean TV, mismatch rate and median bound (race)": [
                round(float(np.mean(found["tv"])), 4),
                round(float(np.mean(found["race mismatch"])), 4),
                round(float(np.median(bounds)), 4),
            ],
            f"verdicts of the sampling gate without a bound, of {streams} x {n}": bare,
            "streams in which a verdict's bound was too low": wrong / streams,
        },
    )
