"""What a rollout's stage starts with, under way: its check, or its suites.

One rollout's orders are carried out one after the other: a suite that is to be stopped has stopped before
another is started. What comes of them goes back as events, so that the rules alone decide what follows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from comparator.comparison import Comparison
from comparator.evidence import EvidenceError, EvidenceStore
from forkgate.checks.progress import CheckProgress
from forkgate.checks.report import CheckReport
from forkgate.judge.ports import CheckPort, SuiteEnd, SuitePort, SuiteProgress
from forkgate.judge.writer import EvidenceWriter
from policies.policy import Level
from policies.rollout import CheckKind
from policies.verdict import Answer

log = logging.getLogger(__name__)

KEPT_S = 60.0
"""What reading a suite's kept answers may take before all of it is asked again."""

Done = Callable[[str, str, str], Awaitable[Collection[tuple[str, int]]]]
"""(rollout, suite's digest, look) → (sample, pass) that the evidence store holds. Raises EvidenceError."""


class Listener(Protocol):
    """Told what came of it."""

    def check_done(self, rollout: str, kind: CheckKind, report: CheckReport) -> None: ...

    async def sample_finished(self, comparison: Comparison) -> None: ...

    def suite_done(self, rollout: str, suite: str, look: str, summary: str, whole: bool) -> None: ...


class Starts:
    """The checks and suites of one judge. All methods belong to its event loop."""

    def __init__(
        self,
        checks: CheckPort,
        suites: SuitePort[Any],
        loaded: Mapping[str, Mapping[str, Any]],
        done: Done,
        listener: Listener,
    ) -> None:
        """
        Args:
            loaded: rollout → suite's name → the suite as it was read when the sidecar started.
            done: what earlier judges have kept of a suite.
        """
        self._checks = checks
        self._suites = suites
        self._loaded = loaded
        self._done = done
        self._listener = listener
        self._running: dict[str, asyncio.Task[None]] = {}
        self._lines: dict[str, asyncio.Lock] = {}
        self._orders: set[asyncio.Task[None]] = set()

    def check(self, rollout: str, kind: CheckKind, level: Level) -> None:
        """Make a check; one that still runs for this rollout is ended."""
        self._end_check(rollout)
        task = asyncio.create_task(self._check(rollout, kind, level), name=f"{kind} of {rollout}")
        self._running[rollout] = task

    def suites(self, rollout: str, look: str, names: Sequence[str]) -> None:
        """Ask these suites.

        Args:
            look: of which stage; samples carry it.
        """
        self._order(rollout, lambda: self._ask(rollout, look, tuple(names)))

    def stop(self, rollout: str, why: str) -> None:
        """End this rollout's check and suites. What was ordered before is not started any more."""
        self._end_check(rollout)
        self._order(rollout, lambda: self._suites.stop(rollout, why))

    def yield_pool(self, pool: str, why: str) -> int:
        """Live work comes back to this pool: checks there are broken off, and made anew once it is quiet.
        Suites go through the mirror, which makes room itself. Returns how many checks were broken off."""
        return self._checks.yield_pool(pool, why)

    def checking(self, rollout: str) -> bool:
        """Whether a check runs."""
        return rollout in self._running

    def check_progress(self, rollout: str) -> CheckProgress | None:
        """How far that is; None where none runs."""
        return self._checks.progress(rollout) if rollout in self._running else None

    def progress(self, rollout: str) -> Sequence[SuiteProgress]:
        """How far the suites of the present stage are."""
        return self._suites.progress(rollout)

    async def close(self) -> None:
        """End everything."""
        tasks = [*self._running.values(), *self._orders]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._suites.close()

    def _end_check(self, rollout: str) -> None:
        task = self._running.pop(rollout, None)
        if task is not None:
            task.cancel()

    async def _check(self, rollout: str, kind: CheckKind, level: Level) -> None:
        try:
            report = await self._checks.run(rollout, kind, level)
        except Exception as error:
            log.exception("a check broke", extra={"rollout": rollout, "check": kind})
            report = CheckReport(
                check=kind,
                level=level,
                answer=Answer.ERROR,
                reason=f"the check itself broke: {type(error).__name__}: {error}; the judge's log has more",
                pools=(),
                endpoints=(),
            )
        if self._running.get(rollout) is not asyncio.current_task():
            return  # ended meanwhile: nobody waits for this
        del self._running[rollout]
        self._listener.check_done(rollout, kind, report)

    async def _ask(self, rollout: str, look: str, names: tuple[str, ...]) -> None:
        for name in names:
            suite = self._loaded[rollout][name]
            done: Collection[tuple[str, int]] = ()
            try:
                done = await self._done(rollout, suite.digest, look)
            except EvidenceError as error:
                # Asked twice, counted once: it costs tokens and no verdict.
                log.error(
                    "what was kept of a suite is unknown, all of it is asked",
                    extra={"rollout": rollout, "suite": name, "error": str(error)},
                )
            self._suites.start(rollout, look, suite, done, self._listener.sample_finished, self._finished)
            log.info(
                "suite begins",
                extra={"rollout": rollout, "suite": name, "look": look, "kept_before": len(done)},
            )

    def _finished(self, end: SuiteEnd) -> None:
        if end.stopped is not None:
            log.info(
                "suite broken off", extra={"rollout": end.rollout, "suite": end.suite, "why": end.stopped}
            )
            return
        self._listener.suite_done(end.rollout, end.suite, end.stage, end.summary, end.whole)

    def _order(self, rollout: str, work: Callable[[], Awaitable[None]]) -> None:
        line = self._lines.setdefault(rollout, asyncio.Lock())

        async def in_line() -> None:
            try:
                async with line:
                    await work()
            except Exception:
                log.exception("a suite could not be started or stopped", extra={"rollout": rollout})

        task = asyncio.create_task(in_line(), name=f"suites of {rollout}")
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)


def kept_samples(writer: EvidenceWriter, since: Callable[[str], float]) -> Done:
    """What the store holds of a suite's answers that the gates, as they stand, have folded.

    Args:
        since: when a rollout's gates started from nothing.
    """

    async def kept(rollout: str, digest: str, look: str) -> frozenset[tuple[str, int]]:
        since_s = since(rollout)

        def ask(store: EvidenceStore) -> frozenset[tuple[str, int]]:
            return frozenset(store.samples_done(rollout, digest, look, since_s))

        found: frozenset[tuple[str, int]] = await writer.call(ask, KEPT_S)
        return found

    return kept
