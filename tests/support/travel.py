"""One rollout travelled from stage to stage on real processes, by its commands, and a client that watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from comparator.evidence import EvidenceReader
from forkgate.judge.recompute import Recomputed, recompute
from tests.support.saboteur import StubProcess
from tests.support.sidecar import eventually_async
from tests.support.stack import Connection, Stack, request_bytes, stubs
from tests.support.waiting import LIMIT_S, eventually

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

        async def there() -> bool:
            return bool((await self.show())["compared"] >= goal)

        await eventually_async(there, f"{goal} pairs")

    async def quiet(self) -> None:
        """Everything that was asked since the start is compared."""
        await self.one.quiet(self._copied)

    async def again(self) -> None:
        """Stop it all, edges too, and start it."""
        self.close()
        await self.one.stop()
        await self.one.start()
        self._copied = (await self.one.admin("/v1/ledger"))["captured"]

    async def dies(self) -> None:
        """``kill -9`` the judge, and wait for the next one."""
        lives = len(self.one.pids("judge"))
        self.one.kill("judge")
        await self.next_life(lives)

    async def dies_at(self, moment: str, verb: str) -> None:
        """Have the judge kill itself at this moment of obeying a verb, and wait for the next one."""
        lives = len(self.one.pids("judge"))
        (self.one.seams / "moment").write_text(moment)
        await self.one.cli("rollout", verb, NAME, "--reason", f"dies {moment}")
        await self.next_life(lives)
        assert (self.one.seams / "fired").read_text() == moment

    async def next_life(self, lives: int) -> None:
        """Wait for a judge beyond that many, and for every edge to obey it."""
        await eventually(lambda: len(self.one.pids("judge")) > lives, "another judge")
        await self.one.until_judged()
        await self.one.obeyed()

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
        async with asyncio.timeout(LIMIT_S), stubs("old", "new") as (old, new):
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
