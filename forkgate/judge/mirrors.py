"""The mirror and the checks, set up from the configuration: which pools are compared, with which budgets."""

from __future__ import annotations

from forkgate.checks import CheckRuns
from forkgate.config.model import Config
from forkgate.fleet import Fleet, shadow_pool
from proxy.ledger import JudgeLedger
from proxy.mirror import Mirror, MirrorSink, ShadowRollout


def shadow_rollouts(config: Config, fleet: Fleet) -> tuple[ShadowRollout, ...]:
    """Every configured rollout, with the endpoints that the fleet watches."""
    return tuple(
        ShadowRollout(
            name=rollout.name,
            baseline=shadow_pool(config, fleet, rollout.baseline),
            candidate=shadow_pool(config, fleet, rollout.candidate),
            settings=rollout.shadow,
            global_seed=rollout.global_seed,
        )
        for rollout in config.rollouts
    )


def open_mirror(config: Config, fleet: Fleet, sink: MirrorSink, ledger: JudgeLedger) -> Mirror:
    """A mirror with a lane for every configured rollout."""
    return Mirror(shadow_rollouts(config, fleet), sink, ledger)


def open_checks(config: Config, fleet: Fleet) -> CheckRuns:
    """The checks that rollouts start with, on the same endpoints."""
    return CheckRuns(config, shadow_rollouts(config, fleet))
