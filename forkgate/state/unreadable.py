"""What a latch that nobody can read must be taken for: every rollout rolled back, until a person lifts it."""

from __future__ import annotations

from collections.abc import Iterable

from forkgate.state.latch import Latch
from policies.rollout import Latch as Rollback
from policies.rollout import Stage
from policies.routes import RolloutName
from policies.verdict import Answer, Verdict


def all_latched(rollouts: Iterable[str], why: str) -> Latch:
    """A latch that holds them all, with the reason in words."""
    latch = Latch()
    for name in rollouts:
        verdict = Verdict(
            gate="latch",
            answer=Answer.ERROR,
            value=None,
            limit=None,
            n=0,
            reason=f"what was rolled back before is unknown: {why}",
        )
        rollback = Rollback(
            rollout=RolloutName(name),
            verdict=verdict,
            policy_digest="",
            from_stage=Stage.ROLLED_BACK,
            unix_s=0.0,
        )
        latch = latch.with_latched(rollback, 0)
    return latch
