"""The checks without a judge: engines opened, probed once, asked, closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from engines import open_engine
from engines.base import EngineError
from forkgate.checks.quick_check import quick_check
from forkgate.checks.report import CheckReport
from forkgate.checks.self_check import self_check
from forkgate.config.first_checks import CheckSettings
from forkgate.config.model import Config
from forkgate.endpoint import Endpoint
from forkgate.fleet import Fleet, shadow_pool
from policies.policy import Level
from proxy.mirror import ShadowPool

PROBE_S = 120.0
"""Of one endpoint: a probe sends real generations."""


async def self_check_alone(config: Config, pool: str, settings: CheckSettings, level: Level) -> CheckReport:
    """The self check of one pool. Raises :class:`forkgate.fleet.FleetError` for unusable TLS files."""
    async with opened(config, pool) as (at,):
        seed = next(
            (one.global_seed for one in config.rollouts if pool in (one.baseline, one.candidate)), "check"
        )
        return await self_check(at, settings, level=level, rollout=pool, global_seed=seed)


async def quick_check_alone(config: Config, rollout: str, level: Level) -> CheckReport:
    """The quick check of one rollout. Raises FleetError, and KeyError for an unknown rollout."""
    section = config.rollout(rollout)
    async with opened(config, section.baseline, section.candidate) as (baseline, candidate):
        return await quick_check(
            baseline,
            candidate,
            section.checks,
            level=level,
            rollout=rollout,
            global_seed=section.global_seed,
        )


@asynccontextmanager
async def opened(config: Config, *names: str) -> AsyncIterator[tuple[ShadowPool, ...]]:
    """These pools, each endpoint probed once; closed at the end."""
    fleet = Fleet(config, open_engine)
    try:
        endpoints = [one for name in dict.fromkeys(names) for one in fleet.endpoints(name)]
        await asyncio.gather(*(_probe(one) for one in endpoints))
        yield tuple(shadow_pool(config, fleet, name) for name in names)
    finally:
        await fleet.close()


async def _probe(endpoint: Endpoint) -> None:
    try:
        async with asyncio.timeout(PROBE_S):
            endpoint.probed(await endpoint.engine.probe())
    except EngineError as error:
        endpoint.not_probed(str(error))
    except TimeoutError:
        endpoint.not_probed(f"{endpoint.url}: no answer to a probe within {PROBE_S:g} s")
