"""The route tables that the bench gives its edges."""

from __future__ import annotations

from bench.payloads import TENANT
from policies.routes import MirrorRule, Pool, PoolName, RolloutName, RouteTable, TenantName

LIVE = PoolName("live")
CANDIDATE = PoolName("candidate")
ROLLOUT = RolloutName("bench")


def _pool(name: PoolName, port: int) -> Pool:
    return Pool(name=name, endpoints=(f"http://127.0.0.1:{port}",))


def shadow_table(live_port: int, *, percent: float) -> RouteTable:
    """One pool, and ``percent`` of the requests sampled."""
    mirrors = (MirrorRule(rollout=ROLLOUT, percent=percent),) if percent else ()
    return RouteTable(epoch=1, home=LIVE, pools=(_pool(LIVE, live_port),), mirrors=mirrors, cause="bench")


def canary_table(live_port: int, candidate_port: int, *, epoch: int, canary: bool) -> RouteTable:
    """Two pools; the tenant at the candidate, or at home."""
    pools = (_pool(LIVE, live_port), _pool(CANDIDATE, candidate_port))
    routes = {TenantName(TENANT): CANDIDATE} if canary else {}
    return RouteTable(epoch=epoch, home=LIVE, pools=pools, routes=routes, cause="bench")
