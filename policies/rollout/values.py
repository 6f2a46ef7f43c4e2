"""Where a rollout stands: why it is held, paused, latched or ended, and its whole state."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec

from policies.gates import GateState
from policies.gates.base import Alpha, Gate
from policies.levels import allot, ask, at_look, of_tenant
from policies.policy import Policy
from policies.rollout.plan import (
    ENDED_STAGES,
    JUDGED_STAGES,
    MOVED_STAGES,
    CheckKind,
    Leaving,
    RolloutPlan,
    Stage,
    StartBy,
    Widening,
)
from policies.routes import UNKNOWN_TENANT, PoolName, RolloutName, TenantName
from policies.verdict import Answer, Verdict


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


class PoolFound(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool was last found to be."""

    ready: bool
    reason: str
    unix_s: float
    """When it became so."""


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
    elsewhere: bool = False
    """It would have begun by itself, and its pools stand rolled back under another name. No cause of its own:
    a judge of an older version, which knows none, would take all states for lost and begin them anew."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What a person did, and why."""

    who: str
    why: str
    unix_s: float


class Latch(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rollout, or one tenant of it, is back home. Only a lift removes it."""

    rollout: RolloutName
    verdict: Verdict
    policy_digest: str
    from_stage: Stage
    unix_s: float
    """When the deciding evidence was taken in, by the judge's clock."""
    tenant: TenantName | None = None
    """Only this one is home; None: the whole rollout."""
    baseline: PoolName | None = None
    """With :attr:`candidate` the pools, by which the rollback is known under another name; None where whoever
    wrote it down did not tell."""
    candidate: PoolName | None = None
    who: str | None = None
    """The person who rolled it back; None: a gate did."""
    durable: bool = False
    """It stands in the latch's own file. Set by whoever wrote it."""


class TenantState(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's part in the gates that are kept by tenant (:attr:`Policy.tenant_gates`)."""

    share: float
    """Of those gates' alpha, allotted as its first evidence came (:func:`policies.levels.allot`)."""
    gates: dict[str, GateState]
    answers: dict[str, Answer] = {}


class RolloutState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that a judge must know to go on with a rollout."""

    plan: RolloutPlan
    stage: Stage
    gates: dict[str, GateState]
    """Of gates kept by tenant, the initial state stands here."""
    answers: dict[str, Answer] = {}
    """Each gate's last answer, so that a log line is written when it changes."""
    latch: Latch | None = None
    held: Held | None = None
    """Why it is held; None when it is not."""
    paused: Said | None = None
    """Who paused it; None when it goes on."""
    ended: Said | None = None
    """Who aborted it."""
    checks: dict[CheckKind, CheckFound] = {}
    """How each check ended last."""
    suites: dict[str, SuiteFound] = {}
    """Suites that were asked to their end in the present stage."""
    environments: dict[str, dict[str, dict[str, str]]] = {}
    """Pool → endpoint → what it said of itself in this rollout: version, model, precision, flags."""
    pools: dict[PoolName, PoolFound] = {}
    """What each compared pool was last found to be, where it was probed."""
    home_of: RolloutName | None = None
    """Another rollout, whose candidate is home now; while one is, this one cannot move it."""
    step: int = 0
    """Index into the plan's steps; counts in ``canary``."""
    moved: tuple[TenantName, ...] = ()
    """Tenants whose live traffic a step or a person put on the candidate, those that were sent home since
    included. An edited file only ever takes away from it."""
    left: tuple[TenantName, ...] = ()
    """Tenants whom a rollback or an abort took from the candidate, where home does not answer them yet."""
    tenants: dict[TenantName, TenantState] = {}
    """Of gates that are kept by tenant."""
    sent_home: dict[TenantName, Latch] = {}
    """Tenants that a gate of theirs, or a person, sent home: they stay there until they are lifted."""
    looks: int = 0
    """Judged stages and steps that were entered since the gates began, the present one included."""
    entered_unix_s: float = 0.0
    """When the present stage or step was entered."""
    pairs: int = 0
    """Requests compared in the present stage or step, without those set aside and those of suites."""
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
        return self.stage in JUDGED_STAGES

    @property
    def listens(self) -> bool:
        """Evidence is folded; in the other stages it changes nothing."""
        return self.stage is not Stage.PENDING and self.stage not in ENDED_STAGES

    @property
    def routed(self) -> tuple[TenantName, ...]:
        """Tenants whose live traffic goes to the candidate by a route of their own."""
        if self.stage not in (Stage.CANARY, Stage.OBSERVING):
            return ()
        return tuple(name for name in self.moved if name not in self.sent_home)

    @property
    def on_candidate(self) -> tuple[TenantName, ...]:
        """Tenants whose live traffic the candidate answers, by a route or because it is home."""
        if self.stage is Stage.PROMOTED:
            return (*self.moved, UNKNOWN_TENANT)
        return self.routed

    @property
    def sheltered(self) -> tuple[TenantName, ...]:
        """Tenants who were sent home: the candidate answers them for as long as nobody at home does."""
        if self.stage in ENDED_STAGES:
            return self.left
        return tuple(name for name in self.sent_home if name in self.moved)

    @property
    def home(self) -> PoolName:
        """Where this rollout's tenants without a route go: the baseline until its promotion."""
        return self.plan.candidate if self.stage is Stage.PROMOTED else self.plan.baseline

    @property
    def look(self) -> str:
        """The present judged stage or step, by a name that no other one has until the gates begin anew."""
        return f"{self.stage}-{self.looks}"

    @property
    def widening(self) -> Widening | None:
        """The present canary step; in ``observing`` and ``promoted`` the last one."""
        if self.stage not in MOVED_STAGES or not self.plan.steps:
            return None
        last = len(self.plan.steps) - 1
        return self.plan.steps[min(self.step, last) if self.stage is Stage.CANARY else last]

    @property
    def leaving(self) -> Leaving | None:
        """What the present stage is left under; None where it is left otherwise, or never."""
        return self.plan.leaving(self.stage, self.step)

    @property
    def place(self) -> str:
        """Where it stands, for people."""
        if self.stage is Stage.CANARY:
            return f"{self.stage} step {self.step + 1} of {len(self.plan.steps)}"
        return str(self.stage)

    def alpha(self, name: str, tenant: TenantName | None = None) -> Alpha:
        """The level that a gate is held to in the present stage. Raises KeyError for an unknown gate."""
        share = self.plan.shares[name]
        policy: Policy = self.plan.policy
        if name in policy.tenant_gates:
            mine = None if tenant is None else self.tenants.get(tenant)
            return of_tenant(share, self.next_part if mine is None else mine.share)
        return at_look(share, policy.gates[name], self.looks)

    @property
    def next_part(self) -> float:
        """What the next tenant is allotted of the gates that are kept by tenant, as its first evidence
        comes."""
        to_come = sum(name not in self.tenants for name in self.plan.tenants)
        return allot((one.share for one in self.tenants.values()), to_come)

    def verdicts(self) -> tuple[Verdict, ...]:
        """What every gate says now, one of each; of a gate that is kept by tenant, the worst one's."""
        return tuple(self.verdict(name) for name in self.plan.policy.gates)

    def verdict(self, name: str, tenant: TenantName | None = None) -> Verdict:
        """What one gate says now, held to its share of alpha.

        Args:
            tenant: of a gate that is kept by tenant, this one's; not given, the worst of those that count
                in the present stage (:attr:`counted`).

        Raises:
            KeyError: no such gate.
        """
        # A gate's state stands under its gate's name, which no type can say.
        gate: Gate[Any] = self.plan.policy.gates[name]
        if name not in self.plan.policy.tenant_gates:
            return ask(gate, self.gates[name], self.alpha(name))
        if tenant is not None:
            mine = self.tenants.get(tenant)
            state = self.gates[name] if mine is None else mine.gates[name]
            verdict = ask(gate, state, self.alpha(name, tenant))
            return msgspec.structs.replace(
                verdict, tenant=tenant, reason=f"tenant {tenant}: {verdict.reason}"
            )
        each = [self.verdict(name, one) for one in self.counted]
        if not each:
            return ask(gate, self.gates[name], self.alpha(name))
        return min(each, key=lambda verdict: _WORST.index(verdict.answer))

    @property
    def inside(self) -> tuple[TenantName, ...]:
        """Tenants whom the present stage is about, those sent home included: whom a step moved, and before
        the first one, whom it will."""
        if self.stage in MOVED_STAGES:
            return self.moved
        return self.plan.steps[0].tenants if self.plan.steps else ()

    @property
    def counted(self) -> tuple[TenantName, ...]:
        """Tenants whose own gates have to pass before the present stage is left."""
        return tuple(name for name in self.inside if name not in self.sent_home)


_WORST = (Answer.FAIL, Answer.ERROR, Answer.INCONCLUSIVE, Answer.PASS)


def start(plan: RolloutPlan, latch: Latch | None = None, elsewhere: Sequence[Latch] = ()) -> RolloutState:
    """The state before any evidence; with the latch that a restart found, rolled back.

    It waits for a person unless the plan starts on load. What a stage starts with is told by
    :func:`policies.rollout.to_do`.

    Args:
        elsewhere: rollbacks of these pools that stand under other names. A file that calls a rollout by
            another name lifts none of them, so nothing begins by itself.
    """
    if latch is not None:
        return standing(plan, Stage.ROLLED_BACK, latch=latch)
    if plan.start is not StartBy.LOAD:
        return standing(plan, Stage.PENDING)
    if elsewhere:
        held = Held(
            cause=HoldCause.CONFIGURATION, reason=_under_another_name(plan, elsewhere), elsewhere=True
        )
        return msgspec.structs.replace(standing(plan, Stage.PENDING), held=held)
    return standing(plan, plan.first_stage)


def _under_another_name(plan: RolloutPlan, latches: Sequence[Latch]) -> str:
    first, more = latches[0], len(latches) - 1
    pools = f"{plan.baseline} → {plan.candidate}"
    if first.tenant is None:
        what = f"rollout {first.rollout} is rolled back"
    else:
        what = f"tenant {first.tenant} of rollout {first.rollout} was sent home"
    whose = f"of the same pools ({pools})" if first.candidate is not None else f"of {pools}, for all we know"
    others = f", and {more} more like it" if more else ""
    return (
        f"`start: on_load` does not begin it: {what}, {whose}{others}: {first.verdict.reason}. Another name "
        f"in the file lifts nothing; if it is safe to go on, `forkgate rollout lift {plan.name}` begins it"
    )


def come_home(state: RolloutState, latch: Latch) -> RolloutState:
    """Rolled back by this latch, whoever knew of it: a gate, a person, the latch's file, an edge."""
    left = state.left if state.stage in ENDED_STAGES else state.on_candidate
    return msgspec.structs.replace(state, stage=Stage.ROLLED_BACK, latch=latch, moved=(), left=left)


def standing(plan: RolloutPlan, stage: Stage, latch: Latch | None = None) -> RolloutState:
    """A state without any evidence in this stage, as if it had just come there."""
    return RolloutState(
        plan=plan,
        stage=stage,
        gates=initial_gates(plan),
        latch=latch,
        looks=int(plan.judges(stage)),
    )


def initial_gates(plan: RolloutPlan) -> dict[str, GateState]:
    """Every gate's state before any evidence."""
    return {name: gate.initial() for name, gate in plan.policy.gates.items()}
