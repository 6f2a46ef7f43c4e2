"""``kill -9`` of the judge, in every state of a rollout and at every write of one; of an edge."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.faults.figures import Figures
from tests.faults.scene import Scene, play
from tests.support.saboteur import StubProcess
from tests.support.sidecar import eventually_async

BEFORE = ("before the latch", "latch half written")
AFTER = ("latched, not published", "published, not sent", "first acknowledgement")
DECIDED, JOURNALLED = "decided, not journalled", "journalled, not obeyed"
PROMOTION = (
    DECIDED,
    JOURNALLED,
    "before home is kept",
    "home kept, not published",
    "home published, not sent",
)
HOME_BACK = ("before home is put back", "home put back, not published")
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
    "max_tenants_home": 1,
}
CHECKED: dict[str, Any] = {
    **SLOW,
    "checks": {"self_check": True, "quick_check": True, "self_runs": 2, "prompts": 2, "tokens": 3},
}
CHECKS = ("self_check", "quick_check")
EQUAL = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 1}\n"


async def at_every_write_of_a_rollback(figures: Figures, directory: Path) -> None:
    """Announced to one edge, it stands; announced to none, it stands or the next fork decides again."""

    async def act(it: Scene) -> None:
        it.figures.rollback = "lost"
        async with it.fault():
            for moment in (*AFTER, *BEFORE):
                await it.dies_at(moment, lambda: it.new.set("forks at token 2"))
                if moment in AFTER:
                    found = await it.show()
                    assert found["state"] == "rolled_back", (moment, found)
                # The load goes on, so where nobody had heard of the rollback the next fork decides it.
                await it.one.until(f"the rollback {moment}", state="rolled_back")
                await it.one.obeyed()
                await it.new.set()
                await it.stays_home()
                if moment != BEFORE[-1]:
                    await it.say("lift")
                    await it.one.obeyed()
        await it.rollback_lasts()
        it.figures.note = f"killed at {len(AFTER) + len(BEFORE)} moments of a rollback"

    await play(figures, directory, act, rollback_after=False)


async def at_every_write_of_a_promotion(figures: Figures, directory: Path) -> None:
    """Home is in one place after each, and what was kept is obeyed; also where an abort puts it back."""

    async def act(it: Scene) -> None:
        hit = 0
        async with it.fault():
            for number, moment in enumerate(PROMOTION):
                await it.at("observing")
                await it.dies_at(moment, lambda: it.one.word("promote"))
                hit += 1
                if moment == DECIDED:
                    assert (await it.show())["place"] == "observing", moment
                    continue
                await it.at("promoted")
                await it.home_is("new")
                await it.stays_home("new")
                if number <= len(HOME_BACK):
                    await aborted(it, HOME_BACK[number - 1])
                    hit += 1
                    await it.say("start")
                    continue
                it.figures.rollback = "lost"
                await it.say("rollback")
                await it.one.obeyed()
                await it.stays_home()
                if moment != PROMOTION[-1]:
                    await it.say("lift")
        await it.rollback_lasts()
        it.figures.note = f"killed at {hit} moments of a promotion and its end, home in one place each time"

    await play(figures, directory, act, rollback_after=False, policy=EQUAL, plan=QUICK)


async def aborted(it: Scene, moment: str) -> None:
    """An abort of a promoted rollout, of which its judge dies. It was heard of or not, and home says the
    same."""
    await it.dies_at(moment, lambda: it.one.word("abort"))
    if (await it.show())["place"] == "promoted":
        await it.home_is("new")
        await it.stays_home("new")
        await it.say("abort")
    await it.at("aborted")
    await it.home_is("old")
    await it.stays_home()


async def in_every_state(figures: Figures, directory: Path) -> None:
    """The next judge is in the same place, and every tenant with it."""

    async def killed(it: Scene, place: str) -> None:
        await it.at(place)
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
            ):
                if verb == "promote":
                    await it.may_leave()
                if verb is not None:
                    await it.say(verb)
                await killed(it, place)
                places.append(place)
            it.figures.rollback = "lost"
            await it.say("rollback")
            await it.one.obeyed()
            await it.stays_home()
        await it.rollback_lasts()  # killed as rolled back
        await it.say("lift")
        await it.say("abort")
        await killed(it, "aborted")
        it.figures.note = f"killed in {len(places) + 2} states, the same one after each"

    await play(figures, directory, act, rollback_after=False, policy=EQUAL, plan=SLOW)


async def in_every_check(figures: Figures, directory: Path) -> None:
    """A check that nobody saw the end of is made again; one whose end was kept is not."""

    async def act(it: Scene) -> None:
        moments = ("in its midst", DECIDED, JOURNALLED)
        async with it.fault():
            await it.dies_at(DECIDED, lambda: it.one.word("start"))
            assert (await it.show())["place"] == "pending"
            await it.dies_at(JOURNALLED, lambda: it.one.word("start"))
            await it.at("shadow")
            for check, asked in zip(CHECKS, (it.old, it.new), strict=True):
                for moment in moments:
                    await it.say("abort")
                    before = len(begun(it))
                    await asked.set("holds checks")
                    await it.say("start")
                    await waits_in(it, check, asked)
                    if moment == "in its midst":
                        await it.another_judge()
                        await waits_in(it, check, asked)
                        await asked.set()
                    else:
                        await it.dies_at(moment, asked.set)
                    await it.at("shadow")
                    made = [one for one in CHECKS for _ in range(1 + (one == check and moment != JOURNALLED))]
                    assert begun(it)[before:] == made, (check, moment, begun(it)[before:])
            await it.stays_home()
            await it.promote("canary step 1 of 2")
            await it.one.obeyed()
        it.figures.note = f"killed at {2 + 2 * len(moments)} moments of its checks, each made again or known"

    await play(figures, directory, act, policy=EQUAL, plan=CHECKED)


async def waits_in(it: Scene, check: str, asked: StubProcess) -> None:
    """The rollout is in this check, and this engine has been asked."""
    await it.at(check)

    async def waits() -> bool:
        return (await asked.counts())["held"] > 0

    await eventually_async(waits, f"{check} at its engine")


def begun(it: Scene) -> list[str]:
    """Every check that any judge has begun."""
    return [line["check"] for line in it.one.log() if line["event"] == "check begins"]


Told = Callable[[dict[str, Any]], bool]


def is_at(place: str) -> Told:
    return lambda found: bool(found["place"] == place)


def is_paused(found: dict[str, Any]) -> bool:
    return found["paused"] is not None


def goes_on(found: dict[str, Any]) -> bool:
    return found["paused"] is None


def acme_is_home(found: dict[str, Any]) -> bool:
    return [one["tenant"] for one in found["tenants_home"]] == ["acme"]


def nobody_is_home(found: dict[str, Any]) -> bool:
    return found["tenants_home"] == []


WORDS: Sequence[tuple[str, str | None, str, Told]] = (
    ("start", None, DECIDED, is_at("pending")),
    ("start", None, JOURNALLED, is_at("shadow")),
    ("pause", None, DECIDED, goes_on),
    ("pause", None, JOURNALLED, is_paused),
    ("resume", None, DECIDED, is_paused),
    ("resume", None, JOURNALLED, goes_on),
    ("promote", None, DECIDED, is_at("shadow")),
    ("promote", None, JOURNALLED, is_at("canary step 1 of 2")),
    ("promote", None, JOURNALLED, is_at("canary step 2 of 2")),
    ("rollback", "acme", "a tenant latched, not published", acme_is_home),
    ("lift", "acme", "before a latch is opened", acme_is_home),
    ("lift", "acme", "a latch opened, not journalled", nobody_is_home),
    ("rollback", None, "latched, not published", is_at("rolled_back")),
    ("lift", None, "before a latch is opened", is_at("rolled_back")),
    ("lift", None, "a latch opened, not journalled", is_at("shadow")),
    ("abort", None, DECIDED, is_at("shadow")),
    ("abort", None, JOURNALLED, is_at("aborted")),
    ("start", None, JOURNALLED, is_at("shadow")),
)
"""Verb, tenant, the moment that its judge dies at, and what the next one shows."""


async def at_every_write_of_a_word(figures: Figures, directory: Path) -> None:
    """A word that was not kept was not heard; one that was is obeyed. Tables say the same as the state."""

    async def act(it: Scene) -> None:
        async with it.fault():
            for verb, tenant, moment, told in WORDS:
                if verb == "promote":
                    await it.may_leave()
                await it.dies_at(moment, functools.partial(it.one.word, verb, tenant=tenant))
                found = await it.show()
                assert told(found), (verb, tenant, moment, found)
                await as_the_table_says(it, found)
            await it.promote("canary step 1 of 2")
            await it.one.obeyed()
        it.figures.note = f"killed at {len(WORDS)} moments of words, each heard or not"

    await play(figures, directory, act, policy=EQUAL, plan=SLOW)


async def as_the_table_says(it: Scene, found: dict[str, Any]) -> None:
    """The candidate has the tenants that the state names, and no other."""
    await it.one.obeyed()
    routes = (await it.one.status())["routes"]
    assert routes == dict.fromkeys(found["on_candidate"], "new"), (found["place"], routes)


async def edge(figures: Figures, directory: Path) -> None:
    """Only its own connections notice."""

    async def act(it: Scene) -> None:
        async with it.fault():
            for name in ("edge 0", "edge 1", "edge 0"):
                await it.another_edge(name)
                await it.one.obeyed()
                await asyncio.sleep(0.5)
        it.figures.note = "three edges killed, each replaced"

    await play(figures, directory, act)


LIVES_S = 240.0
"""A row of many rounds, most with another judge: each takes seconds on a busy machine."""

ROWS = (
    ("judge-killed-states", "kill -9 of the judge in each state of a rollout", in_every_state, LIVES_S),
    (
        "judge-killed-checks",
        "kill -9 of the judge in its self check and quick check, and at each write of them",
        in_every_check,
        LIVES_S,
    ),
    (
        "judge-killed-words",
        "kill -9 of the judge at each write of a start, pause, resume, promote, lift, abort",
        at_every_write_of_a_word,
        LIVES_S,
    ),
    (
        "judge-killed-rollback",
        "kill -9 of the judge at each write of a rollback",
        at_every_write_of_a_rollback,
        LIVES_S,
    ),
    (
        "judge-killed-promotion",
        "kill -9 of the judge at each write of a promotion, and of home put back by an abort",
        at_every_write_of_a_promotion,
        LIVES_S,
    ),
    ("edge-killed", "kill -9 of edges, one after the other", edge),
)
