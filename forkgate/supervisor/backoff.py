"""How long to wait before a dead child starts again."""

from __future__ import annotations

FIRST_S = 0.1
LONGEST_S = 10.0
HEALTHY_S = 30.0
"""A child that lived this long was well; its next death starts from :data:`FIRST_S` again."""


class Backoff:
    """Doubling from :data:`FIRST_S` to :data:`LONGEST_S`. Holds no clock: lifetimes are told to it."""

    def __init__(self) -> None:
        self._next_s = FIRST_S

    def after(self, lived_s: float) -> float:
        """Seconds to wait now that a child died after ``lived_s``."""
        if lived_s >= HEALTHY_S:
            self._next_s = FIRST_S
        wait_s = self._next_s
        self._next_s = min(self._next_s * 2, LONGEST_S)
        return wait_s
