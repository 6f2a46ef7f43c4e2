"""How far a check is, for people who wait for it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class CheckProgress(msgspec.Struct, frozen=True, kw_only=True):
    """One that runs, at one moment."""

    answers: int
    """There."""
    wanted: int | None
    """Of so many; None until its endpoints are known, by which they are counted."""
    elapsed_s: float
    waiting: str | None
    """What it waits for before its first answer, in words."""


@dataclass(kw_only=True, slots=True)
class Progress:
    """Kept by the check itself, as it goes."""

    answers: int = 0
    wanted: int | None = None
    waiting: str | None = None

    def at(self, elapsed_s: float) -> CheckProgress:
        return CheckProgress(
            answers=self.answers, wanted=self.wanted, elapsed_s=elapsed_s, waiting=self.waiting
        )
