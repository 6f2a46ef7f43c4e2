"""How a rollout goes from stage to stage, and what time does to it."""

from __future__ import annotations

import msgspec

from policies.rollout.conditions import blocked_by, is_blocked, next_place
from policies.rollout.events import (
    Advance,
    ClockStepped,
    Declined,
    Effect,
    Log,
    Moved,
    MoveHome,
    Publish,
    RunCheck,
    RunSuites,
    Tick,
)
from policies.rollout.judging import Result
from policies.rollout.plan import CHECK_STAGES, AdvanceBy, CheckKind, Stage
from policies.rollout.values import HoldCause, RolloutState


def to_do(state: RolloutState) -> tuple[Effect, ...]:
    """What a judge has to start for a rollout that it takes over in this state."""
    plan = state.plan
    if state.held is not None and (
        state.stage in CHECK_STAGES or state.held.cause is HoldCause.CONFIGURATION
    ):
        return ()  # a lift does it again, and nobody has said yet that this policy is meant
    if state.stage in CHECK_STAGES:
        kind = CheckKind(state.stage)
        found = state.checks.get(kind)
        # One that has passed waits for the end of a pause.
        return () if found is not None else (RunCheck(rollout=plan.name, kind=kind),)
    missing = tuple(name for name in plan.suites if name not in state.suites)
    if not plan.judges(state.stage) or not missing:
        return ()
    return (RunSuites(rollout=plan.name, look=state.look, suites=missing),)


def after_check(state: RolloutState) -> Stage:
    """The stage that follows a check's."""
    place = state.plan.following(state.stage)
    assert place is not None, "the shadow stage follows every check"
    return place[0]


def enter(state: RolloutState, stage: Stage, cause: str, unix_s: float, step: int = 0) -> Result:
    """Go to a stage: its table is published, and what it starts with is asked for.

    Args:
        step: of a canary; its tenants are moved, and only here.
    """
    plan = state.plan
    moved = state.moved
    if stage is Stage.CANARY:
        inside = plan.steps[step].tenants
        moved = (*(name for name in state.moved if name not in inside), *inside)
    elif stage is Stage.SHADOW or stage in CHECK_STAGES:
        moved = ()
    after = msgspec.structs.replace(
        state,
        stage=stage,
        step=step,
        moved=moved,
        checks={kind: found for kind, found in state.checks.items() if kind.value != stage.value},
        suites={},
        pairs=0,
        entered_unix_s=unix_s,
        looks=state.looks + plan.judges(stage),
    )
    moves = Moved(rollout=plan.name, before=state.place, after=after.place, cause=cause)
    return after, (Publish(rollout=plan.name, cause=cause), moves, *to_do(after))


def leave(state: RolloutState, cause: str, unix_s: float) -> Result:
    """To the next stage or step, whose conditions somebody has looked at. The last one moves home."""
    place = next_place(state)
    assert place is not None
    stage, step = place
    after, effects = enter(state, stage, cause, unix_s, step)
    if stage is Stage.PROMOTED:
        plan = state.plan
        # Before the table: what moves home must be on disk when an edge hears of it.
        effects = (MoveHome(rollout=plan.name, pool=plan.candidate, by=plan.name), *effects)
    return after, effects


# --- time


def tick(state: RolloutState, event: Tick) -> Result:
    """Leave the stage if it leaves by itself and nothing stands in its way."""
    if not state.entered_unix_s:
        # A state made without a clock: its stage lasts from the first that tells.
        state = msgspec.structs.replace(state, entered_unix_s=event.unix_s)
    leaving = state.leaving
    if leaving is None or leaving.advance is not AdvanceBy.GATES or next_place(state) is None:
        return state, ()
    if is_blocked(state, event.unix_s):
        return state, ()
    cause = f"{state.plan.name}: every condition of {state.place} holds"
    after, effects = leave(state, cause, event.unix_s)
    return after, (*effects, Log(rollout=state.plan.name, message=cause))


def no_time(state: RolloutState, event: Tick) -> Result:
    """Nothing here waits for a clock."""
    return state, ()


def step_clock(state: RolloutState, event: ClockStepped) -> Result:
    """The stage has lasted as long as before."""
    if not state.entered_unix_s:
        return state, ()
    return msgspec.structs.replace(state, entered_unix_s=state.entered_unix_s + event.by_s), ()


# --- a person's promote


def advance(state: RolloutState, event: Advance) -> Result:
    """A person promotes: to the next stage, if nothing stands in its way."""
    name = state.plan.name
    reasons = blocked_by(state, event.unix_s)
    if event.look is not None and event.look != state.look:
        reasons = (f"it is in {state.place} ({state.look}) by now, and {event.look} was meant", *reasons)
    if reasons:
        return state, (Declined(rollout=name, what=type(event).__name__, reasons=reasons),)
    cause = f"{name} promoted out of {state.place} by {event.who}: {event.why}"
    after, effects = leave(state, cause, event.unix_s)
    return after, (*effects, Log(rollout=name, message=cause))
