"""Fault points in a test's child processes: Python imports this when it stands on PYTHONPATH.

``FORKGATE_TEST_SEAMS`` names a directory. A file ``clock`` there is added to ``time.time()``, in seconds, at
each call. A file ``moment`` names the step of a rollback or a promotion at which the judge kills itself,
once. A file ``hold`` names one at which it stands still for as long as the file is there; a file ``held``
says that it does. A child that dies is started again at once, however often it died before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SEAMS = Path(os.environ.get("FORKGATE_TEST_SEAMS", "/nonexistent"))


def _step_clock() -> None:
    real = time.time
    file = str(_SEAMS / "clock")

    def stepped() -> float:
        try:
            fd = os.open(file, os.O_RDONLY)
        except OSError:
            return real()
        try:
            return real() + float(os.read(fd, 64) or b"0")
        finally:
            os.close(fd)

    # gRPC adds a timeout to time.time() and hands the sum to C, which subtracts its own reading at once: on a
    # machine whose clock steps both are stepped. C is not patched here, so Python must not be there either.
    import grpc.aio._utils

    grpc.aio._utils.time = types.SimpleNamespace(time=real)  # type: ignore[attr-defined]
    time.time = stepped


def _reads(file: str, moment: str) -> bool:
    try:
        return (_SEAMS / file).read_text() == moment
    except OSError:
        return False


def _die_at(moment: str) -> None:
    """SIGKILL to this very process, if it is this moment's turn; the next life goes on."""
    if not _reads("moment", moment):
        return
    (_SEAMS / "moment").unlink()
    (_SEAMS / "fired").write_text(moment)
    os.kill(os.getpid(), signal.SIGKILL)


def _hold_at(moment: str) -> None:
    """Stand still here, on a thread that is not the event loop's."""
    while _reads("hold", moment):
        (_SEAMS / "held").write_text(moment)
        time.sleep(0.002)


async def _await_at(moment: str) -> None:
    """The same on the event loop, which goes on."""
    while _reads("hold", moment):
        (_SEAMS / "held").write_text(moment)
        await asyncio.sleep(0.002)


def _kill_moments() -> None:
    from forkgate.judge.writer import EvidenceWriter
    from forkgate.state.latch import Latch, LatchCorrupt, LatchFile, read_latch
    from proxy.link.flip import Flip
    from proxy.link.server import LinkServer

    kept = EvidenceWriter.kept
    write, publish, acknowledge, pwrite = LatchFile.write, LinkServer.publish, Flip.acknowledge, os.pwrite

    def dying_pwrite(fd: int, data: Any, offset: int) -> int:
        if _reads("moment", "latch half written"):
            pwrite(fd, bytes(data)[: len(data) // 2], offset)
            _die_at("latch half written")
        return pwrite(fd, data, offset)

    def changes(before: Latch, latch: Latch) -> Iterator[tuple[str, str]]:
        """What this write is for, as the moments before it and after it."""
        if latch.latched:
            yield "before the latch", "latched, not published"
        if latch.tenants:
            yield "before a tenant's latch", "a tenant latched, not published"
        if latch.moved is not None:
            yield "before home is kept", "home kept, not published"
        elif before.moved is not None:
            yield "before home is put back", "home put back, not published"
        if latch.lifted != before.lifted:
            yield "before a latch is opened", "a latch opened, not journalled"

    def dying_write(self: Any, latch: Any) -> None:
        try:
            before = read_latch(self.path)
        except (LatchCorrupt, OSError):
            before = Latch()
        moments = tuple(changes(before, latch))
        for moment, _ in moments:
            _hold_at(moment)
            _die_at(moment)
        os.pwrite = dying_pwrite
        try:
            write(self, latch)
        finally:
            os.pwrite = pwrite
        for _, moment in moments:
            _hold_at(moment)
            _die_at(moment)

    def dying_publish(self: Any, table: Any) -> Any:
        flip = publish(self, table)
        if table.cause.startswith("rollback of"):
            _die_at("published, not sent")
        if " is " in table.cause and table.cause.endswith(" now"):
            _die_at("home published, not sent")
        return flip

    def dying_acknowledge(self: Any, incarnation: str, now_s: float) -> None:
        acknowledge(self, incarnation, now_s)
        _die_at("first acknowledgement")

    async def dying_kept(self: Any, *notes: Any, limit_s: float) -> None:
        if all(getattr(note, "kind", None) == "state" for note in notes):
            await kept(self, *notes, limit_s=limit_s)  # no event: the journal is tried before a word
            return
        await _await_at("decided, not journalled")
        _die_at("decided, not journalled")
        await kept(self, *notes, limit_s=limit_s)
        await _await_at("journalled, not obeyed")
        _die_at("journalled, not obeyed")

    EvidenceWriter.kept = dying_kept  # type: ignore[method-assign]
    LatchFile.write = dying_write  # type: ignore[method-assign]
    LinkServer.publish = dying_publish  # type: ignore[method-assign]
    Flip.acknowledge = dying_acknowledge  # type: ignore[method-assign]


def _start_again_at_once() -> None:
    """A supervisor waits longer after each death in a row: a minute and a half after fifteen, in which
    nothing is tested."""
    from forkgate.supervisor import backoff

    backoff.LONGEST_S = backoff.FIRST_S


if _SEAMS.is_dir():
    _step_clock()
    if "forkgate.judge" in sys.orig_argv:
        _kill_moments()
    if "serve" in sys.orig_argv:
        _start_again_at_once()
