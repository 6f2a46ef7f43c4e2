"""Every fork of a rollout given its class, against the noise floor that its controls have shown so far.

A candidate's fork is excused by the floor of its own engine path and concurrency band alone; where no control
has run there yet, nothing is excused, and the reason says so. A control's fork is classified against the
floor of the controls before it. What is shown here is for people: gates fold the evidence themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from comparator.comparison import Comparison
from comparator.floor import Floors
from comparator.pair import Pair
from comparator.precision import declared_precision, spacing_nats
from comparator.records import Arm, Exchange
from comparator.taxonomy import Allowance, Attribution, ForkClass, classify

ENDPOINTS = 256
"""Endpoints whose precision is remembered."""


class ForkTally(msgspec.Struct, kw_only=True):
    """Counts by arm and class, and the floors."""

    classes: dict[str, dict[str, int]] = {}
    """Arm (``candidate``, ``control``) → class → forks."""
    floors: Floors = Floors()

    def add(self, fork: Classified) -> None:
        of_arm = self.classes.setdefault(fork.arm.value, {})
        name = fork.attribution.fork_class.value
        of_arm[name] = of_arm.get(name, 0) + 1


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    """One fork, or one pair whose arms were not asked the same."""

    arm: Arm
    """That was compared with the baseline."""
    replicate: int
    fork_index: int | None
    """None for an encoding or configuration mismatch, which has no fork to point at."""
    environment: str | None = None
    """Digest of the environment that answered on that arm; None where nobody told it."""
    attribution: Attribution


class Classifier:
    """Classifies what arrives. It knows how finely each endpoint speaks, which one answer may not show."""

    def __init__(self) -> None:
        self._spacing: dict[str, float] = {}

    def look(self, comparison: Comparison, tally: ForkTally) -> list[Classified]:
        """Count a comparison's forks in ``tally``, and its controls in the floors."""
        found: list[Classified] = []
        for pair in comparison.pairs:
            classified = self._classify(pair, tally.floors)
            if classified is not None:
                tally.add(classified)
                found.append(classified)
        for pair in comparison.controls:
            tally.floors = tally.floors.add(pair)
        return found

    def _classify(self, pair: Pair, floors: Floors) -> Classified | None:
        if pair.valid and pair.fork is None:
            return None  # equal, and nothing to look up a floor for
        looked_up = floors.of(pair)
        spacing = max(self._spacing_of(pair.left), self._spacing_of(pair.right))
        attribution = classify(pair, Allowance(spacing_nats=spacing, floor=looked_up.floor))
        if attribution is None or attribution.fork_class is ForkClass.NONE:
            return None
        if looked_up.missing is not None and pair.fork is not None:
            attribution = msgspec.structs.replace(
                attribution, reason=f"{attribution.reason}; {looked_up.missing}"
            )
        return Classified(
            arm=pair.right.arm,
            replicate=pair.left.replicate,
            fork_index=None if pair.fork is None else pair.fork.fork_index,
            environment=pair.right.environment_digest.value,
            attribution=attribution,
        )

    def _spacing_of(self, exchange: Exchange) -> float:
        name = declared_precision(exchange)
        if name is not None:
            return spacing_nats(name, ())
        # Looked for in the logprobs, which costs milliseconds: once an endpoint, when an answer was long
        # enough to show a lattice.
        known = self._spacing.get(exchange.endpoint)
        if known is not None:
            return known
        seen = spacing_nats(None, exchange.steps)
        if len(exchange.steps) >= 8 and len(self._spacing) < ENDPOINTS:
            self._spacing[exchange.endpoint] = seen
        return seen

    def forget(self, endpoint: str) -> None:
        """Something else answers there now."""
        self._spacing.pop(endpoint, None)


def rows(tally: ForkTally) -> Iterator[tuple[str, str, int]]:
    """(arm, class, forks), for metrics and people."""
    for arm, classes in sorted(tally.classes.items()):
        for name, count in sorted(classes.items()):
            yield arm, name, count
