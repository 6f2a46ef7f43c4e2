"""``python -m bench.sampling [--quick] [--json] [--seed N] [--workers N]``."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any

import numpy as np

from bench.sampling import equality, fixed, ours, power
from bench.sampling.data import FOLDER, Answers, DataError, Environment, read
from bench.sampling.power import ALPHA, PEEKED
from bench.sampling.resample import REPLICATES, Pool
from bench.statistics.findings import at_most

POWER = 0.8
CONTROL = "rebatched"
CHECKED = 20
"""Comparisons at which the package is asked as well."""


class Measured:
    """What the bench found; JSON and table are made of it."""

    def __init__(self) -> None:
        self.changes: dict[str, dict[str, Any]] = {}
        self.false_alarms: dict[str, dict[str, Any]] = {}
        self.peer: dict[str, Any] = {}


def sequential(stops: list[int | None], tokens: float) -> dict[str, Any]:
    """Median and p90 of comparisons and tokens; None where fewer streams than that stopped."""
    ordered = sorted(math.inf if stop is None else stop for stop in stops)

    def at(share: float) -> int | None:
        value = ordered[max(0, math.ceil(share * len(ordered)) - 1)]
        return None if value == math.inf else int(value)

    def in_tokens(comparisons: int | None) -> int | None:
        return None if comparisons is None else round(comparisons * tokens)

    return {
        "found": sum(stop is not None for stop in stops),
        "of": len(stops),
        "comparisons": at(0.5),
        "comparisons_p80": at(0.8),
        "tokens": in_tokens(at(0.5)),
        "tokens_p80": in_tokens(at(0.8)),
    }


def fixed_n(shares: dict[int, float], tokens: float) -> dict[str, Any]:
    """The first n of the grid whose power, and that of every larger one, is enough."""
    shares = {n: share for n, share in shares.items() if n != PEEKED}
    enough = None
    for n in sorted(shares, reverse=True):
        if shares[n] < POWER:
            break
        enough = n
    return {
        "comparisons": enough,
        "tokens": None if enough is None else round(enough * tokens),
        "power": {str(n): round(share, 3) for n, share in sorted(shares.items())},
    }


def ask_package(first: Answers, second: Answers, seed: int, times: int) -> dict[str, Any]:
    """Does the published package give the statistic and the p-value that are computed here?"""
    pool = Pool(first, second)
    kernel = fixed.Kernel(pool)
    peer = equality.Peer()
    apart, p_apart = 0.0, 0.0
    try:
        for number in range(times):
            rng = np.random.default_rng((seed, number))
            order, picks = pool.stream(rng, coupled=False, equal=False)
            order, picks = order[:CHECKED], picks[:CHECKED]
            p, statistic = fixed.equality_test(kernel, order, picks, 1_000, rng)
            prompts = np.repeat(order, REPLICATES)
            samples = [kernel.padded[prompts, picks[:, arm].reshape(-1)].tolist() for arm in (0, 1)]
            theirs_p, theirs = peer.ask(prompts.tolist(), *samples, permutations=1_000, seed=number)
            apart, p_apart = max(apart, abs(theirs - statistic)), max(p_apart, abs(theirs_p - p))
    finally:
        peer.close()
    return {
        "package": equality.PACKAGE,
        "samples": times,
        "statistic_differs_by": apart,
        "p_differs_by": p_apart,
        "agrees": apart < 1e-5 and p_apart < 0.1,
    }


def measure(
    pool: Executor, answers: dict[str, Answers], changes: list[Environment], scale: Scale
) -> Measured:
    """All figures, job by job over the workers."""
    measured = Measured()
    waiting = []
    for index, change in enumerate(changes):
        first, second = answers[change.of], answers[change.name]
        for coupled in (True, False):
            seed = scale.seed + 1_000 * index + coupled
            stops = [
                pool.submit(ours.mmd_stops, (first, second, coupled, False, seed * 100 + part, size, ALPHA))
                for part, size in enumerate(scale.parts(scale.streams))
            ]
            powers = pool.submit(power.fixed_powers, (first, second, coupled, False, seed, scale.resamples))
            waiting.append((change, coupled, stops, powers))
    for change, coupled, stops, powers in waiting:
        first, second = answers[change.of], answers[change.name]
        tokens = 2 * REPLICATES * Pool(first, second).mean_tokens
        into = measured.changes.setdefault(change.name, {"tv": change.tv, "temperature": change.temperature})
        kind = "same seeds" if coupled else "other seeds"
        found = powers.result()
        into[f"sequential MMD, {kind}"] = sequential([s for part in stops for s in part.result()], tokens)
        if not coupled:
            into[f"Model Equality Testing, {kind}"] = fixed_n(found["equality"], tokens)
        into[f"paired permutation, {kind}"] = fixed_n(found["paired"], tokens)
        if coupled and change.of == "baseline":
            control = answers[CONTROL]
            stopped = ours.mismatch_stops(first, second, control, scale.seed, scale.streams, ALPHA)
            into["mismatch beyond the control's, same seeds"] = sequential(stopped, 1.5 * tokens)
        if coupled:
            found_bounds = ours.bounds(first, second, scale.seed, 5, ALPHA)
            into["upper bound on TV, a token"] = round(float(np.median(found_bounds)), 3)
        sys.stderr.write(f"{change.name}, {kind}: {time.monotonic() - scale.started_s:.0f} s\n")
    return measured


def measure_equal(pool: Executor, answers: dict[str, Answers], measured: Measured, scale: Scale) -> None:
    """The same tests where nothing changed."""
    for name, other, coupled in (("other seeds", "again", False), ("same seeds", CONTROL, True)):
        seed = scale.seed + 77_000 + coupled
        first, second = answers["baseline"], answers[other]
        stops = [
            pool.submit(ours.mmd_stops, (first, second, coupled, True, seed * 100 + part, size, ALPHA))
            for part, size in enumerate(scale.parts(scale.equal_streams))
        ]
        powers = pool.submit(power.fixed_powers, (first, second, coupled, True, seed, scale.equal_streams))
        all_stops = [stop for part in stops for stop in part.result()]
        rejected = sum(stop is not None for stop in all_stops)
        into = measured.false_alarms[name] = {
            "sequential MMD, at any look": rejected / len(all_stops),
            "streams": len(all_stops),
            "holds": at_most(rejected, len(all_stops), ALPHA),
        }
        found = powers.result()
        for test, shares in found.items():
            if shares:
                peeked = shares.pop(PEEKED)
                into[f"{test}, peeked at {len(shares)} n"] = round(peeked, 4)
                into[f"{test}, at one n (mean over n)"] = round(float(np.mean(list(shares.values()))), 4)
        if coupled:
            found_bounds = ours.bounds(first, second, scale.seed, 5, ALPHA)
            into["upper bound on TV, a token"] = round(float(np.median(found_bounds)), 3)
        sys.stderr.write(f"equal arms, {name}: {time.monotonic() - scale.started_s:.0f} s\n")


class Scale:
    """How much is drawn."""

    def __init__(self, quick: bool, seed: int, workers: int) -> None:
        self.streams = 10 if quick else 60
        self.resamples = 10 if quick else 60
        self.equal_streams = 20 if quick else 200
        self.asked = 1 if quick else 6
        self.seed = seed
        self.workers = workers
        self.started_s = time.monotonic()

    def parts(self, size: int) -> list[int]:
        """Streams by job; the same whatever the number of workers."""
        return [10] * (size // 10)


def table(measured: Measured) -> str:
    """For people."""
    lines = [
        (
            f"{'change':<16}{'TV':>6}  {'test':<44}{'comparisons':>12}{'tokens':>9}   (alpha {ALPHA}, "
            f"{REPLICATES} replicates)"
        )
    ]
    for name, found in measured.changes.items():
        for test, said in found.items():
            if not isinstance(said, dict):
                continue
            at_p80 = said.get("comparisons_p80")
            shown = "-" if said["comparisons"] is None else str(said["comparisons"])
            tokens = "-" if said["tokens"] is None else f"{said['tokens']:,}"
            more = f"   80 % found by {at_p80 or '-'}; {said['found']}/{said['of']}" if "of" in said else ""
            lines.append(f"{name:<16}{found['tv']:>6.3f}  {test:<44}{shown:>12}{tokens:>9}{more}")
        bound = found["upper bound on TV, a token"]
        lines.append(f"{'':<24}the next token's TV is at most {bound} (same seeds, end of a stream)")
    lines.append(
        "sequential: median over streams, any look; fixed n: the least with 80 % power, known beforehand"
    )
    for name, alarms in measured.false_alarms.items():
        lines.append(f"false alarms, {name}: {alarms}")
    lines.append(f"Model Equality Testing: {measured.peer}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """0: measured. 1: false alarms beyond alpha, or a peer that disagrees. 4: could not measure."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer resamples")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    parser.add_argument("--seed", type=int, default=20260101, help="of all resampling")
    parser.add_argument("--workers", type=int, default=2, help="processes; the results do not depend on it")
    options = parser.parse_args(arguments)
    if options.workers < 1 or options.seed < 0:
        parser.error("--workers is at least 1 and --seed at least 0")
    try:
        environments, answers = read(FOLDER)
    except DataError as error:
        print(error, file=sys.stderr)
        return 4
    scale = Scale(options.quick, options.seed, options.workers)
    changes = [
        one
        for one in environments.values()
        if one.name not in (one.of, CONTROL) and not one.first_seed  # the rest is equal arms
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        measured = measure(pool, answers, changes, scale)
        measure_equal(pool, answers, measured, scale)
    try:
        measured.peer = ask_package(answers["baseline"], answers["temperature .9"], scale.seed, scale.asked)
    except equality.NotInstalled as error:
        measured.peer = {"package": equality.PACKAGE, "agrees": None, "reason": str(error)}
    print(table(measured), file=sys.stderr)
    if options.json:
        said = {
            "changes": measured.changes,
            "false_alarms": measured.false_alarms,
            "model_equality_testing": measured.peer,
        }
        print(json.dumps(said))
    quiet = all(alarms["holds"] for alarms in measured.false_alarms.values())
    return 0 if quiet and measured.peer["agrees"] is not False else 1


if __name__ == "__main__":
    raise SystemExit(main())
