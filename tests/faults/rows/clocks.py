"""The clock of every process steps, by days and back, in the middle of traffic.

The seam is ``tests/support/seams``: Python's ``time.time`` in each child reads a file that holds the step.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.faults.figures import Figures
from tests.faults.scene import SHADOW, Scene, play

DAY_S = 86_400
STEPS_S = (10 * DAY_S, -20 * DAY_S, 3_600, -3_600, 0)
OLD_AGE = ("queue_age", "too_old", "token_day", "tenant_budget", "no_judge")
"""What a clock that steps might make of a capture."""


async def stepping(figures: Figures, directory: Path) -> None:
    async def act(it: Scene) -> None:
        before = await it.evidence()
        async with it.fault():
            for step_s in STEPS_S:
                (it.one.seams / "clock").write_text(str(step_s))
                await asyncio.sleep(1.5)
            ledger = await it.one.admin("/v1/ledger")
            wrong = {reason: ledger["dropped"][reason] for reason in OLD_AGE if reason in ledger["dropped"]}
            assert not wrong, f"captures dropped for their age: {wrong}"
            assert (await it.show())["state"] == "canary"
            counted = await it.evidence() - before
            assert counted > 0, "nothing counted while the clock stepped"
            # A rollback now, and the judge after it lives in a year before.
            (it.one.seams / "clock").write_text(str(-400 * DAY_S))
            await it.roll_back()
            await it.rollback_lasts()
        it.figures.note = f"{len(STEPS_S) + 1} steps, {counted} comparisons counted meanwhile, none too old"

    await play(figures, directory, act, rollback_after=False, shadow={**SHADOW, "tokens_per_day": 10_000_000})


ROWS = (("clock-stepping", "all clocks step by days, forth and back", stepping),)
