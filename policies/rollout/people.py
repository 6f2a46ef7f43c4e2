"""What a person does: cells of :data:`policies.rollout.table.TABLE`.

Every one is told with who and why. What cannot be done is declined in words and changes nothing, so that a
verb sent twice acts once.
"""

from __future__ import annotations

import msgspec

from policies.rollout.events import (
    Abort,
    Declined,
    Effect,
    Event,
    Lift,
    Log,
    Moved,
    MoveHome,
    Pause,
    Publish,
    Restarted,
    Resume,
    RollBackNow,
    Start,
    Stopped,
    Unlatch,
)
from policies.rollout.judging import Result, roll_back, send_home
from policies.rollout.moving import after_check, enter, to_do
from policies.rollout.plan import CHECK_STAGES, CheckKind, Stage
from policies.rollout.values import CheckAnswer, RolloutState, Said, standing
from policies.routes import TenantName
from policies.verdict import Answer, Verdict

GATE_OF_A_PERSON = "person"
"""Stands where a verdict names its gate."""


def decline(state: RolloutState, event: Event, reason: str) -> Result:
    """Nothing is done, and it is said why not."""
    return state, (Declined(rollout=state.plan.name, what=type(event).__name__, reasons=(reason,)),)


def decline_as_it_stands(state: RolloutState, event: Event) -> Result:
    """What is asked for makes no sense in this stage."""
    name = state.plan.name
    return decline(state, event, f"{name} is {state.place}: see `forkgate rollout show {name}`")


# --- start, pause, resume, abort


def begin(state: RolloutState, event: Start) -> Result:
    """From pending or aborted to its first check or stage, with gates that know nothing."""
    name = state.plan.name
    if state.held is not None:
        return decline(state, event, f"held: {state.held.reason}")
    cause = f"{name} started by {event.who}: {event.why}"
    anew = state.stage is Stage.ABORTED
    after = _anew(state, state.plan.first_stage, event.unix_s)
    moves = Moved(rollout=name, before=state.place, after=after.place, cause=cause)
    restarted: tuple[Effect, ...] = (
        (Restarted(rollout=name, evidence=state.evidence, cause=cause),) if anew else ()
    )
    publish = Publish(rollout=name, cause=cause)
    return after, (*restarted, publish, moves, *to_do(after), Log(rollout=name, message=cause))


def pause(state: RolloutState, event: Pause) -> Result:
    """Nothing advances; all else goes on."""
    if state.paused is not None:
        return decline(state, event, f"paused already, by {state.paused.who}: {state.paused.why}")
    said = Said(who=event.who, why=event.why, unix_s=event.unix_s)
    message = f"{state.plan.name} paused in {state.place} by {event.who}: {event.why}"
    after = msgspec.structs.replace(state, paused=said)
    return after, (Log(rollout=state.plan.name, message=message),)


def end_pause(state: RolloutState, event: Resume) -> Result:
    """It may advance again; a check that passed meanwhile leads on."""
    if state.paused is None:
        return decline(state, event, f"{state.plan.name} is {state.place}, not paused")
    cause = f"{state.plan.name} resumed in {state.place} by {event.who}: {event.why}"
    log = Log(rollout=state.plan.name, message=cause)
    after = msgspec.structs.replace(state, paused=None)
    if state.stage in CHECK_STAGES and state.held is None:
        found = state.checks.get(CheckKind(state.stage))
        if found is not None and found.answer is CheckAnswer.PASSED:
            after, effects = enter(after, after_check(state), cause, event.unix_s)
            return after, (log, *effects)
    return after, (log,)


def abort(state: RolloutState, event: Abort) -> Result:
    """All traffic home, unlatched; the rollout is over until a person starts it anew."""
    plan = state.plan
    cause = f"{plan.name} aborted in {state.place} by {event.who}: {event.why}"
    said = Said(who=event.who, why=event.why, unix_s=event.unix_s)
    after = msgspec.structs.replace(
        state,
        stage=Stage.ABORTED,
        ended=said,
        held=None,
        paused=None,
        moved=(),
        left=state.on_candidate,
        entered_unix_s=event.unix_s,
    )
    home: tuple[Effect, ...] = ()
    if state.stage is Stage.PROMOTED:
        home = (MoveHome(rollout=plan.name, pool=plan.baseline, by=None),)
    return after, (
        *home,
        Publish(rollout=plan.name, cause=cause),
        Stopped(rollout=plan.name, cause=cause),
        Moved(rollout=plan.name, before=state.place, after=after.place, cause=cause),
        Log(rollout=plan.name, message=cause),
    )


# --- home, and back from there


