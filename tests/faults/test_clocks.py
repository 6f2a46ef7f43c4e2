"""Clocks that jump, in every process at once, in the middle of traffic."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.stack import Connection, Stack, request_bytes, stack
from tests.support.waiting import LIMIT_S, eventually

DAY_S = 86_400
LIVE_ERRORS = """
level: token
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 100000}
  live_errors: {kind: error_rate, source: live, maximum: 0.3, minimum_requests: 6, window_s: 60}
"""
OLD_AGE = ("queue_age", "too_old", "token_day", "token_rate", "tenant_budget", "no_judge")


def test_stepping_clock_blinds_no_gate_and_turns_nothing_back(tmp_path: Path) -> None:
    async def main() -> None:
        shadow = {"tokens_per_day": 100_000}
        async with (
            asyncio.timeout(LIMIT_S),
            stack(tmp_path, workers=1, policy=LIVE_ERRORS, shadow=shadow) as (one, _, new),
        ):
            host, port = one.url.removeprefix("http://").rsplit(":", 1)
            client = Connection(host, int(port))
            asked = 0
            for step_s in (0, 10 * DAY_S, -20 * DAY_S, 3_600, -3_600):
                (one.seams / "clock").write_text(str(step_s))
                for number in range(3):
                    asked += 1
                    assert await _ask(client, "acme", f"clock {step_s} {number}") == (200, "new")
                ledger = await one.quiet(captured=asked)
                assert not set(OLD_AGE) & set(ledger["dropped"]), ledger
                assert ledger["compared"] == ledger["captured"], ledger
            assert _ids == sorted(_ids)
            assert (await one.admin("/v1/rollouts/old-to-new"))["state"] == "canary"

            # Ten days were in the window's future a moment ago; failures of now count all the same.
            await new.set("live:answers 500")
            epoch = (await one.status())["epoch"]

            failed = 0
            while failed < 40 and (await one.admin("/v1/rollouts/old-to-new"))["state"] == "canary":
                failed += (await _ask(client, "acme", "fails"))[0] == 500
            assert failed >= 6
            found = await one.until("the rollback", state="rolled_back")
            assert found["latched"]["gate"] == "live_errors"
            await one.obeyed()
            (flip,) = (await one.status())["flips"]
            assert 0.0 <= flip["seconds"] < 60.0
            assert (await one.status())["epoch"] > epoch
            assert await _ask(client, "acme", "after") == (200, "old")
            await _restarted_in_the_past(one, client)
            client.close()

    asyncio.run(main())


async def _restarted_in_the_past(one: Stack, client: Connection) -> None:
    (one.seams / "clock").write_text(str(-400 * DAY_S))
    epoch = (await one.status())["epoch"]
    lives = len(one.pids("judge"))
    one.kill("judge")
    await eventually(lambda: len(one.pids("judge")) > lives, "another judge")
    found = await one.until_judged()
    assert found["rollouts"][0]["state"] == "rolled_back"
    assert found["epoch"] > epoch
    assert await _ask(client, "acme", "a year ago") == (200, "old")
    assert _ids == sorted(_ids)


_ids: list[str] = []
"""Request IDs in the order in which the one worker gave them."""


async def _ask(client: Connection, tenant: str, prompt: str) -> tuple[int, str]:
    answer = await client.ask(tenant, request_bytes(tenant, prompt))
    assert answer.error is None, answer
    (told,) = (
        line for line in client.raw_head.decode().lower().split("\r\n") if line.startswith("x-request-id:")
    )
    _ids.append(told.partition(":")[2].strip())
    return answer.status, answer.engine
