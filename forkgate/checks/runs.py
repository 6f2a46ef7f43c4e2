"""Checks as the judge makes them: the right pools, when their engines have been probed."""

from __future__ import annotations

import asyncio
import logging

from comparator.floor import Floor
from forkgate.checks.ask import answering
from forkgate.checks.progress import CheckProgress, Progress
from forkgate.checks.quick_check import quick_check
from forkgate.checks.report import CheckReport
from forkgate.checks.self_check import self_check
from forkgate.config.model import Config
from policies.policy import Level
from policies.rollout import CheckKind
from proxy.mirror import ShadowPool, ShadowRollout, Sources
from proxy.mirror.places import Picker
from proxy.mirror.refusals import Refusal

log = logging.getLogger(__name__)

POLL_S = 0.25
SETTLE_S = 10.0
"""Once a pool's first endpoint has been probed, how long the others may take to be asked as well."""


class CheckRuns:
    """Makes the checks of every rollout."""

    def __init__(
        self, config: Config, rollouts: tuple[ShadowRollout, ...], sources: Sources | None = None
    ) -> None:
        """
        Args:
            rollouts: with the pools whose endpoints somebody probes (``forkgate.fleet``).
        """
        self._config = config
        self._rollouts = {rollout.name: rollout for rollout in rollouts}
        self._sources = sources if sources is not None else Sources()
        self._floors: dict[str, Floor] = {}
        self._running: dict[str, tuple[Progress, float]] = {}
        """Rollout → its check's progress, and when it began."""
        self._pickers = {
            (rollout.name, pool.name): Picker(pool, self._sources.monotonic, rollout.settings)
            for rollout in rollouts
            for pool in (rollout.baseline, rollout.candidate)
        }
        self._resting: set[tuple[str, str]] = set()
        """(rollout, pool): live work has come back there, and no check of this rollout has found it quiet
        since."""
        self._work: dict[str, asyncio.Task[CheckReport]] = {}
        self._asking: dict[str, tuple[str, ...]] = {}
        """Rollout → the pools that its check asks."""

    async def run(self, rollout: str, kind: CheckKind, level: Level) -> CheckReport:
        """Make one check. Waits, without limit, until an endpoint of each pool concerned has been probed: an
        engine that still loads is no finding, and what does not answer stands among the judge's troubles.

        Raises nothing but a cancellation, and KeyError for an unknown rollout.
        """
        progress = Progress()
        mine = self._running[rollout] = (progress, self._sources.monotonic())
        try:
            return await self._undisturbed(rollout, kind, level, progress)
        finally:
            if self._running.get(rollout) is mine:  # else the next one's
                del self._running[rollout]

    def progress(self, rollout: str) -> CheckProgress | None:
        """How far the check of this rollout is; None while none runs."""
        if rollout not in self._running:
            return None
        progress, began_s = self._running[rollout]
        return progress.at(self._sources.monotonic() - began_s)

    def yield_pool(self, pool: str, why: str) -> int:
        """Live work comes back to this pool: a check that asks it is broken off now, and made anew once no
        request has waited there for the rollout's ``shadow.quiet_s``; so is one that begins meanwhile.
        Endpoints that serve no live work go on.

        Returns:
            How many checks were broken off.
        """
        for (rollout, name), picker in self._pickers.items():
            if name == pool and not picker.pool.dedicated:
                picker.yield_to_live(why)
                self._resting.add((rollout, name))
        mine = [
            rollout
            for rollout, pools in self._asking.items()
            if pool in pools and (rollout, pool) in self._resting
        ]
        for rollout in mine:
            log.warning(
                "a check makes room for live work", extra={"rollout": rollout, "pool": pool, "cause": why}
            )
            self._work[rollout].cancel()
        return len(mine)

    async def _undisturbed(
        self, rollout: str, kind: CheckKind, level: Level, progress: Progress
    ) -> CheckReport:
        at = self._rollouts[rollout]
        pools = (at.baseline,) if kind is CheckKind.SELF_CHECK else (at.baseline, at.candidate)
        while True:
            for pool in pools:
                await self._quiet(rollout, pool.name, progress)
            progress.answers, progress.wanted = 0, None
            work = self._work[rollout] = asyncio.create_task(self._run(rollout, kind, level, progress))
            self._asking[rollout] = tuple(pool.name for pool in pools)
            try:
                return await work
            except asyncio.CancelledError:
                mine = asyncio.current_task()
                if not work.cancelled() or (mine is not None and mine.cancelling()):
                    raise  # the check itself was ended
            finally:
                if self._work.get(rollout) is work:
                    del self._work[rollout], self._asking[rollout]
                work.cancel()

    async def _quiet(self, rollout: str, pool: str, progress: Progress) -> None:
        """Until the pool has nobody waiting any more, where live work has come back to it."""
        while (rollout, pool) in self._resting:
            busy = await self._pickers[rollout, pool].busy()
            if busy is None or busy.refusal is not Refusal.LIVE_CAME_BACK:
                self._resting.discard((rollout, pool))
                break
            progress.waiting = busy.detail
            await asyncio.sleep(POLL_S)
        progress.waiting = None

    async def _run(self, rollout: str, kind: CheckKind, level: Level, progress: Progress) -> CheckReport:
        at = self._rollouts[rollout]
        settings = self._config.rollout(rollout).checks
        if kind is CheckKind.SELF_CHECK:
            await self._probed(progress, at.baseline)
            report = await self_check(
                at.baseline,
                settings,
                level=level,
                rollout=rollout,
                global_seed=at.global_seed,
                sources=self._sources,
                progress=progress,
            )
            self._floors[rollout] = report.floor
            return report
        await self._probed(progress, at.baseline, at.candidate)
        return await quick_check(
            at.baseline,
            at.candidate,
            settings,
            level=level,
            rollout=rollout,
            global_seed=at.global_seed,
            floor=self._floors.get(rollout),
            sources=self._sources,
            progress=progress,
        )

    async def _probed(self, progress: Progress, *pools: ShadowPool) -> None:
        """Until each has an endpoint that answers, and all of them, or :data:`SETTLE_S` more."""
        settled_s = 0.0
        while True:
            answer = [(len(answering(pool)), len(pool.endpoints)) for pool in pools]
            progress.waiting = "; ".join(
                f"{most - some} of {most} endpoints of {pool.name} have not answered a probe yet"
                for pool, (some, most) in zip(pools, answer, strict=True)
                if some < most
            )
            if all(some for some, _ in answer):
                if settled_s >= SETTLE_S or not progress.waiting:
                    progress.waiting = None
                    return
                settled_s += POLL_S
            await asyncio.sleep(POLL_S)
