"""From step to step: what each waits for, who moves, and what an edited file may do."""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from policies.policy import load_policy
from policies.rollout import (
    Abort,
    Advance,
    AdvanceBy,
    CheckAnswer,
    CheckDone,
    CheckKind,
    ClockStepped,
    Configured,
    Declined,
    EnvironmentSeen,
    HomeMoved,
    InFlight,
    Lift,
    Log,
    Moved,
    MoveHome,
    Observed,
    Observing,
    Pause,
    PoolSeen,
    Publish,
    Restarted,
    Resume,
    RollBack,
    RollBackNow,
    RolloutPlan,
    RolloutState,
    RunCheck,
    RunSuites,
    ShadowStage,
    Stage,
    Start,
    StartBy,
    Step,
    Stopped,
    SuiteDone,
    Tick,
    blocked_by,
    in_percent,
    resume,
    start,
    step,
    steps_of,
    to_do,
    waits_for,
)
from policies.routes import Pool, PoolName, RolloutName, TenantName
from policies.tables import route_table
from tests.support.exchanges import comparison, live, pair
from tests.support.plans import NAME, TENANTS, begun, plan_of, routes
from tests.unit.policies.test_gates import fork_seen
from tests.unit.policies.test_rollout import kinds

GATES = """
level: token
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 2}
  live_errors: {kind: error_rate, source: live, maximum: 0.5, minimum_requests: 3}
"""
STEPS = (Step(tenants=("acme",)), Step(percent=50.0), Step(percent=100.0))
SAID = {"who": "ana", "why": "looks fine"}
PAIRS = (comparison(pair()),) * 2
LIVE = (live(canary=True),) * 3


def plan(steps: tuple[Step, ...] = STEPS, **changes: Any) -> RolloutPlan:
    return plan_of(load_policy(GATES, "p"), steps, **{"observe": Observing(minimum_s=0.0), **changes})


def take(state: RolloutState, *items: Any, unix_s: float = 10.0) -> RolloutState:
    """After this evidence, or these events."""
    for item in items:
        state, _ = step(state, item)
    return state


def seen(*items: Any) -> Observed:
    return Observed(items=items, unix_s=10.0)


def advance(unix_s: float = 200.0, **more: Any) -> Advance:
    return Advance(**SAID, unix_s=unix_s, **more)


def in_canary(**changes: Any) -> RolloutState:
    state = take(begun(plan(**changes)), seen(*PAIRS), advance())
    assert state.place == f"canary step 1 of {len(state.plan.steps)}"
    return state


def observing(**changes: Any) -> RolloutState:
    state = take(in_canary(**changes), seen(*LIVE), advance(), advance(), advance())
    assert state.stage is Stage.OBSERVING
    return state


# --- the way up


def test_it_goes_from_pending_to_promoted_step_by_step_and_home_moves_at_the_end():
    state = start(plan(start=StartBy.COMMAND, checks=(CheckKind.QUICK_CHECK,)))
    assert state.stage is Stage.PENDING
    assert routes(state) == {}
    assert take(state, Tick(unix_s=1e9), seen(*PAIRS, fork_seen())) == msgspec.structs.replace(
        state, sequence=1
    )
    state, effects = step(state, Start(**SAID, unix_s=100.0))
    assert state.stage is Stage.QUICK_CHECK
    assert kinds(effects) == [Publish, Moved, RunCheck, Log]
    passed = CheckDone(
        kind=CheckKind.QUICK_CHECK, answer=CheckAnswer.PASSED, summary="10 equal", unix_s=101.0
    )
    state = take(state, passed, seen(*PAIRS))
    assert (state.stage, routes(state)) == (Stage.SHADOW, {})
    state, effects = step(state, advance(102.0))
    assert kinds(effects) == [Publish, Moved, Log]
    assert (effects[1].before, effects[1].after) == ("shadow", "canary step 1 of 3")
    assert routes(state) == {"acme": "new"}
    state = take(state, seen(*LIVE), advance(103.0))
    half = [name for name in TENANTS if in_percent(name, NAME, 50.0)]
    assert 0 < len(half) < 4
    assert set(routes(state)) == {"acme", *half}
    state = take(state, advance(104.0))
    assert set(routes(state)) == set(TENANTS)
    state = take(state, advance(105.0))
    assert state.stage is Stage.OBSERVING
    assert set(routes(state)) == set(TENANTS)
    state, effects = step(state, advance(106.0))
    assert state.stage is Stage.PROMOTED
    assert effects[0] == MoveHome(rollout=NAME, pool=PoolName("new"), by=NAME)
    assert kinds(effects) == [MoveHome, Publish, Moved, Log]
    assert (state.home, state.mirrors, routes(state)) == ("new", False, {})


