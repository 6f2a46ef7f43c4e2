"""All receivers of one judge: told what changed, asked before a step."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp
import msgspec

from forkgate.config.hooks import HookEvent, HookSection
from forkgate.hooks.delivery import Address, FinalError, Wish
from forkgate.hooks.notices import Notice, before_step, differences, rolled_back
from forkgate.hooks.receiver import FIRST_WAIT_S, Receiver
from forkgate.identifiers import uuid7
from policies.rollout import RolloutState

log = logging.getLogger(__name__)

DRAIN_S = 3.0
"""How long a judge that stops waits for its receivers."""


class HookConfigError(Exception):
    """A hook's file cannot be used: which, why."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """What one hook says of a step."""

    hook: str
    allowed: bool
    why: str
    """Its own reason, or why there is none."""
    silent: bool = False
    """It gave no answer that could be read."""


class Hooks:
    """All methods belong to the judge's event loop. Make it there."""

    def __init__(
        self, sections: Sequence[HookSection], sidecar: str, *, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        """
        Args:
            sidecar: name of this one, in every notice.
            first_wait_s: before the second attempt; doubled after each.

        Raises:
            HookConfigError
        """
        self._sidecar = sidecar
        try:
            addresses = [Address(section) for section in sections]
        except FinalError as error:
            raise HookConfigError(str(error)) from error
        # A jar that keeps nothing, no proxy from the environment, and no body taken apart by a header's word.
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            connector=aiohttp.TCPConnector(limit=32, force_close=True),
            headers={"user-agent": "forkgate", "accept-encoding": "identity"},
        )
        self._seen: dict[str, RolloutState] = {}
        self._asked: set[asyncio.Task[Any]] = set()
        self._receivers = [Receiver(one, self._session, first_wait_s) for one in addresses]

    def look(self, states: Iterable[RolloutState]) -> None:
        """Tell what is different since the last look. Waits for nothing."""
        for state in states:
            before = self._seen.get(state.plan.name)
            if before is state:
                continue
            self._seen[state.plan.name] = state
            try:
                for notice in differences(before, state):
                    self.tell(notice)
            except Exception:  # whoever calls has a rollback to carry out
                log.exception("hooks could not be told", extra={"rollout": state.plan.name})

    def flip_done(
        self, rollout: str, *, tenant: str | None, epoch: int, edges: int, missing: int, durable: bool
    ) -> None:
        """Tell of a rollback that went out."""
        state = self._seen.get(rollout)
        if state is not None:
            self.tell(
                rolled_back(state, tenant=tenant, epoch=epoch, edges=edges, missing=missing, durable=durable)
            )

    def tell(self, notice: Notice) -> None:
        """Queue a notice for every receiver that wants it."""
        notice = self._stamped(notice)
        for receiver in self._receivers:
            if receiver.wants(notice):
                receiver.offer(notice)

    async def ask(self, state: RolloutState, to: str) -> tuple[Answered, ...]:
        """Ask every ``before_step`` hook of this rollout whether it may go on, all at once.

        One that does not answer in its ``timeout_s`` refuses, unless its ``on_silence`` is ``go``.

        Args:
            to: where the step leads, for people.
        """
        notice = self._stamped(before_step(state, to))
        asked = [one for one in self._receivers if one.wants(notice)]
        answers = await asyncio.gather(*(one.ask(notice) for one in asked))
        found = []
        for receiver, answer in zip(asked, answers, strict=True):
            name = receiver.section.name
            if isinstance(answer, Wish):
                why = answer.reason or ("no reason was given" if not answer.allow else "")
                found.append(Answered(hook=name, allowed=answer.allow, why=why))
            else:
                found.append(Answered(hook=name, allowed=False, why=f"gave no answer: {answer}", silent=True))
        return tuple(found)

    def asks(self, rollout: str) -> tuple[str, ...]:
        """Hooks that a step of this rollout has to be allowed by."""
        return tuple(
            one.section.name
            for one in self._receivers
            if HookEvent.BEFORE_STEP in one.section.events
            and (not one.section.rollouts or rollout in one.section.rollouts)
        )

    def again_s(self, rollout: str) -> float:
        """How long after a refusal the question is put again: the shortest of those asked."""
        names = self.asks(rollout)
        return min(one.section.again_s for one in self._receivers if one.section.name in names)

    def troubles(self) -> list[str]:
        """What a person should look at, in words."""
        found = [one.trouble for one in self._receivers if one.trouble is not None]
        return found + [
            f"hook {one.section.name}: {one.lost} notifications were lost, its queue was full"
            for one in self._receivers
            if one.lost
        ]

    def waiting(self) -> dict[str, int]:
        """Hook → notices that are not delivered yet."""
        return {one.section.name: one.waiting for one in self._receivers}

    def deliveries(self) -> dict[tuple[str, str], int]:
        """(hook, what became of them) → notices."""
        return {
            (one.section.name, outcome): count
            for one in self._receivers
            for outcome, count in (
                ("delivered", one.delivered),
                ("given_up", one.failed),
                ("lost", one.lost),
            )
        }

    def answers(self) -> dict[tuple[str, str], int]:
        """(hook, answer) → answers to ``before_step``."""
        return {
            (one.section.name, answer): count
            for one in self._receivers
            for answer, count in one.answers.items()
        }

    def view(self) -> list[dict[str, Any]]:
        """For the status."""
        return [one.view() for one in self._receivers]

    async def close(self, drain_s: float = DRAIN_S) -> None:
        """Deliver what waits, for a bounded time."""
        await asyncio.gather(*(one.close(drain_s) for one in self._receivers))
        await self._session.close()

    def _stamped(self, notice: Notice) -> Notice:
        return msgspec.structs.replace(notice, id=uuid7(), sidecar=self._sidecar, unix_s=time.time())
