"""Waiting for something to become true, in tests that have no event to wait on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import yaml

PATIENCE_S = 120.0
"""Only a hang takes so long: what takes a second on a quiet machine has taken 30 on a busy one."""
LIMIT_S = 400.0
"""For all that a test does; beyond it stands the runner's own limit, which cleans up after nobody."""


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


def begun(status: dict[str, Any], config: str) -> bool:
    """Has a rollout that skips its shadow stage left it? It waits there for a look at the old pool.

    Args:
        status: of ``/v1/status``.
        config: the file's text.
    """
    skips = {
        one["name"]
        for one in yaml.safe_load(config).get("rollouts", ())
        if one.get("shadow_stage", {}).get("skip")
    }
    return not any(one["name"] in skips and one["state"] == "shadow" for one in status["rollouts"])


def all_obey(status: dict[str, Any], workers: int = 0) -> bool:
    """Does every connected edge route by the judge's present table, and is each rollback in it?

    A rollout is shown as rolled back from the moment of its verdict; its table follows the latch's write, a
    few milliseconds later.

    Args:
        status: of ``/v1/status``.
        workers: edges that must be connected, at least.
    """
    edges = [edge for edge in status["edges"] if edge["connected"]]
    latches = [one["latched"] for one in status["rollouts"] if one["latched"] is not None]
    latches += [home for one in status["rollouts"] for home in one["tenants_home"]]
    flipped = all(one["epoch"] is not None and one["epoch"] <= status["epoch"] for one in latches)
    return flipped and len(edges) >= workers and all(edge["epoch"] == status["epoch"] for edge in edges)
