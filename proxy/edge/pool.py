"""Pools, their endpoints, and the connections that wait there for a next request."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from policies.routes import Pool, PoolTLS
from proxy.edge.errors import SettingsError
from proxy.edge.health import Health

if TYPE_CHECKING:
    from proxy.edge.upstream import UpstreamConnection


class Endpoint:
    """One address of a pool: its health, its load, its idle connections (last in, first out)."""

    __slots__ = (
        "_context",
        "health",
        "host",
        "idle",
        "in_flight",
        "most_idle",
        "port",
        "secure",
        "server_name",
        "tls",
        "url",
    )

    def __init__(self, url: str, tls: PoolTLS | None, eject_s: float, most_idle: int) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise SettingsError(f"endpoint {url!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            raise SettingsError(
                f"endpoint {url!r}: say http://host:port or https://host:port, without a path"
            )
        self.url = url
        self.host: str = parts.hostname
        self.secure = parts.scheme == "https"
        self.port: int = port or (443 if self.secure else 80)
        self.tls = tls
        self.server_name = (tls and tls.server_name) or self.host
        self.health = Health(eject_s)
        self.in_flight = 0
        self.idle: list[UpstreamConnection] = []
        self.most_idle = most_idle
        self._context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext | None:
        """The TLS side of its connections, made when first needed: a table with a bad certificate file must
        still be able to flip the other pools. Raises ``SettingsError``."""
        if self.secure and self._context is None:
            tls = self.tls or PoolTLS()
            try:
                context = ssl.create_default_context(cafile=tls.ca_file)
                if tls.client_cert_file is not None:
                    context.load_cert_chain(tls.client_cert_file, tls.client_key_file)
            except (OSError, ssl.SSLError) as error:
                raise SettingsError(
                    f"endpoint {self.url}: its TLS files ({tls.ca_file}, {tls.client_cert_file}) "
                    f"cannot be used: {error}"
                ) from error
            context.set_alpn_protocols(["http/1.1"])
            self._context = context
        return self._context

    def release(self, connection: UpstreamConnection) -> None:
        """Take back a connection that is between exchanges."""
        if len(self.idle) < self.most_idle:
            self.idle.append(connection)
        else:
            connection.close()

    def prune(self, before: float) -> None:
        """Close what has been idle since before then; the oldest lie at the bottom."""
        idle = self.idle
        while idle and idle[0].idle_since < before:
            idle.pop(0).close()

    def retire(self) -> None:
        """No more idle connections: the pool left the table, or the worker is draining."""
        self.most_idle = 0
        idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()


class LivePool:
    """A pool of the current table, with what the edge knows about it. Outlives tables that do not change
    it."""

    __slots__ = ("_probe_s", "_probed_until", "_turn", "endpoints", "name", "value")

    def __init__(self, pool: Pool, eject_s: float, most_idle: int, probe_s: float = 0.0) -> None:
        """
        Args:
            probe_s: how long an attempt to connect may take.
        """
        self.value = pool
        self.name: str = pool.name
        self.endpoints = [Endpoint(url, pool.tls, eject_s, most_idle) for url in pool.endpoints]
        self._turn = 0
        self._probe_s = max(eject_s, probe_s)
        self._probed_until = 0.0

    def takes(self, now: float) -> bool:
        """May a request that could go elsewhere come here? Asking takes a probe's place: ask once a request.

        With every endpoint ejected, nobody: each would wait for a connection that does not come. Once the
        time of one is over, a single request at a time finds out whether it answers, and the others go on
        elsewhere.
        """
        over = False
        for endpoint in self.endpoints:
            ejected_until = endpoint.health.ejected_until
            if not ejected_until:
                return True
            over = over or ejected_until <= now
        if not over or now < self._probed_until:
            return False
        self._probed_until = now + self._probe_s
        return True

    def healthy(self, now: float) -> bool:
        """Is there an endpoint that is not passed over?"""
        return any(endpoint.health.ejected_until <= now for endpoint in self.endpoints)

    def unanswered(self, endpoint: Endpoint, now: float) -> None:
        """``endpoint``, one of its own, failed before the head of an answer."""
        others = (other for other in self.endpoints if other is not endpoint)
        endpoint.health.unanswered(now, last=all(other.health.ejected_until > now for other in others))

    def choose(self, now: float, tried: tuple[Endpoint, ...] = ()) -> Endpoint | None:
        """The healthy endpoint with the fewest exchanges, in turn among equals; else any; None without one.

        ``tried`` are those that already failed this exchange: they are not chosen, and with them nor are
        unhealthy ones.
        """
        endpoints = self.endpoints
        count = len(endpoints)
        if count == 1 and not tried:
            return endpoints[0]
        best: Endpoint | None = None
        self._turn = turn = self._turn + 1
        for offset in range(count):
            endpoint = endpoints[(turn + offset) % count]
            if endpoint.health.ejected_until > now or endpoint in tried:
                continue
            if best is None or endpoint.in_flight < best.in_flight:
                best = endpoint
        if best is None and endpoints and not tried:
            return min(endpoints, key=lambda endpoint: endpoint.health.ejected_until)
        return best

    def prune(self, before: float) -> None:
        for endpoint in self.endpoints:
            endpoint.prune(before)

    def retire(self) -> None:
        for endpoint in self.endpoints:
            endpoint.retire()
