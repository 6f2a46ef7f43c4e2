"""A whole rollout on real processes, by commands and by gates: the happy road, and the ones back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from comparator.evidence import EvidenceReader
from forkgate.judge.recompute import Recomputed, recompute
from forkgate.state.latch import read_latch
from tests.support.saboteur import StubProcess
from tests.support.sidecar import eventually_async
from tests.support.stack import Connection, Stack, request_bytes, stubs

NAME = "old-to-new"
SOON_EQUAL = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 2}\n"
BY_TENANT = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 2, scope: tenant}\n"
PLAN: dict[str, Any] = {
    "start": "by_command",
    "shadow_stage": {"minimum_pairs": 2, "advance": "manual"},
    "steps": [
        {"tenants": ["acme"], "minimum_pairs": 2, "advance": "manual"},
        {"percent": 100, "minimum_pairs": 2, "advance": "gates"},
    ],
    "observe": {"minimum_pairs": 2, "minimum_s": 0, "advance": "manual"},
    "max_tenants_home": 1,
}


class Road:
    """One rollout on one stack, and a client of it."""

    def __init__(self, one: Stack, old: StubProcess, new: StubProcess) -> None:
        self.one, self.old, self.new = one, old, new
        self._asked = 0
        self._copied = 0
        """Requests that the ledger must know of, once the rollout was started."""
        self._client: Connection | None = None

    async def ask(self, tenant: str) -> str:
        """A live request on a connection that is kept for the whole test; which engine answered it."""
        if self._client is None:
            host, port = self.one.url.removeprefix("http://").rsplit(":", 1)
            self._client = Connection(host, int(port))
        self._asked += 1
        self._copied += 1
        answer = await self._client.ask(tenant, request_bytes(tenant, f"question {self._asked}"))
        assert answer.whole, answer
        return answer.engine

    async def who(self) -> tuple[str, str, str]:
        """Who answers acme, globex, and somebody whom nobody knows."""
        return await self.ask("acme"), await self.ask("globex"), await self.ask("nobody")

    async def say(self, verb: str, *rest: str, code: int = 0) -> str:
        got, out, err = await self.one.cli("rollout", verb, NAME, "--reason", f"test: {verb}", *rest)
        assert got == code, (verb, got, out, err)
        return out + err

    async def at(self, place: str) -> dict[str, Any]:
        return await self.one.until(place, place=place)

    async def pairs(self, count: int) -> None:
        """Ask until this many more pairs were compared."""
        goal = (await self.show())["compared"] + count
        for number in range(20 * count):
            if (await self.show())["compared"] >= goal:
                return
            await self.ask(("acme", "globex")[number % 2])
        await self.one.until(f"{goal} pairs", compared=goal)

    async def quiet(self) -> None:
        """Everything that was asked since the start is compared."""
        await self.one.quiet(self._copied)

    async def again(self) -> None:
        """Stop it all, edges too, and start it."""
        self.close()
        await self.one.stop()
        await self.one.start()
        self._copied = (await self.one.admin("/v1/ledger"))["captured"]

    async def show(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.one.admin(f"/v1/rollouts/{NAME}")
        return found

    async def recomputed(self) -> None:
        """All of it again from the file: nothing differs, and nothing is unknown."""

        def again() -> Recomputed:
            with EvidenceReader(self.one.state / "evidence.db") as reader:
                return recompute(reader, NAME)

        done = await asyncio.to_thread(again)
        assert (done.differing, done.unknown, done.problems) == (0, 0, ()), done
        assert done.events > 0

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def travelled(
    tmp_path: Path, test: Callable[[Road], Awaitable[None]], *, policy: str = SOON_EQUAL, **plan: Any
) -> None:
    async def main() -> None:
        async with asyncio.timeout(115), stubs("old", "new") as (old, new):
            one = Stack(tmp_path, old.url, new.url, policy=policy)
            one.config["rollouts"][0] |= PLAN | plan
            one.file.write_text(json.dumps(one.config))
            road = Road(one, old, new)
            try:
                await one.start()
                await test(road)
            finally:
                road.close()
                await one.close()

    asyncio.run(main())


HOME, CANARY, ALL, MOVED = ("old",) * 3, ("new", "old", "old"), ("new", "new", "old"), ("new",) * 3


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
        assert "canary step 1 of 2" in await road.say("promote")
        assert await road.who() == CANARY

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
        await road.say("lift")
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
        await road.ask("acme")
        await road.at("rolled_back")
        await one.obeyed()
        await road.new.set()
        assert await road.who() == HOME
        assert (await road.show())["latched"]["from_stage"] == "observing"
        await road.recomputed()

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
