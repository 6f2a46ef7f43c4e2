"""Opens connections to endpoints: sockets, name resolution and TLS live here, not in the core."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

from proxy.edge.errors import SettingsError
from proxy.edge.upstream import UpstreamConnection

if TYPE_CHECKING:
    from proxy.edge.edge import Edge
    from proxy.edge.exchange import Exchange
    from proxy.edge.pool import Endpoint


class SocketDialer:
    """A task for each connection being opened. Only new connections pay for one; kept-alive ones do not."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self.edge: Edge

    def dial(self, endpoint: Endpoint, exchange: Exchange) -> asyncio.Task[None]:
        task = self._loop.create_task(self._open(endpoint, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, endpoint: Endpoint, exchange: Exchange) -> None:
        edge = self.edge
        made: list[UpstreamConnection] = []

        def protocol() -> Any:  # a protocol by its methods
            made.append(UpstreamConnection(edge, endpoint))
            return made[0]

        try:
            context = endpoint.context()
            await self._loop.create_connection(
                protocol,
                endpoint.host,
                endpoint.port,
                ssl=context,
                server_hostname=endpoint.server_name if context is not None else None,
                # The sweep decides when connecting took too long; this only bounds what it would miss.
                ssl_handshake_timeout=edge.timeouts.connect_s * 2 if context is not None else None,
            )
        except asyncio.CancelledError:
            # The connection may stand already, with nobody to use it.
            for unused in made:
                unused.abort()
            raise
        except (OSError, ssl.SSLError, SettingsError) as error:
            failure = f"cannot connect to {endpoint.url}: {error}"
        else:
            try:
                exchange.connected(made[0])
            except Exception:
                edge.bug(exchange.client)
            return
        try:
            exchange.not_connected(failure)
        except Exception:
            edge.bug(exchange.client)
