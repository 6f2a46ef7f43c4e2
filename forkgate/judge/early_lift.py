"""Would a start or a lift come too early? What stands in its pools at that moment is what a rollout compares
from then on; another engine that is found later has changed in mid-rollout, and holds it.

When a pool was changed or mended nobody tells, so its endpoints are probed right before a rollout begins,
also those that did not answer a moment ago. Those that still do not are told to whoever is about to begin it,
and so is what took too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

from forkgate.endpoint import Endpoint
from forkgate.fleet import Fleet
from policies.rollout import RolloutState, Stage

FRESH_S = 5.0
"""So long ago a probe still tells what stands there: no engine is put in place of another as fast."""
PROBE_S = 10.0
"""How long a start or a lift waits for the probes that it asks for: of an idle engine they take seconds."""
POLL_S = 0.05
_NOT_BEGUN = (Stage.PENDING, Stage.ABORTED)


class EarlyLift:
    """Belongs to the judge's event loop."""

    def __init__(self, fleet: Fleet, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._monotonic = monotonic

    def told(self, state: RolloutState) -> tuple[str, ...]:
        """Why a lift of it should wait, a sentence an endpoint that does not answer; empty where nothing is
        to be lifted."""
        if state.latch is None and state.held is None:
            return ()
        return self._in_words((pool, one) for pool, one in self._endpoints(state) if one.trouble is not None)

    async def looked(self, state: RolloutState) -> tuple[str, ...]:
        """Have probed what stands in the pools of a rollout that is about to begin, for a bounded time.

        Returns:
            What is not known all the same, a sentence an endpoint; empty where the rollout does not begin.
        """
        if state.latch is None and state.held is None and state.stage not in _NOT_BEGUN:
            return ()
        since_s = self._monotonic() - FRESH_S
        wanted = [(one, one.want()) for _, one in self._endpoints(state) if _old(one, since_s)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PROBE_S):
                while True:
                    if not any(_old(one, since_s) and one.probes < probes for one, probes in wanted):
                        break
                    await asyncio.sleep(POLL_S)
        return self._in_words((pool, one) for pool, one in self._endpoints(state) if _old(one, since_s))

    def _in_words(self, unknown: Iterable[tuple[str, Endpoint]]) -> tuple[str, ...]:
        return tuple(
            f"pool {pool}: {one.url}: {one.trouble or f'not probed within {PROBE_S:g} s'}. If it was changed "
            "or mended, let it be probed first: another engine that is found later holds the rollout"
            for pool, one in unknown
        )

    def _endpoints(self, state: RolloutState) -> Iterator[tuple[str, Endpoint]]:
        for pool in (state.plan.baseline, state.plan.candidate):
            for one in self._fleet.endpoints(pool):
                yield pool, one


def _old(one: Endpoint, since_s: float) -> bool:
    return one.trouble is not None or one.known_s is None or one.known_s < since_s
