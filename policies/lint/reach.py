"""What a gate can and cannot decide, as values with a sentence each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from policies.gates import AnyGate
from policies.lint.power import Needed


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence until one answer, under one supposition."""

    what: str
    """The answer and the supposition, for instance ``pass, arms equal``."""
    unit: str
    """``comparisons``, ``triples``, ``blocks``..."""
    needed: Needed
    per_day: float
    """How many of them the traffic brings."""
    maximum: int | None = None
    """The gate's ``maximum_n``; beyond it, it does not decide."""

    @property
    def days(self) -> float:
        """To the median."""
        return self.needed.median / self.per_day if self.per_day > 0.0 else math.inf

    @property
    def possible(self) -> bool:
        """Whether the median comes before the gate's maximum."""
        return math.isfinite(self.needed.median) and (
            self.maximum is None or self.needed.median <= self.maximum
        )

    def sentence(self) -> str:
        """In words."""
        needed = self.needed
        if not math.isfinite(needed.median):
            return f"{self.what}: never"
        said = f"{self.what}: about {count(needed.median)} {self.unit} (p90 {count(needed.p90)})"
        if not self.possible:
            return f"{said}, more than maximum_n {count(self.maximum or 0)}: it will stay inconclusive"
        if not math.isfinite(self.days):
            return f"{said}; the expected traffic brings none"
        return f"{said}, {span(self.days)}"


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """What one gate can and cannot decide."""

    gate: str
    kind: str
    estimand: str
    alpha: float | None
    """Its share, held to which it fails; None for one that tests no hypothesis."""
    says: tuple[str, ...]
    """Sentences for a person."""
    needs: tuple[Need, ...] = ()
    refused: str | None = None
    """Why these limits are of no use whatever comes; None when they are."""


def count(number: float) -> str:
    """A number of things, rounded to what is known of it."""
    if not math.isfinite(number):
        return "never enough"
    if number >= 1_000_000:
        return f"{number / 1e6:.3g} million"
    return f"{round(number):,}" if number < 1_000 else f"{round(number, -2):,.0f}"


def span(days: float) -> str:
    """How long the expected traffic takes for it, in a unit that a person plans with."""
    if days < 1 / 24:
        minutes = max(1, round(days * 1440))
        return f"{minutes} minute{'s' if minutes > 1 else ''} of traffic"
    if days < 2:
        return f"{days * 24:.1f} hours of traffic"
    return f"{days:.1f} days of traffic"


def need(what: str, unit: str, needed: Needed, gate: AnyGate, per_day: float) -> Need:
    """A need of a gate, held to its ``maximum_n`` where it has one."""
    return Need(
        what=what, unit=unit, needed=needed, per_day=per_day, maximum=getattr(gate, "maximum_n", None)
    )


def never_decided(gate: AnyGate, field: str, value: float, best: Needed, even: str) -> str | None:
    """Why a margin is of no use, if the most favourable evidence there is comes too late.

    Args:
        best: what that evidence needs.
        even: what it would be, ``even if ...``.
    """
    maximum: int = getattr(gate, "maximum_n", 0)
    if best.median <= maximum:
        return None
    return (
        f"{field} {value:g} can never be decided: it takes {count(best.median)} of them {even}, and "
        f"maximum_n is {maximum:,}; raise maximum_n or {field}"
    )


def too_short(gate: AnyGate, fewest: float, even: str) -> str | None:
    """Why ``maximum_n`` leaves no room for a pass, whatever its limits; None where it does.

    Args:
        fewest: observations that the most favourable evidence takes.
        even: what it would be, ``even if ...``.
    """
    maximum: int = getattr(gate, "maximum_n", 0)
    if fewest <= maximum:
        return None
    return (
        f"maximum_n {maximum:,} can never be enough for a pass: it takes {count(fewest)} {even}; "
        "raise maximum_n"
    )


def made(
    gate: AnyGate,
    alpha: float | None,
    says: Sequence[str],
    needs: Sequence[Need] = (),
    refused: str | None = None,
) -> Reach:
    """The reach of a gate."""
    return Reach(
        gate=gate.name,
        kind=str(gate.__struct_config__.tag),
        estimand=gate.estimand,
        alpha=alpha,
        says=tuple(says),
        needs=tuple(needs),
        refused=refused,
    )
