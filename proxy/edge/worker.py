"""One edge worker: sockets, signals and the sweep around the core."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
from time import monotonic
from typing import Any, Final, Protocol

from proxy.edge.client import LAST_ASK_S, ClientConnection
from proxy.edge.dialer import SocketDialer
from proxy.edge.edge import Edge
from proxy.edge.errors import SettingsError
from proxy.edge.ports import CaptureHead, ShadowPort
from proxy.edge.routing import Router
from proxy.edge.settings import EdgeSettings, ListenTLS
from proxy.ledger import DropReason
from proxy.tls_door import TlsDoor

log = logging.getLogger(__name__)

_SWEEPS: Final = 10
"""Sweeps within the shortest timeout: a timeout is late by a tenth of the shortest one at most."""
_BACKLOG: Final = 4096
_TURNS: Final = 5
"""Of the loop, and some to spare: asyncio makes a connection two turns after it accepted it."""


class Link(ShadowPort, Protocol):
    """A shadow port with a life."""

    async def start(self) -> None: ...
    async def close(self, drain_s: float) -> None: ...


class NoJudge:
    """The shadow port of an edge without a judge: a pass-through proxy. Nothing is kept, nothing is lost."""

    def __init__(self) -> None:
        self._begun = 0

    async def start(self) -> None:
        return

    async def close(self, drain_s: float) -> None:
        return

    def begin(self) -> int:
        self._begun += 1
        return self._begun

    def offer(self, sequence: int, head: CaptureHead, body: bytes) -> None:
        return

    def drop(self, sequence: int, reason: DropReason) -> None:
        return

    def live(
        self,
        started_unix_s: float,
        tenant: str,
        pool: str,
        endpoint: str,
        status: int,
        first_byte_s: float,
        total_s: float,
        request_bytes: int,
        response_bytes: int,
        aborted_by: int,
        flags: int,
        environment: str,
        overhead_s: float,
    ) -> None:
        return


def listen_context(tls: ListenTLS) -> ssl.SSLContext:
    """TLS for the listener; with ``client_ca_file`` clients must show a certificate. Raises
    ``SettingsError``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(
            f"listen.tls: {tls.cert_file} with key {tls.key_file} cannot be used: {error}; "
            "give a PEM chain and its unencrypted key"
        ) from error
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"listen.tls: client_ca_file {tls.client_ca_file} cannot be used: {error}; "
                "give PEM certificates"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class Worker:
    """Accepts on the inherited sockets until ``stop``, then drains."""

    def __init__(self, settings: EdgeSettings, router: Router, link: Link) -> None:
        self._settings = settings
        self.link = link
        self._loop = asyncio.get_running_loop()
        dialer = SocketDialer(self._loop)
        self.edge = dialer.edge = Edge(settings, router, link, dialer)
        self._servers: list[asyncio.Server | TlsDoor] = []
        self._stopping = asyncio.Event()
        timeouts = settings.timeouts
        shortest = min(
            timeouts.header_s,
            timeouts.keepalive_s,
            timeouts.connect_s,
            timeouts.first_byte_s,
            timeouts.stream_idle_s,
            timeouts.tunnel_grace_s,
        )
        self._sweep_s = min(max(shortest / _SWEEPS, 0.01), 1.0)

    async def start(self) -> None:
        """Bring the link up and accept."""
        settings = self._settings
        context = listen_context(settings.listen_tls) if settings.listen_tls is not None else None
        await self.link.start()
        for fd in settings.listen_fds:
            listener = socket.socket(fileno=fd)
            listener.setblocking(False)
            if context is None:
                server = await self._loop.create_server(self._client, sock=listener, backlog=_BACKLOG)
                self._servers.append(server)
            else:
                listener.listen(_BACKLOG)
                door = TlsDoor(listener, context, self._client, handshake_s=settings.timeouts.header_s)
                door.open()
                self._servers.append(door)
        self._loop.call_later(self._sweep_s, self._sweep)

    def _client(self) -> Any:
        return ClientConnection(self.edge)  # a protocol by its methods

    def stop(self) -> None:
        """Begin to drain; harmless when said twice."""
        self._stopping.set()

    async def run(self) -> None:
        """Serve until ``stop``, then let live requests finish within ``drain_s`` and close the link."""
        await self._stopping.wait()
        edge = self.edge
        until = monotonic() + self._settings.timeouts.drain_s
        edge.drain()
        await self._let_in()
        empty = asyncio.Event()
        edge.on_empty = empty.set
        if edge.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.timeouts.drain_s):
                    await empty.wait()
        for client in list(edge.connections):
            client.cut()
        await asyncio.sleep(0)  # let the aborted connections end
        await self.link.close(max(until - monotonic(), 1.0))

    async def _let_in(self) -> None:
        """Accept nobody any more; who has been accepted becomes a connection, which may ask once."""
        doors = []
        for server in self._servers:
            if isinstance(server, TlsDoor):
                doors.append(server.drain(LAST_ASK_S))
            else:
                server.close()
        await asyncio.gather(*doors)
        for _ in range(_TURNS):
            await asyncio.sleep(0)

    def _sweep(self) -> None:
        try:
            self.edge.sweep(monotonic())
        finally:
            self._loop.call_later(self._sweep_s, self._sweep)


def open_link(settings: EdgeSettings, router: Router) -> Link:
    """The way to the judge, when there is one."""
    if settings.judge is None:
        return NoJudge()
    from proxy.link.client import EdgeLink  # a process without a judge needs no gRPC in it

    return EdgeLink(settings, router)


async def serve(settings: EdgeSettings) -> None:
    """A worker's whole life; returns after a clean drain."""
    router = Router(settings, monotonic)
    worker = Worker(settings, router, open_link(settings, router))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    await worker.start()
    if settings.ready_fd is not None:
        os.write(settings.ready_fd, b"ready\n")
        os.close(settings.ready_fd)
    await worker.run()
    log.info("drained", extra=worker.edge.stats())
