"""What a judge looks after once a second: the clock, and the way to disks and ports that refused."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from forkgate.judge.checkpoint import Checkpoints
from forkgate.judge.judge import Judge
from forkgate.judge.publisher import Publisher
from forkgate.telemetry import MetricsPage, PageError
from proxy.mirror import Mirror

log = logging.getLogger(__name__)

UPKEEP_S = 1.0
CLOCK_STEP_S = 1.0


def upkeep(
    judge: Judge,
    publisher: Publisher,
    checkpoints: Checkpoints,
    mirror: Mirror,
    page: MetricsPage | None,
    latch_s: float,
) -> list[asyncio.Task[None]]:
    """What is looked after once a second, each by a task of its own: a disk that hangs in one must not
    keep the others waiting."""
    offset_s = time.time() - time.monotonic()

    async def clock() -> None:
        nonlocal offset_s
        stepped_s = time.time() - time.monotonic() - offset_s
        if abs(stepped_s) > CLOCK_STEP_S:
            # Durations are monotonic and do not care; queues look at the age of captures again, and a
            # stage has lasted as long as before.
            log.warning("the clock was stepped", extra={"by_s": round(stepped_s, 3)})
            offset_s += stepped_s
            mirror.poke()
            judge.clock_stepped(stepped_s)
        judge.tick()

    async def latch() -> None:
        """The latch's way to a disk that refused it."""
        keeper = publisher.keeper
        if not keeper.durable:
            written = await keeper.hold(keeper.latch, latch_s)
            if written.durable:
                log.info("the rollback latch is durable now")
                publisher.latch_durable()

    async def metrics() -> None:
        """The page's way to a port that somebody else held."""
        if page is None or page.address is not None:
            return
        try:
            await page.start()
        except PageError:
            return  # said when it began, and in the status
        log.info("metrics are served now", extra={"address": page.address})

    parts = {"clock": clock, "latch": latch, "checkpoint": checkpoints.save, "metrics": metrics}
    return [asyncio.create_task(_every_second(part, work)) for part, work in parts.items()]


async def _every_second(part: str, work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(UPKEEP_S)
        try:
            await work()
        except Exception:
            log.exception("upkeep failed, tried again", extra={"part": part})
