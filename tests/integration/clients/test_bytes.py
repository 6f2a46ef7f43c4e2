"""Raw sockets: status line, header lines, chunk sizes, events: the client reads what the engine wrote."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.integration.clients.conftest import MODEL
from tests.support.engine_process import EngineProcess
from tests.support.rawhttp import Raw, RawConnection, post, request, without_own
from tests.support.serving import Serving

CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Name a river in Europe."}],
    "max_tokens": 2,
    "temperature": 0,
}
COMPLETION = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}
MESSAGE = {"model": MODEL, "messages": CHAT["messages"], "max_tokens": 2}
RESPONSE = {"model": MODEL, "input": "Name a river in Europe.", "max_output_tokens": 5}

REQUESTS: dict[str, bytes] = {
    "chat": post("/v1/chat/completions", CHAT),
    "chat, streamed": post("/v1/chat/completions", {**CHAT, "stream": True}),
    "chat, streamed, with usage": post(
        "/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    ),
    "completion": post("/v1/completions", COMPLETION),
    "completion, streamed": post("/v1/completions", {**COMPLETION, "stream": True, "logprobs": 3}),
    "body with spaces and an unknown order": request(
        "POST",
        "/v1/completions?x=1&y=%20",
        b' {  "max_tokens" : 2 ,"temperature":0.0, "prompt":"\\u00e9" , "model" : "smollm2" } ',
    ),
    "chunked request": (
        b"POST /v1/completions HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
        b'16;ext=1\r\n{"model":"smollm2","pr\r\n1e\r\nompt":"a","max_tokens":2,"temp\r\n'
        b'e\r\nerature": 0.0}\r\n0\r\n\r\n'
    ),
    "an Anthropic message": post("/v1/messages", MESSAGE, "x-api-key: k", "anthropic-version: 2023-06-01"),
    "an Anthropic message, streamed": post("/v1/messages", {**MESSAGE, "stream": True}),
    "an OpenAI response": post("/v1/responses", RESPONSE),
    "an OpenAI response, streamed": post("/v1/responses", {**RESPONSE, "stream": True}),
    "bad JSON": request("POST", "/v1/chat/completions", b'{"model": "smollm2", '),
    "bad JSON, not even text": request("POST", "/v1/completions", b"\x00\xff\xfe"),
    "an empty body": request("POST", "/v1/completions", b""),
    "unknown model": post("/v1/completions", {**COMPLETION, "model": "another"}),
    "unknown field": post("/v1/completions", {**COMPLETION, "frobnicate": True}),
    "unknown path": request("GET", "/no/such/path?with=query"),
    "wrong method": request("DELETE", "/v1/models"),
    "models": request("GET", "/v1/models"),
    "models, head only": request("HEAD", "/v1/models"),
    "metrics": request("GET", "/version"),
}


def ask(address: str, data: bytes) -> Raw:
    with RawConnection(address) as one:
        return on(one, data)


def on(one: RawConnection, data: bytes) -> Raw:
    if not data.startswith(b"HEAD "):
        return one.ask(data)
    one.send(data)
    return Raw(head=one.read_until(b"\r\n\r\n"), framed=b"")


@cache
def straight(engine: EngineProcess, name: str) -> Raw:
    """The engine's own answer, asked for once."""
    return ask(engine.url, REQUESTS[name])


def told(raw: Raw) -> list[tuple[bytes, bytes]]:
    """Header lines that must be the same: all but the clock's and forkgate's own."""
    return [(name, value) for name, value in raw.fields if name not in (b"date", b"x-request-id")]


@pytest.mark.parametrize("name", REQUESTS)
def test_answer_is_the_engines_own_to_the_byte(name: str, road: Serving, engine: EngineProcess) -> None:
    through, own = ask(road.address, REQUESTS[name]), straight(engine, name)
    assert through.start == own.start
    assert sorted(told(through)) == sorted(told(own))
    assert without_own(through.framed) == without_own(own.framed)
    assert own.field(b"x-request-id") is None
    assert through.field(b"x-request-id") is not None


def test_all_of_them_on_one_connection(plain: Serving, engine: EngineProcess) -> None:
    """Kept alive through errors and streams alike; nothing is left over for the next answer."""
    with RawConnection(plain.address) as through:
        for name, data in REQUESTS.items():
            answer, own = on(through, data), straight(engine, name)
            assert answer.start == own.start, name
            assert without_own(answer.framed) == without_own(own.framed), name


def test_stream_has_a_chunk_an_event(plain: Serving) -> None:
    framed = ask(plain.address, REQUESTS["chat, streamed"]).framed
    sizes, events = [], []
    while framed:
        size, _, rest = framed.partition(b"\r\n")
        sizes.append(int(size, 16))
        events.append(rest[: sizes[-1]])
        framed = rest[sizes[-1] + 2 :]
    assert sizes[-1] == 0
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in events[:-1])
    assert [event.count(b"data: ") for event in events[:-1]] == [1] * len(events[:-1])
    assert events[-2] == b"data: [DONE]\n\n"
    answers: list[Any] = [json.loads(event[6:]) for event in events[:-2]]
    assert answers[-1]["choices"][0]["finish_reason"] in ("length", "stop")


def test_environment_digest_of_the_engine_reaches_the_client(plain: Serving, engine: EngineProcess) -> None:
    assert (
        ask(plain.address, REQUESTS["completion"]).field(b"x-forkgate-environment") == engine.digest.encode()
    )


def test_hop_by_hop_fields_stay_on_their_hop(plain: Serving) -> None:
    """A connection option of the client's is not the engine's, nor the other way round."""
    data = post(
        "/v1/completions", COMPLETION, "Connection: keep-alive, x-mine", "Keep-Alive: timeout=1", "x-mine: 1"
    )
    with RawConnection(plain.address) as one:
        for _ in range(2):
            answer = one.ask(data)
            assert answer.status == 200
            assert not {b"keep-alive", b"proxy-connection", b"te", b"upgrade"} & dict(answer.fields).keys()
        closing = one.ask(post("/v1/completions", COMPLETION, "Connection: close"))
        assert closing.status == 200
        assert closing.field(b"connection") == b"close"
        with pytest.raises(ConnectionError):
            one.read_until(b"anything more")
