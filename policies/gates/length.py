"""Output length: the suite's mean number of output tokens where the baseline's own runs put it.

Estimand ``suite``. Interval: :mod:`policies.gates.predicted`; outside holds the step. Rollback: by e-value
over the samples' relative differences (c - b)/max(c, b) of their mean lengths, in [-1, 1], two-sided,
beyond ``margin``. Lengths are those of whole answers, ended by the model or by its limit; an arm that
failed has none.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.sequential import TwoSidedTest
from policies.gates.base import Alpha, Evidence
from policies.gates.passes import Passes, Values, broken, mean_of
from policies.gates.predicted import History
from policies.gates.steady import Steady, check_steady
from policies.verdict import Verdict


class LengthState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="length"):
    """Output tokens by sample and pass."""

    passes: Passes = Passes()

    def merge(self, other: LengthState) -> LengthState:
        """What both have seen: shards of one stage, in any order; ValueError for different ones."""
        return LengthState(passes=self.passes.merge(other.passes))


class Length(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="length"
):
    """Limits; see the module."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "length"
    estimand: Literal["suite"] = "suite"
    suite: str = "starter"
    """Of the policy's ``suites``."""
    coverage: float = 0.95
    """Of the interval around the baseline's runs."""
    margin: float = 0.05
    """Samples that are on average this much longer or shorter, as a share, are no cause to roll back."""
    history: History | None = None
    """Mean tokens of earlier runs; without it, the baseline's own passes of the stage."""
    maximum_missing: float = 0.01
    """Share of the answers that may have no length. More: could not measure."""

    def __post_init__(self) -> None:
        check_steady(self.margin, self.coverage, self.maximum_missing)

    @property
    def tests(self) -> tuple[TwoSidedTest, ...]:
        """The rollback's."""
        return (self._steady().test,)

    def _steady(self) -> Steady:
        return Steady(
            gate=self.name,
            what="mean length",
            unit=" tokens",
            suite=self.suite,
            margin=self.margin,
            coverage=self.coverage,
            history=self.history,
            maximum_missing=self.maximum_missing,
            span=None,
            difference=_relative,
        )

    def initial(self) -> LengthState:
        """Before any evidence."""
        return LengthState()

    def fold(self, state: LengthState, evidence: Evidence) -> LengthState:
        """Take a comparison of this gate's suite; leave all else."""
        if not isinstance(evidence, Comparison):
            return state
        if evidence.sample is None or evidence.sample.suite != self.suite:
            return state
        why = broken(evidence)
        passes = state.passes.add(evidence, (None, None) if why else _lengths(evidence), why)
        return state if passes is state.passes else LengthState(passes=passes)

    def verdict(self, state: LengthState, alpha: Alpha) -> Verdict:
        """Judged once a stage, when the suite is complete."""
        return self._steady().verdict(state.passes, alpha)


def _lengths(comparison: Comparison) -> Values:
    pairs = comparison.candidates
    return (
        mean_of([float(pair.right.timing.tokens) for pair in pairs]),
        mean_of([float(pair.left.timing.tokens) for pair in pairs]),
    )


def _relative(mine: float, base: float) -> float:
    larger = max(mine, base)
    return (mine - base) / larger if larger else 0.0
