"""The one place that makes route tables: rising epochs, and every edge's acknowledgement awaited.

A rollback, of a rollout or of one tenant, goes latch → disk → epoch raised → published → acknowledged by
every edge. All publications stand in one line (a lock), so that no table made for another reason announces a
rollback before its latch had its chance at the disk.

Home is where the latch's file says: a promotion's table goes out once the disk holds that home moved, and
until then the promoted rollout's tenants are routed one by one, as before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from forkgate.judge.latchkeeper import LatchKeeper, Written
from forkgate.state.latch import Moved
from forkgate.state.unreadable import with_announced
from policies.rollout import Latch as Rollback
from policies.rollout import RolloutState, Stage
from policies.routes import Pool, PoolName, RolloutName, RouteTable
from policies.tables import route_table
from proxy.link.flip import Flip, FlipReport
from proxy.link.server import LinkServer

log = logging.getLogger(__name__)


class FlipDone(msgspec.Struct, frozen=True, kw_only=True):
    """A rollback that went out, in numbers."""

    rollout: str
    tenant: str | None = None
    """The one that was sent home alone; None: the whole rollout."""
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

    def latch_durable(self, rollout: str, tenant: str | None) -> None:
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
        keeper.on_late = self.latch_durable
        self._latch_s = latch_s
        self._acknowledge_s = acknowledge_s
        self._line = asyncio.Lock()
        self._floor = epoch
        self.server: LinkServer | None = None
        self.listener: FlipListener | None = None
        self.table = self._table(epoch, "judge started")

    @property
    def home(self) -> PoolName:
        """Where tenants without a route go."""
        moved = self.keeper.latch.moved
        return self._home if moved is None else PoolName(moved.pool)

    def _table(self, epoch: int, cause: str) -> RouteTable:
        moved = self.keeper.latch.moved
        table = route_table(
            epoch=epoch,
            home=self.home,
            pools=self._pools,
            rollouts=[_as_promised(state, moved) for state in self._states()],
            cause=cause,
        )
        return msgspec.structs.replace(table, rolled_back=self.keeper.latch.announced)

    def ahead(self, epoch: int) -> None:
        """Somebody out there uses a newer epoch than ours; the next one is above it."""
        self._floor = max(self._floor, epoch)

    async def publish(self, cause: str) -> FlipReport:
        """Make a table of the present states and wait for the edges."""
        async with self._line:
            flip = self._announce(cause)
        return await flip.wait(self._acknowledge_s)

    async def roll_back(self, rollback: Rollback, decided_s: float) -> FlipDone:
        """Carry a breach out, of a rollout or of one tenant.

        Args:
            decided_s: ``time.monotonic()`` when the deciding token or record was here.
        """
        async with self._line:
            epoch = self._next_epoch()
            latch = self.keeper.latch
            if rollback.tenant is None:
                latch = latch.with_latched(rollback, epoch)
            else:
                latch = latch.with_tenant(rollback.tenant, rollback, epoch)
            written = await self.keeper.hold(latch, self._latch_s)
            if not written.durable:
                log.error(
                    "rollback goes out without a durable latch",
                    extra={**_whose(rollback), "error": written.error},
                )
            whom = rollback.rollout if rollback.tenant is None else f"{rollback.tenant} in {rollback.rollout}"
            flip = self._announce(f"rollback of {whom}: {rollback.verdict.reason}")
        if self.listener is not None:
            self.listener.flip_published(rollback, written, flip.epoch)
        report = await flip.wait(self._acknowledge_s)
        last_s = flip.published_s + (report.last_s or 0.0)
        if not report.complete:
            last_s = time.monotonic()
        done = FlipDone(
            rollout=rollback.rollout,
            tenant=rollback.tenant,
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

    async def move_home(self, rollout: RolloutName, pool: PoolName, cause: str) -> Written:
        """A promotion: home is the candidate, first on disk and then in the table. When the disk refuses,
        nothing has moved."""
        async with self._line:
            before = self.keeper.latch
            if rollout in before.latched:  # it was rolled back while this waited in line
                return Written(
                    durable=False, seconds=0.0, error=f"rollout {rollout} was rolled back meanwhile"
                )
            moved = Moved(rollout=rollout, pool=pool, epoch=self._next_epoch(), unix_s=time.time())
            written = await self.keeper.hold(before.with_home(moved), self._latch_s)
            if not written.durable:
                again = self.keeper.latch.with_home(before.moved)  # somebody may have latched more meanwhile
                await self.keeper.hold(again, self._latch_s)
                log.error(
                    "home stays, its move cannot be kept", extra={"rollout": rollout, "error": written.error}
                )
                return written
            flip = self._announce(cause)
        await flip.wait(self._acknowledge_s)
        return written

    def has_moved(self, state: RolloutState) -> bool:
        """Whether home is where this promoted rollout moved it, on disk and for every edge."""
        moved = self.keeper.latch.moved
        return moved is not None and moved.rollout == state.plan.name

    async def home_back(self, rollout: str, cause: str) -> None:
        """Home is the configuration's again, if ``rollout`` had moved it. A disk that refuses holds it up for
        a bounded time only; upkeep tries again."""
        async with self._line:
            moved = self.keeper.latch.moved
            if moved is None or moved.rollout != rollout:
                return  # the rollback's own latch said so already
            written = await self.keeper.hold(self.keeper.latch.with_home(None), self._latch_s)
            if not written.durable:
                log.error("home goes back without a disk", extra={"rollout": rollout, "error": written.error})
            flip = self._announce(cause)
        await flip.wait(self._acknowledge_s)

    def recall(self, announced: Mapping[RolloutName, int]) -> list[Rollback]:
        """Hold the rollbacks that edges were told of and that no latch holds; those that are new here.

        The caller publishes. It waits for no disk: this was announced before, and upkeep writes it down.
        """
        before = self.keeper.latch
        latch = with_announced(before, announced)
        new = [one.rollback for name, one in latch.latched.items() if name not in before.latched]
        for name, its in latch.tenants.items():
            known = before.tenants.get(name, {})
            new += [one.rollback for tenant, one in its.items() if tenant not in known]
        if new:
            names = ", ".join(sorted(one.rollout + (f"/{one.tenant}" if one.tenant else "") for one in new))
            self.keeper.recall(latch, f"the latch does not hold the rollback of {names} yet")
        return new

    async def lift(self, rollback: Rollback, why: str, unix_s: float) -> Written:
        """Open the latch of this rollback, of a rollout or of one of its tenants, on disk too. It stands
        again when the disk refuses; another one that was latched meanwhile stands anyway."""
        name, tenant = rollback.rollout, rollback.tenant
        async with self._line:  # what is latched while this waits in line stays latched
            before = self.keeper.latch
            entries = before.latched if tenant is None else before.tenants.get(name, {})
            entry = entries.get(name if tenant is None else tenant)
            if entry is None:  # somebody else was faster
                return Written(durable=True, seconds=0.0)
            if entry.rollback.unix_s != rollback.unix_s:
                return Written(durable=False, seconds=0.0, error="it is another one, latched meanwhile")
            written = await self.keeper.hold(before.with_lifted(name, why, unix_s, tenant), self._latch_s)
            if not written.durable:
                now = self.keeper.latch  # an edge may have told of another rollback meanwhile
                if tenant is None:
                    again = msgspec.structs.replace(now, latched={**now.latched, name: entry})
                else:
                    its = {**now.tenants.get(name, {}), tenant: entry}
                    again = msgspec.structs.replace(now, tenants={**now.tenants, name: its})
                again = msgspec.structs.replace(again, lifted=before.lifted)
                await self.keeper.hold(again, self._latch_s)
            return written

    def latch_durable(self) -> None:
        """The disk took what it had refused before."""
        if self.listener is None:
            return
        latch = self.keeper.latch
        for name in latch.latched:
            self.listener.latch_durable(name, None)
        for name, its in latch.tenants.items():
            for tenant in its:
                self.listener.latch_durable(name, tenant)

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


def _as_promised(state: RolloutState, moved: Moved | None) -> RolloutState:
    """A promoted rollout whose move of home is not on disk yet counts as observing, tenant by tenant."""
    if state.stage is Stage.PROMOTED and (moved is None or moved.rollout != state.plan.name):
        return msgspec.structs.replace(state, stage=Stage.OBSERVING)
    return state


def _whose(rollback: Rollback) -> dict[str, str]:
    tenant = {} if rollback.tenant is None else {"tenant": str(rollback.tenant)}
    return {"rollout": str(rollback.rollout), **tenant}