def test_a_stage_that_leaves_by_itself_does_at_the_first_second_in_which_its_conditions_hold():
    by_itself = ShadowStage(advance=AdvanceBy.GATES, minimum_pairs=3, minimum_s=60.0)
    state = begun(plan(shadow_stage=by_itself))
    state = take(state, seen(*PAIRS), Tick(unix_s=500.0))
    assert state.stage is Stage.SHADOW  # 2 of 3 requests
    state = take(state, seen(comparison(pair())))
    assert step(state, Tick(unix_s=159.0)) == (state, ())
    state, effects = step(state, Tick(unix_s=160.0))
    assert state.place == "canary step 1 of 3"
    assert effects[-1].message == "old-to-new: every condition of shadow holds"
    assert (state.entered_unix_s, state.pairs) == (160.0, 0)


def test_a_manual_stage_waits_for_a_person_however_good_it_looks():
    state = take(begun(plan()), seen(*PAIRS))
    assert blocked_by(state, 1e9) == ()
    assert waits_for(state, 1e9) == ("a person: `forkgate rollout promote old-to-new`",)
    assert step(state, Tick(unix_s=1e9)) == (state, ())


def test_a_plan_without_steps_copies_for_ever():
    state = take(begun(plan(())), seen(*PAIRS))
    (why,) = blocked_by(state, 1e9)
    assert why == "no step follows: the rollout has none, and copies are all that it makes"
    assert kinds(step(state, advance())[1]) == [Declined]


def test_home_does_not_move_for_tenants_whom_no_step_took_in():
    state = take(in_canary(steps=STEPS[:1]), seen(*LIVE))
    (why,) = blocked_by(state, 1e9)
    assert why.startswith("no step follows that takes every tenant in, so home cannot move")
    assert step(state, advance())[0].stage is Stage.CANARY


# --- what a step waits for


def test_everything_that_stands_in_the_way_is_said_with_numbers():
    state = begun(plan(shadow_stage=ShadowStage(minimum_pairs=3, minimum_s=60.0)))
    state = take(state, seen(PAIRS[0]))
    assert blocked_by(state, 130.4) == (
        "1 of 3 requests were compared in this stage",
        "it has lasted 30 of 60 s",
        "token_equality is inconclusive: " + state.verdict("token_equality").reason,
    )
    state, effects = step(state, advance(130.4))
    assert effects == (Declined(rollout=NAME, what="Advance", reasons=blocked_by(state, 130.4)),)
    assert state.stage is Stage.SHADOW


def test_a_gate_of_live_requests_is_not_asked_before_there_are_any_and_is_from_then_on():
    shadow = take(begun(plan()), seen(*PAIRS))
    assert shadow.verdict("live_errors").answer.value == "inconclusive"
    assert blocked_by(shadow, 200.0) == ()
    canary = take(shadow, advance())
    (why,) = blocked_by(canary, 300.0)
    assert why.startswith("live_errors is inconclusive: ")
    assert blocked_by(take(canary, seen(*LIVE)), 300.0) == ()


def test_pairs_are_counted_anew_in_each_step_and_without_those_set_aside():
    state = take(begun(plan()), seen(*PAIRS))
    assert state.pairs == 2
    aside = comparison(pair(right={"prompt": (1,)}))
    assert take(state, seen(aside)).pairs == 2
    assert take(state, advance()).pairs == 0


def test_each_step_asks_its_suites_again_under_a_name_of_its_own():
    text = "level: statistical\nalpha: 0.04\ngates: {rule_cases: {}}\nsuites: {starter: {}}"
    policy = load_policy(text, "p").with_suites({"starter": "sha256:" + "0" * 64})
    state = begun(plan(policy=policy))
    assert "suite starter was not asked to its end in this stage" in blocked_by(state, 200.0)
    done = SuiteDone(suite="starter", look="shadow-1", summary="50 of 50", unix_s=150.0)
    state = take(state, done)
    assert blocked_by(state, 200.0)[0].startswith("rule_cases is inconclusive")
    moved = msgspec.structs.replace(state, stage=Stage.CANARY, looks=2, suites={}, step=0)
    assert moved.look == "canary-2"
    assert take(moved, done).suites == {}
    assert to_do(moved) == (RunSuites(rollout=NAME, look="canary-2", suites=("starter",)),)


