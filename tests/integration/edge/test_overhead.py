"""What the edge itself adds is measured apart from its pool's time, and apart from its clients'."""

from __future__ import annotations

import asyncio
import math

from tests.support.edge import (
    Arrived,
    MemoryPort,
    Upstream,
    answer,
    post,
    read_answer,
    run,
    running_edge,
    table,
)

SLOW_S = 0.25


def test_neither_a_slow_pool_nor_a_slow_client_is_the_edges_overhead() -> None:
    async def slow(request: Arrived) -> None:
        await request.read_body()
        await asyncio.sleep(SLOW_S)
        request.say(answer(request.body))

    async def main() -> None:
        port = MemoryPort()
        async with Upstream(slow).running() as url, running_edge(table(url), port=port) as edge:
            reader, writer = await edge.connect()
            for number in (1, 2):  # the first dials, the second finds its connection
                head = post(b"{}", "/v1/completions")
                writer.write(head[:20])
                await asyncio.sleep(SLOW_S)
                writer.write(head[20:])
                await read_answer(reader)
                record = (await port.records_reach(number))[-1]
                assert record.total_s >= 2 * SLOW_S
                # Of the time that neither of them slept; with a sleep in it, it would be more.
                assert 0 < record.overhead_s <= record.total_s - 2 * SLOW_S
            writer.close()

    run(main())


def test_without_a_first_byte_there_is_no_overhead() -> None:
    reached = asyncio.Event()

    async def hangs(request: Arrived) -> None:
        await request.read_body()
        reached.set()
        await asyncio.Event().wait()

    async def main() -> None:
        port = MemoryPort()
        async with Upstream(hangs).running() as url, running_edge(table(url), port=port) as edge:
            _, writer = await edge.connect()
            writer.write(post(b"{}", "/v1/completions"))
            await reached.wait()
            writer.close()
            (record,) = await port.records_reach(1)
            assert math.isnan(record.overhead_s)

    run(main())
