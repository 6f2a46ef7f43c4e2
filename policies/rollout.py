"""The state machine of one migration, as a table. Pure: ``step(state, event) -> (state, effects)``.

Theory of operation. A rollout is in one :class:`Stage`; what each event does there is one cell of
:data:`TABLE`:

    stage        evidence            lift      config           (rows to come: pause, advance)
    shadow       gates are asked     refused   checked, taken
    canary       gates are asked     refused   checked, taken
    rolled_back  ignored             restart   kept for later
    promoted     gates are asked     refused   checked, taken

Any stage goes to ``rolled_back`` by a breach; ``rolled_back`` is latched and goes to where the plan starts
(``canary`` if it names tenants, else ``shadow``) only by a person's *lift*, with gates from their initial
states. ``promoted`` is a door: nothing enters it yet. *Held* is not a stage but a mark on one: traffic
stays as it is, nothing advances, and the machine can still roll back (from every stage: a breach is never
missed because something else was waiting).

What a breach does is the policy's ``on_fail``. An encoding mismatch holds: the arms were asked different
questions, which is no fault of the candidate's numbers, but nothing can be concluded until a person has
looked.

A cell never acts; it returns effects, in order, for the judge to carry out. State is one serialisable value;
it carries its plan (policy included), so that stored evidence and a stored state are enough to compute a
verdict again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.pair import ForkSeen, SetAside
from comparator.records import EngineSample, LiveRecord
from policies.gates import GateState
from policies.gates.base import Alpha, Evidence, Gate
from policies.levels import alphas_of
from policies.policy import OnFail, Policy
from policies.routes import PoolName, RolloutName, TenantName
from policies.verdict import Answer, Verdict


class Stage(enum.StrEnum):
    """Where a rollout stands."""

    SHADOW = "shadow"  # copies only; all live traffic at home
    CANARY = "canary"  # the named tenants' live traffic on the candidate
    ROLLED_BACK = "rolled_back"  # latched
    PROMOTED = "promoted"


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

    @property
    def alphas(self) -> dict[str, Alpha]:
        """Each gate's share of the policy's alpha."""
        return alphas_of(
            self.policy.alpha,
            self.policy.gates,
            tenants=len(self.canary_tenants),
            stages=1,
        )

    @property
    def first_stage(self) -> Stage:
        """Where the rollout begins: a canary when it names tenants for one."""
        return Stage.CANARY if self.canary_tenants else Stage.SHADOW


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


class RolloutState(msgspec.Struct, frozen=True, kw_only=True):
    """All that a judge must know to go on with a rollout."""

    plan: RolloutPlan
    stage: Stage
    gates: dict[str, GateState]
    answers: dict[str, Answer] = {}
    """Each gate's last answer, so that a log line is written when it changes."""
    latch: Latch | None = None
    held: str | None = None
    """Why it is held; None when it is not."""
    sequence: int = 0
    """Events taken in so far."""
    evidence: int = 0
    """Items of evidence folded since the start or the last lift."""
    encoding_mismatches: int = 0

    @property
    def mirrors(self) -> bool:
        """Copies are wanted."""
        return self.stage is not Stage.ROLLED_BACK

    def verdicts(self) -> tuple[Verdict, ...]:
        """What every gate says now."""
        return tuple(_verdict(self, name) for name in self.plan.policy.gates)


# --- events


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence, in the order in which it came."""

    items: tuple[Evidence, ...]
    unix_s: float


class Lift(msgspec.Struct, frozen=True, kw_only=True):
    """A person lets a rolled-back (or held) rollout start again."""

    who: str
    why: str
    unix_s: float


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration was read again."""

    plan: RolloutPlan
    unix_s: float


Event = Observed | Lift | Configured

# --- effects


class RollBack(msgspec.Struct, frozen=True, kw_only=True):
    """Write the latch, then flip: publish a table without this candidate and stop its shadows."""

    latch: Latch


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """The route table must be made again, under a higher epoch."""

    rollout: RolloutName
    cause: str


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing advances until a person has looked; traffic stays."""

    rollout: RolloutName
    reason: str
    verdict: Verdict | None = None


class Unlatch(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the latch from its file."""

    rollout: RolloutName
    who: str
    why: str


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A gate's answer changed, or something was refused: keep it, and tell whoever listens."""

    rollout: RolloutName
    message: str
    verdict: Verdict | None = None


