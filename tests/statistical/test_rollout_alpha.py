"""A rollout of many steps and many tenants is held to one alpha: on the edge of the margin, no more go home.

The candidate is worse by exactly the margin, which is where a test errs most often. Alpha is .5, so that few
streams tell a level that was not split from one that was: each test counts both. Seeds are fixed.
"""

from __future__ import annotations

import functools
import math

import msgspec
import numpy as np
from scipy import stats

from comparator.comparison import Comparison
from policies.policy import Policy, load_policy
from policies.rollout import Observed, RollBack, RolloutPlan, RolloutState, SendHome, Widening, start
from policies.rollout.judging import ask_gates
from policies.routes import TenantName
from tests.support.suite_answers import answer, ref, scores

ALPHA = 0.5
CHANCE = 1e-6
LOOKS, SAMPLES, PASSES = 8, 40, 5
TENANTS = tuple(TenantName(f"t{number}") for number in range(10))


def plan(policy: Policy, **changes: object) -> RolloutPlan:
    return RolloutPlan(
        name="old-to-new",
        baseline="old",
        candidate="new",
        policy=policy,
        percent=10,
        steps=(Widening(tenants=TENANTS),),
        max_tenants_home=len(TENANTS),
        **changes,
    )


def take(state: RolloutState, item: Comparison) -> tuple[RolloutState, list[object]]:
    state, effects = ask_gates(state, Observed(items=(item,), unix_s=0.0))
    return state, [effect for effect in effects if isinstance(effect, RollBack | SendHome)]


@functools.lru_cache
def suite_policy() -> Policy:
    text = f"""
level: statistical
alpha: {ALPHA}
gates: {{accuracy: {{margin: 0.1}}}}
suites: {{starter: {{}}}}
"""
    return load_policy(text, "p").with_suites({"starter": "sha256:" + 64 * "0"})


def test_a_suite_that_is_asked_at_eight_looks_is_held_to_alpha_over_all_of_them():
    """40 rollouts; each look alone at the whole alpha would send most of them home."""
    home = unsplit = 0
    for seed in range(40):
        rng = np.random.default_rng([71, seed])
        state, gone, gone_unsplit = start(plan(suite_policy())), False, False
        for look in range(1, LOOKS + 1):
            state = msgspec.structs.replace(state, looks=look)
            right = rng.random((PASSES, SAMPLES, 2)) < [0.5, 0.6]  # candidate, baseline: worse by the margin
            for passage in range(PASSES):
                for index in range(SAMPLES):
                    candidate, baseline = (float(one) for one in right[passage, index])
                    where = ref(f"s{index}", passage, samples=SAMPLES, stage=state.look)
                    given = scores("answer", candidate=candidate, baseline=baseline)
                    state, acted = take(state, answer(where, *given))
                    gone |= bool(acted)
                    state = msgspec.structs.replace(state, stage=start(state.plan).stage, latch=None)
            whole = msgspec.structs.replace(state.alpha("accuracy"), rollback=ALPHA)
            gate = state.plan.policy.gates["accuracy"]
            gone_unsplit |= gate.verdict(state.gates["accuracy"], whole).answer.value == "fail"
        home += gone
        unsplit += gone_unsplit
    assert home <= stats.binom.isf(CHANCE, 40, ALPHA)
    assert home / 40 < ALPHA
    assert unsplit / 40 > 0.8


@functools.cache
def answered(tenant: str, candidate: bool, baseline: bool) -> Comparison:
    given = scores("answer", candidate=float(candidate), baseline=float(baseline))
    return answer(None, *given, tenant=tenant)


def test_ten_tenants_with_a_gate_each_are_held_to_alpha_together():
    """30 rollouts; ten tests at the whole alpha would send a tenant home in nearly every one."""
    text = f"""
level: statistical
alpha: {ALPHA}
gates: {{accuracy: {{estimand: traffic, margin: 0.1, scope: tenant}}}}
"""
    made = plan(load_policy(text, "p"))
    home = unsplit = 0
    for seed in range(30):
        rng = np.random.default_rng([72, seed])
        right = rng.random((60, len(TENANTS), 2)) < [0.5, 0.6]
        state, gone, gone_unsplit = start(made), False, False
        for row in right:
            for tenant, (candidate, baseline) in zip(TENANTS, row.tolist(), strict=True):
                state, acted = take(state, answered(tenant, candidate, baseline))
                gone |= bool(acted)
                if tenant not in state.sent_home:
                    nats = state.verdict("accuracy", tenant).rollback_nats
                    gone_unsplit |= nats is not None and nats >= -math.log(ALPHA)
        home += gone
        unsplit += gone_unsplit or gone
    assert home / 30 <= ALPHA
    assert home <= stats.binom.isf(CHANCE, 30, ALPHA)
    assert unsplit / 30 > 0.8
