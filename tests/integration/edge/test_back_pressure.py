"""The faster side waits for the slower one, and what is in between stays small."""

from __future__ import annotations

import asyncio

from proxy.edge.settings import Limits
from tests.support.edge import Arrived, Upstream, answer, read_answer, run, running_edge, table

PIECE = b"x" * 65_536
PIECES = 600  # 39 MB: far more than every socket buffer on the way


async def flow_stops(progress: list[int]) -> int:
    """Wait until the count of pieces has not moved for many turns of the loop; return it."""
    still = 0
    last = -1
    while still < 30:
        still = still + 1 if progress[0] == last else 0
        last = progress[0]
        await asyncio.sleep(0.01)
    return last


def edge_buffers(edge: object) -> int:
    """Bytes that wait inside the edge's transports."""
    total = 0
    for client in edge.edge.connections:  # type: ignore[attr-defined]
        total += client.transport.get_write_buffer_size()
        if client.exchange is not None and client.exchange.upstream is not None:
            total += client.exchange.upstream.transport.get_write_buffer_size()
    return total


# One read may still arrive after the mark was passed; uvloop reads up to 256 KiB at once.
MOST = 65_536 + 262_144


def test_a_client_that_does_not_read_stops_its_pool_and_loses_nothing() -> None:
    async def main() -> None:
        progress = [0]

        async def handler(request: Arrived) -> None:
            request.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (PIECES * len(PIECE)))
            for number in range(PIECES):
                request.say(PIECE)
                await request.writer.drain()
                progress[0] = number + 1

        async with (
            Upstream(handler).running() as url,
            running_edge(table(url), limits=Limits(buffer_bytes=65_536)) as edge,
        ):
            reader, writer = await edge.connect(limit=65_536)
            writer.write(b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n")
            stopped = await flow_stops(progress)
            assert stopped < PIECES, "the pool was never held back"
            assert 0 < edge_buffers(edge) <= MOST
            _, body = await read_answer(reader)
            assert len(body) == PIECES * len(PIECE)
            writer.close()

    run(main())


def test_a_pool_that_does_not_read_stops_its_client_and_loses_nothing() -> None:
    async def main() -> None:
        progress = [0]
        may_read = asyncio.Event()

        async def handler(request: Arrived) -> None:
            await may_read.wait()
            body = await request.read_body()
            request.say(answer(b"%d" % len(body)))

        async with (
            Upstream(handler).running(limit=65_536) as url,
            running_edge(table(url), limits=Limits(buffer_bytes=65_536)) as edge,
        ):
            reader, writer = await edge.connect()

            async def push() -> None:
                writer.write(
                    b"POST / HTTP/1.1\r\nHost: e\r\nContent-Length: %d\r\n\r\n" % (PIECES * len(PIECE))
                )
                for number in range(PIECES):
                    writer.write(PIECE)
                    await writer.drain()
                    progress[0] = number + 1

            pushing = asyncio.create_task(push())
            stopped = await flow_stops(progress)
            assert stopped < PIECES, "the client was never held back"
            assert 0 < edge_buffers(edge) <= MOST
            may_read.set()
            await pushing
            assert (await read_answer(reader))[1] == b"%d" % (PIECES * len(PIECE))
            writer.close()

    run(main())
