"""How much an edge grows under a candidate that never stops talking, on both of its ways.

``forkgate serve`` with a candidate that streams without end, whatever limit it is given. On the shadow's way:
every request is sampled while requests go through, and each shadow answer has to be broken off. On the live
way: the tenant is a canary and eight of its clients have asked for a stream and stopped reading, so the
candidate's bytes have nowhere to go. Memory is read after a minute, when all buffers are full and the
collector has run once (between two of its runs, what gRPC's calls leave in cycles comes to some 2 MiB), and
again at the end.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import load, machine
from bench.cases import Run
from bench.cases.judge import SHADOW
from bench.engine_stub import Mode
from bench.machine import BenchError
from bench.payloads import STREAM_REQUESTS
from bench.report import Figure
from bench.sidecar import configuration, engine_stub, patient_policy, sidecar

KEYS = ("endless_candidate_growth_mib",)

_STEP_S = 0.002
_SILENT_CLIENTS = 8
_RATE_PER_S = 50.0


async def run(run: Run) -> list[Figure]:
    """Measure :data:`KEYS`."""
    settle_s, seconds = (2.0, 2.0) if run.quick else (60.0, 40.0)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forkgate-bench-")))
        baseline = stack.enter_context(engine_stub(run.cores, step_s=_STEP_S))
        candidate = stack.enter_context(engine_stub(run.cores, step_s=_STEP_S))
        config = configuration(
            directory / "state",
            live_url=baseline.url,
            baseline=baseline,
            candidate=candidate,
            shadow={**SHADOW, "in_flight": 8, "queue_items": 64},
            policy=patient_policy(directory),
            canary=True,
        )
        up = stack.enter_context(sidecar(run.cores, "serve", directory, config))
        candidate.become(Mode.ENDLESS)
        stack.enter_context(_silent_clients(up.port))
        await _requests(up.port, up.edge_pids, settle_s)
        edge_before, judge_before = _memory(up.edge_pids), _memory([up.judge_pid])
        tokens_before = candidate.counts()["tokens"]
        await _requests(up.port, up.edge_pids, seconds)
        edge_after, judge_after = _memory(up.edge_pids), _memory([up.judge_pid])
        counts, ledger = candidate.counts(), up.ask("/v1/ledger")
        if up.ask("/v1/status")["judge"]["pid"] != up.judge_pid:
            raise BenchError("the judge was started again")
    if ledger["compared"] == 0 or counts["tokens"] - tokens_before < seconds / _STEP_S:
        raise BenchError(f"the candidate did not talk all the time: {counts}, {ledger}")
    growth_mib = edge_after - edge_before
    run.say(f"endless: edge {growth_mib:+.2f} MiB, judge {judge_after - judge_before:+.2f} MiB")
    detail: dict[str, object] = {
        "seconds": seconds,
        "edge_mib": [edge_before, edge_after],
        "judge_mib": [judge_before, judge_after],
        "candidate": counts,
        "ledger": {name: ledger[name] for name in ("captured", "compared", "dropped", "in_flight")},
    }
    return [Figure(key=KEYS[0], value=growth_mib, detail=detail)]


def _memory(pids: tuple[int, ...] | list[int]) -> float:
    """MiB."""
    return machine.private_kib(pids) / 1024


async def _requests(port: int, pids: tuple[int, ...], seconds: float) -> None:
    await load.opened(
        "forkgate", port, pids, rate_per_s=_RATE_PER_S, connections=16, warm_s=0.0, seconds=seconds, seed=5
    )


@contextlib.contextmanager
def _silent_clients(port: int) -> Iterator[None]:
    """Clients that ask for a stream and never read a byte of it."""
    with contextlib.ExitStack() as stack:
        for _ in range(_SILENT_CLIENTS):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(STREAM_REQUESTS.render())
        yield
