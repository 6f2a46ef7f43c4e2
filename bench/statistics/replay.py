"""Property 7: a verdict from stored counts is bit-equal, and shards merged in any order agree.

Every case is stored as JSON, computed here, and computed again by a fresh interpreter that has only the JSON.
``python -m bench.statistics.replay`` is that interpreter: tests and states on stdin, one hexadecimal log E a
line on stdout.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import msgspec
import numpy as np

from bench.statistics.findings import Finding, Scale
from comparator.sequential import (
    BernoulliTest,
    Counts,
    Detector,
    DetectorState,
    Interval,
    MeanTest,
    MmdState,
    MmdTest,
    RatioState,
    SampleRatioTest,
    Tally,
    exceedance,
    fork_hazard,
    mean_interval,
    promotion,
    rollback,
)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One test with its stored evidence, of whichever kind."""

    mean: MeanTest | None = None
    counts: Counts = Counts()
    event: BernoulliTest | None = None
    tally: Tally = Tally()
    ratio: SampleRatioTest | None = None
    samples: RatioState = RatioState(counts=())
    detector: Detector | None = None
    observations: tuple[float, ...] = ()
    interval: bool = False
    answers: MmdTest | None = None
    before: MmdState = MmdState()
    """As stored in the middle of a stream; ``comparisons`` come after it."""
    comparisons: tuple[tuple[list[list[int]], list[list[int]]], ...] = ()


def compute(case: Case) -> str:
    """The verdict's number, every bit of it."""
    if case.mean is not None:
        text = case.mean.log_e(case.counts).hex()
        return text + _hex(mean_interval(case.counts, 0.05)) if case.interval else text
    if case.event is not None:
        return case.event.log_e(case.tally).hex()
    if case.ratio is not None:
        return case.ratio.log_e(case.samples).hex()
    if case.answers is not None:
        grown = case.before
        for baseline, candidate in case.comparisons:
            grown = case.answers.step(grown, baseline, candidate)
        return f"{case.answers.log_e(grown).hex()} {grown.highest_nats.hex()}"
    assert case.detector is not None
    state = DetectorState()
    for value in case.observations:
        state = case.detector.step(state, value)
    return case.detector.log_statistic(state).hex()


def _hex(interval: Interval) -> str:
    assert interval.low is not None
    assert interval.high is not None
    return f" {interval.low.hex()} {interval.high.hex()}"


def _mean(rng: np.random.Generator) -> tuple[Case, bool]:
    build: Callable[[float], MeanTest] = promotion if rng.random() < 0.5 else rollback
    test = build(float(rng.choice([0.0, 0.002, 0.005, 0.1])))
    values = rng.choice([-1.0, -1 / 3, 0.0, 1 / 7, 1.0], size=int(rng.integers(1, 3_000))).tolist()
    whole = Counts.of(values)
    cuts = sorted(rng.integers(0, len(values) + 1, size=int(rng.integers(1, 6))).tolist())
    parts = [Counts.of(values[a:b]) for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    merged = Counts()
    for index in rng.permutation(len(parts)):
        merged = merged.merge(parts[index])
    agree = test.log_e(merged).hex() == test.log_e(whole).hex()
    return Case(mean=test, counts=whole, interval=bool(rng.random() < 0.02)), agree


def _event(rng: np.random.Generator) -> tuple[Case, bool]:
    test = exceedance(float(rng.choice([0.01, 0.3]))) if rng.random() < 0.5 else fork_hazard(1.2)
    shards = [Tally(ones=int(a), zeros=int(b), ties=int(c)) for a, b, c in rng.integers(0, 900, size=(4, 3))]
    there, back = Tally(), Tally()
    for shard in shards:
        there = there.merge(shard)
    for shard in reversed(shards):
        back = back.merge(shard)
    return Case(event=test, tally=there), test.log_e(there).hex() == test.log_e(back).hex()


def _ratio(rng: np.random.Generator) -> tuple[Case, bool]:
    test = SampleRatioTest(shares=(0.5, 0.3, 0.2))
    shards = [RatioState(counts=tuple(map(int, row))) for row in rng.integers(0, 5_000, size=(4, 3))]
    there, back = test.initial(), test.initial()
    for shard in shards:
        there = there.merge(shard)
    for shard in reversed(shards):
        back = back.merge(shard)
    return Case(ratio=test, samples=there), test.log_e(there).hex() == test.log_e(back).hex()


def _detector(rng: np.random.Generator) -> tuple[Case, bool]:
    detector = Detector.for_window(rollback(0.005), 2_000, 0.01)
    values = tuple(rng.choice([-1.0, 0.0, 1.0], p=[0.02, 0.96, 0.02], size=60).tolist())
    return Case(detector=detector, observations=values), True


def _answers(rng: np.random.Generator) -> tuple[Case, bool]:
    test, state = MmdTest(buckets=64), MmdState()
    shape = (2, int(rng.integers(1, 4)), 6)
    stream = [rng.integers(0, 12, size=shape).tolist() for _ in range(24)]
    for baseline, candidate in stream[:12]:
        state = test.step(state, baseline, candidate)
    return Case(answers=test, before=state, comparisons=tuple((a, b) for a, b in stream[12:])), True


def bit_equality(seed: np.random.SeedSequence, scale: Scale) -> Finding:
    """Property 7."""
    rng = np.random.default_rng(seed)
    makers = (_mean, _event, _ratio, _detector, _answers)
    made = [makers[index % len(makers)](rng) for index in range(scale.pick(400, 4_000))]
    stored = msgspec.json.encode([case for case, _ in made])
    here = [compute(case) for case, _ in made]
    again = subprocess.run(
        [sys.executable, "-m", "bench.statistics.replay"],
        input=stored,
        capture_output=True,
        check=True,
        timeout=600,
        env=os.environ | {"PYTHONHASHSEED": "7"},
    )
    there = again.stdout.decode("ascii").splitlines()
    differing = sum(a != b for a, b in zip(here, there, strict=True))
    disagreeing = sum(not agree for _, agree in made)
    return Finding(
        name="7 verdicts that differ in a bit",
        value=float(differing + disagreeing),
        bar=0.0,
        holds=differing + disagreeing == 0,
        detail={
            "what": f"{len(made)} states of five kinds of test, as JSON, in a fresh interpreter",
            "recomputed otherwise": differing,
            "shards that disagree with the whole": disagreeing,
        },
    )


def main() -> int:
    for case in msgspec.json.decode(sys.stdin.buffer.read(), type=list[Case]):
        sys.stdout.write(compute(case) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
