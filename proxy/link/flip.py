"""One change of the route table, and who has obeyed it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping

import msgspec


class FlipReport(msgspec.Struct, frozen=True, kw_only=True):
    """A flip's state in numbers. Seconds run from publication, on the judge's monotonic clock."""

    epoch: int
    acknowledged_s: dict[str, float]
    """By edge incarnation."""
    missing: tuple[str, ...]
    """Edges that still use an older table, as far as anyone knows."""

    @property
    def complete(self) -> bool:
        """True when no edge's acknowledgement is missing."""
        return not self.missing

    @property
    def last_s(self) -> float | None:
        """Publication → last acknowledgement; None before the first."""
        return max(self.acknowledged_s.values(), default=None)


class Flip:
    """Made by :meth:`proxy.link.server.LinkServer.publish`.

    Complete once every edge that might still route by an older table has acknowledged this one or a newer, or
    is known to be dead. An edge that lost its link counts: until its own grace ends, it may still serve.
    """

    def __init__(self, epoch: int, published_s: float, expected: Iterable[str]) -> None:
        self.epoch = epoch
        self.published_s = published_s
        """On the server's monotonic clock, to relate it to the moment that caused it."""
        self._missing = set(expected)
        self._acknowledged: dict[str, float] = {}
        self._complete = asyncio.Event()
        self._look()

    @property
    def acknowledged(self) -> Mapping[str, float]:
        """Edge incarnation → seconds from publication to its acknowledgement."""
        return self._acknowledged

    @property
    def complete(self) -> bool:
        """True once every edge has acknowledged."""
        return self._complete.is_set()

    def report(self) -> FlipReport:
        """Who has acknowledged so far, and when."""
        return FlipReport(
            epoch=self.epoch,
            acknowledged_s=dict(self._acknowledged),
            missing=tuple(sorted(self._missing)),
        )

    async def wait(self, timeout_s: float) -> FlipReport:
        """Wait until it is complete, ``timeout_s`` at most, and say how far it came."""
        with contextlib.suppress(TimeoutError):  # the report names who is missing
            async with asyncio.timeout(timeout_s):
                await self._complete.wait()
        return self.report()

    def acknowledge(self, incarnation: str, now_s: float) -> None:
        """For the server: this edge uses this table, or a newer one."""
        if incarnation not in self._acknowledged:
            self._acknowledged[incarnation] = now_s - self.published_s
        self.release(incarnation)

    def release(self, incarnation: str) -> None:
        """For the server: nothing more is expected of this edge."""
        self._missing.discard(incarnation)
        self._look()

    def _look(self) -> None:
        if not self._missing:
            self._complete.set()
