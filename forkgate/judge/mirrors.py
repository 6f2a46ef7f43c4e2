"""The mirror and the checks, set up from the configuration: which pools are compared, with which budgets."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from comparator.records import Digest
from forkgate.checks import CheckRuns
from forkgate.config.model import Config
from forkgate.fleet import Fleet, shadow_pool
from proxy.ledger import JudgeLedger
from proxy.mirror import Mirror, MirrorSink, ShadowPool, ShadowRollout, Tracer

Compared = Callable[[str, str], str | None]
"""(rollout, pool) → the environment that it compares, while it knows one: :meth:`Desk.compared`."""


def shadow_rollouts(
    config: Config, fleet: Fleet, compared: Compared = lambda rollout, pool: None
) -> tuple[ShadowRollout, ...]:
    """Every configured rollout, with the endpoints that the fleet watches."""

    def pool_of(rollout: str, pool: str) -> ShadowPool:
        return msgspec.structs.replace(
            shadow_pool(config, fleet, pool),
            compared_digest=functools.partial(_digest, compared, rollout, pool),
        )

    return tuple(
        ShadowRollout(
            name=rollout.name,
            baseline=pool_of(rollout.name, rollout.baseline),
            candidate=pool_of(rollout.name, rollout.candidate),
            settings=rollout.shadow,
            global_seed=rollout.global_seed,
        )
        for rollout in config.rollouts
    )


def _digest(compared: Compared, rollout: str, pool: str) -> Digest | None:
    found = compared(rollout, pool)
    return None if found is None else Digest(found)


def open_mirror(
    config: Config,
    fleet: Fleet,
    sink: MirrorSink,
    ledger: JudgeLedger,
    compared: Compared,
    tracer: Tracer | None = None,
) -> Mirror:
    """A mirror with a lane for every configured rollout."""
    return Mirror(shadow_rollouts(config, fleet, compared), sink, ledger, tracer=tracer)


def open_checks(config: Config, fleet: Fleet) -> CheckRuns:
    """The checks that rollouts start with, on the same endpoints."""
    return CheckRuns(config, shadow_rollouts(config, fleet))
