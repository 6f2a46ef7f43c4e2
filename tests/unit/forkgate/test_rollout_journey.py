"""A rollout carried through its stages by real judge parts: journalled, recomputed, taken over anywhere."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.evidence import EvidenceReader, Keyring
from forkgate.config import loads
from forkgate.config.hooks import HookEvent
from forkgate.hooks.notices import differences
from forkgate.judge import conduct, in_the_way
from forkgate.judge.edited import edited
from forkgate.judge.plan_view import plan_view
from forkgate.judge.recompute import recompute
from forkgate.judge.words import JournalUnwritableError
from forkgate.state.latch import Latch
from forkgate.state.paths import StatePaths
from policies.rollout import (
    Abort,
    Advance,
    Lift,
    Pause,
    Resume,
    RollBackNow,
    RolloutState,
    Stage,
    Start,
)
from policies.routes import TenantName
from tests.support.exchanges import comparison, pair
from tests.support.judging import Bench
from tests.support.waiting import LIMIT_S, PATIENCE_S, eventually

NAME = "old-to-new"
TEXT = """
state_dir: {state_dir}
pools:
  - {{name: old, endpoints: ["http://127.0.0.1:9001"]}}
  - {{name: new, endpoints: ["http://127.0.0.1:9002"]}}
home: old
identity: {{tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}}
tenants: [{{name: acme}}, {{name: globex}}, {{name: initech}}]
rollouts:
  - name: old-to-new
    baseline: old
    candidate: new
    policy: {state_dir}/policy.yaml
    global_seed: s
    checks: {{self_check: false, quick_check: false}}
    shadow_stage: {{minimum_pairs: 2, skip: {skip}}}
    steps:
      - {{tenants: [acme], minimum_pairs: 1, advance: {advance}}}
      - {{percent: 100, advance: {advance}}}
    observe: {{minimum_s: {observe_s}, advance: {advance}}}
    {rest}
