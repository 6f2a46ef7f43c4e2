"""The state machine of one migration, as a table. Pure: ``step(state, event) -> (state, effects)``.

Theory of operation. A rollout is in one :class:`Stage`; what each event does there is one cell of
:data:`TABLE`. What moves it, apart from a breach, which rolls back from wherever evidence counts::

    stage         evidence        left by                          a lift          a file that was edited
    pending       ignored         a person's start                 (held) begins   kept for the start
    self_check    gates asked     its check, once it has passed    check again     taken
    quick_check   gates asked     its check, once it has passed    check again     taken
    shadow        gates asked     a person, or its conditions      start anew      taken
    canary        gates asked     a person, or its conditions      start anew      taken
    observing     gates asked     a person, or its conditions      start anew      taken
    promoted      gates asked     -                                start anew      taken
    rolled_back   ignored         a person's lift                  begins anew     kept for the lift
    aborted       ignored         a person's start                 declined        kept for the start

*The way up.* A rollout begins with the checks that its plan names, in order: ``self_check`` (an environment
that does not agree with itself cannot be compared with another), then ``quick_check`` (what is wrong at once
is found at once). In these stages no request is copied and every tenant is at home. A check that passes leads
on; one that fails, or could not be made, *holds*, for no traffic is at stake that could be rolled back. Then
come ``shadow``, where copies are compared and nobody has moved; ``canary``, the plan's steps, each of which
puts more tenants' live traffic on the candidate; ``observing``, everybody there and the old pool kept ready;
and ``promoted``: home is the candidate. Each of these is left under conditions
(:mod:`~policies.rollout.conditions`), by a person who promotes or by itself, as the plan says, and each but
the last starts with the policy's suites, whose answers come as evidence like any other. A shadow stage that
is skipped is judged by nothing, and waits for the old pool alone.

*The way down.* A breach, or a person, leads to ``rolled_back`` from any stage. That is latched, and a
person's *lift* alone leads out, to where the plan starts, checks included, with gates from their initial
states. ``aborted`` is home too, unlatched: a person gave the rollout up. Out of ``promoted`` both take home
back with them. A gate that is *kept by tenant* sends home its tenant alone, latched and lifted like a
rollout; once too many are, the rollout follows.

*Marks.* Held and paused are not stages but marks on one: traffic stays as it is, nothing advances, and the
machine can still roll back (a breach is never missed because something else was waiting). A pause is a
person's, and ends by a resume, with all evidence. A hold's first reason stands until a person lifts it; then
the gates start anew, and what the stage starts with is done again. :class:`HoldCause` says what kind of thing
is to be looked at: a check, a suite that could not be asked to its end, a gate, a *choice* (the performance
contract is missed at a level that promises tokens: see :mod:`~policies.rollout.judging`), an encoding
mismatch (the arms were asked different questions, which is no fault of the candidate's numbers), frozen
configuration that was changed, an engine that is another one than before, a rollback of the same pools that
stands under another name (another name in a file lifts nothing).

*A file that is edited* moves nothing. It starts no rollout, leaves no stage and puts no tenant on the
candidate; a tenant that no step names any more goes home. What is not frozen is taken, with gates as they
are, and counts from then on. Where the policy, its suites or the pools are others between two starts,
:func:`resume` sets the rollout back to ``pending``, held, so that neither evidence of two policies is mixed
nor an edited file ends a hold.

*Time* enters by events. :class:`Tick` leaves a stage whose conditions hold by now; a clock that goes back
only makes a stage last longer, and one that was set is told (:class:`ClockStepped`).

*Gates* keep their state from stage to stage, so that a test of traffic is one test however many steps there
are; a suite's gates look anew in each. What that means for alpha is in :mod:`policies.levels`.

A cell never acts; it returns effects, in order, for the judge to carry out. :func:`to_do` tells a judge that
takes a state over what it must start again: a check or a suite has no end that survives a ``kill -9``. State
is one serialisable value; it carries its plan (policy included), so that stored evidence and a stored state
are enough to compute a verdict again. One of another form is refused, not half read.

==============  ============================================================
``plan``        stages, steps, conditions; the plan
``values``      marks, latches, the state
``events``      events and effects
``judging``     evidence folded, gates asked, what a verdict does
``conditions``  what a stage waits for, in words
``moving``      from stage to stage; time; a person's promote
``people``      start, pause, resume, abort, rollback, lift
``handlers``    checks, suites, pools, configuration
``table``       the table
==============  ============================================================
"""

from policies.rollout.conditions import blocked_by, next_place, time_in_stage, waits_for
from policies.rollout.events import (
    Abort,
    Advance,
    CheckDone,
    ClockStepped,
    Configured,
    Declined,
    Effect,
    EnvironmentSeen,
    Event,
    Hold,
    HomeMoved,
    Lift,
    Log,
    Moved,
    MoveHome,
    Observed,
    Pause,
    PoolSeen,
    Publish,
    Restarted,
    Resume,
    RollBack,
    RollBackNow,
    RunCheck,
    RunSuites,
    SendHome,
    Start,
    Stopped,
    SuiteDone,
    Tick,
    Unlatch,
)
from policies.rollout.handlers import resume
from policies.rollout.judging import Result, concerns
from policies.rollout.moving import to_do
from policies.rollout.people import GATE_OF_A_PERSON
from policies.rollout.plan import (
    CHECK_STAGES,
    ENDED_STAGES,
    JUDGED_STAGES,
    MOVED_STAGES,
    AdvanceBy,
    CheckKind,
    InFlight,
    Observing,
    RolloutPlan,
    ShadowStage,
    Stage,
    StartBy,
    Step,
    Widening,
    in_percent,
    steps_of,
    taken_in,
)
from policies.rollout.table import QUIET, TABLE, step
from policies.rollout.values import (
    CheckAnswer,
    CheckFound,
    Held,
    HoldCause,
    Latch,
    PoolFound,
    RolloutState,
    Said,
    SuiteFound,
    TenantState,
    come_home,
    initial_gates,
    start,
)

__all__ = [
    "CHECK_STAGES",
    "ENDED_STAGES",
    "GATE_OF_A_PERSON",
    "JUDGED_STAGES",
    "MOVED_STAGES",
    "QUIET",
    "TABLE",
    "Abort",
    "Advance",
    "AdvanceBy",
    "CheckAnswer",
    "CheckDone",
    "CheckFound",
    "CheckKind",
    "ClockStepped",
    "Configured",
    "Declined",
    "Effect",
    "EnvironmentSeen",
    "Event",
    "Held",
    "Hold",
    "HoldCause",
    "HomeMoved",
    "InFlight",
    "Latch",
    "Lift",
    "Log",
    "MoveHome",
    "Moved",
    "Observed",
    "Observing",
    "Pause",
    "PoolFound",
    "PoolSeen",
    "Publish",
    "Restarted",
    "Result",
    "Resume",
    "RollBack",
    "RollBackNow",
    "RolloutPlan",
    "RolloutState",
    "RunCheck",
    "RunSuites",
    "Said",
    "SendHome",
    "ShadowStage",
    "Stage",
    "Start",
    "StartBy",
    "Step",
    "Stopped",
    "SuiteDone",
    "SuiteFound",
    "TenantState",
    "Tick",
    "Unlatch",
    "Widening",
    "blocked_by",
    "come_home",
    "concerns",
    "in_percent",
    "initial_gates",
    "next_place",
    "resume",
    "start",
    "step",
    "steps_of",
    "taken_in",
    "time_in_stage",
    "to_do",
    "waits_for",
]
