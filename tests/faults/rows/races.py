"""Two words at once: a rollback while home moves, a lift while the candidate still forks.

A judge is held at each write of a promotion (``tests/support/seams``), and the rollback comes exactly then;
then both are said at once, in the order in which they happen to arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from forkgate.state.latch import read_latch
from tests.faults.figures import Figures
from tests.faults.rows.kills import DECIDED, EQUAL, JOURNALLED, LIVES_S, QUICK
from tests.faults.scene import NAME, SHADOW, Durable, Scene, play
from tests.support.waiting import eventually

HELD = (DECIDED, JOURNALLED, "before home is kept", "home kept, not published")
RACES = ((False, 0.0), (False, 0.005), (True, 0.0), (True, 0.05))
"""A breach, or a person's rollback, and how long between it and the promote that it races."""
AFTER_S = (0.0, 0.05, 0.5)
"""Between a rollback and its lift."""
FORKS = "forks at token 2"


@contextlib.asynccontextmanager
async def held(it: Scene, moment: str, verb: str) -> AsyncIterator[asyncio.Task[tuple[int, object]]]:
    """Inside, a judge that was told this stands still at this moment of it, and takes all else."""
    for file in ("held", "hold"):
        (it.one.seams / file).unlink(missing_ok=True)
    (it.one.seams / "hold").write_text(moment)
    word = asyncio.create_task(it.one.word(verb))
    try:
        await eventually(lambda: (it.one.seams / "held").exists(), f"a judge that is held {moment}")
        yield word
    finally:
        (it.one.seams / "hold").unlink()
        await asyncio.gather(word, return_exceptions=True)


async def at_home(it: Scene) -> None:
    """Home is the old pool in every place that says so, and everybody is there."""
    await it.one.until("the rollback", state="rolled_back")
    await it.home_is("old")
    await it.stays_home()
    found = await it.one.until("a durable latch", state="rolled_back", latched=Durable())
    assert (found["place"], found["on_candidate"]) == ("rolled_back", [])
    latch = read_latch(it.one.state / "rollback.latch")
    assert (NAME in latch.latched, latch.moved) == (True, None), latch


async def while_home_moves(figures: Figures, directory: Path) -> None:
    """A person rolls back, or the candidate forks, while a promotion is being written down. The rollback does
    not wait for it, and home does not move after it."""

    async def act(it: Scene) -> None:
        it.figures.rollback = "lost"
        held_at = won = 0
        async with it.fault():
            for moment in HELD:
                for breach in (False, True):
                    await it.at("observing")
                    async with held(it, moment, "promote"):
                        rollback = None
                        if breach:
                            await it.new.set(FORKS)
                        else:
                            rollback = asyncio.create_task(it.one.word("rollback"))
                        # The promote is held all the while.
                        await it.one.until(f"the rollback, {moment}", state="rolled_back")
                        await it.home_is("old")
                        await it.stays_home()
                        await it.new.set()
                    if rollback is not None:
                        status, answer = await rollback
                        assert status == 200, (moment, answer)
                    await at_home(it)
                    await it.say("lift")
                    held_at += 1
            for number, (breach, apart_s) in enumerate(RACES):
                won += await both(it, apart_s, breach=breach)
                await at_home(it)
                if number + 1 < len(RACES):
                    await it.say("lift")
        await it.rollback_lasts()
        it.figures.note = (
            f"a rollback at {held_at} moments of a promotion that was held, and {len(RACES)} races, of which "
            f"the promotion won {won}: one home each time"
        )

    await play(figures, directory, act, rollback_after=False, policy=EQUAL, plan=QUICK)


async def both(it: Scene, apart_s: float, *, breach: bool) -> bool:
    """A promote, and a rollback or a fork at once: whichever is first, one home. True: home had moved."""
    await it.at("observing")
    await it.may_leave()
    if breach:
        await it.new.set(FORKS)
        await asyncio.sleep(apart_s)
    promote = asyncio.create_task(it.one.word("promote"))
    if not breach:
        await asyncio.sleep(apart_s)
        await it.one.word("rollback")  # refused where the other order was an end already
    status, _ = await promote
    await it.one.quiet()  # nobody copies any more, whichever was first
    await it.new.set()
    found = await it.show()
    assert found["place"] in ("promoted", "rolled_back"), found["place"]
    if found["place"] == "promoted":  # copies ended with it, and no fork was seen
        assert breach, "a person's rollback was answered, and home moved all the same"
        await it.home_is("new")
        await it.stays_home("new")
        await it.say("rollback")
    return status == 200


async def lift_while_it_forks(figures: Figures, directory: Path) -> None:
    """A person lifts again and again, at once and later, while each copy still forks: each lift is followed
    by another rollback, and no tenant stays behind."""

    async def act(it: Scene) -> None:
        it.figures.rollback = "lost"
        epochs = []
        async with it.fault():
            await it.new.set(FORKS, "trickles")  # the pair that decides is still under way as the lift comes
            for after_s in AFTER_S:
                found = await it.one.until("the rollback", state="rolled_back")
                epochs.append(found["latched"]["unix_s"])
                await asyncio.sleep(after_s)
                await it.say("lift")
            for moment in (DECIDED, "before a latch is opened", "a latch opened, not journalled"):
                await it.one.until("the rollback", state="rolled_back")
                async with held(it, moment, "lift"):
                    # Who says it again meanwhile is told that it stands.
                    await it.one.obeyed()
                    await it.stays_home()
            found = await it.one.until("the last rollback", state="rolled_back")
            await at_home(it)
            await it.new.set()
            await at_home(it)
        assert len(set(epochs)) == len(epochs), "a lift did nothing"
        await it.rollback_lasts()
        it.figures.note = f"{len(AFTER_S) + 3} lifts while it forked, each time back home by a rollback"

    shadow = {**SHADOW, "arm_timeout_s": 5}
    await play(figures, directory, act, rollback_after=False, policy=EQUAL, plan=QUICK, shadow=shadow)


ROWS = (
    (
        "rollback-racing-promotion",
        "a rollback, and a breach, exactly while home moves",
        while_home_moves,
        LIVES_S,
    ),
    ("lift-racing-fork", "lifts while the candidate still forks", lift_while_it_forks, LIVES_S),
)
