"""Latches rollbacks on a thread of its own: a disk that stalls delays a flip by a bounded time, never the
loop.

What the keeper holds in memory is what counts in this life. The disk gets it before a flip is announced
when it can, later when it cannot, and until then the latch is marked not durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable

import msgspec

from forkgate.state.latch import Latch, LatchCorrupt, LatchFile, read_latch

log = logging.getLogger(__name__)


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one write."""

    durable: bool
    seconds: float
    """Spent waiting for the disk."""
    error: str | None = None


class LatchKeeper:
    """Memory and disk of the latch. Its methods belong to the event loop."""

    def __init__(self, file: LatchFile, on_corrupt: Callable[[str], Latch]) -> None:
        """
        Args:
            on_corrupt: what to hold when nobody can say what was latched.
        """
        self._file = file
        self._on_corrupt = on_corrupt
        self._queue: queue.SimpleQueue[tuple[Latch, Callable[[str | None], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self.latch = Latch()
        self.durable = True
        self.trouble: str | None = None
        self.on_late: Callable[[], None] = lambda: None
        """Called once the disk has taken a latch that nobody waits for any longer."""

    def open(self) -> None:
        """Read what stands on disk. A disk that cannot be written is a trouble, not an error."""
        try:
            self.latch = self._file.open()
        except LatchCorrupt as error:
            self.latch, self.durable, self.trouble = self._on_corrupt(str(error)), False, str(error)
            log.critical(
                "the latch is damaged, every rollout counts as rolled back", extra={"error": str(error)}
            )
        except OSError as error:
            self.durable, self.trouble = False, f"{self._file.path}: {error.strerror or error}"
            try:
                self.latch = read_latch(self._file.path)
            except (LatchCorrupt, OSError) as worse:
                self.latch = self._on_corrupt(str(worse))
            log.error("rollbacks cannot be made durable", extra={"error": self.trouble})
        self._thread = threading.Thread(target=self._run, name="latch", daemon=True)
        self._thread.start()

    def recall(self, latch: Latch, why: str) -> None:
        """Hold ``latch`` from now on although the file does not say it; upkeep takes it to the disk."""
        self.latch, self.durable, self.trouble = latch, False, why

    async def hold(self, latch: Latch, timeout_s: float) -> Written:
        """Hold ``latch`` from now on, and wait for the disk ``timeout_s`` at most."""
        self.latch = latch
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str | None] = loop.create_future()
        late = False

        def done(error: str | None) -> None:
            def settle() -> None:
                self._note(latch, error)
                if not future.done():
                    future.set_result(error)
                if late and self.durable:
                    log.info("the disk took the rollback latch late", extra={"file": str(self._file.path)})
                    self.on_late()

            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle)

        self.durable = False
        started = time.monotonic()
        self._queue.put((latch, done))
        try:
            async with asyncio.timeout(timeout_s):
                error = await asyncio.shield(future)
        except TimeoutError:
            if future.done():  # in the very last moment
                error = future.result()
            else:
                late, error = True, f"{self._file.path}: the disk did not answer within {timeout_s:g} s"
                self.trouble = error
        return Written(durable=error is None, seconds=time.monotonic() - started, error=error)

    def close(self) -> None:
        """Let the thread end with what is queued; a stalled one is left behind."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(1.0)

    def _note(self, latch: Latch, error: str | None) -> None:
        if error is not None:
            self.trouble = error
        elif latch is self.latch:
            self.durable, self.trouble = True, None

    def _run(self) -> None:
        while jobs := self._take():
            # What waited while the disk hung is superseded: each latch is whole, the newest stands for all.
            latch = jobs[-1][0]
            error: str | None = None
            try:
                if not self._file.writable:
                    self._reopen()
                self._file.write(latch)
            except (OSError, LatchCorrupt) as failed:
                error = f"{self._file.path}: {failed}"
            for _, done in jobs:
                done(error)
        self._file.close()

    def _take(self) -> list[tuple[Latch, Callable[[str | None], None]]]:
        """Everything that waits, oldest first; empty when the keeper closes."""
        jobs: list[tuple[Latch, Callable[[str | None], None]]] = []
        while not jobs or not self._queue.empty():
            job = self._queue.get()
            if job is None:
                if jobs:
                    self._queue.put(None)
                break
            jobs.append(job)
        return jobs

    def _reopen(self) -> None:
        """The disk may be writable by now. What the file held is superseded by what this life holds."""
        try:
            self._file.open()
        except LatchCorrupt:
            damaged = self._file.path.with_name(self._file.path.name + ".damaged")
            self._file.path.replace(damaged)
            log.warning("damaged latch set aside", extra={"file": str(damaged)})
            self._file.open()
