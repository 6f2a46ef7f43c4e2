"""What each event does in each stage: the cells of :data:`policies.rollout.table.TABLE`."""

from __future__ import annotations

import msgspec

from policies.rollout.events import (
    CheckDone,
    Configured,
    Effect,
    EnvironmentSeen,
    Event,
    Lift,
    Log,
    Publish,
    Restarted,
    RunCheck,
    RunSuites,
    SuiteDone,
    Unlatch,
)
from policies.rollout.judging import Result, hold
from policies.rollout.values import (
    CHECK_STAGES,
    CheckAnswer,
    CheckFound,
    CheckKind,
    Held,
    HoldCause,
    RolloutPlan,
    RolloutState,
    Stage,
    SuiteFound,
    initial_gates,
    start,
)


def to_do(state: RolloutState) -> tuple[Effect, ...]:
    """What a judge has to start for a rollout that it takes over in this state."""
    plan = state.plan
    if state.held is not None and (
        state.stage in CHECK_STAGES or state.held.cause is HoldCause.CONFIGURATION
    ):
        return ()  # a lift does it again, and nobody has said yet that this policy is meant
    if state.stage in CHECK_STAGES:
        return (RunCheck(rollout=plan.name, kind=CheckKind(state.stage)),)
    missing = tuple(name for name in plan.suites if name not in state.suites)
    if state.stage not in (Stage.SHADOW, Stage.CANARY) or not missing:
        return ()
    return (RunSuites(rollout=plan.name, stage=state.stage, suites=missing),)


def enter(state: RolloutState, stage: Stage, cause: str) -> Result:
    """Go to a stage: its table is published, and what it starts with is asked for."""
    after = msgspec.structs.replace(state, stage=stage, suites={})
    return after, (Publish(rollout=state.plan.name, cause=cause), *to_do(after))


def ignore(state: RolloutState, event: Event) -> Result:
    """Already home: late evidence changes nothing here; the store keeps it all the same."""
    return state, ()


# --- checks and suites


def take_check(state: RolloutState, event: CheckDone) -> Result:
    """The stage's own check has ended."""
    name = state.plan.name
    if state.stage is not Stage(event.kind):
        return late_check(state, event)
    found = CheckFound(answer=event.answer, summary=event.summary, facts=event.facts, unix_s=event.unix_s)
    state = msgspec.structs.replace(state, checks={**state.checks, event.kind: found})
    said = f"{event.kind} {event.answer}: {event.summary}"
    log = Log(rollout=name, message=said)
    if event.answer is not CheckAnswer.PASSED:
        state, effects = hold(state, Held(cause=HoldCause.CHECK, reason=said))
        return state, (log, *effects)
    if state.held is not None:
        return state, (log,)  # something else is to be looked at first; the lift makes the check again
    after, effects = enter(state, state.plan.after(state.stage), said)
    return after, (log, *effects)


def late_check(state: RolloutState, event: CheckDone) -> Result:
    """Of a check that nobody waits for: it came after a lift, a rollback or another configuration."""
    message = f"{event.kind} {event.answer} while the rollout is in {state.stage}: not counted"
    return state, (Log(rollout=state.plan.name, message=message),)


def take_suite(state: RolloutState, event: SuiteDone) -> Result:
    """A suite has been asked to its end."""
    name = state.plan.name
    if event.stage is not state.stage or event.suite not in state.plan.suites:
        message = f"suite {event.suite} of stage {event.stage} ended in {state.stage}: not counted"
        return state, (Log(rollout=name, message=message),)
    found = SuiteFound(summary=event.summary, unix_s=event.unix_s)
    after = msgspec.structs.replace(state, suites={**state.suites, event.suite: found})
    log = Log(rollout=name, message=event.summary)
    if event.whole:
        return after, (log,)
    # Its gates answer once all of it is there: without a hold the rollout would wait for them for ever.
    after, effects = hold(after, Held(cause=HoldCause.SUITE, reason=event.summary))
    return after, (log, *effects)


