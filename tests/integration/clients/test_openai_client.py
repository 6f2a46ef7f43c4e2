"""OpenAI's own client, through forkgate and without it: the same events, the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx2
import openai
import pytest

from tests.integration.clients.conftest import MODEL
from tests.support.engine_process import EngineProcess
from tests.support.rawhttp import without_own
from tests.support.serving import Serving
from tests.support.waiting import LIMIT_S

CHAT = {"messages": [{"role": "user", "content": "Name a river in Europe."}], "max_tokens": 4}
CHAT_CALLS: dict[str, dict[str, Any]] = {
    "greedy": {**CHAT, "temperature": 0},
    "logprobs": {**CHAT, "temperature": 0, "logprobs": True, "top_logprobs": 5},
    "seeded draw": {**CHAT, "temperature": 0.8, "seed": 7},
    "characters of several bytes": {
        "messages": [{"role": "user", "content": "请重复：“早上好，今天天气很好” 🌊"}],
        "max_tokens": 5,
        "temperature": 0,
    },
    "token ids asked back": {**CHAT, "temperature": 0, "extra_body": {"return_token_ids": True}},
    "stopped": {**CHAT, "temperature": 0, "max_tokens": 16, "stop": [" "]},
}
COMPLETION = {"prompt": "The river that runs through Paris is", "max_tokens": 4, "temperature": 0}
COMPLETION_CALLS: dict[str, dict[str, Any]] = {
    "greedy": COMPLETION,
    "logprobs": {**COMPLETION, "logprobs": 5, "extra_body": {"return_tokens_as_token_ids": True}},
    "prompt of token ids": {**COMPLETION, "prompt": [504, 5046, 282, 4649, 314]},
}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


class Recorder(httpx2.HTTPTransport):
    """The client's own transport; keeps the bytes of the last body as they are read."""

    body = b""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        self.body = b""
        stream = response.stream
        assert isinstance(stream, httpx2.SyncByteStream)
        response.stream = _Tee(self, stream)
        return response


class _Tee(httpx2.SyncByteStream):
    def __init__(self, recorder: Recorder, stream: httpx2.SyncByteStream) -> None:
        self._recorder = recorder
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        for data in self._stream:
            self._recorder.body += data
            yield data

    def close(self) -> None:
        self._stream.close()


def client(url: str, recorder: Recorder | None = None) -> openai.OpenAI:
    transport = recorder or Recorder()
    http_client = openai.DefaultHttpxClient(transport=transport)
    return openai.OpenAI(
        base_url=url + "/v1", api_key="sk-test", max_retries=0, timeout=LIMIT_S, http_client=http_client
    )


def routes(one: Any, chat: bool) -> Any:
    return one.chat.completions if chat else one.completions


def streamed(url: str, chat: bool, body: dict[str, Any]) -> tuple[bytes, list[dict[str, Any]]]:
    """The body's bytes, and what the client hands to its user, event by event."""
    recorder = Recorder()
    with client(url, recorder) as one, routes(one, chat).create(model=MODEL, **body, **USAGE) as stream:
        events = [plain_event(event) for event in stream]
    return without_own(recorder.body), events


