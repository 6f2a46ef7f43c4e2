"""A disk that takes no journal: what leads on is refused, what leads home is done and told as what it is."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

from tests.support.sidecar import eventually_async
from tests.support.travel import CANARY, HOME, Road, travelled

LIMIT_BYTES = 65_536
"""The journal lies beyond it, the audit log and the states do not."""


@contextlib.contextmanager
def disk_that_takes_no_more(road: Road) -> Iterator[None]:
    """To the judge's process it is full: every write beyond :data:`LIMIT_BYTES` of any file fails."""
    wal = road.one.state / "evidence.db-wal"
    assert wal.stat().st_size > LIMIT_BYTES
    pid = road.one.pids("judge")[-1]
    unlimited = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT_BYTES, unlimited[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)


async def place(road: Road) -> str:
    return str((await road.show())["place"])


async def kept_again(road: Road) -> None:
    async def well() -> bool:
        return (await road.one.status())["evidence"]["trouble"] is None

    await eventually_async(well, "a disk that takes all of it")


def test_a_word_is_answered_as_what_it_is_while_the_journal_takes_nothing(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        one = road.one
        await road.say("start")
        await road.at("shadow")
        await road.pairs(6)
        await road.quiet()
        with disk_that_takes_no_more(road):
            refused = await road.say("promote", code=4)
            assert "not done, for it could not be journalled first" in refused
            assert (await place(road), await road.who()) == ("shadow", HOME)
            # It keeps the rollout where it is: done, and nobody is told that it would outlive this judge.
            assert "not journalled yet" in await road.say("pause")
            assert (await road.show())["paused"]["why"] == "test: pause"
            assert "could not be journalled first" in await road.say("resume", code=4)
            assert (await road.show())["paused"] is not None
        await kept_again(road)
        assert "not journalled" not in await road.say("resume")
        await road.pairs(2)
        assert "not journalled" not in await road.say("promote")
        assert (await place(road), await road.who()) == ("canary step 1 of 2", CANARY)

        with disk_that_takes_no_more(road):
            assert "not journalled yet" in await road.say("abort")
            assert (await place(road), await road.who()) == ("aborted", HOME), "a way home waits for no disk"
            await road.say("start", code=4)
            assert await place(road) == "aborted"
        await kept_again(road)
        await road.dies()
        assert await place(road) == "aborted", "kept by and by"
        await road.say("start")

        await road.at("shadow")
        await road.pairs(2)
        await road.say("rollback")
        with disk_that_takes_no_more(road):
            await road.say("lift", code=4)
            shown = await road.show()
            assert (shown["place"], shown["latched"]["durable"]) == ("rolled_back", True), (
                "latched, as before"
            )
        await kept_again(road)
        await road.say("lift")
        await road.at("shadow")
        assert await road.who() == HOME
        assert one.pids("judge")[-1] != one.pids("judge")[0]

    travelled(tmp_path, test)


def test_no_step_is_taken_by_itself_while_the_journal_takes_nothing(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        for _ in range(6):  # and no more, however long a comparison takes: the seventh would lead on
            await road.ask("globex")
        await road.quiet()
        assert (await place(road)) == "shadow"
        with disk_that_takes_no_more(road):

            async def told() -> bool:
                await road.ask("globex")
                return any(
                    "the journal takes nothing now" in why for why in (await road.show())["blocked_by"]
                )

            await eventually_async(told, "what stands in its way")
            _, plan, _ = await road.one.cli("rollout", "plan", "old-to-new")
            assert "a step on is journalled before it is taken" in plan
            assert (await place(road)) == "shadow"
        await road.pairs(7)
        await road.at("canary step 1 of 2")

    stage = {"minimum_pairs": 7, "advance": "gates"}
    travelled(tmp_path, test, start="on_load", shadow_stage=stage)
