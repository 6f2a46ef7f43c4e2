"""A stage's suites are asked after what ran before has stopped, and only for what no judge has kept."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.evidence import EvidenceError
from forkgate.checks import CheckProgress
from forkgate.checks.report import CheckReport
from forkgate.judge.starts import Starts
from policies.policy import Level
from policies.rollout import CheckKind, Stage
from tests.support.exchanges import comparison, pair
from tests.support.judging import NotedChecks, NotedSuites
from tests.support.waiting import eventually


class Suite(msgspec.Struct):
    name: str
    digest: str


class End(msgspec.Struct):
    stopped: str | None
    rollout: str = "r"
    suite: str = "starter"
    stage: str = "shadow"
    summary: str = "50 of 50 answers"
    whole: bool = True


class Told:
    def __init__(self) -> None:
        self.samples: list[Comparison] = []
        self.suites: list[tuple[str, str, Stage, str]] = []
        self.checks: list[CheckReport] = []

    def check_done(self, rollout: str, kind: CheckKind, report: CheckReport) -> None:
        self.checks.append(report)

    async def sample_finished(self, comparison: Comparison) -> None:
        self.samples.append(comparison)

    def suite_done(self, rollout: str, suite: str, stage: Stage, summary: str, whole: bool) -> None:
        assert whole
        self.suites.append((rollout, suite, stage, summary))


LOADED = {"r": {"starter": Suite("starter", "sha256:1"), "mine": Suite("mine", "sha256:2")}}


async def kept(rollout: str, digest: str, stage: str) -> Collection[tuple[str, int]]:
    return {("s1", 0)} if digest == "sha256:1" else ()


def made(done: Any = kept) -> tuple[Starts, NotedSuites, Told]:
    suites, told = NotedSuites(), Told()
    return Starts(NotedChecks(), suites, LOADED, done, told), suites, told


def test_each_suite_is_asked_for_what_is_not_kept_and_its_end_is_told() -> None:
    async def main() -> None:
        starts, suites, told = made()
        starts.suites("r", Stage.SHADOW, ("starter", "mine"))
        await eventually(lambda: len(suites.started) == 2)
        assert suites.started == [("r", "shadow", "starter"), ("r", "shadow", "mine")]
        assert suites.done == [{("s1", 0)}, ()]
        one = comparison(pair())
        await suites.sinks[0](one)
        suites.finished[0](End(stopped=None))
        assert told.samples == [one]
        assert told.suites == [("r", "starter", Stage.SHADOW, "50 of 50 answers")]
        await starts.close()

    asyncio.run(main())


def test_suite_that_was_broken_off_is_not_done() -> None:
    async def main() -> None:
        starts, suites, told = made()
        starts.suites("r", Stage.SHADOW, ("starter",))
        await eventually(lambda: suites.started)
        suites.finished[0](End(stopped="rolled back"))
        assert told.suites == []
        await starts.close()

    asyncio.run(main())


def test_orders_of_one_rollout_are_carried_out_in_their_order() -> None:
    async def main() -> None:
        order: list[str] = []
        released = asyncio.Event()

        class Slow(NotedSuites):
            def start(self, rollout: str, stage: str, suite: Any, *rest: Any) -> None:
                order.append(f"start {stage}")

            async def stop(self, rollout: str, why: str) -> None:
                order.append("stopping")
                await released.wait()
                order.append("stopped")

        starts = Starts(NotedChecks(), Slow(), LOADED, kept, Told())
        starts.suites("r", Stage.SHADOW, ("starter",))
        starts.stop("r", "lifted")
        starts.suites("r", Stage.CANARY, ("starter",))
        await eventually(lambda: order == ["start shadow", "stopping"])
        released.set()
        await eventually(lambda: order[2:] == ["stopped", "start canary"])
        await starts.close()

    asyncio.run(main())


def test_store_that_cannot_tell_costs_a_second_asking_and_no_suite() -> None:
    async def broken(rollout: str, digest: str, stage: str) -> Collection[tuple[str, int]]:
        raise EvidenceError("evidence.db", "the disk is gone")

    async def main() -> None:
        starts, suites, _ = made(broken)
        starts.suites("r", Stage.SHADOW, ("starter",))
        await eventually(lambda: suites.started)
        assert suites.done == [()]
        await starts.close()

    asyncio.run(main())


def test_check_that_was_ended_tells_nothing() -> None:
    async def main() -> None:
        checks, told = NotedChecks(), Told()
        starts = Starts(checks, NotedSuites(), LOADED, kept, told)
        starts.check("r", CheckKind.SELF_CHECK, Level.TOKEN)
        await eventually(lambda: checks.ends)
        assert starts.checking("r")
        checks.far = CheckProgress(answers=3, wanted=50, elapsed_s=1.5, waiting=None)
        assert starts.check_progress("r") == checks.far
        starts.stop("r", "rolled back")
        await eventually(lambda: checks.ends[0].cancelled())
        assert not starts.checking("r")
        assert starts.check_progress("r") is None
        assert told.checks == []
        await starts.close()

    asyncio.run(main())
