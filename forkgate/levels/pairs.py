"""Every pair of some sides, stood up by one reading of the evidence."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from comparator.comparison import Comparison
from engines.identity.levels import Side, reach
from forkgate.levels.evidence import ANSWERS, Tally
from forkgate.levels.gates import Judging, stored
from forkgate.levels.sources import Evidence
from forkgate.levels.standing import Limits, Standing, stand
from policies.gates.by_token import by_token
from policies.policy import Policy


def standings(
    sides: Sequence[Side],
    evidence: Evidence | None,
    *,
    policy: Policy | None,
    vouch: Sequence[str],
    limits: Limits,
) -> list[Standing]:
    """Each pair in the order of ``sides``: the first with all others, the second with those after it...

    Args:
        policy: whose gates judge the evidence; None: what is stored with it counts.
        vouch: what the caller knows to be equal (:func:`engines.identity.levels.reach`), and ``answers``.

    Raises:
        ExportLineError, BadVerdicts: the evidence is none.
        EvidenceError: kinds of it, for a store.
    """
    pairs = list(itertools.combinations(sides, 2))
    if evidence is None:
        return [stand(a, b, reach(a, b, vouch), limits=limits) for a, b in pairs]
    tallies = [Tally(_digest(a), _digest(b), vouched=ANSWERS in vouch) for a, b in pairs]
    judging = [None if policy is None else Judging(policy) for _ in pairs]

    def pruned(line: int) -> None:
        for tally in tallies:
            tally.pruned(line)

    def hashed(line: int, comparison: Comparison) -> None:
        for tally in tallies:
            tally.hashed(line, comparison)

    for comparison in evidence.comparisons(pruned, hashed):
        for tally, judge in zip(tallies, judging, strict=True):
            counted = tally.add(comparison)
            if counted is not None and judge is not None:
                judge.add(counted)
    found = []
    for (a, b), tally, judge in zip(pairs, tallies, judging, strict=True):
        seen = tally.seen()
        verdicts = stored(*evidence.verdicts()) if judge is None else judge.verdicts()
        if policy is not None and verdicts is not None and seen.hashed:
            verdicts = verdicts.not_of_hashes(by_token(policy.gates))
        found.append(stand(a, b, reach(a, b, vouch), seen=seen, verdicts=verdicts, limits=limits))
    return found


def _digest(side: Side) -> str | None:
    return None if side.environment is None else side.environment.digest
