"""From configuration and rollout states to the one route table that edges obey."""

from __future__ import annotations

from collections.abc import Iterable

from policies.errors import RouteError
from policies.rollout import InFlight, RolloutState
from policies.routes import MirrorRule, Pool, PoolName, RolloutName, RouteTable, TenantName


def route_table(
    *, epoch: int, home: PoolName, pools: Iterable[Pool], rollouts: Iterable[RolloutState], cause: str
) -> RouteTable:
    """The table of this moment.

    Args:
        epoch: of the new table; the caller keeps it rising.
        home: pool of every tenant without a route; once a promotion has moved it, the candidate. Whoever
            keeps that on disk knows.
        pools: every configured pool; those that nothing names are carried too, so that an edge knows them.
        rollouts: in the order of the configuration.
        cause: why the table is made, for the edges' logs.

    Raises:
        RouteError: two rollouts want one tenant's traffic, or a rollout names an unknown pool.
    """
    pools = tuple(pools)
    known = {pool.name for pool in pools}
    routes: dict[TenantName, PoolName] = {}
    owners: dict[TenantName, RolloutName] = {}
    mirrors: list[MirrorRule] = []
    aborts: list[PoolName] = []
    refuges: dict[TenantName, PoolName] = {}
    for state in rollouts:
        plan = state.plan
        for pool in (plan.baseline, plan.candidate):
            if pool not in known:
                raise RouteError(f"rollout {plan.name}: pool {pool!r} is not one of {sorted(known)}")
        for tenant in state.routed:
            if tenant in owners:
                raise RouteError(
                    f"tenant {tenant}: canary of both {owners[tenant]} and {plan.name}; name it in one"
                )
            owners[tenant] = plan.name
            routes[tenant] = plan.candidate
        # In every stage: the table that takes tenants away from the candidate is one without a route to it.
        if plan.flip_in_flight is InFlight.ABORT and plan.candidate not in (home, *aborts):
            aborts.append(plan.candidate)
        if plan.candidate != home:
            refuges |= dict.fromkeys(state.sheltered, plan.candidate)
        if state.mirrors and plan.percent > 0:
            mirrors.append(MirrorRule(rollout=plan.name, percent=plan.percent, tenants=plan.mirror_tenants))
    return RouteTable(
        epoch=epoch,
        home=home,
        pools=pools,
        routes=routes,
        mirrors=tuple(mirrors),
        aborts=tuple(aborts),
        # Who is another rollout's canary goes home from there, by the edge's own retry.
        refuges={tenant: pool for tenant, pool in refuges.items() if tenant not in routes},
        cause=cause,
    )
