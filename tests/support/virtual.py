"""An event loop whose clock moves only where everybody waits: what has a limit of a second is held to it on
any machine, and nobody waits for that second.

For tests that are one process without sockets and threads: what comes from outside the loop takes no time.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

TURN_S = 1e-5
"""What a turn of the loop takes, so that work without an end meets its limit too."""


class _Patient(selectors.DefaultSelector):
    """Never waits: it says how long it was told to."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer at all: only another thread or process can wake it
            return super().select()
        self.now_s += max(timeout, TURN_S)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """``time()`` begins at 0 and is nobody's but this loop's."""

    def __init__(self) -> None:
        self._patient = _Patient()
        super().__init__(self._patient)

    def time(self) -> float:
        return self._patient.now_s


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """:func:`asyncio.run`, on such a loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
