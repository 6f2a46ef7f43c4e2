"""Which levels of equality two environments can reach, as far as records tell, and what stands in the way.

- *artifact*: the same files are served by the same runtime image.
- *environment*: the same artifact, and no difference in any field that can move tokens.
- *token*: the same token IDs in give the same token IDs out. Records never show it, they say whether it
  can be.

The fourth level, *statistical*, is a question to evidence alone, and so is whether tokens *were* equal; both
are asked outside this package. What a record does not know counts neither as equal nor as different: then it
is not known whether the level is reached.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Iterable, Mapping

from engines.identity import levels_artifact, levels_environment
from engines.identity.levels_values import (
    ARTIFACT,
    ENVIRONMENT,
    LEVELS,
    TOKEN,
    Can,
    Obstacle,
    Side,
    Weight,
    ordered,
)

__all__ = [
    "ARTIFACT",
    "ENVIRONMENT",
    "LEVELS",
    "TOKEN",
    "Can",
    "Obstacle",
    "Reach",
    "Side",
    "Weight",
    "ordered",
    "reach",
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What two records say. Where ``can`` is YES of artifact or environment, the records show it."""

    can: Mapping[str, Can]
    obstacles: tuple[Obstacle, ...]
    """The heaviest first."""
    remarks: tuple[Obstacle, ...]
    """Differences that stand in nobody's way."""
    vouched: tuple[str, ...]
    """What was unknown and counted as equal, because whoever asked said so."""


def reach(a: Side, b: Side, vouch: Iterable[str] = ()) -> Reach:
    """Compare two sides.

    Args:
        vouch: names of unknown things that the caller knows to be equal, ``*`` standing for anything. What is
            known to differ, and a record that is not there, cannot be vouched for.
    """
    patterns = tuple(vouch)
    found: list[Obstacle] = []
    vouched: list[str] = []
    for one in (*levels_artifact.obstacles(a, b), *levels_environment.obstacles(a, b)):
        if one.vouchable and any(fnmatch.fnmatchcase(one.what, pattern) for pattern in patterns):
            vouched.append(one.what)
        else:
            found.append(one)
    return Reach(
        can={level: _can(level, found) for level in LEVELS},
        obstacles=ordered(one for one in found if one.levels),
        remarks=tuple(one for one in found if not one.levels),
        vouched=tuple(vouched),
    )


def _can(level: str, obstacles: Iterable[Obstacle]) -> Can:
    weights = {one.weight for one in obstacles if level in one.levels}
    known = weights - {Weight.UNKNOWN}
    if known and (level != TOKEN or Weight.NATURE in known):
        return Can.NO
    if Weight.LIKELY in known:
        return Can.UNLIKELY
    return Can.UNKNOWN if Weight.UNKNOWN in weights else Can.YES
