"""A whole sidecar over engines that are swapped: the next exchange, live or shadow, tells who answers now,
and nothing of the new one is taken for the old one's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.fake_vllm import FakeVllm
from tests.support.sidecar import Sidecar, eventually_async
from tests.support.stack import Stack
from tests.support.waiting import LIMIT_S

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64
C = "sha256:" + "c" * 64
FORKS_ROLL_BACK = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 1}\n"


@asynccontextmanager
async def stack(directory: Path, *new: FakeVllm, percent: float = 100.0) -> AsyncIterator[Sidecar]:
    """A sidecar whose gates roll back at a fork, between one old engine and these new ones."""
    async with AsyncExitStack() as engines:
        old = await engines.enter_async_context(FakeVllm(digest=A).serving())
        for one in new:
            await engines.enter_async_context(one.serving())
        made = Stack(
            directory,
            old.url,
            new[0].url,
            workers=1,
            policy=FORKS_ROLL_BACK,
            percent=percent,
            rest={"telemetry": {"prometheus": {"host": "127.0.0.1", "port": 0}}},
        )
        made.config["pools"][1]["endpoints"] = [one.url for one in new]
        made.write()
        try:
            await made.start()
            yield made
        finally:
            await made.close()


async def rollout(one: Sidecar) -> dict[str, Any]:
    found: dict[str, Any] = await one.admin("/v1/rollouts/old-to-new")
    return found


async def held(one: Sidecar) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def is_held() -> bool:
        nonlocal found
        found = await rollout(one)
        return found["held"] is not None

    await eventually_async(is_held, "the hold")
    return found


async def metrics(one: Sidecar) -> list[str]:
    address = (await one.status())["metrics"]
    async with aiohttp.ClientSession() as session, session.get(address) as response:
        return (await response.text()).splitlines()


def port_of(engine: FakeVllm) -> int:
    return int(engine.url.rpartition(":")[2])


def test_a_candidate_that_is_swapped_in_place_is_held_and_rolls_nothing_back(tmp_path: Path) -> None:
    """The new one forks at its third token; who that was is known from the head of its answer."""

    async def main() -> None:
        first, second = FakeVllm(digest=B), FakeVllm("forks at token 2", digest=C)
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, first) as one:
            await one.request("globex", "before")

            async def compared() -> bool:
                return bool((await rollout(one))["compared"] == 1)

            await eventually_async(compared, "a pair of both")
            assert (await rollout(one))["compared_environments"] == {"old": A, "new": B}
            await first.stop()
            async with second.serving(port=port_of(first)):
                await one.request("globex", "after")
                found = await held(one)
                assert f"environment_digest {B} → {C}" in found["held"]

                async def set_aside() -> bool:
                    return bool((await rollout(one))["set_aside"] == 1)

                await eventually_async(set_aside, "the pair of the swapped engine")
                found = await rollout(one)
                assert found["set_aside_reasons"] == {"digest_mismatch": 1}
                assert found["state"] != "rolled_back"
                assert found["latched"] is None
                assert found["compared_environments"] == {"old": A, "new": B}

    asyncio.run(main())


def test_one_live_answer_of_a_swapped_engine_holds_where_nothing_is_copied(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = FakeVllm(digest=B), FakeVllm("silent metrics", digest=C)
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, first, percent=1e-9) as one:
            for _ in range(2):
                await one.request("acme", "before")
            await first.stop()
            async with second.serving(port=port_of(first)):
                await one.request("acme", "after")
                found = await held(one)
                assert f"environment_digest {B} → {C}" in found["held"]

                async def counted() -> bool:
                    return bool((await rollout(one))["live_set_aside"] == {"new": 1})

                await eventually_async(counted, "the record that no gate folds")
                lines = await metrics(one)
                requests = [line for line in lines if line.startswith("forkgate_live_requests_total")]
                of = {
                    digest: [line for line in requests if f'forkgate_environment="{digest[:19]}"' in line]
                    for digest in (B, C)
                }
                assert [len(series) for series in of.values()] == [1, 1]
                assert (of[B][0].rsplit(" ", 1)[1], of[C][0].rsplit(" ", 1)[1]) == ("2.0", "1.0")

    asyncio.run(main())


def test_a_pool_of_two_environments_is_told_and_set_aside_also_by_the_next_judge(tmp_path: Path) -> None:
    async def main() -> None:
        stays, goes = FakeVllm(digest=B), FakeVllm(digest=B)
        swapped = FakeVllm(digest=C)
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, stays, goes) as one:
            await one.request("globex", "before")
            await goes.stop()
            async with swapped.serving(port=port_of(goes)):

                async def told() -> bool:
                    await one.request("globex", "by whom?")
                    return any("2 environments" in line for line in (await one.status())["troubles"])

                await eventually_async(told, "the trouble")
                status = await one.status()
                (pool,) = [pool for pool in status["pools"] if pool["name"] == "new"]
                assert pool["environments"] == {B: [stays.url], C: [goes.url]}
                (line,) = [line for line in status["troubles"] if "environments" in line]
                assert f"{B} at {stays.url}; {C} at {goes.url}" in line
                logged = [line for line in one.log() if line["event"] == "a pool is not one environment"]
                assert len(logged) == 1
                series = [line for line in await metrics(one) if line.startswith("forkgate_pool_endpoints")]
                assert sum('forkgate_pool="new"' in line for line in series) == 2
                one.kill("judge")

                async def again() -> bool:
                    try:
                        return any("2 environments" in line for line in (await one.status())["troubles"])
                    except (aiohttp.ClientError, OSError):
                        return False

                await eventually_async(again, "the next judge's trouble")
                before = await rollout(one)
                assert before["compared_environments"] == {"old": A, "new": B}

                async def both() -> bool:
                    await one.request("globex", "after the kill")
                    now = await rollout(one)
                    return bool(
                        now["compared"] > before["compared"] and now["set_aside"] > before["set_aside"]
                    )

                await eventually_async(both, "pairs compared, and pairs set aside")
                assert (await rollout(one))["state"] != "rolled_back"

    asyncio.run(main())
