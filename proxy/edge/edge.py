"""What all connections of a worker share, and the wall between live traffic and the shadow side.

The edge never lets an exception of the ``ShadowPort`` through: it is counted, logged once a kind, and
forgotten.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable
from time import monotonic, time
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from policies.routes import UNKNOWN_TENANT
from proxy.edge.answers import AnswerReader
from proxy.edge.asks import AskReader, Via
from proxy.edge.errors import SettingsError
from proxy.edge.exchange import Exchange
from proxy.edge.heads import fields_of
from proxy.edge.ids import RequestIds
from proxy.edge.ports import CaptureHead, ShadowPort
from proxy.edge.routing import Router
from proxy.edge.sampling import SAMPLED_PATHS, Capture, captured_headers
from proxy.edge.settings import EdgeSettings, Identity
from proxy.ledger import DropReason
from proxy.live import FLAG_DRAWABLE, FLAG_SAMPLED

if TYPE_CHECKING:
    from proxy.edge.client import ClientConnection
    from proxy.edge.pool import Endpoint
    from proxy.edge.ports import Transport

log = logging.getLogger(__name__)


_POOLED_IDLE_S: Final = 60.0
"""Idle longer than this, a pool's connection is closed: something between may have forgotten it by then."""
_REFUGE_TOLD_S: Final = 60.0


class Dial(Protocol):
    """A connection being opened."""

    def cancel(self) -> object: ...


class Dialer(Protocol):
    """Opens connections: the one thing that a core without sockets must ask for."""

    def dial(self, endpoint: Endpoint, exchange: Exchange) -> Dial:
        """End, later and not within this call, in ``exchange.connected`` or ``exchange.not_connected``."""
        ...


class Counts(msgspec.Struct):
    """Totals since the start of the worker."""

    connections: int = 0
    requests: int = 0
    refused: int = 0
    connect_failures: int = 0
    upstream_failures: int = 0
    stale_retries: int = 0
    retried_home: int = 0
    refuges: int = 0
    """Answered by the pool that their tenant was sent home from, since nobody at home did."""
    timeouts: int = 0
    shadow_errors: int = 0
    bugs: int = 0


class Peers:
    """Who is on the other side, and is it believed."""

    def __init__(self, identity: Identity) -> None:
        self._networks = []
        for number, network in enumerate(identity.trusted_peers):
            try:
                self._networks.append(ipaddress.ip_network(network))
            except ValueError as error:
                raise SettingsError(
                    f"identity.trusted_peers[{number}]: {error}; write it as 10.0.0.0/8"
                ) from error

    def via(self, transport: Transport) -> Via:
        """Address and scheme for X-Forwarded-*, and trust: by network, or by a certificate that TLS
        verified."""
        peer = transport.get_extra_info("peername")
        host = peer[0] if isinstance(peer, tuple) and peer else "unknown"
        if host.startswith("::ffff:") and "." in host:
            host = host[7:]
        trusted = bool(transport.get_extra_info("peercert"))
        if not trusted and self._networks and host != "unknown":
            address = ipaddress.ip_address(host.partition("%")[0])
            trusted = any(address in network for network in self._networks)
        scheme = b"https" if transport.get_extra_info("sslcontext") is not None else b"http"
        return Via(host.encode("ascii"), scheme, trusted)


