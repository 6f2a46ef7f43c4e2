"""Waiting for something to become true, in tests that have no event to wait on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE_S = 30.0
"""Far above anything seen on a busy machine: a test that needs it has failed."""


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Return once ``condition()`` is true; fail, saying what was waited for, after :data:`PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true in {PATIENCE_S:.0f} s: {what or condition}")
        await asyncio.sleep(0.005)


def until(condition: Callable[[], object], what: str = "") -> None:
    """:func:`eventually`, for tests whose work runs on another thread."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not come true in {PATIENCE_S:.0f} s: {what or condition}")
        time.sleep(0.005)
