"""HTTP to an endpoint: what is repeated, what is never sent, how each failure is named."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from comparator.records import Fact
from engines.base import (
    EngineError,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
)
from engines.transport import NOT_TOLD, Endpoint
from tests.support.waiting import LIMIT_S

Handler = Callable[[int, bytes, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class RawServer:
    """Answers by a function of (number of the request, its bytes, where to write)."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[RawServer]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                body = await reader.readexactly(int(length[0].split(b":")[1])) if length else b""
                self.requests.append(head + body)
                await self._handler(len(self.requests), head + body, writer)
                await writer.drain()


def run(handler: Handler, use: Callable[[Endpoint], Awaitable[Any]], **options: Any) -> RawServer:
    server = RawServer(handler)

    async def main() -> None:
        async with server.serving(), asyncio.timeout(LIMIT_S):
            endpoint = Endpoint(server.url, EngineOptions(**options))
            try:
                await use(endpoint)
            finally:
                await endpoint.close()

    asyncio.run(main())
    return server


async def answer_ok(_number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


async def hang(_number: int, _request: bytes, _writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


def test_a_connection_that_went_stale_while_idle_is_replaced_once() -> None:
    async def handler(number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        if number == 2:  # the server gives up the idle connection just as the second request comes
            writer.close()
        else:
            writer.write(OK)

    async def use(endpoint: Endpoint) -> None:
        assert await endpoint.post("/a", {}) == b"ok"
        assert await endpoint.post("/b", {"n": 1}) == b"ok"

    server = run(handler, use)
    assert server.connections == 2
    assert [one.split(b" ", 2)[1] for one in server.requests] == [b"/a", b"/b", b"/b"]


def test_a_fresh_connection_that_is_dropped_is_not_tried_again() -> None:
    async def handler(_number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def use(endpoint: Endpoint) -> None:
        with pytest.raises(EngineUnavailable, match="/a: "):
            await endpoint.post("/a", {})

    assert len(run(handler, use).requests) == 1


def test_an_answer_that_breaks_off_is_not_asked_for_again() -> None:
    async def handler(number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        if number == 1:
            writer.write(OK)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhal")
            await writer.drain()
            writer.close()

    async def use(endpoint: Endpoint) -> None:
        await endpoint.post("/a", {})
        with pytest.raises(EngineUnavailable, match="broke off"):
            await endpoint.post("/b", {})

    assert len(run(handler, use).requests) == 2


@pytest.mark.parametrize(
    ("status", "body", "error", "words"),
    [
        (400, b'{"error":{"message":"bad prompt"}}', EngineRefused, "HTTP 400: bad prompt"),
        (404, b'{"detail":"Not Found"}', EngineRefused, "HTTP 404: Not Found"),
        (422, b"plain words", EngineRefused, "HTTP 422: plain words"),
        (429, b"", EngineRefused, "HTTP 429: no explanation"),
        (500, b'{"message":"boom"}', EngineUnavailable, "HTTP 500: boom"),
        (503, b"<html>", EngineUnavailable, "HTTP 503: <html>"),
        (302, b"", EngineInvalid, "HTTP 302"),
        (204, b"", EngineInvalid, "HTTP 204"),
    ],
)
def test_each_status_has_its_error(status: int, body: bytes, error: type[EngineError], words: str) -> None:
    async def handler(_number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        length = b"" if status == 204 else b"content-length: %d\r\n" % len(body)
        writer.write(b"HTTP/1.1 %d X\r\nlocation: /x\r\n%s\r\n%s" % (status, length, body))

    async def use(endpoint: Endpoint) -> None:
        with pytest.raises(error, match=words) as caught:
            await endpoint.post("/a", {})
        assert caught.value.where == endpoint.base_url
        if isinstance(caught.value, EngineRefused):
            assert caught.value.status == status

    run(handler, use)


def test_a_server_that_never_answers_times_out() -> None:
    async def use(endpoint: Endpoint) -> None:
        with pytest.raises(EngineTimeout, match=r"/a: no answer in 0\.1 s"):
            await endpoint.post("/a", {})

    run(hang, use, first_chunk_timeout_s=0.1)


def test_a_stream_that_stalls_times_out_by_the_chunk() -> None:
    async def handler(_number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await writer.drain()
        await asyncio.sleep(60)

    async def use(endpoint: Endpoint) -> None:
        async with endpoint.stream("/a", {}, request_id="r") as reply:
            data, received_s = await reply.read()
            assert (data, received_s > 0) == (b"abc", True)
            with pytest.raises(EngineTimeout, match=r"no further byte of the answer in 0\.1 s"):
                await reply.read()

    run(handler, use, chunk_timeout_s=0.1)


def test_a_head_without_a_body_times_out_by_the_first_chunk() -> None:
    async def handler(_number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(60)

    async def use(endpoint: Endpoint) -> None:
        async with endpoint.stream("/a", {}, request_id="r") as reply:
            with pytest.raises(EngineTimeout):
                await reply.read()

    run(handler, use, first_chunk_timeout_s=0.2, chunk_timeout_s=50)


def test_the_pools_own_credential_is_sent_and_follows_its_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.transport._CREDENTIAL_S", 0.0)
    file = tmp_path / "token"
    file.write_text("first\n")

    async def use(endpoint: Endpoint) -> None:
        await endpoint.post("/a", {})
        file.write_text("second\n")
        await endpoint.get("/b")

    server = run(answer_ok, use, credential_file=str(file), headers={"x-pool": "h100"})
    assert b"authorization: bearer first\r\n" in server.requests[0].lower()
    assert b"x-pool: h100\r\n" in server.requests[0].lower()
    assert b"authorization: bearer second\r\n" in server.requests[1].lower()


def test_every_request_is_marked_as_a_shadows_and_a_stream_has_its_name() -> None:
    async def use(endpoint: Endpoint) -> None:
        await endpoint.get("/a")
        await endpoint.post("/b", {})
        async with endpoint.stream("/c", {}, request_id="c-1/baseline/0") as reply:
            await reply.read()

    configured = {"X-Request-Id": "theirs", "X-Forkgate-Shadow": "0"}
    requests = [sent.lower() for sent in run(answer_ok, use, headers=configured).requests]
    assert len(requests) == 3
    for sent in requests:
        assert sent.count(b"x-forkgate-shadow:") == 1
        assert b"x-forkgate-shadow: 1\r\n" in sent
        assert sent.count(b"x-request-id:") == 1
    assert b"x-request-id: c-1/baseline/0\r\n" in requests[2]


def test_a_credential_file_that_is_missing_or_empty_is_named(tmp_path: pathlib.Path) -> None:
    async def use(endpoint: Endpoint) -> None:
        with pytest.raises(EngineError, match=r"credential_file .*token: No such file"):
            await endpoint.post("/a", {})
        (tmp_path / "token").write_text("\n")
        with pytest.raises(EngineError, match="it is empty"):
            await endpoint.post("/a", {})

    assert run(answer_ok, use, credential_file=str(tmp_path / "token")).requests == []


def test_a_route_that_is_not_there_may_be_optional() -> None:
    async def handler(number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        status = {1: b"404", 2: b"403", 3: b"400"}[number]
        writer.write(b"HTTP/1.1 " + status + b" X\r\ncontent-length: 0\r\n\r\n")

    async def use(endpoint: Endpoint) -> None:
        assert await endpoint.get("/a", optional=True) is None
        assert await endpoint.post("/a", {}, optional=True) is None
        with pytest.raises(EngineRefused):
            await endpoint.get("/a", optional=True)

    run(handler, use)


def test_leaving_a_stream_early_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handler(_number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"1\r\nx\r\n")
                await writer.drain()
                await asyncio.sleep(0.001)
        closed.set()

    async def use(endpoint: Endpoint) -> None:
        async with endpoint.stream("/a", {}, request_id="r") as reply:
            await reply.read()
        await closed.wait()

    run(handler, use)


class Noted:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[Fact, bool]] = []

    def answered_by(self, environment: Fact, *, new_connection: bool) -> None:
        self.told.append((environment, new_connection))


DIGEST = "sha256:" + "d" * 64


def with_headers(*lines: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + "".join(f"{line}\r\n" for line in lines).encode() + OK[17:]


def test_each_answer_tells_who_gave_it_and_whether_over_a_new_connection() -> None:
    """A server that was replaced between two requests is met over a new connection, by the request itself."""

    async def handler(number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        if number == 3:
            writer.close()  # as one that ends
        elif number == 5:
            writer.write(with_headers("content-type: text/plain"))
        else:
            writer.write(with_headers(f"X-Forkgate-Environment: {DIGEST}"))

    noted = Noted()

    async def use(endpoint: Endpoint) -> None:
        endpoint.observer = noted
        for path in ("/a", "/b", "/c", "/d"):
            await endpoint.get(path)

    run(handler, use)
    assert noted.told == [
        (Fact(value=DIGEST), True),
        (Fact(value=DIGEST), False),
        (Fact(value=DIGEST), True),
        (NOT_TOLD, False),
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((f"x-forkgate-environment: {DIGEST[:-1]}",), "is none: 'sha256:ddd"),
        ((f"x-forkgate-environment: {DIGEST.upper()}",), "is none: 'SHA256:DDD"),
        (("x-forkgate-environment: ",), "is none: ''"),
        (("x-forkgate-environment: " + "x" * 10_240,), "is none: '" + "x" * 80 + "'"),
        ((f"x-forkgate-environment: {DIGEST}",) * 2, "the answer tells 2 environment digests"),
    ],
)
def test_a_digest_that_is_none_proves_nothing(lines: tuple[str, ...], words: str) -> None:
    async def handler(_number: int, _request: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(with_headers(*lines))

    noted = Noted()

    async def use(endpoint: Endpoint) -> None:
        endpoint.observer = noted
        assert await endpoint.get("/a") == b"ok"
        async with endpoint.stream("/b", {}, request_id="x") as reply:
            assert reply.environment.value is None

    run(handler, use)
    ((told, _), _) = noted.told
    assert told.value is None
    assert words in str(told.unknown)
    assert len(str(told.unknown)) < 200
