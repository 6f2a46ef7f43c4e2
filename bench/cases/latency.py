"""Latency of the whole answer at a fixed open rate, beside Envoy's.

Blocks alternate between the two proxies, in turning order, with the same arrivals in both blocks of a pair.
A latency runs from the instant when the request was meant to go out to the last byte of its answer. A
figure is the median over pairs of the pair's ratio.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence

from bench import load, peers
from bench.cases import Run
from bench.peers import Peer
from bench.report import Figure
from bench.routes import shadow_table
from bench.stats import median_with_interval, quantile, ratios

KEYS = ("p50_vs_envoy", "p99_vs_envoy")

RATE_PER_S = 1_000
CONNECTIONS = 64


async def run(run: Run) -> list[Figure]:
    """Measure :data:`KEYS`."""
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(peers.stub(run.cores))
        theirs = stack.enter_context(peers.envoy(run.cores, stub.port))
        ours = stack.enter_context(peers.edge(run.cores, shadow_table(stub.port, percent=0)))
        blocks = await paired_blocks(run, ours, theirs)
    return [
        figure(key, share, blocks, ours.name, theirs.name)
        for key, share in (("p50_vs_envoy", 0.50), ("p99_vs_envoy", 0.99))
    ]


async def paired_blocks(run: Run, ours: Peer, theirs: Peer) -> dict[str, list[load.Window]]:
    """Alternating blocks of open load; equally many for both."""
    pairs, seconds, warm_s = (3, 0.5, 0.2) if run.quick else (30, 2.5, 0.3)
    blocks: dict[str, list[load.Window]] = {ours.name: [], theirs.name: []}
    for number in range(pairs):
        for peer in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            blocks[peer.name].append(
                await load.opened(
                    peer.name,
                    peer.port,
                    peer.pids,
                    rate_per_s=RATE_PER_S,
                    connections=CONNECTIONS,
                    warm_s=warm_s,
                    seconds=seconds,
                    seed=number,
                )
            )
        run.say(
            f"latency pair {number + 1}/{pairs}: "
            + ", ".join(f"{name} {_in_words(seen[-1])}" for name, seen in blocks.items())
        )
    return blocks


def _in_words(window: load.Window) -> str:
    p50, p99 = (quantile(window.latencies_s, share) * 1e6 for share in (0.50, 0.99))
    return f"p50 {p50:.0f} p99 {p99:.0f} µs"


def figure(key: str, share: float, blocks: dict[str, list[load.Window]], ours: str, theirs: str) -> Figure:
    """The ratio of one percentile, with its interval."""

    def each(name: str) -> Sequence[float]:
        return [quantile(window.latencies_s, share) for window in blocks[name]]

    detail: dict[str, object] = {
        "requests_per_s": RATE_PER_S,
        "latency_ms": {name: statistics.median(each(name)) * 1e3 for name in (ours, theirs)},
        "generator_late_ms": {
            name: statistics.median(quantile(window.late_s, share) for window in blocks[name]) * 1e3
            for name in (ours, theirs)
        },
        "pairs_ms": [[mine * 1e3, yours * 1e3] for mine, yours in zip(each(ours), each(theirs), strict=True)],
    }
    return Figure.of(key, median_with_interval(ratios(each(ours), each(theirs))), detail)
