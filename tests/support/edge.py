"""An edge for tests, twice: without sockets (``Transcript``) and with real ones (``RunningEdge``)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import msgspec
import uvloop

from policies.routes import MirrorRule, Pool, RouteTable, TenantName
from proxy.edge.client import ClientConnection
from proxy.edge.edge import Edge
from proxy.edge.exchange import Exchange
from proxy.edge.pool import Endpoint
from proxy.edge.ports import CaptureHead
from proxy.edge.routing import Router
from proxy.edge.settings import EdgeSettings, Identity, Limits, Timeouts
from proxy.edge.upstream import UpstreamConnection
from proxy.edge.worker import Link, Worker
from proxy.ledger import DropReason
from tests.support.ports import free_port
from tests.support.waiting import LIMIT_S

TRUSTED = Identity(
    tenant_header="x-tenant",
    trusted_peers=("127.0.0.0/8",),
    tenants=(TenantName("acme"), TenantName("globex")),
)


def run(main: Coroutine[Any, Any, None], timeout_s: float = LIMIT_S) -> None:
    """Run one test's coroutine on uvloop; hanging is a failure."""

    async def bounded() -> None:
        async with asyncio.timeout(timeout_s):
            await main

    uvloop.run(bounded())


# -- the shadow side -------------------------------------------------------------------------------


@dataclass
class Live:
    started_unix_s: float
    tenant: str
    pool: str
    endpoint: str
    status: int
    first_byte_s: float
    total_s: float
    request_bytes: int
    response_bytes: int
    aborted_by: int
    flags: int
    environment: str = ""
    overhead_s: float = math.nan


class MemoryPort:
    """A ShadowPort that remembers, and the Link around it."""

    def __init__(self) -> None:
        self.begun = 0
        self.offered: list[tuple[int, CaptureHead, bytes]] = []
        self.dropped: list[tuple[int, DropReason]] = []
        self.records: list[Live] = []
        self.before: Callable[[str], None] = lambda call: None
        """Called first in every call, with its name; may raise, may look at the world."""
        self._news = asyncio.Event()

    async def start(self) -> None:
        return

    async def close(self, drain_s: float) -> None:
        return

    def begin(self) -> int:
        self.before("begin")
        self.begun += 1
        return self.begun

    def offer(self, sequence: int, head: CaptureHead, body: bytes) -> None:
        self.before("offer")
        self.offered.append((sequence, head, body))

    def drop(self, sequence: int, reason: DropReason) -> None:
        self.before("drop")
        self.dropped.append((sequence, reason))

    def live(self, *values: Any) -> None:
        self.before("live")
        self.records.append(Live(*values))
        self._news.set()

    async def records_reach(self, count: int) -> list[Live]:
        """Wait until this many live records came."""
        while len(self.records) < count:
            self._news.clear()
            await self._news.wait()
        return self.records


# -- settings --------------------------------------------------------------------------------------


def table(
    home: str | tuple[str, ...],
    candidate: str | tuple[str, ...] | None = None,
    *,
    epoch: int = 1,
    routes: dict[str, str] | None = None,
    percent: float = 0.0,
    tenants: tuple[str, ...] = (),
    to: str = "home",
    aborts: tuple[str, ...] = (),
    refuges: dict[str, str] | None = None,
) -> RouteTable:
    """Pools ``home`` and ``candidate`` at these base URLs, and one mirror rule ``rollout``; ``to`` is where
    tenants without a route go."""

    def urls(value: str | tuple[str, ...]) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else value

    pools = [Pool(name="home", endpoints=urls(home))]
    if candidate is not None:
        pools.append(Pool(name="candidate", endpoints=urls(candidate)))
    mirrors = (MirrorRule(rollout="rollout", percent=percent, tenants=tenants),) if percent else ()
    return RouteTable(
        epoch=epoch,
        home=to,
        pools=tuple(pools),
        routes=routes or {},
        mirrors=mirrors,
        aborts=aborts,
        refuges=refuges or {},
    )


