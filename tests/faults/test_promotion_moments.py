"""The judge is killed in every state of a rollout, and at every step of moving home: the next one goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forkgate.state.latch import read_latch
from tests.support.sidecar import eventually_async
from tests.support.travel import ALL, BY_TENANT, CANARY, HOME, MOVED, NAME, Road, travelled

QUICK: dict[str, Any] = {
    "start": "on_load",
    "shadow_stage": {"skip": True},
    "steps": [{"percent": 100, "minimum_pairs": 1, "advance": "gates"}],
    "observe": {"minimum_s": 0, "advance": "manual"},
}


async def killed(road: Road, place: str, who: tuple[str, str, str], home: str = "old") -> None:
    """The judge dies in this place; the next one is there too, with what it had compared."""
    before = await road.show()
    await road.dies()
    after = await road.show()
    assert (after["place"], after["pairs"] >= before["pairs"]) == (place, True)
    assert await road.who() == who
    assert (await road.one.status())["home"] == home


def test_a_judge_killed_on_the_way_to_shadow_leaves_a_successor_in_the_same_place(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        await killed(road, "pending", HOME)
        # A word that was not kept was not heard, and whoever said it was not told that it was.
        await road.dies_at("decided, not journalled", "start")
        assert (await road.show())["place"] == "pending"
        await road.dies_at("journalled, not obeyed", "start")
        await road.at("shadow")
        await road.pairs(2)
        await road.say("pause")
        await killed(road, "shadow", HOME)
        assert (await road.show())["paused"]["why"] == "test: pause"
        await road.recomputed()

    travelled(tmp_path, test)


def test_a_judge_killed_on_a_canary_leaves_a_successor_in_the_same_place(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        await road.pairs(2)
        await road.dies_at("decided, not journalled", "promote")
        assert (await road.show())["place"] == "shadow"
        await road.dies_at("journalled, not obeyed", "promote")
        assert (await road.show())["place"] == "canary step 1 of 2"
        await killed(road, "canary step 1 of 2", CANARY)
        await road.pairs(2)
        await road.say("promote")
        lives = len(road.one.pids("judge"))
        (road.one.seams / "moment").write_text("journalled, not obeyed")  # the gates' own step on
        await road.pairs(2)
        await road.next_life(lives)
        await road.at("observing")
        assert await road.who() == ALL
        await road.recomputed()

    travelled(tmp_path, test, start="on_load")


def test_a_judge_killed_at_the_end_of_the_road_leaves_a_successor_in_the_same_place(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        await road.pairs(1)
        await road.at("observing")
        await killed(road, "observing", ALL)
        await road.say("promote")
        await killed(road, "promoted", MOVED, "new")
        await road.say("rollback")
        await killed(road, "rolled_back", HOME)
        await road.say("lift")
        await road.say("abort")
        await killed(road, "aborted", HOME)
        await road.recomputed()

    travelled(tmp_path, test, **QUICK)


def test_a_judge_killed_at_any_step_of_a_promotion_leaves_home_in_one_place(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        one = road.one
        for moment in (
            "decided, not journalled",
            "journalled, not obeyed",
            "before home is kept",
            "home kept, not published",
            "home published, not sent",
        ):
            await road.pairs(1)
            await road.at("observing")
            await road.dies_at(moment, "promote")
            if moment == "decided, not journalled":
                assert ((await road.show())["place"], await road.who()) == ("observing", ALL)
                continue

            async def moved() -> bool:
                return bool((await one.status())["home"] == "new")

            await eventually_async(moved, f"home moved after {moment}")
            await one.obeyed()
            assert ((await road.show())["place"], await road.who()) == ("promoted", MOVED), moment
            # The supervisor's table says so too: edges that start now need no judge for it.
            assert read_latch(one.state / "rollback.latch").moved is not None
            await road.say("rollback")
            assert await road.who() == HOME
            assert read_latch(one.state / "rollback.latch").moved is None
            await road.say("lift")
        await road.recomputed()

    travelled(tmp_path, test, **QUICK)


def test_a_judge_killed_at_any_step_of_a_promoted_rollback_loses_none_once_it_is_kept(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        one = road.one
        await road.pairs(1)
        await road.at("observing")
        await road.say("promote")
        for moment in ("before the latch", "latch half written"):
            await road.dies_at(moment, "rollback")
            # No edge had heard of it. If the journal had, it is latched now; else home is whole, and where it
            # was.
            found = ((await road.show())["place"], await road.who())
            assert found in (("promoted", MOVED), ("rolled_back", HOME)), moment
            if found[0] == "rolled_back":
                await road.say("lift")
                await road.pairs(1)
                await road.at("observing")
                await road.say("promote")
        await road.dies_at("latched, not published", "rollback")
        assert ((await road.show())["place"], await road.who()) == ("rolled_back", HOME)
        assert (await one.status())["home"] == "old"
        await road.again()
        assert ((await road.show())["place"], await road.who()) == ("rolled_back", HOME)

    travelled(tmp_path, test, **QUICK)


def test_a_judge_killed_while_it_sends_a_tenant_home_loses_it_only_if_nobody_knew(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        await road.pairs(4)
        await road.at("observing")
        body = {"reason": "test", "tenant": "acme"}

        async def dies(moment: str) -> None:
            lives = len(road.one.pids("judge"))
            (road.one.seams / "moment").write_text(moment)
            arguments = ("--tenant", body["tenant"], "--reason", body["reason"])
            code, _, _ = await road.one.cli("rollout", "rollback", NAME, *arguments)
            assert code == 4, "it was not answered"
            await road.next_life(lives)

        await dies("before a tenant's latch")
        if (await road.show())["tenants_home"]:  # the journal had heard of it
            assert await road.who() == ("old", "new", "old")
            await road.say("lift", "--tenant", "acme")
        assert await road.who() == ALL
        await dies("a tenant latched, not published")
        assert await road.who() == ("old", "new", "old")
        (home,) = (await road.show())["tenants_home"]
        assert (home["tenant"], home["durable"], (await road.show())["place"]) == ("acme", True, "observing")

    travelled(tmp_path, test, policy=BY_TENANT, **QUICK)
