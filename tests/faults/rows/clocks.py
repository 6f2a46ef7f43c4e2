"""The clock of every process steps, by days and back, in the middle of traffic.

The seam is ``tests/support/seams``: Python's ``time.time`` in each child reads a file that holds the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from forkgate.state.latch import read_latch
from tests.faults.figures import Figures
from tests.faults.rows.kills import EQUAL, LIVES_S, SLOW, as_the_table_says
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


BACK_S = (60, 3_600, DAY_S, 20 * DAY_S)
"""How far all clocks go back before a word, one after the other."""
WORDS: Sequence[tuple[str, str | None, str, str, bool]] = (
    ("start", None, "shadow", "old", False),
    ("pause", None, "shadow", "old", True),
    ("resume", None, "shadow", "old", False),
    ("promote", None, "canary step 1 of 2", "old", False),
    ("promote", None, "canary step 2 of 2", "old", False),
    ("rollback", "acme", "canary step 2 of 2", "old", True),
    ("lift", "acme", "canary step 2 of 2", "old", False),
    ("promote", None, "observing", "old", False),
    ("promote", None, "promoted", "new", True),
    ("rollback", None, "rolled_back", "old", True),
    ("lift", None, "shadow", "old", True),
    ("abort", None, "aborted", "old", False),
    ("start", None, "shadow", "old", True),
)
"""Verb, tenant, where it leads, where home is then, and whether the judge is killed after it."""


async def back_before_each_word(figures: Figures, directory: Path) -> None:
    """Each word is obeyed, and known to the next judge, though what came before it lies in its future."""

    async def act(it: Scene) -> None:
        clock_s = killed = 0
        async with it.fault():
            for number, (verb, tenant, place, home, dies) in enumerate(WORDS):
                if verb == "promote":
                    await it.may_leave()
                epoch = (await it.one.status())["epoch"]
                clock_s -= BACK_S[number % len(BACK_S)]
                (it.one.seams / "clock").write_text(str(clock_s))
                await it.say(verb, tenant)
                for life in range(1 + dies):
                    if life:
                        await it.another_judge()
                        killed += 1
                    found = await it.show()
                    assert found["place"] == place, (verb, life, found["place"])
                    paused, sent_home = found["paused"] is not None, bool(found["tenants_home"])
                    assert paused == (verb == "pause"), (verb, life, found["paused"])
                    assert sent_home == (verb == "rollback" and tenant is not None), (verb, life)
                    await it.home_is(home)
                    assert (read_latch(it.one.state / "rollback.latch").moved is not None) == (home == "new")
                    if home == "old":
                        await as_the_table_says(it, found)
                    else:
                        await it.stays_home("new")
                assert (await it.one.status())["epoch"] > epoch or verb in ("pause", "resume")
            await it.promote("canary step 1 of 2")
            code, out, err = await it.one.cli("audit", "verify")
            assert code == 0, out + err
        it.figures.note = (
            f"{len(WORDS)} words, each {BACK_S[0]} s to {BACK_S[-1] // DAY_S} days before the last one, and "
            f"{killed} judges killed after one"
        )

    await play(figures, directory, act, policy=EQUAL, plan=SLOW)


ROWS = (
    ("clock-stepping", "all clocks step by days, forth and back", stepping),
    (
        "clock-back-words",
        "all clocks go back before each word of a person, and the judge dies after it",
        back_before_each_word,
        LIVES_S,
    ),
)
