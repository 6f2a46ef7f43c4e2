"""Accuracy: right answers of the candidate, at most ``margin`` fewer than the baseline's.

Estimand ``suite`` (the default): the user's fixed evaluation set, or the samples of the starter suite that
have an ``answer``. Its mean difference is estimated with run-to-run noise as the only noise, and judged once
a stage, when every sample has been seen in every pass: fail when it is proved to be below -margin at the
gate's share of alpha, pass when it is proved to be above at the rollout's. Formula and assumptions:
:mod:`policies.gates.repeated`.

Estimand ``traffic``: live requests whose answers somebody scored, one bet a comparison, through
:func:`comparator.sequential.promotion` and :func:`comparator.sequential.rollback`. Half a point needs
thousands of them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.sequential import MeanTest
from policies.gates.base import Alpha, Evidence
from policies.gates.outcome import OutcomeState, Question, check_shares
from policies.verdict import Verdict


class AccuracyState(OutcomeState, frozen=True, kw_only=True, tag_field="kind", tag="accuracy"):
    """Scores of ``answer``."""


class Accuracy(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="accuracy"
):
    """Limits; see the module."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "accuracy"
    estimand: Literal["suite", "traffic"] = "suite"
    suite: str = "starter"
    """Of the policy's ``suites``."""
    margin: float = 0.005
    """As a share: half a point. The candidate may be lower by this much."""
    maximum_missing: float = 0.01
    """Share of a suite's answers that may lack a score, each counted at its worst; over it: an error."""
    maximum_n: int = 100_000
    """Live requests after which an undecided gate stays undecided. A suite ends by itself."""

    def __post_init__(self) -> None:
        check_shares(margin=self.margin, maximum_missing=self.maximum_missing)
        if self.margin == 0.0:
            raise ValueError(
                "margin: 0 can never pass, since equal arms cannot be proved equal; half a point is 0.005"
            )
        if self.maximum_n < 1:
            raise ValueError(f"maximum_n: {self.maximum_n} is under 1; no data is no pass")

    @property
    def tests(self) -> tuple[MeanTest, ...]:
        """Promotion and rollback of the estimand ``traffic``; none for ``suite``."""
        return self._question().tests if self.estimand == "traffic" else ()

    def _question(self) -> Question:
        return Question(
            gate=self.name,
            question="answer",
            what="accuracy",
            estimand=self.estimand,
            suite=self.suite,
            rollback_margin=self.margin,
            promotion_margin=self.margin,
            maximum_missing=self.maximum_missing,
            maximum_n=self.maximum_n,
        )

    def initial(self) -> AccuracyState:
        """Before any evidence."""
        return AccuracyState()

    def fold(self, state: AccuracyState, evidence: Evidence) -> AccuracyState:
        """Take a comparison of this gate's suite, or a live one that was scored; leave all else."""
        if not isinstance(evidence, Comparison):
            return state
        return self._question().fold(state, evidence)

    def verdict(self, state: AccuracyState, alpha: Alpha) -> Verdict:
        """Judged once for a suite, at any time for traffic."""
        return self._question().verdict(state, alpha)
