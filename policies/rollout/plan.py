"""What a rollout is meant to do: its stages, the conditions for leaving each, and who moves in which step.

:class:`ShadowStage`, :class:`Step` and :class:`Observing` are read from the configuration as they are.
:func:`steps_of` turns the steps that a file names into :class:`Widening`, with every tenant by name: a plan
says who moves, and nothing about it changes when the list of tenants does.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from policies.gates.base import Alpha
from policies.levels import shares_of
from policies.policy import Policy
from policies.routes import PoolName, RolloutName, TenantName


class Stage(enum.StrEnum):
    """Where a rollout stands."""

    PENDING = "pending"  # waits for a person to start it; all live traffic at home
    SELF_CHECK = "self_check"  # the baseline against itself; no copies, all live traffic at home
    QUICK_CHECK = "quick_check"  # a few prompts on both pools; no copies, all live traffic at home
    SHADOW = "shadow"  # copies only; all live traffic at home
    CANARY = "canary"  # the tenants of one step on the candidate; which step, the state tells
    OBSERVING = "observing"  # every tenant on the candidate, the old pool kept ready
    PROMOTED = "promoted"  # home is the candidate
    ROLLED_BACK = "rolled_back"  # latched; all live traffic at home
    ABORTED = "aborted"  # a person ended it; all live traffic at home


CHECK_STAGES = (Stage.SELF_CHECK, Stage.QUICK_CHECK)
"""No live traffic is copied or moved in these."""
JUDGED_STAGES = (Stage.SHADOW, Stage.CANARY, Stage.OBSERVING)
"""Copies are taken and suites asked in these, and each is left under conditions."""
MOVED_STAGES = (Stage.CANARY, Stage.OBSERVING, Stage.PROMOTED)
"""Live traffic is on the candidate in these."""
ENDED_STAGES = (Stage.ROLLED_BACK, Stage.ABORTED)
"""All traffic is at home until a person acts."""


class CheckKind(enum.StrEnum):
    """What is looked at before any traffic is copied."""

    SELF_CHECK = "self_check"
    """The same prompts, five times on the baseline: an environment that does not agree with itself cannot be
    compared with another."""
    QUICK_CHECK = "quick_check"
    """10 prompts of 20 tokens on both pools: what is wrong at once is found at once."""


class AdvanceBy(enum.StrEnum):
    """Who says that a stage is left, once its conditions hold."""

    MANUAL = "manual"
    """A person, with `forkgate rollout promote`."""
    GATES = "gates"
    """Nobody: it is left as soon as they hold."""


class StartBy(enum.StrEnum):
    """What begins a rollout that was never started."""

    COMMAND = "by_command"
    """A person, with `forkgate rollout start`; until then it waits, and the file moves nothing."""
    LOAD = "on_load"
    """The first judge that reads it, unless the same pools stand rolled back under another name: then it is
    held until a person lifts it."""


class InFlight(enum.StrEnum):
    """What becomes of a live request under way on the candidate when its tenant goes home."""

    FINISH = "finish"
    ABORT = "abort"


class ShadowStage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When the shadow stage, in which copies are compared and nobody's traffic has moved, may be left."""

    skip: bool = False
    """Leave it by itself as soon as the old pool could take everything back: no copies, time, suites or gates
    are waited for. Copies are compared in the first step too, beside live traffic."""
    minimum_pairs: Annotated[int, Meta(ge=0)] = 0
    """Compared requests in this stage, before it may be left."""
    minimum_s: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds in this stage, before it may be left."""
    advance: AdvanceBy = AdvanceBy.MANUAL
    """`manual`: a person promotes, once every condition holds. `gates`: it is left as soon as they hold."""


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One canary step: more tenants' live traffic on the candidate. Those of earlier steps stay there."""

    tenants: tuple[TenantName, ...] = ()
    """These move to the candidate. Give either tenants or percent."""
    percent: Annotated[float, Meta(gt=0, le=100)] | None = None
    """Of the configured tenants, by hash: `blake2b(tenant, key=rollout) / 2**64 < percent / 100`. At 100 all
    of them; requests of unknown tenants stay at home until home moves."""
    minimum_pairs: Annotated[int, Meta(ge=0)] = 0
    """Compared requests in this step, before it may be left."""
    minimum_s: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds in this step, before it may be left."""
    advance: AdvanceBy = AdvanceBy.MANUAL
    """`manual`: a person promotes, once every condition holds. `gates`: it is left as soon as they hold."""


class Observing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stage after the last step, every tenant on the candidate and the old pool kept ready. It ends with
    the promotion: home moves."""

    minimum_pairs: Annotated[int, Meta(ge=0)] = 0
    """Compared requests in this stage, before home may move."""
    minimum_s: Annotated[float, Meta(ge=0)] = 86_400.0
    """Seconds in this stage, before home may move. A day: what passes in an easy hour may fail in a hard
    one."""
    advance: AdvanceBy = AdvanceBy.MANUAL
    """`manual`: a person promotes, once every condition holds. `gates`: home moves as soon as they hold."""


