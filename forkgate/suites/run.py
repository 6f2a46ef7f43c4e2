"""One suite, asked through the mirror: every sample, every pass, until all are kept or somebody says stop.

Passes run in order (pass 0 of every sample first), a few samples at a time. The mirror lets live work go
first and says so by dropping a sample; then the whole run pauses, for a while that doubles, and asks that
sample again. What cannot be asked at all, or fails again and again while others succeed, is given up and
reported: a suite is never smaller than it says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

import msgspec

from comparator.comparison import Comparison, SampleRef
from engines.base import Call, CallKind
from forkgate.config.suites import LoadedSuite
from forkgate.suites.scores import AnswerScorer, with_scores
from policies.suites import Sample
from proxy.ledger import DropReason
from proxy.mirror import Dropped, SampleAsk

_LOG = logging.getLogger(__name__)

AT_ONCE = 8
"""Samples under way at once; the mirror's own share (``shadow.samples_in_flight``) is what counts."""
PAUSE_S = (1.0, 30.0)
"""First and longest pause after a sample was dropped for a passing reason."""
ATTEMPTS = 5
"""After as many a sample is given up, if the others get through."""
OUTAGE_S = 1_800.0
"""Without any success for as long, a baseline that does not answer is no passing trouble any more."""

_FINAL = (DropReason.ROLLED_BACK, DropReason.SHUTDOWN)
_BUSY = (
    DropReason.POOL_BUSY,
    DropReason.IN_FLIGHT_LIMIT,
    DropReason.TOKEN_RATE,
    DropReason.TOKEN_DAY,
    DropReason.TENANT_BUDGET,
    DropReason.TOO_OLD,
)
"""Nothing is wrong with the sample: its turn comes, however late."""
_TROUBLE = (DropReason.BASELINE_UNAVAILABLE,)
"""May pass, or may be the sample's own doing."""


class SampleMirror(Protocol):
    """:class:`proxy.mirror.Mirror`, as far as samples go."""

    async def run_sample(self, rollout: str, ask: SampleAsk) -> Comparison:
        """Raises :class:`proxy.mirror.Dropped`."""
        ...


class SuiteReport(msgspec.Struct, frozen=True, kw_only=True):
    """How asking a suite ended."""

    rollout: str
    suite: str
    digest: str
    stage: str
    asked: int
    """Samples times passes."""
    run: int
    """Of these, compared, scored and kept, those before a restart included."""
    failed: dict[str, int] = {}
    """Given up, by reason."""
    examples: tuple[str, ...] = ()
    """The first of each reason in words, with its sample."""
    stopped: str | None = None
    """Why it was broken off; None when it was asked to its end."""
    seconds: float = 0.0

    @property
    def whole(self) -> bool:
        """Every sample was asked in every pass."""
        return self.run == self.asked

    @property
    def summary(self) -> str:
        """One sentence, with numbers."""
        said = f"suite {self.suite}: {self.run} of {self.asked} answers compared"
        if self.failed:
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(self.failed.items()))
            said += f"; could not be asked: {told} ({self.examples[0]})"
        return said if self.stopped is None else f"{said}; stopped: {self.stopped}"


class SuiteProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a suite is."""

    suite: str
    stage: str
    asked: int
    run: int
    failed: int
    passage: int
    """The pass under way, from 0."""
    passes: int
    waiting: str | None
    """What the run pauses for, in words."""


class SuiteRun:
    """One run of one suite in one stage. :meth:`run` is called once; cancel it, or :meth:`stop` it."""

    def __init__(
        self,
        *,
        rollout: str,
        stage: str,
        loaded: LoadedSuite,
        mirror: SampleMirror,
        scorer: AnswerScorer,
        sink: Callable[[Comparison], Awaitable[None]],
        done: Collection[tuple[str, int]] = (),
        at_once: int = AT_ONCE,
        patience_s: float | None = None,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """
        Args:
            sink: takes each scored comparison; a sample counts as run once it returns.
            done: (sample ID, pass) that an earlier life of the judge has kept.
            patience_s: end the run when nothing got through for as long; None waits for ever, since a day's
                spent budget or a busy pool is no reason to give a suite up.
        """
        self._rollout = rollout
        self._stage = stage
        self._loaded = loaded
        self._mirror = mirror
        self._scorer = scorer
        self._sink = sink
        self._at_once = at_once
        self._patience_s = patience_s
        self._monotonic = monotonic
        self._sleep = sleep
        kept = set(done)
        everything = [
            (passage, sample) for passage in range(loaded.passes) for sample in loaded.suite.samples
        ]
        self._queue = deque(one for one in everything if (one[1].id, one[0]) not in kept)
        self._run = len(everything) - len(self._queue)
        self._fresh = 0
        """Got through in this life."""
        self._attempts: Counter[tuple[str, int]] = Counter()
        self._fresh_at: dict[tuple[str, int], int] = {}
        """How many had got through when this one failed last."""
        self._failed: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._passage = self._queue[0][0] if self._queue else loaded.passes - 1
        self._pause_s = 0.0
        self._resume_s = float("-inf")
        self._waiting: str | None = None
        self._stopped: str | None = None
        self._workers: set[asyncio.Task[None]] = set()
        self._started_s = self._success_s = monotonic()

    async def run(self) -> SuiteReport:
        """Ask it to its end. Raises nothing but a cancellation, after which nothing of it runs."""
        self._scorer.forget(self._loaded)
        self._started_s = self._success_s = self._monotonic()
        self._workers = {
            asyncio.create_task(self._work(), name=f"suite {self._loaded.name} of {self._rollout}")
            for _ in range(min(self._at_once, len(self._queue)))
        }
        workers = tuple(self._workers)
        try:
            while self._workers:
                ended, self._workers = await asyncio.wait(self._workers, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    if not task.cancelled() and (error := task.exception()) is not None:
                        raise error
        finally:
            for task in workers:
                task.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return self.report()

    def stop(self, why: str) -> None:
        """Ask no more, and give up what is under way: :meth:`run` returns, and says why."""
        if self._stopped is None:
            self._stopped = why
        for task in self._workers:
            task.cancel()

    def report(self) -> SuiteReport:
        """How it stands."""
        return SuiteReport(
            rollout=self._rollout,
            suite=self._loaded.name,
            digest=self._loaded.digest,
            stage=self._stage,
            asked=self._loaded.asks,
            run=self._run,
            failed=dict(self._failed),
            examples=tuple(self._examples.values()),
            stopped=self._stopped,
            seconds=self._monotonic() - self._started_s,
        )

    def progress(self) -> SuiteProgress:
        """The same while it runs."""
        return SuiteProgress(
            suite=self._loaded.name,
            stage=self._stage,
            asked=self._loaded.asks,
            run=self._run,
            failed=self._failed.total(),
            passage=self._passage,
            passes=self._loaded.passes,
            waiting=self._waiting,
        )

    # -- workers ------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while self._queue and self._stopped is None:
            pause_s = self._resume_s - self._monotonic()
            if pause_s > 0:
                await self._sleep(pause_s)
                continue
            passage, sample = self._queue.popleft()
            self._passage = passage
            try:
                comparison = await self._mirror.run_sample(self._rollout, self._ask(passage, sample))
                scored = await with_scores(comparison, self._loaded, sample, self._scorer)
                await self._sink(scored)
            except Dropped as end:
                self._dropped(passage, sample, end)
            except Exception as error:  # one sample's trouble must not end the suite unseen
                _LOG.exception("a sample failed", extra={"suite": self._loaded.name, "sample": sample.id})
                self._give_up(passage, sample, "error", f"{type(error).__name__}: {error}")
            else:
                self._run += 1
                self._fresh += 1
                self._success_s = self._monotonic()
                self._pause_s, self._waiting = 0.0, None

    def _dropped(self, passage: int, sample: Sample, end: Dropped) -> None:
        if end.reason in _FINAL:
            if self._stopped is None:
                self._stopped = str(end)
            return
        silent_s = self._monotonic() - self._success_s
        key = (sample.id, passage)
        if end.reason in _TROUBLE:
            self._attempts[key] += 1
            others = self._fresh > self._fresh_at.setdefault(key, self._fresh)
            if self._attempts[key] >= ATTEMPTS and (others or silent_s > OUTAGE_S):
                self._give_up(passage, sample, end.reason.value, end.detail)
                return
        elif end.reason not in _BUSY:
            self._give_up(passage, sample, end.reason.value, end.detail)
            return
        if self._patience_s is not None and silent_s > self._patience_s:
            self._stopped = f"nothing got through for {silent_s:.0f} s: {end}"
            return
        self._queue.appendleft((passage, sample))
        now_s = self._monotonic()
        if now_s >= self._resume_s:  # several are dropped for one reason at once: that is one pause
            self._pause_s = min(max(2 * self._pause_s, PAUSE_S[0]), PAUSE_S[1])
            self._resume_s = now_s + self._pause_s
        self._waiting = str(end)

    def _give_up(self, passage: int, sample: Sample, reason: str, detail: str) -> None:
        self._failed[reason] += 1
        self._examples.setdefault(reason, f"{sample.id}, pass {passage}: {detail}")

    def _ask(self, passage: int, sample: Sample) -> SampleAsk:
        loaded = self._loaded
        return SampleAsk(
            call=call_of(sample),
            sample=SampleRef(
                suite=loaded.name,
                digest=loaded.digest,
                stage=self._stage,
                sample_id=sample.id,
                category=sample.category,
                passage=passage,
                samples=len(loaded.suite.samples),
                passes=loaded.passes,
            ),
            # A rule that the baseline breaks too, once or twice, is no breach of the candidate's.
            control=bool(sample.rules),
        )


def call_of(sample: Sample) -> Call:
    """The sample as a client would ask it, of the model that the pool serves."""
    body: dict[str, Any] = {
        "max_tokens": sample.max_tokens,
        "temperature": sample.temperature,
        "top_p": sample.top_p,
    }
    if sample.stop:
        body["stop"] = list(sample.stop)
    if sample.prompt is not None:
        return Call(kind=CallKind.COMPLETION, body={**body, "prompt": sample.prompt}, model="")
    messages = [{"role": turn.role, "content": turn.content} for turn in sample.messages]
    return Call(kind=CallKind.CHAT, body={**body, "messages": messages}, model="")
