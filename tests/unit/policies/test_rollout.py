"""The rollout's table: every stage, every event; rollback is legal everywhere and latches."""

from __future__ import annotations

import msgspec
import pytest

from policies.errors import RouteError
from policies.policy import load_policy
from policies.rollout import (
    MOVED_STAGES,
    TABLE,
    Abort,
    Configured,
    Declined,
    Event,
    Held,
    Hold,
    HoldCause,
    Lift,
    Log,
    Moved,
    Observed,
    Publish,
    Restarted,
    RollBack,
    RolloutPlan,
    RolloutState,
    ShadowStage,
    Stage,
    Step,
    Unlatch,
    start,
    step,
)
from policies.routes import PoolName, RolloutName
from policies.tables import route_table
from policies.verdict import Answer
from tests.support.exchanges import comparison, live, pair
from tests.support.plans import POOLS, begun, in_first_step, plan_of
from tests.unit.policies.test_gates import fork_seen

LIFT = Lift(who="ana", why="driver fixed", unix_s=9.0)


def plan(on_fail: str = "rollback", **changes) -> RolloutPlan:
    text = f"""
level: token
alpha: 0.05
on_fail: {on_fail}
gates:
  token_equality: {{minimum_pairs: 2}}
  live_errors: {{kind: error_rate, source: live, maximum: 0.5, minimum_requests: 3}}
"""
    skips = {"shadow_stage": ShadowStage(skip=True)}
    return plan_of(load_policy(text, "test"), (Step(tenants=("acme",)),), **{**skips, **changes})


def observed(*items) -> Observed:
    return Observed(items=items, unix_s=5.0)


def at(stage: Stage, **changes) -> RolloutState:
    state = in_first_step(plan())
    if stage is Stage.ROLLED_BACK:
        return step(state, observed(fork_seen()))[0]
    if stage is Stage.ABORTED:
        return step(state, Abort(who="ana", why="enough", unix_s=4.0))[0]
    moved = state.moved if stage in MOVED_STAGES else ()
    return msgspec.structs.replace(state, stage=stage, moved=moved, **changes)


def kinds(effects) -> list[type]:
    return [type(effect) for effect in effects]


def test_the_table_has_a_cell_for_every_stage_and_event():
    events = set(Event.__args__)
    assert set(TABLE) == set(Stage)
    for row in TABLE.values():
        assert set(row) == events


LISTENING = [stage for stage in Stage if at(stage).listens]


def test_a_shadow_stage_that_is_skipped_is_left_by_the_first_tick_where_a_step_follows():
    assert begun(plan(shadow_stage=ShadowStage())).stage is Stage.SHADOW
    assert start(plan()).stage is Stage.SHADOW
    assert begun(plan()) == msgspec.structs.replace(at(Stage.CANARY), sequence=1, entered_unix_s=100.0)
    assert begun(plan(steps=())).stage is Stage.SHADOW


@pytest.mark.parametrize("stage", LISTENING)
@pytest.mark.parametrize("held", [None, Held(cause=HoldCause.GATE, reason="waiting for something else")])
def test_a_breach_rolls_back_from_every_stage_held_or_not(stage, held):
    state, effects = step(at(stage, held=held), observed(fork_seen("f")))
    assert state.stage is Stage.ROLLED_BACK
    rollbacks = [effect for effect in effects if isinstance(effect, RollBack)]
    assert len(rollbacks) == 1
    assert not rollbacks[0].latch.durable  # nobody has written it yet
    latch = rollbacks[0].latch
    assert latch == state.latch
    assert latch.verdict.deciding_id == "f"
    assert latch.from_stage is stage
    assert latch.policy_digest == plan().policy.digest


def test_a_rollback_happens_once_and_ends_its_event():
    event = observed(fork_seen("f"), fork_seen("g"), *[live(canary=True, status=500)] * 5)
    state, effects = step(at(Stage.CANARY), event)
    assert kinds(effects) == [Log, RollBack]
    assert state.evidence == 1
    again, effects = step(state, observed(fork_seen("h")))
    assert effects == ()
    assert again.latch == state.latch


def test_failing_live_canaries_roll_back_and_the_homes_failures_do_not():
    home = observed(*[live(status=500)] * 10)
    state, effects = step(at(Stage.CANARY), home)
    assert effects == ()
    state, effects = step(state, observed(*[live(canary=True, status=500)] * 3))
    assert kinds(effects) == [Log, RollBack]
    assert state.latch is not None
    assert state.latch.verdict.gate == "live_errors"


def test_evidence_of_another_rollout_is_not_its_own():
    other = msgspec.structs.replace(fork_seen(), rollout="another")
    strange = comparison(pair((1,), (2,), right={"rollout": "another"}))
    foreign = live(canary=True, tenant="globex", status=500)
    state, effects = step(at(Stage.CANARY), observed(other, strange, *[foreign] * 10))
    assert effects == ()
    assert state.evidence == 0


def test_a_change_of_answer_is_logged_once_with_value_limit_and_n():
    state, effects = step(at(Stage.CANARY), observed(*[comparison(pair())] * 3))
    verdicts = [effect.verdict for effect in effects if isinstance(effect, Log)]
    assert [(v.answer, v.n) for v in verdicts] == [(Answer.INCONCLUSIVE, 1), (Answer.PASS, 2)]
    assert verdicts[1].value == 0.0
    assert state.answers == {"token_equality": Answer.PASS}


