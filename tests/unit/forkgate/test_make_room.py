"""Whoever goes home finds room there, and somebody who answers: shadows leave first, tables name a refuge."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from forkgate.config import loads
from forkgate.state.latch import unexplained
from policies.rollout import Abort, Lift, RollBackNow
from policies.routes import TENANT_MARK, UNKNOWN_TENANT, RouteTable, TenantName
from proxy.link.values import EdgeIdentity
from tests.support.judging import Bench, fork_seen
from tests.support.waiting import PATIENCE_S, eventually
from tests.unit.forkgate.test_rollout_journey import NAME, bench, now, promote_to, replayed, run, state

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


OTHER = {"name": "old-to-newer", "candidate": "newer", "steps": []}
EDGE = EdgeIdentity(sidecar="host", worker=0, incarnation="edge-1")


@pytest.mark.parametrize("place", REFUGES)
def test_a_rollback_that_only_an_edge_remembers_is_one_like_any_other(tmp_path: Path, place: str) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, place)
            before = one.publisher.table.epoch
            one.judge.rolled_back(EDGE, {NAME: before + 5})
            await one.judge.settle(PATIENCE_S)
            assert (table(one).home, table(one).routes, table(one).refuges) == ("old", {}, REFUGES[place])
            assert one.mirror.yielded == ([] if place == "shadow" else [("old", NAME, None)])
            assert one.mirror.stopped[-1][0] == NAME
            assert await one.say(Lift(**now())) == ()
            assert (table(one).refuges, state(one).place) == ({}, "shadow")
        replayed(tmp_path)

    run(main())


def test_a_tenant_whom_only_an_edge_remembers_is_made_room_for_and_sheltered(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "observing")
            one.judge.rolled_back(EDGE, {f"{NAME}{TENANT_MARK}globex": one.publisher.table.epoch + 5})
            await one.judge.settle(PATIENCE_S)
            assert one.mirror.yielded == [("old", None, None)]
            assert table(one).refuges == {"globex": "new"}

    run(main())


@pytest.mark.parametrize("place", REFUGES)
def test_a_rollback_that_only_the_latch_holds_leaves_the_same_refuges(tmp_path: Path, place: str) -> None:
    """The judge was killed before its journal held it: the next one finds a state that had not come home."""

    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, place)
            await one.checkpoints.save()
            rollback = unexplained(NAME, "the file alone knows")
            await one.keeper.hold(one.keeper.latch.with_latched(rollback, 99), PATIENCE_S)
        async with bench(tmp_path) as two:
            assert state(two).place == "rolled_back"
            made = two.publisher.table
            assert (made.home, made.routes, made.refuges) == ("old", {}, REFUGES[place])
        replayed(tmp_path)

    run(main())


def test_the_others_know_that_home_is_back_when_an_edge_tells_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        one = bench(tmp_path)
        plain = msgspec.json.decode(msgspec.json.encode(one.config))
        plain["pools"].append({"name": "newer", "endpoints": ["http://127.0.0.1:9003"]})
        plain["rollouts"].append({**plain["rollouts"][0], **OTHER})
        one.config = loads(json.dumps(plain))
        async with one:
            await promote_to(one, "promoted")
            assert one.desk.state("old-to-newer").home_of == NAME
            one.judge.rolled_back(EDGE, {NAME: one.publisher.table.epoch + 5})
            assert one.desk.state("old-to-newer").home_of is None

    run(main())


def test_checks_of_other_rollouts_leave_the_pool_that_is_refilled_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 1 of 2")
            one.judge.fork_seen(fork_seen())
            assert one.checks.yielded == ["old"]

    run(main())
