"""Sampling, the copy, and the promise that nothing on the shadow side changes a live byte."""

from __future__ import annotations

import asyncio

import pytest

from proxy.edge.settings import Limits
from proxy.ledger import DropReason
from tests.support.edge import (
    Arrived,
    MemoryPort,
    Upstream,
    answer,
    get,
    post,
    read_answer,
    run,
    running_edge,
    table,
)

SAMPLED = 4
DRAWABLE = 16


async def echo(request: Arrived) -> None:
    await request.read_body()
    request.say(answer(request.body))


def test_a_sampled_request_is_offered_whole_after_it_was_written_upstream() -> None:
    async def main() -> None:
        port = MemoryPort()
        upstream = Upstream(echo)
        async with upstream.running() as url, running_edge(table(url, percent=100), port=port) as edge:
            written: list[bool] = []

            def look(call: str) -> None:
                if call in ("begin", "offer"):
                    (client,) = edge.edge.connections
                    assert client.exchange is not None
                    written.append(client.exchange.upstream is not None and client.exchange.sent_at > 0)

            port.before = look
            reader, writer = await edge.connect()
            body = b'{"prompt": "hello"}'
            writer.write(
                post(
                    body,
                    "/v1/completions?x=1",
                    "Content-Type: application/json",
                    "Authorization: Bearer secret",
                    "Cookie: secret",
                    "X-Api-Key: secret",
                    "OpenAI-Organization: org",
                    "User-Agent: test",
                    "X-Tenant: acme",
                    "X-Request-Id: r-1",
                )
            )
            assert (await read_answer(reader))[1] == body
            ((sequence, head, copied),) = port.offered
            assert written == [True, True]
            assert (sequence, copied) == (1, body)
            assert head.request_id == "r-1"
            assert head.tenant == "acme"
            assert head.rollout == "rollout"
            assert head.target == "/v1/completions?x=1"
            assert head.live_pool == "home"
            assert head.capture_id != head.request_id
            assert head.headers == (
                (b"content-type", b"application/json"),
                (b"openai-organization", b"org"),
                (b"user-agent", b"test"),
            )
            assert b"secret" not in repr(head).encode()
            (record,) = await port.records_reach(1)
            assert record.flags == SAMPLED | DRAWABLE
            writer.close()

    run(main())


def test_a_chunked_body_is_copied_without_its_framing() -> None:
    async def main() -> None:
        async with Upstream(echo).running() as url, running_edge(table(url, percent=100)) as edge:
            reader, writer = await edge.connect()
            writer.write(b"POST /v1/messages HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n")
            for piece in (b"5\r\nhel", b"lo\r\n", b"6;x=y\r\n world\r\n0\r\nX-Sum: 1\r\n", b"\r\n"):
                writer.write(piece)
                await writer.drain()
            _, body = await read_answer(reader)
            assert body == b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX-Sum: 1\r\n\r\n"
            assert edge.port.offered[0][2] == b"hello world"
            writer.close()

    run(main())


@pytest.mark.parametrize(
    "request_bytes",
    [
        get("/v1/completions"),
        post(b"x", "/v1/embeddings"),
        post(b"x", "/v1/completions/"),
        post(b"x", "/v1/models"),
    ],
)
def test_other_requests_are_not_copied(request_bytes: bytes) -> None:
    async def main() -> None:
        async with Upstream(echo).running() as url, running_edge(table(url, percent=100)) as edge:
            reader, writer = await edge.connect()
            writer.write(request_bytes)
            await read_answer(reader)
            assert edge.port.begun == 0
            writer.close()

    run(main())


