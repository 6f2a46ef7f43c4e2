"""A rollback that edges were told of, and that the latch's file never got to hold."""

from __future__ import annotations

from forkgate.state.latch import Latch
from forkgate.state.unreadable import all_latched, with_announced
from policies.routes import RolloutName

ROLLOUT = RolloutName("r")


def test_announced_rollback_stands_without_a_file_that_holds_it() -> None:
    latch = with_announced(Latch(epoch=3), {ROLLOUT: 5}, ["r", "other"])
    assert list(latch.latched) == ["r"]
    assert latch.latched["r"].epoch == 5
    assert latch.epoch == 5
    assert "epoch 5" in latch.latched["r"].rollback.verdict.reason


def test_latch_that_holds_it_is_left_alone_with_its_reason() -> None:
    held = all_latched(["r"], "why")
    assert with_announced(held, {ROLLOUT: 5}, ["r"]) is held


def test_rollback_that_a_person_has_lifted_since_does_not_come_back() -> None:
    latch = with_announced(Latch(), {ROLLOUT: 5}, ["r"])
    lifted = latch.with_lifted("r", "looked at it", 1.0)
    assert with_announced(lifted, {ROLLOUT: 5}, ["r"]).latched == {}
    assert list(with_announced(lifted, {ROLLOUT: 6}, ["r"]).latched) == ["r"]


def test_rollout_that_the_configuration_no_longer_names_is_forgotten() -> None:
    assert with_announced(Latch(), {ROLLOUT: 5}, ["other"]).latched == {}


def test_a_tenant_that_was_sent_home_without_a_file_that_holds_it_stays_there() -> None:
    announced = {RolloutName("r/acme"): 5, RolloutName("other/acme"): 6}
    latch = with_announced(Latch(), announced, ["r"])
    assert (latch.latched, list(latch.tenants["r"]), latch.epoch) == ({}, ["acme"], 5)
    assert with_announced(latch, announced, ["r"]) is latch
    lifted = latch.with_lifted("r", "looked at it", 1.0, "acme")
    assert with_announced(lifted, announced, ["r"]).tenants == {}
    assert list(with_announced(lifted, {RolloutName("r/acme"): 6}, ["r"]).tenants["r"]) == ["acme"]
    # Neither lift is the other's.
    assert list(with_announced(lifted, {ROLLOUT: 5}, ["r"]).latched) == ["r"]
