"""The client side: sends, checks every answer, keeps time.

Two kinds of load. *Closed*: each connection sends its next request when the last answer is in; the proxy is
kept as busy as it can be. *Open*: requests go out at instants drawn beforehand (Poisson, seeded, the same for
every proxy), whatever the answers do, and a latency runs from the instant the request was *meant* to go out,
so that a stall is charged to all who had to wait in it (no coordinated omission).

Every answer must have status 200 and exactly the bytes that the stub sent; anything else counts as failed,
and a case with a failed request has no result.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from typing import cast

import httptools
import msgspec
import numpy as np

from bench.machine import BenchError, cpu_s
from bench.payloads import ANSWER_BODIES, STREAM_REQUESTS, Requests, chat_requests, event
from bench.timer import Timer


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What one measured stretch of load saw."""

    seconds: float
    completed: int
    """Requests answered as they should be; in a stream window, events received."""
    cpu_s: float
    """User plus system seconds of the watched processes."""
    total: int = 0
    """Requests answered in all, before and after the measured stretch too."""
    latencies_s: list[float] = []
    late_s: list[float] = []
    """Open load: how late the generator itself was, by request. Contained in the latencies."""

    @property
    def cpu_us_each(self) -> float:
        return self.cpu_s / self.completed * 1e6

    @property
    def proxy_busy(self) -> float:
        """Share of its core that the proxy used."""
        return self.cpu_s / self.seconds

    @property
    def per_s(self) -> float:
        return self.completed / self.seconds


class _Client(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self, owner: _Owner) -> None:
        self._owner = owner
        self._slow: httptools.HttpResponseParser | None = None
        self._body = b""
        self.transport: asyncio.Transport | None = None
        self.due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._owner.lost(self)

    def data_received(self, data: bytes) -> None:
        if self._slow is None:
            expected = ANSWER_BODIES.get(len(data) - data.find(b"\r\n\r\n") - 4)
            if expected is not None and data.endswith(expected) and data.startswith(b"HTTP/1.1 200 "):
                self._owner.answered(self)
                return
            self._slow = httptools.HttpResponseParser(self)
            self._body = b""
        self._slow.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._slow is not None
        status = self._slow.get_status_code()
        body, self._slow, self._body = self._body, None, b""
        if status == 200 and body == ANSWER_BODIES.get(len(body)):
            self._owner.answered(self)
        else:
            self._owner.failed(self, f"status {status}, {body[:200]!r}")

    def send(self) -> None:
        """One request, whole, now. On a lost connection it goes nowhere; the loss was noted."""
        if self.transport is not None:
            self.transport.write(self._owner.requests.render())


class _Owner:
    """What both kinds of load share."""

    def __init__(self, requests: Requests) -> None:
        self.requests = requests
        self.clients: list[_Client] = []
        self.completed = 0
        self.trouble: str | None = None
        self._closing = False

    def answered(self, client: _Client) -> None:
        raise NotImplementedError

    def failed(self, client: _Client, what: str) -> None:
        self.trouble = self.trouble or what

    def lost(self, client: _Client) -> None:
        if not self._closing:
            self.failed(client, "the proxy closed a connection")

    async def connect(self, port: int, connections: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, client = await loop.create_connection(lambda: _Client(self), "127.0.0.1", port)
            self.clients.append(client)

    async def close(self) -> None:
        """Drop every connection, and wait until it is gone."""
        self._closing = True
        for client in self.clients:
            if client.transport is not None:
                client.transport.abort()
        while any(client.transport is not None for client in self.clients):
            await asyncio.sleep(0.005)

    def check(self, name: str) -> None:
        if self.trouble is not None:
            raise BenchError(f"{name}: an answer was not as it should be: {self.trouble}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection of ours inside a window."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Closed(_Owner):
    def __init__(self, requests: Requests) -> None:
        super().__init__(requests)
        self.stopping = False
        self.idle = 0
        self.done = asyncio.Event()

    def answered(self, client: _Client) -> None:
        self.completed += 1
        if not self.stopping:
            client.send()
            return
        self.idle += 1
        if self.idle == len(self.clients):
            self.done.set()

    def failed(self, client: _Client, what: str) -> None:
        super().failed(client, what)
        self.done.set()


async def closed(
    name: str,
    port: int,
    pids: Sequence[int],
    *,
    connections: int,
    warm_s: float,
    seconds: float,
    traced: bool = False,
) -> Window:
    """Closed load for ``warm_s + seconds``; only the second stretch is measured. ``traced``: see Requests."""
    owner = _Closed(chat_requests(traced=traced))
    await owner.connect(port, connections)
    with _quiet():
        for client in owner.clients:
            client.send()
        await asyncio.sleep(warm_s)
        before, cpu_before, start = owner.completed, cpu_s(pids), time.monotonic()
        await asyncio.sleep(seconds)
        done, spent, end = owner.completed - before, cpu_s(pids) - cpu_before, time.monotonic()
        owner.stopping = True
        with contextlib.suppress(TimeoutError):  # told below, by what is missing
            await asyncio.wait_for(owner.done.wait(), 10)
    await owner.close()
    owner.check(name)
    if done == 0 or not owner.done.is_set():
        raise BenchError(f"{name}: {done} requests answered in {seconds} s, and the last ones never")
    return Window(seconds=end - start, completed=done, cpu_s=spent, total=owner.completed)


class _Open(_Owner):
    """Sends at given instants over the first free connection; a request without one waits, on the clock."""

    def __init__(
        self, requests: Requests, offsets_s: Sequence[float], warm: int, pids: Sequence[int]
    ) -> None:
        super().__init__(requests)
        self._offsets_s = offsets_s
        self._warm = warm
        self._pids = pids
        self._next = 0
        self._start_s = 0.0
        self._free: list[_Client] = []
        self._waiting: collections.deque[float] = collections.deque()
        self._timer: Timer | None = None
        self.latencies_s: list[float] = []
        self.late_s: list[float] = []
        self.before = (0, 0.0, 0.0)
        """Completed, CPU seconds and time when the first measured request was due."""
        self.done = asyncio.Event()

    def start(self) -> None:
        self._free = list(self.clients)
        self._start_s = time.monotonic() + 0.05
        self._timer = Timer(self._tick)
        self._timer.at(self._start_s + self._offsets_s[0])

    def _tick(self) -> None:
        assert self._timer is not None
        while self._next < len(self._offsets_s):
            due = self._start_s + self._offsets_s[self._next]
            now = time.monotonic()
            if due > now:
                self._timer.at(due)
                return
            if self._next == self._warm:
                self.before = (self.completed, cpu_s(self._pids), now)
            if self._next >= self._warm:
                self.late_s.append(now - due)
            self._next += 1
            if self._free:
                client = self._free.pop()
                client.due_s = due
                client.send()
            else:
                self._waiting.append(due)

    def answered(self, client: _Client) -> None:
        if self._next > self._warm:
            self.latencies_s.append(time.monotonic() - client.due_s)
        self.completed += 1
        if self._waiting:
            client.due_s = self._waiting.popleft()
            client.send()
        else:
            self._free.append(client)
        if self.completed == len(self._offsets_s):
            self.done.set()

    def failed(self, client: _Client, what: str) -> None:
        super().failed(client, what)
        self.done.set()

    async def close(self) -> None:
        await super().close()
        if self._timer is not None:
            self._timer.close()


async def opened(
    name: str,
    port: int,
    pids: Sequence[int],
    *,
    rate_per_s: float,
    connections: int,
    warm_s: float,
    seconds: float,
    seed: int,
) -> Window:
    """Open load at ``rate_per_s``: ``warm_s`` unmeasured, then ``seconds`` measured, to the last answer."""
    warm, count = int(rate_per_s * warm_s), int(rate_per_s * seconds)
    offsets_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, size=warm + count))
    owner = _Open(chat_requests(), offsets_s.tolist(), warm, pids)
    await owner.connect(port, connections)
    try:
        with _quiet():
            owner.start()
            try:
                await asyncio.wait_for(owner.done.wait(), float(offsets_s[-1]) * 2 + 30)
            except TimeoutError:
                raise BenchError(
                    f"{name}: {owner.completed} of {warm + count} requests at {rate_per_s:.0f}/s answered"
                ) from None
            cpu_after, end = cpu_s(pids), time.monotonic()
    finally:
        await owner.close()
    owner.check(name)
    completed_before, cpu_before, start = owner.before
    return Window(
        seconds=end - start,
        completed=owner.completed - completed_before,
        cpu_s=cpu_after - cpu_before,
        total=owner.completed,
        latencies_s=owner.latencies_s,
        late_s=owner.late_s,
    )