def test_a_rule_for_other_tenants_draws_nothing() -> None:
    async def main() -> None:
        async with (
            Upstream(echo).running() as url,
            running_edge(table(url, percent=100, tenants=("globex",))) as edge,
        ):
            reader, writer = await edge.connect()
            for tenant in ("acme", "globex"):
                writer.write(post(b"x", "/v1/completions", f"X-Tenant: {tenant}"))
                await read_answer(reader)
            assert [head.tenant for _, head, _ in edge.port.offered] == ["globex"]
            # Whoever counts copies must know where there was no draw.
            assert [record.flags for record in await edge.port.records_reach(2)] == [0, SAMPLED | DRAWABLE]
            writer.close()

    run(main())


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_capture_limit_goes_through_and_is_dropped_with_its_reason(chunked: bool) -> None:
    async def main() -> None:
        async with (
            Upstream(echo).running() as url,
            running_edge(table(url, percent=100), limits=Limits(capture_body_bytes=10)) as edge,
        ):
            reader, writer = await edge.connect()
            if chunked:
                writer.write(
                    b"POST /v1/completions HTTP/1.1\r\nHost: e\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                for _ in range(3):
                    writer.write(b"5\r\nhello\r\n")
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
            else:
                writer.write(post(b"hello world"))
            await read_answer(reader)
            assert edge.port.dropped == [(1, DropReason.BODY_TOO_LARGE)]
            assert edge.port.offered == []
            writer.close()

    run(main())


def test_a_client_that_leaves_in_mid_body_leaves_a_drop_behind() -> None:
    async def main() -> None:
        async with Upstream(echo).running() as url, running_edge(table(url, percent=100)) as edge:
            _, writer = await edge.connect()
            writer.write(post(b"hello")[:-1])
            while not edge.port.begun:
                await asyncio.sleep(0)
            writer.close()
            await edge.port.records_reach(1)
            assert edge.port.dropped == [(1, DropReason.CLIENT_ABORTED)]

    run(main())


async def conversation(url: str, port: MemoryPort, percent: float) -> list[tuple[bytes, bytes]]:
    """Every byte that a client sees in a few exchanges, request IDs given."""
    async with running_edge(table(url, percent=percent), port=port) as edge:
        reader, writer = await edge.connect()
        seen = []
        for number in range(3):
            writer.write(post(b"body %d" % number, "/v1/completions", f"X-Request-Id: r-{number}"))
            seen.append(await read_answer(reader))
        writer.write(b"nonsense\r\n\r\n")
        head, body = await read_answer(reader)
        own = (b"Date", b"x-request-id")  # new each time
        assert b"\r\nx-request-id: " in head
        seen.append((b"\r\n".join(line for line in head.split(b"\r\n") if not line.startswith(own)), body))
        writer.close()
        return seen


@pytest.mark.parametrize("call", ["begin", "offer", "live", "drop"])
def test_a_shadow_side_that_raises_changes_no_live_byte(call: str) -> None:
    async def main() -> None:
        class Refusing(MemoryPort):
            def fail(self, name: str) -> None:
                if name == call:
                    raise RuntimeError("the shadow side is broken")

        async with Upstream(echo).running() as url:
            plain = await conversation(url, MemoryPort(), 0)
            broken = Refusing()
            broken.before = broken.fail
            assert await conversation(url, broken, 100) == plain

    run(main())


def test_turning_the_shadow_on_changes_no_live_byte() -> None:
    async def main() -> None:
        async with Upstream(echo).running() as url:
            plain = await conversation(url, MemoryPort(), 0)
            port = MemoryPort()
            assert await conversation(url, port, 100) == plain
            assert len(port.offered) == 3

    run(main())


def test_errors_of_the_shadow_side_are_counted() -> None:
    async def main() -> None:
        port = MemoryPort()

        def fail(name: str) -> None:
            raise RuntimeError(name)

        port.before = fail
        async with Upstream(echo).running() as url, running_edge(table(url, percent=100), port=port) as edge:
            reader, writer = await edge.connect()
            writer.write(post(b"x"))
            await read_answer(reader)
            assert edge.edge.stats()["shadow_errors"] == 2
            assert edge.edge.stats()["bugs"] == 0
            writer.close()

    run(main())
