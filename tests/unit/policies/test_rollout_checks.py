"""What a rollout does before any traffic is copied, and what each of its stages starts with."""

from __future__ import annotations

import pytest

from policies.policy import load_policy
from policies.rollout import (
    CheckAnswer,
    CheckDone,
    CheckKind,
    Configured,
    EnvironmentSeen,
    Hold,
    HoldCause,
    Log,
    Moved,
    Observed,
    Publish,
    Restarted,
    RollBack,
    RolloutPlan,
    RolloutState,
    RunCheck,
    RunSuites,
    Stage,
    SuiteDone,
    Tick,
    Unlatch,
    start,
    step,
    to_do,
)
from policies.routes import PoolName
from policies.tables import route_table
from tests.support.plans import POOLS, in_first_step
from tests.unit.policies.test_gates import fork_seen
from tests.unit.policies.test_rollout import LIFT, kinds, observed, plan

BOTH = (CheckKind.SELF_CHECK, CheckKind.QUICK_CHECK)
SUITES = """
level: statistical
alpha: 0.04
gates:
  rule_cases: {}
suites:
  starter: {}
"""


def checked(**changes) -> RolloutPlan:
    return plan(**{"checks": BOTH, **changes})


def with_suite(**changes) -> RolloutPlan:
    policy = load_policy(SUITES, "suites").with_suites({"starter": "sha256:" + "0" * 64})
    return plan(**{"policy": policy, **changes})


def done(kind: CheckKind, answer: CheckAnswer = CheckAnswer.PASSED) -> CheckDone:
    return CheckDone(kind=kind, answer=answer, summary="50 of 50 equal", facts={"pairs": "50"}, unix_s=3.0)


def at_home(state: RolloutState) -> bool:
    table = route_table(epoch=2, home=PoolName("old"), pools=POOLS, rollouts=[state], cause="test")
    return not table.routes and not table.mirrors


def seen(endpoint: str = "http://127.0.0.1:2", pool: str = "new", **facts: str) -> EnvironmentSeen:
    return EnvironmentSeen(pool=PoolName(pool), endpoint=endpoint, facts=facts, unix_s=4.0)


def test_it_goes_through_its_checks_in_order_and_copies_nothing_until_they_passed():
    state = start(checked())
    assert state.stage is Stage.SELF_CHECK
    assert to_do(state) == (RunCheck(rollout="old-to-new", kind=CheckKind.SELF_CHECK),)
    assert at_home(state)
    state, effects = step(state, done(CheckKind.SELF_CHECK))
    assert state.stage is Stage.QUICK_CHECK
    assert kinds(effects) == [Log, Publish, Moved, RunCheck]
    assert effects[-1].kind is CheckKind.QUICK_CHECK
    assert at_home(state)
    state, effects = step(state, done(CheckKind.QUICK_CHECK))
    assert state.stage is Stage.SHADOW
    assert kinds(effects) == [Log, Publish, Moved]
    state, effects = step(state, Tick(unix_s=3.0))
    assert state.stage is Stage.CANARY, "it skips its shadow stage"
    assert kinds(effects) == [Publish, Moved, Log]
    assert not at_home(state)
    assert {kind: found.answer for kind, found in state.checks.items()} == dict.fromkeys(
        BOTH, CheckAnswer.PASSED
    )


def test_one_check_may_be_left_out():
    assert start(checked(checks=(CheckKind.QUICK_CHECK,))).stage is Stage.QUICK_CHECK
    only_self = start(checked(checks=(CheckKind.SELF_CHECK,), steps=()))
    assert step(only_self, done(CheckKind.SELF_CHECK))[0].stage is Stage.SHADOW


@pytest.mark.parametrize("answer", [CheckAnswer.FAILED, CheckAnswer.COULD_NOT])
def test_a_check_that_did_not_pass_holds_and_a_lift_makes_it_again(answer):
    state, effects = step(start(checked()), done(CheckKind.SELF_CHECK, answer))
    assert kinds(effects) == [Log, Hold]
    assert state.stage is Stage.SELF_CHECK
    assert state.latch is None
    assert state.held is not None
    assert state.held.cause is HoldCause.CHECK
    assert state.held.reason == f"self_check {answer}: 50 of 50 equal"
    assert to_do(state) == ()
    assert at_home(state)
    state, effects = step(state, LIFT)
    assert kinds(effects) == [Restarted, RunCheck, Log]
    assert (state.stage, state.held) == (Stage.SELF_CHECK, None)
    assert step(state, done(CheckKind.SELF_CHECK))[0].stage is Stage.QUICK_CHECK


def test_a_check_that_nobody_waits_for_moves_nothing():
    state = start(checked())
    after, effects = step(state, done(CheckKind.QUICK_CHECK))
    assert kinds(effects) == [Log]
    assert after.stage is Stage.SELF_CHECK
    canary = start(plan())
    assert step(canary, done(CheckKind.SELF_CHECK, CheckAnswer.FAILED))[0].held is None


def test_a_lift_of_a_rollback_starts_with_the_checks_again():
    rolled_back, _ = step(start(checked()), observed(fork_seen()))
    assert rolled_back.stage is Stage.ROLLED_BACK
    state, effects = step(rolled_back, LIFT)
    assert kinds(effects) == [Unlatch, Restarted, Publish, Moved, RunCheck, Log]
    assert state.stage is Stage.SELF_CHECK
    assert at_home(state)


