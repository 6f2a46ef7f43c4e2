"""A whole rollout on real processes, by commands and by gates: the happy road, and the ones back."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from forkgate.judge.early_lift import FRESH_S
from forkgate.state.latch import read_latch
from tests.support.sidecar import eventually_async
from tests.support.stack import Connection, request_bytes
from tests.support.travel import ALL, BY_TENANT, CANARY, HOME, MOVED, NAME, Road, travelled


def test_from_pending_to_promoted_by_commands_and_by_gates(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        one = road.one
        assert (await road.show())["place"] == "pending"
        assert await road.who() == HOME
        assert (await one.admin("/v1/ledger"))["captured"] == 0, "nothing is copied before the start"
        assert "it was not started" in await road.say("promote", code=3)
        _, plan, _ = await one.cli("rollout", "plan", NAME)
        assert "→ pending" in plan
        assert f"next: forkgate rollout start {NAME}" in plan

        await road.say("start")
        await road.at("shadow")
        refused = await road.say("promote", code=3)
        assert "0 of 2 requests were compared in this stage" in refused
        await road.pairs(2)
        assert await road.who() == HOME
        shadow = (await road.show())["look"]
        assert "one step on, canary step 1 of 2" in await road.say("promote", "--look", shadow)
        assert await road.who() == CANARY
        said_again = await road.say("promote", "--look", shadow, code=3)
        assert f"it is in canary step 1 of 2 (canary-2) by now, and {shadow} was meant" in said_again

        await road.say("pause")
        await road.pairs(2)
        assert "paused by" in await road.say("promote", code=3)
        await road.say("resume")
        await road.say("promote")
        await road.at("canary step 2 of 2")
        await road.pairs(2)
        await road.at("observing")  # by gates, within a tick
        assert await road.who() == ALL
        await road.pairs(2)
        assert (await one.status())["home"] == "old"
        await road.say("promote")
        await road.at("promoted")
        assert await road.who() == MOVED
        status = await one.status()
        assert (status["home"], status["troubles"]) == ("new", [])
        moved = read_latch(one.state / "rollback.latch").moved
        assert moved is not None
        assert (moved.rollout, moved.pool) == (NAME, "new")
        assert "it is promoted, nothing follows" in await road.say("promote", code=3)

        await road.recomputed()

        # A whole restart, edges and judge: home stays where it is, from the first request on.
        await road.again()
        assert await road.who() == MOVED
        await road.say("rollback")
        assert (await road.show())["latched"]["gate"] == "person"
        assert await road.who() == HOME
        assert read_latch(one.state / "rollback.latch").moved is None
        await road.again()
        assert await road.who() == HOME
        road.new.freeze()  # mended, as somebody thinks, and nobody can be asked who stands there now

        async def known_long_ago() -> bool:
            (new,) = [pool for pool in (await one.status())["pools"] if pool["name"] == "new"]
            return bool(new["endpoints"][0]["answered_s"] > FRESH_S)

        try:
            await eventually_async(known_long_ago, "a while since the last answer")
            told = await road.say("lift")
            assert f"too early: pool new: {road.new.url}: " in told
            assert "another engine that is found later holds the rollout" in told
        finally:
            road.new.thaw()
        await road.at("shadow")

    travelled(tmp_path, test)


def test_one_tenant_goes_home_while_others_stay_and_observing_still_rolls_back(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        one = road.one
        await road.say("start")
        await road.at("shadow")
        await road.pairs(6)
        await road.say("promote")
        await road.pairs(2)
        await road.say("promote")
        await road.pairs(2)
        await road.at("observing")
        assert await road.who() == ALL

        await road.quiet()
        await road.new.set("forks at token 2")
        await road.ask("globex")

        async def sent() -> bool:
            return [one["tenant"] for one in (await road.show())["tenants_home"]] == ["globex"]

        await eventually_async(sent, "globex at home")
        await road.new.set()
        await one.obeyed()
        assert await road.who() == CANARY, "the others stay"
        shown = await road.show()
        assert (shown["place"], shown["latched"], shown["tenants_home"][0]["durable"]) == (
            "observing",
            None,
            True,
        )
        _, text, _ = await one.cli("rollout", "show", NAME)
        assert "SENT HOME globex at epoch" in text
        _, listed, _ = await one.cli("rollout", "list")
        assert listed.startswith(f"{NAME}  observing  old → new  pairs ")
        assert listed.rstrip().endswith("sent home: globex")
        assert f"forkgate rollout lift {NAME} --tenant globex" in text

        # It stands across a killed judge and a whole restart.
        one.kill("judge")
        await one.until_judged()
        assert await road.who() == CANARY
        await road.again()
        assert await road.who() == CANARY
        assert (await road.show())["place"] == "observing"

        await road.say("lift", "--tenant", "globex")
        assert await road.who() == ALL
        assert "nothing to lift" in await road.say("lift", "--tenant", "globex", code=3)
        await road.say("rollback", "--tenant", "acme")
        assert await road.who() == ("old", "new", "old")
        await road.say("lift", "--tenant", "acme")

        # Both: more than the rollout bears, so all of it goes home.
        await road.quiet()
        await road.new.set("forks at token 2")
        await road.ask("globex")
        await eventually_async(sent, "globex at home again")

        async def asked() -> bool:
            # Shadows leave the old pool for a while when live work comes back: one question may be shed.
            await road.ask("acme")
            await asyncio.sleep(0.2)
            return bool((await road.show())["place"] == "rolled_back")

        await eventually_async(asked, "all of it at home")
        await one.obeyed()
        await road.new.set()
        assert await road.who() == HOME
        assert (await road.show())["latched"]["from_stage"] == "observing"
        await road.recomputed()
        status = await one.status()
        (told,) = status["rollouts"]
        every = Counter(told["shadow"]["dropped"]) + Counter(told["other_drops"])
        assert every == Counter(status["ledger"]["dropped"]), "a rollout's drops are the ledger's"

    travelled(tmp_path, test, policy=BY_TENANT)


def test_an_abort_ends_it_and_a_start_begins_it_from_nothing(tmp_path: Path) -> None:
    async def test(road: Road) -> None:
        await road.say("start")
        await road.at("shadow")
        await road.pairs(2)
        await road.say("promote")
        assert await road.who() == CANARY
        await road.say("abort")
        assert await road.who() == HOME
        assert (await road.show())["place"] == "aborted"
        assert (await road.one.cli("rollout", "show", NAME, "--exit-code"))[0] == 1
        await road.say("lift", code=3)
        await road.say("start")
        await road.at("shadow")
        assert (await road.show())["pairs"] == 0

    travelled(tmp_path, test)


@pytest.mark.parametrize("in_flight", ["finish", "abort"])
def test_live_requests_under_way_on_the_candidate_finish_or_are_broken_off(
    tmp_path: Path, in_flight: str
) -> None:
    async def test(road: Road) -> None:
        one = road.one
        await road.one.obeyed()
        assert await road.who() == CANARY
        await road.new.set(pause_s=0.5)
        host, port = one.url.removeprefix("http://").rsplit(":", 1)
        client = Connection(host, int(port))
        asked = asyncio.create_task(client.ask("acme", request_bytes("acme", "a long one", tokens=8)))

        async def runs() -> bool:
            return (await road.new.counts())["live_running"] == 1

        await eventually_async(runs, "the request on the candidate")
        await road.say("rollback")
        answer = await asked
        await road.new.set(pause_s=0.0)
        if in_flight == "finish":
            assert (answer.whole, answer.engine) == (True, "new")
        else:
            # Its head was not there yet: home answered. It was: the stream is visibly cut.
            assert answer.engine == "old" if answer.whole else answer.error is not None, answer
        assert (await client.ask("acme", request_bytes("acme", "the next one"))).engine == "old"
        client.close()

    plan = {"start": "on_load", "shadow_stage": {"skip": True}, "flip_in_flight": in_flight}
    travelled(tmp_path, test, **plan)
