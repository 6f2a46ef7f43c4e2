"""A judge whose disk takes nothing more still moves tenants back."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

from forkgate.state.latch import read_latch
from tests.support.sidecar import eventually_async, sidecar
from tests.support.waiting import LIMIT_S

SLOT_BYTES = 65_536
"""The first latch goes to the slot that begins here."""


def test_disk_that_takes_nothing_more_does_not_stop_the_flip(tmp_path: Path) -> None:
    async def main() -> None:
        async with sidecar(tmp_path, workers=2) as (one, old, new):
            judge = one.pids("judge")[-1]
            unlimited = resource.prlimit(judge, resource.RLIMIT_FSIZE)
            # To the process that is a full disk: every write beyond fails. Its log is shorter than that.
            resource.prlimit(judge, resource.RLIMIT_FSIZE, (SLOT_BYTES, unlimited[1]))
            new.lies.add("forks at token 2")
            await one.request("acme", "it forks")

            async def home() -> bool:
                status = await one.status()
                (rollout,) = status["rollouts"]
                return bool(
                    rollout["state"] == "rolled_back"
                    and status["routes"] == {}
                    and status["flips"]
                    and all(edge["epoch"] == status["epoch"] for edge in status["edges"])
                )

            await eventually_async(home, "the tenant at home, at every edge")
            status = await one.status()
            assert status["flips"][0]["durable"] is False
            assert status["rollouts"][0]["latched"]["durable"] is False
            assert any("not durable" in trouble for trouble in status["troubles"])
            assert "old-to-new" not in read_latch(one.state / "rollback.latch").latched
            before = len(old.requests)
            assert (await one.request("acme", "after"))[0] == 200
            assert any(body.get("prompt") == "after" for _, body in old.requests[before:])

            resource.prlimit(judge, resource.RLIMIT_FSIZE, unlimited)

            async def durable() -> bool:
                return bool((await one.status())["rollouts"][0]["latched"]["durable"])

            await eventually_async(durable, "the latch on disk, once the disk lets it")
            assert "old-to-new" in read_latch(one.state / "rollback.latch").latched
            assert one.pids("judge") == [judge]

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
