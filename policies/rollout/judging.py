"""Evidence folded, gates asked, and what a verdict does to a rollout.

Only a gate whose state the evidence changed is asked. Its verdict may do one of these:

- *roll back*: it failed, and the policy says so;
- *send one tenant home*: it is kept by tenant, and that tenant's failed. When more are home than the plan
  allows, the rollout rolls back;
- *hold*: it failed under ``on_fail: hold``, the policy's or its own; or its verdict asks to be looked at
  (``Verdict.hold``); or it is part of the performance contract and failed at a level that promises tokens.
  There a person chooses: a slower candidate that gives the same tokens may be worth it, and which of
  the ways on to take is nothing that a machine may decide;
- *be logged*, once for every change of its answer.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.pair import ForkSeen, SetAside
from comparator.records import EngineSample, LiveRecord
from policies.gates import GateState
from policies.gates.base import Evidence, Gate
from policies.policy import Level, OnFail
from policies.rollout.events import Effect, Hold, Log, MoveHome, Observed, RollBack, SendHome
from policies.rollout.plan import RolloutPlan, Stage
from policies.rollout.values import Held, HoldCause, Latch, RolloutState, TenantState, come_home
from policies.routes import TenantName
from policies.verdict import Answer, Verdict

Result = tuple[RolloutState, tuple[Effect, ...]]

STRICT = (Level.ARTIFACT, Level.ENVIRONMENT, Level.TOKEN)
"""Levels whose promise of equal tokens may cost speed."""


def ask_gates(state: RolloutState, event: Observed) -> Result:
    """Fold the items in order and ask each gate that read something. A rollback ends the event.

    Gates are asked after each comparison, fork and engine sample, but once for a run of live records: those
    come by the batch, and a quantile is too dear for each of them.
    """
    effects: list[Effect] = []
    to_ask: set[tuple[str, TenantName | None]] = set()
    for item, following in zip_longest(event.items, event.items[1:]):
        if concerns(state.plan, item):
            state, changed = _fold(state, item)
            state = _note_comparison(state, item, effects)
            to_ask.update(changed)
        if isinstance(item, LiveRecord) and isinstance(following, LiveRecord):
            continue
        # In the policy's order, and of one gate by tenant's name.
        for name in state.plan.policy.gates:
            for tenant in sorted((whose or "") for asked, whose in to_ask if asked == name):
                whose = TenantName(tenant) if tenant else None
                if whose in state.sent_home:
                    continue
                state = _ask(state, name, whose, event.unix_s, effects)
                if state.stage is Stage.ROLLED_BACK:
                    return state, tuple(effects)
        to_ask.clear()
    return state, tuple(effects)


def concerns(plan: RolloutPlan, item: Evidence) -> bool:
    """Is this evidence of this rollout? The judge may hand every rollout everything."""
    if isinstance(item, Comparison | ForkSeen | EngineSample):
        return item.rollout == plan.name
    assert isinstance(item, LiveRecord)
    if item.canary:
        # Where it went in the end may be home (retried); whose canary it was, the tenant tells.
        return item.tenant in plan.tenants
    return item.pool == plan.baseline


def hold(state: RolloutState, held: Held, verdict: Verdict | None = None) -> Result:
    """Mark it held; one that is held already keeps its first reason."""
    if state.held is not None:
        return state, ()
    effect = Hold(rollout=state.plan.name, reason=held.reason, verdict=verdict, choice=held.choice)
    return msgspec.structs.replace(state, held=held), (effect,)


def roll_back(
    state: RolloutState, verdict: Verdict, unix_s: float, who: str | None = None
) -> tuple[RolloutState, tuple[Effect, ...]]:
    """Home, latched. Legal in every stage that is not rolled back.

    Args:
        who: the person who said so; None for a gate.
    """
    latch = _latch(state, verdict, unix_s, who)
    effects: tuple[Effect, ...] = (RollBack(latch=latch),)
    if state.stage is Stage.PROMOTED:
        effects += (MoveHome(rollout=state.plan.name, pool=state.plan.baseline, by=None),)
    return come_home(state, latch), effects


def send_home(
    state: RolloutState, tenant: TenantName, verdict: Verdict, unix_s: float, who: str | None = None
) -> tuple[RolloutState, tuple[Effect, ...]]:
    """One tenant home, latched; or all of them, when that makes too many."""
    latch = _latch(state, verdict, unix_s, who, tenant)
    after = msgspec.structs.replace(state, sent_home={**state.sent_home, tenant: latch})
    inside = state.inside
    home = [name for name in inside if name in after.sent_home]
    allowed = state.plan.max_tenants_home
    if len(home) <= (len(inside) // 2 if allowed is None else allowed):
        return after, (SendHome(latch=latch),)
    reason = (
        f"{len(home)} of {len(inside)} tenants were sent home ({', '.join(home)}), more than the rollout "
        f"bears; the last: {verdict.reason}"
    )
    # The last one gets no latch of its own: the rollout's sends it home too.
    return roll_back(state, msgspec.structs.replace(verdict, reason=reason), unix_s, who)


def _latch(
    state: RolloutState, verdict: Verdict, unix_s: float, who: str | None, tenant: TenantName | None = None
) -> Latch:
    plan = state.plan
    return Latch(
        rollout=plan.name,
        verdict=verdict,
        policy_digest=plan.policy.digest,
        from_stage=state.stage,
        unix_s=unix_s,
        tenant=tenant,
        baseline=plan.baseline,
        candidate=plan.candidate,
        who=who,
    )


_Changed = list[tuple[str, TenantName | None]]


def _fold(state: RolloutState, item: Evidence) -> tuple[RolloutState, _Changed]:
    policy = state.plan.policy
    changed: dict[str, GateState] = {}
    for name in policy.gates:
        if name in policy.tenant_gates:
            continue
        gate: Gate[Any] = policy.gates[name]
        before = state.gates[name]
        after = gate.fold(before, item)
        if after is not before:
            changed[name] = after
    asked: _Changed = [(name, None) for name in changed]
    gates = {**state.gates, **changed} if changed else state.gates
    state = msgspec.structs.replace(state, gates=gates, evidence=state.evidence + 1)
    for tenant in _whose(state, item):
        state, its = _fold_of(state, tenant, item)
        asked += its
    return state, asked


def _whose(state: RolloutState, item: Evidence) -> tuple[TenantName, ...]:
    """Tenants whose own gates read this. The baseline's live requests are what each of theirs is held
    against."""
    if not state.plan.policy.tenant_gates:
        return ()
    if isinstance(item, LiveRecord) and not item.canary:
        return tuple(name for name in state.tenants if name not in state.sent_home)
    if isinstance(item, EngineSample) or (isinstance(item, Comparison) and item.sample is not None):
        return ()
    tenant = TenantName(item.tenant)
    return (tenant,) if tenant in state.plan.tenants and tenant not in state.sent_home else ()


def _fold_of(state: RolloutState, tenant: TenantName, item: Evidence) -> tuple[RolloutState, _Changed]:
    policy = state.plan.policy
    mine = state.tenants.get(tenant) or _joined(state, tenant)
    changed: dict[str, GateState] = {}
    for name in policy.tenant_gates:
        gate: Gate[Any] = policy.gates[name]
        after = gate.fold(mine.gates[name], item)
        if after is not mine.gates[name]:
            changed[name] = after
    if not changed:
        return state, []
    mine = msgspec.structs.replace(mine, gates={**mine.gates, **changed})
    return _with(state, tenant, mine), [(name, tenant) for name in changed]


def _joined(state: RolloutState, tenant: TenantName) -> TenantState:
    """A tenant's part in the gates that are kept by tenant, before any evidence."""
    gates = {name: state.gates[name] for name in state.plan.policy.tenant_gates}
    return TenantState(share=state.next_part, gates=gates)


