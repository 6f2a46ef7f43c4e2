"""Do copies and answers arrive in the shares that they should? A mismatch *holds*, it never rolls back.

It says that requests are lost or made in a way that the comparison does not know of, so that no other gate's
numbers are to be trusted; it does not say whose fault that is. So a person looks.

Two questions, half of the gate's share of alpha each:

1. *Copied*: of live answers that were streamed (these are surely completions) and that a draw was made for,
   ``expected_percent`` should have been handed to the shadow. While a rollout makes its checks nothing is
   drawn, which is no loss. The draw is by hash of the request ID, so that nothing but loss can move it.
   Multinomial e-process (:mod:`comparator.sequential.ratio`).
2. *Answered*: of live comparisons, in all of which the baseline answered, at most a share ``maximum_missing``
   may lack the candidate's answer (:func:`comparator.sequential.exceedance`); beyond it, what is left to
   compare is a selection. A timeout is no answer; an arm that we aborted says nothing. It bets by comparison,
   so one outage of the candidate may hold, which is meant: no evidence came of it. There is no ratio to
   the baseline's own missing answers: where it gives none, there is no comparison.

Promotion: the share of copies is shown to lie within ``tolerance`` of itself on both sides (two one-sided
Bernoulli tests, each at the whole alpha, for both must reject), while nothing is held.

``expected_percent`` repeats the rollout's ``shadow.percent``. Where several rollouts copy the same traffic a
record does not tell for whom it was, and while one of them makes its checks the share is another one: such a
configuration is refused.
"""

from __future__ import annotations

import functools
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.outcomes import NOT_ITS_FAULT, failed, live_failed
from comparator.records import LiveRecord, Outcome
from comparator.sequential import (
    BernoulliTest,
    RatioState,
    SampleRatioTest,
    Tally,
    exceedance,
    rejects,
    shortfall,
)
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import Look, check_at_least, share_span, undecided
from policies.verdict import Answer, Verdict


class SampleRatioState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="sample_ratio"):
    """What was copied, and which arm answered alone."""

    copied: RatioState = RatioState(counts=(0, 0))
    """Live answers that were copied, and that were not."""
    missing: Tally = Tally()
    """Comparisons without an answer of the candidate (ones), and with one."""
    look: Look = Look()
    """Of the share of copies."""

    def merge(self, other: SampleRatioState) -> SampleRatioState:
        """Counts of both, exactly; the interval is of whichever had more."""
        return SampleRatioState(
            copied=self.copied.merge(other.copied),
            missing=self.missing.merge(other.missing),
            look=self.look if self.look.n >= other.look.n else other.look,
        )


