"""Every fault by name, in the order of the table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from tests.faults.figures import Figures
from tests.faults.rows import (
    candidates,
    chaos,
    clients,
    clocks,
    days,
    disks,
    hooks,
    kills,
    links,
    pools,
    races,
)


class Row(NamedTuple):
    """One fault."""

    name: str
    says: str
    """What happens, in a sentence."""
    play: Callable[[Figures, Path], Awaitable[None]]
    limit_s: float = 100.0
    """After which it has failed."""


ROWS: tuple[Row, ...] = tuple(
    Row(*row)
    for row in (
        *candidates.ROWS,
        *pools.ROWS,
        *kills.ROWS,
        *races.ROWS,
        *disks.ROWS,
        *clocks.ROWS,
        *links.ROWS,
        *hooks.ROWS,
        *chaos.ROWS,
        *clients.ROWS,
        *days.ROWS,
    )
)
