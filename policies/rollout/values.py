"""What a rollout is made of: its stages, its plan, why it is held or latched, and its whole state."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from policies.gates import GateState
from policies.gates.base import Alpha, Gate
from policies.levels import STAGES, alphas_of, ask
from policies.policy import Policy
from policies.routes import PoolName, RolloutName, TenantName
from policies.verdict import Answer, Verdict


class Stage(enum.StrEnum):
    """Where a rollout stands."""

    SELF_CHECK = "self_check"  # the baseline against itself; no copies, all live traffic at home
    QUICK_CHECK = "quick_check"  # a few prompts on both pools; no copies, all live traffic at home
    SHADOW = "shadow"  # copies only; all live traffic at home
    CANARY = "canary"  # the named tenants' live traffic on the candidate
    ROLLED_BACK = "rolled_back"  # latched
    PROMOTED = "promoted"


class CheckKind(enum.StrEnum):
    """What is looked at before any traffic is copied."""

    SELF_CHECK = "self_check"
    """The same prompts, five times on the baseline: an environment that does not agree with itself cannot be
    compared with another."""
    QUICK_CHECK = "quick_check"
    """10 prompts of 20 tokens on both pools: what is wrong at once is found at once."""


class CheckAnswer(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    COULD_NOT = "could_not"  # an engine did not answer: nothing is known, and that is no pass


class CheckFound(msgspec.Struct, frozen=True, kw_only=True):
    """The last end of one check."""

    answer: CheckAnswer
    summary: str
    """One sentence, with numbers."""
    facts: dict[str, str] = {}
    """Further findings by name, in words."""
    unix_s: float


class SuiteFound(msgspec.Struct, frozen=True, kw_only=True):
    """A suite that was asked to its end in the present stage."""

    summary: str
    unix_s: float


class HoldCause(enum.StrEnum):
    """What kind of thing a person has to look at."""

    CHECK = "check"  # a check before the traffic failed, or could not be made; a lift makes it again
    SUITE = "suite"  # a suite could not be asked to its end, so its gates never answer; a lift asks it again
    GATE = "gate"  # a gate asked for it, or failed under `on_fail: hold`
    CHOICE = "choice"  # the performance contract was missed at a strict level: a person chooses
    ENCODING = "encoding"  # the pools read one request as different tokens
    CONFIGURATION = "configuration"  # what is frozen was changed
    ENVIRONMENT = "environment"  # an engine is another one than before, in mid-rollout


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Why nothing advances."""

    cause: HoldCause
    reason: str
    choice: tuple[str, ...] = ()
    """Ways on, each a new rollout; forkgate takes none of them by itself."""


class RolloutPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says of a rollout."""

    name: RolloutName
    baseline: PoolName
    candidate: PoolName
    policy: Policy
    percent: float
    """Of live requests, copied to the shadow."""
    mirror_tenants: tuple[TenantName, ...] = ()
    """Only these tenants' requests are copied; empty: everybody's."""
    canary_tenants: tuple[TenantName, ...] = ()
    checks: tuple[CheckKind, ...] = ()
    """To pass, in this order, before any traffic is copied."""
    alphas: dict[str, Alpha] = {}
    """Each gate's share of the policy's alpha. It follows from the rest and is not to be given: whatever
    stands here is replaced."""

    def __post_init__(self) -> None:
        # Once a plan: a verdict is asked for after every item of evidence.
        alphas = alphas_of(
            self.policy.alpha,
            self.policy.gates,
            tenants=len(self.canary_tenants),
            stages=STAGES,
        )
        msgspec.structs.force_setattr(self, "alphas", alphas)

    @property
    def suites(self) -> dict[str, str]:
        """Digests of the suites that are asked at the start of each judged stage, by name."""
        return self.policy.suite_digests

    @property
    def traffic_stage(self) -> Stage:
        """Where it goes once its checks have passed: a canary when it names tenants for one."""
        return Stage.CANARY if self.canary_tenants else Stage.SHADOW

    @property
    def first_stage(self) -> Stage:
        """Where it begins."""
        return Stage(self.checks[0]) if self.checks else self.traffic_stage

    def after(self, check: Stage) -> Stage:
        """The stage that follows a check's."""
        kinds = list(CheckKind)
        later = [kind for kind in self.checks if kinds.index(kind) > kinds.index(CheckKind(check))]
        return Stage(later[0]) if later else self.traffic_stage


class Latch(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rollout is back home. Only a lift removes it."""

    rollout: RolloutName
    verdict: Verdict
    policy_digest: str
    from_stage: Stage
    unix_s: float
    """When the deciding evidence was taken in, by the judge's clock."""
    durable: bool = True
    """False when the latch's own file could not be written; set by whoever writes it."""


CHECK_STAGES = (Stage.SELF_CHECK, Stage.QUICK_CHECK)
"""No live traffic is copied or moved in these."""


class RolloutState(msgspec.Struct, frozen=True, kw_only=True):
    """All that a judge must know to go on with a rollout."""

    plan: RolloutPlan
    stage: Stage
    gates: dict[str, GateState]
    answers: dict[str, Answer] = {}
    """Each gate's last answer, so that a log line is written when it changes."""
    latch: Latch | None = None
    held: Held | None = None
    """Why it is held; None when it is not."""
    checks: dict[CheckKind, CheckFound] = {}
    """How each check ended last."""
    suites: dict[str, SuiteFound] = {}
    """Suites that were asked to their end in the present stage."""
    environments: dict[str, dict[str, dict[str, str]]] = {}
    """Pool → endpoint → what it said of itself in this rollout: version, model, precision, flags."""
    sequence: int = 0
    """Events taken in so far."""
    evidence: int = 0
    """Items of evidence folded since the rollout began; a lift does not set it back, so that each item has
    one number."""
    begun_unix_s: float = 0.0
    """When the gates started from nothing: at the last lift, or when a judge first knew of the rollout."""
    encoding_mismatches: int = 0

    @property
    def mirrors(self) -> bool:
        """Copies are wanted."""
        return self.stage in (Stage.SHADOW, Stage.CANARY, Stage.PROMOTED)

    def verdicts(self) -> tuple[Verdict, ...]:
        """What every gate says now."""
        return tuple(self.verdict(name) for name in self.plan.policy.gates)

    def verdict(self, name: str) -> Verdict:
        """What one gate says now, held to its share of alpha. Raises KeyError for an unknown gate."""
        # A gate's state stands under its gate's name, which no type can say.
        gate: Gate[Any] = self.plan.policy.gates[name]
        return ask(gate, self.gates[name], self.plan.alphas[name])


def start(plan: RolloutPlan, latch: Latch | None = None) -> RolloutState:
    """The state before any evidence; with the latch that a restart found, rolled back."""
    return RolloutState(
        plan=plan,
        stage=plan.first_stage if latch is None else Stage.ROLLED_BACK,
        gates=initial_gates(plan),
        latch=latch,
    )


def initial_gates(plan: RolloutPlan) -> dict[str, GateState]:
    """Every gate's state before any evidence."""
    return {name: gate.initial() for name, gate in plan.policy.gates.items()}
