"""``kill -9`` of every part, at random moments, under a steady live load."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from proxy.ledger import find_ledgers
from tests.support.saboteur import StubProcess
from tests.support.sidecar import alive
from tests.support.stack import Answer, Load, Stack, stubs
from tests.support.waiting import LIMIT_S, eventually

SEED = 20261129
WAIT_S = (0.02, 0.5)


def test_whatever_is_killed_only_its_own_connections_notice(tmp_path: Path) -> None:
    async def main() -> None:
        draw = random.Random(SEED)
        async with asyncio.timeout(LIMIT_S), stubs("old", "new", "old-shadow") as (old, new, shadow):
            one = Stack(tmp_path, old.url, new.url, old_shadow=shadow.url)
            watching = asyncio.create_task(one.watch())
            try:
                await one.start()
                async with Load(one) as load:
                    await load.more()
                    await _before_a_rollback(one, load, draw, new, shadow)
                ledger = await one.quiet()
                on_disk = sum(counts.captured for _, counts in find_ledgers(one.state / "ledgers"))
                assert ledger["captured"] >= on_disk > 0
                async with Load(one) as load:
                    await load.more()
                    await _roll_back(one, load, new)
                    await _after_it(one, load, draw, new)
                await one.quiet()
                assert one.unbalanced == []
                assert one.epochs == sorted(one.epochs), one.epochs
            finally:
                watching.cancel()
                await one.close()

    asyncio.run(main())


async def _before_a_rollback(
    one: Stack, load: Load, draw: random.Random, new: StubProcess, shadow: StubProcess
) -> None:
    victims = ["judge", "edge 0", "edge 1", "candidate", "baseline shadow"]
    draw.shuffle(victims)
    for victim in victims:
        await asyncio.sleep(draw.uniform(*WAIT_S))
        seen = len(load.bad())
        epoch = one.table_epoch()
        held: set[int] = set()
        if victim == "candidate":
            await new.kill()
            await load.more()
            await new.start()
        elif victim == "baseline shadow":
            await shadow.kill()
            await load.more()
            await shadow.start()
        else:
            held = await _kill_child(one, victim, load)
        await load.more()
        _only_their_own(victim, load.bad()[seen:], held)
        assert one.table_epoch() >= epoch
    await one.until_judged()
    assert (await one.admin("/v1/rollouts/old-to-new"))["state"] == "canary"  # the dead are no fork


async def _roll_back(one: Stack, load: Load, new: StubProcess) -> None:
    await new.set("forks at token 2")
    await one.until("the rollback", state="rolled_back")
    await one.obeyed()


async def _after_it(one: Stack, load: Load, draw: random.Random, new: StubProcess) -> None:
    """From now on no request of acme's may reach the candidate, whatever dies."""
    await new.set()
    flipped = len(load.answers) + 4  # those under way when the last edge acknowledged
    for victim in draw.sample(["judge", "edge 0", "edge 1", "both"], 4):
        await asyncio.sleep(draw.uniform(*WAIT_S))
        seen, epoch = len(load.bad()), one.table_epoch()
        if victim == "both":
            held = one.stop_then_kill("edge 0")
            held |= await _kill_child(one, "judge", load)
        else:
            held = await _kill_child(one, victim, load)
        await load.more()
        _only_their_own(victim, load.bad()[seen:], held)
        assert one.table_epoch() >= epoch
    found = await one.until_judged()
    assert found["rollouts"][0]["state"] == "rolled_back"
    assert found["routes"] == {}
    strayed = [answer for answer in load.answers[flipped:] if answer.engine == "new"]
    assert strayed == []


async def _kill_child(one: Stack, victim: str, load: Load) -> set[int]:
    lives = len(one.pids(victim))
    pid = one.pids(victim)[-1]
    held = one.stop_then_kill(victim)
    await load.more()
    await eventually(lambda: len(one.pids(victim)) > lives, f"another {victim}")
    assert not alive(pid)
    await one.until_judged()
    return held


def _only_their_own(victim: str, bad: list[Answer], held: set[int]) -> None:
    if victim == "candidate":
        # It held answers that had begun: those break off visibly. All else was answered by home.
        strangers = [
            answer
            for answer in bad
            if answer.tenant != "acme" or answer.status != 200 or answer.engine != "new"
        ]
    else:
        strangers = [answer for answer in bad if answer.port not in held]
    assert strangers == [], f"{victim} was killed, these held nothing of it: {strangers}"
