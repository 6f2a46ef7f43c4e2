"""What a person says to a rollout: done, declined in words, or refused for the disk's sake."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable

import msgspec

from comparator.evidence import EvidenceError
from forkgate.judge import conduct
from forkgate.judge.actor import Actor
from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.conduct import Conduct
from forkgate.judge.desk import Desk
from forkgate.judge.in_the_way import InTheWay
from forkgate.judge.journal import snapshot
from forkgate.judge.publisher import Publisher
from forkgate.judge.writer import EvidenceWriter
from policies.rollout import (
    Abort,
    Advance,
    Declined,
    Effect,
    Latch,
    Lift,
    Pause,
    Resume,
    RollBackNow,
    RolloutState,
    Said,
    Stage,
    Start,
)

LIFT_S = 5.0
"""How long a lift waits for the pair that decided the rollback to be aborted and stored."""

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


class Words:
    """All methods belong to the judge's event loop."""

    def __init__(
        self,
        desk: Desk,
        publisher: Publisher,
        writer: EvidenceWriter,
        checkpoints: Checkpoints,
        actor: Actor,
        carrier: Conduct,
        in_the_way: InTheWay,
    ) -> None:
        self._desk = desk
        self._publisher = publisher
        self._writer = writer
        self._checkpoints = checkpoints
        self._actor = actor
        self._conduct = carrier
        self._in_the_way = in_the_way

    async def act(self, name: str, event: Word, meant: RolloutState | None = None) -> Acted:
        """Do what a person says, or nothing.

        A word that leads on is journalled, and then obeyed, before this returns; where the journal takes
        nothing it is refused. A way home, or a pause, is taken whatever the journal says, and it is told
        where that does not hold it. It comes to its end whatever becomes of whoever asked.

        Args:
            meant: the rollout as it stood when the person said it; None: as it stands now. What is rolled
                back, aborted or paused while the word waits is not what it was about, and stays so.

        Raises:
            KeyError: no such rollout.
            LatchUnwritableError: the disk would not let go of a latch, which stands.
            JournalUnwritableError: the disk would not take a step on, which was not taken.
        """
        if meant is None:
            meant = self._desk.state(name)
        return await asyncio.shield(self._actor.under_way(self._act(name, event, meant)))

    async def _act(self, name: str, event: Word, meant: RolloutState) -> Acted:
        reasons = _declined(self._desk.would(name, event))
        if reasons:
            self._conduct.carry_out(self._desk.take(name, event))
            return Acted(blocked=reasons)
        if isinstance(event, Advance):
            # What is waited for, and what the hooks allow, is this step and no later one.
            state = self._desk.state(name)
            event = msgspec.structs.replace(event, look=state.look)
            if reasons := await self._in_the_way.refuses(state):
                return Acted(blocked=reasons)
        if isinstance(event, _LEADS_ON):
            await self._journal_takes(name)
        if reasons := self._overtaken(name, event, meant):
            return Acted(blocked=reasons)
        if isinstance(event, Lift):
            await self._open_latch(self._desk.state(name), event)
            if reasons := self._overtaken(name, event, meant):
                return Acted(blocked=reasons)
        asked = self._desk.take(name, event)
        if reasons := _declined(asked.effects):  # something came in between
            self._conduct.carry_out(asked)
            return Acted(blocked=reasons)
        return Acted(unkept=await self._conduct.say(asked, leads_home=isinstance(event, RollBackNow | Abort)))

    def _overtaken(self, name: str, event: Word, meant: RolloutState) -> tuple[str, ...]:
        """Whatever was said of the rollout while this word waited for probes, the journal or the latch holds:
        whoever said it was told so."""
        now = self._desk.state(name)
        before: Latch | Said | None
        after: Latch | Said | None
        match event:
            case Lift(tenant=None):
                before, after = _latched(meant.latch), _latched(now.latch)
            case Lift(tenant=tenant) if tenant is not None:
                before, after = _latched(meant.sent_home.get(tenant)), _latched(now.sent_home.get(tenant))
            case Start():
                before, after = meant.ended, now.ended
            case Resume():
                before, after = meant.paused, now.paused
            case _:
                return ()  # a promote names its step; what leads home, or stops, may always come last
        if before == after:
            return ()
        verb = type(event).__name__.lower()
        reason = (
            f"{name} is {now.place}, and not what it was when this {verb} was said: somebody was faster. See "
            f"`forkgate rollout show {name}`, and say it again if it is still meant"
        )
        return (reason,)

    async def _journal_takes(self, name: str) -> None:
        """Refuse a word while the journal could not hold it. What is taken at the desk cannot be undone (a
        breach may follow at once), so the journal is asked before: it must take what the rollout is now."""
        try:
            state = snapshot(self._desk.state(name), time.time())
            await self._writer.kept(state, limit_s=conduct.KEPT_S)
            await self._checkpoints.must_exist()
        except (EvidenceError, OSError) as error:
            raise JournalUnwritableError(str(error)) from error

    async def _open_latch(self, state: RolloutState, lift: Lift) -> None:
        name, keeper = state.plan.name, self._publisher.keeper
        if lift.tenant is not None:
            latched = lift.tenant in keeper.latch.tenants.get(name, {})
        else:
            latched = state.stage is Stage.ROLLED_BACK and name in keeper.latch.latched
            if state.stage is Stage.ROLLED_BACK:
                await self._end_what_was_spared(name)
            if state.held is not None and state.held.elsewhere:
                await self._open_elsewhere(state, lift)
        mine = state.latch if lift.tenant is None else state.sent_home.get(lift.tenant)
        if latched and mine is not None:
            await self._open(mine, lift)

    async def _open_elsewhere(self, state: RolloutState, lift: Lift) -> None:
        """What stood in this rollout's way under names that the configuration gives to none: nobody else can
        lift it."""
        plan = state.plan
        named = {one.plan.name: (one.plan.baseline, one.plan.candidate) for one in self._desk.states()}
        latch = self._publisher.keeper.latch
        for rollback in latch.elsewhere(plan.name, (plan.baseline, plan.candidate), named):
            if rollback.rollout not in named:
                await self._open(rollback, lift)

    async def _open(self, rollback: Latch, lift: Lift) -> None:
        written = await self._publisher.lift(rollback, lift.why, lift.unix_s)
        if not written.durable:
            raise LatchUnwritableError(written.error or "the disk refused")

    async def _end_what_was_spared(self, name: str) -> None:
        """The pair that decided a rollback must not decide the next one: it ends while the latch still
        stands."""
        assert self._actor.mirror is not None
        # Pairs are observed before they wait for the store, so a store that hangs holds up no lift.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIFT_S):
                await self._actor.mirror.stop_rollout(name, "the rollback was lifted")


def _latched(latch: Latch | None) -> Latch | None:
    """It, whether or not the disk has it by now."""
    return None if latch is None else msgspec.structs.replace(latch, durable=False)


def _declined(effects: Iterable[Effect]) -> tuple[str, ...]:
    return tuple(reason for effect in effects if isinstance(effect, Declined) for reason in effect.reasons)
