"""CPU of a request: passed through, with 10 % and with 100 % sampled, beside Envoy and vllm-router.

Every proxy is up the whole time, pinned to the proxy's core; one at a time is loaded, round after round, in
turning order, so that a slow minute of the machine hits all alike. A figure is the median over rounds of the
round's ratio.

The load is closed: 32 connections, each with the next request as soon as the last is answered. Two other
loads stand in the details. ``every_head_new``: the same from a client that traces, no head comes twice.
``fixed_rate``: so slow that every request costs any proxy a sleep and a wake-up of its core, a price that
the machine sets and not the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
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
"""A dropped copy is a copy that was not paid for: more than this and the figure says nothing."""

_ENVOY, _MIRROR, _ROUTER = "envoy", "envoy mirroring 100 %", "vllm-router"
_EDGES = {"edge": 0.0, "edge, 10 % sampled": 10.0, "edge, 100 % sampled": 100.0}
"""Name to percent sampled."""
_PLAIN, _TENTH, _ALL = _EDGES
_VERSUS = {
    "cpu_passthrough_vs_envoy": (_PLAIN, _ENVOY),
    "cpu_sampled10_vs_envoy": (_TENTH, _ENVOY),
    "cpu_sampled100_vs_envoy_mirror": (_ALL, _MIRROR),
    "cpu_vllm_router_vs_envoy": (_ROUTER, _ENVOY),
}


class _Kind(enum.StrEnum):
    CLOSED = "closed"
    NEW_HEADS = "every_head_new"
    FIXED = "fixed_rate"


_Windows = dict[_Kind, dict[str, list[load.Window]]]


async def run(run: Run) -> list[Figure]:
    """Measure whichever of :data:`KEYS` are wanted."""
    keys = [key for key in KEYS if key in run.wanted]
    needed = {name for key in keys for name in _VERSUS[key]}
    rounds, seconds = (2, 0.5) if run.quick else (7, 2.5)
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(peers.stub(run.cores))
        up = {peer.name: peer for peer in _start(run, stack, stub, needed)}
        windows: _Windows = {kind: {name: [] for name in up} for kind in _Kind}
        for number in range(rounds):
            for peer in up.values() if number % 2 == 0 else reversed(up.values()):
                await _load(peer, windows, number, seconds)
            run.say(
                f"cpu round {number + 1}/{rounds}: "
                + ", ".join(
                    f"{name} {seen[-1].cpu_us_each:.0f} µs" for name, seen in windows[_Kind.CLOSED].items()
                )
            )
        await asyncio.sleep(1.0)  # ten times the longest that an edge holds a batch back
        sent = {name: sum(window.total for kind in _Kind for window in windows[kind][name]) for name in up}
        shipped = {peer.name: _shipped(peer, sent[peer.name]) for peer in up.values()}
        _check_stub(stub.counts(), sent)
    return [_figure(key, windows, shipped) for key in keys]


def _start(run: Run, stack: contextlib.ExitStack, stub: peers.Stub, needed: set[str]) -> list[Peer]:
    started: list[Peer] = []
    if _ENVOY in needed:
        started.append(stack.enter_context(peers.envoy(run.cores, stub.port)))
    if _MIRROR in needed:
        started.append(stack.enter_context(peers.envoy(run.cores, stub.port, mirror_port=stub.shadow_port)))
    if _ROUTER in needed:
        started.append(stack.enter_context(peers.vllm_router(run.cores, stub.port)))
    for worker, (name, percent) in enumerate(_EDGES.items()):
        if name in needed:
            table = shadow_table(stub.port, percent=percent)
            started.append(stack.enter_context(peers.edge(run.cores, table, name=name, worker=worker)))
    return started


async def _load(peer: Peer, windows: _Windows, number: int, seconds: float) -> None:
    """One proxy's turn."""
    for kind in (_Kind.CLOSED, _Kind.NEW_HEADS):
        if kind is _Kind.CLOSED or peer.name in (_PLAIN, _ENVOY):
            window = await load.closed(
                peer.name,
                peer.port,
                peer.pids,
                connections=_CONNECTIONS,
                warm_s=0.4,
                seconds=seconds,
                traced=kind is _Kind.NEW_HEADS,
            )
            windows[kind][peer.name].append(window)
    window = await load.opened(
        peer.name,
        peer.port,
        peer.pids,
        rate_per_s=_FIXED_RATE_PER_S,
        connections=_CONNECTIONS,
        warm_s=0.2,
        seconds=seconds / 2,
        seed=number,
    )
    windows[_Kind.FIXED][peer.name].append(window)


