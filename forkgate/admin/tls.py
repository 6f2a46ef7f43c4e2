"""The admin API's TCP address: its socket, its TLS, its bounds."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import Any

from aiohttp import web

from forkgate.config.admin import AdminLimits, AdminListen, AdminTLS

log = logging.getLogger(__name__)

HANDSHAKE_S = 5.0
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
        self.turned_away = 0
        """Connections closed at once, because there were too many."""

    @property
    def address(self) -> str | None:
        """``https://host:port``; None before :meth:`start`."""
        if self._server is None:
            return None
        host, port = self._server.sockets[0].getsockname()[:2]
        scheme = "http" if self._listen.tls is None else "https"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    async def start(self) -> None:
        """Raises AdminError."""
        listen = self._listen
        tls = None if listen.tls is None else context(listen.tls)
        loop = asyncio.get_running_loop()
        handshake: dict[str, Any] = {} if tls is None else {"ssl_handshake_timeout": HANDSHAKE_S}
        try:
            self._server = await loop.create_server(
                self._protocol, listen.host, listen.port, ssl=tls, backlog=BACKLOG, **handshake
            )
        except (OSError, socket.gaierror) as error:
            raise AdminError(
                f"admin.listen: {listen.host} port {listen.port}: cannot be listened on: "
                f"{error.strerror or error}"
            ) from error

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    def _protocol(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._limits.connections:
            self.turned_away += 1
            return _TurnedAway()
        handler: asyncio.BaseProtocol = server()
        return handler


class _TurnedAway(asyncio.Protocol):
    """Closes what it is given."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