class SampleRatio(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="sample_ratio",
):
    """Estimand: ``traffic``. Value: the share of live answers that were copied."""

    spends_alpha: ClassVar[bool] = True
    performance: ClassVar[bool] = False

    name: str = "sample_ratio"
    estimand: Literal["traffic"] = "traffic"
    expected_percent: float
    """Of live requests, copied: the rollout's ``shadow.percent``."""
    tenants: tuple[str, ...] = ()
    """Whose answers are counted; empty: everybody's."""
    maximum_missing: float = 0.05
    """Tolerated share of comparisons without an answer of the candidate."""
    tolerance: float = 0.1
    """Of the expected share, relative: .1 passes 9 to 11 percent where 10 is expected."""
    maximum_n: int = 1_000_000
    """Live answers and comparisons, each; then the gate stays as it is."""

    def __post_init__(self) -> None:
        if not 0.0 < self.expected_percent < 100.0:
            raise ValueError(
                f"expected_percent: {self.expected_percent} is outside 0-100, both excluded (with all or "
                "nothing copied there is no ratio; leave the gate out)"
            )
        if not 0.01 <= self.tolerance <= 1.0 or not self.expected_percent * (1 + self.tolerance) < 100.0:
            most = min(1.0, 100.0 / self.expected_percent - 1.0)
            raise ValueError(
                f"tolerance: {self.tolerance} is outside 0.01-{most:.3g} (a share of expected_percent)"
            )
        if not 0.0 < self.maximum_missing < 1.0:
            raise ValueError(f"maximum_missing: {self.maximum_missing} is outside 0-1, both excluded")
        check_at_least("maximum_n", self.maximum_n, 100, "fewer answers decide nothing")

    def initial(self) -> SampleRatioState:
        """Before any evidence."""
        return SampleRatioState()

    def fold(self, state: SampleRatioState, evidence: Evidence) -> SampleRatioState:
        """Count a live answer, or a live comparison; all else leaves the state alone."""
        if isinstance(evidence, LiveRecord):
            return self._live(state, evidence)
        if not isinstance(evidence, Comparison) or evidence.sample is not None:
            return state
        missing = _missing(evidence)
        if missing is None or state.missing.n >= self.maximum_n:
            return state
        return msgspec.structs.replace(state, missing=state.missing.add(missing))

    def _live(self, state: SampleRatioState, record: LiveRecord) -> SampleRatioState:
        if (
            not record.drawable
            or not record.streamed
            or live_failed(record) is not False
            or state.copied.n >= self.maximum_n
        ):
            return state
        if self.tenants and record.tenant not in self.tenants:
            return state
        copied, look = state.copied.add(0 if record.sampled else 1), state.look
        if look.due(copied.n):
            look = Look(n=copied.n, span=share_span(*copied.counts))
        return msgspec.structs.replace(state, copied=copied, look=look)

    def verdict(self, state: SampleRatioState, alpha: Alpha) -> Verdict:
        """Hold on a mismatch of either kind; pass when the share of copies is shown to be near enough."""
        copied, expected = state.copied, 0.01 * self.expected_percent
        test, over, under, missing_test = _tests(expected, self.tolerance, self.maximum_missing)
        copied_nats = test.log_e(copied)
        missing_nats = missing_test.log_e(state.missing)
        tally = Tally(ones=copied.counts[0], zeros=copied.counts[1])
        promotion_nats = min(over.log_e(tally), under.log_e(tally))
        half = 0.5 * alpha.rollback
        share = copied.counts[0] / copied.n if copied.n else None
        counted = f"{copied.counts[0]} of {copied.n} live answers were copied, "
        counted += f"{self.expected_percent:g} % are expected"
        answer, hold, reason, nats = Answer.INCONCLUSIVE, False, counted, copied_nats
        if rejects(copied_nats, half):
            answer, hold = Answer.FAIL, True
            reason += "; copies are lost or made on the way, so no comparison is to be trusted"
        elif rejects(missing_nats, half):
            answer, hold, nats = Answer.FAIL, True, missing_nats
            missing = state.missing
            reason = (
                f"the candidate's answer is missing in {missing.ones} of {missing.n} comparisons, a share of "
                f"{self.maximum_missing:g} may be; what is left to compare is a selection"
            )
        elif rejects(promotion_nats, alpha.promotion):
            answer = Answer.PASS
        else:
            reason += f"; {undecided(copied.n, self.maximum_n, 'answers')}"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=share,
            limit=expected,
            n=copied.n,
            reason=reason,
            alpha=half,
            estimand=self.estimand,
            rollback_nats=nats,
            promotion_nats=promotion_nats,
            interval=state.look.span,
            hold=hold,
        )


def _missing(comparison: Comparison) -> bool | None:
    """Is the candidate's answer missing? None: the comparison says nothing about that."""
    if not comparison.candidates:
        return True if comparison.controls else None
    pair = comparison.candidates[0]
    ends = (pair.left.outcome, pair.right.outcome)
    if pair.set_aside in NOT_ITS_FAULT or Outcome.ABORTED in ends:
        return None
    return failed(pair.right)


@functools.lru_cache(maxsize=64)
def _tests(
    expected: float, tolerance: float, maximum_missing: float
) -> tuple[SampleRatioTest, BernoulliTest, BernoulliTest, BernoulliTest]:
    """Copies as expected, copies too few to pass, copies too many to pass, answers missing."""
    return (
        SampleRatioTest(shares=(expected, 1.0 - expected)),
        exceedance(expected * (1.0 - tolerance)),
        shortfall(expected * (1.0 + tolerance)),
        exceedance(maximum_missing),
    )
