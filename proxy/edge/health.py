"""Passive health: an endpoint that cannot be connected to, or does not answer, is passed over for a while.

Nothing is probed: live traffic is the probe. When the time is over the next request tries again; a failure
then doubles the time, and the head of an answer, whatever its status, forgets it. A connection that stands
forgets nothing: a port may be open in front of an engine that resets every request.

An endpoint is passed over only while another of its pool is not. When all of a canary pool are, home answers
at once (:meth:`proxy.edge.pool.LivePool.takes`).
"""

from __future__ import annotations

from typing import Final

LONGEST_S: Final = 60.0
UNANSWERED: Final = 3
"""Requests in a row without an answer that eject. One may be the request's own doing, and its client may ask
again at once; a refused connection says the same of every request, so one of those is enough."""


class Health:
    """One endpoint's. Time is whatever monotonic clock the caller uses, in seconds."""

    __slots__ = ("_first_s", "_next_s", "ejected_until", "failures")

    def __init__(self, eject_s: float) -> None:
        self._first_s = self._next_s = eject_s
        self.ejected_until = 0.0
        self.failures = 0
        """In a row, since an answer came; one to connect counts as ``UNANSWERED``. 0: nothing to forget."""

    def failed(self, now: float) -> None:
        """It could not be connected to. Failures of attempts begun before an ejection count once."""
        self.failures = max(self.failures, UNANSWERED)
        if now < self.ejected_until:
            return
        self.ejected_until = now + self._next_s
        self._next_s = min(self._next_s * 2, max(LONGEST_S, self._first_s))

    def unanswered(self, now: float, *, last: bool) -> None:
        """It took a request, and failed before an answer's head. The ``last`` healthy one of a pool is
        counted and not ejected: there is nobody to pass it over for."""
        self.failures += 1
        if self.failures >= UNANSWERED and not last:
            self.failed(now)

    def answered(self) -> None:
        """The head of an answer came."""
        self.failures = 0
        self.ejected_until = 0.0
        self._next_s = self._first_s
