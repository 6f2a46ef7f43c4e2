"""A lift before a mended pool was probed: what is told of it, and what is done first."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from engines.base import EngineUnavailable, Probe
from forkgate import fleet as module
from forkgate.fleet import Fleet
from forkgate.judge import early_lift
from forkgate.judge.early_lift import EarlyLift
from policies.rollout import Held, HoldCause, Lift, RollBackNow, RolloutState, start, step
from tests.support.engines import FakeEngine
from tests.support.judging import config
from tests.support.waiting import LIMIT_S, eventually
from tests.unit.policies.test_rollout import plan


class Engine(FakeEngine):
    """One that can be taken away, and whose probe can be made to wait."""

    gone = False
    probes = 0

    def __init__(self, base_url: str, *_options: Any, **_tls: Any) -> None:
        super().__init__(base_url)
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def probe(self) -> Probe:
        await self.may_answer.wait()
        self.probes += 1
        if self.gone:
            raise EngineUnavailable(self.base_url, "connection refused, is it running?")
        return await super().probe()


class Scene:
    """A fleet of two probed engines, and one rollout."""

    def __init__(self, fleet: Fleet, engines: dict[str, Engine]) -> None:
        self.fleet = fleet
        self.old, self.new = engines["http://127.0.0.1:9001"], engines["http://127.0.0.1:9002"]
        self.early = EarlyLift(fleet)
        self.state = start(plan())

    def see(self, state: RolloutState) -> None:
        self.state = state
        self.early.look([state])

    def told(self) -> tuple[str, ...]:
        return self.early.told(self.state)


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    engines: dict[str, Engine] = {}

    def opened(base_url: str, *_options: Any, **_tls: Any) -> Engine:
        return engines.setdefault(base_url, Engine(base_url))

    fleet = Fleet(config(tmp_path), opened)
    fleet.start()
    try:
        await eventually(lambda: not fleet.troubles(), "both to be probed")
        await eventually(
            lambda: not any(one.probing for name in ("old", "new") for one in fleet.endpoints(name))
        )
        yield Scene(fleet, engines)
    finally:
        await fleet.close()


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, LIMIT_S))


ROLLED_BACK = step(start(plan()), RollBackNow(who="ana", why="no", unix_s=2.0))[0]
HELD = Held(cause=HoldCause.GATE, reason="look")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)


def test_a_rollout_that_goes_on_has_nothing_to_lift_early(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            made.see(made.state)
            assert made.told() == ()

    run(main())


def test_what_was_probed_before_the_rollback_alone_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            made.see(ROLLED_BACK)
            old, new = made.told()
            assert old.startswith(
                "pool old: http://127.0.0.1:9001: not probed since the rollout is rolled back."
            )
            assert new.startswith(
                "pool new: http://127.0.0.1:9002: not probed since the rollout is rolled back."
            )
            assert "holds the rollout again" in new

    run(main())


def test_a_held_rollout_is_told_of_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            made.see(replace(start(plan()), held=HELD))
            assert all("not probed since the rollout is held." in one for one in made.told())

    run(main())


def test_a_lift_has_both_pools_probed_and_is_early_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            made.see(ROLLED_BACK)
            before = made.old.probes, made.new.probes
            await made.early.probed(made.state)
            assert made.told() == ()
            assert (made.old.probes, made.new.probes) == (before[0] + 1, before[1] + 1)

    run(main())


def test_an_engine_that_does_not_answer_is_named_and_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            made.see(ROLLED_BACK)
            made.new.gone = True
            (endpoint,) = made.fleet.endpoints("new")
            endpoint.not_answering("connection refused")
            await made.early.probed(made.state)
            (told,) = made.told()
            assert told.startswith("pool new: http://127.0.0.1:9002: not answering since ")
            made.new.gone = False
            await eventually(lambda: made.told() == (), "the probe that finds it mended")

    run(main())


def test_a_probe_that_takes_long_holds_up_no_lift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_lift, "PROBE_S", 0.05)

    async def main() -> None:
        async with scene(tmp_path) as made:
            made.see(ROLLED_BACK)
            made.new.may_answer.clear()
            await made.early.probed(made.state)
            (told,) = [one for one in made.told() if "pool new" in one]
            assert "not probed since" in told
            made.new.may_answer.set()

    run(main())


def test_a_second_rollback_counts_from_its_own_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            made.see(ROLLED_BACK)
            await made.early.probed(made.state)
            lifted = step(ROLLED_BACK, Lift(who="ana", why="mended", unix_s=3.0))[0]
            made.see(lifted)
            made.see(step(lifted, RollBackNow(who="ana", why="again", unix_s=5.0))[0])
            assert len(made.told()) == 2

    run(main())
