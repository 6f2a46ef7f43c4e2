"""The mirror's face: captures in, pairs and drops out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

from comparator.comparison import Comparison
from proxy.ledger import DropReason, JudgeLedger
from proxy.link.values import Capture, EdgeIdentity
from proxy.mirror.arm import Sources
from proxy.mirror.asks import SampleAsk
from proxy.mirror.errors import Dropped
from proxy.mirror.lane import Lane
from proxy.mirror.notes import DropNotes
from proxy.mirror.pools import ShadowRollout
from proxy.mirror.ports import MirrorSink, NoTracer, Tracer
from proxy.mirror.status import LaneStatus

STORE_S = 5.0
"""At the end, how long finished pairs and drops may take to be stored."""


class Mirror:
    """Runs every rollout's shadow. All methods belong to the judge's event loop.

    Each capture that :meth:`submit` takes ends exactly once: in the ledger at once, and at the sink.
    """

    def __init__(
        self,
        rollouts: Iterable[ShadowRollout],
        sink: MirrorSink,
        ledger: JudgeLedger,
        sources: Sources | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """
        Args:
            ledger: the link server's: captures are open in it already.
            sources: time and randomness; real ones when None.
            tracer: of captures; samples of suites are not traced.
        """
        self._ledger = ledger
        self._notes = DropNotes(sink)
        chosen = sources if sources is not None else Sources()
        traced = tracer if tracer is not None else NoTracer()
        self._lanes = {
            rollout.name: Lane(rollout, sink, ledger, self._notes, chosen, traced) for rollout in rollouts
        }

    def submit(self, edge: EdgeIdentity, capture: Capture) -> None:
        """Take one capture. Neither waits nor raises."""
        lane = self._lanes.get(capture.rollout)
        if lane is not None:
            lane.submit(edge, capture)
            return
        end = Dropped(DropReason.ROLLED_BACK, f"no rollout {capture.rollout!r} is configured here")
        self._ledger.dropped(edge.incarnation, capture.sequence, end.reason)
        self._notes.add(edge.incarnation, capture.sequence, capture.rollout, end)

    async def run_sample(self, name: str, ask: SampleAsk) -> Comparison:
        """Ask one question of a suite or a check, as if a client had: same arms, same budgets.

        It waits for a slot of ``samples_in_flight`` and for a lull, as captures do. It is no capture: neither
        the ledger nor the sink hears of it, forks included; the comparison goes to the caller alone, under a
        fresh ``capture_id``. Cancelling the call stops the arms.

        Raises:
            Dropped: it ended without a comparison; ``reason`` and ``detail`` say why. ``rolled_back`` and
                ``shutdown`` are final; ``pool_busy``, ``token_rate`` and ``baseline_unavailable`` may pass.
            KeyError: no such rollout.
        """
        return await self._lanes[name].run_sample(ask)

    async def stop_rollout(self, name: str, reason: str, *, spare: str | None = None) -> None:
        """A rollout was rolled back: end its shadow, now. Returns when nothing of it runs any more.

        A pair whose fork is decided is finished and stored, with its arms aborted; all else is dropped.

        Args:
            spare: capture ID of the pair that decided it. Its arms run to their own end, ``arm_timeout_s`` at
                most, so that its evidence holds what engines tell at the end only (finish reason, batch). A
                further call without it ends that pair too, and so does :meth:`close`.

        Raises:
            KeyError: no such rollout.
        """
        await self._lanes[name].stop(reason, spare)

    def yield_pool(self, pool: str, why: str, *, ending: str | None = None, spare: str | None = None) -> int:
        """Live work comes back to this pool, so every shadow arm there makes room, at once: those of all
        rollouts that ask the pool, unless they run on endpoints of their own (``shadow_endpoints``).

        Nothing starts there again until no request has waited at it for ``quiet_s``. Questions that were
        under way are dropped as ``pool_busy``.

        Args:
            why: in words, for drops and for what is told meanwhile.
            ending: rollout that ends by this: what is decided of its questions is kept.
            spare: capture whose arms run to their own end: the one that decided a rollback, one request.

        Returns:
            How many questions were stopped.
        """
        return sum(
            lane.yield_pool(pool, why, ends=name == ending, spare=spare) for name, lane in self._lanes.items()
        )

    def arms(self) -> dict[str, int]:
        """Arms of all rollouts that run now, by the endpoint's URL."""
        return dict(sum((lane.arms() for lane in self._lanes.values()), Counter[str]()))

    def resume_rollout(self, name: str) -> None:
        """A person lifted the latch. Raises KeyError for an unknown rollout."""
        self._lanes[name].resume()

    async def close(self, drain_s: float) -> None:
        """End everything: running pairs have ``drain_s`` seconds, then :data:`STORE_S` to be stored."""
        await asyncio.gather(*(lane.close(drain_s, STORE_S) for lane in self._lanes.values()))
        await self._notes.close(STORE_S)

    def status(self) -> tuple[LaneStatus, ...]:
        """Every rollout's shadow, in the order given."""
        return tuple(lane.status() for lane in self._lanes.values())

    def charge(self, name: str, tokens: int, tenant: str) -> None:
        """Tokens that an earlier life of the judge spent today. Raises KeyError for an unknown rollout."""
        self._lanes[name].budget.remember(tokens, tenant)

    def poke(self) -> None:
        """Look at every queue again, as after a step of the clock."""
        for lane in self._lanes.values():
            lane.poke()
