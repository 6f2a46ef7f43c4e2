"""``python -m bench.at_rest [--pairs N] [--rounds N] [--judge] [--json]``: what sealed and hashed evidence
cost.

The real store on a real disk, as the judge's writer feeds it: batches of 16 pairs, 64 prompt tokens and
2 x 64 tokens with top-20. The ways take turns, so that a machine that slows down slows all of them; each
figure is the median of its rounds. CPU is of the whole process; a judge spends more on a pair before it is
stored (``judge_pairs_per_s`` of ``make bench`` is the whole road).

``--judge`` measures that whole road each way, in turn: real judges, two engine stubs, two cores.

Data on stdout, one line a way; with ``--json`` one object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.cases import Run, judge
from bench.machine import Cores
from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.evidence import NO_KEYS, Batch, ComparisonDone, EvidenceStore, Kept, Key, Keyring
from comparator.records import Arm, CaptureId, Exchange, ExchangeId, Fact, Outcome, Sampling, Step, Timing

BATCH, TOKENS, PROMPT, TOP = 16, 64, 64, 20
VOCABULARY = 150_000
WAYS: dict[str, tuple[Keyring, Kept]] = {
    "plain": (NO_KEYS, Kept.FULL),
    "sealed": (Keyring(current=Key(bytes(range(32)))), Kept.FULL),
    "hashes": (Keyring(current=Key(bytes(range(32)))), Kept.HASHES),
}


def comparisons(count: int, seed: int = 1) -> list[Comparison]:
    """Pairs that fork half-way, all different."""
    rng = random.Random(seed)
    return [_comparison(number, rng) for number in range(count)]


def _comparison(number: int, rng: random.Random) -> Comparison:
    capture_id = CaptureId(f"{number:08x}-0000-7000-8000-000000000000")
    prompt = tuple(rng.randrange(VOCABULARY) for _ in range(PROMPT))
    steps = [_step(place, rng) for place in range(TOKENS)]
    other = [*steps[: TOKENS // 2], *(_step(place, rng) for place in range(TOKENS // 2, TOKENS))]
    left, right = (
        Exchange(
            exchange_id=ExchangeId(f"{capture_id}/{arm}"),
            capture_id=capture_id,
            arm=arm,
            rollout="bench",
            tenant="acme",
            request_id=str(capture_id),
            pool="pool",
            endpoint="http://127.0.0.1:1",
            engine="bench",
            environment_digest=Fact(unknown="a bench"),
            prompt_token_ids=prompt,
            sampling=Sampling(max_tokens=TOKENS, temperature=0.0, logprobs=TOP),
            as_tokens=True,
            token_only=False,
            steps=tuple(its),
            finish_reason="length",
            outcome=Outcome.COMPLETED,
            timing=Timing(started_unix_s=1.8e9, ttft_s=0.1, last_token_s=1.0, total_s=1.0, tokens=TOKENS),
        )
        for arm, its in ((Arm.BASELINE, steps), (Arm.CANDIDATE, other))
    )
    return Comparison(
        capture_id=capture_id,
        rollout="bench",
        tenant="acme",
        cluster=f"{number:016x}",
        pairs=(compare(left, right),),
        unix_s=1.8e9,
    )


def _step(place: int, rng: random.Random) -> Step:
    ids = tuple(rng.sample(range(VOCABULARY), TOP))
    logprobs = tuple(sorted((-rng.expovariate(0.3) for _ in range(TOP)), reverse=True))
    return Step(ids[0], logprobs[0], ids, logprobs, 0.1 + place / 100, f" word{ids[0]}")


def measure(way: str, made: Sequence[Comparison], folder: Path) -> tuple[float, float, int]:
    """Seconds of CPU and of the clock for all pairs, and bytes of the file."""
    keys, kept = WAYS[way]
    path = folder / f"{way}.db"
    for old in folder.glob(f"{way}.db*"):
        old.unlink()
    with EvidenceStore(path, 10_000_000_000, keys=keys, kept=kept) as store:
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        for start in range(0, len(made), BATCH):
            chunk = made[start : start + BATCH]
            store.add(
                Batch(
                    comparisons=tuple(
                        ComparisonDone(comparison=one, incarnation="bench", sequence=start + place + 1)
                        for place, one in enumerate(chunk)
                    )
                )
            )
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        used_bytes = store.status().used_bytes
    return cpu_s, wall_s, used_bytes


def run(pairs: int, rounds: int) -> dict[str, dict[str, float]]:
    """Every way's figures."""
    made = comparisons(pairs)
    found: dict[str, list[tuple[float, float, int]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(measure(way, made, Path(folder)))
    told: dict[str, dict[str, float]] = {}
    for way, its in found.items():
        cpu_s, wall_s = (statistics.median(one[place] for one in its) for place in (0, 1))
        told[way] = {
            "pairs_per_cpu_s": round(pairs / cpu_s, 1),
            "pairs_per_s": round(pairs / wall_s, 1),
            "cpu_us_per_pair": round(cpu_s / pairs * 1e6, 1),
            "bytes_per_pair": round(its[0][2] / pairs),
        }
    return told


async def judges(rounds: int) -> dict[str, dict[str, float]]:
    """Pairs a second of a whole judge's CPU, each way: medians and the runs behind them."""
    run = Run(cores=Cores.pick(), quick=True, wanted=frozenset(judge.KEYS), started_s=time.monotonic())
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way, (keys, kept) in WAYS.items():
            evidence: dict[str, object] = {"store": kept.value}
            if keys.current is not None:
                evidence["encryption"] = {"key_command": ["echo", bytes(range(32)).hex()]}
            (figure,) = await judge.run(run, evidence)
            assert figure.value is not None, "the judge's case raises where it cannot measure"
            found[way].append(figure.value)
    return {
        way: {"judge_pairs_per_cpu_s": round(statistics.median(its), 1)}
        | {f"run_{number}": round(one, 1) for number, one in enumerate(its, 1)}
        for way, its in found.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.at_rest", description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--judge", action="store_true", help="whole judges, two minutes")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    if asked.judge:
        whole = asyncio.run(judges(asked.rounds))
        sys.stdout.write(json.dumps(whole) + "\n" if asked.json else _judges_text(whole))
        return 0
    told: dict[str, Any] = run(asked.pairs, asked.rounds)
    if asked.json:
        sys.stdout.write(json.dumps(told) + "\n")
        return 0
    for way, its in told.items():
        more = its["cpu_us_per_pair"] - told["plain"]["cpu_us_per_pair"]
        sys.stdout.write(
            f"{way:<7} {its['pairs_per_cpu_s']:>6.0f} pairs a second of CPU, {its['pairs_per_s']:>6.0f} a "
            f"second, {its['cpu_us_per_pair']:>6.0f} us ({more:+.0f}), {its['bytes_per_pair']:>6.0f} bytes "
            "a pair\n"
        )
    return 0


def _judges_text(told: dict[str, dict[str, float]]) -> str:
    return "".join(
        f"{way:<7} {its['judge_pairs_per_cpu_s']:>6.0f} pairs a second of the judge's CPU\n"
        for way, its in told.items()
    )


if __name__ == "__main__":
    sys.exit(main())