def test_a_lost_old_pool_stops_every_step_and_latches_nothing():
    state = take(begun(plan(pool_proof=True)), seen(*PAIRS))
    assert blocked_by(state, 200.0) == ("pool old: whether it could take everything back was not seen yet",)
    lost = PoolSeen(pool=PoolName("old"), ready=False, reason="0 of 2 endpoints answer", unix_s=150.0)
    state, effects = step(state, lost)
    assert kinds(effects) == [Log]
    assert effects[0].message == (
        "pool old could not take everything back: nothing advances. 0 of 2 endpoints answer"
    )
    assert blocked_by(state, 200.0) == ("pool old could not take everything back: 0 of 2 endpoints answer",)
    assert (state.held, state.latch) == (None, None)
    assert step(state, lost) == (state, ())  # the same again is no event
    ready = PoolSeen(pool=PoolName("old"), ready=True, reason="2 of 2 answer, KV cache at 31 %", unix_s=160.0)
    state, effects = step(state, ready)
    assert kinds(effects) == [Log]
    assert blocked_by(state, 200.0) == ()


def env(endpoint: str, pool: str = "new", **facts: str) -> EnvironmentSeen:
    return EnvironmentSeen(pool=PoolName(pool), endpoint=endpoint, facts=facts, unix_s=4.0)


def test_endpoints_of_one_pool_that_are_two_environments_stop_every_step():
    state = take(begun(plan()), seen(*PAIRS), env("http://a", environment_digest="sha256:1"))
    assert blocked_by(state, 200.0) == ()
    state = take(state, env("http://b", environment_digest="sha256:2"))
    assert blocked_by(state, 200.0) == (
        "pool new: its endpoints are not of one environment: http://a sha256:1, http://b sha256:2",
    )


def test_a_declared_environment_has_to_be_proved_by_every_endpoint():
    made = plan(declared={PoolName("new"): "sha256:1"})
    state = take(begun(made), seen(*PAIRS))
    assert blocked_by(state, 200.0) == (
        "pool new: no endpoint has said which environment it is, sha256:1 was declared",
    )
    state = take(state, env("http://a", version="1"), env("http://b", environment_digest="sha256:2"))
    assert blocked_by(state, 200.0) == (
        "pool new: http://a does not say which environment it is, sha256:1 was declared",
        "pool new: http://b is environment sha256:2, sha256:1 was declared",
    )
    proved = take(
        begun(made),
        seen(*PAIRS),
        env("http://a", environment_digest="sha256:1"),
        env("http://b", environment_digest="sha256:1"),
    )
    assert blocked_by(proved, 200.0) == ()


@pytest.mark.parametrize("ended", [False, True])
def test_an_endpoint_that_its_pool_no_longer_has_stands_in_no_way(ended):
    made = plan(endpoints={PoolName("new"): ("http://a",)})
    state = take(begun(made), seen(*PAIRS), env("http://a", environment_digest="sha256:1"))
    if ended:
        state = take(state, Abort(**SAID, unix_s=150.0))
    moved = msgspec.structs.replace(made, endpoints={PoolName("new"): ("http://b",)})
    state = take(state, Configured(plan=moved, unix_s=160.0), env("http://b", environment_digest="sha256:2"))
    assert set(state.environments["new"]) == {"http://b"}
    assert state.held is None
    assert ended or blocked_by(state, 200.0) == ()


def test_one_rollout_moves_home_at_a_time():
    state = take(observing(), HomeMoved(by=RolloutName("other"), unix_s=210.0))
    assert blocked_by(state, 300.0) == ("rollout other has moved home away from old, this one's baseline",)
    assert step(state, advance())[0].stage is Stage.OBSERVING
    state = take(state, HomeMoved(by=None, unix_s=220.0))
    assert step(state, advance())[0].stage is Stage.PROMOTED


# --- time


