"""One property: the number found, the bar, and whether it holds."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec
from scipy import stats


class Scale(enum.StrEnum):
    QUICK = "quick"
    FULL = "full"

    def pick(self, quick: int, full: int) -> int:
        return quick if self is Scale.QUICK else full


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """``holds`` is None where the property could not be measured; the detail says why."""

    name: str
    value: float | None
    bar: float
    holds: bool | None
    detail: dict[str, Any] = {}


def at_most(events: int, trials: int, bar: float) -> bool:
    """Whether a rate is not shown to be above the bar: its 99 % lower bound (Clopper-Pearson) is not."""
    if events == 0:
        return True
    return float(stats.beta.ppf(0.01, events, trials - events + 1)) <= bar


def table(findings: Sequence[Finding]) -> str:
    """For people."""
    lines = []
    for finding in findings:
        mark = {True: "holds", False: "DOES NOT HOLD", None: "not measured"}[finding.holds]
        value = "-" if finding.value is None else f"{finding.value:.4g}"
        lines.append(f"{finding.name:<34} {value:>9}  bar {finding.bar:<8.4g} {mark}")
        lines += [f"{'':<6}{key}: {said}" for key, said in finding.detail.items()]
    return "\n".join(lines)