"""
POLICY = "level: token\nalpha: 0.05\ngates: {token_equality: {minimum_pairs: 1}}\n"
SAID: dict[str, Any] = {"who": "ana", "why": "seen enough"}


def bench(
    state_dir: Path,
    *,
    advance: str = "manual",
    observe_s: float = 0.0,
    skip: bool = False,
    rest: str = "",
    **options: Any,
) -> Bench:
    (state_dir / "policy.yaml").write_text(POLICY)
    made = Bench(state_dir, **options)
    made.config = loads(
        TEXT.format(
            state_dir=state_dir, advance=advance, observe_s=observe_s, skip=str(skip).lower(), rest=rest
        )
    )
    return made


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(bounded())


def now() -> dict[str, Any]:
    return {**SAID, "unix_s": time.time()}


async def equal(one: Bench, count: int = 1) -> None:
    for _ in range(count):
        number = one.desk.state(NAME).evidence + 1
        made = comparison(pair(capture_id=f"c-{number}"))
        await one.judge.comparison_finished(made, "edge-1", number)


def state(one: Bench) -> RolloutState:
    return one.desk.state(NAME)


def routes(one: Bench) -> tuple[str, dict[str, str]]:
    table = one.server.tables[-1] if one.server.tables else one.publisher.table
    return table.home, {str(tenant): str(pool) for tenant, pool in table.routes.items()}


def replayed(tmp_path: Path) -> None:
    with EvidenceReader(tmp_path / "evidence.db") as reader:
        done = recompute(reader, NAME)
    assert (done.differing, done.unknown, done.problems) == (0, 0, ()), done


async def promote_to(one: Bench, place: str) -> None:
    """From wherever it stands."""
    if state(one).stage is Stage.PENDING and place != "pending":
        assert await one.say(Start(**now())) == ()
    while state(one).place != place:
        await equal(one, 2)
        assert await one.say(Advance(**now())) == ()


PLACES = ("pending", "shadow", "canary step 1 of 2", "canary step 2 of 2", "observing", "promoted")
EVERYBODY = {"acme": "new", "globex": "new", "initech": "new"}
WHERE = {
    "pending": ("old", {}),
    "shadow": ("old", {}),
    "canary step 1 of 2": ("old", {"acme": "new"}),
    "canary step 2 of 2": ("old", EVERYBODY),
    "observing": ("old", EVERYBODY),
    "promoted": ("new", {}),
}


def test_every_word_is_journalled_and_the_whole_road_recomputed(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            assert await one.say(Advance(**now())) != (), "it was not started"
            await promote_to(one, "canary step 1 of 2")
            assert await one.say(Pause(**now())) == ()
            assert await one.say(Advance(**now())) != ()
            assert await one.say(Resume(**now())) == ()
            await promote_to(one, "canary step 2 of 2")
            assert await one.say(RollBackNow(tenant=TenantName("globex"), **now())) == ()
            assert routes(one) == ("old", {"acme": "new", "initech": "new"})
            assert await one.say(Lift(tenant=TenantName("globex"), **now())) == ()
            await promote_to(one, "observing")
            assert await one.say(RollBackNow(tenant=TenantName("acme"), **now())) == ()
            await equal(one)
            (blocked,) = await one.say(Advance(**now()))
            assert blocked.startswith("sent home: acme."), "home would be the candidate for acme too"
            assert await one.say(Lift(tenant=TenantName("acme"), **now())) == ()
            await promote_to(one, "promoted")
            assert routes(one) == ("new", {})
            assert one.keeper.latch.moved is not None
            assert await one.say(RollBackNow(**now())) == ()
            assert routes(one) == ("old", {})
            assert one.keeper.latch.moved is None
            assert await one.say(Lift(**now())) == ()
            assert state(one).place == "shadow"
            assert await one.say(Abort(**now())) == ()
            assert await one.say(Start(**now())) == ()
        kinds = journalled(tmp_path)
        for word in ("Start", "Advance", "Pause", "Resume", "RollBackNow", "Lift", "Abort"):
            assert word in kinds, word
        replayed(tmp_path)

    run(main())


def journalled(tmp_path: Path) -> list[str]:
    with EvidenceReader(tmp_path / "evidence.db") as reader:
        last, _ = reader.verdicts_until_now(NAME)
        return [row.kind for row in reader.journal(NAME, last)]


def test_time_and_gates_alone_carry_it_to_its_promotion(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, advance="gates", rest="start: on_load") as one:
            await equal(one, 2)
            one.judge.tick()
            assert state(one).place == "shadow", "a person leaves this one"
            assert await one.say(Advance(**now())) == ()
            for place in PLACES[3:]:
                one.judge.tick()
                await asyncio.sleep(0)
                if place == "canary step 2 of 2":
                    assert state(one).place == "canary step 1 of 2"
                    await equal(one, 1)
                    one.judge.tick()
                assert state(one).place == place
            await eventually(lambda: routes(one) == ("new", {}), "home moved")
            quiet = len(journalled_now(one))
            for _ in range(20):
                one.judge.tick()
            assert len(journalled_now(one)) == quiet, "a tick that changes nothing leaves nothing behind"
        replayed(tmp_path)

    run(main())


def test_home_stays_where_it_moved_though_the_clock_was_set_back_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time

    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "observing")
            monkeypatch.setattr(time, "time", lambda: real() - 3_600)
            await promote_to(one, "promoted")
            assert routes(one) == ("new", {})
            await one.checkpoints.save()
        async with bench(tmp_path) as one:
            assert state(one).place == "promoted"
            assert not one.checkpoints.home_is_back

    run(main())


def journalled_now(one: Bench) -> list[int]:
    return list(range(state(one).sequence))


def test_minimum_time_is_waited_for_across_a_step_of_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = [1_000.0]
        monkeypatch.setattr(time, "time", lambda: clock[0])
        async with bench(tmp_path, observe_s=60.0) as one:
            await promote_to(one, "observing")
            await equal(one)
            clock[0] += 59.0
            assert await one.say(Advance(**now())) == ("it has lasted 59 of 60 s",)
            clock[0] += 3_600.0
            one.judge.clock_stepped(3_600.0)
            assert await one.say(Advance(**now())) == ("it has lasted 59 of 60 s",), (
                "an hour was set, not lived"
            )
            clock[0] -= 7_200.0
            one.judge.clock_stepped(-7_200.0)
            clock[0] += 1.0
            assert await one.say(Advance(**now())) == ()
        replayed(tmp_path)

    run(main())


@pytest.mark.parametrize("place", PLACES)
def test_the_next_judge_goes_on_in_the_same_place_with_home_where_it_was(tmp_path: Path, place: str) -> None:
    """Nothing was saved after the first checkpoint: all of it is in the journal and the latch's file."""

    async def main() -> None:
        async with bench(tmp_path) as one:
            await one.checkpoints.save()
            await promote_to(one, place)
            before = state(one)
        async with bench(tmp_path) as two:
            after = state(two)
            assert (after.place, after.pairs, after.moved, after.evidence) == (
                before.place,
                before.pairs,
                before.moved,
                before.evidence,
            )
            table = two.publisher.table
            assert (table.home, dict(table.routes)) == WHERE[place]
            if place != "promoted":
                await promote_to(two, PLACES[PLACES.index(place) + 1])
        replayed(tmp_path)

    run(main())


