"""The pool that a rollback goes back to is full, or gone: no live request pays for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

from tests.support.bounded import BoundedEngine
from tests.support.sidecar import eventually_async
from tests.support.stack import Connection, Stack, request_bytes, stack
from tests.support.waiting import LIMIT_S, eventually

SLOTS = 3
QUIET_S = 5.0
NAME = "old-to-new"


def connection(one: Stack) -> Connection:
    host, port = one.url.removeprefix("http://").rsplit(":", 1)
    return Connection(host, int(port))


def test_a_rollback_into_a_full_pool_sheds_shadows_first_and_then_queues_and_loses_nothing(
    tmp_path: Path,
) -> None:
    """Another rollout copies to the same old pool, and goes on: its arms have to make room too."""

    async def main() -> None:
        old, new, third = (BoundedEngine(name, SLOTS, pause_s=0.01) for name in ("old", "new", "third"))
        async with old.serving(), new.serving(), third.serving():
            one = Stack(tmp_path, old.url, new.url, percent=0.0, shadow={"quiet_s": QUIET_S})
            one.config["pools"].append({"name": "third", "endpoints": [third.url]})
            one.config["rollouts"].append(
                {
                    **one.config["rollouts"][0],
                    "name": "old-to-third",
                    "candidate": "third",
                    "shadow": {**one.config["rollouts"][0]["shadow"], "percent": 100.0, "max_tokens": 400},
                    "shadow_stage": {},
                    "steps": [],
                }
            )
            one.write()
            try:
                await one.start()
                await _full(one, old, new)
            finally:
                await one.close()

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await main()

    asyncio.run(bounded())


async def _full(one: Stack, old: BoundedEngine, new: BoundedEngine) -> None:
    clients = [connection(one) for _ in range(4 * SLOTS)]
    # The shadows: long ones, two slots of the old pool; their live requests are short and on the candidate.
    old.pause_s = 0.05
    asked = [
        client.ask("acme", request_bytes("acme", f"long {n}", tokens=400))
        for n, client in enumerate(clients[:2])
    ]
    first = [asyncio.create_task(one_ask) for one_ask in asked]
    await eventually(lambda: old.running_now(shadow=True) >= 2, "shadows on the old pool")
    assert old.running_now(shadow=False) == 0
    mark = len(old.moments)
    code, _, err = await one.cli("rollout", "rollback", NAME, "--reason", "the old pool is to take all back")
    assert code == 0, err
    back = await asyncio.gather(
        *(
            client.ask("acme", request_bytes("acme", f"back {n}", tokens=8))
            for n, client in enumerate(clients[2:])
        )
    )
    assert all(answer.whole and answer.engine == "old" for answer in back), back
    assert all(answer.whole and answer.engine == "new" for answer in await asyncio.gather(*first))
    since = old.moments[mark:]
    live = next(place for place, moment in enumerate(since) if not moment.shadow)
    stopped = [place for place, moment in enumerate(since) if moment.shadow and moment.what == "stops"]
    assert len(stopped) >= 2, since
    assert stopped[-1] < live, "shadows left before the first live request began"
    assert any(moment.waiting > 0 for moment in since), "the pool was full, and requests waited inside it"
    assert not any(m.shadow and m.what == "starts" and m.waiting for m in since), "and no shadow beside them"
    # Then, and not sooner, shadows go on.
    last = since[-1].at_s
    again = connection(one)
    old.pause_s = 0.01
    shed = since[stopped[0]].at_s
    while not (starts := [m for m in old.moments if m.shadow and m.what == "starts" and m.at_s > shed]):
        assert (await again.ask("acme", request_bytes("acme", "calm", tokens=2))).whole
        await asyncio.sleep(0.2)
    assert starts[0].at_s - last >= QUIET_S - 1.5, "it was quiet before they came back"
    ledger = await one.admin("/v1/ledger")
    assert ledger["balanced"]
    assert ledger["dropped"]["pool_busy"] >= 2
    assert new.running_now(shadow=True) == 0
    for client in (*clients, again):
        client.close()


def test_a_rollback_into_a_pool_that_is_gone_is_no_outage_and_ends_when_it_is_back(tmp_path: Path) -> None:
    watch: dict[str, Any] = {"every_s": 0.5, "slowest_s": 5}

    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, percent=0.0) as (one, old, _):
            one.config["pools"][0]["watch"] = watch
            one.write()
            assert one.process is not None
            await one.stop()
            await one.start()
            client, other = connection(one), connection(one)
            assert (await client.ask("acme", request_bytes("acme", "before"))).engine == "new"
            await old.kill()

            async def told() -> bool:
                return any(
                    "could not take everything back" in line for line in (await one.status())["troubles"]
                )

            await eventually_async(told, "the old pool's loss in the status")
            (pool,) = [one for one in (await one.status())["pools"] if one["name"] == "old"]
            assert not pool["watch"]["ready"]
            _, text, _ = await one.cli("status")
            assert "NOT READY to go back to" in text

            code, _, err = await one.cli("rollout", "rollback", NAME, "--reason", "the candidate is wrong")
            assert code == 0, err
            await one.obeyed()
            assert (await one.status())["rollouts"][0]["latched"]["durable"], "latched, whoever answers"
            for number in range(12):  # over both workers
                answer = await client.ask("acme", request_bytes("acme", f"meanwhile {number}"))
                assert (answer.whole, answer.engine) == (True, "new"), answer
                client.close()
            assert (
                await other.ask("globex", request_bytes("globex", "was at home all the time"))
            ).status == 502
            other.close()
            edges = [line for line in _lines(one) if line["process"] == "edge"]
            told = [line for line in edges if line["event"].startswith("nobody in the home pool answers")]
            assert {line["home"] for line in told} == {"old"}, edges

            await old.start()

            async def home() -> bool:
                answer = await client.ask("acme", request_bytes("acme", "and now"))
                client.close()
                assert answer.whole, answer
                return answer.engine == "old"

            await eventually_async(home, "home answers again")
            end = time.monotonic() + 1.0
            while time.monotonic() < end:  # eject times are over: both workers have met it
                await home()
            assert [await home() for _ in range(6)] == [True] * 6, "and goes on to"

    asyncio.run(main())


def _lines(one: Stack) -> list[dict[str, Any]]:
    found = []
    for line in one.log_file.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
