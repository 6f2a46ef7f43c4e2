"""The table itself: every stage, every event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from policies.rollout.events import (
    CheckDone,
    Configured,
    EnvironmentSeen,
    Event,
    Lift,
    Observed,
    SuiteDone,
)
from policies.rollout.handlers import (
    ignore,
    keep_config,
    late_check,
    late_suite,
    lift_hold,
    restart,
    see_environment,
    see_quietly,
    take_check,
    take_config,
    take_suite,
)
from policies.rollout.judging import Result, ask_gates
from policies.rollout.values import RolloutState, Stage

# Each handler takes the event kind of its column.
Handler = Callable[[RolloutState, Any], Result]

_CHECK: dict[type[Event], Handler] = {
    Observed: ask_gates,
    CheckDone: take_check,
    SuiteDone: late_suite,
    EnvironmentSeen: see_environment,
    Lift: lift_hold,
    Configured: take_config,
}
_TRAFFIC: dict[type[Event], Handler] = {
    Observed: ask_gates,
    CheckDone: late_check,
    SuiteDone: take_suite,
    EnvironmentSeen: see_environment,
    Lift: lift_hold,
    Configured: take_config,
}
TABLE: dict[Stage, dict[type[Event], Handler]] = {
    Stage.SELF_CHECK: _CHECK,
    Stage.QUICK_CHECK: _CHECK,
    Stage.SHADOW: _TRAFFIC,
    Stage.CANARY: _TRAFFIC,
    Stage.ROLLED_BACK: {
        Observed: ignore,
        CheckDone: late_check,
        SuiteDone: late_suite,
        EnvironmentSeen: see_quietly,
        Lift: restart,
        Configured: keep_config,
    },
    Stage.PROMOTED: _TRAFFIC,
}


def step(state: RolloutState, event: Event) -> Result:
    """The next state, and what the judge has to do, in order."""
    after, effects = TABLE[state.stage][type(event)](state, event)
    return msgspec.structs.replace(after, sequence=state.sequence + 1), effects
