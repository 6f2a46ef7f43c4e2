"""Live work comes back to a pool: shadows leave it at once, and stay off until it has been quiet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engines.base import Capability, EngineUnavailable, Finish, Load, Prompt, Steps
from proxy.mirror import Dropped, Sources
from proxy.mirror.arm import LOWEST_PRIORITY
from proxy.mirror.places import UNTOLD_S
from tests.support.engines import EVERYTHING, FakeEndpoint, FakeEngine, fake_step, load, probe, stalled
from tests.support.mirror import Rig, rig, sample_ask
from tests.support.waiting import eventually

QUIET_S = 5.0
"""The default of ``quiet_s``."""
WHY = "live work comes back: another is rolled back"


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def sources(self) -> Sources:
        return Sources(monotonic=lambda: self.now_s, unix=lambda: 1_700_000_000.0 + self.now_s)

    def wait(self, made: Rig, seconds: float) -> None:
        self.now_s += seconds
        made.mirror.poke()


def run(main: Any) -> None:
    asyncio.run(main())


def forks_then_stalls(at: int) -> Any:
    """A script that differs from its neighbour at once, and never ends."""

    async def script(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        yield Steps((fake_step(prompt, 0, at),))
        await asyncio.Event().wait()

    return script


async def off(made: Rig, waiting: int = 0) -> None:
    wanted = f"no request has waited there for {QUIET_S:g} s ({waiting} wait)"
    await eventually(lambda: wanted in (made.mirror.status()[0].blocked or ""), "shadows to stay off")


def test_all_shadows_of_a_pool_leave_it_at_once_and_stay_off_until_it_is_quiet() -> None:
    async def main() -> None:
        clock = Clock()
        old = FakeEngine("http://old", script=stalled)
        async with rig(old, dedicated=False, sources=clock.sources()) as made:
            made.submit(3)
            await eventually(lambda: old.active == 3, "three arms")
            assert made.mirror.yield_pool("old", WHY) == 3
            old.now = load(running=40, waiting=7)  # what came back
            await made.settled()
            assert old.active == 0
            assert made.sink.reasons == ["pool_busy"] * 3
            assert WHY in made.sink.drops[1][1]
            old.script, before = None, len(old.prompts)
            made.submit()
            clock.wait(made, 1.5)
            await off(made, waiting=7)
            old.now = load(running=40)
            clock.wait(made, 1.5)
            await off(made)
            clock.wait(made, QUIET_S - 1.5)
            await off(made)
            old.now = load(running=41, waiting=1)  # once more: the wait begins anew
            clock.wait(made, 1.4)
            await off(made, waiting=1)
            old.now = load(running=40)
            clock.wait(made, 1.5)
            await off(made)
            assert len(old.prompts) == before, "nothing was asked meanwhile"
            clock.wait(made, QUIET_S)
            await made.settled()
            assert list(made.sink.pairs) == [4]

    run(main)


def test_a_pool_that_tells_no_queue_is_left_alone_for_a_fixed_time() -> None:
    class Mute(FakeEngine):
        async def load(self) -> Load:
            raise EngineUnavailable(self.base_url, "/metrics: 404")

    async def main() -> None:
        clock = Clock()
        async with rig(
            Mute("http://old"), dedicated=False, queue_age_s=90.0, sources=clock.sources()
        ) as made:
            made.mirror.yield_pool("old", WHY)
            made.submit()
            clock.wait(made, 1.5)
            await off(made)
            clock.wait(made, UNTOLD_S - 2.0)
            await off(made)
            assert not made.sink.pairs
            clock.wait(made, 1.5)
            await made.settled()
            assert list(made.sink.pairs) == [1]

    run(main)


@pytest.mark.parametrize("pool", ["old", "new"])
def test_either_side_of_a_comparison_yields_and_other_pools_do_not_matter(pool: str) -> None:
    async def main() -> None:
        engine = FakeEngine(script=stalled)
        async with rig(engine, FakeEngine(script=stalled), dedicated=False) as made:
            made.submit()
            await eventually(lambda: engine.active, "an arm")
            assert made.mirror.yield_pool("a third", WHY) == 0
            assert engine.active
            assert made.mirror.yield_pool(pool, WHY) == 1
            await made.settled()
            assert made.sink.reasons == ["pool_busy"]

    run(main)


def test_arms_on_endpoints_of_their_own_are_in_nobodys_way() -> None:
    async def main() -> None:
        old = FakeEngine()
        old.gate = asyncio.Event()
        async with rig(old, dedicated=True) as made:
            made.submit()
            await eventually(lambda: old.active, "an arm")
            assert made.mirror.yield_pool("old", WHY) == 0
            old.gate.set()
            await made.settled()
            assert list(made.sink.pairs) == [1]

    run(main)


def test_what_was_decided_by_then_counts_only_for_a_rollout_that_ends() -> None:
    """One that goes on would hear of more forks than there are."""

    async def main(ending: bool) -> None:
        old, new = FakeEngine(script=forks_then_stalls(0)), FakeEngine(script=forks_then_stalls(1))
        async with rig(old, new, dedicated=False) as made:
            made.submit()
            await eventually(lambda: made.sink.forks, "the fork")
            made.mirror.yield_pool("old", WHY, ending=made.rollout.name if ending else None)
            await made.settled()
            assert len(made.sink.pairs) == ending
            assert made.sink.reasons == ([] if ending else ["pool_busy"])

    asyncio.run(main(True))
    asyncio.run(main(False))


def test_the_capture_that_decided_runs_to_its_own_end() -> None:
    async def main() -> None:
        old = FakeEngine()
        old.gate = asyncio.Event()
        async with rig(old, dedicated=False) as made:
            made.submit(2)
            await eventually(lambda: old.active == 2, "two arms")
            assert made.mirror.yield_pool("old", WHY, spare="id-2") == 1
            old.gate.set()
            await made.settled()
            assert (list(made.sink.pairs), list(made.sink.drops)) == ([2], [1])

    run(main)


def test_a_suites_question_may_be_asked_again_later() -> None:
    async def main() -> None:
        clock = Clock()
        old = FakeEngine(script=stalled)
        async with rig(old, dedicated=False, sources=clock.sources()) as made:
            asked = asyncio.create_task(made.mirror.run_sample(made.rollout.name, sample_ask()))
            await eventually(lambda: old.active, "its arm")
            assert made.mirror.yield_pool("old", WHY) == 1
            with pytest.raises(Dropped, match="live work comes back"):
                await asked
            old.script = None
            again = asyncio.create_task(made.mirror.run_sample(made.rollout.name, sample_ask()))
            for _ in range(4):
                clock.wait(made, 2.0)
                await asyncio.sleep(0.01)
            assert (await again).pairs

    run(main)


def test_shadows_have_the_lowest_priority_wherever_an_engine_has_one() -> None:
    async def main() -> None:
        able = FakeEngine()
        unable = FakeEndpoint(FakeEngine(), probe(EVERYTHING - {Capability.PRIORITY}))
        async with rig(able, unable) as made:
            await made.pair()
        assert [one.priority for one in able.prompts] == [LOWEST_PRIORITY]
        assert [one.priority for one in unable.engine.prompts] == [None]

    run(main)