def test_a_clock_that_is_set_back_leaves_no_stage_and_one_that_is_told_changes_no_duration():
    state = begun(plan(shadow_stage=ShadowStage(advance=AdvanceBy.GATES, minimum_s=60.0)))
    state = take(state, seen(*PAIRS))
    assert step(state, Tick(unix_s=-1e9)) == (state, ())
    back = take(state, ClockStepped(by_s=-1000.0, unix_s=-850.0))
    assert step(back, Tick(unix_s=-841.0)) == (back, ())
    assert step(back, Tick(unix_s=-840.0))[0].stage is Stage.CANARY
    ahead = take(state, ClockStepped(by_s=1e6, unix_s=1e6 + 110.0))
    assert step(ahead, Tick(unix_s=1e6 + 159.0)) == (ahead, ())
    assert step(ahead, Tick(unix_s=1e6 + 160.0))[0].stage is Stage.CANARY


def test_a_state_that_was_made_without_a_clock_lasts_from_the_first_second():
    state = start(plan(shadow_stage=ShadowStage(minimum_s=60.0)))
    assert blocked_by(state, 1e9)[0] == "it has lasted 0 of 60 s"
    state, effects = step(state, Tick(unix_s=1e9))
    assert (state.entered_unix_s, effects, state.sequence) == (1e9, (), 1)


# --- a person


def test_a_pause_stops_steps_but_neither_copies_nor_a_rollback():
    state, effects = step(in_canary(), Pause(**SAID, unix_s=210.0))
    assert kinds(effects) == [Log]
    state = take(state, seen(*LIVE))
    assert (state.mirrors, routes(state)) == (True, {"acme": "new"})
    assert blocked_by(state, 300.0) == (
        "paused by ana: looks fine. `forkgate rollout resume old-to-new` ends it",
    )
    assert step(state, advance())[0].step == 0
    assert step(state, seen(fork_seen()))[0].stage is Stage.ROLLED_BACK
    assert kinds(step(state, Pause(**SAID, unix_s=220.0))[1]) == [Declined]
    state = take(state, Resume(**SAID, unix_s=230.0), advance())
    assert state.step == 1


def test_a_check_that_passed_during_a_pause_leads_on_at_its_end():
    made = plan(checks=(CheckKind.SELF_CHECK, CheckKind.QUICK_CHECK))
    state = take(begun(made), Pause(**SAID, unix_s=110.0))
    passed = CheckDone(kind=CheckKind.SELF_CHECK, answer=CheckAnswer.PASSED, summary="equal", unix_s=120.0)
    state, effects = step(state, passed)
    assert (state.stage, kinds(effects)) == (Stage.SELF_CHECK, [Log])
    state, effects = step(state, Resume(**SAID, unix_s=130.0))
    assert state.stage is Stage.QUICK_CHECK
    assert kinds(effects) == [Log, Publish, Moved, RunCheck]


def test_a_promote_that_is_sent_twice_moves_one_step():
    state = take(in_canary(), seen(*LIVE))
    said = advance(look=state.look)
    state = take(state, said)
    assert state.step == 1
    state, effects = step(state, said)
    assert state.step == 1
    assert effects[0].reasons[0] == "it is in canary step 2 of 3 (canary-3) by now, and canary-2 was meant"


def test_a_person_rolls_back_and_is_named_in_the_latch():
    state, effects = step(observing(), RollBackNow(who="ana", why="smells odd", unix_s=210.0))
    assert kinds(effects) == [RollBack]
    latch = effects[0].latch
    assert (latch.who, latch.verdict.gate, latch.from_stage) == ("ana", "person", Stage.OBSERVING)
    assert latch.verdict.reason == "rolled back by ana: smells odd"
    assert routes(state) == {}
    assert kinds(step(state, RollBackNow(**SAID, unix_s=220.0))[1]) == [Declined]
    assert kinds(step(state, Start(**SAID, unix_s=220.0))[1]) == [Declined]


def test_a_rollback_of_a_promoted_rollout_puts_home_back_without_waiting_for_it():
    promoted = take(observing(), advance())
    state, effects = step(promoted, RollBackNow(**SAID, unix_s=210.0))
    assert kinds(effects) == [RollBack, MoveHome]
    assert (effects[1].pool, effects[1].by, state.home) == ("old", None, "old")