def late_suite(state: RolloutState, event: SuiteDone) -> Result:
    """Of a stage that is over."""
    message = f"suite {event.suite} of stage {event.stage} ended in {state.stage}: not counted"
    return state, (Log(rollout=state.plan.name, message=message),)


_OF_A_MACHINE = ("environment_digest",)
"""Facts that two machines of one pool need not share: behind a digest may stand a kernel's version."""


def see_environment(state: RolloutState, event: EnvironmentSeen) -> Result:
    """Note what an endpoint is. One that is another than before, or than its pool's others, ends the
    comparison: what was measured of the one says nothing of the other."""
    plan = state.plan
    if event.pool not in (plan.baseline, plan.candidate):
        return state, ()
    pool = state.environments.get(event.pool, {})
    before, after = pool.get(event.endpoint), _seen(state, event)
    if before == after.environments[event.pool][event.endpoint]:
        return state, ()
    if before is not None:
        changed = _differing(before, event.facts)
        said = f"{event.endpoint} changed in mid-rollout: {changed}"
    else:
        other = next((one for one, facts in pool.items() if _differing(_shared(facts), event.facts)), None)
        changed = "" if other is None else _differing(_shared(pool[other]), event.facts)
        said = f"{event.endpoint} is another engine than {other}, which was compared before: {changed}"
    if not changed:
        return after, ()
    reason = f"pool {event.pool}: {said}. Put it back, or lift the hold to compare anew with what it is now"
    if after.held is not None:
        return after, (Log(rollout=plan.name, message=reason),)
    return hold(after, Held(cause=HoldCause.ENVIRONMENT, reason=reason))


def see_quietly(state: RolloutState, event: EnvironmentSeen) -> Result:
    """Rolled back: repairs are expected, and what stands there at the lift is what will be compared."""
    plan = state.plan
    if event.pool not in (plan.baseline, plan.candidate):
        return state, ()
    return _seen(state, event), ()


def _seen(state: RolloutState, event: EnvironmentSeen) -> RolloutState:
    pool = state.environments.get(event.pool, {})
    known = {**pool.get(event.endpoint, {}), **event.facts}
    environments = {**state.environments, event.pool: {**pool, event.endpoint: known}}
    return msgspec.structs.replace(state, environments=environments)


def _shared(facts: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in facts.items() if name not in _OF_A_MACHINE}


def _differing(before: dict[str, str], now: dict[str, str]) -> str:
    """Facts that both know and tell otherwise, in words; empty when there is none."""
    return "; ".join(
        f"{name} {before[name]} → {value}"
        for name, value in sorted(now.items())
        if before.get(name, value) != value
    )


# --- a person's lift


def restart(state: RolloutState, event: Lift) -> Result:
    """The latch is opened, and everything starts again, checks included."""
    name = state.plan.name
    cause = f"rollback of {name} lifted by {event.who}: {event.why}"
    after = _anew(state, state.plan.first_stage, event.unix_s)
    return after, (
        Unlatch(rollout=name, who=event.who, why=event.why),
        Restarted(rollout=name, evidence=state.evidence, cause=cause),
        Publish(rollout=name, cause=cause),
        *to_do(after),
        Log(rollout=name, message=cause),
    )


def lift_hold(state: RolloutState, event: Lift) -> Result:
    """Nothing is latched; a hold can be lifted, else there is nothing to do.

    Gates start anew. A check's stage makes its check again; any other asks its suites again, and takes the
    stage that a configuration named while it was held.
    """
    plan = state.plan
    if state.held is None:
        message = f"{plan.name} is {state.stage}, not held: nothing to lift"
        return state, (Log(rollout=plan.name, message=message),)
    cause = f"hold of {plan.name} lifted by {event.who}: {event.why}"
    stage = _stage_under(plan, state.stage)
    after = _anew(state, stage, event.unix_s)
    publish = () if stage is state.stage else (Publish(rollout=plan.name, cause=cause),)
    restarted = Restarted(rollout=plan.name, evidence=state.evidence, cause=cause)
    return after, (restarted, *publish, *to_do(after), Log(rollout=plan.name, message=cause))


