"""A rollout of ``forkgate serve`` begins with its checks, holds where one fails, and goes on by a lift."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.fake_vllm import FakeVllm
from tests.support.sidecar import Sidecar, eventually_async, sidecar
from tests.support.waiting import LIMIT_S, all_obey


async def until(one: Sidecar, what: str, **wanted: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def shown() -> bool:
        nonlocal found
        found = await one.admin("/v1/rollouts/old-to-new")
        return all(found.get(key) == value for key, value in wanted.items())

    await eventually_async(shown, what)
    return found


def live(engine: FakeVllm, prompt: str) -> int:
    return sum(body.get("prompt") == prompt for _, body in engine.requests)


def test_checks_pass_and_then_the_canary_begins(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), sidecar(tmp_path, checks=True) as (one, _, new):
            rollout = await until(one, "the canary", state="canary")
            assert [(check["check"], check["answer"]) for check in rollout["checks"]] == [
                ("self_check", "passed"),
                ("quick_check", "passed"),
            ]
            assert rollout["pairs"] == 0  # what a check asks is no evidence
            assert rollout["evidence"] == 0
            await one.request("acme", "after the checks")
            assert live(new, "after the checks") == 1
            code, out, _err = await one.cli("status")
            assert code == 0
            assert "  self check passed: " in out
            assert "  quick check passed: " in out

    asyncio.run(main())


def test_candidate_that_fails_its_quick_check_gets_no_traffic_until_it_passes(tmp_path: Path) -> None:
    async def main() -> None:
        lies = ("forks at token 2",)
        async with asyncio.timeout(LIMIT_S), sidecar(tmp_path, checks=True, lies=lies) as (one, old, new):
            held: dict[str, Any] = {}

            async def is_held() -> bool:
                nonlocal held
                held = await one.admin("/v1/rollouts/old-to-new")
                return held["held"] is not None

            await eventually_async(is_held, "the hold")
            assert held["state"] == "quick_check"
            assert held["hold"]["cause"] == "check"
            assert held["latched"] is None
            await one.request("acme", "while it is held")
            assert (live(old, "while it is held"), live(new, "while it is held")) == (1, 0)
            code, out, _err = await one.cli("rollout", "show", "old-to-new")
            assert code == 0
            assert "HELD until somebody has looked (check): quick_check" in out
            new.lies.clear()
            code, _, err = await one.cli(
                "rollout", "lift", "old-to-new", "--reason", "the engine is repaired"
            )
            assert code == 0, err
            await until(one, "the canary", state="canary", held=None)

            async def routed() -> bool:
                status = await one.status()
                return status["routes"] == {"acme": "new"} and all_obey(status)

            await eventually_async(routed, "every edge's acknowledgement")
            await one.request("acme", "now")
            assert live(new, "now") == 1

    asyncio.run(main())
