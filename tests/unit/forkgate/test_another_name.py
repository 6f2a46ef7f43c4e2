"""A rollback that stands under another name: nothing of the same pools begins by itself."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.evidence import Keyring
from forkgate.cli.plan_text import edit_lines
from forkgate.config import Config, loads
from forkgate.judge.edited import edited
from forkgate.judge.plan_view import plan_view
from forkgate.state.latch import Latch, unexplained
from policies.rollout import Lift, RollBackNow, Stage
from policies.routes import TenantName
from tests.support.judging import Bench
from tests.unit.forkgate.test_rollout_journey import NAME, bench, now, promote_to, run

POOL = {"name": "newer", "endpoints": ["http://127.0.0.1:9003"]}


def under(config: Config, *rollouts: dict[str, Any]) -> Config:
    """The same file with these rollouts instead, each an edit of its one."""
    plain = msgspec.json.decode(msgspec.json.encode(config))
    one = plain["rollouts"][0]
    return loads(
        json.dumps({**plain, "pools": [*plain["pools"], POOL], "rollouts": [one | o for o in rollouts]})
    )


def renamed(tmp_path: Path, *rollouts: dict[str, Any]) -> Bench:
    two = bench(tmp_path)
    two.config = under(two.config, *rollouts)
    return two


async def rolled_back(tmp_path: Path, tenant: str | None = None) -> Config:
    """Its file; the rollout, or one of its tenants, is latched home."""
    async with bench(tmp_path) as one:
        await promote_to(one, "canary step 2 of 2")
        whom = None if tenant is None else TenantName(tenant)
        assert await one.say(RollBackNow(tenant=whom, **now())) == ()
        await one.checkpoints.save()
        return one.config


ON_LOAD = {"name": "b", "start": "on_load", "shadow_stage": {"skip": True}}


@pytest.mark.parametrize("tenant", [None, "acme"])
def test_another_name_begins_nothing_and_says_what_to_do(
    tmp_path: Path, tenant: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        config = await rolled_back(tmp_path, tenant)
        told = edited(under(config, ON_LOAD), renamed(tmp_path).paths, Keyring)[0]
        caplog.set_level(logging.ERROR)
        async with renamed(tmp_path, ON_LOAD) as two:
            state = two.desk.state("b")
            assert (state.stage, state.held and state.held.elsewhere) == (Stage.PENDING, True)
            assert two.publisher.table.routes == {}
            for _ in range(3):
                two.judge.tick()
            assert two.desk.state("b").place == "pending"
            assert state.held is not None
            what = (
                "tenant acme of rollout old-to-new was sent home" if tenant else "old-to-new is rolled back"
            )
            assert what in state.held.reason
            assert "of the same pools (old → new): rolled back by ana: seen enough" in state.held.reason
            assert "`forkgate rollout lift b` begins it" in state.held.reason
            view = plan_view(state, 1.0)
            assert view["blocked_by"] == [f"held: {state.held.reason}"]
            assert view["next"] == "forkgate rollout lift b --reason '...'"
            assert (told["place_after"], told["held"]) == ("pending", state.held.reason)
            assert edit_lines(told)[1] == f"  HELD: {state.held.reason}"
            assert any(getattr(line, "reason", None) == state.held.reason for line in caplog.records)
        async with renamed(tmp_path, ON_LOAD) as three:
            assert await three.say(Lift(**now()), "b") == ()
            assert three.desk.state("b").stage is Stage.SHADOW
            latch = three.keeper.latch
            assert (latch.latched, latch.tenants) == ({}, {}), "nobody else can lift what no file names"
        async with renamed(
            tmp_path, ON_LOAD, ON_LOAD | {"name": "c", "steps": [], "shadow_stage": {}}
        ) as four:
            assert four.desk.state("c").held is None

    run(main())


def test_a_named_rollout_keeps_its_latch_when_another_of_the_same_pools_is_let_go(
    tmp_path: Path,
) -> None:
    other = ON_LOAD | {"name": "b", "steps": [{"tenants": ["globex"]}]}
    mine = {"steps": [{"tenants": ["acme"]}]}

    async def main() -> None:
        await rolled_back(tmp_path)
        async with renamed(tmp_path, mine, other) as two:
            assert two.desk.state("b").stage is Stage.PENDING
            assert await two.say(Lift(**now()), "b") == ()
            assert two.desk.state("b").stage is Stage.SHADOW
            assert (two.desk.state(NAME).stage, list(two.keeper.latch.latched)) == (Stage.ROLLED_BACK, [NAME])

    run(main())


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        ({"candidate": "newer"}, "canary step 1 of 2"),
        ({"start": "by_command"}, "pending"),
    ],
)
def test_other_pools_begin_and_what_waits_for_a_person_waits_for_one(
    tmp_path: Path, change: dict[str, Any], begins: str
) -> None:
    async def main() -> None:
        await rolled_back(tmp_path)
        async with renamed(tmp_path, ON_LOAD | change) as two:
            assert (two.desk.state("b").place, two.desk.state("b").held) == (begins, None)

    run(main())


def test_a_rename_on_a_canary_step_takes_everybody_home_and_begins_from_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 2 of 2")
            await one.checkpoints.save()
        async with renamed(tmp_path, ON_LOAD | {"shadow_stage": {}}) as two:
            assert (two.desk.state("b").place, two.publisher.table.routes) == ("shadow", {})

    run(main())


def test_one_that_runs_already_is_not_stopped_by_the_rollback_of_another(tmp_path: Path) -> None:
    other = ON_LOAD | {"shadow_stage": {}, "steps": [{"tenants": ["globex"]}]}
    mine = {"steps": [{"tenants": ["acme"]}]}

    async def main() -> None:
        async with renamed(tmp_path, mine, other) as one:
            await promote_to(one, "canary step 1 of 1")
            assert await one.say(RollBackNow(**now())) == ()
            assert one.desk.state("b").place == "shadow"
            await one.checkpoints.save()
        async with renamed(tmp_path, mine, other) as two:
            assert two.desk.state("b").place == "shadow"

    run(main())


def test_a_latch_that_does_not_tell_its_pools_may_be_of_these_but_for_one_that_the_file_names() -> None:
    latch = Latch().with_latched(unexplained("gone", "an older file"), 3)
    latch = latch.with_tenant("acme", unexplained("named", "an older file"), 4)
    pools = ("old", "new")
    assert [one.rollout for one in latch.elsewhere("b", pools, {})] == ["gone", "named"]
    assert [one.rollout for one in latch.elsewhere("b", pools, {"named": ("old", "other")})] == ["gone"]
    (whose,) = latch.elsewhere("gone", pools, {"named": pools})
    assert (whose.rollout, whose.tenant) == ("named", "acme")
