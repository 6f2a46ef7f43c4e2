"""What stops a rollout without moving traffic: a gate that asks for a look, and the performance contract."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import pytest

from policies.gates.base import Alpha, Evidence
from policies.policy import Level, OnFail, Policy
from policies.rollout import (
    CheckKind,
    Hold,
    HoldCause,
    Log,
    Observed,
    RollBack,
    RolloutPlan,
    ShadowStage,
    Stage,
    Widening,
    blocked_by,
    resume,
    start,
    step,
    to_do,
)
from policies.routes import PoolName, TenantName
from policies.verdict import Answer, Verdict
from tests.support.exchanges import live
from tests.support.plans import plan_of
from tests.unit.policies.test_rollout import LIFT, kinds


class Counted(msgspec.Struct, frozen=True):
    n: int = 0


class Scripted(msgspec.Struct, frozen=True, kw_only=True):
    """A gate that says what it is told to, item by item."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False
    name: str = "scripted"
    says: tuple[tuple[Answer, bool], ...]

    def initial(self) -> Counted:
        return Counted()

    def fold(self, state: Counted, evidence: Evidence) -> Counted:
        return Counted(state.n + 1)

    def verdict(self, state: Counted, alpha: Alpha) -> Verdict:
        answer, hold = self.says[state.n - 1]
        return Verdict(
            gate=self.name, answer=answer, value=None, limit=None, n=state.n, reason=f"{state.n}", hold=hold
        )


class Slow(Scripted, frozen=True, kw_only=True):
    performance: ClassVar[bool] = True


def plan(gate: Any, level: Level = Level.TOKEN, on_fail: OnFail = OnFail.ROLLBACK) -> RolloutPlan:
    policy = Policy(name="p", level=level, alpha=0.05, on_fail=on_fail, gates={"scripted": gate})
    return plan_of(policy)


ITEM = Observed(items=(live(),), unix_s=1.0)
INCONCLUSIVE = (Answer.INCONCLUSIVE, False)


def test_a_gate_that_asks_for_a_look_holds_once_and_rolls_nothing_back():
    look = (Answer.INCONCLUSIVE, True)
    state = start(plan(Scripted(says=(INCONCLUSIVE, look, look))))
    state, effects = step(state, ITEM)
    assert kinds(effects) == [Log]
    state, effects = step(state, ITEM)
    assert kinds(effects) == [Log, Hold]  # the answer is the same, but what held it is kept
    assert effects[0].verdict.hold
    assert state.held is not None
    assert (state.held.cause, state.held.reason) == (HoldCause.GATE, "scripted asks for a look: 2")
    assert state.stage is Stage.SHADOW
    assert step(state, ITEM)[1] == ()


def test_a_failure_that_asks_for_a_look_never_rolls_back():
    state, effects = step(start(plan(Scripted(says=((Answer.FAIL, True),)))), ITEM)
    assert kinds(effects) == [Log, Hold]
    assert state.latch is None


def test_a_later_breach_still_rolls_a_held_rollout_back():
    state = start(plan(Scripted(says=((Answer.INCONCLUSIVE, True), (Answer.FAIL, False)))))
    state, _ = step(state, ITEM)
    assert state.held is not None
    state, effects = step(state, ITEM)
    assert kinds(effects) == [Log, RollBack]
    assert state.stage is Stage.ROLLED_BACK


@pytest.mark.parametrize("level", [Level.TOKEN, Level.ENVIRONMENT, Level.ARTIFACT])
@pytest.mark.parametrize("on_fail", list(OnFail))
def test_a_missed_performance_contract_at_a_strict_level_stops_at_a_choice(level, on_fail):
    state, effects = step(start(plan(Slow(says=((Answer.FAIL, False),)), level, on_fail)), ITEM)
    assert kinds(effects) == [Log, Hold]
    held = state.held
    assert held is not None
    assert held.cause is HoldCause.CHOICE
    assert f"At level {level}" in held.reason
    assert [
        word in text for word, text in zip(("relax", "another level", "flags"), held.choice, strict=True)
    ] == [True] * 3
    assert effects[1].choice == held.choice
    assert state.plan.policy.level is level


