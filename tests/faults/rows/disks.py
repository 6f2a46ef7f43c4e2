"""The judge's disk takes nothing more: latch, evidence, checkpoint and audit log, each looked at alone.

The fault is ``RLIMIT_FSIZE`` of 0 on the judge: the kernel refuses every byte that it writes to a file, also
into space that was taken before. It needs no root and no mount; ``test_disks.py`` fills a small tmpfs too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from forkgate.state.latch import read_latch
from tests.faults.figures import Figures
from tests.faults.scene import NAME, Durable, Scene, play
from tests.support.sidecar import eventually_async

NOT_DURABLE = "not durable"


@contextlib.asynccontextmanager
async def full(it: Scene) -> AsyncIterator[None]:
    """Nothing that this judge writes reaches a file."""
    pid = it.one.pids("judge")[-1]
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        async with it.fault():
            yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have been killed meanwhile
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))


async def dropped(it: Scene, reason: str) -> int:
    ledger: dict[str, Any] = await it.one.admin("/v1/ledger")
    return int(ledger["dropped"].get(reason, 0))


async def evidence(figures: Figures, directory: Path) -> None:
    """Comparisons are dropped by name, and counted again once there is room."""

    async def act(it: Scene) -> None:
        async with full(it):

            async def lost() -> bool:
                return await dropped(it, "evidence_failed") >= 10

            await eventually_async(lost, "captures dropped: evidence_failed")
            await asyncio.sleep(2)
        before = (await it.show())["compared"]

        async def kept() -> bool:
            return bool((await it.show())["compared"] > before)

        await eventually_async(kept, "evidence again")
        it.figures.note = f"{await dropped(it, 'evidence_failed')} captures were dropped by name"

    await play(figures, directory, act)


async def latch(figures: Figures, directory: Path) -> None:
    """The flip goes out, marked not durable; the next judge hears of it from the edges."""

    async def act(it: Scene) -> None:
        async with full(it):
            await it.roll_back()
            assert (await it.show())["latched"]["durable"] is False
            assert NAME not in read_latch(it.one.state / "rollback.latch").latched
            await it.stays_home()
            await it.another_judge()  # its disk takes what it writes
            await it.one.until("the rollback, which no file held", state="rolled_back", latched=Durable())
        await it.rollback_lasts()
        it.figures.note = "announced without a latch, it outlived its judge"

    await play(figures, directory, act, rollback_after=False)


async def checkpoint(figures: Figures, directory: Path) -> None:
    """The states of before are whole, and the next judge goes on from them."""

    async def act(it: Scene) -> None:
        file = it.one.state / "rollouts.json"
        async with full(it):
            await asyncio.sleep(1.5)  # what was being written when it filled up
            kept = file.read_bytes()
            await asyncio.sleep(2.5)  # twice the time between two checkpoints
            assert file.read_bytes() == kept, "a checkpoint was written on a full disk"
            troubles = (await it.one.status())["troubles"]
            assert any("rollout states are not kept" in trouble for trouble in troubles), troubles
            before = json.loads(kept)["rollouts"][0]["state"]["evidence"]
            await it.another_judge()
        found = await it.show()
        assert found["place"] == "canary step 1 of 1", found["place"]
        assert found["compared"] > 0
        it.figures.note = f"the next judge went on from a checkpoint of {before} pieces of evidence"

    await play(figures, directory, act)


async def audit_log(figures: Figures, directory: Path) -> None:
    """A person's step is refused; a person's rollback goes through, and its line is written later."""

    async def act(it: Scene) -> None:
        async with full(it):
            code, _, err = await it.one.cli("rollout", "pause", NAME, "--reason", "no line of this")
            assert code != 0, "a step went through that no log has"
            assert "audit log" in err, err
            assert (await it.show())["paused"] is None
            it.figures.rollback = "lost"
            code, _, err = await it.one.cli("rollout", "rollback", NAME, "--reason", "waits for nothing")
            assert code == 0, err
            await it.one.until("the rollback", state="rolled_back")
            await it.one.obeyed()
            await it.stays_home()
        await eventually_async(lambda: _late(it), "the rollback's line, late")
        code, out, err = await it.one.cli("audit", "verify")
        assert code == 0, out + err
        await it.rollback_lasts()
        it.figures.note = "a pause was refused, a rollback went through, its line came late"

    await play(figures, directory, act, rollback_after=False)


async def _late(it: Scene) -> bool:
    lines = [json.loads(line) for line in (it.one.state / "audit.jsonl").read_text().splitlines()]
    return any(
        line["action"] == "rollout.rollback" and line.get("late") for line in lines if "action" in line
    )


ROWS = (
    ("disk-full-latch", "the judge can write no file: the rollback latch", latch),
    ("disk-full-evidence", "the judge can write no file: evidence", evidence),
    ("disk-full-checkpoint", "the judge can write no file: states of rollouts", checkpoint),
    ("disk-full-audit", "the judge can write no file: the audit log", audit_log),
)