class Edge:
    """One worker's shared state. Owns no socket and no clock of its own but the monotonic one."""

    def __init__(self, settings: EdgeSettings, router: Router, port: ShadowPort, dialer: Dialer) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.timeouts = settings.timeouts
        self.stream_idle_s = settings.timeouts.stream_idle_s
        self.router = router
        self.port = port
        self.dialer = dialer
        self.ids = RequestIds()
        self.asks = AskReader(settings.limits, settings.identity)
        self.answers = AnswerReader(settings.limits.headers)
        self.peers = Peers(settings.identity)
        self.counts = Counts()
        self.draining = False
        self._refuge_told = float("-inf")
        self.on_empty: Callable[[], None] = lambda: None
        """Called when the last connection of a draining worker is gone."""
        self.now = monotonic()
        """The clock as of the last sweep: good enough for deadlines that every piece of a stream puts off."""
        self.connections: set[ClientConnection] = set()
        self.tunnels: set[ClientConnection] = set()
        router.on_swap = self._swapped

    # -- connections ---------------------------------------------------------------------------

    def admit(self, client: ClientConnection) -> bool:
        """Note a new connection; False when there are too many."""
        self.counts.connections += 1
        self.connections.add(client)
        return len(self.connections) <= self.settings.limits.connections

    def forget(self, client: ClientConnection) -> None:
        self.connections.discard(client)
        self.tunnels.discard(client)
        if self.draining and not self.connections:
            self.on_empty()

    def sweep(self, now: float) -> None:
        """Let what is due time out; called at a coarse interval instead of one timer a request."""
        self.now = now
        self.router.tick(now)
        for pool in self.router.pools():
            pool.prune(now - _POOLED_IDLE_S)
        for client in [client for client in self.connections if client.deadline < now]:
            self.counts.timeouts += 1
            client.timed_out()

    def drain(self) -> None:
        """Finish what runs, take nothing new."""
        self.draining = True
        for client in list(self.connections):
            client.drain()
        for pool in self.router.pools():
            pool.retire()

    def _swapped(self) -> None:
        """A new table: tunnels to a pool that is no longer their tenant's get a last grace."""
        now = monotonic()
        for client in list(self.tunnels):
            exchange = client.exchange
            if exchange is not None and self.router.route(exchange.tenant, now) is not exchange.pool:
                self.tunnels.discard(client)
                client.deadline = now + self.settings.timeouts.tunnel_grace_s
        table = self.router.table
        if table.aborts:
            # By the table, not by where the router sends it now: a judge that is away breaks nothing off.
            for client in list(self.connections):
                exchange = client.exchange
                if (
                    exchange is not None
                    and exchange.pool.name in table.aborts
                    and table.routes.get(exchange.tenant, table.home) != exchange.pool.name
                    and (not exchange.sheltered or exchange.tenant in table.routes)
                ):
                    exchange.sent_elsewhere()

    def took_refuge(self, exchange: Exchange, pool: str, now: float) -> None:
        """A rollback led into a pool that does not answer. Told at the first request, and then once in a
        while."""
        self.counts.refuges += 1
        if now >= self._refuge_told:
            self._refuge_told = now + _REFUGE_TOLD_S
            log.error(
                "nobody in the home pool answers, tenants stay where they were sent home from",
                extra={
                    "home": self.router.home.name,
                    "tenant": exchange.tenant,
                    "pool": pool,
                    "requests": self.counts.refuges,
                },
            )

    def bug(self, client: ClientConnection) -> None:
        """An exception that should not be: give up this one connection, keep the worker."""
        self.counts.bugs += 1
        log.exception("bug in the edge; one connection is broken off")
        try:
            client.cut()
        except Exception:
            log.exception("and could not even be broken off in order")
            client.abort()

    # -- the shadow side -----------------------------------------------------------------------

    def sample(self, exchange: Exchange) -> None:
        """Decide at the head whether, and for which rollouts, this request is copied."""
        ask = exchange.ask
        if ask.method != b"POST" or ask.target.partition(b"?")[0] not in SAMPLED_PATHS:
            return
        rollouts = []
        for rule in self.router.rules:
            if rule.asks(exchange.tenant):
                exchange.flags |= FLAG_DRAWABLE
                if rule.draws(exchange.request_id, exchange.tenant):
                    rollouts.append(rule.rollout)
        if rollouts:
            exchange.capture = Capture(self.port, rollouts, exchange.started_unix_s)

    def begin_capture(self, exchange: Exchange) -> None:
        capture = exchange.capture
        assert capture is not None
        try:
            capture.begin()
        except Exception:
            exchange.capture = None
            self.shadow_failed()

    def limit_capture(self, exchange: Exchange) -> None:
        """Called before a piece is forwarded: a body past the limit is kept no longer."""
        reader = exchange.ask_reader
        if reader is not None and reader.payload_bytes > self.limits.capture_body_bytes:
            reader.keep = None

    def offer_capture(self, exchange: Exchange) -> None:
        """The whole request is on its way to its pool: hand the copy over."""
        capture, exchange.capture = exchange.capture, None
        assert capture is not None
        reader = exchange.ask_reader
        ask = exchange.ask
        body: bytes | None = exchange.ask_body
        try:
            if reader is not None:
                body = b"".join(reader.keep) if reader.keep is not None else None
            if body is None or len(body) > self.limits.capture_body_bytes:
                capture.drop(DropReason.BODY_TOO_LARGE)
                return
            headers = captured_headers(fields_of(ask.lines))
            target = ask.target.decode("ascii")
            heads = [
                CaptureHead(
                    capture_id=self.ids.new(),
                    request_id=exchange.request_id.decode("ascii"),
                    tenant=exchange.tenant,
                    rollout=rollout,
                    target=target,
                    headers=headers,
                    live_pool=exchange.pool.name,
                    received_unix_s=capture.received_unix_s,
                )
                for rollout in capture.rollouts
            ]
            exchange.flags |= FLAG_SAMPLED
            capture.offer(heads, body)
        except Exception:
            self.shadow_failed()

    def drop_capture(self, exchange: Exchange, reason: DropReason) -> None:
        capture, exchange.capture = exchange.capture, None
        assert capture is not None
        try:
            capture.drop(reason)
        except Exception:
            self.shadow_failed()

    def record_refusal(self, started: float, status: int, response_bytes: int, aborted_by: int) -> None:
        """A request that was refused before anybody knew whose it is."""
        self.counts.requests += 1
        self.counts.refused += 1
        total_s = monotonic() - started if started else 0.0
        nan = float("nan")
        try:
            self.port.live(
                time() - total_s,
                UNKNOWN_TENANT,
                "",
                "",
                status,
                nan,
                total_s,
                0,
                response_bytes,
                aborted_by,
                0,
                "",
                nan,
            )
        except Exception:
            self.shadow_failed()

    def shadow_failed(self) -> None:
        """The port raised; called where that was caught."""
        self.counts.shadow_errors += 1
        if self.counts.shadow_errors & (self.counts.shadow_errors - 1) == 0:  # 1, 2, 4, 8...
            log.exception(
                "the shadow side raised; live traffic goes on", extra={"count": self.counts.shadow_errors}
            )

    def stats(self) -> dict[str, int]:
        """Totals, and what is open now."""
        values: dict[str, int] = msgspec.to_builtins(self.counts)
        values["open_connections"] = len(self.connections)
        values["open_tunnels"] = len(self.tunnels)
        values["epoch"] = self.router.table.epoch
        return values
