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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.evidence import ComparisonDone, Drop, EvidenceError, Pin
from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId, EngineSample, LiveRecord
from forkgate.checks.report import CheckReport
from forkgate.hooks import Hooks, StepHooks
from forkgate.judge.actor import Actor
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.desk import Asked, Desk
from forkgate.judge.early_lift import EarlyLift
from forkgate.judge.forks import Classified
from forkgate.judge.journal import snapshot
from forkgate.judge.latchkeeper import Written
from forkgate.judge.ports import MirrorPort
from forkgate.judge.publisher import FlipDone, Publisher
from forkgate.judge.starts import Starts
from forkgate.judge.writer import EvidenceWriter, Note
from forkgate.telemetry import Instruments, Tracing
from policies.rollout import (
    JUDGED_STAGES,
    Abort,
    Advance,
    CheckAnswer,
    CheckDone,
    CheckKind,
    Declined,
    Effect,
    HoldCause,
    Lift,
    MoveHome,
    Pause,
    Publish,
    Resume,
    RollBack,
    RollBackNow,
    RolloutState,
    RunCheck,
    RunSuites,
    SendHome,
    Stage,
    Start,
    SuiteDone,
    next_place,
)
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
LOOK_S = 5.0
"""How long a person's promote waits for the first look at the old pool, which follows its first probe."""
KEPT_S = 5.0
"""How long a step on waits for the journal to hold it; then it is taken all the same, and told."""
_CHECK_ANSWERS = {Answer.PASS: CheckAnswer.PASSED, Answer.FAIL: CheckAnswer.FAILED}
"""Any other answer of a check means that it could not be made."""


_Places = dict[str, tuple[str, int]]
"""Rollout → where it stands, and how often it had entered a stage by then."""
Word = Start | Pause | Resume | Advance | RollBackNow | Abort | Lift
"""What a person may say to a rollout."""
_LEADS_ON = (Start, Resume, Advance, Lift)
"""Words that bring it on, and wait for the journal; the others bring it home, or keep it where it is."""


class LatchUnwritableError(Exception):
    """The disk would not let go of a latch: it stands, and so does what it holds."""


