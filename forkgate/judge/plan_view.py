"""A rollout's plan as plain data: its steps, where it stands, what each waits for, what an edited file
changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from forkgate.checks.progress import CheckProgress
from policies.rollout import (
    CHECK_STAGES,
    ENDED_STAGES,
    AdvanceBy,
    CheckAnswer,
    CheckKind,
    Observing,
    RolloutPlan,
    RolloutState,
    ShadowStage,
    Stage,
    StartBy,
    Widening,
    blocked_by,
    next_place,
    resume,
    time_in_stage,
)


def plan_view(
    state: RolloutState,
    unix_s: float,
    *,
    check: CheckProgress | None = None,
    too_early: Sequence[str] = (),
    withheld: Sequence[str] = (),
) -> dict[str, Any]:
    """``GET /v1/rollouts/NAME/plan``: every step in order, the present one with all that it waits for.

    Args:
        check: how far the check is that runs.
        too_early: why a lift should wait.
        withheld: what stands in the way of the next step beside what the state knows.
    """
    blocked = [*blocked_by(state, unix_s), *withheld]
    return {
        "name": state.plan.name,
        "state": state.stage.value,
        "place": state.place,
        "look": state.look,
        "baseline": state.plan.baseline,
        "candidate": state.plan.candidate,
        "flip_in_flight": state.plan.flip_in_flight.value,
        "steps": [_step(state, *one, unix_s, blocked) for one in _places(state)],
        "blocked_by": blocked,
        "next": next_command(state, unix_s),
        "check": msgspec.to_builtins(check),
        "too_early": list(too_early),
    }


def next_command(state: RolloutState, unix_s: float) -> str | None:
    """What a person may type to bring it on from here; None where nothing is to be typed now."""
    name = state.plan.name
    verb = _next_verb(state, unix_s)
    return None if verb is None else f"forkgate rollout {verb} {name} --reason '...'"


def _next_verb(state: RolloutState, unix_s: float) -> str | None:
    if state.stage is Stage.ROLLED_BACK or state.held is not None:
        return "lift"
    if state.stage in (Stage.PENDING, Stage.ABORTED):
        return "start"
    if state.paused is not None:
        return "resume"
    leaving = state.leaving
    if leaving is None or leaving.advance is AdvanceBy.GATES or next_place(state) is None:
        return None
    return None if blocked_by(state, unix_s) else "promote"


_Place = tuple[Stage, int, ShadowStage | Widening | Observing | None]


_ORDER = list(Stage)


def _places(state: RolloutState) -> Iterable[_Place]:
    plan = state.plan
    if plan.start is StartBy.COMMAND:
        yield Stage.PENDING, 0, None
    places = list(plan.places)
    if state.stage in CHECK_STAGES and (state.stage, 0) not in places:
        # An edit took out the check that is made now. It moves nothing on: the check is made to its end.
        before = sum(_ORDER.index(stage) < _ORDER.index(state.stage) for stage, _ in places)
        places.insert(before, (state.stage, 0))
    for stage, step in places:
        yield stage, step, plan.leaving(stage, step)


def _step(
    state: RolloutState,
    stage: Stage,
    index: int,
    leaving: ShadowStage | Widening | Observing | None,
    unix_s: float,
    blocked: list[str],
) -> dict[str, Any]:
    here = state.stage is stage and (stage is not Stage.CANARY or state.step == index)
    standing = "here" if here else "done" if _past(state, stage, index) else "to come"
    told: dict[str, Any] = {
        "stage": stage.value,
        "name": _name(stage, index, leaving),
        "standing": standing,
        "tenants": list(leaving.tenants) if isinstance(leaving, Widening) else None,
        "advance": None if leaving is None else leaving.advance.value,
        "judged": state.plan.judges(stage),
        "pairs": None,
        "minimum_pairs": None if leaving is None else leaving.minimum_pairs,
        "lasted_s": None,
        "minimum_s": None if leaving is None else leaving.minimum_s,
        "blocked_by": [],
    }
    if here:
        told |= {
            "pairs": state.pairs,
            "lasted_s": time_in_stage(state, unix_s),
            "blocked_by": blocked,
        }
    return told


def _past(state: RolloutState, stage: Stage, index: int) -> bool:
    if state.stage in ENDED_STAGES:
        return False
    if stage in CHECK_STAGES and state.stage is not Stage.PENDING:
        found = state.checks.get(CheckKind(stage))
        return found is not None and found.answer is CheckAnswer.PASSED
    if state.stage is stage is Stage.CANARY:
        return index < state.step
    return _ORDER.index(stage) < _ORDER.index(state.stage)


def _name(stage: Stage, index: int, leaving: ShadowStage | Widening | Observing | None) -> str:
    if isinstance(leaving, Widening):
        return f"canary step {index + 1}: {leaving.name}"
    return stage.value.replace("_", " ")


# --- an edited file


def edit_view(state: RolloutState, plan: RolloutPlan, unix_s: float) -> dict[str, Any]:
    """What a restart under another plan of this name would do, and what of the plan is another."""
    after, _ = resume(state, plan, unix_s)
    before_routes, after_routes = _routes(state), _routes(after)
    moves = {
        tenant: [before_routes.get(tenant, "home"), after_routes.get(tenant, "home")]
        for tenant in sorted({*before_routes, *after_routes})
        if before_routes.get(tenant) != after_routes.get(tenant)
    }
    return {
        "name": state.plan.name,
        "new": False,
        "gone": False,
        "changes": _changes(state.plan, plan),
        "place": state.place,
        "place_after": after.place,
        "held": None if after.held is None or after.held == state.held else after.held.reason,
        "moves": moves,
        "home": [state.home, after.home] if state.home != after.home else None,
        "blocked_by": list(blocked_by(after, unix_s)),
    }


def _routes(state: RolloutState) -> dict[str, str]:
    return {str(tenant): str(state.plan.candidate) for tenant in state.routed}


def _changes(old: RolloutPlan, new: RolloutPlan) -> list[str]:
    """Every difference of two plans, a line each."""
    found: list[str] = []
    if old.policy.digest != new.policy.digest:
        found.append(f"policy: {old.policy.name} {old.policy.digest} → {new.policy.name} {new.policy.digest}")
    for name in RolloutPlan.__struct_fields__:
        if name in ("policy", "shares", "steps"):
            continue
        mine, other = getattr(old, name), getattr(new, name)
        if mine != other:
            found.append(f"{name}: {_short(mine)} → {_short(other)}")
    for index in range(max(len(old.steps), len(new.steps))):
        mine = old.steps[index] if index < len(old.steps) else None
        other = new.steps[index] if index < len(new.steps) else None
        if mine == other:
            continue
        found.append(f"steps[{index}]: {_said(mine)} → {_said(other)}")
    return found


def _said(step: Widening | None) -> str:
    if step is None:
        return "none"
    wants = f"{step.minimum_pairs} pairs, {step.minimum_s:g} s, advance {step.advance}"
    return f"{step.name} ({wants})"


def _short(value: object) -> str:
    plain = msgspec.to_builtins(value)
    if isinstance(plain, str):
        return plain
    return msgspec.json.encode(plain).decode()
