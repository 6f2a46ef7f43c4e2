"""A client that goes away takes its generation with it, whatever state the exchange is in; an upstream that
goes away is never mistaken for one that finished."""

from __future__ import annotations

import asyncio

import pytest

from proxy.edge.settings import Timeouts
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


@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize(
    "state", ["mid body", "before first byte", "mid head", "mid stream", "mid fixed body"]
)
def test_client_disconnect_reaches_the_upstream(state: str, how: str) -> None:
    async def main() -> None:
        reached = asyncio.Event()
        gone = asyncio.Event()

        async def handler(request: Arrived) -> None:
            if state != "mid body":
                await request.read_body()
            if state == "mid head":
                request.say(b"HTTP/1.1 200 OK\r\nContent-")
            elif state == "mid stream":
                request.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            elif state == "mid fixed body":
                request.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
            reached.set()
            await request.gone()
            gone.set()

        async with Upstream(handler).running() as url, running_edge(table(url)) as edge:
            reader, writer = await edge.connect()
            whole = post(b"hello")
            writer.write(whole[:-2] if state == "mid body" else whole)
            await reached.wait()
            if state in ("mid stream", "mid fixed body"):
                await reader.readuntil(b"hello")
            if how == "reset":
                writer.transport.abort()
            else:
                writer.close()
            await gone.wait()
            (record,) = await edge.port.records_reach(1)
            assert record.aborted_by == 1
            assert record.status == (200 if state in ("mid stream", "mid fixed body") else 0)

    run(main())


def test_client_that_leaves_while_the_pool_is_being_connected_leaves_nothing_behind() -> None:
    async def main() -> None:
        # A listener whose backlog is full neither accepts nor refuses.
        import socket

        full = socket.socket()
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        url = f"http://127.0.0.1:{full.getsockname()[1]}"
        async with running_edge(table(url)) as edge:
            _, writer = await edge.connect()
            writer.write(get())
            while not edge.router.home.endpoints[0].in_flight:
                await asyncio.sleep(0)
            writer.close()
            (record,) = await edge.port.records_reach(1)
            assert record.aborted_by == 1
            assert edge.router.home.endpoints[0].in_flight == 0
        for held in (*fillers, full):
            held.close()

    run(main())


@pytest.mark.parametrize("framing", ["chunked", "length", "until close, to 1.0"])
def test_upstream_death_in_mid_answer_is_an_incomplete_message_for_the_client(framing: str) -> None:
    async def main() -> None:
        async def handler(request: Arrived) -> None:
            if framing == "length":
                request.say(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
            else:
                request.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
            await request.writer.drain()
            request.writer.transport.abort()
            raise ConnectionResetError

        async with Upstream(handler).running() as url, running_edge(table(url)) as edge:
            reader, writer = await edge.connect()
            if framing == "until close, to 1.0":
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                with pytest.raises(ConnectionResetError):
                    await reader.readuntil(b"never")
            else:
                writer.write(get())
                got = await reader.read()
                assert b"hello" in got
                assert not got.endswith(b"0\r\n\r\n")
            (record,) = await edge.port.records_reach(1)
            assert record.aborted_by == 2
            writer.close()

    run(main())


def test_stale_pooled_connection_is_invisible_to_the_client() -> None:
    async def main() -> None:
        async def one_answer_then_hang_up(request: Arrived) -> None:
            await request.read_body()
            request.say(answer(b"ok"))
            # Reads the next request, and closes without a byte: a server whose keep-alive time just ended.
            await request.reader.readuntil(b"\r\n\r\n")
            request.writer.transport.abort()
            raise ConnectionResetError

        upstream = Upstream(one_answer_then_hang_up)
        async with upstream.running() as url, running_edge(table(url)) as edge:
            reader, writer = await edge.connect()
            for _ in range(4):
                writer.write(post(b"hello"))
                assert (await read_answer(reader))[1] == b"ok"
            assert edge.edge.stats()["stale_retries"] == 3
            assert upstream.connections == 4
            writer.close()

    run(main())


def test_an_endpoint_that_accepts_and_resets_costs_its_pool_three_requests() -> None:
    async def main() -> None:
        async def answers(request: Arrived) -> None:
            request.say(answer(b"well"))

        async def resets(request: Arrived) -> None:
            request.writer.transport.abort()
            raise ConnectionResetError

        async with (
            Upstream(answers).running() as well_url,
            Upstream(resets).running() as ill_url,
            running_edge(table((well_url, ill_url)), timeouts=Timeouts(eject_s=60.0)) as edge,
        ):
            statuses = []
            for _ in range(40):
                reader, writer = await edge.connect()
                writer.write(get())
                statuses.append(status_of((await read_answer(reader))[0]))
                writer.close()
            assert (statuses.count(502), statuses.count(200)) == (3, 37)

    run(main())
