"""One rollout's shadow: a queue, the budgets that open and close it, and the comparisons under way.

A capture's road through a lane::

    submit ─▶ queue ─▶ (slot, tokens, a lull in live work) ─▶ ComparisonRun ─▶ sink ─▶ ledger
       └──────────┴──────────────── dropped for a reason ◀────────┴─────────────┘

One task feeds them; each comparison is a task, and each of its arms. Nothing is scheduled per token. Samples
of suites take the same road from the run on, with slots of their own (``samples``).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from comparator.comparison import Comparison
from comparator.pair import ForkSeen
from comparator.records import Arm
from engines.base import Call
from proxy.edge.ids import RequestIds
from proxy.ledger import DropReason, JudgeLedger
from proxy.link.values import Capture, EdgeIdentity
from proxy.mirror.arm import Sources
from proxy.mirror.asks import SampleAsk
from proxy.mirror.budget import TokenBudget
from proxy.mirror.decode import read_call, recognise
from proxy.mirror.errors import Dropped
from proxy.mirror.notes import DropNotes
from proxy.mirror.places import Picker, Place
from proxy.mirror.pools import ShadowEndpoint, ShadowRollout
from proxy.mirror.ports import MirrorSink, NoTracer, Tracer
from proxy.mirror.question import Question, question_of_capture, question_of_sample
from proxy.mirror.queue import CaptureQueue, Waiting
from proxy.mirror.refusals import Refusal
from proxy.mirror.replicate import Shared
from proxy.mirror.room import Room
from proxy.mirror.run import ComparisonRun
from proxy.mirror.samples import Samples
from proxy.mirror.status import LaneState, LaneStatus

_LOG = logging.getLogger(__name__)

OUR_WORDS = frozenset(
    {
        DropReason.IN_FLIGHT_LIMIT,
        DropReason.TOKEN_RATE,
        DropReason.TOKEN_DAY,
        DropReason.TENANT_BUDGET,
        DropReason.TOO_OLD,
        DropReason.POOL_BUSY,
        DropReason.ROLLED_BACK,
        DropReason.SHUTDOWN,
    }
)
"""Reasons whose details name pools, limits and rollouts alone: the others may quote a client or an engine."""


class Lane:
    """All methods belong to the judge's event loop."""

    def __init__(
        self,
        rollout: ShadowRollout,
        sink: MirrorSink,
        ledger: JudgeLedger,
        notes: DropNotes,
        sources: Sources,
        tracer: Tracer | None = None,
    ) -> None:
        self.rollout = rollout
        self.budget = TokenBudget(rollout.settings, sources.monotonic, sources.unix)
        self._sink = sink
        self._ledger = ledger
        self._notes = notes
        self._queue = CaptureQueue(rollout.settings, sources.monotonic)
        self._baseline = Picker(rollout.baseline, sources.monotonic, rollout.settings)
        self._candidate = Picker(rollout.candidate, sources.monotonic, rollout.settings)
        self._room = Room(rollout, self.budget, self._baseline, self._candidate, sources)
        self._tracer = tracer if tracer is not None else NoTracer()
        self._shared = Shared(
            rollout=rollout,
            budget=self.budget,
            fork_seen=self._tell_fork,
            sources=sources,
            tracer=self._tracer,
        )
        self._ids = RequestIds(sources.unix)
        self._samples = Samples(rollout.settings.samples_in_flight, self._room, self._begin_sample)
        self._state = LaneState.OPEN
        self._why = ""
        self._running: dict[ComparisonRun, asyncio.Task[None]] = {}
        self._storing: dict[asyncio.Task[None], int] = {}
        """With the number of pairs, which is what weighs."""
        self._wake = asyncio.Event()
        self._feeder: asyncio.Task[None] | None = None
        self._blocked: tuple[DropReason, str] | None = None
        self._head: tuple[str, int] | None = None
        self._met: set[Refusal] = set()
        """What has kept that head of the queue waiting."""
        self._dropped: Counter[str] = Counter()
        self._drop_details: dict[str, str] = {}
        self._controls = self._replicates = 0

    def submit(self, edge: EdgeIdentity, capture: Capture) -> None:
        """Queue a capture, or drop it."""
        try:
            self._admit(edge, capture)
        except Dropped as end:
            self._drop(edge, capture, end)
            return
        if self._feeder is None:
            self._feeder = asyncio.create_task(self._feed(), name=f"mirror {self.rollout.name}")
        self._wake.set()

    async def run_sample(self, ask: SampleAsk) -> Comparison:
        """See :meth:`proxy.mirror.Mirror.run_sample`."""
        return await self._samples.ask(ask)

    def poke(self) -> None:
        """Look again: a clock was moved, or a budget changed."""
        self._wake.set()
        self._room.poke()

    def resume(self) -> None:
        if self._state is LaneState.STOPPED:
            self._state = LaneState.OPEN
            self._samples.open()
            self._wake.set()

    async def stop(self, why: str, spare: str | None = None) -> None:
        """The rollout is over: drop what waits, abort what runs, return when all has ended.

        The arms of capture ``spare`` run to their own end; it starts no further one.
        """
        if self._state is LaneState.OPEN:
            self._state = LaneState.STOPPED
            self._why = why
        self._empty(Dropped(DropReason.ROLLED_BACK, why))
        self._samples.end(DropReason.ROLLED_BACK, why)
        for run in self._running:
            if spare is None or run.question.capture_id != spare:
                run.abort(DropReason.ROLLED_BACK, why)
            else:
                run.finish_up()
        await self._quiet()

    def arms(self) -> Counter[str]:
        """Arms that run now, by the endpoint's URL."""
        return Counter(self._baseline.arms()) + Counter(self._candidate.arms())

    def yield_pool(self, pool: str, why: str, *, ends: bool, spare: str | None) -> int:
        """See :meth:`proxy.mirror.Mirror.yield_pool`. Returns how many questions were stopped.

        Args:
            ends: the rollout is over by this, so that what is decided is kept, as by :meth:`stop`.
        """
        pickers = [one for one in (self._baseline, self._candidate) if one.pool.name == pool]
        pickers = [one for one in pickers if not one.pool.dedicated]
        if not pickers:
            return 0
        for picker in pickers:
            picker.yield_to_live(why)
        stopped = 0
        for run in self._running:
            if run.question.capture_id == spare:
                run.finish_up()
                continue
            stopped += 1
            if ends:
                run.abort(DropReason.ROLLED_BACK, why)
            else:
                run.shed(DropReason.POOL_BUSY, why)
        return stopped + self._samples.shed(DropReason.POOL_BUSY, why)

    async def close(self, drain_s: float, store_s: float) -> None:
        """Let running arms end for ``drain_s`` seconds, abort the rest, and store for ``store_s`` more."""
        self._state = LaneState.CLOSED
        if self._feeder is not None:
            self._feeder.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._feeder
        shutdown = Dropped(DropReason.SHUTDOWN, "the judge stops")
        self._empty(shutdown)
        self._samples.end(shutdown.reason, shutdown.detail)
        for run in self._running:
            run.finish_up()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=drain_s)
        for run in self._running:
            run.abort(shutdown.reason, shutdown.detail)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(store_s):
                await self._quiet()
        left = (*self._running.values(), *self._storing)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=1.0)
        await self._baseline.close()
        await self._candidate.close()

    def status(self) -> LaneStatus:
        return LaneStatus(
            rollout=self.rollout.name,
            state=self._state,
            queued=len(self._queue),
            running=len(self._running),
            samples=self._samples.running,
            storing=len(self._storing),
            controls=self._controls,
            replicates=self._replicates,
            blocked=None if self._blocked is None else f"{self._blocked[0]}: {self._blocked[1]}",
            dropped=dict(self._dropped),
            drop_details=dict(self._drop_details),
            refused=dict(self._room.refusals.counts),
            spent=self.budget.spent(),
        )

    # -- queue ----------------------------------------------------------------------------------------

    def _admit(self, edge: EdgeIdentity, capture: Capture) -> None:
        kind = recognise(capture.target)
        if self._state is LaneState.STOPPED:
            raise Dropped(DropReason.ROLLED_BACK, self._why)
        if self._state is LaneState.CLOSED:
            raise Dropped(DropReason.SHUTDOWN, "the judge stops")
        self._room.admit(capture.tenant)
        self._expire()
        self._queue.put(edge, capture, kind)

    def _expire(self) -> None:
        for waiting, detail in self._queue.expire():
            self._drop(waiting.edge, waiting.capture, Dropped(DropReason.TOO_OLD, detail))

    def _empty(self, end: Dropped) -> None:
        while len(self._queue):
            waiting = self._queue.pop()
            self._drop(waiting.edge, waiting.capture, end)

    def _drop(self, edge: EdgeIdentity, capture: Capture, end: Dropped) -> None:
        self._ledger.dropped(edge.incarnation, capture.sequence, end.reason)
        self._dropped[end.reason.value] += 1
        if end.reason in OUR_WORDS:
            self._drop_details[end.reason.value] = end.detail
        self._tracer.dropped(capture.capture_id, end.reason.value)
        self._notes.add(edge.incarnation, capture.sequence, self.rollout.name, end)

    async def _quiet(self) -> None:
        while tasks := (*self._running.values(), *self._storing):
            await asyncio.wait(tasks)
        await self._samples.quiet()

    # -- feeding --------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        while self._state is not LaneState.CLOSED:
            try:
                await self._feed_once()
            except Exception:  # a bug must not end the lane in silence
                _LOG.exception("a mirror stumbled, it goes on", extra={"rollout": self.rollout.name})
                await asyncio.sleep(1.0)

    async def _feed_once(self) -> None:
        """Start the head of the queue, or wait until it might start."""
        self._wake.clear()
        self._expire()
        waiting = self._queue.head()
        if waiting is None:
            self._blocked = None
            await self._wake.wait()
            return
        head = (waiting.edge.incarnation, waiting.capture.sequence)
        if head != self._head:
            self._head, self._met = head, set()
        try:
            self._room.admit(waiting.capture.tenant)
        except Dropped as end:
            self._queue.pop()
            self._drop(waiting.edge, waiting.capture, end)
            return
        pause_s = await self._pause_s()
        if pause_s is None:
            if len(self._queue):  # it may have been emptied while load was read
                self._start(self._queue.pop())
            return
        expiry_s = self._queue.next_expiry_s()
        if expiry_s is not None:
            pause_s = min(pause_s, expiry_s + 0.001)
        # asyncio.timeout, not wait_for: in Python 3.11 that swallows a cancellation which comes together with
        # the end of what it waits for, and close() would wait for this task for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._wake.wait()

    async def _pause_s(self) -> float | None:
        """None: the head may start. Else seconds after which to look again, if nothing happens before."""
        settings = self.rollout.settings
        self._blocked = None
        if len(self._running) >= settings.in_flight:
            return self._block(DropReason.IN_FLIGHT_LIMIT, f"{len(self._running)} captures run", 60.0)
        storing = sum(self._storing.values())
        if storing >= 4 * settings.in_flight + 16:
            return self._block(DropReason.IN_FLIGHT_LIMIT, f"{storing} pairs wait for the store", 60.0)
        block = await self._room.block(self._met)
        return None if block is None else self._block(block.reason, block.detail, block.pause_s)

    def _block(self, reason: DropReason, detail: str, pause_s: float) -> float:
        self._blocked = self._queue.blocked = (reason, detail)
        return pause_s

    def _start(self, waiting: Waiting) -> None:
        capture, settings = waiting.capture, self.rollout.settings
        question = question_of_capture(self.rollout.name, settings, capture)

        def call(_baseline: ShadowEndpoint) -> Awaitable[Call]:
            return read_call(capture, waiting.kind, settings.decoded_bytes)

        run = self._begin(question, call)
        self._tracer.begin(capture)
        task = asyncio.create_task(self._run(run, waiting), name=f"capture {capture.capture_id}")
        self._running[run] = task

        def ended(task: asyncio.Task[None]) -> None:
            run.leave()
            self._running.pop(run, None)
            if task.cancelled():
                end = Dropped(DropReason.SHUTDOWN, "the judge stops")
                self._drop(waiting.edge, waiting.capture, end)
            self._wake.set()

        task.add_done_callback(ended)

    # -- comparisons ----------------------------------------------------------------------------------

    def _begin_sample(self, ask: SampleAsk) -> ComparisonRun:
        return self._begin(question_of_sample(ask, self._ids.new()), ask.read_call)

    def _begin(self, question: Question, call: Callable[[ShadowEndpoint], Awaitable[Call]]) -> ComparisonRun:
        """Take an endpoint for each arm."""
        baseline = self._baseline.pick()
        places: dict[Arm, Place] = {Arm.BASELINE: baseline}
        if question.candidate:
            places[Arm.CANDIDATE] = self._candidate.pick()
        if question.control:
            places[Arm.CONTROL] = baseline.another() or baseline
        room = functools.partial(self._room.wait, question.tenant, candidate=question.candidate)
        return ComparisonRun(self._shared, question, places, call, room)

    async def _run(self, run: ComparisonRun, waiting: Waiting) -> None:
        try:
            comparison = await run.run()
        except Dropped as end:
            self._drop(waiting.edge, waiting.capture, end)
        except Exception as error:
            _LOG.exception("a comparison failed", extra={"capture_id": waiting.capture.capture_id})
            detail = f"{type(error).__name__}: {error}"
            self._drop(waiting.edge, waiting.capture, Dropped(DropReason.UNSUPPORTED, detail))
        else:
            self._controls += len(comparison.controls)
            self._replicates += max(0, len(comparison.candidates) - 1)
            # The slot is free now: a store that is slow for a moment does not stop the arms.
            task = asyncio.create_task(
                self._store(comparison, waiting), name=f"store {comparison.capture_id}"
            )
            self._storing[task] = len(comparison.pairs)

            def stored(task: asyncio.Task[None]) -> None:
                self._storing.pop(task, None)
                if task.cancelled():
                    late = Dropped(DropReason.EVIDENCE_FAILED, "the store did not answer in time")
                    self._drop(waiting.edge, waiting.capture, late)
                self._wake.set()

            task.add_done_callback(stored)

    async def _store(self, comparison: Comparison, waiting: Waiting) -> None:
        edge, capture = waiting.edge, waiting.capture
        try:
            await self._sink.comparison_finished(comparison, edge.incarnation, capture.sequence)
        except Exception as error:
            self._drop(edge, capture, Dropped(DropReason.EVIDENCE_FAILED, f"{type(error).__name__}: {error}"))
        else:
            self._ledger.compared(edge.incarnation, capture.sequence)

    def _tell_fork(self, event: ForkSeen) -> None:
        if self._state is LaneState.OPEN:
            self._sink.fork_seen(event)