def _with(state: RolloutState, tenant: TenantName, mine: TenantState) -> RolloutState:
    return msgspec.structs.replace(state, tenants={**state.tenants, tenant: mine})


def _ask(
    state: RolloutState, name: str, tenant: TenantName | None, unix_s: float, effects: list[Effect]
) -> RolloutState:
    verdict = state.verdict(name, tenant)
    holds = verdict.hold and state.held is None
    answers = state.answers if tenant is None else state.tenants[tenant].answers
    if answers.get(name) is not verdict.answer:
        answers = {**answers, name: verdict.answer}
        if tenant is None:
            state = msgspec.structs.replace(state, answers=answers)
        else:
            mine = msgspec.structs.replace(state.tenants[tenant], answers=answers)
            state = _with(state, tenant, mine)
        effects.append(_log(state, verdict))
        if verdict.answer is Answer.FAIL:
            return _breach(state, verdict, unix_s, effects)
    elif holds:
        effects.append(_log(state, verdict))
    if holds:
        return _hold_for(state, verdict, Held(cause=HoldCause.GATE, reason=_told(verdict)), effects)
    return state


def _log(state: RolloutState, verdict: Verdict) -> Log:
    gates = state.gates if verdict.tenant is None else state.tenants[TenantName(verdict.tenant)].gates
    return Log(
        rollout=state.plan.name,
        message=verdict.reason,
        verdict=verdict,
        gate_state=gates[verdict.gate],
        evidence=state.evidence,
    )