def test_a_state_file_that_is_lost_costs_the_evidence_and_not_the_home(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "promoted")
            await one.checkpoints.save()
        StatePaths(tmp_path).rollouts.unlink()
        async with bench(tmp_path) as two:
            assert state(two).stage is Stage.PROMOTED
            assert two.publisher.table.home == "new"
            assert await two.say(RollBackNow(**now())) == ()
            assert routes(two) == ("old", {})

    run(main())


class NotedHooks:
    """Takes note of what there is to tell."""

    def __init__(self) -> None:
        self.seen: dict[str, RolloutState] = {}
        self.told: list[HookEvent] = []

    def look(self, states: Iterable[RolloutState]) -> None:
        for one in states:
            self.told += [notice.event for notice in differences(self.seen.get(one.plan.name), one)]
            self.seen[one.plan.name] = one


def test_a_promotion_that_the_disk_refuses_moves_nothing_until_it_takes_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, latch_s=0.2) as one:
            await promote_to(one, "observing")
            write = one.keeper._file.write
            one.judge.hooks = hooks = NotedHooks()  # type: ignore[assignment]

            def full(_latch: Latch) -> None:
                raise OSError(28, "No space left on device")

            one.keeper._file.write = full  # type: ignore[method-assign]
            await equal(one)
            assert await one.say(Advance(**now())) == ()
            assert state(one).stage is Stage.PROMOTED
            assert routes(one) == ("old", EVERYBODY), "tenant by tenant, as before"
            assert not one.publisher.has_moved(state(one))
            assert hooks.told == [], "home has not moved"
            one.keeper._file.write = write  # type: ignore[method-assign]
            one.judge.tick()
            await eventually(lambda: routes(one) == ("new", {}), "home moved once the disk took it")
            await eventually(lambda: hooks.told == [HookEvent.STAGE, HookEvent.PROMOTION], "hooks are told")
            assert one.publisher.has_moved(state(one))

    run(main())


def test_a_lift_that_only_the_file_knows_of_is_journalled_by_the_next_judge(tmp_path: Path) -> None:
    """Killed between the file and the journal: the file was opened by a person, and says why."""

    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 2 of 2")
            assert await one.say(RollBackNow(tenant=TenantName("acme"), **now())) == ()
            assert await one.say(RollBackNow(**now())) == ()
            await one.checkpoints.save()
            for tenant in ("acme", None):
                latch = state(one).latch if tenant is None else state(one).sent_home[TenantName(tenant)]
                assert latch is not None
                await one.publisher.lift(latch, "looked at it", time.time())
        async with bench(tmp_path) as two:
            assert (state(two).stage, state(two).latch, state(two).sent_home) == (Stage.SHADOW, None, {})
        assert journalled(tmp_path).count("Lift") == 2
        replayed(tmp_path)

    run(main())


def test_what_was_decided_and_never_latched_is_latched_by_the_next_judge(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 2 of 2")
            # Stepped and journalled, as far as a judge came before it was killed.
            asked = one.desk.take(NAME, RollBackNow(tenant=TenantName("acme"), **now()))
            await one.writer.kept(*asked.notes, limit_s=PATIENCE_S)
            await one.checkpoints.save()
        async with bench(tmp_path) as two:
            for asked in two.checkpoints.caught_up:
                two.judge.obey(asked, time.monotonic())
            await eventually(lambda: "acme" in two.keeper.latch.tenants.get(NAME, {}), "the tenant's latch")
            await eventually(lambda: state(two).sent_home[TenantName("acme")].durable, "known to be durable")
            assert routes(two) == ("old", {"globex": "new", "initech": "new"})

    run(main())


def test_an_old_pool_that_is_not_ready_holds_the_step_and_is_told_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "shadow")
            await equal(one, 2)
            one.desk.restore(
                msgspec.structs.replace(
                    state(one), plan=msgspec.structs.replace(state(one).plan, pool_proof=True)
                )
            )
            one.judge.pool_seen("old", False, "1 of 2 endpoints answer")
            blocked = await one.say(Advance(**now()))
            assert blocked == ("pool old could not take everything back: 1 of 2 endpoints answer",)
            one.judge.pool_seen("old", True, "2 of 2 endpoints answer")
            assert await one.say(Advance(**now())) == ()

    run(main())


