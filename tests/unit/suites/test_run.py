"""One suite through a mirror that answers, is busy, refuses or ends; time is a number."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.comparison import Comparison
from comparator.records import Arm
from engines.base import CallKind
from forkgate.config.suites import LoadedSuite
from forkgate.suites import SuiteReport, SuiteRun, call_of
from forkgate.suites.run import ATTEMPTS, OUTAGE_S, PAUSE_S
from proxy.ledger import DropReason
from proxy.mirror import Dropped, SampleAsk
from tests.support.suites import FakeMirror, Ones, loaded, sample


class Clock:
    """Seconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds
        await asyncio.sleep(0)


class Rig:
    def __init__(self, suite: LoadedSuite, mirror: FakeMirror, **changes: Any) -> None:
        self.mirror = mirror
        self.clock = Clock()
        self.kept: list[Comparison] = []
        self.sink_error: Exception | None = None
        values: dict[str, Any] = {"at_once": 2} | changes
        self.run = SuiteRun(
            rollout="old-to-new",
            stage="shadow",
            loaded=suite,
            mirror=mirror,
            scorer=Ones(),
            sink=self._keep,
            monotonic=self.clock.monotonic,
            sleep=self.clock.sleep,
            **values,
        )

    async def _keep(self, one: Comparison) -> None:
        if self.sink_error is not None:
            raise self.sink_error
        self.kept.append(one)

    def go(self) -> SuiteReport:
        return asyncio.run(self.run.run())

    @property
    def order(self) -> list[str]:
        return [f"{ask.sample.sample_id}{ask.sample.passage}" for ask in self.mirror.asks]


def drop(reason: DropReason) -> Dropped:
    return Dropped(reason, "says the test")


@pytest.fixture
def suite(tmp_path: Path) -> LoadedSuite:
    return loaded(
        tmp_path,
        sample("a"),
        sample("b", rules=[{"kind": "regex", "pattern": "x"}]),
        sample("c"),
        passes=2,
    )


def test_passes_run_in_order_and_every_comparison_is_kept_with_its_scores(suite: LoadedSuite) -> None:
    rig = Rig(suite, FakeMirror())
    report = rig.go()
    assert rig.order == ["a0", "b0", "c0", "a1", "b1", "c1"]
    assert (report.asked, report.run, report.failed, report.stopped, report.whole) == (6, 6, {}, None, True)
    assert len(rig.kept) == 6
    reference = rig.kept[0].sample
    assert reference is not None
    assert msgspec.structs.asdict(reference) == {
        "suite": "mine",
        "digest": suite.digest,
        "stage": "shadow",
        "sample_id": "a",
        "category": "short",
        "passage": 0,
        "samples": 3,
        "passes": 2,
    }
    assert [(one.arm, one.question, one.value) for one in rig.kept[0].scores] == [
        (Arm.BASELINE, "refusal", 1.0),
        (Arm.CANDIDATE, "refusal", 1.0),
    ]


def test_samples_with_rules_get_a_control_and_their_control_is_scored(suite: LoadedSuite) -> None:
    rig = Rig(suite, FakeMirror())
    rig.go()
    assert {ask.sample.sample_id for ask in rig.mirror.asks if ask.control} == {"b"}
    scored = next(one for one in rig.kept if one.sample is not None and one.sample.sample_id == "b").scores
    assert {(one.arm, one.question) for one in scored} == {
        (arm, question) for arm in Arm for question in ("rules", "refusal")
    }


def test_no_more_than_a_few_samples_are_under_way_at_once(suite: LoadedSuite) -> None:
    rig = Rig(suite, FakeMirror(), at_once=2)
    rig.go()
    assert rig.mirror.most_active == 2


def test_what_an_earlier_life_kept_is_not_asked_again(suite: LoadedSuite) -> None:
    rig = Rig(suite, FakeMirror(), done=[("a", 0), ("c", 1), ("gone", 0)], at_once=1)
    report = rig.go()
    assert rig.order == ["b0", "c0", "a1", "b1"]
    assert (report.asked, report.run) == (6, 6)


def test_suite_that_is_kept_whole_asks_nothing(suite: LoadedSuite) -> None:
    done = [(name, passage) for name in "abc" for passage in (0, 1)]
    rig = Rig(suite, FakeMirror(), done=done)
    report = rig.go()
    assert rig.order == []
    assert report.whole


@pytest.mark.parametrize(
    "reason",
    [DropReason.POOL_BUSY, DropReason.TOKEN_RATE, DropReason.TOKEN_DAY, DropReason.BASELINE_UNAVAILABLE],
)
def test_sample_that_was_dropped_for_a_passing_reason_is_asked_again(
    reason: DropReason, suite: LoadedSuite
) -> None:
    rig = Rig(
        suite,
        FakeMirror(lambda ask, time: drop(reason) if ask.sample.sample_id == "b" and time < 4 else None),
        at_once=1,
    )
    report = rig.go()
    assert report.whole
    assert report.failed == {}
    assert rig.order == ["a0", "b0", "b0", "b0", "b0", "c0", "a1", "b1", "b1", "b1", "b1", "c1"]
    assert rig.clock.slept == [1.0, 2.0, 4.0] * 2, "pauses double, and start anew after a success"


def test_pause_has_a_longest(suite: LoadedSuite) -> None:
    rig = Rig(
        suite, FakeMirror(lambda _ask, time: drop(DropReason.POOL_BUSY) if time < 12 else None), at_once=1
    )
    assert rig.go().whole
    assert max(rig.clock.slept) == PAUSE_S[1]


