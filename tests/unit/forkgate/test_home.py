"""Where home is, by the latch's file, the last table and the configuration, which may disagree."""

from __future__ import annotations

import pytest

from forkgate.config import Config, loads
from forkgate.state.home import HomeUnclear, home_moved
from forkgate.state.latch import Latch, Moved
from forkgate.supervisor.plan import first_home, first_table, pools
from policies.rollout import Latch as Rollback
from policies.rollout import Stage
from policies.routes import PoolName, RolloutName, RouteTable, TenantName
from policies.verdict import Answer, Verdict

TEXT = """
state_dir: /nowhere
pools: [{name: old, endpoints: ["http://o:1"]}, {name: new, endpoints: ["http://n:1"]}]
home: %s
identity: {tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}
tenants: [{name: acme}, {name: globex}]
"""
ROLLOUTS = """
rollouts:
  - {name: r, baseline: old, candidate: new, policy: audit, global_seed: s, steps: [{percent: 100}]}
"""
MOVED = Latch(epoch=8).with_home(Moved(rollout="r", pool="new", epoch=9, unix_s=1.0))
VERDICT = Verdict(gate="g", answer=Answer.FAIL, value=None, limit=None, n=0, reason="x")
BREACH = Rollback(
    rollout=RolloutName("r"), verdict=VERDICT, policy_digest="", from_stage=Stage.PROMOTED, unix_s=1.0
)
CANDIDATES = {RolloutName("r"): PoolName("new")}


def configured(home: str = "old", rollouts: str = ROLLOUTS) -> Config:
    return loads(TEXT % home + rollouts)


def last(home: str, epoch: int = 10, **rest: object) -> RouteTable:
    return RouteTable(epoch=epoch, home=PoolName(home), pools=pools(configured()), **rest)  # type: ignore[arg-type]


def test_home_is_where_the_latch_says_that_a_promotion_moved_it() -> None:
    assert home_moved(Latch(), PoolName("old"), CANDIDATES) is None
    assert home_moved(MOVED, PoolName("old"), CANDIDATES) == MOVED.moved
    assert first_home(configured(), last("old"), MOVED) == "new"
    assert first_table(configured(), last("old"), MOVED).home == "new"
    assert first_table(configured(), None, MOVED).home == "new"


def test_a_file_that_names_the_new_home_and_no_such_rollout_has_caught_up() -> None:
    assert home_moved(MOVED, PoolName("new"), {}) is None
    assert first_table(configured("new", ""), last("new"), MOVED).home == "new"


def test_a_file_that_forgot_the_rollout_that_moved_home_moves_nobody_by_surprise() -> None:
    with pytest.raises(HomeUnclear, match="Write `home: new` to keep it there"):
        home_moved(MOVED, PoolName("old"), {})
    with pytest.raises(HomeUnclear):
        first_table(configured("old", ""), last("new"), MOVED)


def test_another_candidate_under_that_name_moves_nobody_either() -> None:
    with pytest.raises(HomeUnclear, match="names with candidate 'newer', moved it to 'new'"):
        home_moved(MOVED, PoolName("old"), {RolloutName("r"): PoolName("newer")})


def test_a_rollback_whose_table_never_went_out_is_home_from_the_first_request() -> None:
    latch = MOVED.with_latched(BREACH, 11)
    table = first_table(configured(), last("new"), latch)
    assert (table.home, table.epoch) == ("old", 12)


def test_edges_without_a_latch_of_their_own_go_by_the_last_table() -> None:
    assert first_home(configured(), last("new"), Latch()) == "new"
    assert first_home(configured(), last("new", rolled_back={RolloutName("r"): 9}), Latch()) == "old"
    assert first_home(configured("old", ""), last("new"), Latch()) == "old", "nobody moved it there"
    assert first_home(configured(), None, Latch()) == "old"


def test_a_tenant_that_was_sent_home_is_routed_there_before_any_judge_speaks() -> None:
    routes = {TenantName("acme"): PoolName("new"), TenantName("globex"): PoolName("new")}
    latch = Latch().with_tenant("acme", BREACH, 11)
    table = first_table(configured(), last("old", routes=routes), latch)
    assert (table.routes, table.epoch) == ({"globex": "new"}, 12)
