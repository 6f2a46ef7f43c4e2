"""What a fault cost, and what it may cost at most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

MORE_TIMES = 10.0
MORE_S = 1.0
"""p99 of live answers under the fault: at most ten times the one of the same run before it, and a second.

No figure in itself: on a busy machine every answer is slow. A live answer that waits for a shadow waits for
its timeout, which is longer than that.
"""
GROWTH_MIB = 64.0
"""Of any one process, from before the fault to after it. What grows without a limit is far above."""
LEAST_ANSWERS = 20
"""Live answers under the fault; fewer tell nothing."""

Kept = Literal["kept", "lost", "not asked"]


class Figures(msgspec.Struct, kw_only=True):
    """One row of the table. A row that ended early has what was measured until then."""

    name: str
    live: int = 0
    """Live requests, all of the row's."""
    under_fault: int = 0
    """Those of them that ended while the fault lasted."""
    errors: int = 0
    """Answers that were not whole, beyond those that the fault's own victim held (``excused``)."""
    excused: int = 0
    """Answers that broke off because the process that was answering them was killed."""
    p99_before_s: float | None = None
    p99_s: float | None = None
    """Live answers from first byte sent to last byte received, under the fault."""
    first_byte_s: float = 0.0
    """What the row's own configuration lets a live answer wait for an engine that says nothing."""
    rollback: Kept = "not asked"
    """``kept``: it reached every edge, brought the tenant home, and outlived a killed judge."""
    balanced: bool | None = None
    """At every look under way, and at the end, with nothing in flight. None: nobody looked."""
    growth_mib: float = 0.0
    """Resident memory of the process that grew most."""
    seconds: float = 0.0
    note: str = ""
    """What the fault was seen to do: without it, a row that broke nothing would pass."""
    failed: str = ""
    """How the row itself ended early."""

    def problems(self) -> Sequence[str]:
        """Why this row fails; none: it holds."""
        found = [self.failed] if self.failed else []
        if self.errors:
            found.append(f"{self.errors} live errors, none is allowed")
        if self.rollback == "lost":
            found.append("the rollback was lost")
        if not self.failed:
            found += self._unmeasured()
        if self.balanced is False:
            found.append("the ledger did not balance")
        if self.growth_mib > GROWTH_MIB:
            found.append(f"a process grew by {self.growth_mib:.0f} MiB, {GROWTH_MIB:.0f} are allowed")
        if self.p99_before_s is not None and self.p99_s is not None:
            limit = MORE_TIMES * self.p99_before_s + MORE_S + self.first_byte_s
            if self.p99_s > limit:
                found.append(f"p99 {1e3 * self.p99_s:.0f} ms under the fault, {1e3 * limit:.0f} are allowed")
        return found

    def _unmeasured(self) -> list[str]:
        found = []
        if self.under_fault < LEAST_ANSWERS:
            found.append(f"{self.under_fault} live answers under the fault, {LEAST_ANSWERS} are the least")
        if self.rollback == "not asked":
            found.append("no rollback was asked for")
        if self.balanced is None:
            found.append("nobody looked at the ledger")
        if not self.note:
            found.append("the row does not say what its fault did")
        return found


def p99(seconds: Sequence[float]) -> float | None:
    """Nearest rank; None of nothing."""
    if not seconds:
        return None
    return sorted(seconds)[max(0, -(-len(seconds) * 99 // 100) - 1)]


COLUMNS = ("fault", "live", "errors", "excused", "p99 ms", "with it", "rollback", "ledger", "MiB", "s", "")


def table(rows: Sequence[Figures]) -> str:
    """Text, for people."""
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(COLUMNS))]
    lines = []
    for line in cells:
        first, *rest, last = (
            cell.ljust(width) if place in (0, len(COLUMNS) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        lines.append("  ".join([first, *rest, last]).rstrip())
    return "\n".join(lines)


def _cells(row: Figures) -> tuple[str, ...]:
    def ms(seconds: float | None) -> str:
        return "-" if seconds is None else f"{1e3 * seconds:.0f}"

    ledger = {True: "balanced", False: "WRONG", None: "-"}[row.balanced]
    return (
        row.name,
        str(row.live),
        str(row.errors),
        str(row.excused),
        ms(row.p99_before_s),
        ms(row.p99_s),
        "LOST" if row.rollback == "lost" else row.rollback,
        ledger,
        f"{row.growth_mib:+.0f}",
        f"{row.seconds:.0f}",
        "FAILS" if row.problems() else "holds",
    )
