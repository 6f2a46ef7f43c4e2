"""The old pool is gone at the very moment that a rollback leads there."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.faults.figures import Figures
from tests.faults.scene import NAME, Scene, play
from tests.support.sidecar import eventually_async

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
            code, _, err = await it.one.cli(
                "rollout", "rollback", NAME, "--reason", "into a pool that is down"
            )
            assert code == 0, err
            await it.one.until("the rollback", state="rolled_back")
            await it.one.obeyed()
            begun = len(it.load.answers)
            await asyncio.sleep(LASTS_S / 2)
            sheltered = sum(one.engine == "new" for one in it.load.answers[begun:])
        assert sheltered > 0, "nobody was answered by the pool that they came from"
        await it.old.start()

        async def home() -> bool:
            newest = it.load.answers[-8:]
            return {one.engine for one in newest} == {"old"}

        await eventually_async(home, "everybody at the old pool once it is back")
        await it.rollback_lasts()
        it.figures.note = f"{sheltered} requests were sheltered while home was down"

    await play(figures, directory, act, rollback_after=False, canary=("acme", "globex"))


ROWS = (("old-pool-gone", "the old pool is killed, then rolled back into", old_pool_gone),)
