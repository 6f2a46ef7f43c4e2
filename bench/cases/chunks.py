"""CPU of one SSE chunk on its way through: 200 streams, each with a chunk every 30 ms.

The chunks of different streams are spread evenly in time, so a proxy is woken for nearly every one. Proxies
take turns; each holds its 200 streams open for one window.
"""

from __future__ import annotations

import contextlib
import statistics

from bench import load, peers
from bench.cases import Run
from bench.report import Figure
from bench.routes import shadow_table
from bench.stats import median_with_interval, ratios

KEYS = ("cpu_chunk_vs_envoy",)

_STREAMS = 200
_PERIOD_S = 0.03


async def run(run: Run) -> list[Figure]:
    """Measure :data:`KEYS`."""
    rounds, seconds, warm_s = (2, 1.0, 0.5) if run.quick else (7, 4.0, 1.0)
    with contextlib.ExitStack() as stack:
        stub = stack.enter_context(peers.stub(run.cores, period_s=_PERIOD_S))
        table = shadow_table(stub.port, percent=0)
        up = [
            stack.enter_context(peers.envoy(run.cores, stub.port)),
            stack.enter_context(peers.edge(run.cores, table)),
        ]
        windows: dict[str, list[load.Window]] = {peer.name: [] for peer in up}
        for number in range(rounds):
            for peer in up if number % 2 == 0 else reversed(up):
                streams = load.Streams()
                try:
                    await streams.open(peer.name, peer.port, _STREAMS)
                    await streams.watch(peer.name, peer.pids, warm_s)
                    windows[peer.name].append(await streams.watch(peer.name, peer.pids, seconds))
                finally:
                    await streams.close()
            run.say(
                f"chunks round {number + 1}/{rounds}: "
                + ", ".join(f"{name} {seen[-1].cpu_us_each:.1f} µs" for name, seen in windows.items())
            )
    each = {name: [window.cpu_us_each for window in seen] for name, seen in windows.items()}
    detail: dict[str, object] = {
        "cpu_us": {name: statistics.median(values) for name, values in each.items()},
        "chunks_per_s": {
            name: statistics.median(window.per_s for window in seen) for name, seen in windows.items()
        },
        "rounds": each,
    }
    return [Figure.of(KEYS[0], median_with_interval(ratios(each["edge"], each["envoy"])), detail)]
