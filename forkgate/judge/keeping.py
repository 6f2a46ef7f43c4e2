"""What a person asks of the evidence that is kept: erase some, or bring all of it to another key.

Both run in bounded steps on the writer's thread, so that evidence goes on coming in between; both go on where
they were after a kill.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from comparator.evidence import ErasureRow, EvidenceStore
from comparator.evidence.erasure import Erasing
from forkgate.judge.writer import EvidenceWriter, log_erasure

SCRUB_AGAIN_S = 0.2
SCRUB_LIMIT_S = 30.0
"""How long an erasure waits for readers that still hold pages of before; then it ends by itself, later."""


class EvidenceKeeping:
    """:class:`forkgate.admin.port.KeepingPort`."""

    def __init__(self, writer: EvidenceWriter) -> None:
        self._writer = writer

    async def erase(self, scope: str, name: str, who: str, reason: str) -> dict[str, Any]:
        """Erase a tenant's evidence, or one capture, and answer with its line in the log.

        ``done`` is false where a reader held it up beyond :data:`SCRUB_LIMIT_S`: all is deleted, and the
        line follows once the file's log could be emptied. ``again``: it had been erased before.

        Raises:
            EvidenceError: EvidenceNotFound where there is nothing, and never was.
        """
        begun = await self._writer.call(lambda store: store.erase(scope, name, who, reason, time.time()))
        if isinstance(begun, ErasureRow):
            return _told(begun, again=True)
        deleted_s = None
        while True:
            job: Erasing | ErasureRow = await self._writer.call(lambda store: _step(store, begun.id))
            if isinstance(job, ErasureRow):
                return _told(job, again=False)
            if not job.deleted:
                continue
            deleted_s = time.monotonic() if deleted_s is None else deleted_s
            if time.monotonic() - deleted_s > SCRUB_LIMIT_S:
                plain = {name: getattr(job, name) for name in ("captures", "exchanges", "scope", "name")}
                return {**plain, "erasure": job.id, "done": False, "again": False}
            await asyncio.sleep(SCRUB_AGAIN_S)

    async def rekey(self, limit_s: float) -> dict[str, Any]:
        """Go on bringing all values to the present key for about ``limit_s``; ask again until ``done``.

        Raises:
            EvidenceError: EvidenceLocked where a key is needed that is not listed.
        """
        end_s = time.monotonic() + limit_s
        while True:
            done = await self._writer.call(lambda store: store.rekey_step())
            if done.done or time.monotonic() > end_s:
                plain: dict[str, Any] = msgspec.to_builtins(done)
                return plain


def _step(store: EvidenceStore, number: int) -> Erasing | ErasureRow:
    """One step of the oldest erasure, and where this one stands after it; the writer takes steps by itself,
    too."""
    line = store.erase_step(time.time())
    if line is not None:
        log_erasure(line)
    job = next((job for job in store.erasing() if job.id == number), None)
    return job if job is not None else next(one for one in store.erasures() if one.erasure == number)


def _told(line: ErasureRow, *, again: bool) -> dict[str, Any]:
    return {**msgspec.to_builtins(line), "done": True, "again": again}
