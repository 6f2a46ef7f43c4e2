"""Whether one more question may start now: token rate, the day's budget, probes, lulls in live work."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec

from proxy.ledger import DropReason
from proxy.mirror.arm import Sources
from proxy.mirror.budget import TokenBudget
from proxy.mirror.errors import Dropped
from proxy.mirror.load import LOAD_AGE_S
from proxy.mirror.places import Picker
from proxy.mirror.pools import ShadowRollout
from proxy.mirror.refusals import Refusal, Refusals

PROBE_WAIT_S = 30.0
"""How long a lane's first questions wait for the candidate's first probe; then its silence is evidence."""


class Block(msgspec.Struct, frozen=True):
    """What keeps a question waiting."""

    reason: DropReason
    refusal: Refusal
    detail: str
    pause_s: float
    """After which to look again, if nothing happens before."""


class Room:
    """One for a lane."""

    def __init__(
        self,
        rollout: ShadowRollout,
        budget: TokenBudget,
        baseline: Picker,
        candidate: Picker,
        sources: Sources,
    ) -> None:
        self._settings = rollout.settings
        self._budget = budget
        self._baseline = baseline
        self._candidate = candidate
        self._monotonic = sources.monotonic
        self._born_s = sources.monotonic()
        self._poked = asyncio.Event()
        self.refusals = Refusals()

    def admit(self, tenant: str) -> None:
        """Raises Dropped where the tenant's or the day's tokens are spent."""
        spent_out = self._budget.spent_out(tenant)
        if spent_out is not None:
            self.refusals.spent_out(spent_out[0])
            raise Dropped(*spent_out)

    async def block(self, met: set[Refusal], *, candidate: bool = True) -> Block | None:
        """What keeps a question waiting now; None when it may start.

        Args:
            met: what kept this question before; added to.
            candidate: False for one that does not ask the candidate.
        """
        block = await self._block(candidate=candidate)
        if block is not None:
            self.refusals.waits(block.refusal, met)
        return block

    async def _block(self, *, candidate: bool) -> Block | None:
        wait_s = self._budget.wait_s()
        if wait_s > 0:
            detail = f"more than {self._settings.tokens_per_second:g} tokens a second"
            return Block(DropReason.TOKEN_RATE, Refusal.TOKEN_RATE, detail, wait_s)
        if not self._baseline.probed:
            why = self._baseline.trouble()
            return Block(DropReason.BASELINE_UNAVAILABLE, Refusal.NOT_PROBED, why, LOAD_AGE_S)
        if candidate and not self._candidate.probed and self._monotonic() - self._born_s < PROBE_WAIT_S:
            why = self._candidate.trouble()
            return Block(DropReason.IN_FLIGHT_LIMIT, Refusal.NOT_PROBED, why, LOAD_AGE_S)
        for picker in (self._baseline, self._candidate) if candidate else (self._baseline,):
            busy = await picker.busy()
            if busy is not None:
                return Block(DropReason.POOL_BUSY, busy.refusal, busy.detail, LOAD_AGE_S)
        return None

    async def wait(self, tenant: str, *, candidate: bool = True) -> None:
        """Until one may start, ``queue_age_s`` at most.

        Raises:
            Dropped: the tenant's or the day's tokens are spent, or it waited too long: with what kept it.
        """
        since_s = self._monotonic()
        met: set[Refusal] = set()
        while True:
            self.admit(tenant)
            block = await self.block(met, candidate=candidate)
            if block is None:
                return
            waited_s = self._monotonic() - since_s
            left_s = self._settings.queue_age_s - waited_s
            if left_s <= 0:
                raise Dropped(block.reason, f"waited {waited_s:.1f} s; {block.detail}")
            poked = self._poked
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(block.pause_s, left_s)):
                    await poked.wait()

    def poke(self) -> None:
        """All who wait look again."""
        poked, self._poked = self._poked, asyncio.Event()
        poked.set()