def _breach(state: RolloutState, verdict: Verdict, unix_s: float, effects: list[Effect]) -> RolloutState:
    policy = state.plan.policy
    gate: Gate[Any] = policy.gates[verdict.gate]
    if gate.performance and policy.level in STRICT:
        return _hold_for(state, verdict, _choice(state, verdict), effects)
    if policy.on_fail_of(verdict.gate) is OnFail.HOLD or verdict.hold:
        held = Held(cause=HoldCause.GATE, reason=f"{verdict.gate} failed: {verdict.reason}")
        return _hold_for(state, verdict, held, effects)
    if verdict.tenant is not None:
        state, new = send_home(state, TenantName(verdict.tenant), verdict, unix_s)
    else:
        state, new = roll_back(state, verdict, unix_s)
    effects += new
    return state


def _hold_for(state: RolloutState, verdict: Verdict, held: Held, effects: list[Effect]) -> RolloutState:
    state, new = hold(state, held, verdict)
    effects += new
    return state


def _choice(state: RolloutState, verdict: Verdict) -> Held:
    level = state.plan.policy.level
    return Held(
        cause=HoldCause.CHOICE,
        reason=f"{verdict.gate} failed: {verdict.reason}. At level {level} speed is not bought with other "
        "tokens, and forkgate changes no level and no engine flag by itself: choose",
        choice=(
            f"relax the limits of gate {verdict.gate} in a new policy, if the slower answers are acceptable",
            f"choose another level than {level}: `statistical` lets the candidate run its faster settings",
            "give the candidate other engine flags, or more hardware",
        ),
    )


def _told(verdict: Verdict) -> str:
    return f"{verdict.gate} asks for a look: {verdict.reason}"


def _note_comparison(state: RolloutState, item: Evidence, effects: list[Effect]) -> RolloutState:
    if not isinstance(item, Comparison):
        return state
    if item.sample is None and any(pair.valid for pair in item.candidates):
        state = msgspec.structs.replace(state, pairs=state.pairs + 1)
    mismatched = [pair for pair in item.candidates if pair.set_aside is SetAside.ENCODING_MISMATCH]
    if not mismatched:
        return state
    state = msgspec.structs.replace(state, encoding_mismatches=state.encoding_mismatches + 1)
    reason = f"encoding mismatch in capture {item.capture_id}: {mismatched[0].set_aside_reason}"
    state, new = hold(state, Held(cause=HoldCause.ENCODING, reason=reason))
    effects += new
    return state
