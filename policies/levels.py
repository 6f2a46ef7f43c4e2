"""One α for a rollout, split over everything that may roll it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from policies.gates.base import Alpha, Gate
from policies.verdict import Verdict

STAGES = 2
"""Stages in which evidence is judged: shadow and canary. Always both, since an edit of the configuration
turns the one into the other, and what a suite's gates say in each is another look."""


def alphas_of(alpha: float, gates: Mapping[str, Gate[Any]], *, tenants: int, stages: int) -> dict[str, Alpha]:
    """Each gate's levels.

    A rollback is a union over gates, tenants and stages, so its levels add up to ``alpha`` (Bonferroni, which
    needs no independence; not e-BH: a procedure that may take back a discovery must not be latched, Tavyrikov
    et al. 2025). Gates keep one state for all canary tenants, and those about traffic one for both stages;
    for them the split is stricter than it must be, and a tenant added later only lowers their level.

    Promotion needs every gate, so each gate has ``alpha`` whole: a candidate that is beyond the margin of one
    is promoted only if that one errs. Nothing is said so of gates that pass without a test
    (:mod:`.gates.base`).

    The levels are those of one start. Gates that start anew, after a person's lift, have them anew: a rollout
    that was lifted k times has had k + 1 chances.

    Args:
        alpha: the rollout's, from its policy.
        gates: by name; those that test no hypothesis take no share.
        tenants: canary tenants that may be rolled back, at least 1.
        stages: stages in which evidence is judged, at least 1.
    """
    spending = sum(gate.spends_alpha for gate in gates.values())
    share = alpha / (max(1, spending) * max(1, tenants) * max(1, stages))
    return {name: Alpha(rollback=share, promotion=alpha) for name in gates}


def ask(gate: Gate[Any], state: Any, alpha: Alpha) -> Verdict:
    """What a gate says of its state, with the level that it is held to.

    A gate of several questions may answer by a cap, which has no level of its own; while it tests as well,
    its share of alpha is spent all the same.
    """
    verdict = gate.verdict(state, alpha)
    if gate.spends_alpha and verdict.alpha is None:
        return msgspec.structs.replace(verdict, alpha=alpha.rollback)
    return verdict