Effect = RollBack | Publish | Hold | Unlatch | Log
Result = tuple[RolloutState, tuple[Effect, ...]]


def start(plan: RolloutPlan, latch: Latch | None = None) -> RolloutState:
    """The state before any evidence; with the latch that a restart found, rolled back."""
    return RolloutState(
        plan=plan,
        stage=plan.first_stage if latch is None else Stage.ROLLED_BACK,
        gates={name: gate.initial() for name, gate in plan.policy.gates.items()},
        latch=latch,
    )


def step(state: RolloutState, event: Event) -> Result:
    """The next state, and what the judge has to do, in order."""
    handler = TABLE[state.stage][type(event)]
    after, effects = handler(state, event)
    return msgspec.structs.replace(after, sequence=state.sequence + 1), effects


def _ask_gates(state: RolloutState, event: Observed) -> Result:
    """Fold the items in order and ask each gate that read something. A rollback ends the event.

    Gates are asked after each pair and fork, but once for a run of live records: those come by the batch,
    and a quantile is too dear for each of them.
    """
    effects: list[Effect] = []
    live_asked: set[str] = set()
    for item, following in zip_longest(event.items, event.items[1:]):
        if _concerns(state.plan, item):
            state, asked = _fold(state, item)
            state = _note_encoding(state, item, effects)
            live_asked.update(asked)
        if isinstance(item, LiveRecord) and isinstance(following, LiveRecord):
            continue
        for name in state.plan.policy.gates:
            if name in live_asked:
                state = _ask(state, name, event.unix_s, effects)
                if state.stage is Stage.ROLLED_BACK:
                    return state, tuple(effects)
        live_asked.clear()
    return state, tuple(effects)


def _ask(state: RolloutState, name: str, unix_s: float, effects: list[Effect]) -> RolloutState:
    verdict = _verdict(state, name)
    if state.answers.get(name) is verdict.answer:
        return state
    state = msgspec.structs.replace(state, answers={**state.answers, name: verdict.answer})
    effects.append(Log(rollout=state.plan.name, message=verdict.reason, verdict=verdict))
    return _breach(state, verdict, unix_s, effects) if verdict.answer is Answer.FAIL else state


def _verdict(state: RolloutState, name: str) -> Verdict:
    # A gate's state stands under its gate's name, which no type can say.
    gate: Gate[Any] = state.plan.policy.gates[name]
    return gate.verdict(state.gates[name], state.plan.alphas[name])


def _fold(state: RolloutState, item: Evidence) -> tuple[RolloutState, list[str]]:
    changed: dict[str, GateState] = {}
    for name in state.plan.policy.gates:
        gate: Gate[Any] = state.plan.policy.gates[name]
        before = state.gates[name]
        after = gate.fold(before, item)
        if after is not before:
            changed[name] = after
    if changed:
        state = msgspec.structs.replace(state, gates={**state.gates, **changed})
    return msgspec.structs.replace(state, evidence=state.evidence + 1), list(changed)


def _note_encoding(state: RolloutState, item: Evidence, effects: list[Effect]) -> RolloutState:
    if not isinstance(item, Comparison):
        return state
    mismatched = [pair for pair in item.candidates if pair.set_aside is SetAside.ENCODING_MISMATCH]
    if not mismatched:
        return state
    state = msgspec.structs.replace(state, encoding_mismatches=state.encoding_mismatches + 1)
    if state.held is not None:
        return state
    reason = f"encoding mismatch in capture {item.capture_id}: {mismatched[0].set_aside_reason}"
    effects.append(Hold(rollout=state.plan.name, reason=reason))
    return msgspec.structs.replace(state, held=reason)