class JournalUnwritableError(Exception):
    """The journal takes nothing now, so that no step on can be kept before it is obeyed: nothing was done."""


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a person's word."""

    blocked: tuple[str, ...] = ()
    """What stands in the way, a sentence each; empty when it was done."""
    unkept: str | None = None
    """It was done, and the journal does not hold it yet: why not. A judge that is killed now leaves a
    successor that may not know of it."""


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
        self._moving = False
        """Home is about to move: decided, and on its way to the journal and the disk."""
        self.tracing: Tracing | None = None
        """Told how captures ended; None: nobody traces."""
        self.looked: Callable[[str], bool] = lambda pool: True
        """Whether a pool was looked at in this life for what a rollback would need of it. That it was ready
        in an earlier one, which a state remembers, lets no step go."""
        self._pool_news = asyncio.Event()
        """Set, and another one made, at each look at a pool."""
        self.early: EarlyLift | None = None
        """Knows what a lift would come too early for."""
        self.hooks: Hooks | None = None
        self.steps: StepHooks | None = None
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
            if state.held is not None and state.held.cause is HoldCause.LATCH:
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
        self._carry_out(asked, decided_s, *self.checkpoints.taken())
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
        self._carry_out(self.desk.observe(event, time.time()), decided_s, event)
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
        news, self._pool_news = self._pool_news, asyncio.Event()
        news.set()
        # What waited for this look alone need not wait for the next second.
        self._take(self.desk.tick(time.time(), self._withheld))

    # -- time ---------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second."""
        self._take(self.desk.tick(time.time(), self._withheld))
        self._look()
        for state in self.desk.states():
            if state.stage is Stage.PROMOTED and not self._moving and not self.publisher.has_moved(state):
                # The disk refused, or a judge was killed between the decision and the write.
                self._moving = True
                plan = state.plan
                cause = f"{plan.name}: home is {plan.candidate} now"
                move = self._actor.spawn(self.publisher.move_home(plan.name, plan.candidate, cause))
                move.add_done_callback(self._moved)

    def withheld_by(self, state: RolloutState) -> tuple[str, ...]:
        """What stands in the way of its next step beside the conditions that its state knows, for people: an
        old pool that this judge has not looked at yet, a journal that takes nothing, and hooks."""
        hooks = () if self.steps is None else self.steps.blocked_by(state)
        return (*self._unseen(state), *self._unwritable(state), *hooks)

    def too_early(self, state: RolloutState) -> tuple[str, ...]:
        """Why a lift of it should wait, for people; empty where nothing is to be lifted."""
        return () if self.early is None else self.early.told(state)

    async def before_it_begins(self, name: str) -> tuple[str, ...]:
        """A person is about to start or lift it: have its pools probed, for a bounded time. What is not known
        of them all the same, in words. Raises KeyError."""
        return () if self.early is None else await self.early.looked(self.desk.state(name))

    def _withheld(self, state: RolloutState) -> bool:
        if self._unseen(state) or self._unwritable(state):
            return True
        return self.steps is not None and self.steps.withheld(state)

    def _unwritable(self, state: RolloutState) -> tuple[str, ...]:
        trouble = self.writer.trouble
        if trouble is None or next_place(state) is None:
            return ()
        return (f"a step on is journalled before it is taken, and the journal takes nothing now: {trouble}",)

    def _unseen(self, state: RolloutState) -> tuple[str, ...]:
        pool = state.plan.baseline
        if state.stage not in JUDGED_STAGES or pool not in state.pools or self.looked(pool):
            return ()  # where nobody ever looked, the conditions say so
        return (f"pool {pool}: this judge has not looked yet whether it could take everything back",)

    async def _first_look(self, name: str) -> tuple[str, ...]:
        """Who promotes right after a judge's start waits for its first look, for a bounded time. Raises
        KeyError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                while self._unseen(self.desk.state(name)):
                    await self._pool_news.wait()
        return self._unseen(self.desk.state(name))

    def clock_stepped(self, by_s: float) -> None:
        """The clock behind every event's time was set."""
        self._take(self.desk.clock_stepped(by_s, time.time()))

    # -- what all evidence goes through -------------------------------------------------------------------

    async def _compared(self, comparison: Comparison, incarnation: str | None, sequence: int | None) -> None:
        decided_s = time.monotonic()
        comparison = self.desk.arrived(comparison)
        # Before it is stored: a store that fails costs evidence, never a rollback.
        asked = self.desk.observe(comparison, time.time())
        places = self._places() if _upward(asked.effects) else None
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
                self.obey(self._still(asked, places), decided_s)

    def _take(self, asked: Asked) -> None:
        """What is no comparison."""
        self._carry_out(asked, time.monotonic())

    def _carry_out(self, asked: Asked, decided_s: float, *notes: Note) -> None:
        """Obey and keep. A way home is obeyed first and kept by and by; a step on is kept first, so that a
        judge that is killed in between leaves a successor that knows of it."""
        if _upward(asked.effects):
            self._moving |= _moves_home(asked.effects)
            # In the journal's order from this moment on, whatever comes before the task does.
            keeping = self.writer.kept(*notes, *asked.notes, limit_s=KEPT_S)
            self._actor.spawn(self._keep_then_obey(keeping, asked, decided_s, self._places()))
            return
        self.obey(asked, decided_s)
        self.writer.note(*notes, *asked.notes)

    async def _keep_then_obey(
        self, keeping: Awaitable[None], asked: Asked, decided_s: float, places: _Places
    ) -> None:
        await self._kept(keeping)
        self.obey(self._still(asked, places), decided_s)

    async def _kept(self, keeping: Awaitable[None]) -> str | None:
        """Returns why the journal does not hold it yet, if it does not."""
        try:
            await keeping
        except EvidenceError as error:
            log.error("a step is taken before the journal holds it", extra={"error": str(error)})
            return str(error)
        return None

    def _places(self) -> _Places:
        return {state.plan.name: (state.place, state.looks) for state in self.desk.states()}

    def _still(self, asked: Asked, places: _Places) -> Asked:
        """Without what is to be begun in a place that its rollout has left meanwhile: something may have sent
        it home. A table is made of the states as they are, so it is made anyway."""
        now = self._places()
        effects = tuple(
            effect
            for effect in asked.effects
            if not isinstance(effect, RunCheck | RunSuites | MoveHome)
            or now[effect.rollout] == places[effect.rollout]
        )
        if _moves_home(asked.effects) and not _moves_home(effects):
            self._moving = False
        return msgspec.structs.replace(asked, effects=effects)

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
        flips = self._actor.obey(asked.effects, decided_s)
        if _moves_home(asked.effects):
            self._moving = True
            for flip in flips:
                flip.add_done_callback(self._moved)
        for effect in asked.effects:
            if isinstance(effect, MoveHome):
                told = self.desk.home_moved(effect.by, time.time(), but=effect.rollout)
                self._carry_out(told, decided_s)
        self._look()
        return flips

    def _look(self) -> None:
        """Whoever wants to know of changes is told, and never waited for."""
        if self.hooks is not None:
            self.hooks.look(map(self._as_published, self.desk.states()))

    def _as_published(self, state: RolloutState) -> RolloutState:
        """Promoted is told once a table says so: a disk that refuses it holds home where it is."""
        if state.stage is Stage.PROMOTED and self.publisher.table.home != state.plan.candidate:
            return msgspec.structs.replace(state, stage=Stage.OBSERVING)
        return state

    def _moved(self, _flip: asyncio.Task[Any]) -> None:
        self._moving = False
        self._look()

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

    async def act(self, name: str, event: Word) -> Acted:
        """Do what a person says, or nothing.

        A word that leads on is journalled, and then obeyed, before this returns; where the journal takes
        nothing it is refused. A way home, or a pause, is taken whatever the journal says, and it is told
        where that does not hold it. It comes to its end whatever becomes of whoever asked.

        Raises:
            KeyError: no such rollout.
            LatchUnwritableError: the disk would not let go of a latch, which stands.
            JournalUnwritableError: the disk would not take a step on, which was not taken.
        """
        return await asyncio.shield(self._actor.under_way(self._act(name, event)))

    async def _act(self, name: str, event: Word) -> Acted:
        reasons = _declined(self.desk.would(name, event))
        if reasons:
            self._take(self.desk.take(name, event))
            return Acted(blocked=reasons)
        if isinstance(event, Advance):
            # What is waited for, and what the hooks allow, is this step and no later one.
            state = self.desk.state(name)
            event = msgspec.structs.replace(event, look=state.look)
            if reasons := await self._first_look(name):
                return Acted(blocked=reasons)
            if self.steps is not None and (reasons := await self.steps.refusals(state)):
                return Acted(blocked=reasons)
        if isinstance(event, _LEADS_ON):
            await self._journal_takes(name)
        if isinstance(event, Lift):
            await self._open_latch(self.desk.state(name), event)
        asked = self.desk.take(name, event)
        if reasons := _declined(asked.effects):  # something came in between
            self._take(asked)
            return Acted(blocked=reasons)
        decided_s, places = time.monotonic(), self._places()
        self._moving |= _moves_home(asked.effects)
        if isinstance(event, RollBackNow | Abort):
            under_way = self._under_way(asked, decided_s)
            unkept = await self._kept(self.writer.kept(*asked.notes, limit_s=KEPT_S))
        else:
            unkept = await self._kept(self.writer.kept(*asked.notes, limit_s=KEPT_S))
            under_way = self._under_way(self._still(asked, places), decided_s)
        # Whoever said it is told the epoch under which it holds.
        await under_way
        return Acted(unkept=unkept)

    def _under_way(self, asked: Asked, decided_s: float) -> Awaitable[Any]:
        """Obey it now; awaited, the flips and tables that came of it are over."""
        tables = [effect for effect in asked.effects if isinstance(effect, Publish)]
        rest = tuple(effect for effect in asked.effects if not isinstance(effect, Publish))
        flips = self.obey(msgspec.structs.replace(asked, effects=rest), decided_s)
        published = (self._actor.under_way(self._actor.publish(one.rollout, one.cause)) for one in tables)
        return asyncio.gather(*map(_settled, flips), *published)

    async def _journal_takes(self, name: str) -> None:
        """Refuse a word while the journal could not hold it. What is taken at the desk cannot be undone (a
        breach may follow at once), so the journal is asked before: it must take what the rollout is now."""
        try:
            await self.writer.kept(snapshot(self.desk.state(name), time.time()), limit_s=KEPT_S)
            await self.checkpoints.must_exist()
        except (EvidenceError, OSError) as error:
            raise JournalUnwritableError(str(error)) from error

    async def _open_latch(self, state: RolloutState, lift: Lift) -> None:
        name, keeper = state.plan.name, self.publisher.keeper
        if lift.tenant is not None:
            latched = lift.tenant in keeper.latch.tenants.get(name, {})
        else:
            latched = state.stage is Stage.ROLLED_BACK and name in keeper.latch.latched
            if state.stage is Stage.ROLLED_BACK:
                await self._end_what_was_spared(name)
            if state.held is not None and state.held.cause is HoldCause.LATCH:
                await self._open_elsewhere(state, lift)
        if latched:
            await self._open(name, lift.tenant, lift)

    async def _open_elsewhere(self, state: RolloutState, lift: Lift) -> None:
        """What stood in this rollout's way under names that the configuration gives to none: nobody else can
        lift it."""
        plan = state.plan
        named = {one.plan.name: (one.plan.baseline, one.plan.candidate) for one in self.desk.states()}
        latch = self.publisher.keeper.latch
        for rollback in latch.elsewhere(plan.name, (plan.baseline, plan.candidate), named):
            if rollback.rollout not in named:
                await self._open(rollback.rollout, rollback.tenant, lift)

    async def _open(self, rollout: str, tenant: str | None, lift: Lift) -> None:
        written = await self.publisher.lift(rollout, lift.why, lift.unix_s, tenant)
        if not written.durable:
            raise LatchUnwritableError(written.error or "the disk refused")

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


async def _settled(task: asyncio.Task[Any]) -> None:
    """Whatever it raises has been told."""
    await asyncio.wait([task])


def _declined(effects: Iterable[Effect]) -> tuple[str, ...]:
    return tuple(reason for effect in effects if isinstance(effect, Declined) for reason in effect.reasons)


def _moves_home(effects: Iterable[Effect]) -> bool:
    return any(isinstance(effect, MoveHome) and effect.by is not None for effect in effects)


def _upward(effects: Sequence[Effect]) -> bool:
    """A table follows, and it sends nobody home."""
    moves = any(isinstance(effect, Publish | MoveHome) for effect in effects)
    return moves and not any(isinstance(effect, RollBack | SendHome) for effect in effects)
