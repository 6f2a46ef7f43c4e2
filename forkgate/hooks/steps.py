"""May this step be taken? What the ``before_step`` hooks say of one, and when they are asked.

A step that a stage takes by itself is not asked about until every other condition of it holds; from then on
it is withheld, second by second, until each hook has said yes. A rollout that is not told of the second that
passed is where it was, so nothing of this stands in its state or its journal. A person's promote asks at once
and is declined with the hooks' words.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from forkgate.hooks.hooks import Answered, Hooks
from policies.rollout import RolloutState, next_place

log = logging.getLogger(__name__)

FRESH_S = 30.0
"""How long a yes is one: something else may have come in between."""


@dataclass
class _Asked:
    """The last question of one rollout."""

    look: str
    """The stage or step that would be left."""
    answers: tuple[Answered, ...] = ()
    answered_s: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class StepHooks:
    """All methods belong to the judge's event loop."""

    def __init__(self, hooks: Hooks, clock: Callable[[], float] = time.monotonic) -> None:
        self._hooks = hooks
        self._clock = clock
        self._asked: dict[str, _Asked] = {}

    def withheld(self, state: RolloutState) -> bool:
        """Whether a step that could be taken now must wait for a hook. Asks where it is time to; never
        waits."""
        if not self._hooks.asks(state.plan.name):
            return False
        asked = self._of(state)
        age_s = None if asked.answered_s is None else self._clock() - asked.answered_s
        if age_s is not None and age_s <= FRESH_S and all(one.allowed for one in asked.answers):
            return False
        refused = age_s is not None and not all(one.allowed for one in asked.answers)
        if asked.task is None and not (
            refused and age_s is not None and age_s < self._hooks.again_s(state.plan.name)
        ):
            asked.task = asyncio.get_running_loop().create_task(self._ask(state, asked))
        return True

    async def refusals(self, state: RolloutState) -> tuple[str, ...]:
        """Ask now, for a person: what stands in the way, a sentence each; empty when all allow it."""
        if not self._hooks.asks(state.plan.name):
            return ()
        asked = self._of(state)
        await self._ask(state, asked)
        return self.blocked_by(state)

    def blocked_by(self, state: RolloutState) -> tuple[str, ...]:
        """What is known of the present step's hooks, for people."""
        asked = self._asked.get(state.plan.name)
        if asked is None or asked.look != state.look:
            return ()
        if asked.answered_s is None:
            waiting = ", ".join(self._hooks.asks(state.plan.name))
            return (f"hook {waiting} has been asked and has not answered yet",)
        return tuple(
            f"hook {one.hook} {one.why}" if one.silent else f"hook {one.hook} refuses: {one.why}"
            for one in asked.answers
            if not one.allowed
        )

    async def close(self) -> None:
        """Ask nothing more."""
        for asked in self._asked.values():
            if asked.task is not None:
                asked.task.cancel()

    def _of(self, state: RolloutState) -> _Asked:
        name, look = state.plan.name, state.look
        asked = self._asked.get(name)
        if asked is None or asked.look != look:
            if asked is not None and asked.task is not None:
                asked.task.cancel()  # about a step that was left meanwhile
            asked = self._asked[name] = _Asked(look)
        return asked

    async def _ask(self, state: RolloutState, asked: _Asked) -> None:
        try:
            answers = await self._hooks.ask(state, _to(state))
            asked.answers, asked.answered_s = answers, self._clock()
            log.info(
                "hooks answered about a step",
                extra={
                    "rollout": state.plan.name,
                    "place": state.place,
                    "answers": {one.hook: one.why if not one.allowed else "allowed" for one in answers},
                },
            )
        finally:
            if asked.task is asyncio.current_task():
                asked.task = None


def _to(state: RolloutState) -> str:
    """Where its next step leads, for people."""
    place = next_place(state)
    if place is None:
        return "nowhere"
    stage, step = place
    return msgspec.structs.replace(state, stage=stage, step=step).place