def whole(url: str, chat: bool, body: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
    """The same of an answer that does not stream."""
    recorder = Recorder()
    with client(url, recorder) as one:
        answer = plain_event(routes(one, chat).create(model=MODEL, **body))
    return without_own(recorder.body), answer


def plain_event(value: Any) -> dict[str, Any]:
    told: dict[str, Any] = value.model_dump()
    assert told.pop("id").startswith(("chatcmpl-", "cmpl-"))
    assert told.pop("created") > 1_700_000_000
    return told


@cache
def direct(what: Any, url: str, chat: bool, name: str) -> Any:
    """The engine's own answer, asked for once."""
    return what(url, chat, (CHAT_CALLS if chat else COMPLETION_CALLS)[name])


@pytest.mark.parametrize("name", CHAT_CALLS)
def test_chat_is_the_same_as_direct(name: str, road: Serving, engine: EngineProcess) -> None:
    body, events = streamed(road.url, True, CHAT_CALLS[name])
    assert (body, events) == direct(streamed, engine.url, True, name)
    assert body.endswith(b"data: [DONE]\n\n")
    assert (
        events[-1]["usage"]["completion_tokens"] == len(events) - 2
    )  # the opening chunk, and that of the usage
    assert whole(road.url, True, CHAT_CALLS[name]) == direct(whole, engine.url, True, name)


@pytest.mark.parametrize("name", COMPLETION_CALLS)
def test_completion_is_the_same_as_direct(name: str, road: Serving, engine: EngineProcess) -> None:
    body, events = streamed(road.url, False, COMPLETION_CALLS[name])
    assert (body, events) == direct(streamed, engine.url, False, name)
    assert body.endswith(b"data: [DONE]\n\n")
    assert events[-1]["usage"]["completion_tokens"] == len(events) - 1
    assert whole(road.url, False, COMPLETION_CALLS[name]) == direct(whole, engine.url, False, name)


def test_every_call_of_the_client_was_mirrored(mirrored: Serving) -> None:
    """So that what the others show under `mirrored` is shown under a shadow."""
    before = mirrored.settled(0)
    streamed(mirrored.url, True, CHAT_CALLS["greedy"])
    mirrored.settled(before["captured"] + 1)
    whole(mirrored.url, False, COMPLETION_CALLS["greedy"])
    after = mirrored.settled(before["captured"] + 2)
    assert after["balanced"]
    assert after["captured"] == before["captured"] + 2
    assert after["compared"] == before["compared"] + 2, after["dropped"]
    assert mirrored.admin("/v1/rollouts/old-to-new")["forks"] == 0


def test_async_client_gets_the_same(road: Serving, engine: EngineProcess) -> None:
    async def ask() -> list[Any]:
        found: list[Any] = []
        async with openai.AsyncOpenAI(
            base_url=road.url + "/v1", api_key="sk-test", max_retries=0, timeout=LIMIT_S
        ) as one:
            for chat, body in ((True, CHAT_CALLS["logprobs"]), (False, COMPLETION_CALLS["logprobs"])):
                async with await routes(one, chat).create(model=MODEL, **body, **USAGE) as stream:
                    found.append([plain_event(event) async for event in stream])
                raw = await routes(one, chat).with_raw_response.create(model=MODEL, **body)
                found.append((without_own(raw.content), plain_event(raw.parse())))
        return found

    expected = [
        told
        for chat in (True, False)
        for told in (
            direct(streamed, engine.url, chat, "logprobs")[1],
            direct(whole, engine.url, chat, "logprobs"),
        )
    ]
    assert asyncio.run(ask()) == expected


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (openai.NotFoundError, {**CHAT, "model": "another"}),
        (openai.BadRequestError, {**CHAT, "model": MODEL, "extra_body": {"no_such_field": 1}}),
        (openai.BadRequestError, {**CHAT, "model": MODEL, "temperature": -1}),
        (openai.BadRequestError, {**CHAT, "model": MODEL, "max_tokens": 5000}),
        (openai.BadRequestError, {**CHAT, "model": MODEL, "max_tokens": 5000, "stream": True}),
    ],
)
def test_what_the_engine_refuses_is_refused_in_its_words(
    kind: type[openai.APIStatusError], body: dict[str, Any], road: Serving, engine: EngineProcess
) -> None:
    def refused(url: str) -> tuple[int, bytes, object, str]:
        with client(url) as one, pytest.raises(kind) as caught:
            one.chat.completions.create(**body)
        error = caught.value
        return error.status_code, error.response.content, error.body, error.message

    assert refused(road.url) == refused(engine.url)


def test_models_are_listed_as_they_are(road: Serving, engine: EngineProcess) -> None:
    def listed(url: str) -> list[dict[str, Any]]:
        with client(url) as one:
            return [model.model_dump() for model in one.models.list()]

    assert listed(road.url) == listed(engine.url)
    assert [model["id"] for model in listed(road.url)] == [MODEL]


def test_request_id_is_the_clients_own_and_comes_back(road: Serving) -> None:
    with client(road.url) as one:
        body = {"model": MODEL, **COMPLETION_CALLS["greedy"], "max_tokens": 1}
        own = one.completions.with_raw_response.create(**body, extra_headers={"x-request-id": "mine-1"})
        assert own.headers["x-request-id"] == "mine-1"
        assert own.parse()._request_id == "mine-1"
        given = one.completions.with_raw_response.create(**body).headers["x-request-id"]
        assert given != one.completions.with_raw_response.create(**body).headers["x-request-id"]
        assert len(given) == 36