def settings(initial: RouteTable, **changes: Any) -> EdgeSettings:
    values: dict[str, Any] = {
        "sidecar": "test",
        "worker": 0,
        "incarnation": "01900000-0000-7000-8000-000000000000",
        "listen_fds": (),
        "initial_table": initial,
    }
    return EdgeSettings(**(values | changes))


# -- without sockets -------------------------------------------------------------------------------


class FakeTransport:
    """Remembers what was done to it. ``events`` is the transcript."""

    def __init__(self, peer: str = "127.0.0.1") -> None:
        self.peer = peer
        self.sent = b""
        self.events: list[str] = []
        self.reading = True
        self.closing = False
        self.eof = False
        self.buffered = 0  # bytes that the other side has not read
        self.aborted = False
        self.protocol: Any = None

    def write(self, data: bytes) -> None:
        assert not self.eof, "write after write_eof"
        assert data, "an empty write is a wasted system call"
        if not self.closing:
            self.sent += data
            self.events.append("write")

    def take(self) -> bytes:
        data, self.sent = self.sent, b""
        return data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True
        self.events.append("eof")

    def close(self) -> None:
        if not self.closing:
            self.events.append("close")
        self.closing = True

    def abort(self) -> None:
        self.aborted = True
        if not self.closing:
            self.events.append("abort")
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 40000) if name == "peername" else None


@dataclass
class FakeDial:
    endpoint: Endpoint
    exchange: Exchange
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Transcript:
    """The core alone: say what arrives, look at what is sent."""

    settings: EdgeSettings
    port: MemoryPort = field(default_factory=MemoryPort)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.dials: list[FakeDial] = []
        self.router = Router(self.settings, monotonic)
        self.edge = Edge(self.settings, self.router, self.port, self)

    def dial(self, endpoint: Endpoint, exchange: Exchange) -> FakeDial:
        self.dials.append(FakeDial(endpoint, exchange))
        return self.dials[-1]

    def client(self, peer: str = "127.0.0.1") -> tuple[ClientConnection, FakeTransport]:
        protocol = ClientConnection(self.edge)
        transport = FakeTransport(peer)
        transport.protocol = protocol
        protocol.connection_made(transport)
        return protocol, transport

    def accept(self) -> tuple[UpstreamConnection, FakeTransport]:
        """The oldest dial that still waits succeeds."""
        waiting = next(dial for dial in self.dials if not dial.cancelled)
        self.dials.remove(waiting)
        protocol = UpstreamConnection(self.edge, waiting.endpoint)
        transport = FakeTransport()
        transport.protocol = protocol
        protocol.connection_made(transport)
        waiting.exchange.connected(protocol)
        return protocol, transport

    def refuse_connection(self, why: str = "refused") -> None:
        waiting = next(dial for dial in self.dials if not dial.cancelled)
        self.dials.remove(waiting)
        waiting.exchange.not_connected(why)

    def sweep(self, after_s: float) -> None:
        """Let the sweeper see the clock this much later."""
        self.edge.sweep(monotonic() + after_s)


# -- with sockets ----------------------------------------------------------------------------------


@dataclass
class RunningEdge:
    worker: Worker
    port: MemoryPort
    router: Router
    number: int

    @property
    def edge(self) -> Edge:
        return self.worker.edge

    async def connect(self, **how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.number, **how)


