"""Would a lift come too early? A pool that was mended, and not probed since, may turn out to be another
engine than the one that is known, and that holds the rollout again.

When it was mended nobody tells. What is known is since when a rollout stands still, rolled back or held, and
when each endpoint last said who it is: whatever was known before is of before the repair.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from forkgate.endpoint import Endpoint
from forkgate.fleet import Fleet
from policies.rollout import RolloutState

PROBE_S = 5.0
"""How long a lift waits for the probes that it asks for: of an idle engine they take about a second."""
POLL_S = 0.05


class EarlyLift:
    """Belongs to the judge's event loop."""

    def __init__(self, fleet: Fleet, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._monotonic = monotonic
        self._stopped_s: dict[str, float] = {}
        """Rollout → since when it stands still, as far as this judge saw it. A judge that starts probes every
        endpoint anew, so the ones before need not be known."""

    def look(self, states: Iterable[RolloutState]) -> None:
        """Note what stands still now. To be told after each event."""
        now_s = self._monotonic()
        for state in states:
            if state.latch is None and state.held is None:
                self._stopped_s.pop(state.plan.name, None)
            else:
                self._stopped_s.setdefault(state.plan.name, now_s)

    def told(self, state: RolloutState) -> tuple[str, ...]:
        """What a person should know before lifting it, a sentence an endpoint; empty where nothing speaks
        against it, or nothing is to be lifted."""
        if state.latch is None and state.held is None:
            return ()
        return tuple(
            f"pool {pool}: {one.url}: {why}. If it was mended, let it be probed before the lift: another "
            "engine than before that is found after it holds the rollout again"
            for pool, one, why in self._unknown(state)
        )

    async def probed(self, state: RolloutState) -> None:
        """Have those probed that answer, and wait for it, :data:`PROBE_S` at most: found before the lift, a
        mended engine is what will be compared."""
        for one in self._answering(state):
            one.doubted.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                while True:
                    if not self._answering(state):
                        return
                    await asyncio.sleep(POLL_S)

    def _answering(self, state: RolloutState) -> list[Endpoint]:
        return [one for _, one, _ in self._unknown(state) if one.trouble is None]

    def _unknown(self, state: RolloutState) -> Iterator[tuple[str, Endpoint, str]]:
        since_s = self._stopped_s.get(state.plan.name, self._monotonic())
        for pool in (state.plan.baseline, state.plan.candidate):
            for one in self._fleet.endpoints(pool):
                known_s = one.known_s
                if one.trouble is not None:
                    yield pool, one, one.trouble
                elif known_s is None or known_s < since_s:
                    stopped = "rolled back" if state.latch is not None else "held"
                    yield pool, one, f"not probed since the rollout is {stopped}"
