"""CPU of a request: passed through, with 10 % and with 100 % sampled, beside Envoy and vllm-router.

Every proxy is up the whole time, pinned to the proxy's core; one at a time is loaded, round after round, in
turning order, so that a slow minute of the machine hits all alike. A figure is the median over rounds of the
round's ratio.

The load is closed: 32 connections, each with the next request as soon as the last is answered. At a fixed
low rate every request costs any proxy a sleep and a wake-up of its core, a price that the machine sets and
not the proxy; ``detail.fixed_rate`` has that figure too.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import statistics

from bench import load, peers
from bench.cases import Run
from bench.machine import BenchError
from bench.peers import Peer
from bench.report import Figure
from bench.routes import shadow_table
from bench.stats import median_with_interval, ratios

KEYS = (
    "cpu_passthrough_vs_envoy",
    "cpu_sampled10_vs_envoy",
    "cpu_sampled100_vs_envoy_mirror",
    "cpu_vllm_router_vs_envoy",
)

_CONNECTIONS = 32
_FIXED_RATE_PER_S = 1_000
_DROPPED_AT_MOST = 0.01
"""A dropped capture is a capture that was not paid for: more than this and the figure says nothing."""

_VERSUS = {
    "cpu_passthrough_vs_envoy": ("edge", "envoy"),
    "cpu_sampled10_vs_envoy": ("edge, 10 % sampled", "envoy"),
    "cpu_sampled100_vs_envoy_mirror": ("edge, 100 % sampled", "envoy mirroring 100 %"),
    "cpu_vllm_router_vs_envoy": ("vllm-router", "envoy"),
}


async def run(run: Run) -> list[Figure]:
    """Measure whichever of :data:`KEYS` are wanted."""
    keys = [key for key in KEYS if key in run.wanted]
    needed = {name for key in keys for name in _VERSUS[key]}
    rounds, seconds, warm_s = (2, 0.5, 0.3) if run.quick else (7, 3.0, 0.5)
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(peers.stub(run.cores))
        up = {peer.name: peer for peer in _start(run, stack, stub, needed)}
        closed: dict[str, list[load.Window]] = {name: [] for name in up}
        fixed: dict[str, list[load.Window]] = {name: [] for name in up}
        shipped: dict[str, dict[str, int]] = {}
        for number in range(rounds):
            order = list(up) if number % 2 == 0 else list(reversed(up))
            for name in order:
                peer = up[name]
                closed[name].append(
                    await load.closed(
                        name, peer.port, peer.pids, connections=_CONNECTIONS, warm_s=warm_s, seconds=seconds
                    )
                )
                fixed[name].append(
                    await load.opened(
                        name,
                        peer.port,
                        peer.pids,
                        rate_per_s=_FIXED_RATE_PER_S,
                        connections=_CONNECTIONS,
                        warm_s=0.2,
                        seconds=seconds / 2,
                        seed=number,
                    )
                )
            run.say(
                f"cpu round {number + 1}/{rounds}: "
                + ", ".join(f"{name} {windows[-1].cpu_us_each:.0f} µs" for name, windows in closed.items())
            )
        await asyncio.sleep(1.0)  # ten times the longest that an edge holds a batch back
        for peer in up.values():
            sent = sum(window.total for window in closed[peer.name] + fixed[peer.name])
            shipped[peer.name] = _shipped(peer, sent)
        counts = stub.counts()
    if any(port["mangled"] for port in counts) or (counts[0]["rewritten"] and "vllm-router" not in up):
        raise BenchError(f"a proxy changed requests on their way: {counts}")
    return [_figure(key, closed, fixed, shipped) for key in keys]


_EDGES = {"edge": 0.0, "edge, 10 % sampled": 10.0, "edge, 100 % sampled": 100.0}
"""Name to percent sampled."""


def _shipped(peer: Peer, sent: int) -> dict[str, int]:
    """What its judge got from an edge. Raises BenchError when that is not what the edge should have sent."""
    if peer.receiver is None:
        return {}
    counts = peer.receiver.counts()
    if counts.live != sent:
        raise BenchError(f"{peer.name}: {sent} requests left {counts.live} live records")
    expected = sent * _EDGES[peer.name] / 100
    slack = 5 * math.sqrt(expected * (1 - _EDGES[peer.name] / 100)) + _DROPPED_AT_MOST * expected
    if abs(counts.captures - expected) > slack:
        raise BenchError(
            f"{peer.name}: of {sent} requests {counts.captures} captures arrived, not {expected:.0f}"
        )
    return {"requests": sent, "live_records": counts.live, "captures": counts.captures}


def _start(run: Run, stack: contextlib.ExitStack, stub: peers.Stub, needed: set[str]) -> list[Peer]:
    started: list[Peer] = []
    if "envoy" in needed:
        started.append(stack.enter_context(peers.envoy(run.cores, stub.port)))
    if "envoy mirroring 100 %" in needed:
        started.append(stack.enter_context(peers.envoy(run.cores, stub.port, mirror_port=stub.shadow_port)))
    if "vllm-router" in needed:
        started.append(stack.enter_context(peers.vllm_router(run.cores, stub.port)))
    for worker, (name, percent) in enumerate(_EDGES.items()):
        if name in needed:
            table = shadow_table(stub.port, percent=percent)
            started.append(stack.enter_context(peers.edge(run.cores, table, name=name, worker=worker)))
    return started


def _figure(
    key: str,
    closed: dict[str, list[load.Window]],
    fixed: dict[str, list[load.Window]],
    shipped: dict[str, dict[str, int]],
) -> Figure:
    ours, theirs = _VERSUS[key]

    def each(windows: list[load.Window]) -> list[float]:
        return [window.cpu_us_each for window in windows]

    estimate = median_with_interval(ratios(each(closed[ours]), each(closed[theirs])))
    at_rate = median_with_interval(ratios(each(fixed[ours]), each(fixed[theirs])))
    detail: dict[str, object] = {
        "cpu_us": {name: statistics.median(each(closed[name])) for name in (ours, theirs)},
        "requests_per_s": {
            name: statistics.median(window.per_s for window in closed[name]) for name in (ours, theirs)
        },
        "proxy_busy": {
            name: statistics.median(window.proxy_busy for window in closed[name]) for name in (ours, theirs)
        },
        "rounds": {name: each(closed[name]) for name in (ours, theirs)},
        "shipped": shipped.get(ours, {}),
        "fixed_rate": {
            "requests_per_s": _FIXED_RATE_PER_S,
            "ratio": at_rate.value,
            "interval": [at_rate.low, at_rate.high],
            "cpu_us": {name: statistics.median(each(fixed[name])) for name in (ours, theirs)},
        },
    }
    return Figure.of(key, estimate, detail)
