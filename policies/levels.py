"""One α for a rollout, split over everything that may roll it back.

A rollback is a union, so the levels under which it may happen add up to α (Bonferroni, which needs no
independence; not e-BH: a procedure that may take back a discovery must not be latched, Tavyrikov et al.
2025). It is split three times, each time only where there are several tests:

*Over gates*, evenly among those that test a hypothesis.

*Over looks*, for gates about a suite. A suite is asked anew in every judged stage and step, and each time its
gate is a new test of fixed size. Look ``j`` has ``1 / (j (j + 1))`` of the gate's share: ½, ⅙, 1/12, ... The
sum over any number of looks is under 1, so it need not be known how many steps there will be, and a file
that is edited in mid-rollout cannot spend more than α. The first look, before any traffic has moved, gets
the most; later ones ask the same frozen samples again. Whether there is a next look may depend on what was
seen: the level of each is fixed before its evidence, which is all that the sum needs.

A gate about *traffic* keeps one state through all stages. Its test is an e-process, held to one level
whenever it is asked (Ville's inequality), so it is one test however many steps there are, and is not split.

*Over tenants*, for gates that a policy keeps by tenant: each has a state, and a test, of its own. A tenant is
allotted its part when its first evidence comes, out of what is left (:func:`allot`), so that the parts add up
to less than the gate's share whoever is added later. A gate that is not kept by tenant has one state for all
of them and is one test.

Promotion needs every gate, so each gate has ``alpha`` whole: a candidate that is beyond the margin of one is
promoted only if that one errs. The same holds of the gates of several tenants. Nothing is said so of gates
that pass without a test (:mod:`policies.gates.base`).

The levels are those of one start. Gates that start anew, after a person's lift, have them anew: a rollout
that was lifted k times has had k + 1 chances.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from policies.gates.base import Alpha, Gate, suite_of
from policies.verdict import Verdict

LOOKS = 3
"""Judged stages of a short rollout, shadow, one canary step and observing: what a policy is read for where no
rollout is at hand."""
SMALLEST_PART = 2.0**-60
"""Of a gate's share."""


def shares_of(alpha: float, gates: Mapping[str, Gate[Any]]) -> dict[str, Alpha]:
    """Each gate's share of a rollout's alpha, before it is split over looks or tenants.

    Args:
        alpha: the rollout's, from its policy.
        gates: by name; those that test no hypothesis take no share.
    """
    spending = sum(gate.spends_alpha for gate in gates.values())
    share = alpha / max(1, spending)
    return {name: Alpha(rollback=share, promotion=alpha) for name in gates}


def at_look(share: Alpha, gate: Gate[Any], look: int) -> Alpha:
    """A gate's level in the ``look``-th judged stage or step, from 1; the whole share for one about
    traffic."""
    if suite_of(gate) is None:
        return share
    look = max(1, look)
    return msgspec.structs.replace(share, rollback=share.rollback / (look * (look + 1)))


def of_tenant(share: Alpha, part: float) -> Alpha:
    """A tenant's level of a gate that is kept by tenant."""
    return msgspec.structs.replace(share, rollback=share.rollback * part)


def allot(parts: Iterable[float], to_come: int) -> float:
    """The part of a tenant whose first evidence comes now.

    Args:
        parts: of the tenants that have one already.
        to_come: tenants that have none yet and may still come, this one included.

    What is left is split evenly over those to come and one more, who stands for whoever is added later: ``n``
    tenants known from the beginning get ``1 / (n + 1)`` each. No part is 0, which no test could be held to:
    fifty edits, each of which adds a tenant, come to the smallest one.
    """
    return max(SMALLEST_PART, (1.0 - sum(parts)) / (max(1, to_come) + 1))


def levels_of(
    alpha: float,
    gates: Mapping[str, Gate[Any]],
    *,
    look: int = LOOKS,
    tenants: int = 1,
    kept: Iterable[str] = (),
) -> dict[str, Alpha]:
    """Each gate's level, where no rollout is at hand: for ``policy lint`` and ``gate``.

    Args:
        look: for gates about a suite, which judged stage or step; later ones have less.
        tenants: for the gates of ``kept``, how many share one.
        kept: gates that are kept by tenant.
    """
    kept = frozenset(kept)
    shares = shares_of(alpha, gates)
    return {
        name: of_tenant(share, allot((), tenants)) if name in kept else at_look(share, gates[name], look)
        for name, share in shares.items()
    }


def ask(gate: Gate[Any], state: Any, alpha: Alpha) -> Verdict:
    """What a gate says of its state, with the level that it is held to.

    A gate of several questions may answer by a cap, which has no level of its own; while it tests as well,
    its share of alpha is spent all the same.
    """
    verdict = gate.verdict(state, alpha)
    if gate.spends_alpha and verdict.alpha is None:
        return msgspec.structs.replace(verdict, alpha=alpha.rollback)
    return verdict
