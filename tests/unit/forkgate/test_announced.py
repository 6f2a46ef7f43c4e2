"""A rollback that edges were told of, and that the latch's file never got to hold."""

from __future__ import annotations

import asyncio
from pathlib import Path

from forkgate.state.latch import Latch
from forkgate.state.unreadable import all_latched, with_announced
from policies.routes import PoolName, RolloutName
from proxy.link.values import EdgeIdentity
from tests.support.judging import Bench

ROLLOUT = RolloutName("r")


def test_announced_rollback_stands_without_a_file_that_holds_it() -> None:
    latch = with_announced(Latch(epoch=3), {ROLLOUT: 5})
    assert list(latch.latched) == ["r"]
    assert latch.latched["r"].epoch == 5
    assert latch.epoch == 5
    assert "epoch 5" in latch.latched["r"].rollback.verdict.reason


def test_latch_that_holds_it_is_left_alone_with_its_reason() -> None:
    held = all_latched(["r"], "why")
    assert with_announced(held, {ROLLOUT: 5}) is held


def test_rollback_that_a_person_has_lifted_since_does_not_come_back() -> None:
    latch = with_announced(Latch(), {ROLLOUT: 5})
    lifted = latch.with_lifted("r", "looked at it", 1.0)
    assert with_announced(lifted, {ROLLOUT: 5}).latched == {}
    assert list(with_announced(lifted, {ROLLOUT: 6}).latched) == ["r"]


def test_a_name_that_the_configuration_has_given_up_is_remembered_for_its_pools() -> None:
    latch = with_announced(Latch(), {RolloutName("gone"): 5, RolloutName("left/acme"): 6})
    pools = PoolName("old"), PoolName("new")
    assert [(one.rollout, one.tenant) for one in latch.elsewhere("b", pools, {})] == [
        ("gone", None),
        ("left", "acme"),
    ]
    assert latch.announced == {"gone": 5, "left/acme": 6}


def test_an_edge_that_tells_of_a_name_given_up_brings_nobody_home_and_is_remembered(tmp_path: Path) -> None:
    async def main() -> None:
        async with Bench(tmp_path) as one:
            before = one.desk.states()
            told = {"gone": 1_000, "left/acme": 1_001}
            one.judge.rolled_back(EdgeIdentity(sidecar="test", worker=0, incarnation="edge-1"), told)
            assert one.desk.states() == before
            assert one.keeper.latch.announced == told
            assert not one.keeper.durable, "upkeep takes it to the disk"

    asyncio.run(main())


def test_a_tenant_that_was_sent_home_without_a_file_that_holds_it_stays_there() -> None:
    announced = {RolloutName("r/acme"): 5}
    latch = with_announced(Latch(), announced)
    assert (latch.latched, list(latch.tenants["r"]), latch.epoch) == ({}, ["acme"], 5)
    assert with_announced(latch, announced) is latch
    lifted = latch.with_lifted("r", "looked at it", 1.0, "acme")
    assert with_announced(lifted, announced).tenants == {}
    assert list(with_announced(lifted, {RolloutName("r/acme"): 6}).tenants["r"]) == ["acme"]
    # Neither lift is the other's.
    assert list(with_announced(lifted, {ROLLOUT: 5}).latched) == ["r"]
