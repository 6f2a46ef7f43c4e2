"""What users of other canary tools complained of: the live canary fails, or hardly speaks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.support.stack import Connection, Stack, request_bytes, stack

LIVE_ERRORS = """
level: token
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 100000}
  live_errors: {kind: error_rate, source: live, maximum: 0.5, minimum_requests: 8, window_s: 600}
"""


def test_canary_that_fails_its_clients_is_answered_for_by_home_then_rolled_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(115), stack(tmp_path, policy=LIVE_ERRORS) as (one, _, new):
            host, port = one.url.removeprefix("http://").rsplit(":", 1)
            client = Connection(host, int(port))
            # No data at all is no pass.
            assert await _live_gate(one) == ("inconclusive", 0)

            # The pool is gone: home answers, each time, and it is counted. Too few to judge by.
            await new.kill()
            for number in range(3):
                answer = await client.ask("acme", request_bytes("acme", f"nobody there {number}"))
                assert answer.whole, answer
                assert answer.engine == "old"
            await _live_gate_reaches(one, 3)
            assert await _live_gate(one) == ("inconclusive", 3)
            assert (await one.admin("/v1/rollouts/old-to-new"))["state"] == "canary"

            # It is back, and overloaded: 503 before the first byte goes home too.
            await new.start()
            await new.set("live:answers 503")
            answer = await client.ask("acme", request_bytes("acme", "overloaded"))
            assert answer.whole, answer
            assert answer.engine == "old"

            # A 500 is an answer. The client gets it, and it counts: 4 + 4 failed of 8.
            await new.set("live:answers 500")
            for number in range(4):
                answer = await client.ask("acme", request_bytes("acme", f"fails {number}"))
                assert (answer.status, answer.engine) == (500, "new")
            found = await one.until("the rollback", state="rolled_back")
            assert found["latched"]["gate"] == "live_errors"
            assert "8 of 8" in found["latched"]["reason"]
            await one.obeyed()

            # The same connection, kept alive since the first request, is home with its next one.
            port_before = client.port
            answer = await client.ask("acme", request_bytes("acme", "the next request"))
            assert answer.whole, answer
            assert answer.engine == "old"
            assert client.port == port_before
            client.close()

    asyncio.run(main())


def test_answer_that_is_under_way_when_the_flip_comes_ends_where_it_began(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(115), stack(tmp_path, workers=1) as (one, old, new):
            host, port = one.url.removeprefix("http://").rsplit(":", 1)
            await new.set("forks at token 2", pause_s=0.15)
            await old.set(pause_s=0.0)
            slow, other = Connection(host, int(port)), Connection(host, int(port))
            under_way = asyncio.create_task(slow.ask("acme", request_bytes("acme", "long", tokens=60)))
            await one.until("the rollback", state="rolled_back")
            await one.obeyed()
            assert not under_way.done()
            answer = await other.ask("acme", request_bytes("acme", "meanwhile"))
            assert answer.whole, answer
            assert answer.engine == "old"
            answer = await under_way
            assert answer.whole, answer
            assert answer.engine == "new"
            answer = await slow.ask("acme", request_bytes("acme", "its next"))
            assert (answer.engine, answer.whole) == ("old", True)
            slow.close()
            other.close()

    asyncio.run(main())


async def _live_gate(one: Stack) -> tuple[str, int]:
    verdicts: list[dict[str, Any]] = (await one.admin("/v1/rollouts/old-to-new"))["verdicts"]
    (verdict,) = (verdict for verdict in verdicts if verdict["gate"] == "live_errors")
    return verdict["answer"], verdict["n"]


async def _live_gate_reaches(one: Stack, count: int) -> None:
    from tests.support.sidecar import eventually_async

    async def reached() -> bool:
        return (await _live_gate(one))[1] >= count

    await eventually_async(reached, f"{count} live records")
