"""A canary pool in trouble, seen by a real client: it never notices."""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest

from proxy.edge.settings import Timeouts
from tests.support.edge import (
    Arrived,
    Upstream,
    answer,
    closed_port,
    post,
    read_answer,
    run,
    running_edge,
    status_of,
    table,
)

RETRIED, CANARY = 1, 2
ACME = "X-Tenant: acme"


async def from_home(request: Arrived) -> None:
    await request.read_body()
    request.say(answer(b"home:" + request.body))


@pytest.mark.parametrize(
    "trouble", ["refuses", "resets", "hangs up in its head", "503", "never answers", "speaks TLS"]
)
def test_a_candidate_in_trouble_before_its_first_byte_is_answered_by_home(trouble: str) -> None:
    async def main() -> None:
        async def broken(request: Arrived) -> None:
            await request.read_body()
            if trouble == "503":
                request.say(answer(b"overloaded", "503 Service Unavailable"))
            elif trouble == "never answers":
                edge.edge.sweep(monotonic() + 3_601.0)
                await request.gone()
            elif trouble == "speaks TLS":
                request.say(b"\x15\x03\x01\x00\x02\x02\x16")
            else:
                if trouble == "hangs up in its head":
                    request.say(b"HTTP/1.1 200 OK\r\nContent-Le")
                    await request.writer.drain()
                    request.writer.close()
                else:
                    request.writer.transport.abort()
                raise ConnectionResetError

        home = Upstream(from_home)
        async with home.running() as home_url, Upstream(broken).running() as broken_url:
            candidate = closed_port() if trouble == "refuses" else broken_url
            initial = table(home_url, candidate, routes={"acme": "candidate"})
            async with running_edge(initial, timeouts=Timeouts(first_byte_s=3_600.0)) as edge:
                reader, writer = await edge.connect()
                for _ in range(2):
                    writer.write(post(b"hello", "/v1/completions", ACME))
                    head, body = await read_answer(reader)
                    assert (status_of(head), body) == (200, b"home:hello")
                records = await edge.port.records_reach(2)
                assert all(record.flags & (RETRIED | CANARY) == RETRIED | CANARY for record in records)
                assert {record.pool for record in records} == {"home"}
                assert len(home.arrived) == 2, "home was asked once a request"
                writer.close()

    run(main())


def test_a_candidate_that_dies_after_its_first_byte_is_not_hidden() -> None:
    async def main() -> None:
        async def dies(request: Arrived) -> None:
            await request.read_body()
            request.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await request.writer.drain()
            request.writer.transport.abort()
            raise ConnectionResetError

        home = Upstream(from_home)
        async with (
            home.running() as home_url,
            Upstream(dies).running() as url,
            running_edge(table(home_url, url, routes={"acme": "candidate"})) as edge,
        ):
            reader, writer = await edge.connect()
            writer.write(post(b"hello", "/v1/completions", ACME))
            got = await reader.read()
            assert b"hello" in got
            assert not got.endswith(b"0\r\n\r\n")
            assert home.arrived == []
            writer.close()

    run(main())


def test_a_flip_takes_the_next_request_of_every_kept_connection() -> None:
    async def main() -> None:
        async def from_candidate(request: Arrived) -> None:
            await request.read_body()
            request.say(answer(b"candidate"))

        async with (
            Upstream(from_home).running() as home_url,
            Upstream(from_candidate).running() as url,
            running_edge(table(home_url, url, routes={"acme": "candidate"})) as edge,
        ):
            connections = [await edge.connect() for _ in range(5)]
            for reader, writer in connections:
                writer.write(post(b"x", "/v1/completions", ACME))
                assert (await read_answer(reader))[1] == b"candidate"
            edge.router(table(home_url, url, epoch=2))
            for reader, writer in connections:
                writer.write(post(b"x", "/v1/completions", ACME))
                assert (await read_answer(reader))[1] == b"home:x"
                writer.close()

    run(main())


def test_a_flip_in_mid_stream_lets_the_stream_finish() -> None:
    async def main() -> None:
        go_on = asyncio.Event()

        async def streams(request: Arrived) -> None:
            await request.read_body()
            request.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
            await go_on.wait()
            request.say(b"1\r\nb\r\n0\r\n\r\n")

        async with (
            Upstream(from_home).running() as home_url,
            Upstream(streams).running() as url,
            running_edge(table(home_url, url, routes={"acme": "candidate"})) as edge,
        ):
            reader, writer = await edge.connect()
            writer.write(post(b"x", "/v1/completions", ACME))
            await reader.readuntil(b"1\r\na\r\n")
            edge.router(table(home_url, epoch=2))
            go_on.set()
            assert await reader.readexactly(11) == b"1\r\nb\r\n0\r\n\r\n"
            writer.write(post(b"x", "/v1/completions", ACME))
            assert (await read_answer(reader))[1] == b"home:x"
            writer.close()

    run(main())


def test_expect_100_continue_waits_for_the_pool() -> None:
    async def main() -> None:
        async def careful(request: Arrived) -> None:
            assert request.header("expect") == b"100-continue"
            request.say(b"HTTP/1.1 100 Continue\r\n\r\n")
            await from_home(request)

        async with Upstream(careful).running() as url, running_edge(table(url)) as edge:
            reader, writer = await edge.connect()
            whole = post(b"hello", "/v1/completions", "Expect: 100-continue")
            writer.write(whole[:-5])
            head, _ = await read_answer(reader)
            assert status_of(head) == 100
            writer.write(b"hello")
            head, body = await read_answer(reader)
            assert (status_of(head), body) == (200, b"home:hello")
            writer.close()

    run(main())
