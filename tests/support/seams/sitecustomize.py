"""Fault points in a test's child processes: Python imports this when it stands on PYTHONPATH.

``FORKGATE_TEST_SEAMS`` names a directory. A file ``clock`` there is added to ``time.time()``, in seconds, at
each call. A file ``moment`` names the step of a rollback or a promotion at which the judge kills itself,
once.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import types
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


def _die_at(moment: str) -> None:
    """SIGKILL to this very process, if it is this moment's turn; the next life goes on."""
    file = _SEAMS / "moment"
    try:
        if file.read_text() != moment:
            return
        file.unlink()
    except OSError:
        return
    (_SEAMS / "fired").write_text(moment)
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_moments() -> None:
    from forkgate.judge.writer import EvidenceWriter
    from forkgate.state.latch import LatchFile
    from proxy.link.flip import Flip
    from proxy.link.server import LinkServer

    kept = EvidenceWriter.kept
    write, publish, acknowledge, pwrite = LatchFile.write, LinkServer.publish, Flip.acknowledge, os.pwrite

    def dying_pwrite(fd: int, data: Any, offset: int) -> int:
        if (_SEAMS / "moment").exists() and (_SEAMS / "moment").read_text() == "latch half written":
            pwrite(fd, bytes(data)[: len(data) // 2], offset)
            _die_at("latch half written")
        return pwrite(fd, data, offset)

    def dying_write(self: Any, latch: Any) -> None:
        if latch.latched:
            _die_at("before the latch")
        if latch.tenants:
            _die_at("before a tenant's latch")
        if latch.moved is not None:
            _die_at("before home is kept")
        os.pwrite = dying_pwrite
        try:
            write(self, latch)
        finally:
            os.pwrite = pwrite
        if latch.latched:
            _die_at("latched, not published")
        if latch.tenants:
            _die_at("a tenant latched, not published")
        if latch.moved is not None:
            _die_at("home kept, not published")

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
        _die_at("decided, not journalled")
        await kept(self, *notes, limit_s=limit_s)
        _die_at("journalled, not obeyed")

    EvidenceWriter.kept = dying_kept  # type: ignore[method-assign]
    LatchFile.write = dying_write  # type: ignore[method-assign]
    LinkServer.publish = dying_publish  # type: ignore[method-assign]
    Flip.acknowledge = dying_acknowledge  # type: ignore[method-assign]


if _SEAMS.is_dir():
    _step_clock()
    if "forkgate.judge" in sys.orig_argv:
        _kill_moments()
