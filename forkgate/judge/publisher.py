"""The one place that makes route tables: rising epochs, and every edge's acknowledgement awaited.

A rollback goes latch → disk → epoch raised → published → acknowledged by every edge. All publications stand
in one line (a lock), so that no table made for another reason announces a rollback before its latch had its
chance at the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from forkgate.judge.latchkeeper import LatchKeeper, Written
from forkgate.state.unreadable import with_announced
from policies.rollout import Latch as Rollback
from policies.rollout import RolloutState
from policies.routes import Pool, PoolName, RolloutName, RouteTable
from policies.tables import route_table
from proxy.link.flip import Flip, FlipReport
from proxy.link.server import LinkServer

log = logging.getLogger(__name__)


class FlipDone(msgspec.Struct, frozen=True, kw_only=True):
    """A rollback that went out, in numbers."""

    rollout: str
    epoch: int
    durable: bool
    """Its latch was on disk before it was announced."""
    seconds: float
    """Deciding token → last acknowledgement, the disk's share left out."""
    fsync_s: float
    edges: int
    """Edges that acknowledged."""
    missing: tuple[str, ...]
    """Incarnations of edges that did not, in the time they had."""
    unix_s: float


class FlipListener(Protocol):
    """Told of each flip: right after it was announced, and once it is over."""

    def flip_published(self, rollback: Rollback, written: Written, epoch: int) -> None: ...

    def flip_done(self, done: FlipDone) -> None: ...

    def latch_durable(self, rollout: str) -> None:
        """The disk took a latch that it had refused before."""
        ...


class Publisher:
    """Epochs, tables and the latch of one judge."""

    def __init__(
        self,
        *,
        home: PoolName,
        pools: Iterable[Pool],
        states: Callable[[], Sequence[RolloutState]],
        keeper: LatchKeeper,
        epoch: int,
        latch_s: float,
        acknowledge_s: float,
    ) -> None:
        """
        Args:
            states: the rollouts as they stand at the moment of a call, in the configuration's order.
            epoch: of the first table; above every epoch that anybody is known to have seen.
            latch_s: how long a flip waits for the disk.
            acknowledge_s: how long it waits for edges before it names those that are missing.
        """
        self._home = home
        self._pools = tuple(pools)
        self._states = states
        self.keeper = keeper
        self._latch_s = latch_s
        self._acknowledge_s = acknowledge_s
        self._line = asyncio.Lock()
        self._floor = epoch
        self.server: LinkServer | None = None
        self.listener: FlipListener | None = None
        self.table = self._table(epoch, "judge started")

    def _table(self, epoch: int, cause: str) -> RouteTable:
        table = route_table(
            epoch=epoch, home=self._home, pools=self._pools, rollouts=self._states(), cause=cause
        )
        latched = self.keeper.latch.latched
        return msgspec.structs.replace(
            table, rolled_back={RolloutName(name): one.epoch for name, one in latched.items()}
        )

    def ahead(self, epoch: int) -> None:
        """Somebody out there uses a newer epoch than ours; the next one is above it."""
        self._floor = max(self._floor, epoch)

    async def publish(self, cause: str) -> FlipReport:
        """Make a table of the present states and wait for the edges."""
        async with self._line:
            flip = self._announce(cause)
        return await flip.wait(self._acknowledge_s)

    async def roll_back(self, rollback: Rollback, decided_s: float) -> FlipDone:
        """Carry a breach out.

        Args:
            decided_s: ``time.monotonic()`` when the deciding token or record was here.
        """
        async with self._line:
            epoch = self._next_epoch()
            written = await self.keeper.hold(self.keeper.latch.with_latched(rollback, epoch), self._latch_s)
            if not written.durable:
                log.error(
                    "rollback goes out without a durable latch",
                    extra={"rollout": rollback.rollout, "error": written.error},
                )
            flip = self._announce(f"rollback of {rollback.rollout}: {rollback.verdict.reason}")
        if self.listener is not None:
            self.listener.flip_published(rollback, written, flip.epoch)
        report = await flip.wait(self._acknowledge_s)
        last_s = flip.published_s + (report.last_s or 0.0)
        if not report.complete:
            last_s = time.monotonic()
        done = FlipDone(
            rollout=rollback.rollout,
            epoch=flip.epoch,
            durable=written.durable,
            seconds=max(0.0, last_s - decided_s - written.seconds),
            fsync_s=written.seconds,
            edges=len(report.acknowledged_s),
            missing=report.missing,
            unix_s=time.time(),
        )
        if self.listener is not None:
            self.listener.flip_done(done)
        return done

    def recall(self, announced: Mapping[RolloutName, int]) -> list[Rollback]:
        """Hold the rollbacks that edges were told of and that no latch holds; those that are new here.

        The caller publishes. It waits for no disk: this was announced before, and upkeep writes it down.
        """
        rollouts = [state.plan.name for state in self._states()]
        before = self.keeper.latch
        latch = with_announced(before, announced, rollouts)
        new = [one.rollback for name, one in latch.latched.items() if name not in before.latched]
        if new:
            names = ", ".join(sorted(one.rollout for one in new))
            self.keeper.recall(latch, f"the latch does not hold the rollback of {names} yet")
        return new

    async def lift(self, name: str, why: str, unix_s: float) -> Written:
        """Open the latch of one rollout, on disk too. It stands again when the disk refuses."""
        async with self._line:  # what is latched while this waits in line stays latched
            before = self.keeper.latch
            entry = before.latched.get(name)
            if entry is None:  # somebody else was faster
                return Written(durable=True, seconds=0.0)
            written = await self.keeper.hold(before.with_lifted(name, why, unix_s), self._latch_s)
            if not written.durable:
                now = self.keeper.latch  # an edge may have told of another rollback meanwhile
                again = msgspec.structs.replace(
                    now, latched={**now.latched, name: entry}, lifted=before.lifted
                )
                await self.keeper.hold(again, self._latch_s)
            return written

    def latch_durable(self, rollout: str) -> None:
        """The disk took a latch that it had refused before."""
        if self.listener is not None:
            self.listener.latch_durable(rollout)

    def _next_epoch(self) -> int:
        return max(self._floor, self.table.epoch) + 1

    def _announce(self, cause: str) -> Flip:
        epoch = self._next_epoch()
        self.table = self._table(epoch, cause)
        self._floor = epoch
        assert self.server is not None
        flip = self.server.publish(self.table)
        log.info(
            "route table published",
            extra={
                "epoch": epoch,
                "cause": cause,
                "routes": self.table.routes,
                "edges": len(self.server.edges()),
            },
        )
        return flip