def _anew(state: RolloutState, stage: Stage, unix_s: float) -> RolloutState:
    """Nothing latched, held or learned; what must be known across a lift stays."""
    return msgspec.structs.replace(
        start(state.plan),
        stage=stage,
        sequence=state.sequence,
        evidence=state.evidence,
        environments=state.environments,
        begun_unix_s=unix_s,
    )


# --- configuration


def take_config(state: RolloutState, event: Configured) -> Result:
    """Take a plan that differs in nothing frozen. While it is held, nothing but a way home is taken."""
    old, new = state.plan, event.plan
    if new == old:
        return state, ()
    frozen = _frozen_change(old, new)
    if frozen is not None:
        reason = f"{frozen} changed in mid-rollout; the rollout keeps the old one. Start one of another name"
        if state.held is not None:
            return state, (Log(rollout=old.name, message=reason),)
        return hold(state, Held(cause=HoldCause.CONFIGURATION, reason=reason))
    state = msgspec.structs.replace(state, plan=new)
    cause = f"configuration of {old.name} changed"
    stage = _stage_under(new, state.stage)
    homewards = state.stage is Stage.CANARY
    if stage is not state.stage and (state.held is None or homewards):
        return enter(state, stage, cause)
    return state, (Publish(rollout=old.name, cause=cause),)


def resume(state: RolloutState, plan: RolloutPlan, unix_s: float) -> Result:
    """What a judge that starts under ``plan`` makes of the state that an earlier one left.

    What is not frozen is taken as :func:`take_config` takes it. Of what is frozen only the new is at hand (a
    suite's old file is gone), so the old gates end here: the rollout begins again, with all traffic at home
    and held, for nobody has said that it should.
    """
    if plan == state.plan:
        return state, ()
    frozen = _frozen_change(state.plan, plan)
    if state.stage is Stage.ROLLED_BACK or frozen is None:
        take = keep_config if state.stage is Stage.ROLLED_BACK else take_config
        return take(state, Configured(plan=plan, unix_s=unix_s))
    reason = (
        f"{frozen} changed between two starts: what the old gates knew counts no more, and all traffic is at "
        "home. Lift the hold to begin anew with what the files say now"
    )
    if state.held is not None:
        reason += f". Before, it was held: {state.held.reason}"
    first = plan.first_stage if plan.checks else Stage.SHADOW
    fresh = msgspec.structs.replace(
        start(plan), stage=first, sequence=state.sequence, evidence=state.evidence
    )
    return hold(fresh, Held(cause=HoldCause.CONFIGURATION, reason=reason))


def keep_config(state: RolloutState, event: Configured) -> Result:
    """Rolled back: the plan waits for the lift; it may have another policy, for evidence starts anew."""
    return msgspec.structs.replace(state, plan=event.plan, gates=initial_gates(event.plan)), ()


def _stage_under(plan: RolloutPlan, stage: Stage) -> Stage:
    """Where a rollout of this stage belongs under a plan."""
    if stage in CHECK_STAGES:
        return stage if CheckKind(stage) in plan.checks else plan.after(stage)
    return plan.traffic_stage if stage in (Stage.SHADOW, Stage.CANARY) else stage


def _frozen_change(old: RolloutPlan, new: RolloutPlan) -> str | None:
    if new.policy.digest != old.policy.digest:
        return f"policy (digest {old.policy.digest[:19]} to {new.policy.digest[:19]})"
    if (new.baseline, new.candidate) != (old.baseline, old.candidate):
        return f"baseline or candidate ({old.baseline}, {old.candidate} to {new.baseline}, {new.candidate})"
    return None
