"""Several environments, every pair: which reach the same tokens, which only statistical equivalence."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from engines.identity.levels import Can
from forkgate.levels.standing import Standing
from policies.policy import Level

_STRICTEST_FIRST = (Level.ENVIRONMENT, Level.TOKEN, Level.STATISTICAL)
"""By what may be expected of answers; two artifacts that are the same promise nothing of them."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One pair."""

    shown: Level | None
    """The strictest level that is shown; None for none."""
    can: Level | None
    """The strictest one that can be reached as far as is known; None for none."""

    def text(self) -> str:
        """Short enough for a table."""
        if self.shown is None:
            return "?" if self.can is None else f"({self.can.value})"
        if self.can is not None and _STRICTEST_FIRST.index(self.can) < _STRICTEST_FIRST.index(self.shown):
            return f"{self.shown.value} ({self.can.value})"
        return self.shown.value


def cell_of(standing: Standing) -> Cell:
    """A pair's place in the matrix."""
    answers = standing.answers
    return Cell(
        shown=next((level for level in _STRICTEST_FIRST if answers[level].shown), None),
        can=next((level for level in _STRICTEST_FIRST if answers[level].can is Can.YES), None),
    )


def table(names: Sequence[str], cells: dict[tuple[int, int], Cell]) -> list[str]:
    """Rows of text: one environment a row, those after it the columns."""
    rows = [["", *names[1:]]]
    for place, name in enumerate(names[:-1]):
        row = [name]
        for other in range(1, len(names)):
            row.append(cells[place, other].text() if other > place else "")
        rows.append(row)
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