class Widening(msgspec.Struct, frozen=True, kw_only=True):
    """A canary step of a plan: everybody who is on the candidate in it."""

    tenants: tuple[TenantName, ...]
    """In the order of joining, those of earlier steps included."""
    percent: float | None = None
    """That took them in; None for a step of named tenants."""
    minimum_pairs: int = 0
    minimum_s: float = 0.0
    advance: AdvanceBy = AdvanceBy.MANUAL

    @property
    def whole(self) -> bool:
        """Every configured tenant is in it."""
        return self.percent == 100.0

    @property
    def name(self) -> str:
        """For people: who it takes in. A share is drawn by hash, so how many that makes is told with it: 50 %
        of four may add nobody."""
        if self.percent is None:
            return ", ".join(self.tenants) or "-"
        return f"{self.percent:g} % of tenants, {len(self.tenants)} in all"


Leaving = ShadowStage | Widening | Observing
"""What a judged stage is left under."""
Place = tuple[Stage, int]
"""A stage, and of a canary the step's index."""
_ORDER = {stage: number for number, stage in enumerate(Stage)}


def in_percent(tenant: str, rollout: str, percent: float) -> bool:
    """Whether a step of ``percent`` takes this tenant in.

    The same everywhere and always, and whoever is in at some percent is in at every larger one.
    """
    if percent >= 100.0:
        return True
    key = rollout.encode()
    if len(key) > hashlib.blake2b.MAX_KEY_SIZE:  # no such key; its digest is as good
        key = hashlib.blake2b(key).digest()
    drawn = hashlib.blake2b(tenant.encode(), key=key, digest_size=8).digest()
    return int.from_bytes(drawn, "big") / 2**64 < percent / 100.0


def taken_in(step: Step, *, rollout: RolloutName, configured: Sequence[TenantName]) -> list[TenantName]:
    """Whom a step takes in, by name.

    Args:
        configured: tenants of the configuration, in its order; what percent counts.
    """
    if step.percent is None:
        return list(step.tenants)
    return [name for name in configured if in_percent(name, rollout, step.percent)]


