"""The table itself: every stage, every event."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from policies.rollout.events import (
    Abort,
    Advance,
    CheckDone,
    ClockStepped,
    Configured,
    EnvironmentSeen,
    Event,
    HomeMoved,
    Lift,
    Observed,
    Pause,
    PoolSeen,
    Resume,
    RollBackNow,
    Start,
    SuiteDone,
    Tick,
)
from policies.rollout.handlers import (
    ignore,
    keep_config,
    late_check,
    late_suite,
    see_environment,
    see_home,
    see_pool,
    see_quietly,
    take_check,
    take_config,
    take_suite,
)
from policies.rollout.judging import Result, ask_gates
from policies.rollout.moving import advance, no_time, step_clock, tick
from policies.rollout.people import (
    abort,
    begin,
    decline_as_it_stands,
    end_pause,
    go_home,
    lift_hold,
    lift_in_vain,
    pause,
    restart,
)
from policies.rollout.plan import Stage
from policies.rollout.values import RolloutState

# Each handler takes the event kind of its column.
Handler = Callable[[RolloutState, Any], Result]
Row = dict[type[Event], Handler]

_EVERYWHERE: Row = {PoolSeen: see_pool, HomeMoved: see_home, ClockStepped: step_clock}
_GOING: Row = {
    **_EVERYWHERE,
    Observed: ask_gates,
    EnvironmentSeen: see_environment,
    Configured: take_config,
    Start: decline_as_it_stands,
    Pause: pause,
    Resume: end_pause,
    RollBackNow: go_home,
    Abort: abort,
    Lift: lift_hold,
}
_CHECK: Row = {
    **_GOING,
    CheckDone: take_check,
    SuiteDone: late_suite,
    Tick: no_time,
    Advance: advance,
}
_JUDGED: Row = {
    **_GOING,
    CheckDone: late_check,
    SuiteDone: take_suite,
    Tick: tick,
    Advance: advance,
}
_STILL: Row = {
    **_EVERYWHERE,
    Observed: ignore,
    CheckDone: late_check,
    SuiteDone: late_suite,
    EnvironmentSeen: see_quietly,
    Configured: keep_config,
    Tick: no_time,
    Advance: advance,
}
TABLE: dict[Stage, Row] = {
    Stage.PENDING: {
        **_STILL,
        Start: begin,
        Pause: pause,
        Resume: end_pause,
        RollBackNow: go_home,
        Abort: abort,
        Lift: lift_hold,
    },
    Stage.SELF_CHECK: _CHECK,
    Stage.QUICK_CHECK: _CHECK,
    Stage.SHADOW: _JUDGED,
    Stage.CANARY: _JUDGED,
    Stage.OBSERVING: _JUDGED,
    Stage.PROMOTED: {
        **_GOING,
        CheckDone: late_check,
        SuiteDone: late_suite,
        Tick: no_time,
        Advance: advance,
        Pause: decline_as_it_stands,
        Resume: end_pause,
    },
    Stage.ROLLED_BACK: {
        **_STILL,
        Start: decline_as_it_stands,
        Pause: decline_as_it_stands,
        Resume: end_pause,
        RollBackNow: decline_as_it_stands,
        Abort: decline_as_it_stands,
        Lift: restart,
    },
    Stage.ABORTED: {
        **_STILL,
        Start: begin,
        Pause: decline_as_it_stands,
        Resume: decline_as_it_stands,
        RollBackNow: go_home,
        Abort: decline_as_it_stands,
        Lift: lift_in_vain,
    },
}

QUIET: tuple[type[Event], ...] = (Tick, PoolSeen)
"""Sent again and again: one that changes nothing is not numbered, so that nobody has to keep it."""


def step(state: RolloutState, event: Event) -> Result:
    """The next state, and what the judge has to do, in order.

    The very ``state`` comes back, and no effect, when one of :data:`QUIET` says nothing new. Everything else
    is numbered.
    """
    after, effects = TABLE[state.stage][type(event)](state, event)
    if after is state and not effects and type(event) in QUIET:
        return state, ()
    return msgspec.structs.replace(after, sequence=state.sequence + 1), effects
