"""What is said of two environments' levels, as values: the sides, what stands in the way, and how heavily."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from typing import Any

from engines.identity.artifact import ArtifactRecord
from engines.identity.record import Identity

ARTIFACT = "artifact"
ENVIRONMENT = "environment"
TOKEN = "token"  # noqa: S105 - a level, not a secret
LEVELS = (ARTIFACT, ENVIRONMENT, TOKEN)
"""Those that records speak of."""
IMAGE = "container.image"
DIGEST = "artifact.digest"
"""Fields of an environment record that speak of the artifact."""


class Can(enum.StrEnum):
    """Whether a level can be reached."""

    YES = "yes"
    UNLIKELY = "unlikely"  # of tokens: only evidence can say that it is
    UNKNOWN = "unknown"  # nothing known stands in the way, and something is not known
    NO = "no"


class Weight(enum.StrEnum):
    """How heavily an obstacle weighs; the heaviest first."""

    SEEN = "seen"  # evidence shows it
    NATURE = "by nature"  # other numbers at every step
    LIKELY = "likely"
    PERHAPS = "perhaps"
    MISSING = "missing"  # evidence that would show it
    UNKNOWN = "unknown"  # nobody knows whether it differs
    RARELY = "rarely"


_WEIGHTS = {weight: place for place, weight in enumerate(Weight)}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is known of one environment. ``name`` is what messages call it."""

    name: str
    environment: Identity | None = None
    artifact: ArtifactRecord | None = None

    @property
    def fields(self) -> Mapping[str, Any]:
        """Of the environment record; none without one."""
        return {} if self.environment is None else self.environment.fields


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One thing that stands in the way of ``levels``; of no level: it is told, and bars nothing."""

    weight: Weight
    levels: tuple[str, ...]
    what: str
    a: str | None = None
    b: str | None = None
    why: str
    todo: str = ""
    vouchable: bool = False
    """It is a fact of the two environments that somebody else may know."""

    def to_json(self) -> dict[str, Any]:
        return {
            "weight": self.weight.value,
            "in_the_way_of": list(self.levels),
            "what": self.what,
            "a": self.a,
            "b": self.b,
            "why": self.why,
            "todo": self.todo or None,
        }


def ordered(obstacles: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    """The heaviest first; those of one weight stay in the order in which they came."""
    return tuple(sorted(obstacles, key=lambda one: _WEIGHTS[one.weight]))
