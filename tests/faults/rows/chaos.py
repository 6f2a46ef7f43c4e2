"""From a person's start to home moved, by the steps' own conditions, while all of it dies again and again."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from tests.faults.figures import Figures
from tests.faults.rows.kills import EQUAL, LIVES_S
from tests.faults.rows.links import GRACE, Relay
from tests.faults.scene import Scene, play

SEED = 20261130
STAGE_S = 3.0
PLAN: dict[str, Any] = {
    "start": "by_command",
    "shadow_stage": {"minimum_pairs": 5, "minimum_s": STAGE_S, "advance": "gates"},
    "steps": [
        {"tenants": ["acme"], "minimum_pairs": 5, "minimum_s": STAGE_S, "advance": "gates"},
        {"percent": 100, "minimum_pairs": 5, "minimum_s": STAGE_S, "advance": "gates"},
    ],
    "observe": {"minimum_pairs": 5, "minimum_s": STAGE_S, "advance": "gates"},
}
ORDER = ("pending", "shadow", "canary step 1 of 2", "canary step 2 of 2", "observing", "promoted")
LEAST = 2
"""Rounds: however fast the rollout goes, so much has died under it."""


async def all_the_way(figures: Figures, directory: Path) -> None:
    """It never goes back, nobody is sent home, and home moves once."""

    async def act(it: Scene) -> None:
        draw = random.Random(SEED)
        cut = rounds = 0
        places: list[str] = []

        async def look() -> None:
            places.append((await it.show())["place"])

        async with it.fault():
            await it.say("start")
            while rounds < LEAST or places[-1] != "promoted":
                async with Relay(it.one.state / "link.sock") as relay:
                    for name in draw.sample(("edge 0", "edge 1"), 2):  # the next ones are on the relay
                        await asyncio.sleep(draw.uniform(0, 0.5))
                        await it.another_edge(name)
                    await it.one.obeyed()
                    for _ in range(2):
                        await look()
                        await asyncio.sleep(draw.uniform(0, 1))
                        relay.cut()
                        cut += 1
                        await asyncio.sleep(draw.uniform(0, 2 * GRACE["grace_s"]))
                        relay.mend()
                        await it.one.obeyed()
                    await look()
                    await asyncio.sleep(draw.uniform(0, 1))
                    await it.another_judge()
                rounds += 1
                await look()
            await it.home_is("new")
            await it.stays_home("new")
        way = [ORDER.index(place) for place in places]
        assert way == sorted(way), places
        it.figures.rollback = "lost"
        await it.say("rollback")
        await it.one.obeyed()
        await it.rollback_lasts()
        it.figures.note = (
            f"home moved after {rounds} judges and {2 * rounds} edges were killed, and gRPC cut {cut} times"
        )

    await play(figures, directory, act, rollback_after=False, policy=EQUAL, plan=PLAN, judge=GRACE)


ROWS = (
    (
        "promotion-under-chaos",
        "edges and judge killed at random and gRPC cut, from the start until home has moved",
        all_the_way,
        LIVES_S,
    ),
)