def test_busy_pool_is_waited_for_without_end(suite: LoadedSuite) -> None:
    rig = Rig(
        suite, FakeMirror(lambda _ask, time: drop(DropReason.POOL_BUSY) if time < 900 else None), at_once=1
    )
    assert rig.go().whole
    assert rig.clock.now_s > 86_400


def test_command_gives_up_when_nothing_gets_through(suite: LoadedSuite) -> None:
    rig = Rig(suite, FakeMirror(lambda _ask, _time: drop(DropReason.POOL_BUSY)), at_once=1, patience_s=100.0)
    report = rig.go()
    assert (report.run, report.failed) == (0, {})
    assert report.stopped == "nothing got through for 121 s: pool_busy: says the test"


def test_what_cannot_be_asked_is_counted_by_reason_and_the_rest_goes_on(suite: LoadedSuite) -> None:
    rig = Rig(
        suite,
        FakeMirror(lambda ask, _time: drop(DropReason.UNSUPPORTED) if ask.sample.sample_id == "b" else None),
    )
    report = rig.go()
    assert (report.asked, report.run, report.whole) == (6, 4, False)
    assert report.failed == {"unsupported": 2}
    assert report.summary == (
        "suite mine: 4 of 6 answers compared; could not be asked: 2 unsupported (b, pass 0: says the test)"
    )


def test_sample_that_fails_the_baseline_while_others_succeed_is_given_up(suite: LoadedSuite) -> None:
    def poison(ask: SampleAsk, _time: int) -> Exception | None:
        return drop(DropReason.BASELINE_UNAVAILABLE) if ask.sample.sample_id == "b" else None

    rig = Rig(suite, FakeMirror(poison), at_once=3)
    report = rig.go()
    assert report.failed == {"baseline_unavailable": 2}
    assert report.run == 4
    assert rig.mirror.times["b", 0] >= ATTEMPTS


def test_outage_of_the_baseline_costs_no_sample(suite: LoadedSuite) -> None:
    rig: Rig

    def down(_ask: SampleAsk, _time: int) -> Exception | None:
        return drop(DropReason.BASELINE_UNAVAILABLE) if rig.clock.now_s < OUTAGE_S - 60 else None

    rig = Rig(suite, FakeMirror(down))
    report = rig.go()
    assert report.whole
    assert report.failed == {}


def test_rollback_ends_the_run_and_says_so(suite: LoadedSuite) -> None:
    rig = Rig(
        suite,
        FakeMirror(lambda ask, _time: drop(DropReason.ROLLED_BACK) if ask.sample.sample_id == "c" else None),
        at_once=1,
    )
    report = rig.go()
    assert rig.order == ["a0", "b0", "c0"]
    assert (report.run, report.stopped) == (2, "rolled_back: says the test")
    assert report.summary == "suite mine: 2 of 6 answers compared; stopped: rolled_back: says the test"


def test_stop_gives_up_what_is_under_way(suite: LoadedSuite) -> None:
    async def go() -> tuple[SuiteReport, int]:
        mirror = FakeMirror()
        mirror.gate = asyncio.Event()
        rig = Rig(suite, mirror)
        running = asyncio.create_task(rig.run.run())
        while mirror.active < 2:
            await asyncio.sleep(0)
        assert rig.run.progress().run == 0
        rig.run.stop("held by a person")
        return await running, mirror.active

    report, active = asyncio.run(go())
    assert (report.run, report.stopped, active) == (0, "held by a person", 0)


def test_cancelled_run_leaves_nothing_running(suite: LoadedSuite) -> None:
    async def go() -> int:
        mirror = FakeMirror()
        mirror.gate = asyncio.Event()
        running = asyncio.create_task(Rig(suite, mirror).run.run())
        while mirror.active < 2:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled()
        return mirror.active

    assert asyncio.run(go()) == 0


def test_store_that_fails_counts_the_sample_as_not_asked(suite: LoadedSuite) -> None:
    rig = Rig(suite, FakeMirror())
    rig.sink_error = OSError("no space left")
    report = rig.go()
    assert (report.run, report.failed) == (0, {"error": 6})
    assert report.examples == ("a, pass 0: OSError: no space left",)


def test_progress_tells_the_pass_and_what_it_waits_for(suite: LoadedSuite) -> None:
    seen: list[Any] = []
    rig: Rig

    def busy(ask: SampleAsk, time: int) -> Exception | None:
        if ask.sample.passage == 1 and ask.sample.sample_id == "b":
            if time > 1:
                seen.append(rig.run.progress())
                return None
            return drop(DropReason.POOL_BUSY)
        return None

    rig = Rig(suite, FakeMirror(busy), at_once=1)
    rig.go()
    (found,) = seen
    assert (found.asked, found.run, found.passage, found.passes) == (6, 4, 1, 2)
    assert found.waiting == "pool_busy: says the test"
    assert rig.run.progress().waiting is None


def test_sample_is_asked_as_a_client_would(tmp_path: Path) -> None:
    suite = loaded(
        tmp_path,
        sample("a", max_tokens=7, temperature=0.5, top_p=0.9, stop=["\n"]),
        {
            **sample("b", messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]),
            "prompt": None,
        },
    )
    first, second = (call_of(one) for one in suite.suite.samples)
    assert first.kind is CallKind.COMPLETION
    assert first.body == {
        "prompt": "Say a.",
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["\n"],
    }
    assert second.kind is CallKind.CHAT
    assert second.body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert second.body["temperature"] == 0.0
