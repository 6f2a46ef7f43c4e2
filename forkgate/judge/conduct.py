"""What came of an event is obeyed and journalled, in the order that keeps a killed judge's successor right.

A step on is journalled before it is obeyed: whoever comes after knows of it. A way home is obeyed before it
is journalled: it waits for no disk, and the latch's own file holds it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from comparator.evidence import EvidenceError
from forkgate.judge.actor import Actor
from forkgate.judge.desk import Asked, Desk
from forkgate.judge.publisher import Publisher
from forkgate.judge.writer import EvidenceWriter, Note
from policies.rollout import Effect, MoveHome, Publish, RollBack, RunCheck, RunSuites, SendHome, Stage

log = logging.getLogger(__name__)

KEPT_S = 5.0
"""How long a step on waits for the journal to hold it; then it is taken all the same, and told."""

Places = dict[str, tuple[str, int]]
"""Rollout → where it stands, and how often it had entered a stage by then."""


class Conduct:
    """All methods belong to the judge's event loop."""

    def __init__(
        self,
        desk: Desk,
        publisher: Publisher,
        writer: EvidenceWriter,
        actor: Actor,
        obeyed: Callable[[], None],
    ) -> None:
        """
        Args:
            obeyed: called once something may have changed.
        """
        self._desk = desk
        self._publisher = publisher
        self._writer = writer
        self._actor = actor
        self._obeyed = obeyed
        self._moving = False
        """Home is about to move: decided, and on its way to the journal and the disk."""

    def carry_out(self, asked: Asked, decided_s: float | None = None, *notes: Note) -> None:
        """Obey and keep what came of something that no evidence store waits for.

        Args:
            decided_s: when its cause was here, on the monotonic clock; None: now.
            notes: to be kept with it.
        """
        decided_s = time.monotonic() if decided_s is None else decided_s
        if upward(asked.effects):
            self._moving |= _moves_home(asked.effects)
            # In the journal's order from this moment on, whatever comes before the task does.
            keeping = self._writer.kept(*notes, *asked.notes, limit_s=KEPT_S)
            self._actor.spawn(self._keep_then_obey(keeping, asked, decided_s, self.places()))
            return
        self.obey(asked, decided_s)
        self._writer.note(*notes, *asked.notes)

    async def _keep_then_obey(
        self, keeping: Awaitable[None], asked: Asked, decided_s: float, places: Places
    ) -> None:
        await self._kept(keeping)
        self.obey(self.still(asked, places), decided_s)

    async def say(self, asked: Asked, *, leads_home: bool) -> str | None:
        """Carry out what came of a person's word. Returns once it is journalled, and its flips and tables are
        over: whoever said it is told the epoch under which it holds.

        Returns:
            Why the journal does not hold it yet, if it does not.
        """
        decided_s, places = time.monotonic(), self.places()
        self._moving |= _moves_home(asked.effects)
        if leads_home:
            under_way = self._under_way(asked, decided_s)
            unkept = await self._kept(self._writer.kept(*asked.notes, limit_s=KEPT_S))
        else:
            unkept = await self._kept(self._writer.kept(*asked.notes, limit_s=KEPT_S))
            under_way = self._under_way(self.still(asked, places), decided_s)
        await under_way
        return unkept

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
                told = self._desk.home_moved(effect.by, time.time(), but=effect.rollout)
                self.carry_out(told, decided_s)
        self._obeyed()
        return flips

    def move_home_again(self) -> None:
        """Home is where the promoted rollout says: the disk had refused it, or a judge was killed between the
        decision and the write."""
        for state in self._desk.states():
            if state.stage is Stage.PROMOTED and not self._moving and not self._publisher.has_moved(state):
                self._moving = True
                plan = state.plan
                cause = f"{plan.name}: home is {plan.candidate} now"
                move = self._actor.spawn(self._publisher.move_home(plan.name, plan.candidate, cause))
                move.add_done_callback(self._moved)

    def places(self) -> Places:
        """Where every rollout stands now; for :meth:`still`."""
        return {state.plan.name: (state.place, state.looks) for state in self._desk.states()}

    def still(self, asked: Asked, places: Places) -> Asked:
        """Without what is to be begun in a place that its rollout has left meanwhile: something may have sent
        it home. A table is made of the states as they are, so it is made anyway."""
        now = self.places()
        effects = tuple(
            effect
            for effect in asked.effects
            if not isinstance(effect, RunCheck | RunSuites | MoveHome)
            or now[effect.rollout] == places[effect.rollout]
        )
        if _moves_home(asked.effects) and not _moves_home(effects):
            self._moving = False
        return msgspec.structs.replace(asked, effects=effects)

    async def _kept(self, keeping: Awaitable[None]) -> str | None:
        """Returns why the journal does not hold it yet, if it does not."""
        try:
            await keeping
        except EvidenceError as error:
            log.error("a step is taken before the journal holds it", extra={"error": str(error)})
            return str(error)
        return None

    def _under_way(self, asked: Asked, decided_s: float) -> Awaitable[Any]:
        """Obey it now; awaited, the flips and tables that came of it are over."""
        tables = [effect for effect in asked.effects if isinstance(effect, Publish)]
        rest = tuple(effect for effect in asked.effects if not isinstance(effect, Publish))
        flips = self.obey(msgspec.structs.replace(asked, effects=rest), decided_s)
        published = (self._actor.under_way(self._actor.publish(one.rollout, one.cause)) for one in tables)
        return asyncio.gather(*map(_settled, flips), *published)

    def _moved(self, _flip: asyncio.Task[Any]) -> None:
        self._moving = False
        self._obeyed()


async def _settled(task: asyncio.Task[Any]) -> None:
    """Whatever it raises has been told."""
    await asyncio.wait([task])


def upward(effects: Sequence[Effect]) -> bool:
    """A table follows, and it sends nobody home."""
    moves = any(isinstance(effect, Publish | MoveHome) for effect in effects)
    return moves and not any(isinstance(effect, RollBack | SendHome) for effect in effects)


def _moves_home(effects: Iterable[Effect]) -> bool:
    return any(isinstance(effect, MoveHome) and effect.by is not None for effect in effects)