def test_an_abort_sends_everybody_home_unlatched_and_only_a_start_begins_anew():
    state, effects = step(in_canary(), Abort(**SAID, unix_s=210.0))
    assert kinds(effects) == [Publish, Stopped, Moved, Log]
    assert (state.stage, state.latch, routes(state), state.mirrors) == (Stage.ABORTED, None, {}, False)
    assert take(state, seen(fork_seen()), Tick(unix_s=1e9)).stage is Stage.ABORTED
    assert kinds(step(state, Lift(**SAID, unix_s=220.0))[1]) == [Declined]
    state, effects = step(state, Start(**SAID, unix_s=230.0))
    assert kinds(effects) == [Restarted, Publish, Moved, Log]
    assert (state.stage, state.ended, state.pairs, state.looks) == (Stage.SHADOW, None, 0, 1)
    assert state.gates == start(state.plan).gates


def test_an_abort_lifts_no_latch():
    state = take(in_canary(), seen(fork_seen()))
    after, effects = step(state, Abort(**SAID, unix_s=210.0))
    assert kinds(effects) == [Declined]
    assert (after.stage, after.latch) == (Stage.ROLLED_BACK, state.latch)


def test_a_lifted_hold_stays_at_its_step_with_its_tenants():
    text = GATES.replace("alpha", "on_fail: hold\nalpha")
    state = take(in_canary(policy=load_policy(text, "p")), seen(*LIVE), advance(), seen(fork_seen()))
    assert (state.step, state.held is not None) == (1, True)
    before = routes(state)
    state = take(state, Lift(**SAID, unix_s=300.0))
    assert (state.step, state.held, routes(state), state.looks) == (1, None, before, 1)


# --- an edited file


def edited(state: RolloutState, steps: tuple[Step, ...], **changes: Any) -> tuple[RolloutState, Any]:
    new = msgspec.structs.replace(
        state.plan, steps=steps_of(steps, rollout=NAME, configured=TENANTS), **changes
    )
    return step(state, Configured(plan=new, unix_s=400.0))


def test_an_edit_moves_nobody_to_the_candidate():
    state = in_canary()
    wider = (Step(tenants=("acme", "globex")), Step(percent=100.0))
    state, effects = edited(state, wider)
    assert kinds(effects) == [Publish]
    assert (state.place, routes(state)) == ("canary step 1 of 2", {"acme": "new"})
    state = take(state, seen(*LIVE), advance(500.0))
    assert set(routes(state)) == set(TENANTS)


def test_an_edit_sends_home_only_whom_no_step_names_any_more():
    state = take(in_canary(), seen(*LIVE), advance(), advance())
    assert set(routes(state)) == set(TENANTS)
    narrower = (Step(tenants=("globex",)), Step(tenants=("acme", "initech")))
    state, _ = edited(state, narrower)
    assert set(routes(state)) == {"acme", "globex", "initech"}
    assert state.place == "canary step 2 of 2"


def test_an_edit_starts_nothing_that_waits_and_shortens_no_step_that_lasts():
    pending = start(plan(start=StartBy.COMMAND))
    on_load = msgspec.structs.replace(pending.plan, start=StartBy.LOAD)
    assert resume(pending, on_load, 1.0)[0].stage is Stage.PENDING
    state = take(begun(plan(shadow_stage=ShadowStage(minimum_s=1e6))), seen(*PAIRS))
    by_itself = msgspec.structs.replace(
        state.plan, shadow_stage=ShadowStage(skip=True, advance=AdvanceBy.GATES)
    )
    state, _ = step(state, Configured(plan=by_itself, unix_s=110.0))
    assert state.stage is Stage.SHADOW
    # What the file says now holds from now on: the next second leaves it, and says so.
    assert take(state, Tick(unix_s=111.0)).stage is Stage.CANARY


def test_a_shadow_stage_that_is_skipped_waits_for_the_pools_and_for_nothing_else():
    skips = ShadowStage(skip=True, minimum_pairs=7, minimum_s=1e6, advance=AdvanceBy.MANUAL)
    state = begun(plan(shadow_stage=skips, pool_proof=True))
    assert blocked_by(state, 100.0) == ("pool old: whether it could take everything back was not seen yet",)
    assert waits_for(state, 100.0) == blocked_by(state, 100.0), "no person"
    state = take(state, PoolSeen(pool=PoolName("old"), ready=False, reason="full", unix_s=101.0))
    assert take(state, Tick(unix_s=102.0)).stage is Stage.SHADOW
    state = take(state, PoolSeen(pool=PoolName("old"), ready=True, reason="free", unix_s=103.0))
    away = take(state, HomeMoved(by=RolloutName("other"), unix_s=103.0))
    assert take(away, Tick(unix_s=104.0)).stage is Stage.SHADOW
    assert take(state, Pause(**SAID, unix_s=103.0), Tick(unix_s=104.0)).stage is Stage.SHADOW
    state = take(state, Tick(unix_s=104.0))
    assert (state.place, state.looks) == ("canary step 1 of 3", 1)


