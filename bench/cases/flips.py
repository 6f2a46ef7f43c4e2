"""How long a rollback takes: from a breach until the last of four edge workers has acknowledged.

The judge's own parts do it (:mod:`bench.flipper`: publisher, latch and link server), with four edges that
serve live requests meanwhile. The edges share one core, the judge and the load the other: harder than
life, where an edge has a core for itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import tempfile
from pathlib import Path

from bench import load, peers
from bench.cases import Run
from bench.machine import BenchError
from bench.report import Figure
from bench.routes import shadow_table
from bench.stats import quantile

KEYS = ("flip_p95_ms", "flip_fsync_ms")

_EDGES = 4
_RATE_PER_S = 50.0
"""Live requests each edge answers meanwhile."""


async def run(run: Run) -> list[Figure]:
    """Measure :data:`KEYS`."""
    count = 20 if run.quick else 250
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forkgate-bench-")))
        stub = stack.enter_context(peers.stub(run.cores))
        flipper = stack.enter_context(
            peers.flipper(run.cores, stub, directory=directory, edges=_EDGES, flips=count)
        )
        table = shadow_table(stub.port, percent=0)
        up = [
            stack.enter_context(
                peers.edge(run.cores, table, name=f"edge {worker}", worker=worker, judge=flipper.address)
            )
            for worker in range(_EDGES)
        ]
        live = [asyncio.create_task(_serve_meanwhile(peer)) for peer in up]
        try:
            flips = await asyncio.get_running_loop().run_in_executor(None, flipper.flips)
        finally:
            for task in live:
                task.cancel()
            outcomes = await asyncio.gather(*live, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BenchError):
                raise outcome
        before = stub.counts()[1]["answers"]
        for peer in up:  # all of them obeyed: nobody goes to the candidate any more
            await load.closed(peer.name, peer.port, peer.pids, connections=4, warm_s=0.0, seconds=0.2)
        counts = stub.counts()
    if before == 0 or counts[1]["answers"] != before:
        raise BenchError(f"the flips did not move live traffic: {before} canary answers, then {counts[1]}")
    total_s = [apart + fsync for apart, fsync in zip(flips.apart_s, flips.fsync_s, strict=True)]
    detail: dict[str, object] = {
        "flips": count,
        "edges": _EDGES,
        "live_requests_during": counts[0]["answers"],
        "canary_requests_during": before,
        "apart_ms": {name: quantile(flips.apart_s, share) * 1e3 for name, share in _SHARES},
        "with_fsync_ms": {name: quantile(total_s, share) * 1e3 for name, share in _SHARES},
        "fsync_ms": {name: quantile(flips.fsync_s, share) * 1e3 for name, share in _SHARES},
    }
    p95_ms, fsync_ms = quantile(flips.apart_s, 0.95) * 1e3, statistics.median(flips.fsync_s) * 1e3
    run.say(f"flips: p95 {p95_ms:.1f} ms, fsync {fsync_ms:.2f} ms")
    return [
        Figure(key="flip_p95_ms", value=p95_ms, detail=detail),
        Figure(key="flip_fsync_ms", value=fsync_ms, detail={"flips": count}),
    ]


_SHARES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))


async def _serve_meanwhile(peer: peers.Peer) -> None:
    """Live requests until cancelled."""
    number = 0
    while True:
        number += 1
        await load.opened(
            peer.name,
            peer.port,
            peer.pids,
            rate_per_s=_RATE_PER_S,
            connections=4,
            warm_s=0.0,
            seconds=0.5,
            seed=number,
        )