@contextlib.asynccontextmanager
async def running_edge(
    initial: RouteTable,
    *,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    identity: Identity = TRUSTED,
    port: MemoryPort | None = None,
    open_link: Callable[[EdgeSettings, Router], Link] | None = None,
    **changes: Any,
) -> AsyncIterator[RunningEdge]:
    """A worker in this process, with a real listener, until the block ends. What it copies goes to ``port``,
    unless ``open_link`` opens a link of another kind."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    number = listener.getsockname()[1]
    whole = settings(
        initial,
        limits=limits or Limits(),
        timeouts=timeouts or Timeouts(),
        identity=identity,
        listen_fds=(listener.detach(),),
        **changes,
    )
    shadow = port or MemoryPort()
    router = Router(whole, monotonic)
    worker = Worker(whole, router, shadow if open_link is None else open_link(whole, router))
    await worker.start()
    serving = asyncio.create_task(worker.run())
    try:
        yield RunningEdge(worker, shadow, router, number)
    finally:
        if not serving.done():
            for client in list(worker.edge.connections):
                client.abort()
            worker.stop()
        await serving


@dataclass
class Arrived:
    """One request as an upstream read it."""

    head: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    body: bytes = b""

    @property
    def lines(self) -> list[bytes]:
        return self.head.split(b"\r\n")

    def header(self, name: str) -> bytes | None:
        for line in self.lines[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == name.lower().encode():
                return value.strip()
        return None

    async def read_body(self) -> bytes:
        """The whole body, chunk framing and all when it is chunked."""
        length = self.header("content-length")
        if length is not None:
            self.body = await self.reader.readexactly(int(length))
        elif self.header("transfer-encoding") is not None:
            self.body = await read_chunked(self.reader)
        return self.body

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def gone(self) -> bytes:
        """Wait until the edge hangs up; returns what came before that."""
        try:
            return await self.reader.read()
        except ConnectionError:
            return b""


Handler = Callable[[Arrived], Awaitable[None]]


class Upstream:
    """A scripted pool of one endpoint: ``handler`` answers each request; returning keeps the connection."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.arrived: list[Arrived] = []
        self.connections = 0
        self.failures: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = Arrived(head[:-4], reader, writer)
                self.arrived.append(request)
                await self._handler(request)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.failures.append(error)
        finally:
            writer.close()

    @contextlib.asynccontextmanager
    async def running(self, **how: Any) -> AsyncIterator[str]:
        """Serve; yields the base URL."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0, **how)
        scheme = "https" if how.get("ssl") else "http"
        try:
            yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            assert not self.failures, self.failures


def closed_port() -> str:
    """A base URL that refuses connections."""
    return f"http://127.0.0.1:{free_port()}"


def answer(body: bytes = b"{}", status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer with Content-Length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def post(body: bytes, target: str = "/v1/completions", *headers: str) -> bytes:
    lines = [f"POST {target} HTTP/1.1", "Host: edge", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def get(target: str = "/", *headers: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: edge", *headers, "", ""]).encode()


async def read_chunked(reader: asyncio.StreamReader) -> bytes:
    """A chunked body as it came, trailers included."""
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        body += line
        size = int(line.partition(b";")[0], 16)
        if not size:
            break
        body += await reader.readexactly(size + 2)
    while line != b"\r\n":
        line = await reader.readuntil(b"\r\n")
        body += line
    return body


async def read_answer(reader: asyncio.StreamReader, *, head_only: bool = False) -> tuple[bytes, bytes]:
    """Head (without its empty line) and body of one answer, chunk framing kept."""
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    lower = head.lower()
    if head_only or lower.split(b" ")[1][:1] == b"1" or lower.split(b" ")[1] in (b"204", b"304"):
        return head, b""
    if b"\r\ncontent-length:" in lower:
        length = int(lower.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        return head, await reader.readexactly(length)
    if b"\r\ntransfer-encoding: chunked" in lower:
        return head, await read_chunked(reader)
    return head, await reader.read()


def status_of(head: bytes) -> int:
    return int(head.split(b" ")[1])


def error_of(body: bytes) -> dict[str, Any]:
    """The error object of an answer in OpenAI's shape; fails on any other shape."""
    value = msgspec.json.decode(body)
    assert set(value) == {"error"}
    assert set(value["error"]) == {"message", "type", "param", "code"}
    error: dict[str, Any] = value["error"]
    return error
