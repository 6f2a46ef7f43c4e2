"""Tells the sink of drops, in order, without making the one who drops wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

from proxy.mirror.errors import Dropped
from proxy.mirror.ports import MirrorSink

_LOG = logging.getLogger(__name__)

NOTES = 65_536
"""Drops that wait for the sink. Beyond, the oldest are not told; the ledger has counted them all the same."""


class DropNotes:
    """One task that hands drops over, started when there is something to say."""

    def __init__(self, sink: MirrorSink) -> None:
        self._sink = sink
        self._notes: deque[tuple[str, int, str, Dropped]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.lost = 0

    def add(self, incarnation: str, sequence: int, rollout: str, end: Dropped) -> None:
        if len(self._notes) >= NOTES:
            self._notes.popleft()
            self.lost += 1
        self._notes.append((incarnation, sequence, rollout, end))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tell(), name="mirror drops")

    async def close(self, timeout_s: float) -> None:
        """Tell the rest, within ``timeout_s``."""
        if self._task is None:
            return
        await asyncio.wait({self._task}, timeout=timeout_s)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _tell(self) -> None:
        while self._notes:
            incarnation, sequence, rollout, end = self._notes.popleft()
            try:
                await self._sink.dropped(incarnation, sequence, rollout, end.reason, end.detail)
            except Exception:
                _LOG.exception("a drop could not be noted", extra={"rollout": rollout, "reason": end.reason})
