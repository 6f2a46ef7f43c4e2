"""Whatever comes in whatever order: a rollback latches, a state can always move, nothing is counted twice."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId, Outcome
from policies.policy import load_policy
from policies.rollout import (
    CHECK_STAGES,
    CheckAnswer,
    CheckDone,
    CheckKind,
    Configured,
    EnvironmentSeen,
    Lift,
    Observed,
    Publish,
    Restarted,
    RollBack,
    RolloutPlan,
    RolloutState,
    Stage,
    SuiteDone,
    Unlatch,
    start,
    step,
    to_do,
)
from policies.routes import Pool, PoolName, RolloutName, TenantName
from policies.tables import route_table
from tests.support.exchanges import comparison, live, pair

POLICIES = [
    load_policy(
        f"""
level: token
alpha: 0.05
on_fail: {on_fail}
gates:
  token_equality: {{minimum_pairs: 3}}
  live_errors: {{kind: error_rate, source: live, maximum: 0.3, minimum_requests: 4}}
  shadow_errors: {{kind: error_rate, source: shadow, maximum: 0.3, minimum_requests: 2}}
  slow: {{kind: ttft, source: live, maximum_ratio: 1.5, minimum_requests: 3}}
"""
    )
    for on_fail in ("rollback", "hold")
]
FORK = pair((1,), (2,)).fork
assert FORK is not None
SEEN = ForkSeen(
    capture_id=CaptureId("f"),
    rollout="old-to-new",
    tenant="acme",
    left_arm=Arm.BASELINE,
    right_arm=Arm.CANDIDATE,
    fork=FORK,
)
ITEMS = st.sampled_from(
    [
        SEEN,
        comparison(pair()),
        comparison(pair()),
        comparison(pair((1,), (2,))),
        comparison(pair((1,), (), right={"outcome": Outcome.FAILED})),
        comparison(pair((1,), (), left={"outcome": Outcome.FAILED})),
        comparison(pair(right={"prompt": (1,)})),
        live(),
        live(canary=True),
        live(canary=True, status=500),
        live(canary=True, first_byte_s=5.0),
        live(canary=True, first_byte_s=float("nan"), status=0, aborted_by="client"),
        live(canary=True, started_unix_s=-1e12),
        live(started_unix_s=1e15),
    ]
)


POOLS = (
    Pool(name=PoolName("old"), endpoints=("http://127.0.0.1:1",)),
    Pool(name=PoolName("new"), endpoints=("http://127.0.0.1:2",)),
)


def plan(policy: int, tenants: bool, checks: tuple[CheckKind, ...] = ()) -> RolloutPlan:
    return RolloutPlan(
        name=RolloutName("old-to-new"),
        baseline=PoolName("old"),
        candidate=PoolName("new"),
        policy=POLICIES[policy],
        percent=5.0,
        canary_tenants=(TenantName("acme"),) if tenants else (),
        checks=checks,
    )


CHECKS = st.sampled_from(
    [(), (CheckKind.SELF_CHECK,), (CheckKind.QUICK_CHECK,), (CheckKind.SELF_CHECK, CheckKind.QUICK_CHECK)]
)
PLANS = st.builds(plan, st.integers(0, 1), st.booleans(), CHECKS)
EVENTS = st.one_of(
    st.builds(Observed, items=st.lists(ITEMS, max_size=6).map(tuple), unix_s=st.just(1.0)),
    st.builds(Observed, items=st.lists(ITEMS, max_size=6).map(tuple), unix_s=st.just(1.0)),
    st.just(Lift(who="ana", why="tried", unix_s=2.0)),
    st.builds(
        CheckDone,
        kind=st.sampled_from(CheckKind),
        answer=st.sampled_from([*CheckAnswer, CheckAnswer.PASSED, CheckAnswer.PASSED]),
        summary=st.just("said"),
        unix_s=st.just(2.0),
    ),
    st.builds(
        SuiteDone,
        suite=st.just("starter"),
        stage=st.sampled_from(Stage),
        summary=st.just("asked"),
        unix_s=st.just(2.0),
    ),
    st.builds(
        EnvironmentSeen,
        pool=st.sampled_from([PoolName("old"), PoolName("new")]),
        endpoint=st.just("http://127.0.0.1:2"),
        facts=st.sampled_from([{"version": "1"}, {"version": "2"}, {}]),
        unix_s=st.just(2.0),
    ),
    st.builds(Configured, plan=PLANS, unix_s=st.just(3.0)),
)


@settings(max_examples=200, deadline=None)
@given(PLANS, st.lists(EVENTS, max_size=12))
def test_every_road_keeps_the_rules(first, events):
    state = start(first)
    for number, event in enumerate(events, 1):
        after, effects = step(state, event)
        assert after.sequence == number
        assert (after.stage is Stage.ROLLED_BACK) == (after.latch is not None)
        assert set(after.gates) == set(after.plan.policy.gates)
        rolled_back = [effect for effect in effects if isinstance(effect, RollBack)]
        if state.stage is Stage.ROLLED_BACK:
            left = after.stage is not Stage.ROLLED_BACK
            assert left == isinstance(event, Lift)
            assert left == any(isinstance(effect, Unlatch) for effect in effects)
            assert not rolled_back
        else:
            assert (after.stage is Stage.ROLLED_BACK) == (len(rolled_back) == 1)
        if after.stage is not state.stage:
            assert any(isinstance(effect, RollBack | Publish) for effect in effects)
        if after.held is not None and state.held is not None:
            assert after.held == state.held  # the first reason stands
        if state.held is not None and after.held is None:
            assert isinstance(event, Lift)
        if any(isinstance(effect, Restarted) for effect in effects):
            assert after.gates == start(after.plan).gates
        assert after.evidence >= state.evidence
        moved = msgspec.json.decode(msgspec.json.encode(after), type=RolloutState)
        assert moved == after
        state = after


@settings(max_examples=100, deadline=None)
@given(PLANS, st.lists(st.lists(ITEMS, max_size=4), max_size=8))
def test_pairs_and_forks_decide_the_same_however_they_are_batched(first, batches):
    batches = [[item for item in batch if not hasattr(item, "canary")] for batch in batches]
    whole = start(first)
    whole, _ = step(whole, Observed(items=tuple(i for batch in batches for i in batch), unix_s=1.0))
    pieces = start(first)
    for batch in batches:
        pieces, _ = step(pieces, Observed(items=tuple(batch), unix_s=1.0))
    assert pieces.gates == whole.gates
    assert (pieces.stage, pieces.latch, pieces.held) == (whole.stage, whole.latch, whole.held)


def routes_nothing(state: RolloutState) -> bool:
    table = route_table(epoch=2, home=PoolName("old"), pools=POOLS, rollouts=[state], cause="test")
    return not table.routes and not table.mirrors


@settings(max_examples=200, deadline=None)
@given(PLANS, st.lists(EVENTS, max_size=14))
def test_checks_move_and_copy_no_traffic_and_a_hold_in_one_stays_there(first, events):
    state = start(first)
    for event in events:
        after, _ = step(state, event)
        if after.stage in CHECK_STAGES:
            assert routes_nothing(after)
        if state.stage in CHECK_STAGES and state.held is not None and not isinstance(event, Lift):
            # Nothing but a person leads on from here; a breach leads home.
            assert after.stage in (state.stage, Stage.ROLLED_BACK)
            assert routes_nothing(after)
        if state.stage in CHECK_STAGES and after.stage in (Stage.SHADOW, Stage.CANARY):
            passed = isinstance(event, CheckDone) and event.answer is CheckAnswer.PASSED
            assert passed or isinstance(event, Lift | Configured)
        state = after


@settings(max_examples=200, deadline=None)
@given(PLANS, st.lists(EVENTS, max_size=8), ITEMS)
def test_a_breach_leads_home_from_wherever_events_led(first, events, item):
    first = msgspec.structs.replace(first, policy=POLICIES[0])
    state = start(first)
    for event in events:
        if not isinstance(event, Configured):
            state, _effects = step(state, event)
    state, _effects = step(state, Observed(items=(item, SEEN), unix_s=9.0))
    assert state.stage is Stage.ROLLED_BACK
    assert routes_nothing(state)


@settings(max_examples=100, deadline=None)
@given(PLANS, st.lists(EVENTS, min_size=1, max_size=12), st.data())
def test_another_judge_goes_on_the_same_from_any_point(first, events, data):
    cut = data.draw(st.integers(0, len(events)))
    here = start(first)
    for event in events[:cut]:
        here, _ = step(here, event)
    there = msgspec.json.decode(msgspec.json.encode(here), type=RolloutState)
    assert to_do(there) == to_do(here)
    for event in events[cut:]:
        here, said = step(here, event)
        there, same = step(there, event)
        assert same == said
    assert there == here
    assert there.verdicts() == here.verdicts()