class _Stream(asyncio.Protocol):
    """One event stream: every event must be the next one."""

    def __init__(self, owner: Streams) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._expected = event(0)
        self._number = 0
        self._rest = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(STREAM_REQUESTS.render())

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._owner.lost()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_headers_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._owner.failed(f"a stream was answered {self._parser.get_status_code()}")

    def on_body(self, body: bytes) -> None:
        if self._rest:
            body = self._rest + body
        while body.startswith(self._expected):
            body = body[len(self._expected) :]
            self._number += 1
            self._expected = event(self._number)
            self._owner.events += 1
        self._rest = body
        if body and not self._expected.startswith(body):
            self._owner.failed(f"event {self._number} of a stream is {body[:80]!r}")


class Streams:
    """Many event streams, open together."""

    def __init__(self) -> None:
        self.events = 0
        self.trouble: str | None = None
        self._streams: list[_Stream] = []
        self._closing = False

    def lost(self) -> None:
        if not self._closing:
            self.failed("the proxy closed a stream")

    def failed(self, what: str) -> None:
        self.trouble = self.trouble or what

    async def open(self, name: str, port: int, count: int) -> None:
        """Open ``count`` streams and wait for the first event of each."""
        loop = asyncio.get_running_loop()
        first = self.events + count
        for _ in range(count):
            _, stream = await loop.create_connection(lambda: _Stream(self), "127.0.0.1", port)
            self._streams.append(stream)
        deadline = time.monotonic() + 30
        while self.events < first and self.trouble is None:
            if time.monotonic() > deadline:
                raise BenchError(f"{name}: only {self.events} of {first} streams have begun after 30 s")
            await asyncio.sleep(0.02)
        self.check(name)

    def check(self, name: str) -> None:
        if self.trouble is not None:
            raise BenchError(f"{name}: {self.trouble}")

    async def watch(self, name: str, pids: Sequence[int], seconds: float) -> Window:
        """Count events, and what they cost, for ``seconds``."""
        with _quiet():
            before, cpu_before, start = self.events, cpu_s(pids), time.monotonic()
            await asyncio.sleep(seconds)
            done, spent, end = self.events - before, cpu_s(pids) - cpu_before, time.monotonic()
        self.check(name)
        if done == 0:
            raise BenchError(f"{name}: no event arrived in {seconds} s")
        return Window(seconds=end - start, completed=done, cpu_s=spent)

    async def close(self) -> None:
        """Drop them all, and wait until they are gone."""
        self._closing = True
        for stream in self._streams:
            if stream.transport is not None:
                stream.transport.abort()
        while any(stream.transport is not None for stream in self._streams):
            await asyncio.sleep(0.005)
