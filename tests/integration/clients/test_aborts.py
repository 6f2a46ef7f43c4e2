"""A client that leaves takes its generation with it, wherever it stands."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.integration.clients.conftest import MODEL, Load
from tests.support.engine_process import EngineProcess
from tests.support.rawhttp import RawConnection, post
from tests.support.serving import Serving
from tests.support.waiting import PATIENCE_S, eventually, until

# An engine that is not told goes on to the end of it.
LONG: dict[str, Any] = {
    "model": MODEL,
    "prompt": "Once upon a time",
    "max_tokens": 1900,
    "temperature": 0,
    "ignore_eos": True,
}
PROMPT_TOKENS = 4
AFTER_FIRST_TOKEN = (PROMPT_TOKENS + 2) / 2048


@pytest.fixture(autouse=True)
def idle(engine: EngineProcess) -> Iterator[None]:
    """Copies of the other tests' requests have run out; those of this test's leave nothing behind, and none
    ran to its end."""
    until(lambda: quiet(engine), "the engine has nothing to do")
    before = Load(engine.url).generated_tokens
    yield
    until(lambda: quiet(engine), "the engine has nothing to do")
    assert Load(engine.url).generated_tokens - before < LONG["max_tokens"]


def quiet(engine: EngineProcess) -> bool:
    load = Load(engine.url)
    return load.running + load.waiting == 0


@contextlib.contextmanager
def occupied(engine: EngineProcess) -> Iterator[None]:
    """The engine's one place is taken by somebody else's request."""
    with RawConnection(engine.url) as other:
        other.send(post("/v1/completions", LONG))
        until(lambda: Load(engine.url).kv_cache_usage >= AFTER_FIRST_TOKEN, "the place is taken")
        yield


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_client_leaves_before_the_first_token(stream: bool, plain: Serving, engine: EngineProcess) -> None:
    with occupied(engine):
        with RawConnection(plain.address) as client:
            client.send(post("/v1/completions", {**LONG, "stream": stream}))
            until(lambda: Load(engine.url).waiting == 1, "it waits for the place")
        until(lambda: Load(engine.url).waiting == 0, "it left the queue")
        assert Load(engine.url).running == 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_client_leaves_after_the_first_token(stream: bool, road: Serving, engine: EngineProcess) -> None:
    with RawConnection(road.address) as client:
        client.send(post("/v1/completions", {**LONG, "stream": stream}))
        if stream:
            client.read_until(b"data: ")
        until(lambda: Load(engine.url).kv_cache_usage >= AFTER_FIRST_TOKEN, "it generates")
    # idle() waits for the rest.


def test_openai_client_closes_its_stream(road: Serving, engine: EngineProcess) -> None:
    with openai.OpenAI(base_url=road.url + "/v1", api_key="k", max_retries=0) as one:
        body = {**LONG, "extra_body": {"ignore_eos": True}}
        del body["ignore_eos"]
        with one.completions.create(**body, stream=True) as stream:
            assert next(iter(stream)).choices[0].text
            until(
                lambda: Load(engine.url).running == 1, "the engine's counters caught up with its first token"
            )
        until(lambda: quiet(engine), "the generation ended with its client")


def test_openai_client_gives_up_on_a_whole_answer(road: Serving, engine: EngineProcess) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=road.url + "/v1", api_key="k", max_retries=0) as one:
            body = {**LONG, "extra_body": {"ignore_eos": True}}
            del body["ignore_eos"]
            task = asyncio.create_task(one.completions.create(**body))
            async with asyncio.timeout(PATIENCE_S):
                while (await asyncio.to_thread(Load, engine.url)).kv_cache_usage < AFTER_FIRST_TOKEN:
                    await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await eventually(lambda: quiet(engine), "the generation ended with its client")

    asyncio.run(main())


def test_other_clients_on_the_edge_notice_nothing(road: Serving, engine: EngineProcess) -> None:
    """One leaves in mid stream; another's answer, asked for at the same time, is whole."""
    with RawConnection(road.address) as stays, RawConnection(road.address) as leaves:
        leaves.send(post("/v1/completions", {**LONG, "stream": True}))
        leaves.read_until(b"data: ")
        stays.send(post("/v1/completions", {**LONG, "max_tokens": 3}))
        until(lambda: Load(engine.url).waiting >= 1, "the second waits")
        leaves.close()
        head = stays.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert json.loads(stays.read_until(b"}}"))["usage"]["completion_tokens"] == 3
