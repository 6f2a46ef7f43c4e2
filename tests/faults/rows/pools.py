"""The old pool is gone, or says nothing, at the very moment that a rollback leads there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.faults.figures import Figures
from tests.faults.rows.candidates import FIRST_BYTE_S, impatient
from tests.faults.scene import CLIENTS, Scene, play

LASTS_S = 4.0


async def old_pool_gone(figures: Figures, directory: Path) -> None:
    """Both tenants are canaries; a person rolls back. The pool that they came from answers them until the old
    one is back."""

    async def act(it: Scene) -> None:
        # Nobody's requests are at the old pool; shadows of theirs are.
        async with it.fault():
            await it.old.kill()
            await asyncio.sleep(LASTS_S / 2)
            it.figures.rollback = "lost"
            await it.say("rollback")
            await it.one.until("the rollback", state="rolled_back")
            await it.one.obeyed()
            begun = len(it.load.answers)
            await asyncio.sleep(LASTS_S / 2)
            sheltered = sum(one.engine == "new" for one in it.load.answers[begun:])
        assert sheltered > 0, "nobody was answered by the pool that they came from"
        await it.old.start()
        await it.stays_home_by_and_by()
        await it.rollback_lasts()
        it.figures.note = f"{sheltered} requests were sheltered while home was down"

    await play(figures, directory, act, rollback_after=False, canary=("acme", "globex"))


async def old_pool_frozen(figures: Figures, directory: Path) -> None:
    """The same with a pool that takes connections and does nothing: each request waits ``first_byte_s`` for
    it, and is answered by the pool that its tenant came from."""

    async def act(it: Scene) -> None:
        it.old.freeze()
        try:
            async with it.fault():
                await asyncio.sleep(LASTS_S / 2)
                it.figures.rollback = "lost"
                await it.say("rollback")
                await it.one.until("the rollback", state="rolled_back")
                await it.one.obeyed()
                begun = len(it.load.answers)
                await it.load.more(3 * CLIENTS)
                sheltered = sum(one.engine == "new" for one in it.load.answers[begun:])
        finally:
            it.old.thaw()
        assert sheltered >= CLIENTS, "hardly anybody was answered by the pool that they came from"
        await it.stays_home_by_and_by()
        await it.rollback_lasts()
        it.figures.note = f"{sheltered} requests were sheltered while home said nothing"

    figures.first_byte_s = FIRST_BYTE_S
    await play(figures, directory, act, rollback_after=False, canary=("acme", "globex"), rest=impatient())


ROWS = (
    ("old-pool-gone", "the old pool is killed, then rolled back into", old_pool_gone),
    ("old-pool-frozen", "SIGSTOP of the old pool, then rolled back into", old_pool_frozen),
)
