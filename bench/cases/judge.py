"""How many pairs a judge compares in a second of one core: from the engines' sockets to a committed row.

``forkgate judge`` alone on the proxy's core; two engine stubs and the captures come from the other one. Each
pair is two answers of 64 tokens with a top-20 for every token, each token sent in a write of its own. More
captures are offered than the judge can take, so it is always busy: what is measured is its capacity. A tenth
of them run on the baseline once more (the control), each is another conversation, and the policy has every
gate that reads them, statistics included. Controls are no pairs of this figure: their cost is in it, their
number is not. Pairs are counted as the store's ledger counts them, after the transaction that holds them.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import machine
from bench.cases import Run
from bench.feeder import Feeder, feeder
from bench.machine import BenchError
from bench.report import Figure
from bench.sidecar import Sidecar, configuration, engine_stub, sidecar, watching_policy
from bench.stats import median_with_interval

KEYS = ("judge_pairs_per_s",)

_IN_FLIGHT = 64
_BACKLOG = 400
"""Captures that wait at the judge while it is measured."""
_STEP_S = 0.002
SHADOW: dict[str, object] = {
    "percent": 100,
    "token_only_percent": 0,
    "control_percent": 10,
    "max_tokens": 64,
    "logprobs": 20,
    "in_flight": _IN_FLIGHT,
    "tokens_per_second": 1e9,
    "tokens_per_day": 10**15,
    "queue_items": 10_000,
    "queue_bytes": 1_000_000_000,
    "queue_age_s": 600,
}


async def run(run: Run, evidence: dict[str, object] | None = None) -> list[Figure]:
    """Measure :data:`KEYS`. ``evidence``: that section of the configuration."""
    windows, seconds = (2, 1.0) if run.quick else (7, 4.0)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forkgate-bench-")))
        baseline = stack.enter_context(engine_stub(run.cores, step_s=_STEP_S))
        candidate = stack.enter_context(engine_stub(run.cores, step_s=_STEP_S))
        config = configuration(
            directory / "state",
            live_url=baseline.url,
            baseline=baseline,
            candidate=candidate,
            shadow=SHADOW,
            policy=watching_policy(directory),
        ) | {"evidence": evidence or {}}
        judge = stack.enter_context(sidecar(run.cores, "judge", directory, config))
        async with feeder(f"unix:{judge.state_dir}/link.sock") as source:
            feeding = asyncio.create_task(_keep_busy(judge, source))
            try:
                await _until(lambda: _compared(judge) >= 2 * _IN_FLIGHT, "the first pairs")
                rates = []
                for number in range(windows):
                    rates.append(await _window(judge, seconds))
                    each = rates[-1]["pairs_per_cpu_s"]
                    run.say(f"judge window {number + 1}/{windows}: {each:.0f} pairs a second of CPU")
            finally:
                feeding.cancel()
            judge.check()
            balance = judge.ask("/v1/ledger")
    if feeding.done() and not feeding.cancelled() and (trouble := feeding.exception()):
        raise trouble
    estimate = median_with_interval([rate["pairs_per_cpu_s"] for rate in rates])
    return [Figure.of(KEYS[0], estimate, {"windows": rates, "ledger": balance})]


def _compared(judge: Sidecar) -> int:
    compared = judge.ask("/v1/ledger")["compared"]
    assert isinstance(compared, int)
    return compared


async def _keep_busy(judge: Sidecar, source: Feeder) -> None:
    """Offer as many captures as it takes to keep ``_BACKLOG`` of them waiting."""
    while True:
        waiting = source.offered - _compared(judge)
        for _ in range(max(_BACKLOG - waiting, 0)):
            source.offer()
        await asyncio.sleep(0.2)


async def _window(judge: Sidecar, seconds: float) -> dict[str, float]:
    """One stretch of work, measured between two looks at the ledger."""
    before, cpu, start = _compared(judge), machine.cpu_s([judge.judge_pid]), time.monotonic()
    await asyncio.sleep(seconds)
    pairs, spent, took = (
        _compared(judge) - before,
        machine.cpu_s([judge.judge_pid]) - cpu,
        time.monotonic() - start,
    )
    if pairs == 0:
        raise BenchError(f"the judge compared nothing in {seconds} s")
    return {"pairs_per_cpu_s": pairs / spent, "pairs_per_s": pairs / took, "judge_busy": spent / took}


async def _until(reached: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not reached():
        if time.monotonic() > deadline:
            raise BenchError(f"{what} did not come in 60 s")
        await asyncio.sleep(0.1)
