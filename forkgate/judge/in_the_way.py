"""What stands in the way of a step beside what the rollout's state knows.

An old pool that this judge has not looked at yet, a candidate that does not answer, a journal that takes
nothing, and hooks that have not said yes. A ``Tick`` that would move a rollout is withheld meanwhile; a
person's promote is declined in these words. Nothing of it is in the state or the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from forkgate.hooks import StepHooks
from forkgate.judge.writer import EvidenceWriter
from policies.rollout import JUDGED_STAGES, RolloutState, next_place

LOOK_S = 5.0
"""How long a person's promote waits for the first look at the old pool, which follows its first probe."""


class InTheWay:
    """All methods belong to the judge's event loop."""

    def __init__(self, writer: EvidenceWriter, state: Callable[[str], RolloutState]) -> None:
        """
        Args:
            state: a rollout as it stands; raises KeyError.
        """
        self._writer = writer
        self._state = state
        self.looked: Callable[[str], bool] = lambda pool: True
        """Whether a pool was looked at in this life for what a rollback would need of it. That it was ready
        in an earlier one, which a state remembers, lets no step go."""
        self.silent: Callable[[str], Sequence[str]] = lambda pool: ()
        """Endpoints of a pool that do not answer now, a sentence each. Gates do not see them: a request that
        hangs has no record yet, and what a candidate did before it hung may well pass."""
        self._pool_news = asyncio.Event()
        """Set, and another one made, at each look at a pool."""
        self.steps: StepHooks | None = None

    def told(self, state: RolloutState) -> tuple[str, ...]:
        """For people, a sentence each."""
        hooks = () if self.steps is None else self.steps.blocked_by(state)
        return (*self._unseen(state), *self._deaf(state), *self._unwritable(state), *hooks)

    def withholds(self, state: RolloutState) -> bool:
        """Whether a step that could be taken now has to wait. Hooks are asked where it is time to."""
        if self._unseen(state) or self._deaf(state) or self._unwritable(state):
            return True
        return self.steps is not None and self.steps.withheld(state)

    async def refuses(self, state: RolloutState) -> tuple[str, ...]:
        """Why a person may not leave this place, a sentence each. Waits, for a bounded time, for the first
        look at the old pool, which may come right after a judge's start, and for the hooks. Raises
        KeyError."""
        name = state.plan.name
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                while self._unseen(self._state(name)):
                    await self._pool_news.wait()
        now = self._state(name)
        if reasons := (*self._unseen(now), *self._deaf(now)):
            return reasons
        return () if self.steps is None else await self.steps.refusals(state)

    def pool_seen(self) -> None:
        """Somebody has looked at a pool: whoever waits for it looks again."""
        news, self._pool_news = self._pool_news, asyncio.Event()
        news.set()

    def _deaf(self, state: RolloutState) -> tuple[str, ...]:
        if state.stage not in JUDGED_STAGES or next_place(state) is None:
            return ()
        pool = state.plan.candidate
        return tuple(f"pool {pool}: {sentence}" for sentence in self.silent(pool))

    def _unwritable(self, state: RolloutState) -> tuple[str, ...]:
        trouble = self._writer.trouble
        if trouble is None or next_place(state) is None:
            return ()
        return (f"a step on is journalled before it is taken, and the journal takes nothing now: {trouble}",)

    def _unseen(self, state: RolloutState) -> tuple[str, ...]:
        pool = state.plan.baseline
        if state.stage not in JUDGED_STAGES or pool not in state.pools or self.looked(pool):
            return ()  # where nobody ever looked, the conditions say so
        return (f"pool {pool}: this judge has not looked yet whether it could take everything back",)
