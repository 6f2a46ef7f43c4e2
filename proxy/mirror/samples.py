"""Questions of suites under way on one rollout, in a share of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from comparator.comparison import Comparison
from proxy.ledger import DropReason
from proxy.mirror.asks import NO_TENANT, SampleAsk
from proxy.mirror.errors import Dropped
from proxy.mirror.room import Room
from proxy.mirror.run import ComparisonRun


class Samples:
    """Whoever asks waits for the answer; :meth:`end` ends all, and refuses more until :meth:`open`."""

    def __init__(self, limit: int, room: Room, begin: Callable[[SampleAsk], ComparisonRun]) -> None:
        """
        Args:
            limit: questions that run at once.
            begin: takes places for one, and makes its run.
        """
        self._slots = asyncio.Semaphore(limit)
        self._room = room
        self._begin = begin
        self._tasks: set[asyncio.Task[Comparison]] = set()
        self._runs: set[ComparisonRun] = set()
        self._ended = False
        self._why = (DropReason.SHUTDOWN, "the judge stops")
        self.running = 0

    async def ask(self, ask: SampleAsk) -> Comparison:
        """See :meth:`proxy.mirror.Mirror.run_sample`."""
        self._raise_if_ended()
        task = asyncio.create_task(self._turn(ask), name=f"sample {ask.request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait({task})
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        # One that was stopped half-way is no answer to be scored, whatever it had found by then.
        if task.cancelled():
            raise Dropped(*self._why)
        self._raise_if_ended()
        return task.result()

    def end(self, reason: DropReason, detail: str) -> None:
        """Stop all, those that wait for a slot included."""
        self._ended = True
        self._why = (reason, detail)
        for task in self._tasks:
            task.cancel()

    def shed(self, reason: DropReason, detail: str) -> int:
        """Stop those that run, for now: whoever asked may ask again. Returns how many that were."""
        for run in self._runs:
            run.shed(reason, detail)
        return len(self._runs)

    def open(self) -> None:
        """Take questions again."""
        self._ended = False

    async def quiet(self) -> None:
        """Until none is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _turn(self, ask: SampleAsk) -> Comparison:
        async with self._slots:
            await self._room.wait(NO_TENANT, candidate=ask.candidate)
            run = self._begin(ask)
            self.running += 1
            self._runs.add(run)
            try:
                return await run.run()
            finally:
                self._runs.discard(run)
                self.running -= 1

    def _raise_if_ended(self) -> None:
        if self._ended:
            raise Dropped(*self._why)
