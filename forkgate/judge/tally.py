"""What a rollout has seen, counted for people; gates keep their own counts."""

from __future__ import annotations

import msgspec

from comparator.comparison import Comparison
from comparator.pair import ForkSeen, Pair
from comparator.records import Arm, Outcome
from forkgate.judge.forks import Classified, Classifier, ForkTally

EARLY = 4_096
"""Forks told before their pair was finished that are remembered, so that none is counted twice."""


class Tally(msgspec.Struct, kw_only=True):
    """Since the rollout's gates started."""

    comparisons: int = 0
    """Captures and samples that were compared."""
    samples: int = 0
    """Of these, samples of a suite."""
    repeats: int = 0
    """Of these, of a prompt or a conversation that had been met before: no new evidence."""
    pairs: int = 0
    """Finished pairs of baseline and candidate: the three below together."""
    compared: int = 0
    """To the end, or to a fork."""
    failed: int = 0
    """The candidate failed before either."""
    set_aside: int = 0
    """Worth nothing as evidence, by reason in :attr:`reasons`."""
    reasons: dict[str, int] = {}
    forks: int = 0
    """Of baseline and candidate, some of them seen before their pair was finished."""
    controls: int = 0
    """Finished pairs of baseline and control."""
    control_forks: int = 0
    by_class: ForkTally = msgspec.field(default_factory=ForkTally)
    """Forks of finished pairs by class, and the noise floors."""
    environments: dict[str, str] = {}
    """Pool → digest of the environment that is compared (:mod:`forkgate.judge.provenance`), where none is
    declared."""
    live_set_aside: dict[str, int] = {}
    """Pool → live records of another environment, which no gate folded."""
    samples_set_aside: int = 0
    """Engine samples of another environment."""
    early: list[str] = []
    """Forks in :attr:`forks` whose pair is not finished yet."""

    def fork(self, event: ForkSeen) -> None:
        """A fork, told before its pair is finished."""
        if event.right_arm is Arm.CANDIDATE:
            self.forks += 1
            self.early.append(_key(event.capture_id, event.replicate))
            del self.early[:-EARLY]

    def record_set_aside(self, pool: str) -> None:
        """A live record that another environment answered."""
        self.live_set_aside[pool] = self.live_set_aside.get(pool, 0) + 1

    def comparison(self, comparison: Comparison, classifier: Classifier) -> list[Classified]:
        """A finished comparison; returns its forks with their classes."""
        self.comparisons += 1
        self.samples += comparison.sample is not None
        self.repeats += comparison.repeat
        for pair in comparison.candidates:
            self._candidate(pair)
        for pair in comparison.controls:
            self.controls += 1
            self.control_forks += pair.valid and pair.fork is not None
        return classifier.look(comparison, self.by_class)

    def _candidate(self, pair: Pair) -> None:
        self.pairs += 1
        if pair.fork is not None:
            key = _key(pair.capture_id, pair.left.replicate)
            if key in self.early:
                self.early.remove(key)
            else:
                self.forks += 1
        if pair.set_aside is not None:
            self.set_aside += 1
            self.reasons[pair.set_aside.value] = self.reasons.get(pair.set_aside.value, 0) + 1
        elif pair.fork is not None or pair.right.outcome in (Outcome.COMPLETED, Outcome.CUT):
            self.compared += 1
        else:
            self.failed += 1


def _key(capture_id: str, replicate: int) -> str:
    return f"{capture_id}/{replicate}"
