"""Structured output: data of the shape that was asked for, not less often than on the baseline.

"Not lower" cannot be proved, only "not lower by more than ...": so the two tests have margins of their own.
Rollback is held to ``rollback_margin``, 0: any drop that is proved. Promotion is held to ``margin``, two in a
thousand: what must be ruled out before a pass. Otherwise as :mod:`policies.gates.accuracy`, with the scores
of the question ``structured``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.sequential import MeanTest
from policies.gates.base import Alpha, Evidence
from policies.gates.outcome import OutcomeState, Question, check_shares
from policies.verdict import Verdict


class StructuredOutputState(
    OutcomeState, frozen=True, kw_only=True, tag_field="kind", tag="structured_output"
):
    """Scores of ``structured``."""


class StructuredOutput(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="structured_output",
):
    """Limits; see the module."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "structured_output"
    estimand: Literal["suite", "traffic"] = "suite"
    suite: str = "starter"
    """Of the policy's ``suites``."""
    rollback_margin: float = 0.0
    """A proved drop of more than this share fails."""
    margin: float = 0.002
    """A drop of this share must be ruled out to pass."""
    maximum_missing: float = 0.01
    """Share of a suite's answers that may lack a score, each counted at its worst; over it: an error."""
    maximum_n: int = 100_000
    """Live requests after which an undecided gate stays undecided. A suite ends by itself."""

    def __post_init__(self) -> None:
        check_shares(
            rollback_margin=self.rollback_margin, margin=self.margin, maximum_missing=self.maximum_missing
        )
        if self.margin == 0.0:
            raise ValueError(
                "margin: 0 can never pass, since equal arms cannot be proved equal; 0.002 is usual"
            )
        if self.rollback_margin > self.margin:
            raise ValueError(
                f"rollback_margin: {self.rollback_margin:g} is over margin: {self.margin:g}; "
                "a drop that passes could not be rolled back any more"
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
            question="structured",
            what="structured-output success",
            estimand=self.estimand,
            suite=self.suite,
            rollback_margin=self.rollback_margin,
            promotion_margin=self.margin,
            maximum_missing=self.maximum_missing,
            maximum_n=self.maximum_n,
        )

    def initial(self) -> StructuredOutputState:
        """Before any evidence."""
        return StructuredOutputState()

    def fold(self, state: StructuredOutputState, evidence: Evidence) -> StructuredOutputState:
        """Take a comparison of this gate's suite, or a live one that was scored; leave all else."""
        if not isinstance(evidence, Comparison):
            return state
        return self._question().fold(state, evidence)

    def verdict(self, state: StructuredOutputState, alpha: Alpha) -> Verdict:
        """Judged once for a suite, at any time for traffic."""
        return self._question().verdict(state, alpha)
