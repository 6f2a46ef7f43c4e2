"""The upstream of every case: answers at once, from bytes rendered before the clock started.

``python -m bench.stub --ports N`` prints one JSON line ``{"ports": [...]}`` and serves until its standard
input closes. Each port is its own upstream with its own counters (the shadow of a mirror goes to the second
one); ``GET /counts`` on any port tells them all.

A request is first compared with those that :mod:`bench.payloads` can send: its body must have arrived byte
for byte. Only what fails that (a body split over two reads, another path) goes through llhttp. A body
with the same values in other bytes is answered and counted as ``rewritten`` (vllm-router writes it anew),
anything else is ``mangled`` and 400, so that a proxy that spoils requests cannot look fast.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import sys
import time
from collections.abc import Callable
from typing import cast

import httptools
import orjson
import uvloop

from bench.payloads import ANSWERS, PATH, REQUEST_BODIES, STREAM_BODY, STREAM_HEAD, chunk
from bench.timer import Timer

_PATH = PATH.encode()
_POST = b"POST " + _PATH + b" "


class Pacer:
    """Gives every open stream one event a period, spread evenly: no two are due at the same instant.

    That is the hard case for a proxy: an engine that steps its whole batch at once wakes it less often.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._ring: collections.deque[Upstream] = collections.deque()
        self._timer: Timer | None = None
        self._due = 0.0

    def add(self, stream: Upstream) -> None:
        if self._timer is None:
            self._timer = Timer(self._tick)
        self._ring.append(stream)
        if len(self._ring) == 1:
            self._due = time.monotonic()
            self._tick()

    def discard(self, stream: Upstream) -> None:
        if stream in self._ring:
            self._ring.remove(stream)

    def _tick(self) -> None:
        assert self._timer is not None
        now = time.monotonic()
        while self._ring and self._due <= now:
            self._ring[0].next_event()
            self._ring.rotate(-1)
            self._due += self._period_s / len(self._ring)
        if self._ring:
            self._timer.at(self._due)


class Upstream(asyncio.Protocol):
    """One connection from the proxy."""

    def __init__(self, counts: dict[str, int], pacer: Pacer | None, report: Callable[[], bytes]) -> None:
        self._counts = counts
        self._pacer = pacer
        self._report = report
        self._transport: asyncio.Transport | None = None
        self._slow: httptools.HttpRequestParser | None = None
        self._url = b""
        self._body = b""
        self._events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pacer is not None:
            self._pacer.discard(self)

    def data_received(self, data: bytes) -> None:
        if self._slow is None:
            if data.startswith(_POST):
                length = len(data) - data.find(b"\r\n\r\n") - 4
                body = REQUEST_BODIES.get(length)
                if body is not None and data.endswith(body):
                    self._answer()
                    return
                if length == len(STREAM_BODY) and data.endswith(STREAM_BODY):
                    self._stream()
                    return
            self._slow = httptools.HttpRequestParser(self)
            self._body = b""
        self._slow.feed_data(data)

    # llhttp's callbacks: the slow road

    def on_url(self, url: bytes) -> None:
        self._url = url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._transport is not None
        self._slow, body, self._body = None, self._body, b""
        if self._url == b"/counts":
            self._send_json(b"200 OK", self._report())
        elif self._url in (b"/health", b"/v1/models"):  # vllm-router asks before it takes a worker
            self._send_json(b"200 OK", b'{"object":"list","data":[]}')
        elif self._url == _PATH and body == REQUEST_BODIES.get(len(body)):
            self._answer()
        elif self._url == _PATH and body == STREAM_BODY:
            self._stream()
        elif self._url == _PATH and _same_values(body):
            self._counts["rewritten"] += 1
            self._answer()
        else:
            self._counts["mangled"] += 1
            self._send_json(b"400 Bad Request", b'{"error":{"message":"not the request that was sent"}}')

    def _send_json(self, status: bytes, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _answer(self) -> None:
        assert self._transport is not None
        number = self._counts["answers"]
        self._counts["answers"] = number + 1
        self._transport.write(ANSWERS[number * 5 % len(ANSWERS)])

    def _stream(self) -> None:
        assert self._transport is not None
        self._counts["streams"] += 1
        self._transport.write(STREAM_HEAD + chunk(0))
        self._events = 1
        if self._pacer is not None:
            self._pacer.add(self)

    def next_event(self) -> None:
        """The pacer's call: one more event for this stream."""
        assert self._transport is not None
        self._transport.write(chunk(self._events))
        self._events += 1


_CALLS = [orjson.loads(body) for body in REQUEST_BODIES.values()]


def _same_values(body: bytes) -> bool:
    try:
        got = orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return isinstance(got, dict) and any(
        all(got.get(key) == value for key, value in call.items()) for call in _CALLS
    )


async def _serve(ports: int, period_s: float | None) -> None:
    loop = asyncio.get_running_loop()
    counts = [{"answers": 0, "streams": 0, "rewritten": 0, "mangled": 0} for _ in range(ports)]
    pacer = None if period_s is None else Pacer(period_s)

    def report() -> bytes:
        return orjson.dumps(counts)

    def factory(index: int) -> Callable[[], Upstream]:
        return lambda: Upstream(counts[index], pacer, report)

    servers = [await loop.create_server(factory(i), "127.0.0.1", 0, backlog=4096) for i in range(ports)]
    numbers = [server.sockets[0].getsockname()[1] for server in servers]
    sys.stdout.write(orjson.dumps({"ports": numbers}).decode() + "\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    gc.disable()  # nothing here makes cycles; a collection would land in somebody's p99
    closed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)  # only ever readable at end of file
    await closed.wait()


def main() -> None:
    """Command line of the stub."""
    parser = argparse.ArgumentParser(prog="python -m bench.stub", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ports", type=int, default=2)
    parser.add_argument(
        "--period-s", type=float, help="one event a stream this often; none: only the first one"
    )
    arguments = parser.parse_args()
    uvloop.run(_serve(arguments.ports, arguments.period_s))


if __name__ == "__main__":
    main()
