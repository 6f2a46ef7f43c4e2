"""The admin API's TCP address: its socket, its TLS, its bounds."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl

from aiohttp import web

from forkgate.config.admin import AdminLimits, AdminListen, AdminTLS
from proxy.tls_door import TlsDoor

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
HANDSHAKES = 256
"""Under way at once."""
BACKLOG = 64


class AdminError(Exception):
    """The API cannot be listened on."""


def context(tls: AdminTLS) -> ssl.SSLContext:
    """TLS 1.2 or newer; with ``client_ca_file`` clients must show a certificate. Raises AdminError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    try:
        made.load_cert_chain(tls.cert_file, tls.key_file)
        if tls.client_ca_file is not None:
            made.load_verify_locations(tls.client_ca_file)
            made.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise AdminError(
            f"admin.listen.tls: {tls.cert_file} with key {tls.key_file} cannot be used: {error}; "
            "give a PEM chain, its unencrypted key, and PEM authorities"
        ) from error
    return made


class TcpDoor:
    """Serves an application on one TCP address, a bounded number of connections at once."""

    def __init__(self, listen: AdminListen, limits: AdminLimits, runner: web.AppRunner) -> None:
        self._listen = listen
        self._limits = limits
        self._runner = runner
        self._server: asyncio.Server | None = None
        self._doors: list[TlsDoor] = []
        self.turned_away = 0
        """Connections closed at once, because there were too many."""

    @property
    def address(self) -> str | None:
        """``https://host:port``; None before :meth:`start`."""
        if self._server is not None:
            host, port = self._server.sockets[0].getsockname()[:2]
        elif self._doors:
            host, port = self._doors[0].address[:2]
        else:
            return None
        scheme = "http" if self._listen.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def start(self) -> None:
        """Raises AdminError."""
        listen = self._listen
        tls = None if listen.tls is None else context(listen.tls)
        loop = asyncio.get_running_loop()
        try:
            if tls is None:
                self._server = await loop.create_server(
                    self._protocol, listen.host, listen.port, backlog=BACKLOG
                )
            else:
                self._doors = [
                    TlsDoor(one, tls, self._protocol, handshake_s=HANDSHAKE_S, most=HANDSHAKES)
                    for one in await _listeners(listen.host, listen.port)
                ]
        except (OSError, socket.gaierror) as error:
            raise AdminError(
                f"admin.listen: {listen.host} port {listen.port}: cannot be listened on: "
                f"{error.strerror or error}"
            ) from error
        for door in self._doors:
            door.open()

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()
        for door in self._doors:
            door.close()

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._limits.connections:
            self.turned_away += 1
            return _TurnedAway()
        handler: asyncio.BaseProtocol = server()
        return handler


async def _listeners(host: str, port: int) -> list[socket.socket]:
    """One for each address of ``host``. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    made: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            one = socket.socket(family, kind, protocol)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind(address)
            one.listen(BACKLOG)
    except OSError:
        for one in made:
            one.close()
        raise
    return made


class _TurnedAway(asyncio.Protocol):
    """Closes what it is given."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
