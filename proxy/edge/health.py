"""Passive health: an endpoint that cannot be connected to is passed over for a while.

Nothing is probed: live traffic is the probe. When the time is over the next request tries again; a failure
then doubles the time, a success forgets it. An endpoint is passed over only while another of its pool is not.
When all of a canary pool are, home answers at once (:meth:`proxy.edge.pool.LivePool.takes`).
"""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 60.0


class Health:
    """One endpoint's. Time is whatever monotonic clock the caller uses, in seconds."""

    __slots__ = ("_first_s", "_next_s", "ejected_until")

    def __init__(self, eject_s: float) -> None:
        self._first_s = self._next_s = eject_s
        self.ejected_until = 0.0

    def failed(self, now: float) -> None:
        """It could not be connected to. Failures of attempts begun before an ejection count once."""
        if now < self.ejected_until:
            return
        self.ejected_until = now + self._next_s
        self._next_s = min(self._next_s * 2, max(LONGEST_S, self._first_s))

    def succeeded(self) -> None:
        self.ejected_until = 0.0
        self._next_s = self._first_s
