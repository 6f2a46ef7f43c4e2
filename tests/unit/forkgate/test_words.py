"""Words that wait for a disk or for probes, while others are said and done."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from forkgate.admin.port import Refused, Verb
from forkgate.judge.settings import JudgeSettings
from forkgate.judge.views import Views
from policies.rollout import Abort, Lift, Pause, Resume, RollBackNow, RolloutState, Stage, Start
from policies.routes import TenantName
from tests.support.judging import Bench
from tests.unit.forkgate.test_rollout_journey import NAME, bench, now, promote_to, routes, run, state

ACME = TenantName("acme")


async def said_before(one: Bench, event: Any, meant: RolloutState) -> str:
    """What is answered to a word that was said when the rollout stood like this, and waited since."""
    (reason,) = (await one.judge.act(NAME, event, meant)).blocked
    return reason


@pytest.mark.parametrize("tenant", [None, ACME])
def test_a_lift_opens_the_rollback_that_it_was_said_of_and_no_later_one(
    tmp_path: Path, tenant: TenantName | None
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 2 of 2")
            assert await one.say(RollBackNow(tenant=tenant, **now())) == ()
            seen = state(one)
            assert await one.say(Lift(tenant=tenant, **now())) == ()
            if tenant is None:
                await promote_to(one, "canary step 1 of 2")
            assert await one.say(RollBackNow(tenant=tenant, **now())) == ()
            again, before = state(one), routes(one)
            reason = await said_before(one, Lift(tenant=tenant, **now()), seen)
            assert "and not what it was when this lift was said" in reason
            assert f"`forkgate rollout show {NAME}`" in reason
            assert (state(one), routes(one)) == (again, before)
            latch = one.keeper.latch
            assert [*latch.latched, *latch.tenants] == [NAME]
            assert await one.say(Lift(tenant=tenant, **now())) == ()

    run(main())


def test_a_latch_that_is_another_one_by_its_turn_at_the_disk_stands(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            await promote_to(one, "canary step 1 of 2")
            assert await one.say(RollBackNow(**now())) == ()
            first = state(one).latch
            assert await one.say(Lift(**now())) == ()
            assert await one.say(RollBackNow(**now())) == ()
            assert first is not None
            written = await one.publisher.lift(first, "late", time.time())
            assert (written.durable, list(one.keeper.latch.latched)) == (False, [NAME])

    run(main())


def test_a_start_and_a_resume_end_what_they_were_said_of_and_no_later_abort_or_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            seen = state(one)
            assert await one.say(Abort(**now())) == ()
            assert "this start was said" in await said_before(one, Start(**now()), seen)
            assert state(one).stage is Stage.ABORTED
            assert await one.say(Start(**now())) == ()
            assert await one.say(Pause(**now())) == ()
            seen = state(one)
            assert await one.say(Resume(**now())) == ()
            assert await one.say(Pause(**now())) == ()
            assert "this resume was said" in await said_before(one, Resume(**now()), seen)
            assert state(one).paused is not None

    run(main())


class SlowProbes:
    """Pools that are looked at until the test says."""

    def __init__(self) -> None:
        self.asked, self.over = asyncio.Event(), asyncio.Event()

    async def looked(self, state: RolloutState) -> tuple[str, ...]:
        self.asked.set()
        await self.over.wait()
        return ()


@pytest.mark.parametrize(("verb", "other"), [(Verb.START, Verb.ABORT), (Verb.LIFT, Verb.ROLLBACK)])
def test_what_was_done_while_a_word_waited_for_probes_stays_done(
    tmp_path: Path, verb: Verb, other: Verb
) -> None:
    async def main() -> None:
        async with bench(tmp_path) as one:
            if verb is Verb.LIFT:
                await promote_to(one, "canary step 1 of 2")
                assert await one.say(RollBackNow(**now())) == ()
            probes = SlowProbes()
            one.judge.early = probes  # type: ignore[assignment]
            absent: Any = None
            views = Views(_settings(one), one.judge, absent, absent, absent, absent)
            late = asyncio.create_task(views.act(NAME, verb, reason="go on", who="ana"))
            await probes.asked.wait()
            if verb is Verb.LIFT:
                assert await one.say(Lift(**now())) == ()
            assert await one.say((Abort if other is Verb.ABORT else RollBackNow)(**now())) == ()
            done = state(one)
            probes.over.set()
            with pytest.raises(Refused, match=f"this {verb} was said") as refused:
                await late
            assert refused.value.status == 409
            assert state(one) == done

    run(main())


def _settings(one: Bench) -> JudgeSettings:
    return JudgeSettings(config=one.config, policies={}, incarnation="judge-1", least_epoch=1)