def go_home(state: RolloutState, event: RollBackNow) -> Result:
    """A person rolls back, the rollout or one tenant: latched, as after a breach."""
    verdict = Verdict(
        gate=GATE_OF_A_PERSON,
        answer=Answer.FAIL,
        value=None,
        limit=None,
        n=0,
        reason=f"rolled back by {event.who}: {event.why}",
        tenant=event.tenant,
    )
    if event.tenant is None:
        return roll_back(state, verdict, event.unix_s, event.who)
    known = state.plan.tenants
    if event.tenant not in known:
        listed = ", ".join(known) or "none"
        return decline(state, event, f"tenant {event.tenant} is in no step of {state.plan.name}: {listed}")
    if event.tenant in state.sent_home:
        reason = state.sent_home[event.tenant].verdict.reason
        return decline(state, event, f"tenant {event.tenant} is home already: {reason}")
    if state.stage is Stage.PROMOTED:
        return decline(state, event, "home has moved for everybody: roll the whole rollout back")
    return send_home(state, TenantName(event.tenant), verdict, event.unix_s, event.who)


def restart(state: RolloutState, event: Lift) -> Result:
    """The latch is opened, and everything starts again, checks included."""
    if event.tenant is not None:
        return lift_tenant(state, event, event.tenant)
    name = state.plan.name
    cause = f"rollback of {name} lifted by {event.who}: {event.why}"
    after = _anew(state, state.plan.first_stage, event.unix_s)
    return after, (
        Unlatch(rollout=name, who=event.who, why=event.why),
        Restarted(rollout=name, evidence=state.evidence, cause=cause),
        Publish(rollout=name, cause=cause),
        Moved(rollout=name, before=state.place, after=after.place, cause=cause),
        *to_do(after),
        Log(rollout=name, message=cause),
    )


def lift_hold(state: RolloutState, event: Lift) -> Result:
    """Nothing is latched; a hold can be lifted, else there is nothing to do.

    Gates start anew, and traffic stays where it is. A check's stage makes its check again, any other asks its
    suites again. A rollout that is held before it was begun begins.
    """
    plan = state.plan
    if event.tenant is not None:
        return lift_tenant(state, event, event.tenant)
    if state.held is None:
        return decline(state, event, f"{plan.name} is {state.place}, not held: nothing to lift")
    cause = f"hold of {plan.name} lifted by {event.who}: {event.why}"
    stage = state.stage
    if stage is Stage.PENDING:
        stage = plan.first_stage
    elif stage in CHECK_STAGES and CheckKind(stage) not in plan.checks:
        stage = after_check(state)  # the configuration wants this check no more
    after = _anew(state, stage, event.unix_s)
    if stage is state.stage:
        after = msgspec.structs.replace(after, step=state.step, moved=state.moved)
    effects: tuple[Effect, ...] = (Restarted(rollout=plan.name, evidence=state.evidence, cause=cause),)
    if stage is not state.stage:
        moves = Moved(rollout=plan.name, before=state.place, after=after.place, cause=cause)
        effects += (Publish(rollout=plan.name, cause=cause), moves)
    return after, (*effects, *to_do(after), Log(rollout=plan.name, message=cause))


def lift_tenant(state: RolloutState, event: Lift, tenant: TenantName) -> Result:
    """One tenant may go back to the candidate, with gates of its own that know nothing."""
    name = state.plan.name
    if tenant not in state.sent_home:
        return decline(state, event, f"tenant {tenant} was not sent home by {name}: nothing to lift")
    cause = f"tenant {tenant} of {name} lifted by {event.who}: {event.why}"
    tenants = dict(state.tenants)
    if (mine := tenants.get(tenant)) is not None:
        gates = {gate: state.gates[gate] for gate in mine.gates}
        tenants[tenant] = msgspec.structs.replace(mine, gates=gates, answers={})
    sent_home = {one: latch for one, latch in state.sent_home.items() if one != tenant}
    after = msgspec.structs.replace(state, sent_home=sent_home, tenants=tenants)
    unlatch = Unlatch(rollout=name, who=event.who, why=event.why, tenant=tenant)
    return after, (unlatch, Publish(rollout=name, cause=cause), Log(rollout=name, message=cause))


def lift_in_vain(state: RolloutState, event: Lift) -> Result:
    """Aborted: nothing is held or latched but tenants."""
    if event.tenant is not None:
        return lift_tenant(state, event, event.tenant)
    return decline(state, event, f"{state.plan.name} is {state.place}: `forkgate rollout start` begins anew")


def _anew(state: RolloutState, stage: Stage, unix_s: float) -> RolloutState:
    """Nothing latched, held or learned; what must be known across a lift stays, tenants' latches too."""
    return msgspec.structs.replace(
        standing(state.plan, stage),
        sequence=state.sequence,
        evidence=state.evidence,
        environments=state.environments,
        pools=state.pools,
        home_of=state.home_of,
        paused=state.paused,
        sent_home=state.sent_home,
        entered_unix_s=unix_s,
        begun_unix_s=unix_s,
    )
