"""A number for each answer of a suite, on both arms: what the suite gates remember.

Every pass of every sample leaves two numbers, the candidate's and the baseline's: a score, or a length. An
arm without one (it failed, its scorer broke, the pair was set aside) leaves None, which is counted against
what the gate would otherwise say, and never left out in silence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.records import Arm, Outcome
from policies.gates.progress import Progress

LEAST_PASSES = 5
"""An arm's run-to-run noise is estimated from its passes; from fewer it cannot be."""

Values = tuple[float | None, float | None]
"""Candidate's, baseline's."""

MOST_WORDS = 200
"""Characters of a reason that are kept."""


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """The first answer, by sample and pass, that could not be measured, as an example."""

    sample_id: str
    passage: int
    why: str


class Passes(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers by sample and pass. The order of folding leaves no trace."""

    progress: Progress = Progress()
    values: dict[str, dict[int, Values]] = {}
    """Only samples whose question was asked, and answers that were no answer."""
    missing: int = 0
    """Numbers that are None, over both arms and all of :attr:`values`."""
    trouble: Trouble | None = None

    def add(self, comparison: Comparison, values: Values | None, why: str | None = None) -> Passes:
        """With one more answer; these very passes when it is not new.

        Args:
            comparison: with ``sample``.
            values: None when this sample does not ask the gate's question.
            why: where a value is None, the reason.
        """
        ref = comparison.sample
        assert ref is not None
        progress = self.progress.admit(ref)
        if progress is None:
            return self
        same = (progress.stage, progress.digest) == (self.progress.stage, self.progress.digest)
        before = self if same else Passes()
        if values is None:
            return msgspec.structs.replace(before, progress=progress)
        lost = values.count(None)
        trouble = before.trouble
        if lost:
            new = Trouble(sample_id=ref.sample_id, passage=ref.passage, why=(why or "no value")[:MOST_WORDS])
            trouble = new if trouble is None else min(trouble, new, key=_place)
        inner = {**before.values.get(ref.sample_id, {}), ref.passage: values}
        return Passes(
            progress=progress,
            values={**before.values, ref.sample_id: inner},
            missing=before.missing + lost,
            trouble=trouble,
        )

    def merge(self, other: Passes) -> Passes:
        """The numbers of both; shards of one stage, in any order.

        Raises:
            ValueError: different stages or suites.
        """
        progress = self.progress.merge(other.progress)
        values: dict[str, dict[int, Values]] = {}
        for part in (self.values, other.values):
            for key, inner in part.items():
                values.setdefault(key, {}).update(inner)
        troubles = [each for each in (self.trouble, other.trouble) if each is not None]
        return Passes(
            progress=progress,
            values=values,
            missing=sum(pair.count(None) for inner in values.values() for pair in inner.values()),
            trouble=min(troubles, key=_place, default=None),
        )

    def asked(self) -> Iterator[tuple[str, list[Values]]]:
        """Samples that ask the question, by id, with their passes in order; (None, None) was not measured.

        A sample asks it if any of its answers was measured, or if none of them could be: then it is
        not known, and taken to ask.
        """
        passes = range(self.progress.passes)
        for key in sorted(self.values):
            inner = self.values[key]
            measured = any(value is not None for pair in inner.values() for value in pair)
            if measured or len(inner) == self.progress.seen[key].bit_count():
                yield key, [inner.get(number, (None, None)) for number in passes]

    def cannot(self, suite: str, what: str, maximum_missing: float) -> str | None:
        """Why a complete suite, or one that can no longer be measured, gives no answer; None when it does."""
        progress = self.progress
        if progress.samples and progress.passes < LEAST_PASSES:
            return (
                f"could not measure: suite {suite} is asked {progress.passes} times an arm, and "
                f"run-to-run noise shows from {LEAST_PASSES} on; set suites.{suite}.passes"
            )
        if progress.complete:
            asked = list(self.asked())
            if not asked:
                return f"could not measure: no sample of suite {suite} asks for {what}"
            lost = sum(pair.count(None) for _, pairs in asked for pair in pairs)
            most = 2 * len(asked) * progress.passes
        else:
            lost, most = self.missing, 2 * progress.expected
        if lost <= maximum_missing * most:
            return None
        example = self.trouble
        said = (
            f", such as sample {example.sample_id} in pass {example.passage}: {example.why}"
            if example
            else ""
        )
        return (
            f"could not measure: {lost} of {most} answers of suite {suite} have no {what} "
            f"({maximum_missing:.1%} may lack one){said}"
        )


def scored(comparison: Comparison, question: str) -> tuple[Values | None, str | None]:
    """The arms' scores for ``question``, averaged over replicates; and why one is missing.

    (None, None) when the comparison does not ask it: both arms ended well and were given no such score.
    """
    troubled = broken(comparison)
    mine = [score for score in comparison.scores if score.question == question]
    if not mine:
        return (None, None) if troubled is None else ((None, None), troubled)
    if any(not pair.valid for pair in comparison.candidates):
        return (None, None), troubled
    found: list[float | None] = []
    why = None
    for arm in (Arm.CANDIDATE, Arm.BASELINE):
        scores = [score for score in mine if score.arm is arm]
        errors = [score.error for score in scores if score.error is not None]
        values = sorted(score.value for score in scores if score.value is not None)
        if errors or not values:
            found.append(None)
            why = why or f"{arm}: {min(errors) if errors else troubled or 'no score'}"
        else:
            found.append(mean_of(values))
    return (found[0], found[1]), why


def broken(comparison: Comparison) -> str | None:
    """Why the pairs of candidate and baseline are no two whole answers; None when they are."""
    pairs = comparison.candidates
    if not pairs:
        return "no pair of baseline and candidate"
    for pair in pairs:
        if pair.set_aside is not None:
            return f"{pair.set_aside}: {pair.set_aside_reason}"
        for arm in (pair.right, pair.left):
            if arm.outcome is not Outcome.COMPLETED:
                return f"{arm.arm} {arm.outcome}" + (f": {arm.error}" if arm.error else "")
    return None


def mean_of(values: list[float]) -> float:
    """The mean, the same for every order (``fsum`` is exact before its one rounding)."""
    return math.fsum(values) / len(values)


def _place(trouble: Trouble) -> Any:
    return trouble.sample_id, trouble.passage, trouble.why
