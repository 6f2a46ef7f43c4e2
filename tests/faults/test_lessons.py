"""What users of other canary tools complained of: the live canary fails, or hardly speaks."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

from tests.support.sidecar import eventually_async
from tests.support.stack import Connection, Stack, request_bytes, stack
from tests.support.waiting import LIMIT_S

LIVE_ERRORS = """
level: token
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 100000}
  live_errors: {kind: error_rate, source: live, maximum: 0.5, minimum_requests: 8, window_s: 600}
"""


def test_canary_that_fails_its_clients_is_answered_for_by_home_then_rolled_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, policy=LIVE_ERRORS) as (one, _, new):
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
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, workers=1) as (one, old, new):
            host, port = one.url.removeprefix("http://").rsplit(":", 1)
            await new.set("forks at token 2", pause_s=0.15)
            await old.set(pause_s=0.0)
            slow, other = Connection(host, int(port)), Connection(host, int(port))
            under_way = asyncio.create_task(slow.ask("acme", request_bytes("acme", "long", tokens=2_000)))
            await one.until("the rollback", state="rolled_back")
            await one.obeyed()
            assert not under_way.done()
            answer = await other.ask("acme", request_bytes("acme", "meanwhile"))
            assert answer.whole, answer
            assert answer.engine == "old"
            await new.set("forks at token 2", pause_s=0.0)
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
    async def reached() -> bool:
        return (await _live_gate(one))[1] >= count

    await eventually_async(reached, f"{count} live records")


def test_clients_that_leave_at_any_moment_stop_their_generation_and_upset_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        draw = random.Random(20261129)
        async with asyncio.timeout(LIMIT_S), stack(tmp_path) as (one, old, new):
            host, port = one.url.removeprefix("http://").rsplit(":", 1)
            await old.set(pause_s=0.05)
            await new.set(pause_s=0.05)

            async def leave(number: int) -> None:
                request = request_bytes(("acme", "globex")[number % 2], f"leaves {number}", tokens=20_000)
                reader, writer = await asyncio.open_connection(host, int(port))
                cut = draw.randrange(1, len(request) + 1) if number % 3 == 0 else len(request)
                writer.write(request[:cut])
                if cut == len(request):
                    with contextlib.suppress(asyncio.IncompleteReadError):
                        await reader.readexactly(draw.randrange(1, 1500))
                writer.transport.abort()

            await asyncio.gather(*(leave(number) for number in range(60)))
            # 20,000 tokens would take 1,000 s each; only shadows, which are no client's, may run on.

            async def live_is_over() -> bool:
                return not any([(await stub.counts())["live_running"] for stub in (old, new)])

            await eventually_async(live_is_over, "generations that nobody waits for, ended")
            await old.set(pause_s=0.0)
            await new.set(pause_s=0.0)
            client = Connection(host, int(port))
            answer = await client.ask("globex", request_bytes("globex", "afterwards"))
            client.close()
            assert answer.whole, answer
            ledger = await one.quiet(captured=1)
            assert set(ledger["dropped"]) <= {"client_aborted"}, ledger
            assert "client_aborted" not in ledger["dropped"] or ledger["dropped"]["client_aborted"] <= 20

    asyncio.run(main())
