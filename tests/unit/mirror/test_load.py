"""How many requests run beside an arm: the engine's word, less what was ours then, plus what is ours now."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from comparator.records import Fact
from engines.base import EngineUnavailable, Load
from proxy.mirror import ShadowPool
from proxy.mirror.load import LOAD_AGE_S, LOAD_TIMEOUT_S, PoolLoads
from tests.support.engines import FakeEndpoint, FakeEngine, load
from tests.support.waiting import LIMIT_S, eventually


class Rig:
    """One endpoint, and a clock that moves when told to."""

    def __init__(self, *, dedicated: bool = False, **options: Any) -> None:
        self.now_s = 50.0
        self.engine = FakeEngine("http://e", **options)
        self.endpoint = FakeEndpoint(self.engine)
        pool = ShadowPool(name="old", endpoints=(self.endpoint,), dedicated=dedicated)
        self.loads = PoolLoads(pool, lambda: self.now_s, kv_cache_percent=90.0)

    async def read(self, running: int) -> None:
        self.engine.now = load(running)
        self.now_s += LOAD_AGE_S
        await self.loads.refresh([0])


def run(main: Any) -> None:
    asyncio.run(main())


def test_live_work_and_our_own_arms_are_added_up_once() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.read(5)  # all of them live work
        assert rig.loads.arm_starts(0) == Fact(value=6)
        assert rig.loads.arm_starts(0) == Fact(value=7)
        await rig.read(7)  # our two among them
        assert rig.loads.arm_starts(0) == Fact(value=8)
        rig.loads.arm_ends(0)
        rig.loads.arm_ends(0)
        assert rig.loads.arm_starts(0) == Fact(value=7)

    run(main)


def test_an_engine_that_counts_fewer_than_we_run_there_is_not_believed_below_ours() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.read(0)
        for _ in range(3):
            rig.loads.arm_starts(0)
        await rig.read(1)  # two of our arms still wait inside the engine
        assert rig.loads.arm_starts(0) == Fact(value=4)

    run(main)


@pytest.mark.parametrize("dedicated", [False, True])
def test_a_load_that_is_not_told_leaves_only_our_own_arms_where_nobody_else_works(dedicated: bool) -> None:
    async def main() -> None:
        rig = Rig(dedicated=dedicated, load_error=EngineUnavailable("http://e", "/metrics: 404"))
        await rig.loads.refresh([0])
        rig.loads.arm_starts(0)
        told = rig.loads.arm_starts(0)
        if dedicated:
            assert told == Fact(value=2)
        else:
            assert told == Fact(unknown="the endpoint did not tell its load, and live work runs there too")

    run(main)


def test_an_arm_that_begins_while_the_load_is_asked_for_is_not_counted_twice() -> None:
    class Slow(FakeEngine):
        async def load(self) -> Load:
            await asyncio.sleep(0)
            return load(running=1)  # ours: it had arrived by then

    async def main() -> None:
        rig = Rig(dedicated=True)
        rig.endpoint.engine = Slow()
        reading = asyncio.create_task(rig.loads.refresh([0]))
        await asyncio.sleep(0)
        assert rig.loads.arm_starts(0) == Fact(value=1)
        await reading
        rig.loads.arm_ends(0)
        assert rig.loads.arm_starts(0) == Fact(value=1)  # the control, alone again

    run(main)


def test_an_old_reading_is_no_count() -> None:
    async def main() -> None:
        rig = Rig()
        await rig.read(5)
        rig.now_s += LOAD_AGE_S + LOAD_TIMEOUT_S
        assert rig.loads.arm_starts(0) == Fact(value=6)
        rig.now_s += 0.5
        assert "own count was 3.5 s old" in str(rig.loads.arm_starts(0).unknown)

    run(main)


def test_readings_are_shared_and_at_most_one_is_under_way() -> None:
    class Slow(FakeEngine):
        asked = 0
        answers: asyncio.Event

        async def load(self) -> Load:
            self.asked += 1
            await self.answers.wait()
            return self.now

    async def main() -> None:
        rig = Rig()
        slow = rig.endpoint.engine = Slow("http://slow")
        slow.answers = asyncio.Event()
        waiting = [asyncio.create_task(rig.loads.refresh([0])) for _ in range(10)]
        await eventually(lambda: slow.asked, "the reading")
        slow.answers.set()
        await asyncio.gather(*waiting)
        assert slow.asked == 1
        await rig.loads.refresh([0])
        assert slow.asked == 1  # within its age
        slow.answers.clear()
        rig.now_s += LOAD_AGE_S
        first = asyncio.create_task(rig.loads.refresh([0]))
        await asyncio.sleep(0)
        second = asyncio.create_task(rig.loads.refresh([0]))
        await asyncio.sleep(0)
        first.cancel()
        slow.answers.set()
        await second  # the one who was cancelled took the reading from nobody
        assert slow.asked == 2
        assert rig.loads.arm_starts(0) == Fact(value=1)

    run(main)


def test_it_is_read_on_while_something_is_in_use_and_no_longer() -> None:
    async def main() -> None:
        rig = Rig(dedicated=True)
        wanted = [0]
        rig.loads.keep(lambda: wanted)
        await eventually(lambda: rig.endpoint.answers == 1, "the first reading")
        rig.now_s += LOAD_AGE_S
        rig.loads.keep(lambda: wanted)  # another arm: looked at now, not at the next turn
        await eventually(lambda: rig.endpoint.answers == 2, "the second")
        wanted.clear()
        rig.now_s += LOAD_AGE_S
        rig.loads.keep(lambda: wanted)
        keeper = rig.loads._keeper
        assert keeper is not None
        await eventually(keeper.done, "its end")
        assert rig.endpoint.answers == 2
        await rig.loads.close()

    run(main)


def test_closing_ends_a_reading_that_hangs() -> None:
    class Hanging(FakeEngine):
        async def load(self) -> Load:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

    async def main() -> None:
        rig = Rig()
        rig.endpoint.engine = Hanging()
        rig.loads.keep(lambda: [0])
        await eventually(lambda: rig.loads._asking, "the reading")
        async with asyncio.timeout(LIMIT_S):
            await rig.loads.close()

    run(main)