def test_at_level_statistical_a_missed_performance_contract_rolls_back():
    state, effects = step(start(plan(Slow(says=((Answer.FAIL, False),)), Level.STATISTICAL)), ITEM)
    assert kinds(effects) == [Log, RollBack]
    assert state.stage is Stage.ROLLED_BACK


def test_a_lifted_hold_may_hold_again():
    state, _ = step(start(plan(Slow(says=((Answer.FAIL, False),)))), ITEM)
    state, _ = step(state, LIFT)
    assert state.held is None
    assert Hold in kinds(step(state, ITEM)[1])


def test_every_verdict_of_a_gate_that_tests_carries_its_share_of_alpha():
    made = plan(Scripted(says=(INCONCLUSIVE,)))
    state, effects = step(start(made), ITEM)
    assert effects[0].verdict.alpha == state.alpha("scripted").rollback == 0.05
    assert state.verdicts()[0].alpha == effects[0].verdict.alpha


# --- between two starts


STEPS = (Widening(tenants=(TenantName("acme"),)),)
RESUMED = [
    (Stage.SELF_CHECK, (CheckKind.SELF_CHECK,)),
    (Stage.QUICK_CHECK, (CheckKind.QUICK_CHECK,)),
    (Stage.CANARY, (CheckKind.SELF_CHECK, CheckKind.QUICK_CHECK)),
    (Stage.CANARY, ()),
    (Stage.SHADOW, ()),
    (Stage.OBSERVING, ()),
]
"""Where it stood, and the checks that the new plan asks for."""


@pytest.mark.parametrize(("stood", "checks"), RESUMED)
@pytest.mark.parametrize("change", ["policy", "candidate", "baseline"])
def test_what_is_frozen_and_changed_between_two_starts_begins_again_at_home_and_held(
    stood: Stage, checks: tuple[CheckKind, ...], change: str
) -> None:
    old = msgspec.structs.replace(
        plan(Scripted(says=(INCONCLUSIVE,))), steps=STEPS, shadow_stage=ShadowStage(skip=True)
    )
    state = msgspec.structs.replace(start(old), stage=stood)
    state, _ = step(state, ITEM)
    new = msgspec.structs.replace(old, checks=checks)
    if change == "policy":
        new = msgspec.structs.replace(new, policy=msgspec.structs.replace(old.policy, alpha=0.2))
    else:
        new = msgspec.structs.replace(new, **{change: PoolName("third")})
    after, effects = resume(state, new, 2.0)
    assert after.plan == new
    assert (after.stage, after.moved) == (Stage.PENDING, ())
    assert after.gates == {"scripted": Counted()}
    assert (after.evidence, after.sequence) == (state.evidence, state.sequence)
    assert after.held is not None
    assert after.held.cause is HoldCause.CONFIGURATION
    assert kinds(effects) == [Hold]
    assert to_do(after) == ()
    assert blocked_by(after, 2.0) == (f"held: {after.held.reason}",), "the lift alone begins it"
    lifted, _ = step(after, LIFT)
    assert lifted.held is None
    assert lifted.plan == new
    assert lifted.stage is (Stage(checks[0]) if checks else Stage.SHADOW)


def test_what_is_not_frozen_is_taken_with_gates_and_hold_as_they_are() -> None:
    state, _ = step(start(plan(Scripted(says=((Answer.INCONCLUSIVE, True),)))), ITEM)
    assert state.held is not None
    new = msgspec.structs.replace(state.plan, percent=7.0)
    after, _ = resume(state, new, 2.0)
    assert (after.plan, after.gates, after.held) == (new, state.gates, state.held)
    assert resume(state, state.plan, 2.0) == (state, ())


def test_a_rolled_back_rollout_takes_any_plan_and_stays_where_it_is() -> None:
    state, _ = step(start(plan(Scripted(says=((Answer.FAIL, False),)))), ITEM)
    assert state.stage is Stage.ROLLED_BACK
    new = plan(Scripted(says=(INCONCLUSIVE, INCONCLUSIVE)))
    after, effects = resume(state, new, 2.0)
    assert (after.stage, after.latch, after.plan, effects) == (Stage.ROLLED_BACK, state.latch, new, ())
