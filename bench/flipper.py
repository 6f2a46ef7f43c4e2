"""A judge that only flips: the real link server and the real latch file, two hundred breaches in a row.

``python -m bench.flipper`` prints ``{"ready": true}``, waits until ``--edges`` edges follow its route table,
then, over and over, sends the tenant to the candidate (not measured) and takes it home again as a breach
does: latch written and synced, table published, every acknowledgement awaited. At the end it prints one JSON
line with every flip's seconds.

A flip's clock starts at the breach, when the verdict is known, and stops when the last edge's
acknowledgement has come in; the time that the latch took to reach the disk is told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from pathlib import Path

import msgspec
import uvloop

from bench.receiver import CountingSink, Counts, tell
from bench.routes import ROLLOUT, canary_table
from forkgate.state.latch import Latched, LatchFile
from policies.routes import RouteTable
from proxy.link.server import LinkServer

_WAIT_S = 10.0
_PAUSE_S = 0.01
"""Between two flips: live requests go through, as they would."""


class Flips(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of every flip, in order."""

    total_s: list[float]
    """Breach to last acknowledgement."""
    fsync_s: list[float]
    """Of that, writing and syncing the latch."""


async def _wait_for_edges(server: LinkServer, count: int) -> None:
    deadline = time.monotonic() + _WAIT_S
    while sum(edge.connected for edge in server.edges()) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(server.edges())} of {count} edges came in {_WAIT_S:.0f} s")
        await asyncio.sleep(0.02)


async def _flip(server: LinkServer, table: RouteTable) -> float:
    """Publish, wait for every edge; returns the last acknowledgement on the monotonic clock."""
    flip = server.publish(table)
    report = await flip.wait(_WAIT_S)
    if not report.complete or report.last_s is None:
        raise SystemExit(f"epoch {table.epoch}: no acknowledgement from {report.missing} in {_WAIT_S:.0f} s")
    return flip.published_s + report.last_s


async def _serve(arguments: argparse.Namespace) -> None:
    def table(epoch: int, *, canary: bool) -> RouteTable:
        return canary_table(arguments.live, arguments.candidate, epoch=epoch, canary=canary)

    loop = asyncio.get_running_loop()
    file = LatchFile(arguments.latch)
    latch = file.open()
    server = LinkServer(arguments.bind, None, CountingSink(Counts()), table(1, canary=False))
    await server.start()
    tell(b'{"ready": true}')
    await _wait_for_edges(server, arguments.edges)
    gc.collect()
    gc.freeze()
    total_s: list[float] = []
    fsync_s: list[float] = []
    for number in range(arguments.flips):
        epoch = 2 * number + 2
        await _flip(server, table(epoch, canary=True))
        await asyncio.sleep(_PAUSE_S)
        breach_s = time.monotonic()
        entry = Latched(rollout=ROLLOUT, reason="bench", epoch=epoch + 1, at_unix_s=time.time())
        await loop.run_in_executor(None, file.write, latch.with_latched(entry))
        synced_s = time.monotonic()
        last_s = await _flip(server, table(epoch + 1, canary=False))
        total_s.append(last_s - breach_s)
        fsync_s.append(synced_s - breach_s)
        await asyncio.sleep(_PAUSE_S)
    tell(msgspec.json.encode(Flips(total_s=total_s, fsync_s=fsync_s)))
    await server.stop()


def main() -> None:
    """Command line of the flipper."""
    parser = argparse.ArgumentParser(prog="python -m bench.flipper", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bind", required=True, help="unix:PATH, or HOST:PORT")
    parser.add_argument("--latch", required=True, type=Path, help="file; its disk is what fsync shows")
    parser.add_argument("--edges", required=True, type=int)
    parser.add_argument("--flips", required=True, type=int)
    parser.add_argument("--live", required=True, type=int, help="port of the home pool")
    parser.add_argument("--candidate", required=True, type=int, help="port of the candidate pool")
    uvloop.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