def steps_of(
    steps: Sequence[Step], *, rollout: RolloutName, configured: Sequence[TenantName]
) -> tuple[Widening, ...]:
    """A plan's steps, every tenant by name.

    Args:
        configured: tenants of the configuration, in its order; what percent counts.
    """
    widened: list[Widening] = []
    inside: dict[TenantName, None] = {}
    for one in steps:
        inside |= dict.fromkeys(taken_in(one, rollout=rollout, configured=configured))
        widened.append(
            Widening(
                tenants=tuple(inside),
                percent=one.percent,
                minimum_pairs=one.minimum_pairs,
                minimum_s=one.minimum_s,
                advance=one.advance,
            )
        )
    return tuple(widened)


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the configuration says of a rollout.

    A stored plan with fields that this forkgate does not know is refused by msgspec, not half read.
    """

    name: RolloutName
    baseline: PoolName
    candidate: PoolName
    policy: Policy
    percent: float
    """Of live requests, copied to the shadow."""
    mirror_tenants: tuple[TenantName, ...] = ()
    """Only these tenants' requests are copied; empty: everybody's."""
    checks: tuple[CheckKind, ...] = ()
    """To pass, in this order, before any traffic is copied."""
    start: StartBy = StartBy.LOAD
    shadow_stage: ShadowStage = ShadowStage()
    """One that is skipped has no other condition than the skip: whatever else it says is left out."""
    steps: tuple[Widening, ...] = ()
    """Canary steps, each with everybody of the one before; none: copies only, and nothing ever moves."""
    observe: Observing = Observing()
    max_tenants_home: int | None = None
    """More tenants sent home than this, by gates of their own, and the rollout rolls back; None: half of
    those of the step."""
    flip_in_flight: InFlight = InFlight.FINISH
    endpoints: dict[PoolName, tuple[str, ...]] = {}
    """Of the compared pools, shadow endpoints among them. Where they are named, what another endpoint once
    said of itself counts no more."""
    declared: dict[PoolName, str] = {}
    """Environment digest that a pool was declared to have."""
    pool_proof: bool = False
    """Somebody probes the baseline's pool and tells of it (``PoolSeen``), so that every step waits for it to
    be ready."""
    shares: dict[str, Alpha] = {}
    """Each gate's share of the policy's alpha, before it is split over looks or tenants
    (:mod:`policies.levels`). It follows from the rest and is not to be given: whatever stands here is
    replaced."""

    def __post_init__(self) -> None:
        # Once a plan: a verdict is asked for after every item of evidence.
        shares = shares_of(self.policy.alpha, self.policy.gates)
        msgspec.structs.force_setattr(self, "shares", shares)
        if self.skips_shadow:
            at_once = ShadowStage(skip=True, advance=AdvanceBy.GATES)
            msgspec.structs.force_setattr(self, "shadow_stage", at_once)

    @property
    def suites(self) -> dict[str, str]:
        """Digests of the suites that are asked at the start of each judged stage, by name."""
        return self.policy.suite_digests

    @property
    def tenants(self) -> tuple[TenantName, ...]:
        """Everybody whom some step moves."""
        return self.steps[-1].tenants if self.steps else ()

    @property
    def whole(self) -> bool:
        """Its last step takes every configured tenant in, so that home may move after it."""
        return bool(self.steps) and self.steps[-1].whole

    @property
    def skips_shadow(self) -> bool:
        """Its shadow stage is but the place where it waits for the first look at the old pool."""
        return self.shadow_stage.skip and bool(self.steps)

    def judges(self, stage: Stage) -> bool:
        """Whether its suites are asked in this stage, and its gates have to pass before it is left."""
        return stage in JUDGED_STAGES and not (stage is Stage.SHADOW and self.skips_shadow)

    @property
    def places(self) -> tuple[Place, ...]:
        """Every place on its way, in order, once it was started."""
        last = len(self.steps) - 1
        end = ((Stage.OBSERVING, last), (Stage.PROMOTED, last)) if self.whole else ()
        checks = ((Stage(kind), 0) for kind in self.checks)
        canary = ((Stage.CANARY, index) for index in range(len(self.steps)))
        return (*checks, (Stage.SHADOW, 0), *canary, *end)

    @property
    def first_stage(self) -> Stage:
        """Where it goes when it is started."""
        return self.places[0][0]

    def following(self, stage: Stage, step: int = 0) -> Place | None:
        """The place after this one, which an edit may have taken out of the plan; None where nothing
        follows."""
        here = _ORDER[stage], step if stage is Stage.CANARY else 0
        for place in self.places:
            if (_ORDER[place[0]], place[1] if place[0] is Stage.CANARY else 0) > here:
                return place
        return None

    def leaving(self, stage: Stage, step: int = 0) -> Leaving | None:
        """What a place is left under; None where it is left otherwise, or never."""
        match stage:
            case Stage.SHADOW:
                return self.shadow_stage
            case Stage.CANARY if self.steps:
                return self.steps[min(step, len(self.steps) - 1)]
            case Stage.OBSERVING:
                return self.observe
            case _:
                return None
