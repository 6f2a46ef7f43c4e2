"""A candidate that refuses, stalls, trickles, lies, never ends, breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.faults.figures import Figures
from tests.faults.scene import SHADOW, Scene, play

LASTS_S = 6.0
LIES = (
    "garbage",
    "half way",
    "fails at token 2",
    "never finishes",
    "nan at token 2",
    "drops ids",
    "echoes another prompt",
    "drops logprobs",
)
"""Each in turn, for an eighth of the fault's time. The last may be found out by a probe, and then is none."""

FIRST_BYTE_S = 2.5
"""Above what a healthy engine takes here for its first byte, however busy the machine."""
SILENT = """
level: token
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 100000}
  live_errors: {kind: error_rate, source: live, maximum: 0.5, minimum_requests: 3, window_s: 6}
"""

Play = Callable[[Figures, Path], Awaitable[None]]


def lying(*phases: tuple[str, ...]) -> Play:
    """The candidate behaves so, phase after phase. Nothing of it may count as a pair."""

    async def act(it: Scene) -> None:
        async with it.fault():
            await it.new.set(*phases[0])
            # Arms that began before it end first, well or by their timeout.
            await asyncio.sleep(SHADOW["arm_timeout_s"])
            asked = (await it.new.counts())["shadow"]
            for phase in phases:
                pairs = await it.evidence()
                await it.new.set(*phase)
                await asyncio.sleep(LASTS_S / len(phases))
                more = await it.evidence() - pairs
                assert not more or (phase == ("drops logprobs",) and await lacks_logprobs(it)), (
                    f"{more} pairs of a candidate that lies counted as evidence: {phase}"
                )
            ask = (await it.new.counts())["shadow"]
            assert ask > asked, "no copy reached the candidate"
        assert (await it.show())["state"] == "canary"
        it.figures.note = f"{ask - asked} copies answered so, none counted"
        await it.new.set()

    async def row(figures: Figures, directory: Path) -> None:
        await play(figures, directory, act)

    return row


async def lacks_logprobs(it: Scene) -> bool:
    """A probe came in the very phase in which there are none: from then on it is known to have none, is not
    asked for any, and its tokens, which are right, may count."""
    (pool,) = (one for one in (await it.one.status())["pools"] if one["name"] == "new")
    return any("logprobs" in one["missing"] for one in pool["endpoints"])


async def refusing(figures: Figures, directory: Path) -> None:
    """Killed, and nobody listens: the tenant's requests are answered by home, each of them."""

    async def act(it: Scene) -> None:
        # Answers that it had begun break off, visibly.
        it.excuse(lambda answer: answer.tenant == "acme" and answer.engine == "new")
        async with it.fault():
            await it.new.kill()
            begun = len(it.load.answers)
            await asyncio.sleep(LASTS_S)
            told = it.load.answers[begun:]
        at_home = sum(one.tenant == "acme" and one.engine == "old" for one in told)
        assert at_home > 0, "no request of acme's was answered by home"
        await it.new.start()
        it.figures.note = f"{at_home} requests of the canary were answered by home"

    await play(figures, directory, act)


async def frozen(figures: Figures, directory: Path) -> None:
    """Its port takes connections and its process does nothing. Home answers after ``first_byte_s``, until the
    gate on live requests sends the tenant home; then it goes on, and nobody asks it."""

    async def act(it: Scene) -> None:
        begun = len(it.load.answers)
        it.new.freeze()
        try:
            async with it.fault():
                it.figures.rollback = "lost"
                found = await it.one.until("the rollback of an engine that is silent", state="rolled_back")
                await it.one.obeyed()
                told = it.load.answers[begun:]
                await it.stays_home()
        finally:
            it.new.thaw()
        await it.stays_home()
        await it.rollback_lasts()
        at_home = sum(one.tenant == "acme" and one.engine == "old" and one.whole for one in told)
        assert at_home > 0, "no request of acme's was answered by home"
        it.figures.note = (
            f"{at_home} requests of the canary were answered by home before a byte, "
            f"then {found['latched']['gate']} rolled back: {found['latched']['reason']}"
        )

    figures.first_byte_s = FIRST_BYTE_S
    await play(figures, directory, act, rollback_after=False, policy=SILENT, rest=impatient())


def impatient() -> dict[str, Any]:
    """Who waits for an engine's first byte waits :data:`FIRST_BYTE_S`."""
    return {"timeouts": {"drain_s": 5, "connect_s": 2, "eject_s": 0.2, "first_byte_s": FIRST_BYTE_S}}


ROWS: tuple[tuple[str, str, Play], ...] = (
    ("candidate-refusing", "the candidate is killed; nobody listens on its port", refusing),
    ("candidate-stalling", "the candidate accepts copies and never sends a byte", lying(("stalls",))),
    ("candidate-trickling", "a token of a copy's every 0.7 s", lying(("trickles",))),
    ("candidate-lying", "eight kinds of wrong answers to copies", lying(*((lie,) for lie in LIES))),
    ("candidate-endless", "tokens without end, whatever was asked", lying(("endless",))),
    (
        "candidate-500s",
        "500 to every copy, 503 to every live request of the canary",
        lying(("answers 500", "live:answers 503")),
    ),
    (
        "candidate-half-closed",
        "its side of the connection is closed: of copies in mid-answer, of live requests before a byte",
        lying(("half closed", "live:half closed")),
    ),
    ("candidate-frozen", "SIGSTOP on a canary step: it takes connections and says nothing", frozen),
)
