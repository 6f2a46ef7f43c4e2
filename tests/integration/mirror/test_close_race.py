"""A close that meets a wake-up half-way still ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.engines import FakeEngine
from tests.support.mirror import rig
from tests.support.waiting import LIMIT_S, eventually


@pytest.mark.parametrize("ticks", range(6))
def test_close_ends_whatever_tick_a_wake_up_came_before_it(ticks: int) -> None:
    async def main() -> None:
        engines = [FakeEngine(), FakeEngine()]
        for engine in engines:
            engine.gate = asyncio.Event()
        async with rig(*engines, in_flight=1) as made:
            made.submit(3)
            # One runs, the others wait for room: the feeder sleeps with a limit.
            await eventually(lambda: made.mirror.status()[0].blocked is not None)
            made.mirror.poke()
            for _ in range(ticks):
                await asyncio.sleep(0)
            await asyncio.wait_for(made.mirror.close(0.0), LIMIT_S)

    asyncio.run(main())