def _breach(state: RolloutState, verdict: Verdict, unix_s: float, effects: list[Effect]) -> RolloutState:
    plan = state.plan
    if plan.policy.on_fail is OnFail.HOLD:
        if state.held is not None:
            return state
        reason = f"{verdict.gate} failed: {verdict.reason}"
        effects.append(Hold(rollout=plan.name, reason=reason, verdict=verdict))
        return msgspec.structs.replace(state, held=reason)
    latch = Latch(
        rollout=plan.name,
        verdict=verdict,
        policy_digest=plan.policy.digest,
        from_stage=state.stage,
        unix_s=unix_s,
    )
    effects.append(RollBack(latch=latch))
    return msgspec.structs.replace(state, stage=Stage.ROLLED_BACK, latch=latch)


def _ignore(state: RolloutState, event: Observed) -> Result:
    """Already home: late evidence changes nothing here; the store keeps it all the same."""
    return state, ()


def _restart(state: RolloutState, event: Lift) -> Result:
    plan = state.plan
    fresh = start(plan)
    after = msgspec.structs.replace(fresh, sequence=state.sequence)
    cause = f"rollback of {plan.name} lifted by {event.who}: {event.why}"
    return after, (
        Unlatch(rollout=plan.name, who=event.who, why=event.why),
        Publish(rollout=plan.name, cause=cause),
        Log(rollout=plan.name, message=cause),
    )


def _lift_hold(state: RolloutState, event: Lift) -> Result:
    """Nothing is latched; a hold can be lifted, else there is nothing to do."""
    name = state.plan.name
    if state.held is None:
        return state, (Log(rollout=name, message=f"{name} is {state.stage}, not held: nothing to lift"),)
    fresh = start(state.plan)
    after = msgspec.structs.replace(fresh, stage=state.stage, sequence=state.sequence)
    return after, (Log(rollout=name, message=f"hold of {name} lifted by {event.who}: {event.why}"),)


def _take_config(state: RolloutState, event: Configured) -> Result:
    old, new = state.plan, event.plan
    if new == old:
        return state, ()
    frozen = _frozen_change(old, new)
    if frozen is not None:
        reason = f"{frozen} changed in mid-rollout; the rollout keeps the old one. Start one of another name"
        if state.held is not None:
            return state, (Log(rollout=old.name, message=reason),)
        return msgspec.structs.replace(state, held=reason), (Hold(rollout=old.name, reason=reason),)
    stage = state.stage if state.stage is Stage.PROMOTED else new.first_stage
    return msgspec.structs.replace(state, plan=new, stage=stage), (
        Publish(rollout=old.name, cause=f"configuration of {old.name} changed"),
    )


def _keep_config(state: RolloutState, event: Configured) -> Result:
    """Rolled back: the plan waits for the lift; it may have another policy, for evidence starts anew."""
    return msgspec.structs.replace(state, plan=event.plan, gates=start(event.plan).gates), ()


def _frozen_change(old: RolloutPlan, new: RolloutPlan) -> str | None:
    if new.policy.digest != old.policy.digest:
        return f"policy (digest {old.policy.digest[:19]} to {new.policy.digest[:19]})"
    if (new.baseline, new.candidate) != (old.baseline, old.candidate):
        return f"baseline or candidate ({old.baseline}, {old.candidate} to {new.baseline}, {new.candidate})"
    return None


def _concerns(plan: RolloutPlan, item: Evidence) -> bool:
    """Is this evidence of this rollout? The judge may hand every rollout everything."""
    if isinstance(item, Comparison | ForkSeen | EngineSample):
        return item.rollout == plan.name
    assert isinstance(item, LiveRecord)
    if item.canary:
        # Where it went in the end may be home (retried); whose canary it was, the tenant tells.
        return item.tenant in plan.canary_tenants
    return item.pool == plan.baseline


# Each handler takes the event kind of its column.
TABLE: dict[Stage, dict[type[Event], Callable[[RolloutState, Any], Result]]] = {
    Stage.SHADOW: {Observed: _ask_gates, Lift: _lift_hold, Configured: _take_config},
    Stage.CANARY: {Observed: _ask_gates, Lift: _lift_hold, Configured: _take_config},
    Stage.ROLLED_BACK: {Observed: _ignore, Lift: _restart, Configured: _keep_config},
    Stage.PROMOTED: {Observed: _ask_gates, Lift: _lift_hold, Configured: _take_config},
}