def test_a_check_taken_out_of_the_configuration_moves_nothing_and_a_lift_passes_it_over():
    without = plan()
    state, _ = step(start(checked()), Configured(plan=without, unix_s=1.0))
    assert state.stage is Stage.SELF_CHECK
    assert step(state, done(CheckKind.SELF_CHECK))[0].stage is Stage.SHADOW
    held, _ = step(start(checked()), done(CheckKind.SELF_CHECK, CheckAnswer.FAILED))
    state, _ = step(held, Configured(plan=without, unix_s=1.0))
    assert (state.stage, state.held) == (Stage.SELF_CHECK, held.held)
    assert at_home(state)
    state, effects = step(state, LIFT)
    assert state.stage is Stage.SHADOW
    assert Publish in kinds(effects)


def test_a_suite_that_could_not_be_asked_to_its_end_holds_until_a_lift_asks_it_again():
    """Its gates would wait for ever, and the rollout with them."""
    state = in_first_step(with_suite())
    end = SuiteDone(
        suite="starter", look="canary-1", summary="0 of 50; 50 unsupported", whole=False, unix_s=5.0
    )
    state, effects = step(state, end)
    assert kinds(effects) == [Log, Hold]
    assert state.held is not None
    assert (state.held.cause, state.held.reason) == (HoldCause.SUITE, "0 of 50; 50 unsupported")
    assert to_do(state) == ()
    state, effects = step(state, LIFT)
    assert state.held is None
    assert RunSuites(rollout="old-to-new", look="canary-1", suites=("starter",)) in effects


def test_each_stage_asks_its_suites_and_a_judge_that_takes_over_asks_what_is_missing():
    state = start(with_suite(checks=(CheckKind.QUICK_CHECK,)))
    state, effects = step(state, done(CheckKind.QUICK_CHECK))
    assert to_do(state) == (), "a stage that is skipped asks none"
    state, effects = step(state, Tick(unix_s=3.5))
    asked = RunSuites(rollout="old-to-new", look="canary-1", suites=("starter",))
    assert asked in effects
    assert to_do(state) == (asked,)
    late = SuiteDone(suite="starter", look="shadow-1", summary="late", unix_s=4.0)
    assert step(state, late)[0].suites == {}
    state, effects = step(state, SuiteDone(suite="starter", look="canary-1", summary="5000", unix_s=5.0))
    assert kinds(effects) == [Log]
    assert to_do(state) == ()
    state, effects = step(state, Configured(plan=with_suite(steps=()), unix_s=6.0))
    assert state.stage is Stage.SHADOW
    assert effects[-1] == RunSuites(rollout="old-to-new", look="shadow-2", suites=("starter",))


def test_an_engine_that_is_another_one_in_mid_rollout_holds_it():
    state, effects = step(in_first_step(plan()), seen(version="0.11", dtype="bfloat16"))
    assert effects == ()
    state, effects = step(state, seen(version="0.11"))  # not told this time: no change
    assert effects == ()
    state, effects = step(state, seen(version="0.12", dtype="bfloat16"))
    assert kinds(effects) == [Hold]
    assert state.stage is Stage.CANARY
    assert state.held is not None
    assert state.held.cause is HoldCause.ENVIRONMENT
    assert "pool new: http://127.0.0.1:2 changed in mid-rollout: version 0.11 → 0.12" in state.held.reason
    state, _ = step(state, LIFT)
    assert step(state, seen(version="0.12", dtype="bfloat16"))[1] == ()  # that is what it is now
    assert kinds(step(state, seen(version="0.11", dtype="bfloat16"))[1]) == [Hold]


def test_an_engine_that_joins_its_pool_as_another_one_holds_it():
    state, _ = step(start(plan()), seen(version="0.11", environment_digest="sha256:a"))
    joining = "http://127.0.0.1:3"
    # Another machine of the same engine: its kernel may make its digest another one.
    same, effects = step(state, seen(endpoint=joining, version="0.11", environment_digest="sha256:b"))
    assert effects == ()
    assert same.held is None
    state, effects = step(state, seen(endpoint=joining, version="0.12"))
    assert kinds(effects) == [Hold]
    assert state.held is not None
    assert state.held.cause is HoldCause.ENVIRONMENT
    assert f"{joining} is another engine than http://127.0.0.1:2" in state.held.reason
    assert "version 0.11 → 0.12" in state.held.reason
    state, _ = step(state, LIFT)
    assert step(state, seen(endpoint=joining, version="0.12"))[1] == ()


def test_engines_of_other_pools_and_repairs_after_a_rollback_hold_nothing():
    state, _ = step(start(plan()), seen(pool="other", version="1"))
    assert state.environments == {}
    state, _ = step(state, seen(version="1"))
    state, _ = step(state, observed(fork_seen()))
    state, effects = step(state, seen(version="2"))
    assert effects == ()
    assert step(step(state, LIFT)[0], seen(version="2"))[1] == ()


def test_a_breach_in_a_check_rolls_back_like_anywhere_else():
    state, effects = step(start(checked()), observed(fork_seen()))
    assert RollBack in kinds(effects)
    assert state.latch is not None
    assert state.latch.from_stage is Stage.SELF_CHECK


def test_evidence_keeps_its_numbers_across_a_lift():
    state, _ = step(start(plan("hold")), observed(fork_seen("a")))
    state, effects = step(state, LIFT)
    assert state.evidence == 1
    assert effects[0] == Restarted(rollout="old-to-new", evidence=1, cause=effects[0].cause)
    assert state.begun_unix_s == LIFT.unix_s
    state, effects = step(state, Observed(items=(fork_seen("b"),), unix_s=9.0))
    (log,) = [effect for effect in effects if isinstance(effect, Log)]
    assert log.evidence == 2
    assert log.gate_state == state.gates["token_equality"]
