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
from collections.abc import Mapping, Sequence

from comparator.comparison import Comparison
from comparator.evidence import ComparisonDone, Drop, Pin
from comparator.pair import ForkSeen
from comparator.records import CaptureId, EngineSample, LiveRecord
from forkgate.checks.report import CheckReport
from forkgate.judge.actor import Actor
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.desk import Asked, Desk
from forkgate.judge.forks import Classified
from forkgate.judge.journal import snapshot
from forkgate.judge.latchkeeper import Written
from forkgate.judge.ports import MirrorPort
from forkgate.judge.publisher import FlipDone, Publisher
from forkgate.judge.starts import Starts
from forkgate.judge.writer import EvidenceWriter
from forkgate.telemetry.instruments import Instruments
from policies.rollout import CheckAnswer, CheckDone, CheckKind, Publish, Stage, SuiteDone
from policies.rollout import Latch as Rollback
from policies.routes import RolloutName
from policies.verdict import Answer
from proxy.ledger import DropReason, EdgeCounts
from proxy.link.values import Capture, EdgeIdentity

log = logging.getLogger(__name__)

FLIPS_KEPT = 1_000
"""Rollbacks remembered with their numbers, for people and the bench."""
LIFT_S = 5.0
"""How long a lift waits for the pair that decided the rollback to be aborted and stored."""
_CHECK_ANSWERS = {Answer.PASS: CheckAnswer.PASSED, Answer.FAIL: CheckAnswer.FAILED}
"""Any other answer of a check means that it could not be made."""


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
        self._actor = Actor(publisher, instruments, desk.state)
        publisher.listener = self

    def attach(self, mirror: MirrorPort, starts: Starts | None = None) -> None:
        """Where captures go from now on, and what makes checks and asks suites (needed by rollouts that have
        any)."""
        self._actor.mirror = mirror
        self._actor.starts = starts

    @property
    def starts(self) -> Starts | None:
        """What makes checks and asks suites."""
        return self._actor.starts

    @property
    def _mirror(self) -> MirrorPort:
        assert self._actor.mirror is not None
        return self._actor.mirror

    def begin(self) -> None:
        """Start what the rollouts, as they stand, begin with."""
        self._actor.obey(self.desk.begin(), time.monotonic())

    # -- proxy.link.ports.LinkSink ------------------------------------------------------------------------

    def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
        self._mirror.submit(edge, capture)

    def live(self, records: Sequence[LiveRecord]) -> None:
        decided_s = time.monotonic()
        asked = self.desk.observe_live(records, time.time())
        self.obey(asked, decided_s)
        self.writer.note(*asked.notes, *self._checkpoints.taken())
        self.live_requests.update(record.pool for record in records)
        self.instruments.live(records)

    def epoch_ahead(self, edge: EdgeIdentity, epoch: int) -> None:
        log.warning("an edge is ahead of us", extra={"edge": edge.incarnation, "epoch": epoch})
        self.publisher.ahead(epoch)
        self._actor.spawn(self.publisher.publish(f"edge {edge.sidecar}/{edge.worker} used epoch {epoch}"))

    def rolled_back(self, edge: EdgeIdentity, announced: Mapping[str, int]) -> None:
        for rollback in self.publisher.recall({RolloutName(name): at for name, at in announced.items()}):
            name, reason = rollback.rollout, rollback.verdict.reason
            log.error(
                "an edge was told of a rollback without a latch: it stands",
                extra={"rollout": name, "edge": edge.incarnation, "epoch": announced[name]},
            )
            self.desk.latched(rollback)
            self.writer.note(snapshot(self.desk.state(name), time.time()))
            if self.starts is not None:
                self.starts.stop(name, reason)
            self._actor.spawn(self._mirror.stop_rollout(name, reason))
            self._actor.spawn(self.publisher.publish(f"rollback of {name}: {reason}"))

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
        self.writer.note(event, *asked.notes)
        log.info(
            "fork seen",
            extra={
                "rollout": event.rollout,
                "tenant": event.tenant,
                "capture_id": event.capture_id,
                "arm": event.right_arm,
                "fork_index": event.fork.fork_index,
            },
        )

    async def comparison_finished(self, comparison: Comparison, incarnation: str, sequence: int) -> None:
        await self._compared(comparison, incarnation, sequence)

    # -- forkgate.judge.starts.Listener -------------------------------------------------------------------

    async def sample_finished(self, comparison: Comparison) -> None:
        """A sample of a suite, with its scores. Returns once it is kept; raises EvidenceError."""
        await self._compared(comparison, None, None)

    def check_done(self, rollout: str, kind: CheckKind, report: CheckReport) -> None:
        event = CheckDone(
            kind=kind,
            answer=_CHECK_ANSWERS.get(report.answer, CheckAnswer.COULD_NOT),
            summary=report.reason,
            facts=report.facts,
            unix_s=time.time(),
        )
        self._take(self.desk.check_done(rollout, event))

    def suite_done(self, rollout: str, suite: str, stage: Stage, summary: str, whole: bool) -> None:
        event = SuiteDone(suite=suite, stage=stage, summary=summary, whole=whole, unix_s=time.time())
        self._take(self.desk.suite_done(rollout, event))

    # -- forkgate.judge.engine_watch.Listener -------------------------------------------------------------

    def engine_sampled(self, sample: EngineSample) -> None:
        self._take(self.desk.observe(sample, time.time()))

    def environment_seen(self, pool: str, endpoint: str, facts: dict[str, str]) -> None:
        self._take(self.desk.environment_seen(pool, endpoint, facts, time.time()))

    # -- what all evidence goes through -------------------------------------------------------------------

    async def _compared(self, comparison: Comparison, incarnation: str | None, sequence: int | None) -> None:
        decided_s = time.monotonic()
        comparison = self.desk.arrived(comparison)
        # Before it is stored: a store that fails costs evidence, never a rollback.
        asked = self.desk.observe(comparison, time.time())
        self.obey(asked, decided_s)
        for pair in comparison.pairs:
            reason = pair.set_aside.value if pair.set_aside else None
            self.instruments.pair(comparison.rollout, pair.right.arm.value, reason)
        for fork in asked.forks:
            self._tell(comparison, fork)
        await self.writer.keep(
            ComparisonDone(comparison=comparison, incarnation=incarnation, sequence=sequence), *asked.notes
        )

    def _take(self, asked: Asked) -> None:
        """What is no comparison: obeyed, then kept."""
        self.obey(asked, time.monotonic())
        self.writer.note(*asked.notes)

    def _tell(self, comparison: Comparison, fork: Classified) -> None:
        self.instruments.fork(comparison.rollout, fork.arm.value, fork.attribution.fork_class.value)
        log.info(
            "fork classified",
            extra={
                "rollout": comparison.rollout,
                "tenant": comparison.tenant,
                "capture_id": comparison.capture_id,
                "arm": fork.arm,
                "replicate": fork.replicate,
                "fork_index": fork.fork_index,
                "fork_class": fork.attribution.fork_class,
                "reason": fork.attribution.reason,
            },
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

    def obey(self, asked: Asked, decided_s: float) -> None:
        """Carry effects out, in order. ``decided_s``: when their cause was here, on the monotonic clock."""
        self._actor.obey(asked.effects, decided_s)

    # -- forkgate.judge.publisher.FlipListener ------------------------------------------------------------

    def flip_published(self, rollback: Rollback, written: Written, epoch: int) -> None:
        self.desk.mark_durable(rollback.rollout, written.durable)
        deciding = rollback.verdict.deciding_id
        # The pair that decided is what people will look at: it may end by itself, all others are aborted.
        why = rollback.verdict.reason
        self._actor.spawn(self._mirror.stop_rollout(rollback.rollout, why, spare=deciding))
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
        self.writer.note(*asked.notes)
        # The table is waited for: whoever lifts is told the epoch under which it holds.
        publishing = [effect for effect in asked.effects if isinstance(effect, Publish)]
        self._actor.obey((one for one in asked.effects if not isinstance(one, Publish)), time.monotonic())
        for effect in publishing:
            await self._actor.publish(effect.rollout, effect.cause)
        return True

    async def _end_what_was_spared(self, name: str) -> None:
        """The pair that decided a rollback must not decide the next one: it ends while the latch still
        stands."""
        # Pairs are observed before they wait for the store, so a store that hangs holds up no lift.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIFT_S):
                await self._mirror.stop_rollout(name, "the rollback was lifted")

    async def settle(self, timeout_s: float) -> None:
        """Let what is under way come to its end: no flip is abandoned half-way by a shutdown."""
        await self._actor.settle(timeout_s)
