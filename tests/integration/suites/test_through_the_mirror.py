"""A suite through a real mirror and a real scoring process, between engines made of Python."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from comparator.comparison import Comparison
from comparator.records import Arm
from forkgate.suites import SuiteReport, SuiteRuns
from proxy.mirror import NO_TENANT
from tests.support.engines import REFUSED, FakeEngine, load
from tests.support.link import ROLLOUT
from tests.support.mirror import Rig, rig
from tests.support.suites import loaded, sample
from tests.support.waiting import eventually

RULE = {"kind": "regex", "pattern": "<"}
"""What the fake engines say is full of it."""


class Notes:
    def __init__(self) -> None:
        self.kept: list[Comparison] = []
        self.reports: list[SuiteReport] = []

    async def keep(self, one: Comparison) -> None:
        self.kept.append(one)


async def asked(made: Rig, suite: Any, done: Any = ()) -> Notes:
    notes, runs = Notes(), SuiteRuns(made.mirror)
    runs.start(ROLLOUT, "shadow", suite, done, notes.keep, notes.reports.append)
    await eventually(lambda: notes.reports)
    await runs.close()
    return notes


def test_every_pass_of_every_sample_becomes_one_scored_comparison(tmp_path: Path) -> None:
    suite = loaded(tmp_path, sample("a", rules=[RULE]), sample("b"), passes=3)

    async def go() -> Notes:
        async with rig(FakeEngine(), FakeEngine(fork_at=1)) as made:
            notes = await asked(made, suite)
            assert made.sink.comparisons == {}, "a sample is no capture"
            return notes

    notes = asyncio.run(go())
    (report,) = notes.reports
    assert (report.run, report.failed, report.stopped) == (6, {}, None)
    assert {(one.sample.sample_id, one.sample.passage) for one in notes.kept if one.sample} == {
        (name, passage) for name in "ab" for passage in range(3)
    }
    for one in notes.kept:
        assert one.tenant == NO_TENANT
        assert one.sample is not None
        arms = {Arm.BASELINE, Arm.CANDIDATE} | ({Arm.CONTROL} if one.sample.sample_id == "a" else set())
        questions = {"rules", "refusal"} if one.sample.sample_id == "a" else {"refusal"}
        assert {(score.arm, score.question) for score in one.scores} == {
            (arm, question) for arm in arms for question in questions
        }
        assert all(score.error is None for score in one.scores)
    seeds = {one.pairs[0].left.sampling.seed for one in notes.kept}
    assert len(seeds) == 6, "all arms of a pass share a seed, passes and samples do not"


def test_suite_names_no_model_and_is_asked_of_the_one_that_is_served(tmp_path: Path) -> None:
    engine = FakeEngine()

    async def go() -> Notes:
        async with rig(engine, FakeEngine()) as made:
            return await asked(made, loaded(tmp_path, sample("a")))

    assert asyncio.run(go()).reports[0].whole
    assert engine.prompts[0].model == "m", "what its probe found"


def test_candidate_that_refuses_owes_its_scores_as_errors(tmp_path: Path) -> None:
    async def go() -> Notes:
        async with rig(FakeEngine(), FakeEngine(encode_error=REFUSED)) as made:
            return await asked(made, loaded(tmp_path, sample("a", rules=[RULE])))

    (one,) = asyncio.run(go()).kept
    told = {(score.arm, score.question): score.error for score in one.scores}
    assert told[Arm.BASELINE, "rules"] is None
    assert str(told[Arm.CANDIDATE, "rules"]).startswith("no answer, it was refused: ")


def test_baseline_that_refuses_a_sample_is_reported_and_the_rest_is_asked(tmp_path: Path) -> None:
    class Picky(FakeEngine):
        async def encode(self, call: Any) -> Any:
            if "Say b" in str(call.body):
                raise REFUSED
            return await super().encode(call)

    async def go() -> Notes:
        async with rig(Picky(), FakeEngine()) as made:
            return await asked(made, loaded(tmp_path, sample("a"), sample("b"), passes=2))

    (report,) = asyncio.run(go()).reports
    assert (report.asked, report.run, report.failed) == (4, 2, {"unsupported": 2})
    assert report.examples[0].startswith("b, pass 0: ")


def test_live_work_goes_first_and_the_suite_waits(tmp_path: Path) -> None:
    async def go() -> Notes:
        baseline = FakeEngine()
        baseline.now = load(running=4, waiting=2)
        suite = loaded(tmp_path, sample("a"))
        async with rig(baseline, FakeEngine(), dedicated=False, queue_age_s=0.05) as made:
            notes, runs = Notes(), SuiteRuns(made.mirror)
            runs.start(ROLLOUT, "shadow", suite, [], notes.keep, notes.reports.append)
            await eventually(lambda: runs.progress(ROLLOUT)[0].waiting, "the suite to be told to wait")
            assert "has 2 requests waiting" in str(runs.progress(ROLLOUT)[0].waiting)
            assert baseline.prompts == []
            baseline.now = load()
            await eventually(lambda: notes.reports)
            await runs.close()
            return notes

    assert asyncio.run(go()).reports[0].whole


def test_rollback_ends_the_suite_with_its_reason(tmp_path: Path) -> None:
    async def go() -> Notes:
        candidate = FakeEngine()
        candidate.gate = asyncio.Event()
        async with rig(FakeEngine(), candidate) as made:
            notes, runs = Notes(), SuiteRuns(made.mirror)
            suite = loaded(tmp_path, sample("a"), sample("b"))
            runs.start(ROLLOUT, "shadow", suite, [], notes.keep, notes.reports.append)
            await eventually(lambda: candidate.active)
            await made.mirror.stop_rollout(ROLLOUT, "accuracy failed")
            await eventually(lambda: notes.reports)
            assert candidate.active == 0
            await runs.close()
            return notes

    notes = asyncio.run(go())
    assert notes.kept == []
    assert notes.reports[0].stopped == "rolled_back: accuracy failed"
