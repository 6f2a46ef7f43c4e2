"""What may send an equal candidate home adds up to alpha, however many looks and tenants there are."""

from __future__ import annotations

import itertools

import pytest

from policies.levels import SMALLEST_PART, allot, at_look, levels_of, of_tenant, shares_of
from policies.policy import load_policy

POLICY = load_policy(
    """
level: statistical
alpha: 0.04
suites: {starter: {}}
gates:
  accuracy: {}
  fork_hazard: {}
  slow: {kind: fork_hazard, scope: tenant}
  token_equality: {}
""",
    "p",
)
SHARES = shares_of(POLICY.alpha, POLICY.gates)


def test_only_gates_that_test_share_alpha_and_promotion_has_it_whole():
    assert {name: share.rollback for name, share in SHARES.items()} == dict.fromkeys(
        POLICY.gates, pytest.approx(0.04 / 3)
    )
    assert {share.promotion for share in SHARES.values()} == {0.04}


def test_a_suites_looks_add_up_to_less_than_its_share_however_many_there_are():
    share = SHARES["accuracy"]
    looks = [at_look(share, POLICY.gates["accuracy"], look).rollback for look in range(1, 1001)]
    assert looks[:3] == pytest.approx([share.rollback / 2, share.rollback / 6, share.rollback / 12])
    assert share.rollback * 0.99 < sum(looks) < share.rollback


def test_a_gate_about_traffic_has_its_share_at_every_look():
    share = SHARES["fork_hazard"]
    assert {at_look(share, POLICY.gates["fork_hazard"], look).rollback for look in range(5)} == {
        share.rollback
    }


@pytest.mark.parametrize("known", [1, 2, 7, 200])
def test_tenants_known_from_the_beginning_get_equal_parts(known):
    parts: list[float] = []
    for came in range(known):
        parts.append(allot(parts, known - came))
    assert parts == pytest.approx([1 / (known + 1)] * known)


def test_tenants_that_are_added_again_and_again_never_take_more_than_there_is():
    parts: list[float] = []
    for came, added in itertools.product(range(50), range(3)):
        parts.append(allot(parts, 1 + (came + added) % 4))
        assert 0.0 < parts[-1] < 1.0
    assert sum(parts) <= 1.0 + 150 * SMALLEST_PART


def test_levels_where_no_rollout_is_at_hand_are_those_of_one():
    made = levels_of(POLICY.alpha, POLICY.gates, look=2, tenants=3, kept=POLICY.tenant_gates)
    assert made["accuracy"] == at_look(SHARES["accuracy"], POLICY.gates["accuracy"], 2)
    assert made["fork_hazard"] == SHARES["fork_hazard"]
    assert made["slow"] == of_tenant(SHARES["slow"], 1 / 4)
