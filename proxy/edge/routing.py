"""Which pool answers whom: the route table in force, and what becomes of it without a judge.

Every request reads ``home``, ``routes`` and ``rules``, three attributes that are replaced together in one
callback of the event loop: no request sees half a table.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator

from policies.routes import UNKNOWN_TENANT, RouteTable, TenantName
from proxy.edge.asks import Ask
from proxy.edge.errors import SettingsError
from proxy.edge.pool import LivePool
from proxy.edge.sampling import CompiledRule
from proxy.edge.settings import EdgeSettings

log = logging.getLogger(__name__)


class Router:
    """Holds the table. It is the link's ``TableListener``."""

    def __init__(self, settings: EdgeSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._pools: dict[str, LivePool] = {}
        self._key_tenants = _key_tenants(settings)
        self._named: dict[bytes, TenantName] = {}
        self._answered: dict[TenantName, str] = {}
        """Tenants whom home has answered since they were sent there, with the refuge that they had."""
        self.on_swap: Callable[[], None] = lambda: None
        # Until the link says otherwise a judge that should be there is not.
        self._lost_at: float | None = clock() if settings.judge is not None else None
        self._back_at: float | None = None
        self.in_grace_home = False
        """The judge's grace is over: canaries go home, and nothing is copied."""
        self._apply(settings.initial_table)

    # -- TableListener -------------------------------------------------------------------------

    def __call__(self, table: RouteTable) -> None:
        """Swap ``table`` in, unless it is not newer than the one in force.

        Raises ``SettingsError`` for an endpoint that is no URL; the table in force then stays.
        """
        if table.epoch <= self.table.epoch:
            log.info(
                "route table ignored, it is not newer",
                extra={"epoch": table.epoch, "known": self.table.epoch},
            )
            return
        self._apply(table)
        log.info("route table in force", extra={"epoch": table.epoch, "cause": table.cause})

    def judge_lost(self) -> None:
        """The link to the judge broke, or never stood."""
        self._back_at = None
        if self._lost_at is None:
            self._lost_at = self._clock()

    def judge_back(self) -> None:
        """The link stands. After a grace that ran out, it must stand ``judge_return_s`` before it counts."""
        if self.in_grace_home:
            if self._back_at is None:
                self._back_at = self._clock()
        else:
            self._lost_at = None

    def tick(self, now: float) -> None:
        """Let the grace or its hysteresis run out; called every sweep."""
        if self.in_grace_home:
            if self._back_at is not None and now - self._back_at >= self._settings.judge_return_s:
                self.in_grace_home = False
                self._lost_at = self._back_at = None
                self._apply(self.table)
                log.warning(
                    "the judge is back, canaries follow the route table again",
                    extra={"epoch": self.table.epoch},
                )
        elif self._lost_at is not None and now - self._lost_at >= self._settings.judge_grace_s:
            self.in_grace_home = True
            self._apply(self.table)
            log.warning("no judge, canaries go home", extra={"waited_s": round(now - self._lost_at, 3)})

    # -- the hot path --------------------------------------------------------------------------

    def tenant_of(self, ask: Ask) -> TenantName:
        """Whose request it is: as a trusted peer's header says; without one, its API key; or unknown.

        A header's tenant that neither settings nor table speak of is unknown too: budgets and records go by
        tenant, and names that a client could invent would fill them.

        The key is hashed each time (half a microsecond): no memory of keys is a cache that cannot leak.
        """
        if ask.tenant is not None:
            return self._named.get(ask.tenant, UNKNOWN_TENANT)
        if ask.api_key is not None and self._key_tenants:
            return self._key_tenants.get(hashlib.sha256(ask.api_key).digest(), UNKNOWN_TENANT)
        return UNKNOWN_TENANT

    def refuge(self, tenant: TenantName, now: float) -> LivePool | None:
        """The pool that a tenant was sent home from, while nobody at home has answered it since, and where
        somebody may answer it."""
        pool = self.refuges.get(tenant)
        return pool if pool is not None and pool.healthy(now) else None

    def home_answered(self, tenant: TenantName) -> None:
        """It needs its refuge no more, whatever later tables say of this flip."""
        pool = self.refuges.pop(tenant, None)
        if pool is not None:
            self._answered[tenant] = pool.name

    def route(self, tenant: TenantName, now: float) -> LivePool:
        pool = self.routes.get(tenant)
        if pool is None:
            return self.home
        if self.in_grace_home and (self.home.healthy(now) or not pool.healthy(now)):
            return self.home  # no fail-back into a pool with no healthy endpoint
        return pool

    # ------------------------------------------------------------------------------------------

    def _apply(self, table: RouteTable) -> None:
        settings = self._settings
        pools: dict[str, LivePool] = {}
        for value in table.pools:
            kept = self._pools.get(value.name)
            if kept is None or kept.value != value:
                kept = LivePool(
                    value,
                    settings.timeouts.eject_s,
                    settings.limits.upstream_idle_connections,
                    settings.timeouts.connect_s,
                )
            pools[value.name] = kept
        # From here on nothing can fail: whoever routes next sees all of the new table.
        gone = [pool for pool in self._pools.values() if pools.get(pool.name) is not pool]
        self.table = table
        self._pools = pools
        self.home = pools[table.home]
        self.routes = {tenant: pools[name] for tenant, name in table.routes.items() if name != table.home}
        # A tenant that no table names any more may be sent home again later, and is to be sheltered then.
        self._answered = {
            tenant: name for tenant, name in self._answered.items() if table.refuges.get(tenant) == name
        }
        self.refuges = {
            tenant: pools[name]
            for tenant, name in table.refuges.items()
            if name != table.home and tenant not in self._answered
        }
        self._named = {name.encode(): name for name in self._tenants(table)}
        self.rules = (
            [] if self.in_grace_home else [CompiledRule(rule) for rule in table.mirrors if rule.percent > 0]
        )
        for pool in gone:
            pool.retire()
        self.on_swap()

    def _tenants(self, table: RouteTable) -> Iterator[TenantName]:
        """Every tenant that the settings or the table speak of."""
        identity = self._settings.identity
        yield from identity.tenants
        yield from identity.api_keys.values()
        yield from table.routes
        for rule in table.mirrors:
            yield from rule.tenants

    def pools(self) -> list[LivePool]:
        return list(self._pools.values())


def _key_tenants(settings: EdgeSettings) -> dict[bytes, TenantName]:
    """SHA-256 of an API key to tenant."""
    tenants = {}
    for digest, tenant in settings.identity.api_keys.items():
        try:
            raw = bytes.fromhex(digest)
        except ValueError:
            raw = b""
        if len(raw) != 32:
            raise SettingsError(f"identity.api_keys: {digest!r} is no SHA-256; write its 64 hex digits")
        tenants[raw] = tenant
    return tenants
