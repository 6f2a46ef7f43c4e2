"""All that an edge worker is told at its start. It reads no file, no environment and no YAML of its own.

The supervisor writes this as JSON to the worker's standard input.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from policies.routes import RouteTable, TenantName


class ListenTLS(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS on the client side of the edge."""

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    """When set, clients must present a certificate that chains to it; they are then trusted peers."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sizes and counts beyond which a request is refused or not kept."""

    head_bytes: int = 65_536
    """Request line and headers together; more is 431."""
    headers: int = 100
    """Header fields; more is 431."""
    body_bytes: int = 67_108_864
    """Request body; more is 413. Counted while streaming, never buffered."""
    connections: int = 10_000
    """Client connections a worker; further ones are answered 503 and closed."""
    retry_body_bytes: int = 1_048_576
    """Canary requests keep up to this much of their body, so that home can answer when the candidate fails.
    One with a larger body fails with it, unless nothing of it was sent yet. 0: only requests without a body
    are sent again."""
    capture_body_bytes: int = 1_048_576
    """Sampled requests with a larger body are dropped with reason ``body_too_large``."""
    buffer_bytes: int = 65_536
    """High-water mark each way a connection, past which the faster side is paused."""
    upstream_idle_connections: int = 64
    """Idle keep-alive connections kept an endpoint."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds."""

    header_s: float = 10.0
    """From a request's first byte to the end of its head; then 408."""
    keepalive_s: float = 75.0
    """Idle client connection between requests."""
    connect_s: float = 3.0
    first_byte_s: float = 600.0
    """Last request byte sent → first response byte; then 504. Long: a queue at an engine is no fault."""
    stream_idle_s: float = 300.0
    """Silence in the middle of a body, either way."""
    drain_s: float = 30.0
    """After SIGTERM, how long live requests may take to finish."""
    tunnel_grace_s: float = 10.0
    """After a flip, how long a WebSocket tunnel to a pool that is no longer its tenant's may live."""
    eject_s: float = 5.0
    """An endpoint that failed to connect, or left three requests in a row unanswered, is passed over this
    long (doubling to 60) while another is healthy."""


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose request is this."""

    tenant_header: str | None = None
    """Header that names the tenant; obeyed only from trusted peers, removed from all others."""
    trusted_peers: tuple[str, ...] = ()
    """Networks in CIDR form whose tenant header and x-request-id are believed."""
    tenants: tuple[TenantName, ...] = ()
    """Those that the tenant header may name, beside the owners of ``api_keys`` and the tenants of the route
    table. Any other name counts as unknown: it would become a key of budgets, records and metrics."""
    api_keys: dict[str, TenantName] = {}
    """SHA-256 (hex) of an API key (Authorization: Bearer, or x-api-key) to tenant."""


class CaptureLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The queue towards the judge. Full means drop, with a reason; never wait."""

    queue_items: int = 1_000
    queue_bytes: int = 16_777_216
    queue_age_s: float = 10.0
    batch_items: int = 128
    batch_bytes: int = 2_097_152
    flush_s: float = 0.1
    """Longest that a capture or live record waits for company."""
    live_records: Annotated[int, msgspec.Meta(ge=1, le=262_144)] = 32_768
    """Live records (58 bytes each) that wait for the judge; further ones are lost and counted."""


class LinkTLS(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mutual TLS towards a remote judge."""

    ca_file: str
    cert_file: str
    key_file: str
    server_name: str | None = None


class EdgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One worker's whole world."""

    sidecar: str
    worker: int
    incarnation: str
    """UUIDv7 of this process life, chosen by the supervisor."""
    listen_fds: tuple[int, ...]
    """Inherited listening sockets; the supervisor owns them."""
    listen_tls: ListenTLS | None = None
    ready_fd: int | None = None
    """A pipe; the worker writes ``ready\\n`` once it accepts."""
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    identity: Identity = Identity()
    capture: CaptureLimits = CaptureLimits()
    judge: str | None = None
    """gRPC target: ``unix:/run/forkgate/link.sock`` or ``host:port``. None: no judge, pass-through only."""
    link_tls: LinkTLS | None = None
    judge_grace_s: float = 30.0
    """Without a judge this long, canary tenants go home."""
    judge_return_s: float = 5.0
    """Hysteresis: the judge must be back this long before canaries leave home again."""
    ledger_file: str | None = None
    initial_table: RouteTable
