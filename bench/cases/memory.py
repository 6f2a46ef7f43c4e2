"""What an idle stream costs an edge in memory.

Streams that have begun and then fall silent: clients that wait for a slow answer. Private memory of the edge
(what would be freed if it ended) with 2,000 of them, less before them, over 2,000. A first batch of streams
is opened and closed beforehand, so that what the process keeps for good is not counted as theirs.
"""

from __future__ import annotations

import asyncio
import contextlib

from bench import load, machine, peers
from bench.cases import Run
from bench.machine import BenchError
from bench.peers import Peer
from bench.report import Figure
from bench.routes import shadow_table

KEYS = ("edge_kib_per_stream",)

_STREAMS = 2_000


async def run(run: Run) -> list[Figure]:
    """Measure :data:`KEYS`."""
    count = 400 if run.quick else _STREAMS
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(peers.stub(run.cores))
        theirs = stack.enter_context(peers.envoy(run.cores, stub.port))
        ours = stack.enter_context(peers.edge(run.cores, shadow_table(stub.port, percent=0)))
        found = {peer.name: await _per_stream(peer, count) for peer in (ours, theirs)}
    run.say("memory: " + ", ".join(f"{name} {kib:.1f} KiB a stream" for name, kib in found.items()))
    return [Figure(key=KEYS[0], value=found[ours.name], detail={"streams": count, "kib_per_stream": found})]


async def _per_stream(peer: Peer, count: int) -> float:
    warm = load.Streams()
    await warm.open(peer.name, peer.port, count // 10)
    await warm.close()
    await asyncio.sleep(1.0)  # the closes reach the proxy; nothing tells us when it is done with them
    before = machine.private_kib(peer.pids)
    streams = load.Streams()
    try:
        await streams.open(peer.name, peer.port, count)
        await asyncio.sleep(1.0)
        streams.check(peer.name)
        after = machine.private_kib(peer.pids)
    finally:
        await streams.close()
    if after <= before:
        raise BenchError(
            f"{peer.name} did not grow with {count} streams: {before:.0f} KiB, then {after:.0f} KiB"
        )
    return (after - before) / count
