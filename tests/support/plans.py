"""Plans of one rollout, and the places that tests of its rules begin in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from policies.policy import Policy
from policies.rollout import RolloutPlan, RolloutState, Stage, Step, Tick, start, step, steps_of
from policies.routes import Pool, PoolName, RolloutName, TenantName
from policies.tables import route_table

NAME = RolloutName("old-to-new")
OLD, NEW = PoolName("old"), PoolName("new")
POOLS = (
    Pool(name=OLD, endpoints=("http://127.0.0.1:1",)),
    Pool(name=NEW, endpoints=("http://127.0.0.1:2",)),
)
TENANTS = tuple(TenantName(name) for name in ("acme", "globex", "initech", "umbrella"))


def plan_of(
    policy: Policy,
    steps: Sequence[Step] = (),
    /,
    *,
    configured: Sequence[TenantName] = TENANTS,
    **changes: Any,
) -> RolloutPlan:
    """From ``old`` to ``new``; a tenth of all requests is copied."""
    fields: dict[str, Any] = {
        "name": NAME,
        "baseline": OLD,
        "candidate": NEW,
        "policy": policy,
        "percent": 10.0,
        "steps": steps_of(steps, rollout=NAME, configured=configured),
    }
    return RolloutPlan(**{**fields, **changes})


def begun(plan: RolloutPlan) -> RolloutState:
    """A second after it was loaded, by a clock that shows 100."""
    return step(start(plan), Tick(unix_s=100.0))[0]


def in_first_step(plan: RolloutPlan) -> RolloutState:
    """In its first canary step, before anything was seen."""
    moved = plan.steps[0].tenants
    return msgspec.structs.replace(start(plan), stage=Stage.CANARY, looks=1, moved=moved)


def routes(state: RolloutState) -> dict[str, str]:
    """Tenant → pool, by the table that is made of it alone."""
    made = route_table(epoch=2, home=OLD, pools=POOLS, rollouts=[state], cause="test")
    return dict(made.routes)
