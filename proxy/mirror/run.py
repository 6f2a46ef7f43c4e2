"""One question, from its call to its comparison: decoded, encoded once, run seed by seed.

::

    decode ─▶ encode on both ─┬─ IDs equal ─▶ replicate 0, 1... in turn ─▶ Comparison of all their pairs
                              ├─ IDs differ ─▶ no generation; the pair says what each arm would have read
                              └─ no token form ─▶ the request goes as itself, or is dropped with the reason

Replicates run in turn, so that a question weighs on an endpoint as much as one request does, whatever their
number. A series ends early when an arm of a replicate did not end by itself, or when no more may be spent:
what was found until then is the comparison.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from comparator.comparison import Comparison
from comparator.pair import Pair
from comparator.records import Arm
from engines.base import Call
from proxy.ledger import DropReason
from proxy.mirror.cluster import read_cluster
from proxy.mirror.encode import Encoded, Encoder
from proxy.mirror.errors import Dropped
from proxy.mirror.places import Place
from proxy.mirror.pools import ShadowEndpoint
from proxy.mirror.question import Question
from proxy.mirror.replicate import ReplicateRun, Shared

_T = TypeVar("_T")


class ComparisonRun:
    """Runs one question. :meth:`run` is called once; the others at any time, on the same loop."""

    def __init__(
        self,
        shared: Shared,
        question: Question,
        places: dict[Arm, Place],
        read_call: Callable[[ShadowEndpoint], Awaitable[Call]],
        next_room: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """
        Args:
            places: taken for this run, which leaves them. A control's may be the baseline's own.
            read_call: gets the baseline's endpoint; raises Dropped where there is no call.
            next_room: returns when a further replicate may start; raises Dropped when none may.
        """
        self.question = question
        self._shared = shared
        self._places = places
        self._read_call = read_call
        self._next_room = next_room
        self._waiting: asyncio.Task[Any] | None = None
        self._replicate: ReplicateRun | None = None
        self._aborted: Dropped | None = None
        self._closing = False
        self._shed = False

    async def run(self) -> Comparison:
        """What came of the question.

        Raises:
            Dropped: it ends without a comparison.
        """
        try:
            call = await self._read_call(self._places[Arm.BASELINE].endpoint)
            cluster = await read_cluster(call)
            self._raise_if_aborted()
            pairs = await self._pairs(call)
            if self._shed:
                self._raise_if_aborted()
        finally:
            self.leave()
        question = self.question
        return Comparison(
            capture_id=question.capture_id,
            rollout=self._shared.rollout.name,
            tenant=question.tenant,
            cluster=cluster,
            pairs=pairs,
            timing=question.timing,
            sample=question.sample,
            unix_s=self._shared.sources.unix(),
        )

    def abort(self, reason: DropReason, detail: str) -> None:
        """Stop everything. What is decided by then is finished all the same: it is evidence."""
        if self._aborted is None:
            self._aborted = Dropped(reason, detail)
            if self._waiting is not None:
                self._waiting.cancel()
            if self._replicate is not None:
                self._replicate.abort(self._aborted)

    def shed(self, reason: DropReason, detail: str) -> None:
        """Stop everything, and let nothing come of it, whatever is decided by then: the rollout goes on, and
        would hear of more forks than there are if only those that had forked by now were kept."""
        self._shed = True
        self.abort(reason, detail)

    def finish_up(self) -> None:
        """Start no further arm; those that run go on to their end."""
        self._closing = True
        if self._replicate is not None:
            self._replicate.finish_up()

    def leave(self) -> None:
        """Give the places back. A second call is nothing."""
        for place in self._places.values():
            place.leave()

    async def _pairs(self, call: Call) -> tuple[Pair, ...]:
        encoded = await self._encode(call)
        self._raise_if_aborted()
        places = dict(self._places)
        pairs: tuple[Pair, ...] = ()
        replicates = self.question.replicates if encoded.sampling.temperature > 0 else 1
        for index in range(replicates):
            try:
                if index:
                    await self._until_room()
                self._replicate = ReplicateRun(self._shared, self.question, encoded, places, index)
                found = await self._replicate.run()
            except Dropped:
                if pairs:
                    break
                raise
            pairs += found
            if self._closing or self._aborted is not None or not self._replicate.went_well:
                break
            if Arm.CONTROL not in {pair.right.arm for pair in found}:
                places.pop(Arm.CONTROL, None)  # it came to nothing once: the others are not held up by it
        return pairs

    async def _encode(self, call: Call) -> Encoded:
        candidate = self._places.get(Arm.CANDIDATE)
        encoder = Encoder(
            self._shared.rollout.settings,
            self.question,
            self._places[Arm.BASELINE].endpoint,
            candidate.endpoint if candidate is not None else None,
        )
        task = self._waiting = asyncio.create_task(encoder.encode(call), name="encode")
        return await self._unless_aborted(task)

    async def _until_room(self) -> None:
        task = self._waiting = asyncio.create_task(self._next_room(), name="room")
        await self._unless_aborted(task)

    async def _unless_aborted(self, task: asyncio.Task[_T]) -> _T:
        try:
            return await task
        except asyncio.CancelledError:
            if self._aborted is None:
                raise
            raise self._aborted from None
        finally:
            self._waiting = None

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted
