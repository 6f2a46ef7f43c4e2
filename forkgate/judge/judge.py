"""The judge: receives what edges saw, has it compared, and carries out what the policies say.

It is glue by design. The link counts and delivers (``proxy.link``), the mirror runs arms
(``proxy.mirror``), the desk knows the rules (``desk``), the publisher flips (``publisher``), the writer
keeps (``writer``). What happens between them happens here, in order: gates are asked before anything is
stored, and a breach is on its way before its reason is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from comparator.comparison import Comparison
from comparator.evidence import ComparisonDone, Drop, Pin
from comparator.pair import ForkSeen
from comparator.records import CaptureId, LiveRecord
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.desk import Asked, Desk
from forkgate.judge.latchkeeper import Written
from forkgate.judge.ports import MirrorPort
from forkgate.judge.publisher import FlipDone, Publisher
from forkgate.judge.writer import EvidenceWriter
from forkgate.telemetry.instruments import Instruments
from policies.rollout import Hold, Log, Publish, RollBack, Stage
from policies.rollout import Latch as Rollback
from policies.routes import RolloutName
from proxy.ledger import DropReason, EdgeCounts
from proxy.link.values import Capture, EdgeIdentity

log = logging.getLogger(__name__)

FLIPS_KEPT = 1_000
"""Rollbacks remembered with their numbers, for people and the bench."""
LIFT_S = 5.0
"""How long a lift waits for the pair that decided the rollback to be aborted and stored."""


class Judge:
    """What the link and the mirror report to."""

    def __init__(
        self,
        desk: Desk,
        publisher: Publisher,
        writer: EvidenceWriter,
        instruments: Instruments,
        checkpoints: Checkpoints,
    ) -> None:
        self.desk = desk
        self.publisher = publisher
        self.writer = writer
        self.instruments = instruments
        self._checkpoints = checkpoints
        self.flips: deque[FlipDone] = deque(maxlen=FLIPS_KEPT)
        self.live_requests: Counter[str] = Counter()
        """Live requests by pool since this judge started."""
        self._mirror: MirrorPort | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        publisher.listener = self

    def attach(self, mirror: MirrorPort) -> None:
        """Where captures go from now on."""
        self._mirror = mirror

    # -- proxy.link.ports.LinkSink ------------------------------------------------------------------------

    def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
        assert self._mirror is not None
        self._mirror.submit(edge, capture)

    def live(self, records: Sequence[LiveRecord]) -> None:
        decided_s = time.monotonic()
        self.obey(self.desk.observe_live(records, time.time()), decided_s)
        self.live_requests.update(record.pool for record in records)
        self.instruments.live(records)

    def epoch_ahead(self, edge: EdgeIdentity, epoch: int) -> None:
        log.warning("an edge is ahead of us", extra={"edge": edge.incarnation, "epoch": epoch})
        self.publisher.ahead(epoch)
        self._spawn(self.publisher.publish(f"edge {edge.sidecar}/{edge.worker} used epoch {epoch}"))

    def rolled_back(self, edge: EdgeIdentity, announced: Mapping[str, int]) -> None:
        for rollback in self.publisher.recall({RolloutName(name): at for name, at in announced.items()}):
            name, reason = rollback.rollout, rollback.verdict.reason
            log.error(
                "an edge was told of a rollback without a latch: it stands",
                extra={"rollout": name, "edge": edge.incarnation, "epoch": announced[name]},
            )
            self.desk.latched(rollback)
            assert self._mirror is not None
            self._spawn(self._mirror.stop_rollout(name, reason))
            self._spawn(self.publisher.publish(f"rollback of {name}: {reason}"))

    def edge_gone(self, edge: EdgeIdentity, final: EdgeCounts) -> None:
        log.info(
            "edge is gone",
            extra={
                "edge": f"{edge.sidecar}/{edge.worker}",
                "incarnation": edge.incarnation,
                "captured": final.captured,
            },
        )

    # -- proxy.mirror.ports.MirrorSink --------------------------------------------------------------------

    def fork_seen(self, event: ForkSeen) -> None:
        decided_s = time.monotonic()
        asked = self.desk.observe(event, time.time())
        self.obey(asked, decided_s)
        self.writer.note(event)
        self.instruments.fork(event.rollout)
        log.info(
            "fork",
            extra={
                "rollout": event.rollout,
                "tenant": event.tenant,
                "capture_id": event.capture_id,
                "fork_index": event.fork.fork_index,
            },
        )

    async def comparison_finished(self, comparison: Comparison, incarnation: str, sequence: int) -> None:
        decided_s = time.monotonic()
        # Before it is stored: a store that fails costs evidence, never a rollback.
        self.obey(self.desk.observe(comparison, time.time()), decided_s)
        for pair in comparison.candidates:
            self.instruments.pair(comparison.rollout, pair.set_aside.value if pair.set_aside else None)
        self._checkpoints.folded(comparison.rollout, comparison.capture_id)
        await self.writer.keep(
            ComparisonDone(comparison=comparison, incarnation=incarnation, sequence=sequence)
        )

    async def dropped(
        self, incarnation: str, sequence: int, rollout: str, reason: DropReason, detail: str
    ) -> None:
        self.writer.note(
            Drop(
                incarnation=incarnation,
                sequence=sequence,
                rollout=rollout,
                reason=reason.value,
                detail=detail,
                unix_s=time.time(),
            )
        )

    # -- effects ------------------------------------------------------------------------------------------

    def obey(self, asked: Asked, decided_s: float) -> None:
        """Carry effects out, in order. ``decided_s``: when their cause was here, on the monotonic clock."""
        for effect in asked.effects:
            match effect:
                case RollBack(latch=rollback):
                    self._spawn(self.publisher.roll_back(rollback, decided_s))
                    log.error(
                        "policy breached, rolling back",
                        extra={
                            "rollout": rollback.rollout,
                            "gate": rollback.verdict.gate,
                            "reason": rollback.verdict.reason,
                            "deciding_id": rollback.verdict.deciding_id,
                        },
                    )
                case Publish(cause=cause):
                    self._spawn(self.publisher.publish(cause))
                case Hold(rollout=rollout, reason=reason):
                    log.error(
                        "rollout held until a person has looked", extra={"rollout": rollout, "reason": reason}
                    )
                case Log(rollout=rollout, message=message, verdict=verdict):
                    extra: dict[str, Any] = {"rollout": rollout}
                    if verdict is not None:
                        self.instruments.verdict(rollout, verdict)
                        extra |= {
                            "gate": verdict.gate,
                            "answer": verdict.answer.value,
                            "value": verdict.value,
                            "limit": verdict.limit,
                            "n": verdict.n,
                        }
                    log.info(message, extra=extra)
                case _:
                    pass  # Unlatch: the latch was opened on disk before the state was stepped
        if asked.verdicts:
            self.writer.note(*asked.verdicts)

    # -- forkgate.judge.publisher.FlipListener ------------------------------------------------------------

    def flip_published(self, rollback: Rollback, written: Written, epoch: int) -> None:
        self.desk.mark_durable(rollback.rollout, written.durable)
        assert self._mirror is not None
        deciding = rollback.verdict.deciding_id
        # The pair that decided is what people will look at: it may end by itself, all others are aborted.
        self._spawn(self._mirror.stop_rollout(rollback.rollout, rollback.verdict.reason, spare=deciding))
        if deciding is not None:
            self.writer.note(
                Pin(
                    capture_id=CaptureId(deciding),
                    rollout=rollback.rollout,
                    why=f"tipped the rollback at epoch {epoch}",
                    unix_s=time.time(),
                )
            )

    def flip_done(self, done: FlipDone) -> None:
        self.flips.append(done)
        self.instruments.flip(done.rollout, done.seconds, done.fsync_s, len(done.missing))
        write = log.error if done.missing else log.info
        write(
            "rolled back" if not done.missing else "rolled back, but some edges have not said so",
            extra={
                "rollout": done.rollout,
                "epoch": done.epoch,
                "durable": done.durable,
                "flip_s": round(done.seconds, 6),
                "fsync_s": round(done.fsync_s, 6),
                "edges": done.edges,
                "missing": list(done.missing),
            },
        )

    def latch_durable(self, rollout: str) -> None:
        self.desk.mark_durable(rollout, True)

    # -- a person's lift ----------------------------------------------------------------------------------

    async def lift(self, name: str, who: str, why: str) -> bool:
        """Open a latch and start the rollout again. False when the disk would not let go of the latch.

        Raises:
            KeyError: no such rollout.
        """
        state = self.desk.state(name)
        keeper = self.publisher.keeper
        if state.stage is Stage.ROLLED_BACK:
            await self._end_what_was_spared(name)
        if state.stage is Stage.ROLLED_BACK and name in keeper.latch.latched:
            written = await self.publisher.lift(name, why, time.time())
            if not written.durable:
                return False
        asked = self.desk.lift(name, who, why, time.time())
        if self._mirror is not None:
            self._mirror.resume_rollout(name)
        publishing = [effect.cause for effect in asked.effects if isinstance(effect, Publish)]
        self.obey(
            Asked(
                effects=tuple(one for one in asked.effects if not isinstance(one, Publish)),
                verdicts=asked.verdicts,
            ),
            0.0,
        )
        for cause in publishing:
            await self.publisher.publish(cause)
        return True

    async def _end_what_was_spared(self, name: str) -> None:
        """The pair that decided a rollback must not decide the next one: it ends while the latch still
        stands."""
        if self._mirror is None:
            return
        # Pairs are observed before they wait for the store, so a store that hangs holds up no lift.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIFT_S):
                await self._mirror.stop_rollout(name, "the rollback was lifted")

    async def settle(self, timeout_s: float) -> None:
        """Let what is under way come to its end: no flip is abandoned half-way by a shutdown."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a judge's task failed", exc_info=error)
