"""Real sockets: requests go through, both ways streamed, and leave their records."""

from __future__ import annotations

import asyncio
import math
import re

from tests.support.edge import (
    Arrived,
    Upstream,
    answer,
    get,
    post,
    read_answer,
    run,
    running_edge,
    status_of,
    table,
)


async def echo(request: Arrived) -> None:
    await request.read_body()
    request.say(answer(request.body, "200 OK", "Content-Type: application/json", "Server: stub"))


def test_keep_alive_requests_go_through_one_upstream_connection_and_leave_records() -> None:
    async def main() -> None:
        upstream = Upstream(echo)
        async with upstream.running() as url, running_edge(table(url)) as edge:
            reader, writer = await edge.connect()
            for number in range(3):
                body = b'{"prompt": "%d"}' % number
                writer.write(
                    post(body, "/v1/completions?x=1", "Content-Type: application/json", "X-Custom: kept")
                )
                head, got = await read_answer(reader)
                assert status_of(head) == 200
                assert got == body
                assert b"Server: stub" in head
            writer.close()
            assert upstream.connections == 1
            first = upstream.arrived[0]
            assert first.lines[0] == b"POST /v1/completions?x=1 HTTP/1.1"
            assert first.header("x-custom") == b"kept"
            assert first.header("host") == b"edge"
            assert first.header("x-forwarded-for") == b"127.0.0.1"
            assert first.header("x-forwarded-proto") == b"http"
            assert first.header("x-forwarded-host") == b"edge"
            request_id = first.header("x-request-id")
            assert request_id is not None
            assert re.fullmatch(
                rb"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", request_id
            )
            records = await edge.port.records_reach(3)
            assert [record.status for record in records] == [200] * 3
            assert records[0].pool == "home"
            assert records[0].endpoint == url
            assert records[0].tenant == "-"
            assert 0 < records[0].first_byte_s <= records[0].total_s
            assert records[0].aborted_by == 0
            assert records[0].flags == 0
            assert records[0].request_bytes > len(b'{"prompt": "0"}')

    run(main())


def test_a_chunk_in_is_a_chunk_out_at_once_both_ways() -> None:
    async def main() -> None:
        async def interleave(request: Arrived) -> None:
            request.say(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
            )
            for _ in range(5):
                line = await request.reader.readuntil(b"\r\n")
                content = await request.reader.readexactly(int(line, 16) + 2)
                request.say(line + content)
            assert await request.reader.readexactly(5) == b"0\r\n\r\n"
            request.say(b"0\r\n\r\n")

        upstream = Upstream(interleave)
        async with upstream.running() as url, running_edge(table(url)) as edge:
            reader, writer = await edge.connect()
            writer.write(b"POST /stream HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"text/event-stream" in head
            for number in range(5):
                chunk = b"data: %d\n\n" % number
                framed = b"%x\r\n%b\r\n" % (len(chunk), chunk)
                # Each chunk is read back before the next is written: nothing in between holds it.
                writer.write(framed)
                assert await reader.readexactly(len(framed)) == framed
            writer.write(b"0\r\n\r\n")
            assert await reader.readexactly(5) == b"0\r\n\r\n"
            (record,) = await edge.port.records_reach(1)
            assert record.flags == 8
            writer.close()

    run(main())


def test_pipelined_requests_are_answered_in_order() -> None:
    async def main() -> None:
        async with Upstream(echo).running() as url, running_edge(table(url)) as edge:
            reader, writer = await edge.connect()
            bodies = [b"%d" % number * (number + 1) for number in range(50)]
            writer.write(b"".join(post(body) for body in bodies))
            for body in bodies:
                assert (await read_answer(reader))[1] == body
            writer.close()

    run(main())


def test_a_request_whose_pool_refuses_is_502_in_openai_shape_and_recorded() -> None:
    from tests.support.edge import closed_port, error_of

    async def main() -> None:
        async with running_edge(table(closed_port())) as edge:
            reader, writer = await edge.connect()
            writer.write(get("/v1/models"))
            head, body = await read_answer(reader)
            assert status_of(head) == 502
            assert error_of(body)["code"] == "connect_failed"
            (record,) = await edge.port.records_reach(1)
            assert record.status == 502
            assert record.aborted_by == 2
            assert math.isnan(record.first_byte_s)
            writer.close()

    run(main())


def test_a_slow_answer_holds_up_nobody_else() -> None:
    """Two clients at once do not wait for each other."""

    async def main() -> None:
        gate = asyncio.Event()

        async def slow_then_fast(request: Arrived) -> None:
            await request.read_body()
            if request.lines[0].startswith(b"POST /slow"):
                await gate.wait()
            request.say(answer(b"ok"))

        async with Upstream(slow_then_fast).running() as url, running_edge(table(url)) as edge:
            slow_reader, slow_writer = await edge.connect()
            slow_writer.write(post(b"x", "/slow"))
            reader, writer = await edge.connect()
            writer.write(post(b"x", "/fast"))
            assert (await read_answer(reader))[1] == b"ok"
            gate.set()
            assert (await read_answer(slow_reader))[1] == b"ok"
            writer.close()
            slow_writer.close()

    run(main())
