"""The bench's own instruments: the load notices every answer that is not as it should be, and keeps time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop

from bench import load, machine, payloads, peers
from bench.machine import BenchError, Cores

CORES = Cores(proxy=min(os.sched_getaffinity(0)), load=max(os.sched_getaffinity(0)))

ANSWER = payloads.ANSWERS[0]

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def _server(handler: Handler) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):  # the load aborts its connections
                await handler(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def _closed(port: int) -> load.Window:
    return await load.closed("it", port, [os.getpid()], connections=4, warm_s=0.0, seconds=1.0)


def test_stub_answers_both_kinds_of_load_and_counts_them() -> None:
    async def play() -> tuple[load.Window, load.Window, list[dict[str, int]]]:
        with peers.stub(CORES) as stub:
            closed = await _closed(stub.port)
            opened = await load.opened(
                "it", stub.port, [stub.pid], rate_per_s=200, connections=8, warm_s=0.2, seconds=0.5, seed=1
            )
            return closed, opened, stub.counts()

    closed, opened, counts = uvloop.run(play())
    assert opened.total == 140
    assert len(opened.latencies_s) == 100
    assert counts[0]["answers"] == closed.total + opened.total
    assert counts[0]["mangled"] == counts[0]["rewritten"] == 0
    assert opened.cpu_s > 0


def test_streams_are_paced_and_checked_event_by_event() -> None:
    async def play() -> load.Window:
        with peers.stub(CORES, period_s=0.02) as stub:
            streams = load.Streams()
            await streams.open("it", stub.port, 10)
            window = await streams.watch("it", [stub.pid], 1.0)
            await streams.close()
            return window

    window = uvloop.run(play())
    # 500 on an idle machine, few on a busy one; one that does not pace sends tens of thousands.
    assert 0 < window.completed < 5_000


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER.replace(b"200 OK", b"503 No"),
        ANSWER.replace(b"precision", b"precisioN", 1),
        ANSWER.replace(b"content-length: 768", b"content-length: 767")[:-1],
    ],
    ids=["status", "one byte", "a byte short"],
)
def test_load_has_no_result_when_an_answer_is_wrong(answer: bytes) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            writer.write(answer)

    async def play() -> None:
        async with _server(handler) as port:
            with pytest.raises(BenchError, match="an answer was not as it should be"):
                await _closed(port)

    asyncio.run(play())


def test_load_has_no_result_when_a_connection_is_closed() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)

    async def play() -> None:
        async with _server(handler) as port:
            with pytest.raises(BenchError, match="closed a connection"):
                await _closed(port)

    asyncio.run(play())


def test_a_stall_is_charged_to_every_request_that_was_due_in_it() -> None:
    """200 requests a second for a second; the server sleeps through half of it."""
    stall_s = 0.5
    stalled: list[float] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not stalled:
                stalled.append(time.monotonic())
            wait_s = stalled[0] + stall_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            for _ in range(data.count(b"\r\n\r\n")):
                writer.write(ANSWER)

    async def play() -> load.Window:
        async with _server(handler) as port:
            return await load.opened(
                "it", port, [os.getpid()], rate_per_s=200, connections=2, warm_s=0.0, seconds=1.0, seed=3
            )

    window = asyncio.run(play())
    waited = sum(latency > stall_s / 2 for latency in window.latencies_s)
    assert waited > 30  # two connections alone would have shown two


def test_stub_tells_a_rewritten_request_from_a_mangled_one() -> None:
    def call(body: bytes) -> bytes:
        return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
            payloads.PATH.encode(),
            len(body),
            body,
        )

    async def status(port: int, body: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(call(body))
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return line.split()[1]

    async def play() -> tuple[list[bytes], list[dict[str, int]]]:
        with peers.stub(CORES) as stub:
            body = payloads.REQUEST_BODY
            statuses = [
                await status(stub.port, body),
                await status(stub.port, body.replace(b'":', b'": ')),
                await status(stub.port, body.replace(b'"seed":7', b'"seed":8')),
                await status(stub.port, body[:-1]),
            ]
            return statuses, stub.counts()

    statuses, counts = asyncio.run(play())
    assert statuses == [b"200", b"200", b"400", b"400"]
    assert counts[0] == {"answers": 2, "streams": 0, "rewritten": 1, "mangled": 2}


def test_cpu_of_another_process_agrees_with_what_it_says_itself() -> None:
    def read() -> tuple[float, float]:
        return machine.cpu_s([os.getpid()]), time.process_time()

    clock_before, own_before = read()
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    clock_after, own_after = read()
    assert clock_after - clock_before == pytest.approx(own_after - own_before, abs=0.02)


def test_pinning_reaches_the_child_and_leaves_us_as_we_were() -> None:
    before = os.sched_getaffinity(0)
    with peers.stub(CORES) as stub:
        assert os.sched_getaffinity(stub.pid) == {CORES.load}
    assert os.sched_getaffinity(0) == before