def _shipped(peer: Peer, sent: int) -> dict[str, int]:
    """What its judge got from an edge. Raises BenchError when that is not what the edge should have sent."""
    if peer.receiver is None:
        return {}
    counts = peer.receiver.counts()
    if counts.live != sent:
        raise BenchError(f"{peer.name}: {sent} requests left {counts.live} live records")
    share = _EDGES[peer.name] / 100
    slack = 5 * math.sqrt(sent * share * (1 - share)) + _DROPPED_AT_MOST * sent * share
    if abs(counts.captures - sent * share) > slack:
        raise BenchError(
            f"{peer.name}: {sent} requests left {counts.captures} captures, not {sent * share:.0f}"
        )
    return {"requests": sent, "live_records": counts.live, "captures": counts.captures}


def _check_stub(counts: list[dict[str, int]], sent: dict[str, int]) -> None:
    """Every request reached its upstream as it was sent, and every mirrored one its shadow."""
    live, shadow = counts
    rewritten = sent.get(_ROUTER, 0)  # it writes bodies anew, with the same values
    if live["mangled"] or shadow["mangled"] or live["rewritten"] > rewritten:
        raise BenchError(f"a proxy changed requests on their way: {counts}")
    if live["answers"] != sum(sent.values()):
        raise BenchError(f"{sum(sent.values())} requests were sent and {live['answers']} arrived")
    mirrored = sent.get(_MIRROR, 0)
    if abs(shadow["answers"] - mirrored) > _DROPPED_AT_MOST * mirrored:
        raise BenchError(f"Envoy mirrored {shadow['answers']} of {mirrored} requests")


def _figure(key: str, windows: _Windows, shipped: dict[str, dict[str, int]]) -> Figure:
    ours, theirs = _VERSUS[key]
    detail: dict[str, object] = {"shipped": shipped[ours]}
    for kind in (_Kind.NEW_HEADS, _Kind.FIXED):
        if windows[kind][ours] and windows[kind][theirs]:
            detail[kind.value] = _compare(windows[kind][ours], windows[kind][theirs], ours, theirs)
    closed = windows[_Kind.CLOSED]
    detail |= _compare(closed[ours], closed[theirs], ours, theirs)
    return Figure.of(key, median_with_interval(ratios(_each(closed[ours]), _each(closed[theirs]))), detail)


def _each(windows: list[load.Window]) -> list[float]:
    return [window.cpu_us_each for window in windows]


def _compare(mine: list[load.Window], yours: list[load.Window], ours: str, theirs: str) -> dict[str, object]:
    """Two proxies under the same load."""
    both = {ours: mine, theirs: yours}
    estimate = median_with_interval(ratios(_each(mine), _each(yours)))
    return {
        "ratio": estimate.value,
        "interval": [estimate.low, estimate.high],
        "cpu_us": {name: statistics.median(_each(seen)) for name, seen in both.items()},
        "requests_per_s": {
            name: statistics.median(window.per_s for window in seen) for name, seen in both.items()
        },
        "proxy_busy": {
            name: statistics.median(window.proxy_busy for window in seen) for name, seen in both.items()
        },
        "rounds": {name: _each(seen) for name, seen in both.items()},
    }
