"""Where live traffic goes: the values that a judge publishes and every edge obeys.

A :class:`RouteTable` is complete: an edge that holds one needs nothing else to route, to sample and to
fall back. It is swapped whole, never patched, and carries an epoch that only rises.

A judge and its edges may be of different versions. What a reader does not know it passes over, and what is as
it is by default is not written, so that most of what a newer judge says is plain to an older edge. Where an
edge that passed a field over would send traffic elsewhere, copy more or let finish what must not, a table
that *uses* the field asks for a later :attr:`~RouteTable.reader`: whoever is older refuses it whole, counts
the judge as away and lets its canaries go home. Two things follow for whoever adds a field: its default is
what edges did before, for ever, and :data:`READER` rises where it must be obeyed.

Values only. This is the one module of ``policies`` that ``proxy`` may import.
"""

from __future__ import annotations

from typing import NewType

import msgspec

PoolName = NewType("PoolName", str)
TenantName = NewType("TenantName", str)
RolloutName = NewType("RolloutName", str)

TENANT_MARK = "/"
"""Between a rollout and one of its tenants in :attr:`RouteTable.rolled_back`; no name holds it."""
READER = 1
"""The latest :attr:`RouteTable.reader` that is obeyed here."""
UNKNOWN_TENANT = TenantName("-")
"""A request whose tenant nobody vouched for. It always goes home."""


class PoolTLS(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """TLS towards a pool. Paths are files that the edge and the judge can read. It says whom to trust: here a
    reader passes nothing over."""

    ca_file: str | None = None
    """Trust anchors, PEM; the system's when absent."""
    server_name: str | None = None
    """Name sent as SNI and checked in the certificate; the endpoint's host when absent."""
    client_cert_file: str | None = None
    client_key_file: str | None = None


class Pool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Interchangeable endpoints of one environment."""

    name: PoolName
    endpoints: tuple[str, ...]
    """Base URLs, ``http://host:port`` or ``https://host:port``, no path."""
    tls: PoolTLS | None = None


class MirrorRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which live requests an edge copies to the judge for one rollout."""

    rollout: RolloutName
    percent: float
    """0-100. A request is drawn when ``blake2b(request_id, key=rollout) / 2**64 < percent / 100``."""
    tenants: tuple[TenantName, ...] = ()
    """Only these tenants; empty means every tenant."""


class RouteTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One complete, atomic state of live routing.

    Attributes:
        epoch: rises with every change; an edge never goes back to a smaller one.
        home: pool of every tenant without a route, and where traffic falls back to.
        pools: every pool that ``home`` and ``routes`` name.
        routes: tenant to pool, for canary tenants only.
        mirrors: what to copy.
        aborts: pools at which no request may finish once its tenant is routed elsewhere. One under way there
            is answered by home, if no byte of its answer was sent yet and its body was kept; else it is
            broken off. At other pools it finishes.
        refuges: tenants who were sent home, with the pool that they came from. It answers them for as long as
            home has no endpoint that does: a rollback into a pool that is down must not be an outage. An edge
            forgets a tenant's refuge once home has answered it.
        cause: why this table replaced the last one, in words for the log.
        rolled_back: rollouts that stand rolled back, and ROLLOUT/TENANT where a tenant alone was sent home,
            with the epoch that announced it. Edges do not read it; it lets the next judge know of a rollback
            whose latch the disk refused.
        reader: the first version of a reader that obeys all of this table: 1, and higher only where the table
            uses what an older one would pass over to somebody's harm.
    """

    epoch: int
    home: PoolName
    pools: tuple[Pool, ...]
    routes: dict[TenantName, PoolName] = {}
    mirrors: tuple[MirrorRule, ...] = ()
    aborts: tuple[PoolName, ...] = ()
    refuges: dict[TenantName, PoolName] = {}
    cause: str = ""
    rolled_back: dict[RolloutName, int] = {}
    reader: int = 1

    def __post_init__(self) -> None:
        if self.reader > READER:
            raise ValueError(
                f"route table {self.epoch}: it asks for a reader of version {self.reader}, and this one is "
                f"of version {READER}; upgrade forkgate here to that of the judge"
            )
        names = [pool.name for pool in self.pools]
        if len(set(names)) != len(names):
            raise ValueError(f"route table {self.epoch}: a pool name occurs twice in {names}")
        for named in (self.home, *self.routes.values(), *self.refuges.values()):
            if named not in names:
                raise ValueError(f"route table {self.epoch}: pool {named!r} is not one of {names}")