def test_that_an_earlier_judge_found_the_old_pool_ready_lets_no_step_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_the_way, "LOOK_S", 0.05)

    async def main() -> None:
        async with bench(tmp_path, advance="gates") as one:
            await promote_to(one, "canary step 1 of 2")
            await equal(one, 2)
            await one.checkpoints.save()
        async with bench(tmp_path, advance="gates", looked_at=False) as two:
            assert state(two).pools["old"].ready, "as the judge before saw it"
            looked: set[str] = set()
            two.judge.in_the_way.looked = looked.__contains__
            two.judge.tick()
            waits = ("pool old: this judge has not looked yet whether it could take everything back",)
            assert await two.say(Advance(**now())) == waits
            assert two.judge.in_the_way.told(state(two)) == waits
            assert state(two).place == "canary step 1 of 2"
            await two.checkpoints.save()
        monkeypatch.setattr(in_the_way, "LOOK_S", PATIENCE_S)
        for advance in ("manual", "gates"):
            async with bench(tmp_path, advance=advance, looked_at=False) as three:
                looked.clear()
                three.judge.in_the_way.looked = looked.__contains__
                meant = Advance(look=state(three).look, **now())
                asked = asyncio.create_task(three.say(meant))
                await asyncio.sleep(0)
                looked.add("old")
                three.judge.pool_seen("old", True, "1 of 1 endpoints answers")
                blocked = await asked
                if advance == "manual":
                    assert blocked == (), "who asks before the first look waits for it"
                    assert three.judge.in_the_way.told(state(three)) == ()
                    assert state(three).place == "canary step 2 of 2"
                else:
                    assert "canary-3 was meant" in blocked[0], "the step that was meant took itself meanwhile"
                    assert state(three).place == "observing"
                await equal(three, 2)
                await three.checkpoints.save()
        replayed(tmp_path)

    run(main())


def test_no_step_is_taken_onto_a_candidate_that_does_not_answer(tmp_path: Path) -> None:
    """Its gates pass on what it did before it hung, and a request that hangs has no record yet."""

    async def main() -> None:
        for advance in ("manual", "gates"):
            (tmp_path / advance).mkdir()
            async with bench(tmp_path / advance, advance=advance) as one:
                await promote_to(one, "canary step 1 of 2")
                silent = ["http://new:1: not answering since noon"]
                one.judge.in_the_way.silent = lambda pool: silent if pool == "new" else ()  # noqa: B023
                await equal(one, 2)
                one.judge.tick()
                waits = ("pool new: http://new:1: not answering since noon",)
                assert state(one).place == "canary step 1 of 2"
                assert await one.say(Advance(**now())) == waits
                assert one.judge.in_the_way.told(state(one)) == waits
                silent.clear()
                one.judge.tick()
                assert one.judge.in_the_way.told(state(one)) == ()
                if advance == "manual":
                    assert await one.say(Advance(**now())) == ()
                assert state(one).place == "canary step 2 of 2"

    run(main())


