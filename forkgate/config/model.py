"""The configuration file as frozen values: each package's own section, composed.

A section's keys, units and defaults stand where it is used: ``proxy.edge.settings`` for ``limits``,
``timeouts``, ``capture``; ``engines.base`` for a pool's ``engine``; ``proxy.mirror.settings`` for a
rollout's ``shadow``; ``policies.rollout`` for its stages and steps; ``first_checks`` for its ``checks``. What
stands here is what only the whole file knows: which pools there are and who goes where.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from engines.base import EngineOptions
from forkgate.config.admin import AdminSection
from forkgate.config.evidence import EvidenceSection
from forkgate.config.first_checks import CheckSettings
from forkgate.config.hooks import HookSection
from forkgate.config.pool_watch import PoolWatchSettings, is_loopback
from forkgate.config.telemetry import Telemetry
from policies.rollout import InFlight, Observing, ShadowStage, StartBy, Step
from policies.routes import PoolName, PoolTLS, RolloutName, TenantName
from proxy.edge.settings import CaptureLimits, Limits, LinkTLS, ListenTLS, Timeouts
from proxy.mirror.settings import MirrorSettings

Port = Annotated[int, Meta(ge=0, le=65_535)]
PositiveInt = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class Listen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where clients connect. The supervisor owns this socket; a killed worker loses no backlog.

    Sockets that a service manager hands over (``LISTEN_FDS``) are taken instead of ``host`` and ``port``.
    """

    host: str = "127.0.0.1"
    port: Port = 8080
    """0 asks the system for a free one; ``forkgate status`` tells which."""
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    """Edge processes; one a core."""
    backlog: PositiveInt = 1024
    """Connections that the kernel holds until a worker accepts them."""
    tls: ListenTLS | None = None


class PoolSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Interchangeable endpoints of one environment, and how the judge speaks to them."""

    name: PoolName
    endpoints: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Base URLs, ``http://host:port`` or ``https://host:port``, no path."""
    tls: PoolTLS | None = None
    engine: EngineOptions = EngineOptions()
    """How the judge talks to the engine behind it; live traffic passes through untouched."""
    shadow_endpoints: tuple[str, ...] = ()
    """Where shadow arms run instead of ``endpoints``, so that they displace no live work."""
    environment_digest: str | None = None
    """``sha256:`` and 64 hex digits. A pair that anything else answered is set aside and counted."""
    environment_record: str | None = None
    """The record behind that digest, as ``forkgate environment capture`` wrote it; kept with the evidence."""
    artifact_record: str | None = None
    """Of the files that are served, as ``forkgate artifact record`` wrote it; kept with the evidence."""
    watch: PoolWatchSettings = PoolWatchSettings()
    """How it is watched while it is the pool that a rollout would go back to."""

    @property
    def beside_edges(self) -> bool:
        """Its engines stand beside their edges, each reached on its own machine alone, and
        ``shadow_endpoints`` are other names of the same engines: shadows displace live work there."""
        return (
            bool(self.shadow_endpoints)
            and all(is_loopback(url) for url in self.endpoints)
            and not any(is_loopback(url) for url in self.shadow_endpoints)
        )

    @property
    def live_for_judge(self) -> tuple[str, ...]:
        """Where the judge finds the engines that serve live work."""
        return self.watch.endpoints or (self.shadow_endpoints if self.beside_edges else self.endpoints)


class IdentitySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose request is this. An unknown tenant goes home."""

    tenant_header: str | None = None
    """Header that names the tenant; obeyed only from trusted peers, removed from all others."""
    trusted_peers: tuple[str, ...] = ()
    """Networks in CIDR form whose tenant header and x-request-id are believed."""


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Isolation, routing and budget key."""

    name: Annotated[TenantName, Meta(min_length=1)]
    api_key_sha256: tuple[str, ...] = ()
    """SHA-256 (64 hex digits) of each API key that names this tenant. The key itself never stands in a
    file."""


class RolloutSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One baseline→candidate migration."""

    name: Annotated[RolloutName, Meta(min_length=1)]
    baseline: PoolName
    """The old digest: what the candidate is compared with, and where its tenants go back to."""
    candidate: PoolName
    policy: Annotated[str, Meta(min_length=1)]
    """A shipped policy's name (``audit``), or a path to a policy file. Frozen and hashed at start."""
    global_seed: Annotated[str, Meta(min_length=1)]
    """Keys every derived seed: the same request gets the same seed on all arms, and no other request does."""
    start: StartBy = StartBy.COMMAND
    """`by_command`: it waits until `forkgate rollout start`. `on_load`: the first judge that reads it begins.
    An edit of a rollout that was read before starts nothing."""
    checks: CheckSettings = CheckSettings()
    shadow: MirrorSettings = MirrorSettings()
    shadow_stage: ShadowStage = ShadowStage()
    """When the shadow stage may be left for the first step."""
    steps: tuple[Step, ...] = ()
    """Canary steps, each wider than the one before. None: only copies are made, and nothing ever moves. Home
    moves only after a last step of 100 percent."""
    observe: Observing = Observing()
    """After the last step, before home moves."""
    max_tenants_home: Annotated[int, Meta(ge=0)] | None = None
    """More tenants sent home than this, by gates that a policy keeps by tenant, and the whole rollout rolls
    back; half of the step's tenants when absent."""
    flip_in_flight: InFlight = InFlight.FINISH
    """At a rollback, live requests under way on the candidate: `finish` lets them end there; `abort` breaks
    them off, and home answers those of whose answer no byte was sent."""


class JudgeSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where edges find their judge, and how long they do without."""

    address: str | None = None
    """``unix:PATH`` or ``HOST:PORT``; ``unix:STATE_DIR/link.sock`` when absent."""
    tls: LinkTLS | None = None
    """Mutual TLS; needed for ``HOST:PORT``."""
    grace_s: Seconds = 30.0
    """Without a judge this long, canary tenants go home."""
    return_s: Seconds = 5.0
    """The judge must be back this long before canary tenants leave home again."""
    acknowledge_s: Annotated[float, Meta(gt=0)] = 5.0
    """How long a flip waits for every edge's acknowledgement before the missing ones are named in the log."""
    latch_s: Annotated[float, Meta(gt=0)] = 1.0
    """How long a flip waits for its latch to be on disk; then it goes out all the same, marked not
    durable."""
    drain_s: Seconds = 5.0
    """After SIGTERM, how long running shadow pairs may take to finish."""
    sidecar: str | None = None
    """Stable name of this sidecar in ledgers and metrics; the host's name when absent."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sidecar: an edge in front of its pools, a judge behind it."""

    listen: Listen = Listen()
    state_dir: Annotated[str, Meta(min_length=1)]
    """Directory for the last route table, the rollback latch, evidence, ledgers and sockets."""
    pools: Annotated[tuple[PoolSection, ...], Meta(min_length=1)]
    home: PoolName
    """Every tenant's pool, and where traffic falls back to."""
    identity: IdentitySection = IdentitySection()
    tenants: tuple[Tenant, ...] = ()
    rollouts: tuple[RolloutSection, ...] = ()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()
    capture: CaptureLimits = CaptureLimits()
    judge: JudgeSection = JudgeSection()
    evidence: EvidenceSection = EvidenceSection()
    telemetry: Telemetry = Telemetry()
    admin: AdminSection = AdminSection()
    hooks: tuple[HookSection, ...] = ()

    def pool(self, name: str) -> PoolSection:
        """The pool of this name. Raises KeyError."""
        for pool in self.pools:
            if pool.name == name:
                return pool
        raise KeyError(name)

    def rollout(self, name: str) -> RolloutSection:
        """The rollout of this name. Raises KeyError."""
        for rollout in self.rollouts:
            if rollout.name == name:
                return rollout
        raise KeyError(name)
