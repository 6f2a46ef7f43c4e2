"""Refusals: the suite's rate of refused answers where the baseline's own runs put it.

Estimand ``suite``. What a refusal is, a rule set says (:mod:`policies.scoring.refusal`), the same for both
arms. Interval: :mod:`policies.gates.predicted`; outside holds the step. Rollback: by e-value over the
samples' differences of their shares of refused passes, two-sided, beyond ``margin``: answering what the old
environment refused is as much a change as the reverse.
"""

from __future__ import annotations

import operator
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.sequential import TwoSidedTest
from policies.gates.base import Alpha, Evidence
from policies.gates.passes import Passes, scored
from policies.gates.predicted import History
from policies.gates.steady import Steady, check_steady
from policies.verdict import Verdict


class RefusalState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="refusal"):
    """Scores of ``refusal`` by sample and pass: 1 refused, 0 not."""

    passes: Passes = Passes()

    def merge(self, other: RefusalState) -> RefusalState:
        """What both have seen: shards of one stage, in any order; ValueError for different ones."""
        return RefusalState(passes=self.passes.merge(other.passes))


class Refusal(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="refusal"
):
    """Limits; see the module."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "refusal"
    estimand: Literal["suite"] = "suite"
    suite: str = "starter"
    """Of the policy's ``suites``."""
    coverage: float = 0.95
    """Of the interval around the baseline's runs."""
    margin: float = 0.01
    """A rate that differs by at most this share is no cause to roll back."""
    history: History | None = None
    """Refusal rate of earlier runs; without it, the baseline's own passes of the stage."""
    maximum_missing: float = 0.01
    """Share of the answers that may have no score. More: could not measure."""

    def __post_init__(self) -> None:
        check_steady(self.margin, self.coverage, self.maximum_missing)
        if self.history is not None and self.history.mean > 1.0:
            raise ValueError(f"history.mean: {self.history.mean:g} is no rate; give a share from 0 to 1")

    @property
    def tests(self) -> tuple[TwoSidedTest, ...]:
        """The rollback's."""
        return (self._steady().test,)

    def _steady(self) -> Steady:
        return Steady(
            gate=self.name,
            what="refusal rate",
            unit="",
            suite=self.suite,
            margin=self.margin,
            coverage=self.coverage,
            history=self.history,
            maximum_missing=self.maximum_missing,
            span=1.0,
            difference=operator.sub,
        )

    def initial(self) -> RefusalState:
        """Before any evidence."""
        return RefusalState()

    def fold(self, state: RefusalState, evidence: Evidence) -> RefusalState:
        """Take a comparison of this gate's suite; leave all else."""
        if not isinstance(evidence, Comparison):
            return state
        if evidence.sample is None or evidence.sample.suite != self.suite:
            return state
        values, why = scored(evidence, "refusal")
        passes = state.passes.add(evidence, values, why)
        return state if passes is state.passes else RefusalState(passes=passes)

    def verdict(self, state: RefusalState, alpha: Alpha) -> Verdict:
        """Judged once a stage, when the suite is complete."""
        return self._steady().verdict(state.passes, alpha)
