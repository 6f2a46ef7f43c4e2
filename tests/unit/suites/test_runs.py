"""The suites of a judge: started, shown, broken off."""

from __future__ import annotations

import asyncio
from pathlib import Path

from comparator.comparison import Comparison
from forkgate.suites import SuiteReport, SuiteRuns
from tests.support.suites import FakeMirror, Ones, loaded, sample
from tests.support.waiting import eventually


class Desk:
    def __init__(self) -> None:
        self.kept: list[Comparison] = []
        self.reports: list[SuiteReport] = []

    async def keep(self, one: Comparison) -> None:
        self.kept.append(one)


def test_suite_is_asked_to_its_end_and_reported_once(tmp_path: Path) -> None:
    async def go() -> Desk:
        desk, runs = Desk(), SuiteRuns(FakeMirror(), Ones())
        runs.start("old-to-new", "shadow", loaded(tmp_path, sample()), [], desk.keep, desk.reports.append)
        await eventually(lambda: desk.reports)
        assert runs.progress("old-to-new") == ()
        await runs.close()
        return desk

    desk = asyncio.run(go())
    assert [(one.suite, one.stage, one.run, one.stopped) for one in desk.reports] == [
        ("mine", "shadow", 1, None)
    ]
    assert len(desk.kept) == 1


def test_stopped_rollout_asks_no_more_and_says_why(tmp_path: Path) -> None:
    async def go() -> Desk:
        mirror = FakeMirror()
        mirror.gate = asyncio.Event()
        desk, runs = Desk(), SuiteRuns(mirror, Ones())
        runs.start("old-to-new", "shadow", loaded(tmp_path, sample()), [], desk.keep, desk.reports.append)
        await eventually(lambda: mirror.active)
        (progress,) = runs.progress("old-to-new")
        assert (progress.run, progress.asked) == (0, 1)
        await runs.stop("another", "not meant")
        assert mirror.active == 1
        await runs.stop("old-to-new", "rolled back")
        assert mirror.active == 0
        await runs.close()
        return desk

    assert [one.stopped for one in asyncio.run(go()).reports] == ["rolled back"]


def test_next_stage_breaks_the_earlier_ones_run_off(tmp_path: Path) -> None:
    async def go() -> Desk:
        mirror = FakeMirror()
        mirror.gate = asyncio.Event()
        desk, runs = Desk(), SuiteRuns(mirror, Ones())
        suite = loaded(tmp_path, sample())
        runs.start("old-to-new", "shadow", suite, [], desk.keep, desk.reports.append)
        await eventually(lambda: mirror.active)
        runs.start("old-to-new", "canary", suite, [], desk.keep, desk.reports.append)
        assert [one.stage for one in runs.progress("old-to-new")] == ["canary"]
        await eventually(lambda: desk.reports)
        mirror.gate.set()
        await eventually(lambda: len(desk.reports) == 2)
        await runs.close()
        return desk

    assert [(one.stage, one.stopped) for one in asyncio.run(go()).reports] == [
        ("shadow", "it starts anew at stage canary"),
        ("canary", None),
    ]


def test_close_ends_everything_without_a_report(tmp_path: Path) -> None:
    async def go() -> tuple[Desk, int]:
        mirror = FakeMirror()
        mirror.gate = asyncio.Event()
        desk, runs = Desk(), SuiteRuns(mirror, Ones())
        runs.start("old-to-new", "shadow", loaded(tmp_path, sample()), [], desk.keep, desk.reports.append)
        await eventually(lambda: mirror.active)
        await runs.close()
        return desk, mirror.active

    desk, active = asyncio.run(go())
    assert (desk.reports, active) == ([], 0)
