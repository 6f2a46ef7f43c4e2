"""Hooks of a real ``forkgate serve``: told of a rollback, and never in its way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from forkgate.hooks import verify
from tests.support.fake_vllm import FakeVllm
from tests.support.hook_receiver import HookReceiver, answer
from tests.support.sidecar import Sidecar, eventually_async
from tests.support.waiting import LIMIT_S

SECRET = "0123456789abcdef0123456789abcdef"
LONG_S = 60
"""Of one attempt: whoever waits for a receiver that hangs waits so long."""


@asynccontextmanager
async def served(
    directory: Path, *urls: str, events: tuple[str, ...] = ("stage", "breach", "rollback", "hold", "lift")
) -> AsyncIterator[Sidecar]:
    (directory / "secret").write_text(SECRET)
    hooks = [
        {
            "name": f"hook-{number}",
            "url": url,
            "secret_file": str(directory / "secret"),
            "events": events,
            "timeout_s": LONG_S,
            "retry_s": 3_600,
        }
        for number, url in enumerate(urls)
    ]
    async with FakeVllm().serving() as old, FakeVllm("forks at token 2").serving() as new:
        one = Sidecar(directory, old.url, new.url, workers=1)
        one.file.write_text(one.file.read_text() + f"\nhooks: {json.dumps(hooks)}\n")
        try:
            await one.start()
            yield one
        finally:
            await one.close()


async def rolled_back(one: Sidecar) -> None:
    async def home() -> bool:
        return bool((await one.status())["flips"])

    await eventually_async(home, "the rollback")


def test_receivers_are_told_of_a_rollback_signed_and_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            HookReceiver([answer(200)]).serving() as receiver,
            served(tmp_path, receiver.url) as one,
        ):
            await one.request("globex", "hello")
            await rolled_back(one)

            def events() -> list[str]:
                return [got.headers["forkgate-event"] for got in receiver.requests]

            await receiver.until(lambda: "rollback" in events())
            assert events()[-3:] == ["breach", "stage", "rollback"]
            for got in receiver.requests:
                verify(SECRET.encode(), got.headers["forkgate-signature"], got.body, time.time())
            told = [orjson.loads(got.body) for got in receiver.requests]
            assert [notice["event"] for notice in told] == events()
            status = await one.status()
            assert told[-1]["epoch"] == status["flips"][0]["epoch"]
            code, _, err = await one.cli("rollout", "lift", "old-to-new", "--reason", "looked at it")
            assert code == 0, err
            await receiver.until(lambda: len(receiver.requests) >= len(told) + 2)
            assert events()[len(told) : len(told) + 2] == ["lift", "stage"]

    asyncio.run(main())


def test_hanging_receiver_delays_neither_the_rollback_nor_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            HookReceiver(["hang"]).serving() as receiver,
            # Of the start they are told nothing: that one of them is away would be a trouble from then on.
            served(tmp_path, receiver.url, "http://127.0.0.1:9/", events=("breach", "rollback")) as one,
        ):
            await one.request("globex", "hello")
            await rolled_back(one)
            status = await one.status()
            assert status["flips"][0]["seconds"] < LONG_S, "the receiver was waited for"
            assert status["flips"][0]["missing"] == []
            waiting = {hook["name"]: hook["waiting"] for hook in status["hooks"]}
            assert waiting == {"hook-0": 2, "hook-1": 2}
            assert await one.stop() == 0
            lost = [line for line in one.log() if line["event"] == "notifications are lost with this judge"]
            assert {line["hook"]: line["count"] for line in lost} == waiting

    asyncio.run(main())
