"""The state machine of one migration, as a table. Pure: ``step(state, event) -> (state, effects)``.

Theory of operation. A rollout is in one :class:`Stage`; what each event does there is one cell of
:data:`TABLE`::

    stage        evidence         check ended  suite ended  engine changed  lift         config
    self_check   gates are asked  on, or hold  not counted  hold            check again  checked, taken
    quick_check  gates are asked  on, or hold  not counted  hold            check again  checked, taken
    shadow       gates are asked  not counted  noted        hold            start anew   checked, taken
    canary       gates are asked  not counted  noted        hold            start anew   checked, taken
    rolled_back  ignored          not counted  not counted  noted           restart      kept for later
    promoted     gates are asked  not counted  noted        hold            start anew   checked, taken

*The way up.* A rollout begins with the checks that its plan names, in order: ``self_check`` (an environment
that does not agree with itself cannot be compared with another), then ``quick_check`` (what is wrong at once
is found at once). In these stages no request is copied and every tenant is at home. A check that passes leads
on; one that fails, or could not be made, *holds*, for no traffic is at stake that could be rolled back. Then
comes ``canary`` if the plan names tenants, else ``shadow``. Each of these starts with the policy's suites,
whose answers come as evidence like any other. ``promoted`` is a door: nothing enters it yet.

*The way down.* Any stage goes to ``rolled_back`` by a breach; it is latched and goes to where the plan
starts, checks included, only by a person's *lift*, with gates from their initial states.

*Held* is not a stage but a mark on one: traffic stays as it is, nothing advances, and the machine can still
roll back (a breach is never missed because something else was waiting). The first reason stands until a
person lifts it; then the gates start anew, and what the stage starts with is done again. :class:`HoldCause`
says what kind of thing is to be looked at: a check, a suite that could not be asked to its end, a gate, a
*choice* (the performance contract is missed at a level that promises tokens: see
:mod:`~policies.rollout.judging`), an encoding mismatch (the arms were asked different questions, which is no
fault of the candidate's numbers), frozen configuration that was changed, an engine that is another one than
before.

*Across a restart* the configuration may be another one. What is not frozen is taken, with gates as they are.
Where the policy, its suites or the pools are others, :func:`resume` begins the rollout again, from home and
held, so that neither evidence of two policies is mixed nor an edited file ends a hold.

A cell never acts; it returns effects, in order, for the judge to carry out. :func:`to_do` tells a judge that
takes a state over what it must start again: a check or a suite has no end that survives a ``kill -9``. State
is one serialisable value; it carries its plan (policy included), so that stored evidence and a stored state
are enough to compute a verdict again.

=============  ==============================================================
``values``     stages, plan, state
``events``     events and effects
``judging``    evidence folded, gates asked, what a verdict does
``handlers``   the other cells
``table``      the table
=============  ==============================================================
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
    "concerns",
    "in_percent",
    "initial_gates",
    "next_place",
    "resume",
    "start",
    "step",
    "steps_of",
    "time_in_stage",
    "to_do",
    "waits_for",
]
