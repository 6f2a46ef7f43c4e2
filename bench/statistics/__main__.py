"""``python -m bench.statistics [--quick] [--json] [--seed N] [--workers N] [--battery DIR]``."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from bench.statistics import false_alarms, labels, replay, sampling, speed
from bench.statistics.findings import Finding, Scale, table

BATTERY = Path(__file__).resolve().parents[2] / "tests" / "data" / "battery"
"""Where the repository keeps labelled generations, if it does."""

Measure = Callable[[Executor, np.random.SeedSequence, Scale], Finding]


def _measures(battery: Path | None) -> tuple[Measure, ...]:
    return (
        false_alarms.false_rollbacks,
        false_alarms.false_promotions,
        speed.stopping_times,
        speed.logit_noise,
        speed.hazard_times,
        lambda _pool, _seed, _scale: labels.labelled_pairs(battery),
        lambda _pool, seed, scale: replay.bit_equality(seed, scale),
        sampling.tv_bounds,
    )


def main() -> int:
    """Run every property; the exit code says whether all hold."""
    parser = argparse.ArgumentParser(prog="python -m bench.statistics", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter streams, within 3 minutes")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    parser.add_argument("--seed", type=int, default=20260101, help="of everything drawn")
    parser.add_argument("--workers", type=int, default=2, help="processes; the results do not depend on it")
    parser.add_argument("--battery", type=Path, help="folder of labelled generations for property 6")
    options = parser.parse_args()
    if options.workers < 1 or options.seed < 0:
        parser.error("--workers is at least 1 and --seed at least 0")
    if options.battery is not None and not (options.battery / "pairs.json").is_file():
        parser.error(f"--battery {options.battery}: no pairs.json there; give the folder of a battery")
    battery = options.battery or (BATTERY if BATTERY.is_dir() else None)
    scale = Scale.QUICK if options.quick else Scale.FULL
    measures = _measures(battery)
    findings = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        for measure, seed in zip(
            measures, np.random.SeedSequence(options.seed).spawn(len(measures)), strict=True
        ):
            started_s = time.monotonic()
            findings.append(measure(pool, seed, scale))
            sys.stderr.write(f"{findings[-1].name}: {time.monotonic() - started_s:.1f} s\n")
    print(table(findings))
    if options.json:
        print(msgspec.json.encode({"properties": findings}).decode())
    return exit_code(findings)


def exit_code(findings: Sequence[Finding]) -> int:
    """0 when all hold, 1 when one does not, else 4 when one could not be measured."""
    if any(finding.holds is False for finding in findings):
        return 1
    return 4 if any(finding.holds is None for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
