"""A configuration as the values that edge workers live by: their settings and their first route table."""

from __future__ import annotations

import socket

import msgspec

from forkgate.config.model import Config
from forkgate.state.home import home_moved
from forkgate.state.latch import Latch
from forkgate.state.paths import StatePaths
from policies.rollout import steps_of
from policies.routes import MirrorRule, Pool, PoolName, RouteTable, TenantName
from proxy.edge.settings import EdgeSettings, Identity


def sidecar_name(config: Config) -> str:
    """Stable name of this sidecar in ledgers and metrics."""
    return config.judge.sidecar or socket.gethostname()


def link_address(config: Config) -> str:
    """gRPC target where edges find their judge."""
    return config.judge.address or f"unix:{StatePaths(config.state_dir).link_socket}"


def pools(config: Config) -> tuple[Pool, ...]:
    """Every pool, as route tables carry them."""
    return tuple(
        Pool(name=pool.name, endpoints=tuple(url.rstrip("/") for url in pool.endpoints), tls=pool.tls)
        for pool in config.pools
    )


def canary_routes(config: Config, stopped: frozenset[str]) -> dict[TenantName, PoolName]:
    """Tenant → candidate for every tenant whom some step of a rollout that is not stopped moves."""
    configured = [tenant.name for tenant in config.tenants]
    return {
        tenant: rollout.candidate
        for rollout in config.rollouts
        if rollout.name not in stopped
        for step in steps_of(rollout.steps, rollout=rollout.name, configured=configured)
        for tenant in step.tenants
    }


def mirror_rules(config: Config, stopped: frozenset[str]) -> tuple[MirrorRule, ...]:
    """What edges copy for every rollout that is not stopped."""
    return tuple(
        MirrorRule(rollout=rollout.name, percent=rollout.shadow.percent)
        for rollout in config.rollouts
        if rollout.name not in stopped and rollout.shadow.percent > 0
    )


def first_home(config: Config, last: RouteTable | None, latch: Latch) -> PoolName:
    """Where home is, as far as the latch's file or the last table tell.

    Edges on a machine of their own have no latch, and go by the last table: home is where it says if a
    rollout of the configuration may have moved it there, and none is known to stand rolled back.

    Raises:
        HomeUnclear: the latch's file says that home moved, and no rollout of the configuration did that.
    """
    candidates = {rollout.name: rollout.candidate for rollout in config.rollouts}
    moved = home_moved(latch, config.home, candidates)
    if moved is not None:
        return PoolName(moved.pool)
    if latch != Latch() or last is None:
        return config.home  # whoever keeps a latch here would have written it down
    may = {pool for name, pool in candidates.items() if name not in last.rolled_back}
    return last.home if last.home in may else config.home


def first_table(config: Config, last: RouteTable | None, latch: Latch) -> RouteTable:
    """What edges route by until a judge speaks.

    The last table of the life before, as far as today's configuration and latch still allow it: a canary
    tenant stays where it was across a restart, but nobody becomes a canary without a judge. Anything
    changed raises the epoch, so that no edge takes this table for the other.

    Raises:
        HomeUnclear: see :func:`first_home`.
    """
    floor = max(latch.epoch, last.epoch if last is not None else 0)
    stopped = frozenset(latch.latched)
    home = first_home(config, last, latch)
    if last is None:
        return RouteTable(epoch=floor + 1, home=home, pools=pools(config), cause="first start, no judge yet")
    allowed = canary_routes(config, stopped)
    sent_home = {
        (tenant, rollout.candidate)
        for rollout in config.rollouts
        for tenant in latch.tenants.get(rollout.name, {})
    }
    rules = set(mirror_rules(config, stopped))
    there = {pool.name for pool in config.pools}
    kept = msgspec.structs.replace(
        last,
        home=home,
        pools=pools(config),
        routes={
            tenant: pool
            for tenant, pool in last.routes.items()
            if allowed.get(tenant) == pool and (tenant, pool) not in sent_home
        },
        mirrors=tuple(rule for rule in last.mirrors if rule in rules),
        # A pool that was taken out of the file after a rollback is nobody's refuge any more.
        aborts=tuple(pool for pool in last.aborts if pool in there),
        refuges={tenant: pool for tenant, pool in last.refuges.items() if pool in there and pool != home},
    )
    if kept == last and last.epoch == floor:
        return last
    return msgspec.structs.replace(
        kept, epoch=floor + 1, cause="restart under another configuration or latch"
    )


def edge_settings(
    config: Config,
    *,
    worker: int,
    incarnation: str,
    listen_fds: tuple[int, ...],
    ready_fd: int | None,
    table: RouteTable,
    with_judge: bool = True,
) -> EdgeSettings:
    """One worker's whole world."""
    return EdgeSettings(
        sidecar=sidecar_name(config),
        worker=worker,
        incarnation=incarnation,
        listen_fds=listen_fds,
        listen_tls=config.listen.tls,
        ready_fd=ready_fd,
        limits=config.limits,
        timeouts=config.timeouts,
        identity=Identity(
            tenant_header=config.identity.tenant_header.lower() if config.identity.tenant_header else None,
            trusted_peers=config.identity.trusted_peers,
            tenants=tuple(tenant.name for tenant in config.tenants),
            api_keys={key: tenant.name for tenant in config.tenants for key in tenant.api_key_sha256},
        ),
        capture=config.capture,
        judge=link_address(config) if with_judge else None,
        link_tls=config.judge.tls,
        judge_grace_s=config.judge.grace_s,
        judge_return_s=config.judge.return_s,
        ledger_file=str(StatePaths(config.state_dir).ledger(incarnation)),
        initial_table=table,
    )
