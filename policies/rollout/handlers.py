"""What is seen, and what a file says: cells of :data:`policies.rollout.table.TABLE`."""

from __future__ import annotations

import msgspec

from policies.rollout.events import (
    CheckDone,
    Configured,
    EnvironmentSeen,
    Event,
    HomeMoved,
    Log,
    PoolSeen,
    Publish,
    SuiteDone,
)
from policies.rollout.judging import Result, hold
from policies.rollout.moving import after_check, enter
from policies.rollout.plan import ENDED_STAGES, RolloutPlan, Stage
from policies.rollout.values import (
    CheckAnswer,
    CheckFound,
    Held,
    HoldCause,
    PoolFound,
    RolloutState,
    SuiteFound,
    initial_gates,
    standing,
)
from policies.routes import PoolName


def ignore(state: RolloutState, event: Event) -> Result:
    """Nothing is compared here: late evidence changes nothing; the store keeps it all the same."""
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
    if state.paused is not None:
        return state, (log,)  # the end of the pause leads on
    after, effects = enter(state, after_check(state), said, event.unix_s)
    return after, (log, *effects)


def late_check(state: RolloutState, event: CheckDone) -> Result:
    """Of a check that nobody waits for: it came after a lift, a rollback or another configuration."""
    message = f"{event.kind} {event.answer} while the rollout is in {state.stage}: not counted"
    return state, (Log(rollout=state.plan.name, message=message),)


def take_suite(state: RolloutState, event: SuiteDone) -> Result:
    """A suite has been asked to its end."""
    name = state.plan.name
    if event.look != state.look or event.suite not in state.plan.suites:
        return late_suite(state, event)
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
    message = f"suite {event.suite} of {event.look} ended in {state.stage}: not counted"
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


# --- pools, and where home is


def see_pool(state: RolloutState, event: PoolSeen) -> Result:
    """Note whether a compared pool could take everything; told once when it changes."""
    plan = state.plan
    if event.pool not in (plan.baseline, plan.candidate):
        return state, ()
    before = state.pools.get(event.pool)
    if before is not None and before.ready == event.ready:
        return state, ()
    found = PoolFound(ready=event.ready, reason=event.reason, unix_s=event.unix_s)
    after = msgspec.structs.replace(state, pools={**state.pools, event.pool: found})
    if before is None and event.ready:
        return after, ()
    said = "is ready again" if event.ready else "could not take everything back: nothing advances"
    return after, (Log(rollout=plan.name, message=f"pool {event.pool} {said}. {event.reason}"),)


def see_home(state: RolloutState, event: HomeMoved) -> Result:
    """Another rollout's candidate is home now, or is no more."""
    by = None if event.by == state.plan.name else event.by
    return msgspec.structs.replace(state, home_of=by), ()


# --- configuration


def take_config(state: RolloutState, event: Configured) -> Result:
    """Take a plan that differs in nothing frozen. No edit moves a tenant to the candidate or a stage on; one
    that no step names any more goes home."""
    old, new = state.plan, event.plan
    if new == old:
        return state, ()
    frozen = _frozen_change(old, new)
    if frozen is not None:
        reason = f"{frozen} changed in mid-rollout; the rollout keeps the old one. Start one of another name"
        if state.held is not None:
            return state, (Log(rollout=old.name, message=reason),)
        return hold(state, Held(cause=HoldCause.CONFIGURATION, reason=reason))
    cause = f"configuration of {old.name} changed"
    state = msgspec.structs.replace(
        state,
        plan=new,
        environments=_of_endpoints(state, new),
        moved=tuple(name for name in state.moved if name in new.tenants),
        step=min(state.step, max(0, len(new.steps) - 1)),
    )
    if state.stage in (Stage.CANARY, Stage.OBSERVING) and not new.steps:
        return enter(state, Stage.SHADOW, f"{cause}: it has no steps any more", event.unix_s)
    if new.judges(state.stage) and not old.judges(state.stage):
        return enter(state, state.stage, f"{cause}: it skips {state.stage} no more", event.unix_s)
    return state, (Publish(rollout=old.name, cause=cause),)


def resume(state: RolloutState, plan: RolloutPlan, unix_s: float) -> Result:
    """What a judge that starts under ``plan`` makes of the state that an earlier one left.

    What is not frozen is taken as :func:`take_config` takes it. Of what is frozen only the new is at hand (a
    suite's old file is gone), so the old gates end here: the rollout begins again, with all traffic at home
    and held, for nobody has said that it should. One that is promoted has nothing more to judge: it stays,
    unless its pools are others.
    """
    if plan == state.plan:
        return state, ()
    configured = Configured(plan=plan, unix_s=unix_s)
    frozen = _frozen_change(state.plan, plan)
    if state.stage in (*ENDED_STAGES, Stage.PENDING):
        return keep_config(state, configured)
    if frozen is None:
        return take_config(state, configured)
    if state.stage is Stage.PROMOTED and _pools(plan) == _pools(state.plan):
        return keep_config(state, configured)
    reason = (
        f"{frozen} changed between two starts: what the old gates knew counts no more, and all traffic is at "
        "home. Lift the hold to begin anew with what the files say now"
    )
    if state.held is not None:
        reason += f". Before, it was held: {state.held.reason}"
    fresh = msgspec.structs.replace(
        standing(plan, Stage.PENDING),
        sequence=state.sequence,
        evidence=state.evidence,
        paused=state.paused,
        sent_home=state.sent_home,
        home_of=state.home_of,
    )
    return hold(fresh, Held(cause=HoldCause.CONFIGURATION, reason=reason))


def keep_config(state: RolloutState, event: Configured) -> Result:
    """Nothing is compared: the plan waits for whoever starts it, and may have another policy."""
    plan = event.plan
    if plan == state.plan:
        return state, ()
    environments = _of_endpoints(state, plan)
    gates = initial_gates(plan)
    state = msgspec.structs.replace(state, plan=plan, environments=environments, gates=gates)
    return msgspec.structs.replace(state, answers={}, tenants={}), ()


def _of_endpoints(state: RolloutState, plan: RolloutPlan) -> dict[str, dict[str, dict[str, str]]]:
    """What endpoints said of themselves, without those that a plan's pools no longer have: an engine that
    was replaced must not stand in the way of the one that replaced it."""
    return {
        pool: {
            endpoint: facts
            for endpoint, facts in said.items()
            if PoolName(pool) not in plan.endpoints or endpoint in plan.endpoints[PoolName(pool)]
        }
        for pool, said in state.environments.items()
    }


def _frozen_change(old: RolloutPlan, new: RolloutPlan) -> str | None:
    if new.policy.digest != old.policy.digest:
        return f"policy (digest {old.policy.digest[:19]} to {new.policy.digest[:19]})"
    if _pools(new) != _pools(old):
        return f"baseline or candidate ({old.baseline}, {old.candidate} to {new.baseline}, {new.candidate})"
    return None


def _pools(plan: RolloutPlan) -> tuple[PoolName, PoolName]:
    return plan.baseline, plan.candidate
