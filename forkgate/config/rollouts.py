"""What the whole file can be wrong about in its ``rollouts``: pools, tenants, and steps that must widen."""

from __future__ import annotations

from collections.abc import Mapping

from forkgate.config.model import Config, RolloutSection, Tenant
from forkgate.config.problems import did_you_mean
from forkgate.config.rules import Found, check_name
from policies.rollout import Step, taken_in
from policies.routes import TenantName
from proxy.mirror.seeds import KEY_BYTES


def check_rollouts(config: Config) -> Found:
    """Every rollout by itself, and that no tenant is wanted by two."""
    names: set[str] = set()
    movers: dict[str, str] = {}
    pools = [pool.name for pool in config.pools]
    for index, rollout in enumerate(config.rollouts):
        path = f"rollouts[{index}]"
        yield from check_name(f"{path}.name", rollout.name)
        if rollout.name in names:
            yield f"{path}.name", f"{rollout.name!r} is the name of an earlier rollout too, rename one"
        names.add(rollout.name)
        seed_bytes = len(rollout.global_seed.encode())
        if seed_bytes > KEY_BYTES:
            yield f"{path}.global_seed", f"{seed_bytes} bytes, a key of blake2b holds {KEY_BYTES}, shorten it"
        for key, pool in (("baseline", rollout.baseline), ("candidate", rollout.candidate)):
            if pool not in pools:
                yield f"{path}.{key}", f"no pool is called {pool!r}, {did_you_mean(pool, pools)}"
        if rollout.baseline != config.home:
            yield (
                f"{path}.baseline",
                f"{rollout.baseline!r} is not home ({config.home!r}), traffic would fall back elsewhere",
            )
        if rollout.candidate in (rollout.baseline, config.home):
            yield f"{path}.candidate", f"{rollout.candidate!r} is the old pool itself, name the new one"
        if rollout.shadow_stage.skip and not rollout.steps:
            yield f"{path}.shadow_stage.skip", "there is no step to go to, add `steps` or remove it"
        yield from _steps(config, rollout, f"{path}.steps", movers)


def _steps(config: Config, rollout: RolloutSection, path: str, movers: dict[str, str]) -> Found:
    tenants = {tenant.name: tenant for tenant in config.tenants}
    inside: dict[TenantName, int] = {}  # tenant → the step that takes it in
    widest: tuple[int, float] | None = None
    for at, one in enumerate(rollout.steps):
        where = f"{path}[{at}]"
        if widest is not None and widest[1] >= 100.0:
            yield where, f"nobody is left for it, steps[{widest[0]}] takes every tenant in, remove it"
            continue
        if one.tenants and one.percent is not None:
            yield where, "has tenants and percent, a step takes in by one of them, make it two steps"
            continue
        if one.percent is not None:
            if widest is not None and one.percent <= widest[1]:
                earlier = f"{widest[1]:g} of steps[{widest[0]}]"
                yield f"{where}.percent", f"{one.percent:g} is not above {earlier}, steps only widen"
                continue
            widest = at, one.percent
            yield from _countable(config, f"{where}.percent")
        elif not one.tenants:
            yield where, "takes nobody in, give it tenants or percent"
        else:
            yield from _named(config, tenants, one, where, inside)
        for name in taken_in(one, rollout=rollout.name, configured=list(tenants)):
            if name in tenants:
                inside.setdefault(name, at)
    taken: dict[tuple[int, str], list[str]] = {}
    for name, at in inside.items():
        owner = movers.setdefault(name, rollout.name)
        if owner != rollout.name:
            taken.setdefault((at, owner), []).append(name)
    for (at, owner), its in taken.items():
        whom = f"{its[0]!r} is" if len(its) == 1 else f"{its[0]!r} and {len(its) - 1} more are"
        yield (
            f"{path}[{at}]",
            f"{whom} moved by {owner!r} already, a tenant has one pool, leave it to one of them",
        )


def _named(
    config: Config,
    tenants: Mapping[TenantName, Tenant],
    one: Step,
    where: str,
    inside: Mapping[TenantName, int],
) -> Found:
    for at, name in enumerate(one.tenants):
        place = f"{where}.tenants[{at}]"
        if name not in tenants:
            yield place, f"no tenant is called {name!r}, {did_you_mean(name, tenants)}"
        elif name in inside:
            yield place, f"{name!r} is in since steps[{inside[name]}], steps only widen, remove it"
        elif name in one.tenants[:at]:
            yield place, f"{name!r} stands here twice, keep one"
        elif not tenants[name].api_key_sha256 and config.identity.tenant_header is None:
            yield (
                place,
                f"nothing identifies {name!r}, set identity.tenant_header or the tenant's api_key_sha256",
            )


def _countable(config: Config, where: str) -> Found:
    if not config.tenants:
        yield where, "counts configured tenants and there are none, name them under `tenants`"
    elif config.identity.tenant_header is None and not any(one.api_key_sha256 for one in config.tenants):
        yield where, "nothing identifies any tenant, set identity.tenant_header or their api_key_sha256"
