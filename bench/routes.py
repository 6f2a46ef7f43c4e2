"""The route tables that the bench gives its edges."""

from __future__ import annotations

from policies.routes import MirrorRule, Pool, PoolName, RolloutName, RouteTable

LIVE = PoolName("live")
CANDIDATE = PoolName("candidate")
ROLLOUT = RolloutName("bench")


def pool(name: PoolName, port: int) -> Pool:
    """A pool of one endpoint on this machine."""
    return Pool(name=name, endpoints=(f"http://127.0.0.1:{port}",))


def shadow_table(live_port: int, *, percent: float) -> RouteTable:
    """One pool, and ``percent`` of the requests sampled."""
    mirrors = (MirrorRule(rollout=ROLLOUT, percent=percent),) if percent else ()
    return RouteTable(epoch=1, home=LIVE, pools=(pool(LIVE, live_port),), mirrors=mirrors, cause="bench")
