"""All suites of a judge: started at the start of a stage, ended with their rollout."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection

from comparator.comparison import Comparison
from forkgate.config.suites import LoadedSuite
from forkgate.suites.run import SampleMirror, SuiteProgress, SuiteReport, SuiteRun
from forkgate.suites.scorer import Scorer
from forkgate.suites.scores import AnswerScorer

_LOG = logging.getLogger(__name__)


class SuiteRuns:
    """Starts, shows and ends them. One event loop."""

    def __init__(self, mirror: SampleMirror, scorer: AnswerScorer | None = None) -> None:
        self._mirror = mirror
        self._scorer: AnswerScorer = scorer if scorer is not None else Scorer()
        self._runs: dict[tuple[str, str], SuiteRun] = {}
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def start(
        self,
        rollout: str,
        stage: str,
        suite: LoadedSuite,
        done: Collection[tuple[str, int]],
        sink: Callable[[Comparison], Awaitable[None]],
        finished: Callable[[SuiteReport], None],
    ) -> None:
        """Ask every (sample, pass) that is not in ``done``. Neither waits nor raises.

        The same suite of that rollout, still under way (of an earlier stage), is broken off first.

        Args:
            sink: takes each scored comparison, in the order in which they end.
            finished: told once, also where the run was stopped (:attr:`SuiteReport.stopped` says why); not
                where :meth:`close` ended it.
        """
        key = (rollout, suite.name)
        before = self._runs.get(key)
        if before is not None:
            before.stop(f"it starts anew at stage {stage}")
        run = SuiteRun(
            rollout=rollout,
            stage=stage,
            loaded=suite,
            mirror=self._mirror,
            scorer=self._scorer,
            sink=sink,
            done=done,
            monotonic=time.monotonic,
        )
        task = asyncio.create_task(self._carry_out(run, finished), name=f"suite {suite.name} of {rollout}")
        if (old := self._tasks.get(key)) is not None:
            self._ending.add(old)
        self._runs[key], self._tasks[key] = run, task

        def ended(task: asyncio.Task[None]) -> None:
            self._ending.discard(task)
            if self._tasks.get(key) is task:
                del self._tasks[key], self._runs[key]

        task.add_done_callback(ended)

    async def stop(self, rollout: str, why: str) -> None:
        """Ask no more of this rollout's suites. Returns when nothing of them runs."""
        mine = [key for key in self._runs if key[0] == rollout]
        tasks = [self._tasks[key] for key in mine]
        for key in mine:
            self._runs[key].stop(why)
        if tasks:
            await asyncio.wait(tasks)

    def progress(self, rollout: str) -> tuple[SuiteProgress, ...]:
        """How far each suite is that is under way."""
        return tuple(run.progress() for (name, _), run in self._runs.items() if name == rollout)

    async def close(self) -> None:
        """End everything; what was kept is found again by the next judge."""
        tasks = (*self._tasks.values(), *self._ending)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._scorer.close()

    async def _carry_out(self, run: SuiteRun, finished: Callable[[SuiteReport], None]) -> None:
        try:
            report = await run.run()
            finished(report)
        except Exception:
            _LOG.exception("a suite's run broke")
