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
from policies.rollout import Held, HoldCause, RollBackNow, RolloutState, StartBy, start, step
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


PENDING = start(plan(start=StartBy.COMMAND))


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    monkeypatch.setattr(early_lift, "FRESH_S", 0.0)


@pytest.mark.parametrize("state", [ROLLED_BACK, replace(start(plan()), held=HELD), PENDING])
def test_what_begins_has_both_pools_probed_first(tmp_path: Path, state: RolloutState) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            before = made.old.probes, made.new.probes
            assert await made.early.looked(state) == ()
            assert (made.old.probes, made.new.probes) == (before[0] + 1, before[1] + 1)

    run(main())


def test_what_goes_on_is_left_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            before = made.old.probes, made.new.probes
            assert await made.early.looked(start(plan())) == ()
            assert made.early.told(start(plan())) == ()
            assert (made.old.probes, made.new.probes) == before

    run(main())


def test_a_probe_of_a_moment_ago_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            monkeypatch.setattr(early_lift, "FRESH_S", LIMIT_S)
            before = made.old.probes, made.new.probes
            assert await made.early.looked(ROLLED_BACK) == ()
            assert (made.old.probes, made.new.probes) == before

    run(main())


def test_an_engine_that_still_does_not_answer_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            made.new.gone = True
            (endpoint,) = made.fleet.endpoints("new")
            endpoint.not_answering("connection refused")
            for told in (made.early.told(ROLLED_BACK), await made.early.looked(ROLLED_BACK)):
                (one,) = told
                assert one.startswith("pool new: http://127.0.0.1:9002: not answering since ")
                assert "another engine that is found later holds the rollout" in one
            made.new.gone = False
            await eventually(lambda: made.early.told(ROLLED_BACK) == (), "the probe that finds it mended")

    run(main())


def test_an_engine_that_was_mended_a_moment_ago_is_known_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with scene(tmp_path) as made:
            (endpoint,) = made.fleet.endpoints("new")
            monkeypatch.setattr(module, "RETRY_S", 10 * LIMIT_S)  # its next probe by itself comes too late
            made.new.gone = True
            probes = made.new.probes
            endpoint.not_answering("connection refused")
            await eventually(lambda: made.new.probes > probes and not endpoint.probing)
            made.new.gone = False
            assert made.early.told(ROLLED_BACK) != ()
            assert await made.early.looked(ROLLED_BACK) == ()
            assert made.early.told(ROLLED_BACK) == ()

    run(main())


def test_a_probe_that_takes_long_holds_up_no_lift_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_lift, "PROBE_S", 0.05)

    async def main() -> None:
        async with scene(tmp_path) as made:
            made.new.may_answer.clear()
            told = await made.early.looked(ROLLED_BACK)
            assert "pool new: http://127.0.0.1:9002: not probed within 0.05 s." in "".join(told)
            made.new.may_answer.set()

    run(main())
