"""Gates that are kept by tenant: one tenant goes home, latched, and the others stay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from policies.policy import load_policy
from policies.rollout import (
    Advance,
    Declined,
    Lift,
    Log,
    Observed,
    Publish,
    RollBack,
    RollBackNow,
    RolloutPlan,
    RolloutState,
    SendHome,
    ShadowStage,
    Stage,
    Step,
    Tick,
    Unlatch,
    blocked_by,
    step,
)
from policies.routes import TenantName
from policies.verdict import Answer
from tests.support import plans
from tests.support.exchanges import comparison, live, pair
from tests.support.plans import TENANTS, plan_of, routes
from tests.unit.policies.test_gates import fork_seen
from tests.unit.policies.test_rollout import kinds

GATES = """
level: statistical
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 2, scope: tenant}
  live_errors: {kind: error_rate, source: live, margin: 0.1, scope: tenant}
  shadow_errors: {kind: error_rate, source: shadow, maximum: 0.5, minimum_requests: 2}
"""


def plan(inside: int = 4, gates: str = GATES, **changes: Any) -> RolloutPlan:
    steps = (Step(tenants=TENANTS[:inside]), Step(percent=100.0))
    return plan_of(load_policy(gates, "p"), steps, **{"shadow_stage": ShadowStage(skip=True), **changes})


def begun(**changes: Any) -> RolloutState:
    return plans.begun(plan(**changes))


def equal(tenant: str, times: int = 2) -> Observed:
    mine = {"tenant": tenant}
    return Observed(items=(comparison(pair(left=mine, right=mine)),) * times, unix_s=10.0)


def forked(tenant: str) -> Observed:
    return Observed(items=(msgspec.structs.replace(fork_seen("f"), tenant=tenant),), unix_s=11.0)


def lifted(tenant: str) -> Lift:
    return Lift(who="ana", why="their prompts were fixed", tenant=TenantName(tenant), unix_s=300.0)


def test_a_breach_sends_its_tenant_home_and_the_others_stay():
    state, effects = step(begun(), forked("globex"))
    assert kinds(effects) == [Log, SendHome]
    assert effects[0].verdict.tenant == "globex"
    latch = effects[1].latch
    assert (latch.tenant, latch.from_stage, latch.durable) == ("globex", Stage.CANARY, False)
    assert latch.verdict.reason.startswith("tenant globex: ")
    assert state.sent_home == {"globex": latch}
    assert (state.stage, state.latch) == (Stage.CANARY, None)
    assert set(routes(state)) == {"acme", "initech", "umbrella"}
    assert step(state, forked("globex"))[1] == ()  # it is home, and its late forks say nothing new


def test_each_tenants_evidence_is_its_own():
    state, _ = step(begun(), equal("acme"))
    assert state.verdict("token_equality", TenantName("acme")).answer is Answer.PASS
    assert state.verdict("token_equality", TenantName("globex")).answer is Answer.INCONCLUSIVE
    assert state.verdict("token_equality").tenant == "globex"  # the worst stands for all
    assert set(state.tenants) == {"acme"}


def test_a_step_waits_for_every_tenant_that_is_on_the_candidate_and_not_for_those_sent_home():
    text = "level: token\nalpha: 0.05\ngates: {token_equality: {minimum_pairs: 2, scope: tenant}}"
    state = begun(inside=2, gates=text)
    state, _ = step(state, equal("acme"))
    (why,) = blocked_by(state, 200.0)
    assert why.startswith("token_equality is inconclusive: tenant globex: ")
    passed, _ = step(state, equal("globex"))
    assert blocked_by(passed, 200.0) == ()
    home, _ = step(state, RollBackNow(who="ana", why="loud", tenant=TenantName("globex"), unix_s=150.0))
    assert blocked_by(home, 200.0) == ()
    wider, _ = step(home, Advance(who="ana", why="fine", unix_s=200.0))
    assert set(routes(wider)) == {"acme", "initech", "umbrella"}  # wider, and globex still at home


def test_more_at_home_than_half_of_the_step_rolls_the_rollout_back():
    state = begun()
    for tenant in ("acme", "globex"):
        state, effects = step(state, forked(tenant))
        assert SendHome in kinds(effects)
    state, effects = step(state, forked("initech"))
    assert kinds(effects) == [Log, RollBack]
    assert state.latch is not None
    assert state.latch.verdict.reason.startswith(
        "3 of 4 tenants were sent home (acme, globex, initech), more than the rollout bears; the last: "
    )
    assert routes(state) == {}


@pytest.mark.parametrize(("allowed", "home"), [(0, 1), (1, 2), (3, 4)])
def test_how_many_may_be_home_can_be_said(allowed, home):
    state = begun(max_tenants_home=allowed)
    for number, tenant in enumerate(TENANTS, 1):
        assert state.stage is Stage.CANARY
        state, _ = step(state, forked(tenant))
        if number == home:
            break
    assert state.stage is Stage.ROLLED_BACK


def test_the_only_tenant_of_a_step_takes_the_rollout_home_with_it():
    assert step(begun(inside=1), forked("acme"))[0].stage is Stage.ROLLED_BACK


def test_a_lifted_tenant_goes_back_with_gates_that_know_nothing():
    state, _ = step(begun(), forked("globex"))
    share = state.tenants[TenantName("globex")].share
    state, effects = step(state, lifted("globex"))
    assert kinds(effects) == [Unlatch, Publish, Log]
    assert effects[0].tenant == "globex"
    assert set(routes(state)) == set(TENANTS)
    mine = state.tenants[TenantName("globex")]
    assert (mine.answers, mine.share) == ({}, share)
    assert mine.gates["token_equality"] == state.gates["token_equality"]
    assert SendHome in kinds(step(state, forked("globex"))[1])
    assert kinds(step(state, lifted("globex"))[1]) == [Declined]


def test_a_tenants_latch_stands_across_a_rollback_and_its_lift():
    state, _ = step(begun(), forked("globex"))
    state, _ = step(state, RollBackNow(who="ana", why="enough", unix_s=200.0))
    assert set(state.sent_home) == {"globex"}
    state, _ = step(state, Lift(who="ana", why="fixed", unix_s=300.0))
    state, _ = step(state, Tick(unix_s=301.0))
    assert (state.stage, set(routes(state))) == (Stage.CANARY, {"acme", "initech", "umbrella"})


def test_a_person_sends_one_tenant_home_but_none_that_is_not_in_it():
    said = {"who": "ana", "why": "they called", "unix_s": 200.0}
    state, effects = step(begun(), RollBackNow(tenant=TenantName("acme"), **said))
    assert kinds(effects) == [SendHome]
    assert effects[0].latch.who == "ana"
    assert set(routes(state)) == {"globex", "initech", "umbrella"}
    for tenant in ("acme", "nobody"):
        assert kinds(step(state, RollBackNow(tenant=TenantName(tenant), **said))[1]) == [Declined]


def test_in_the_shadow_a_tenant_is_judged_before_it_moves():
    state = begun(inside=2, shadow_stage=ShadowStage())
    state, effects = step(state, forked("acme"))
    assert SendHome in kinds(effects)
    assert state.stage is Stage.SHADOW
    whys = blocked_by(state, 200.0)
    assert any(why.startswith("token_equality is inconclusive: tenant globex: ") for why in whys)
    assert not any("acme" in why for why in whys)


def test_the_baselines_live_requests_are_held_against_each_tenant_and_no_tenants_against_another():
    state = begun()
    mine = Observed(
        items=tuple(live(canary=True, tenant=tenant) for tenant in ("acme", "globex")), unix_s=10.0
    )
    state, _ = step(state, mine)
    before = state.tenants
    state, _ = step(state, Observed(items=(live(tenant="initech"),), unix_s=11.0))
    for tenant in ("acme", "globex"):
        name = TenantName(tenant)
        assert state.tenants[name].gates["live_errors"] != before[name].gates["live_errors"]
    assert set(state.tenants) == {"acme", "globex"}
    assert before[TenantName("acme")].gates == before[TenantName("globex")].gates


def test_tenants_share_their_gates_alpha_in_equal_parts():
    state = begun()
    for tenant in TENANTS:
        assert state.alpha("live_errors", tenant).rollback == pytest.approx(0.05 / 5)
        state, _ = step(state, equal(tenant))
    assert [one.share for one in state.tenants.values()] == pytest.approx([1 / 5] * 4)
    assert state.verdict("live_errors", TENANTS[0]).alpha == pytest.approx(0.05 / 5)
    assert state.alpha("shadow_errors").rollback == 0.05


def test_evidence_of_tenants_whom_no_step_moves_is_no_tenants_own():
    state = begun()
    sample = msgspec.structs.replace(equal("acme").items[0], sample=None, tenant="nobody")
    state, _ = step(state, Observed(items=(sample,), unix_s=10.0))
    assert state.tenants == {}
