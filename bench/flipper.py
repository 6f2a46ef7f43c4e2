"""A judge that only flips: the judge's own publisher, latch and link server, 250 breaches in a row.

``python -m bench.flipper`` prints ``{"ready": true}``, waits until ``--edges`` edges follow its route table,
then, over and over, sends the tenant to the candidate (not measured) and takes it home again as a breach
does: latch written and synced, epoch raised, table published, every acknowledgement awaited. At the end it
prints one JSON line with every flip's seconds.

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

from bench.payloads import TENANT
from bench.receiver import CountingSink, Counts, tell
from bench.routes import CANDIDATE, LIVE, ROLLOUT, pool
from forkgate.judge.latchkeeper import LatchKeeper
from forkgate.judge.publisher import FlipDone, Publisher
from forkgate.state.latch import Latch, LatchFile
from policies.policy import load_policy
from policies.rollout import Latch as Rollback
from policies.rollout import RolloutPlan, RolloutState, ShadowStage, Stage, Tick, Widening, start, step
from policies.routes import TenantName
from policies.verdict import Answer, Verdict
from proxy.link.server import LinkServer

_ABOUT = __doc__.split("\n", 1)[0]
_WAIT_S = 10.0
_PAUSE_S = 0.01
"""Between two flips: live requests go through, as they would."""


class Flips(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of every flip, in order."""

    apart_s: list[float]
    """Breach to last acknowledgement, the latch's way to the disk left out."""
    fsync_s: list[float]
    """Writing and syncing the latch."""


class Flipper:
    """One rollout that is breached again and again."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._plan = RolloutPlan(
            name=ROLLOUT,
            baseline=LIVE,
            candidate=CANDIDATE,
            policy=load_policy("audit"),
            percent=0,
            shadow_stage=ShadowStage(skip=True),
            steps=(Widening(tenants=(TenantName(TENANT),)),),
        )
        self._home = start(self._plan, self._rollback())
        self._canary, _ = step(start(self._plan), Tick(unix_s=time.time()))
        self._state: RolloutState = self._home
        self._keeper = LatchKeeper(LatchFile(arguments.latch), _corrupt)
        self._keeper.open()
        self._publisher = Publisher(
            home=LIVE,
            pools=(pool(LIVE, arguments.live), pool(CANDIDATE, arguments.candidate)),
            states=lambda: (self._state,),
            keeper=self._keeper,
            epoch=2,  # the edges start with 1
            latch_s=_WAIT_S,
            acknowledge_s=_WAIT_S,
        )
        self._server = LinkServer(arguments.bind, None, CountingSink(Counts()), self._publisher.table)
        self._publisher.server = self._server

    def _rollback(self) -> Rollback:
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
            policy_digest=self._plan.policy.digest,
            from_stage=Stage.CANARY,
            unix_s=time.time(),
        )

    async def run(self, edges: int, flips: int) -> Flips:
        """Flip ``flips`` times once ``edges`` edges are here."""
        await self._server.start()
        tell(b'{"ready": true}')
        await self._wait_for(edges)
        gc.collect()
        gc.freeze()
        done = [await self._flip(edges) for _ in range(flips)]
        self._keeper.close()
        await self._server.stop()
        return Flips(apart_s=[flip.seconds for flip in done], fsync_s=[flip.fsync_s for flip in done])

    async def _wait_for(self, edges: int) -> None:
        deadline = time.monotonic() + _WAIT_S
        while sum(edge.connected for edge in self._server.edges()) < edges:
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(self._server.edges())} of {edges} edges came in {_WAIT_S:.0f} s")
            await asyncio.sleep(0.02)

    async def _flip(self, edges: int) -> FlipDone:
        if latched := self._keeper.latch.latched.get(ROLLOUT):
            await self._publisher.lift(latched.rollback, "bench", time.time())
        self._state = self._canary
        await self._publisher.publish("bench: canary")
        await asyncio.sleep(_PAUSE_S)
        breach_s = time.monotonic()
        self._state = self._home
        done = await self._publisher.roll_back(self._rollback(), breach_s)
        if done.missing or done.edges != edges or not done.durable:
            raise SystemExit(f"a flip is not what it should be: {done}")
        await asyncio.sleep(_PAUSE_S)
        return done


def _corrupt(reason: str) -> Latch:
    raise SystemExit(reason)  # the file is new


def main() -> None:
    """Command line of the flipper."""
    parser = argparse.ArgumentParser(prog="python -m bench.flipper", description=_ABOUT)
    parser.add_argument("--bind", required=True, help="unix:PATH, or HOST:PORT")
    parser.add_argument("--latch", required=True, type=Path, help="file; its disk is what fsync shows")
    parser.add_argument("--edges", required=True, type=int)
    parser.add_argument("--flips", required=True, type=int)
    parser.add_argument("--live", required=True, type=int, help="port of the home pool")
    parser.add_argument("--candidate", required=True, type=int, help="port of the candidate pool")
    arguments = parser.parse_args()
    flips = uvloop.run(Flipper(arguments).run(arguments.edges, arguments.flips))
    tell(msgspec.json.encode(flips))


if __name__ == "__main__":
    main()