def test_an_edit_that_skips_no_more_judges_the_shadow_stage_from_its_beginning():
    suites = load_policy(
        "level: statistical\nalpha: 0.04\ngates: {rule_cases: {}}\nsuites: {starter: {}}", "s"
    )
    policy = suites.with_suites({"starter": "sha256:" + "0" * 64})
    state = begun(plan(policy=policy, shadow_stage=ShadowStage(skip=True), pool_proof=True))
    assert (to_do(state), state.looks) == ((), 0)
    stays = msgspec.structs.replace(state.plan, shadow_stage=ShadowStage())
    state, effects = step(state, Configured(plan=stays, unix_s=110.0))
    assert (state.stage, state.looks) == (Stage.SHADOW, 1)
    assert RunSuites(rollout=NAME, look="shadow-1", suites=("starter",)) in effects


def test_a_promoted_rollout_stays_promoted_whatever_its_policy_says_by_now():
    state = take(observing(), advance())
    other = msgspec.structs.replace(state.plan, policy=load_policy(GATES.replace("0.05", "0.1"), "p"))
    after, effects = resume(state, other, 1.0)
    assert (after.stage, after.held, effects) == (Stage.PROMOTED, None, ())
    moved = msgspec.structs.replace(state.plan, candidate=PoolName("third"))
    after, _ = resume(state, moved, 1.0)
    assert after.stage is Stage.PENDING
    assert after.held is not None


def test_candidates_whose_requests_are_to_be_broken_off_are_named_in_every_table():
    pools = [Pool(name=PoolName(name), endpoints=("http://127.0.0.1:1",)) for name in ("old", "new")]
    for state in (in_canary(flip_in_flight=InFlight.ABORT), take(in_canary(), seen(fork_seen()))):
        made = route_table(epoch=2, home=PoolName("old"), pools=pools, rollouts=[state], cause="test")
        wanted = state.plan.flip_in_flight is InFlight.ABORT
        assert made.aborts == (("new",) if wanted else ())


# --- steps


def test_percent_counts_the_same_tenants_everywhere_and_more_at_more():
    many = [TenantName(f"tenant-{number}") for number in range(2000)]
    before: set[str] = set()
    for percent in (0.5, 10.0, 25.0, 60.0, 99.0, 100.0):
        inside = {name for name in many if in_percent(name, NAME, percent)}
        assert before <= inside
        assert abs(len(inside) / 20 - percent) < 4.0
        before = inside
    assert before == set(many)
    assert {name for name in many if in_percent(name, "another", 25.0)} != {
        name for name in many if in_percent(name, NAME, 25.0)
    }


def test_percent_is_the_hash_that_the_documentation_gives():
    drawn = int.from_bytes(blake2b(b"acme", key=b"old-to-new", digest_size=8).digest(), "big") / 2**64
    assert in_percent("acme", "old-to-new", drawn * 100 + 1e-9)
    assert not in_percent("acme", "old-to-new", drawn * 100 - 1e-9)


def test_whoever_is_in_stays_in():
    made = steps_of(
        (Step(tenants=("umbrella",)), Step(percent=50.0), Step(percent=100.0)),
        rollout=NAME,
        configured=TENANTS,
    )
    assert all(set(one.tenants) <= set(two.tenants) for one, two in pairwise(made))
    assert made[0].tenants == ("umbrella",)
    assert made[1].tenants[0] == "umbrella"
    assert [one.name for one in made] == [
        "umbrella",
        f"50 % of tenants, {len(made[1].tenants)} in all",
        f"100 % of tenants, {len(TENANTS)} in all",
    ]


# --- what another forkgate wrote


@pytest.mark.parametrize("where", ["state", "plan"])
def test_a_state_of_another_form_is_refused_with_words_and_not_half_read(where):
    """The one before kept `canary_tenants` in its plan and split alpha otherwise."""
    plain = msgspec.to_builtins(begun(plan()))
    (plain["plan"] if where == "plan" else plain)["canary_tenants"] = ["acme"]
    with pytest.raises(msgspec.ValidationError, match="unknown field `canary_tenants`"):
        msgspec.json.decode(msgspec.json.encode(plain), type=RolloutState)