def test_a_skipped_shadow_stage_waits_for_the_first_look_at_the_old_pool_like_every_step(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with bench(tmp_path, skip=True, rest="start: on_load", looked_at=False) as one:
            unseen = "pool old: whether it could take everything back was not seen yet"
            for _ in range(3):
                one.judge.tick()
            assert (state(one).place, routes(one)) == ("shadow", ("old", {}))
            told = plan_view(state(one), time.time())
            assert told["blocked_by"] == [unseen]
            assert [step["stage"] for step in told["steps"] if step["standing"] == "here"] == ["shadow"]
            assert await one.say(Advance(**now())) == (unseen,)
            one.judge.pool_seen("old", False, "1 of 2 endpoints answer")
            one.judge.tick()
            assert state(one).place == "shadow"
            one.judge.pool_seen("old", True, "2 of 2 endpoints answer")
            assert state(one).place == "canary step 1 of 2", "no second is waited for"
            await eventually(lambda: routes(one) == ("old", {"acme": "new"}), "its table")
            assert state(one).look == "canary-1", "what is skipped is no look"
        replayed(tmp_path)

    run(main())


def test_a_lift_leads_a_rollout_that_skips_its_shadow_stage_no_further_than_a_ready_pool(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with bench(tmp_path, skip=True, rest="start: on_load") as one:
            assert state(one).place == "canary step 1 of 2"
            assert await one.say(RollBackNow(**now())) == ()
            one.judge.pool_seen("old", False, "nobody answers")
            assert await one.say(Lift(**now())) == ()
            one.judge.tick()
            assert (state(one).place, routes(one)) == ("shadow", ("old", {}))

    run(main())


def test_an_abort_moves_traffic_home_before_a_disk_that_hangs_has_journalled_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 1 of 2")
            hangs = threading.Event()
            asked = asyncio.create_task(one.writer.call(lambda _store: hangs.wait(PATIENCE_S), PATIENCE_S))
            await asyncio.sleep(0)
            said = asyncio.create_task(one.judge.act(NAME, Abort(**now())))
            try:
                await eventually(lambda: routes(one) == ("old", {}), "everybody home")
                assert not said.done(), "and the journal is still waited for"
            finally:
                hangs.set()
            acted = await said
            assert (acted.blocked, acted.unkept) == ((), None)
            await asked
        replayed(tmp_path)

    run(main())


def test_words_on_a_disk_that_hangs_are_refused_or_told_as_not_journalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 1 of 2")
            await equal(one, 2)
            monkeypatch.setattr(conduct, "KEPT_S", 0.05)
            hangs = threading.Event()
            asked = asyncio.create_task(one.writer.call(lambda _store: hangs.wait(PATIENCE_S), PATIENCE_S))
            await asyncio.sleep(0)
            try:
                before = state(one)
                with pytest.raises(JournalUnwritableError, match="did not answer within"):
                    await one.judge.act(NAME, Advance(**now()))
                assert state(one) == before, "nothing was done"
                acted = await one.judge.act(NAME, Pause(**now()))
                assert acted.unkept is not None
                assert state(one).paused is not None
                with pytest.raises(JournalUnwritableError):
                    await one.judge.act(NAME, Resume(**now()))
                acted = await one.judge.act(NAME, RollBackNow(**now()))
                assert (acted.unkept is not None, routes(one)) == (True, ("old", {}))
                with pytest.raises(JournalUnwritableError):
                    await one.judge.act(NAME, Lift(**now()))
                assert list(one.keeper.latch.latched) == [NAME], "the latch was not opened either"
            finally:
                hangs.set()
            await asked
        replayed(tmp_path)

    run(main())


def test_the_plan_tells_every_step_and_what_the_present_one_waits_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path, observe_s=3_600.0) as one:
            told = plan_view(state(one), time.time())
            assert [(step["stage"], step["standing"]) for step in told["steps"]] == [
                ("pending", "here"),
                ("shadow", "to come"),
                ("canary", "to come"),
                ("canary", "to come"),
                ("observing", "to come"),
                ("promoted", "to come"),
            ]
            assert told["next"] == f"forkgate rollout start {NAME} --reason '...'"
            await promote_to(one, "observing")
            told = plan_view(state(one), state(one).entered_unix_s + 60.0)
            assert [step["standing"] for step in told["steps"]] == ["done"] * 4 + ["here", "to come"]
            here = told["steps"][4]
            assert (here["lasted_s"], here["minimum_s"]) == (60.0, 3_600.0)
            assert "it has lasted 60 of 3600 s" in here["blocked_by"]
            assert told["next"] is None, "nothing to type while it waits"
            later = plan_view(state(one), state(one).entered_unix_s + 3_601.0)
            assert later["next"] == f"forkgate rollout promote {NAME} --reason '...'"
            assert await one.say(RollBackNow(**now())) == ()
            told = plan_view(state(one), time.time())
            assert told["next"] == f"forkgate rollout lift {NAME} --reason '...'"
            assert not any(step["standing"] == "here" for step in told["steps"])

    run(main())


def test_an_edited_file_is_told_before_any_restart_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 1 of 2")
            await one.checkpoints.save()
            paths = StatePaths(tmp_path)
            before = paths.rollouts.read_bytes()

            def under(**section: Any) -> dict[str, Any]:
                plain = json.loads(msgspec.json.encode(one.config))
                plain["rollouts"][0] |= section
                return edited(loads(json.dumps(plain)), paths, Keyring)[0]

            same = under()
            assert (same["changes"], same["moves"], same["place_after"]) == ([], {}, "canary step 1 of 2")
            more = under(steps=[{"tenants": ["acme", "globex"]}, {"percent": 100}])
            assert any(line.startswith("steps[0]: acme") and "globex" in line for line in more["changes"])
            assert more["moves"] == {}, "an edit moves nobody to the candidate"
            less = under(steps=[{"tenants": ["globex"]}])
            assert less["moves"] == {"acme": ["new", "home"]}
            other = under(policy="audit")
            assert (other["place_after"], other["moves"]) == ("pending", {"acme": ["new", "home"]})
            assert "policy (digest" in other["held"]
            assert paths.rollouts.read_bytes() == before

    run(main())
