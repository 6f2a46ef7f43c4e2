"""One receiver: what waits for it, how often it is tried, what was lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, stop_before_delay, wait_exponential_jitter

from forkgate.config.hooks import OnSilence
from forkgate.hooks.delivery import Address, AgainError, FinalError, HookError, Wish, read_wish
from forkgate.hooks.notices import Notice

log = logging.getLogger(__name__)

FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0


class Receiver:
    """All methods belong to the judge's event loop."""

    def __init__(self, address: Address, session: aiohttp.ClientSession, first_wait_s: float) -> None:
        self.section = section = address.section
        self._address = address
        self._session = session
        self._first_wait_s = first_wait_s
        self._queue: asyncio.Queue[Notice] = asyncio.Queue(section.queue_items)
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None
        self.delivered = 0
        self.failed = 0
        """Given up after every attempt, or refused for good."""
        self.lost = 0
        """The queue was full, or the judge ended."""
        self.answers: Counter[str] = Counter(allowed=0, vetoed=0, silent=0)
        """Answers to ``before_step``; ``silent``: it gave none, whatever ``on_silence`` made of that."""
        self.trouble: str | None = None
        """Why the last one was not taken; None when it was."""

    @property
    def waiting(self) -> int:
        """Notices not delivered yet, the one under way included."""
        return self._queue.qsize() + self._under_way

    def wants(self, notice: Notice) -> bool:
        """Whether its configuration names this event of this rollout."""
        section = self.section
        return notice.event in section.events and (not section.rollouts or notice.rollout in section.rollouts)

    def offer(self, notice: Notice) -> None:
        """Queue it; with a full queue it is lost, and counted."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"hook {self.section.name}")
        try:
            self._queue.put_nowait(notice)
        except asyncio.QueueFull:
            self.lost += 1
            log.error(
                "a notification is lost, its receiver's queue is full",
                extra={"hook": self.section.name, "notice": notice.event, "rollout": notice.rollout},
            )

    async def ask(self, notice: Notice) -> Wish | HookError:
        """Put a question once. An error is no answer; what that means, the configuration says."""
        try:
            wish = read_wish(await self._address.post(self._session, notice))
            self.answers["allowed" if wish.allow else "vetoed"] += 1
            return wish
        except HookError as error:
            self.answers["silent"] += 1
            if self.section.on_silence is OnSilence.GO:
                log.warning(
                    "a hook did not answer, and the step goes on as configured",
                    extra={"hook": self.section.name, "rollout": notice.rollout, "why": str(error)},
                )
                return Wish(allow=True, reason=f"did not answer, and on_silence is go: {error}")
            return error
        except Exception as error:  # a bug must not leave a step without an answer, asked every second
            self.answers["silent"] += 1
            log.exception("a hook could not be asked", extra={"hook": self.section.name})
            return FinalError(f"could not be asked: {type(error).__name__}")

    async def close(self, drain_s: float) -> None:
        """Deliver what waits, for so long at most; what is left is lost and told."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._queue.join()
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        left = self._queue.qsize() + self._under_way
        if left:
            self.lost += left
            log.error(
                "notifications are lost with this judge", extra={"hook": self.section.name, "count": left}
            )

    def view(self) -> dict[str, Any]:
        """For the status. The URL is not in it."""
        return {
            "name": self.section.name,
            "events": [event.value for event in self.section.events],
            "waiting": self.waiting,
            "delivered": self.delivered,
            "failed": self.failed,
            "lost": self.lost,
            "answers": dict(self.answers),
            "trouble": self.trouble,
        }

    async def _run(self) -> None:
        while True:
            notice = await self._queue.get()
            self._under_way = 1
            await self._deliver(notice)
            self._under_way = 0
            self._queue.task_done()

    async def _deliver(self, notice: Notice) -> None:
        told = {"hook": self.section.name, "notice": notice.event, "rollout": notice.rollout}
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(AgainError),
                stop=stop_before_delay(max(self.section.retry_s, self.section.timeout_s)),
                wait=wait_exponential_jitter(multiplier=self._first_wait_s, max=LONGEST_WAIT_S),
                before_sleep=lambda state: self._note(state.outcome.exception() if state.outcome else None),
                reraise=True,
            ):
                with attempt:
                    await self._address.post(self._session, notice)
        except HookError as error:
            self.failed += 1
            self._note(error)
            log.error("a notification was not taken", extra={**told, "why": str(error)})
        except Exception as error:
            self.failed += 1
            self._note(error)
            log.exception("a notification could not be sent", extra=told)
        else:
            self.delivered += 1
            self.trouble = None

    def _note(self, error: BaseException | None) -> None:
        self.trouble = f"hook {self.section.name}: {error}"
