"""Gates over comparisons at hand say what a rollout's gates would, levels included."""

from __future__ import annotations

import pytest

from policies.evaluate import evaluate
from policies.gates import KINDS
from policies.levels import levels_of
from policies.policy import load_policy
from policies.rollout import RolloutPlan, start
from policies.routes import PoolName, RolloutName
from tests.support.exchanges import comparison, pair
from tests.unit.policies.test_lint import GATES

POLICY = load_policy(GATES, "p").with_suites({"starter": "sha256:" + "0" * 64})
PLAN = RolloutPlan(
    name=RolloutName("old-to-new"),
    baseline=PoolName("old"),
    candidate=PoolName("new"),
    policy=POLICY,
    percent=10.0,
)
PATHS = {
    path.gate: path
    for path in evaluate(POLICY.gates, [comparison(pair())], levels_of(0.05, POLICY.gates, look=1))
}


def test_every_kind_is_here():
    assert {path.kind for path in PATHS.values()} == set(KINDS)


@pytest.mark.parametrize("name", list(POLICY.gates))
def test_a_verdict_names_its_gates_estimand(name):
    assert PATHS[name].verdict.estimand == POLICY.gates[name].estimand


@pytest.mark.parametrize("name", list(POLICY.gates))
def test_the_level_is_the_one_of_a_rollout(name):
    """Also where a gate that tests answers by its cap, as `logit_error` does here."""
    assert PATHS[name].verdict.alpha == start(PLAN).verdict(name).alpha
    assert (PATHS[name].verdict.alpha is None) is not POLICY.gates[name].spends_alpha