def test_an_encoding_mismatch_holds_once_and_blames_no_gate():
    mismatch = comparison(pair((1,), (2,), right={"prompt": (0,)}))
    state, effects = step(at(Stage.CANARY), observed(mismatch, mismatch))
    assert kinds(effects) == [Hold]
    assert "encoding mismatch in capture capture" in effects[0].reason
    assert state.stage is Stage.CANARY
    assert state.encoding_mismatches == 2
    assert state.answers == {}


def test_on_fail_hold_stops_without_moving_traffic():
    state, effects = step(in_first_step(plan("hold")), observed(fork_seen(), fork_seen()))
    assert kinds(effects) == [Log, Hold]
    assert state.stage is Stage.CANARY
    assert state.held is not None
    assert effects[1].verdict.answer is Answer.FAIL


def test_only_a_lift_ends_a_rollback_and_evidence_starts_anew():
    rolled_back = at(Stage.ROLLED_BACK)
    state, effects = step(rolled_back, LIFT)
    assert kinds(effects) == [Unlatch, Restarted, Publish, Moved, Log]
    assert "lifted by ana: driver fixed" in effects[2].cause
    assert state.stage is Stage.SHADOW
    assert state.latch is None
    assert state.gates == start(plan()).gates
    assert step(state, observed(fork_seen()))[0].stage is Stage.ROLLED_BACK


def test_a_lift_without_anything_to_lift_says_so():
    state, effects = step(at(Stage.CANARY), LIFT)
    assert kinds(effects) == [Declined]
    assert "nothing to lift" in effects[0].reasons[0]
    assert state.stage is Stage.CANARY


def test_a_lift_ends_a_hold_and_the_gate_may_fail_again():
    held, _ = step(in_first_step(plan("hold")), observed(fork_seen()))
    state, _ = step(held, LIFT)
    assert state.held is None
    assert kinds(step(state, observed(fork_seen()))[1]) == [Log, Hold]


def test_a_restart_with_a_latch_is_still_rolled_back():
    latch = at(Stage.ROLLED_BACK).latch
    state = start(plan(), latch)
    assert state.stage is Stage.ROLLED_BACK
    assert step(state, observed(comparison(pair())))[1] == ()


def test_a_plan_that_loses_its_steps_goes_back_to_copies_alone():
    state, effects = step(at(Stage.CANARY), Configured(plan=plan(steps=()), unix_s=1.0))
    assert (state.stage, state.moved) == (Stage.SHADOW, ())
    assert kinds(effects) == [Publish, Moved]


def test_the_same_configuration_changes_nothing():
    state, effects = step(at(Stage.CANARY), Configured(plan=plan(), unix_s=1.0))
    assert effects == ()
    assert state.stage is Stage.CANARY


@pytest.mark.parametrize(
    ("changed", "word"),
    [(plan("hold"), "policy"), (plan(candidate=PoolName("newer")), "baseline or candidate")],
)
def test_what_is_frozen_holds_the_rollout_instead_of_changing_it(changed, word):
    state, effects = step(at(Stage.CANARY), Configured(plan=changed, unix_s=1.0))
    assert kinds(effects) == [Hold]
    assert word in effects[0].reason
    assert state.plan == plan()
    assert step(state, observed(fork_seen()))[0].stage is Stage.ROLLED_BACK


def test_a_rolled_back_rollout_takes_a_new_policy_at_its_lift():
    state, effects = step(at(Stage.ROLLED_BACK), Configured(plan=plan("hold"), unix_s=1.0))
    assert effects == ()
    assert state.stage is Stage.ROLLED_BACK
    state, _ = step(state, LIFT)
    assert kinds(step(state, observed(fork_seen()))[1]) == [Log, Hold]


def test_every_event_is_numbered():
    state = at(Stage.CANARY)
    for event in (observed(), LIFT, Configured(plan=plan(), unix_s=1.0), observed(fork_seen()), LIFT):
        state = step(state, event)[0]
    assert state.sequence == 5


def test_a_state_moves_to_another_judge_and_goes_on_the_same():
    first, _ = step(at(Stage.CANARY), observed(comparison(pair()), live(canary=True), live()))
    moved = msgspec.json.decode(msgspec.json.encode(first), type=RolloutState)
    assert moved == first
    event = observed(comparison(pair()), fork_seen())
    assert step(moved, event) == step(first, event)
    assert moved.verdicts() == first.verdicts()


def table(*states: RolloutState):
    return route_table(epoch=3, home=PoolName("old"), pools=POOLS, rollouts=states, cause="test")


def test_a_canary_tenant_is_routed_to_the_candidate_and_copies_are_drawn():
    made = table(at(Stage.CANARY))
    assert (made.home, made.routes) == ("old", {"acme": "new"})
    assert [(rule.rollout, rule.percent) for rule in made.mirrors] == [("old-to-new", 10.0)]
    assert made.epoch == 3


def test_in_shadow_everybody_is_home_and_copies_are_drawn():
    made = table(at(Stage.SHADOW))
    assert made.routes == {}
    assert len(made.mirrors) == 1


def test_rolled_back_means_no_route_and_no_copies():
    made = table(at(Stage.ROLLED_BACK))
    assert made.routes == {}
    assert made.mirrors == ()


def test_two_canaries_for_one_tenant_are_refused():
    second = in_first_step(plan(name=RolloutName("second")))
    with pytest.raises(RouteError, match="tenant acme: canary of both old-to-new and second"):
        table(at(Stage.CANARY), second)


def test_an_unknown_pool_is_refused():
    with pytest.raises(RouteError, match="rollout old-to-new: pool 'gone' is not one of"):
        table(start(plan(candidate=PoolName("gone"))))
