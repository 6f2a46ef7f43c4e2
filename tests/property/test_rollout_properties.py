"""Whatever comes in whatever order: a rollback latches, a state can always move, nothing is counted twice."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId, Outcome
from policies.policy import load_policy
from policies.rollout import (
    Configured,
    Lift,
    Observed,
    Publish,
    RollBack,
    RolloutPlan,
    RolloutState,
    Stage,
    Unlatch,
    start,
    step,
)
from policies.routes import PoolName, RolloutName, TenantName
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


def plan(policy: int, tenants: bool) -> RolloutPlan:
    return RolloutPlan(
        name=RolloutName("old-to-new"),
        baseline=PoolName("old"),
        candidate=PoolName("new"),
        policy=POLICIES[policy],
        percent=5.0,
        canary_tenants=(TenantName("acme"),) if tenants else (),
    )


PLANS = st.builds(plan, st.integers(0, 1), st.booleans())
EVENTS = st.one_of(
    st.builds(Observed, items=st.lists(ITEMS, max_size=6).map(tuple), unix_s=st.just(1.0)),
    st.builds(Observed, items=st.lists(ITEMS, max_size=6).map(tuple), unix_s=st.just(1.0)),
    st.just(Lift(who="ana", why="tried", unix_s=2.0)),
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
