"""The judge: receives what edges saw, has it compared, and carries out what the policies say.

It is glue by design. The link counts and delivers (``proxy.link``), the mirror runs arms
(``proxy.mirror``), the desk knows the rules (``desk``), what comes of them is obeyed and journalled in order
(``conduct``), the publisher flips (``publisher``), the writer keeps (``writer``). Gates are asked before
anything is stored, and a breach is on its way before its reason is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.evidence import ComparisonDone, Drop, Pin
from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId, EngineSample, LiveRecord
from forkgate.checks.report import CheckReport
from forkgate.hooks import Hooks
from forkgate.judge.actor import Actor
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.conduct import Conduct, upward
from forkgate.judge.desk import Asked, Desk
from forkgate.judge.early_lift import EarlyLift
from forkgate.judge.forks import Classified
from forkgate.judge.in_the_way import InTheWay
from forkgate.judge.journal import snapshot
from forkgate.judge.latchkeeper import Written
from forkgate.judge.ports import MirrorPort
from forkgate.judge.publisher import FlipDone, Publisher
from forkgate.judge.starts import Starts
from forkgate.judge.words import Acted, Word, Words
from forkgate.judge.writer import EvidenceWriter
from forkgate.telemetry import Instruments, Tracing
from policies.rollout import (
    CheckAnswer,
    CheckDone,
    CheckKind,
    RolloutState,
    Stage,
    SuiteDone,
)
from policies.rollout import Latch as Rollback
from policies.routes import RolloutName
from policies.verdict import Answer
from proxy.ledger import DropReason, EdgeCounts
from proxy.link.values import Capture, EdgeIdentity

log = logging.getLogger(__name__)

FLIPS_KEPT = 1_000
"""Rollbacks remembered with their numbers, for people and the bench."""
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
        self.checkpoints = checkpoints
        self.flips: deque[FlipDone] = deque(maxlen=FLIPS_KEPT)
        self.live_requests: Counter[str] = Counter()
        """Live requests by pool since this judge started."""
        self.attribute: Callable[[Sequence[LiveRecord]], Sequence[LiveRecord]] = lambda records: records
        """Says of live records who answered them, as far as their answers do not: ``LiveAnswers``."""
        self._actor = Actor(publisher, instruments, desk.state)
        self._conduct = Conduct(desk, publisher, writer, self._actor, self._look)
        self.in_the_way = InTheWay(writer, desk.state)
        self._words = Words(desk, publisher, writer, checkpoints, self._actor, self._conduct, self.in_the_way)
        self.tracing: Tracing | None = None
        """Told how captures ended; None: nobody traces."""
        self.early: EarlyLift | None = None
        """Knows what a lift would come too early for."""
        self.hooks: Hooks | None = None
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
        self._look()
        for state in self.desk.states():
            if state.held is not None and state.held.elsewhere:
                extra = {"rollout": state.plan.name, "reason": state.held.reason}
                log.error("rollout held until a person has looked", extra=extra)
        self._actor.obey(self.desk.begin(), time.monotonic())

    # -- proxy.link.ports.LinkSink ------------------------------------------------------------------------

    def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
        self._mirror.submit(edge, capture)

    def live(self, records: Sequence[LiveRecord]) -> None:
        decided_s = time.monotonic()
        records = self.attribute(records)
        asked = self.desk.observe_live(records, time.time())
        self._conduct.carry_out(asked, decided_s, *self.checkpoints.taken())
        self.live_requests.update(record.pool for record in records)
        self.instruments.live(records)

    def overhead(self, seconds: Sequence[float]) -> None:
        self.instruments.overhead(seconds)

    def epoch_ahead(self, edge: EdgeIdentity, epoch: int) -> None:
        log.warning("an edge is ahead of us", extra={"edge": edge.incarnation, "epoch": epoch})
        self.publisher.ahead(epoch)
        self._actor.spawn(self.publisher.publish(f"edge {edge.sidecar}/{edge.worker} used epoch {epoch}"))

    def rolled_back(self, edge: EdgeIdentity, announced: Mapping[str, int]) -> None:
        for rollback in self.publisher.recall({RolloutName(name): at for name, at in announced.items()}):
            name, reason = rollback.rollout, rollback.verdict.reason
            if all(state.plan.name != name for state in self.desk.states()):
                continue  # the configuration has given this name up: it is latched, and that is all
            log.error(
                "an edge was told of a rollback without a latch: it stands",
                extra={"rollout": name, "tenant": rollback.tenant, "edge": edge.incarnation},
            )
            had_moved = self.desk.state(name).stage is Stage.PROMOTED
            self.desk.latched(rollback)
            self.writer.note(snapshot(self.desk.state(name), time.time()))
            self._actor.make_room(rollback)
            if rollback.tenant is not None:
                self._actor.spawn(
                    self.publisher.publish(f"rollback of {rollback.tenant} in {name}: {reason}")
                )
                continue
            if self.starts is not None:
                self.starts.stop(name, reason)
            self._actor.spawn(self._mirror.stop_rollout(name, reason))
            self._actor.spawn(self.publisher.publish(f"rollback of {name}: {reason}"))
            if had_moved:
                self._take(self.desk.home_moved(None, time.time(), but=name))

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
        self._conduct.carry_out(self.desk.observe(event, time.time()), decided_s, event)
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
        self._take(self.desk.take(rollout, event))

    def suite_done(self, rollout: str, suite: str, look: str, summary: str, whole: bool) -> None:
        event = SuiteDone(suite=suite, look=look, summary=summary, whole=whole, unix_s=time.time())
        self._take(self.desk.take(rollout, event))

    # -- forkgate.judge.engine_watch.Listener -------------------------------------------------------------

    def engine_sampled(self, sample: EngineSample) -> None:
        self._take(self.desk.observe(sample, time.time()))

    def environment_seen(self, pool: str, endpoint: str, facts: dict[str, str]) -> None:
        self._take(self.desk.environment_seen(pool, endpoint, facts, time.time()))

    def pool_seen(self, pool: str, ready: bool, reason: str) -> None:
        """A pool was probed for what a rollback would need of it."""
        self._take(self.desk.pool_seen(pool, ready, reason, time.time()))
        self.in_the_way.pool_seen()
        # What waited for this look alone need not wait for the next second.
        self._take(self.desk.tick(time.time(), self.in_the_way.withholds))

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second."""
        self._take(self.desk.tick(time.time(), self.in_the_way.withholds))
        self._look()
        self._conduct.move_home_again()

    def too_early(self, state: RolloutState) -> tuple[str, ...]:
        """Why a lift of it should wait, for people; empty where nothing is to be lifted."""
        return () if self.early is None else self.early.told(state)

    async def before_it_begins(self, name: str) -> tuple[str, ...]:
        """A person is about to start or lift it: have its pools probed, for a bounded time. What is not known
        of them all the same, in words. Raises KeyError."""
        return () if self.early is None else await self.early.looked(self.desk.state(name))

    def clock_stepped(self, by_s: float) -> None:
        """The clock behind every event's time was set."""
        self._take(self.desk.clock_stepped(by_s, time.time()))

    # -- what all evidence goes through -------------------------------------------------------------------

    async def _compared(self, comparison: Comparison, incarnation: str | None, sequence: int | None) -> None:
        decided_s = time.monotonic()
        comparison = self.desk.arrived(comparison)
        # Before it is stored: a store that fails costs evidence, never a rollback.
        asked = self.desk.observe(comparison, time.time())
        places = self._conduct.places() if upward(asked.effects) else None
        if places is None:
            self.obey(asked, decided_s)
        self.instruments.comparison(comparison)
        for fork in asked.forks:
            self._tell(comparison, fork)
        if self.tracing is not None:
            self.tracing.finished(
                comparison,
                {(fork.arm, fork.replicate): fork.attribution.fork_class.value for fork in asked.forks},
            )
        try:
            await self.writer.keep(
                ComparisonDone(comparison=comparison, incarnation=incarnation, sequence=sequence),
                *asked.notes,
            )
        finally:
            if places is not None:
                self.obey(self._conduct.still(asked, places), decided_s)

    def _take(self, asked: Asked) -> None:
        """What is no comparison."""
        self._conduct.carry_out(asked)

    def _tell(self, comparison: Comparison, fork: Classified) -> None:
        plan = self.desk.state(comparison.rollout).plan
        pool = plan.candidate if fork.arm is Arm.CANDIDATE else plan.baseline
        self.instruments.fork(
            comparison.rollout, pool, fork.arm.value, fork.environment, fork.attribution.fork_class.value
        )
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

    def obey(self, asked: Asked, decided_s: float) -> list[asyncio.Task[Any]]:
        """Carry effects out, in order. Returns the flips that are under way for it.

        Args:
            decided_s: when their cause was here, on the monotonic clock.
        """
        return self._conduct.obey(asked, decided_s)

    def _look(self) -> None:
        """Whoever wants to know of changes is told, and never waited for."""
        if self.hooks is not None:
            self.hooks.look(map(self._as_published, self.desk.states()))

    def _as_published(self, state: RolloutState) -> RolloutState:
        """Promoted is told once a table says so: a disk that refuses it holds home where it is."""
        if state.stage is Stage.PROMOTED and self.publisher.table.home != state.plan.candidate:
            return msgspec.structs.replace(state, stage=Stage.OBSERVING)
        return state

    # -- forkgate.judge.publisher.FlipListener ------------------------------------------------------------

    def flip_published(self, rollback: Rollback, written: Written, epoch: int) -> None:
        self.desk.mark_durable(rollback.rollout, written.durable, rollback.tenant)
        deciding = rollback.verdict.deciding_id
        if rollback.tenant is None:
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
                **({} if done.tenant is None else {"tenant": done.tenant}),
                "epoch": done.epoch,
                "durable": done.durable,
                "flip_s": round(done.seconds, 6),
                "fsync_s": round(done.fsync_s, 6),
                "edges": done.edges,
                "missing": list(done.missing),
            },
        )
        if self.hooks is not None:
            self.hooks.flip_done(
                done.rollout,
                tenant=done.tenant,
                epoch=done.epoch,
                edges=done.edges,
                missing=len(done.missing),
                durable=done.durable,
            )

    def latch_durable(self, rollout: str, tenant: str | None) -> None:
        with contextlib.suppress(KeyError):  # of a rollout that the configuration no longer names
            self.desk.mark_durable(rollout, True, tenant)

    # -- a person's word ----------------------------------------------------------------------------------

    async def act(self, name: str, event: Word, meant: RolloutState | None = None) -> Acted:
        """Do what a person says, or nothing: :meth:`forkgate.judge.words.Words.act`."""
        return await self._words.act(name, event, meant)

    async def settle(self, timeout_s: float) -> None:
        """Let what is under way come to its end: no flip is abandoned half-way by a shutdown."""
        await self._actor.settle(timeout_s)
