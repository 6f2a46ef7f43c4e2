"""Whoever goes home finds room there, and somebody who answers: shadows leave first, tables name a refuge."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.rollout import Abort, Lift, RollBackNow
from policies.routes import UNKNOWN_TENANT, RouteTable, TenantName
from tests.support.judging import Bench, fork_seen
from tests.support.waiting import eventually
from tests.unit.forkgate.test_rollout_journey import NAME, bench, now, promote_to, replayed, run

EVERYBODY = {"acme": "new", "globex": "new", "initech": "new"}
REFUGES = {
    "shadow": {},
    "canary step 1 of 2": {"acme": "new"},
    "observing": EVERYBODY,
    "promoted": {**EVERYBODY, UNKNOWN_TENANT: "new"},
}
"""Place → who is sheltered when all of it is rolled back there."""


def table(one: Bench) -> RouteTable:
    return one.server.tables[-1]


@pytest.mark.parametrize("place", REFUGES)
def test_a_rollback_frees_the_old_pool_and_leaves_a_refuge_to_whoever_had_moved(
    tmp_path: Path, place: str
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, place)
            assert await one.say(RollBackNow(**now())) == ()
            await eventually(lambda: table(one).home == "old", "home")
            assert table(one).routes == {}
            assert table(one).refuges == REFUGES[place]
            assert one.mirror.yielded == ([] if place == "shadow" else [("old", NAME, None)])
            assert await one.say(Lift(**now())) == ()
            assert table(one).refuges == {}
        replayed(tmp_path)

    run(main())


def test_a_breach_spares_the_pair_that_decided(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 1 of 2")
            event = fork_seen()
            one.judge.fork_seen(event)
            assert one.mirror.yielded == [("old", NAME, event.capture_id)], "at once, before the flip is out"
            await eventually(lambda: table(one).refuges == {"acme": "new"}, "the flip")

    run(main())


def test_one_tenant_alone_is_made_room_for_and_sheltered_while_the_rollout_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "observing")
            assert await one.say(RollBackNow(**now(), tenant=TenantName("globex"))) == ()
            assert one.mirror.yielded == [("old", None, None)], "the rollout goes on: nothing half is kept"
            assert table(one).refuges == {"globex": "new"}
            assert await one.say(Lift(**now(), tenant=TenantName("globex"))) == ()
            assert (table(one).refuges, table(one).routes) == ({}, EVERYBODY)

    run(main())


def test_an_abort_makes_room_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "observing")
            assert await one.say(Abort(**now())) == ()
            assert one.mirror.yielded == [("old", NAME, None)]
            assert table(one).refuges == EVERYBODY

    run(main())


def test_the_next_judge_shelters_whom_this_one_did(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "observing")
            assert await one.say(RollBackNow(**now())) == ()
            await one.checkpoints.save()
        async with bench(tmp_path) as two:
            assert two.publisher.table.refuges == EVERYBODY

    run(main())
