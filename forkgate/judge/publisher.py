"""The one place that makes route tables: rising epochs, and every edge's acknowledgement awaited.

A rollback goes latch → disk → epoch raised → published → acknowledged by every edge. All publications stand
in one line (a lock), so that no table made for another reason announces a rollback before its latch had its
chance at the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from forkgate.judge.latchkeeper import LatchKeeper, Written
from forkgate.state.latch import Latch
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

    async def lift(self, latch: Latch) -> Written:
        """Put a lifted latch on disk. What stood before stands again when the disk refuses."""
        async with self._line:
            before = self.keeper.latch
            written = await self.keeper.hold(latch, self._latch_s)
            if not written.durable:
                await self.keeper.hold(before, self._latch_s)
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
