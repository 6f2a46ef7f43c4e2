"""The judge is frozen, slow, or never there. Clients are served; canaries go home and come back in order."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import time
from pathlib import Path

from tests.support.sidecar import eventually_async
from tests.support.stack import Load, Stack, stack, stubs
from tests.support.waiting import LIMIT_S, eventually

GRACE = {"grace_s": 1.0, "return_s": 1.0}
SMALL_QUEUE = {"capture": {"flush_s": 0.02, "queue_items": 4, "batch_items": 4}}
AT_THE_EDGE = {"queue_full", "queue_age", "no_judge"}


def test_frozen_judge_sends_canaries_home_and_its_return_counts_only_after_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            stack(tmp_path, judge=GRACE, rest=SMALL_QUEUE) as (one, _, new),
            Load(one) as load,
        ):
            judge = one.pids("judge")[-1]
            await _acme_is_at(load, "new")
            os.kill(judge, signal.SIGSTOP)
            try:
                await _acme_is_at(load, "old")
            finally:
                thawed = time.monotonic()
                os.kill(judge, signal.SIGCONT)
            await _acme_is_at(load, "new")
            early = [
                answer
                for answer in load.answers
                if answer.engine == "new" and thawed < answer.started < thawed + GRACE["return_s"]
            ]
            assert early == []

            # A judge that gets a fifth of the time it needs.
            for _ in range(8):
                os.kill(judge, signal.SIGSTOP)
                await asyncio.sleep(0.4)
                os.kill(judge, signal.SIGCONT)
                await asyncio.sleep(0.1)
            await load.more()

            # Rolled back, then frozen: its return brings nobody back.
            await one.obeyed()
            await _acme_is_at(load, "new")
            await new.set("forks at token 2")
            await one.until("the rollback", state="rolled_back")
            await one.obeyed()
            await load.more()
            flipped = len(load.answers)
            os.kill(judge, signal.SIGSTOP)
            await asyncio.sleep(2 * GRACE["grace_s"])
            os.kill(judge, signal.SIGCONT)
            await one.obeyed()
            await asyncio.sleep(2 * GRACE["return_s"])
            await load.more()
            assert {answer.engine for answer in load.answers[flipped:]} == {"old"}
            assert load.bad() == []
        # The load has ended, the sidecar with it; what was counted was looked at under way.

    asyncio.run(main())


async def _acme_is_at(load: Load, engine: str) -> None:
    """Wait until acme's newest answers all come from there."""

    def there() -> bool:
        newest = [answer for answer in load.answers[-16:] if answer.tenant == "acme"]
        return len(newest) >= 4 and {answer.engine for answer in newest[-4:]} == {engine}

    await eventually(there, f"acme at {engine}")


def test_judge_that_never_starts_costs_captures_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stubs("old", "new") as (old, new):
            one = Stack(tmp_path, old.url, new.url, judge=GRACE, rest=SMALL_QUEUE)
            try:
                await one.start()
                assert await one.stop() == 0
                one.log_file.write_text("")
                with (one.state / "judge.lock").open("rb+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    one.spawn()
                    await one.until_edges()
                    async with Load(one) as load:
                        await _acme_is_at(load, "old")  # where the last table said, until the grace was over
                        await load.more(24)
                    assert load.bad() == []
                    code, _, err = await one.cli("status")
                    assert code == 4
                    assert "judge" in err
                found = await one.until_judged()
                assert found["rollouts"][0]["state"] == "canary"
                async with Load(one) as load:
                    await _acme_is_at(load, "new")
                assert load.bad() == []
                ledger = await one.quiet()
                assert ledger["compared"] > 0, ledger
                assert set(ledger["dropped"]) <= AT_THE_EDGE, ledger
            finally:
                await one.close()

    asyncio.run(main())


def test_full_queue_is_told_from_a_dead_consumer(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), stack(tmp_path, rest=SMALL_QUEUE, workers=1) as (one, *_):
            judge = one.pids("judge")[-1]
            os.kill(judge, signal.SIGSTOP)
            try:
                # Not known to be gone yet: it answered a moment ago, and now the queue overflows. Soon, for a
                # judge that has a batch and says nothing counts as gone in the end.
                async with Load(one, clients=8, pause_s=0.0) as load:
                    await load.more(12)
            finally:
                os.kill(judge, signal.SIGCONT)
            assert load.bad() == []
            full = (await one.quiet(captured=len(load.answers)))["dropped"]
            assert full.get("queue_full", 0) > 0, full
            assert "no_judge" not in full, full

            both = len(load.answers)
            lives = len(one.pids("judge"))
            one.kill("judge")
            async with Load(one, clients=8, pause_s=0.0) as load:
                await load.more(60)
            assert load.bad() == []
            both += len(load.answers)
            await eventually(lambda: len(one.pids("judge")) > lives, "another judge")
            await one.until_judged()
            dead = (await one.quiet(captured=both))["dropped"]
            assert dead.get("no_judge", 0) > 0, dead

    asyncio.run(main())


def test_frozen_edge_is_named_by_the_flip_and_obeys_it_as_soon_as_it_wakes(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(LIMIT_S),
            stack(tmp_path, judge={"acknowledge_s": 0.5}) as (one, _, new),
        ):
            frozen = one.pids("edge 0")[-1]
            await new.set("forks at token 2")
            os.kill(frozen, signal.SIGSTOP)
            try:
                async with Load(one, clients=2) as load:  # the other worker takes new connections
                    await one.until("the rollback", state="rolled_back")
                    await eventually_async(lambda: _flips(one), "the flip's end")
                    (flip,) = (await one.status())["flips"]
                    assert flip["edges"] == 1
                    assert len(flip["missing"]) == 1
                    os.kill(frozen, signal.SIGCONT)
                    await one.obeyed()
                    await load.more()
                    await _acme_is_at(load, "old")
                assert load.bad() == []
            finally:
                os.kill(frozen, signal.SIGCONT)

    asyncio.run(main())


async def _flips(one: Stack) -> bool:
    return bool((await one.status())["flips"])
