"""Evidence folded, gates asked, and what a verdict does to a rollout.

Only a gate whose state the evidence changed is asked. Its verdict may do one of three things:

- *roll back*: it failed, and the policy says so;
- *hold*: it failed under ``on_fail: hold``, the policy's or its own; or its verdict asks to be looked at
  (``Verdict.hold``); or it is part of the performance contract and failed at a level that promises tokens.
  There a person chooses (R25): a slower candidate that gives the same tokens may be worth it, and which of
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
from policies.rollout.events import Effect, Hold, Log, Observed, RollBack
from policies.rollout.values import Held, HoldCause, Latch, RolloutPlan, RolloutState, Stage
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
    to_ask: set[str] = set()
    for item, following in zip_longest(event.items, event.items[1:]):
        if concerns(state.plan, item):
            state, changed = _fold(state, item)
            state = _note_encoding(state, item, effects)
            to_ask.update(changed)
        if isinstance(item, LiveRecord) and isinstance(following, LiveRecord):
            continue
        for name in state.plan.policy.gates:
            if name in to_ask:
                state = _ask(state, name, event.unix_s, effects)
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
        return item.tenant in plan.canary_tenants
    return item.pool == plan.baseline


def hold(state: RolloutState, held: Held, verdict: Verdict | None = None) -> Result:
    """Mark it held; one that is held already keeps its first reason."""
    if state.held is not None:
        return state, ()
    effect = Hold(rollout=state.plan.name, reason=held.reason, verdict=verdict, choice=held.choice)
    return msgspec.structs.replace(state, held=held), (effect,)


def _fold(state: RolloutState, item: Evidence) -> tuple[RolloutState, list[str]]:
    changed: dict[str, GateState] = {}
    for name in state.plan.policy.gates:
        gate: Gate[Any] = state.plan.policy.gates[name]
        before = state.gates[name]
        after = gate.fold(before, item)
        if after is not before:
            changed[name] = after
    gates = {**state.gates, **changed} if changed else state.gates
    return msgspec.structs.replace(state, gates=gates, evidence=state.evidence + 1), list(changed)


def _ask(state: RolloutState, name: str, unix_s: float, effects: list[Effect]) -> RolloutState:
    verdict = state.verdict(name)
    holds = verdict.hold and state.held is None
    if state.answers.get(name) is not verdict.answer:
        state = msgspec.structs.replace(state, answers={**state.answers, name: verdict.answer})
        effects.append(_log(state, verdict))
        if verdict.answer is Answer.FAIL:
            return _breach(state, verdict, unix_s, effects)
    elif holds:
        effects.append(_log(state, verdict))
    if holds:
        return _hold_for(state, verdict, Held(cause=HoldCause.GATE, reason=_told(verdict)), effects)
    return state


def _log(state: RolloutState, verdict: Verdict) -> Log:
    return Log(
        rollout=state.plan.name,
        message=verdict.reason,
        verdict=verdict,
        gate_state=state.gates[verdict.gate],
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
    latch = Latch(
        rollout=state.plan.name,
        verdict=verdict,
        policy_digest=policy.digest,
        from_stage=state.stage,
        unix_s=unix_s,
    )
    effects.append(RollBack(latch=latch))
    return msgspec.structs.replace(state, stage=Stage.ROLLED_BACK, latch=latch)


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


def _note_encoding(state: RolloutState, item: Evidence, effects: list[Effect]) -> RolloutState:
    if not isinstance(item, Comparison):
        return state
    mismatched = [pair for pair in item.candidates if pair.set_aside is SetAside.ENCODING_MISMATCH]
    if not mismatched:
        return state
    state = msgspec.structs.replace(state, encoding_mismatches=state.encoding_mismatches + 1)
    reason = f"encoding mismatch in capture {item.capture_id}: {mismatched[0].set_aside_reason}"
    state, new = hold(state, Held(cause=HoldCause.ENCODING, reason=reason))
    effects += new
    return state
