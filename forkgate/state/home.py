"""Where home is: the configuration's pool, until a promotion moved it, which the latch's file remembers."""

from __future__ import annotations

from collections.abc import Mapping

from forkgate.state.latch import Latch, Moved
from policies.routes import PoolName, RolloutName


class HomeUnclear(Exception):  # noqa: N818 - reads as the fact that it is
    """The configuration and the latch's file name two homes, and no rollout says how the one became the
    other."""


def home_moved(latch: Latch, home: PoolName, candidates: Mapping[RolloutName, PoolName]) -> Moved | None:
    """The promotion by which home is elsewhere than the configuration says; None when it is there.

    Args:
        home: the configuration's.
        candidates: rollout → candidate, of the configuration.

    Raises:
        HomeUnclear: the rollout that moved home is named no more, or with another candidate, and ``home`` is
            not where it moved it. An edited file must not move everybody's traffic by surprise.
    """
    moved = latch.moved
    if moved is None or moved.pool == home:
        return None
    name = RolloutName(moved.rollout)
    if candidates.get(name) != moved.pool:
        named = f"names with candidate {candidates[name]!r}" if name in candidates else "does not name"
        raise HomeUnclear(
            f"home: is {home!r}, and rollout {moved.rollout!r}, which this file {named}, moved it to "
            f"{moved.pool!r}. Write `home: {moved.pool}` to keep it there; or put the rollout back in, and "
            f"`forkgate rollout rollback {moved.rollout}`, before it goes"
        )
    return moved
