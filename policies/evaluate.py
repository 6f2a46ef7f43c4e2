"""A policy's gates over given comparisons, without a rollout: the path that each took, and where it ended.

The same fold and the same levels as in a rollout, so what is printed here is what a judge would have said of
the same evidence in the same order. Nothing acts: a gate that fails goes on, as its own limits say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from comparator.comparison import Comparison
from policies.gates.base import Alpha, Gate
from policies.levels import ask
from policies.verdict import Verdict


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison that a gate read, and what the gate said after it."""

    index: int
    """Of the comparison, from 1."""
    capture_id: str
    verdict: Verdict


class Path(msgspec.Struct, frozen=True, kw_only=True):
    """One gate's way through the evidence."""

    gate: str
    kind: str
    points: tuple[Point, ...]
    """After each comparison that changed its state."""
    verdict: Verdict
    """At the end; of no evidence where nothing was for this gate."""


def evaluate(
    gates: Mapping[str, Gate[Any]], comparisons: Iterable[Comparison], alphas: Mapping[str, Alpha]
) -> tuple[Path, ...]:
    """Fold ``comparisons``, in their order, through each gate.

    Args:
        gates: by name.
        comparisons: their ``repeat`` marks are believed: a cluster that was seen before does not bet.
        alphas: each gate's levels (:func:`policies.levels.levels_of`).
    """
    states = {name: gate.initial() for name, gate in gates.items()}
    points: dict[str, list[Point]] = {name: [] for name in gates}
    for index, comparison in enumerate(comparisons, start=1):
        for name, gate in gates.items():
            before = states[name]
            after = gate.fold(before, comparison)
            if after is before:
                continue
            states[name] = after
            verdict = ask(gate, after, alphas[name])
            points[name].append(Point(index=index, capture_id=comparison.capture_id, verdict=verdict))
    return tuple(
        Path(
            gate=name,
            kind=str(type(gate).__struct_config__.tag) if isinstance(gate, msgspec.Struct) else name,
            points=tuple(points[name]),
            verdict=ask(gate, states[name], alphas[name]),
        )
        for name, gate in gates.items()
    )
