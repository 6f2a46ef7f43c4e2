"""Receivers of hooks that lie: a promotion waits or goes on as docs/hooks.md says, a rollback never waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.faults.figures import Figures
from tests.faults.rows.kills import EQUAL
from tests.faults.scene import Scene, play
from tests.support.hook_receiver import ALLOW, Answer, HookReceiver, answer
from tests.support.waiting import eventually

TIMEOUT_S = 2.0
"""Of one question; one that answers does so at once, as far as the machine lets it."""
SECRET = "0123456789abcdef0123456789abcdef"
PLAN: dict[str, Any] = {
    "start": "on_load",
    "shadow_stage": {"minimum_pairs": 1, "advance": "manual"},
    "steps": [
        {"tenants": ["acme"], "minimum_pairs": 1, "advance": "gates"},
        {"percent": 100, "minimum_pairs": 1, "advance": "manual"},
    ],
    "observe": {"minimum_s": 0, "advance": "manual"},
}
NEVER = answer(200, b'{"allow": false, "reason": "never"}')


class Liar(HookReceiver):
    """Drips too: a byte of a head that never ends, until the connection is gone."""

    async def _say(self, said: Answer, writer: asyncio.StreamWriter) -> None:
        if said != "drip":
            await super()._say(said, writer)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nx: ")
        while not writer.is_closing():
            writer.write(b"a")
            await writer.drain()
            await asyncio.sleep(TIMEOUT_S / 10)


def lies(elsewhere: str) -> dict[str, Answer]:
    """None of them is an answer to whether a step may be taken."""
    return {
        "garbage": answer(200, b"\x00\xff{]"),
        "a login page": answer(200, b"<html>sign in</html>", "content-type: text/html"),
        "a list": answer(200, b'[{"allow": true}]'),
        "stalls": "hang",
        "drips": "drip",
        "endless": "endless",
        "a redirect": answer(302, b"", f"location: {elsewhere}"),
        "closes half way": b'HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n{"allow": true',
        "closes": "close",
        "500": answer(500, b'{"allow": true}'),
        "vetoes": NEVER,
    }


async def lying(figures: Figures, directory: Path) -> None:
    """One that is asked, one that is asked and may be silent (``on_silence: go``), two that are told."""
    asked, silent, told, elsewhere = Liar([NEVER]), Liar([ALLOW]), Liar([answer(200)]), Liar([ALLOW])

    async def act(it: Scene) -> None:
        counts = dict.fromkeys(("declined", "waited"), 0)
        told.answers[:] = ["hang"]
        async with it.fault():
            await it.at("shadow")
            await it.may_leave()
            for name, lie in lies(elsewhere.url).items():
                asked.answers[:] = [lie]
                status, said = await it.one.word("promote")
                assert status == 409, (name, said)
                assert "hook asked" in said["error"]["message"], (name, said)
                assert (await it.show())["place"] == "shadow", name
                counts["declined"] += 1
            assert elsewhere.requests == [], "a redirect was followed"
            # A refusal stays one, whatever on_silence says; silence there does not.
            asked.answers[:], silent.answers[:] = [ALLOW], [NEVER]
            status, said = await it.one.word("promote")
            assert (status, "hook silent refuses: never" in said["error"]["message"]) == (409, True), said
            silent.answers[:] = ["drip"]
            await it.say("promote")
            await it.at("canary step 1 of 2")

            # Its own step waits for as long as somebody says no, or nothing.
            for lie in (NEVER, "hang"):
                asked.answers[:] = [lie]
                before = len(asked.requests)
                await eventually(lambda before=before: len(asked.requests) >= before + 2, "asked again")  # type: ignore[misc]
                assert (await it.show())["place"] == "canary step 1 of 2"
                counts["waited"] += 1

            # Nobody who is told answers, or ever will.
            heard = (await of(it, "told"))["delivered"]
            await it.roll_back()
            await it.stays_home()
            told_of = await of(it, "told")
            assert (told_of["delivered"], told_of["waiting"] > 0) == (heard, True), told_of
            (flip,) = (await it.one.status())["flips"]
            assert flip["missing"] == [], flip
        await it.rollback_lasts()
        it.figures.note = (
            f"{counts['declined']} lies declined a promote, {counts['waited']} kept a step waiting, one that "
            f"may be silent did not; the rollback was over while {told_of['waiting']} notices waited"
        )

    (directory / "secret").write_text(SECRET)
    async with served(asked, silent, told, elsewhere):
        hooks = [
            hook("asked", asked, directory, ["before_step"]),
            {**hook("silent", silent, directory, ["before_step"]), "on_silence": "go"},
            hook("told", told, directory, ["stage", "breach", "rollback"]),
        ]
        await play(
            figures, directory, act, rollback_after=False, policy=EQUAL, plan=PLAN, rest={"hooks": hooks}
        )


async def of(it: Scene, name: str) -> dict[str, Any]:
    """What the status has of one hook."""
    (found,) = (one for one in (await it.one.status())["hooks"] if one["name"] == name)
    return dict(found)


def hook(name: str, receiver: HookReceiver, directory: Path, events: list[str]) -> dict[str, Any]:
    return {
        "name": name,
        "url": receiver.url,
        "secret_file": str(directory / "secret"),
        "events": events,
        "timeout_s": TIMEOUT_S,
        "again_s": 1,
    }


@contextlib.asynccontextmanager
async def served(*receivers: HookReceiver) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for one in receivers:
            await stack.enter_async_context(one.serving())
        yield


ROWS = (("hooks-lying", "receivers of hooks answer garbage, stall, drip, redirect, veto for ever", lying),)
