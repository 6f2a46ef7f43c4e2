"""``kill -9`` of the judge, in every state of a rollout and at every write of one; of an edge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.faults.figures import Figures
from tests.faults.scene import NAME, Scene, play
from tests.support.sidecar import eventually_async
from tests.support.waiting import eventually

BEFORE = ("before the latch", "latch half written")
AFTER = ("latched, not published", "published, not sent", "first acknowledgement")
PROMOTION = (
    "decided, not journalled",
    "journalled, not obeyed",
    "before home is kept",
    "home kept, not published",
    "home published, not sent",
)
QUICK: dict[str, Any] = {
    "start": "on_load",
    "shadow_stage": {"skip": True},
    "steps": [{"percent": 100, "minimum_pairs": 1, "advance": "gates"}],
    "observe": {"minimum_s": 0, "advance": "manual"},
}
SLOW: dict[str, Any] = {
    "start": "by_command",
    "shadow_stage": {"minimum_pairs": 1, "advance": "manual"},
    "steps": [
        {"tenants": ["acme"], "minimum_pairs": 1, "advance": "manual"},
        {"percent": 100, "minimum_pairs": 1, "advance": "manual"},
    ],
    "observe": {"minimum_s": 0, "advance": "manual"},
}
EQUAL = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 1}\n"


async def say(it: Scene, verb: str) -> None:
    code, _, err = await it.one.cli("rollout", verb, NAME, "--reason", f"faults: {verb}")
    assert code == 0, (verb, err)


async def at(it: Scene, place: str) -> None:
    await it.one.until(place, place=place)


async def dies_at(it: Scene, moment: str, act: Callable[[], Any]) -> None:
    """The judge kills itself at this moment of what ``act`` sets off."""
    lives = len(it.one.pids("judge"))
    (it.one.seams / "moment").write_text(moment)
    await act()
    await eventually(lambda: len(it.one.pids("judge")) > lives, f"a judge killed {moment}")
    assert (it.one.seams / "fired").read_text() == moment
    await it.judge_beyond(lives)


async def at_every_write_of_a_rollback(figures: Figures, directory: Path) -> None:
    """Announced to one edge, it stands; announced to none, it stands or the next fork decides again."""

    async def act(it: Scene) -> None:
        it.figures.rollback = "lost"
        async with it.fault():
            for moment in (*AFTER, *BEFORE):
                await dies_at(it, moment, lambda: it.new.set("forks at token 2"))
                if moment in AFTER:
                    found = await it.show()
                    assert found["state"] == "rolled_back", (moment, found)
                # The load goes on, so where nobody had heard of the rollback the next fork decides it.
                await it.one.until(f"the rollback {moment}", state="rolled_back")
                await it.one.obeyed()
                await it.new.set()
                await it.stays_home()
                if moment != BEFORE[-1]:
                    await say(it, "lift")
                    await it.one.obeyed()
        await it.rollback_lasts()
        it.figures.note = f"killed at {len(AFTER) + len(BEFORE)} moments of a rollback"

    await play(figures, directory, act, rollback_after=False)


async def at_every_write_of_a_promotion(figures: Figures, directory: Path) -> None:
    """Home is in one place after each, and what was kept is obeyed."""

    async def promote(it: Scene) -> None:
        await it.one.cli("rollout", "promote", NAME, "--reason", "dies of it")

    async def act(it: Scene) -> None:
        async with it.fault():
            for moment in PROMOTION:
                await at(it, "observing")
                await dies_at(it, moment, lambda: promote(it))
                if moment == PROMOTION[0]:
                    assert (await it.show())["place"] == "observing", moment
                    continue
                await at(it, "promoted")
                await eventually_async(lambda: home_is(it, "new"), f"home moved after {moment}")
                await it.one.obeyed()
                await it.stays_home("new")
                it.figures.rollback = "lost"
                await say(it, "rollback")
                await it.one.obeyed()
                await it.stays_home()
                if moment != PROMOTION[-1]:
                    await say(it, "lift")
        await it.rollback_lasts()
        it.figures.note = f"killed at {len(PROMOTION)} moments of a promotion, home in one place each time"

    await play(figures, directory, act, rollback_after=False, policy=EQUAL, prepare=planned(QUICK))


async def home_is(it: Scene, pool: str) -> bool:
    return bool((await it.one.status())["home"] == pool)


def planned(plan: dict[str, Any]) -> Callable[[Scene], Any]:
    """Start again with this plan."""

    async def prepare(it: Scene) -> None:
        await it.one.stop()
        it.one.config["rollouts"][0] |= plan
        it.one.write()
        for name in ("rollouts.json", "evidence.db", "evidence.db-wal", "evidence.db-shm"):
            (it.one.state / name).unlink(missing_ok=True)
        it.one.log_file.write_text("")
        await it.one.start()

    return prepare


async def in_every_state(figures: Figures, directory: Path) -> None:
    """The next judge is in the same place, and every tenant with it."""

    async def killed(it: Scene, place: str) -> None:
        await at(it, place)
        await it.one.obeyed()
        await it.another_judge()
        assert (await it.show())["place"] == place

    async def act(it: Scene) -> None:
        places = []
        async with it.fault():
            for verb, place in (
                (None, "pending"),
                ("start", "shadow"),
                ("promote", "canary step 1 of 2"),
                ("promote", "canary step 2 of 2"),
                ("promote", "observing"),
                ("promote", "promoted"),
                ("rollback", "rolled_back"),
            ):
                if verb == "promote":
                    await may_leave(it)
                if verb is not None:
                    await say(it, verb)
                if verb == "rollback":
                    it.figures.rollback = "lost"
                await killed(it, place)
                places.append(place)
            await it.stays_home()
        await it.rollback_lasts()
        await say(it, "lift")
        await say(it, "abort")
        await killed(it, "aborted")
        it.figures.note = f"killed in {len(places) + 1} states, the same one after each"

    await play(figures, directory, act, rollback_after=False, policy=EQUAL, prepare=planned(SLOW))


async def may_leave(it: Scene) -> None:
    async def nothing_left() -> bool:
        return not (await it.show())["blocked_by"]

    await eventually_async(nothing_left, "nothing stands in the step's way")


async def edge(figures: Figures, directory: Path) -> None:
    """Only its own connections notice."""

    async def act(it: Scene) -> None:
        async with it.fault():
            for name in ("edge 0", "edge 1", "edge 0"):
                lives = len(it.one.pids(name))
                it.excuse_ports(it.one.stop_then_kill(name))
                await eventually(
                    lambda name=name, lives=lives: len(it.one.pids(name)) > lives, f"another {name}"
                )
                await it.one.obeyed()
                await asyncio.sleep(0.5)
        it.figures.note = "three edges killed, each replaced"

    await play(figures, directory, act)


LIVES_S = 240.0
"""A row that starts a judge again and again: each takes seconds on a busy machine."""

ROWS = (
    ("judge-killed-states", "kill -9 of the judge in each state of a rollout", in_every_state, LIVES_S),
    (
        "judge-killed-rollback",
        "kill -9 of the judge at each write of a rollback",
        at_every_write_of_a_rollback,
        LIVES_S,
    ),
    (
        "judge-killed-promotion",
        "kill -9 of the judge at each write of a promotion",
        at_every_write_of_a_promotion,
        LIVES_S,
    ),
    ("edge-killed", "kill -9 of edges, one after the other", edge),
)
