"""A judge that only flips: the real link server and the real latch, two hundred breaches in a row.

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
from forkgate.judge.latchkeeper import LatchKeeper
from forkgate.state.latch import Latch, LatchFile
from policies.rollout import Latch as Rollback
from policies.rollout import Stage
from policies.routes import RouteTable
from policies.verdict import Answer, Verdict
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


def _corrupt(reason: str) -> Latch:
    raise SystemExit(reason)  # the file is new


def _rollback() -> Rollback:
    verdict = Verdict(
        gate="token_equality",
        answer=Answer.FAIL,
        value=1.0,
        limit=0.0,
        n=1,
        reason="1 of 1 pairs forked; 0 are allowed",
        deciding_id="019b0000-0000-7000-8000-000000000000",
    )
    return Rollback(
        rollout=ROLLOUT,
        verdict=verdict,
        policy_digest=f"sha256:{0:064x}",
        from_stage=Stage.CANARY,
        unix_s=time.time(),
    )


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

    keeper = LatchKeeper(LatchFile(arguments.latch), _corrupt)
    keeper.open()
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
        written = await keeper.hold(Latch().with_latched(_rollback(), epoch + 1), _WAIT_S)
        if not written.durable:
            raise SystemExit(f"the latch could not be written: {written.error}")
        last_s = await _flip(server, table(epoch + 1, canary=False))
        total_s.append(last_s - breach_s)
        fsync_s.append(written.seconds)
        await asyncio.sleep(_PAUSE_S)
    tell(msgspec.json.encode(Flips(total_s=total_s, fsync_s=fsync_s)))
    keeper.close()
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
