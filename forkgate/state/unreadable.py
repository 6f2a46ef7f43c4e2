"""Rollbacks whose reason no file tells: they stand all the same, until a person lifts them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forkgate.state.latch import Latch, unexplained
from policies.routes import TENANT_MARK, RolloutName


def all_latched(rollouts: Iterable[str], why: str) -> Latch:
    """What a latch that nobody can read must be taken for: it holds them all, with the reason in words."""
    latch = Latch()
    for name in rollouts:
        latch = latch.with_latched(unexplained(name, f"what was rolled back before is unknown: {why}"), 0)
    return latch


def with_announced(latch: Latch, announced: Mapping[RolloutName, int]) -> Latch:
    """``latch`` with the rollbacks that edges were told of, but that its file never got to hold.

    Also those of names that the configuration has given up: nothing of the same pools begins by itself while
    one stands, and which pools it was of is not announced.

    Args:
        announced: :attr:`policies.routes.RouteTable.rolled_back` of the last table known.
    """
    for key, epoch in announced.items():
        name, _, tenant = key.partition(TENANT_MARK)
        if tenant:
            if tenant not in latch.tenants.get(name, {}) and not _lifted_since(latch, name, tenant, epoch):
                latch = latch.with_tenant(tenant, unexplained(name, _lost(epoch)), epoch)
        elif name not in latch.latched and not _lifted_since(latch, name, None, epoch):
            latch = latch.with_latched(unexplained(name, _lost(epoch)), epoch)
    return latch


def _lost(epoch: int) -> str:
    return f"rolled back at epoch {epoch}; the disk refused its latch, so that the reason is lost"


def _lifted_since(latch: Latch, name: str, tenant: str | None, epoch: int) -> bool:
    return any(
        one.latched.rollback.rollout == name and one.tenant == tenant and one.latched.epoch >= epoch
        for one in latch.lifted
    )
