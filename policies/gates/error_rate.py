"""The candidate's share of failed requests: a plain cap, a test against the baseline's own share, or both.

Live: canary requests, and for the test the baseline pool's. Failed are 5xx answers, answers that the upstream
or a timeout broke off, and requests that home answered after the candidate failed (``retried``): the client
was served, the candidate was not. 4xx is the client's doing, and a client or a drain that left says nothing:
those are not counted at all. Shadow: candidate arms. Failed are those that were refused, failed, timed out or
gave an invalid answer, and a candidate that is missing where the baseline answered; pairs whose question
differed, that we aborted, or whose baseline failed are not counted.

*Cap* (``maximum``): the candidate's share over a sliding window. No test: it is asked at every request, and a
window near ``minimum_requests`` is a small sample, so it errs by chance both ways. .02 of at least 50 sent 9
of 10 canaries home within a simulated day of 6 requests a minute that failed 1 time in 400. It has no maximum
n; the newest window is always judged.

*Test* (``margin``; of live requests only): per block of time (:mod:`policies.gates.blocks`), D = baseline's
share - candidate's, through the core, one bet a block: an outage fails many requests at once and is one
observation. Assumption: given the past, a request of either arm fails with the same chance. The arms are
different tenants, each with questions of its own: a canary whose tenants ask what fails more often anywhere
fails this test on an equal candidate, so compare their shares before the canary, or give a margin that covers
it. Shadows cannot be tested so: there is a comparison only where the baseline answered, which hides its own
failures.

Windows are counts that merge (:mod:`policies.gates.window`); blocks do not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.outcomes import NOT_ITS_FAULT, ended_unix_s, failed, live_failed
from comparator.records import LiveRecord, Outcome
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import (
    Differences,
    Margins,
    answer_of,
    check_at_least,
    check_margins,
    together,
    undecided,
)
from policies.gates.blocks import Blocks, check_block_s, share_difference
from policies.gates.window import BLOCKS, Window
from policies.verdict import Answer, Verdict

_GOOD, _BAD = 0, 1
_STEPS = 1024


class ErrorRateState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="error_rate"):
    """Good and failed requests: of the candidate within the window, of both arms by block."""

    candidate: Window = Window()
    """Bins: 0 good, 1 failed."""
    last_failed_id: str | None = None
    """Capture ID of the newest failed pair (live records have none)."""
    blocks: Blocks = Blocks()
    differences: Differences = Differences()
    one_armed: int = 0
    """Closed blocks without a request of one arm: they do not bet."""


class ErrorRate(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="error_rate"
):
    """Estimand: ``traffic``. Value: the candidate's share within the window, or its excess over the
    baseline's where only that is tested. Errors are no choice of performance: they roll back at every
    level."""

    performance: ClassVar[bool] = False

    name: str = "error_rate"
    estimand: Literal["traffic"] = "traffic"
    source: Literal["live", "shadow"]
    maximum: float | None = None
    """Share of failed requests above which the gate fails, 0 to 1; not given: no cap."""
    minimum_requests: int = 50
    """Fewer in the window: inconclusive. For the cap."""
    window_s: float = 600.0
    margin: float | None = None
    """Tolerated share of failures beyond the baseline's; not given: no test."""
    promotion_margin: float | None = None
    block_s: float = 60.0
    """Longer than an outage lasts."""
    maximum_n: int = 5_000
    """Blocks; then the test stays as it is."""

    def __post_init__(self) -> None:
        if self.maximum is None and self.margin is None:
            raise ValueError("maximum or margin: give at least one, or the gate limits nothing")
        if self.maximum is not None and not 0.0 <= self.maximum < 1.0:
            raise ValueError(
                f"maximum: {self.maximum} is outside 0-1 (a share of requests; 1 could never fail)"
            )
        if self.margin is not None:
            check_margins(self.margin, self.promotion_margin, _STEPS, "a share of requests")
            if self.source == "shadow":
                raise ValueError(
                    "margin: tests live requests only, since a shadow exists only where the baseline "
                    "answered, which hides its failures; set source: live, or give maximum instead"
                )
        elif self.promotion_margin is not None:
            raise ValueError("promotion_margin: given without margin, so that nothing is tested; give both")
        check_at_least("minimum_requests", self.minimum_requests, 1, "no data is no pass")
        check_at_least("maximum_n", self.maximum_n, 10, "fewer blocks decide nothing")
        check_block_s(self.block_s)
        if not 1.0 <= self.window_s <= 604_800.0:
            raise ValueError(f"window_s: {self.window_s} is outside 1-604800 seconds")

    @property
    def spends_alpha(self) -> bool:
        """Only its test does."""
        return self.margin is not None

    @property
    def margins(self) -> Margins:
        """Both tests, where there is a margin to test."""
        assert self.margin is not None
        return Margins(
            margin=self.margin, promotion_margin=self.promotion_margin, steps=_STEPS, symmetric=False
        )

    def initial(self) -> ErrorRateState:
        """Before any evidence."""
        return ErrorRateState()

    def fold(self, state: ErrorRateState, evidence: Evidence) -> ErrorRateState:
        """Count a request that this gate's source reads; all else leaves the state alone."""
        if isinstance(evidence, LiveRecord) and self.source == "live":
            bad, unix_s = live_failed(evidence), ended_unix_s(evidence)
            if bad is None or not math.isfinite(unix_s):
                return state
            if evidence.canary:
                state = self._count(state, unix_s, bad, None)
            return self._test(state, unix_s, evidence.canary, bad)
        if not isinstance(evidence, Comparison) or self.source != "shadow":
            return state
        if not math.isfinite(evidence.unix_s):  # of no window
            return state
        for bad in _shadows_failed(evidence):
            state = self._count(state, evidence.unix_s, bad, evidence.capture_id)
        return state

    def _count(
        self, state: ErrorRateState, unix_s: float, bad: bool, capture_id: str | None
    ) -> ErrorRateState:
        if self.maximum is None:
            return state
        return msgspec.structs.replace(
            state,
            candidate=state.candidate.add(unix_s, self.window_s / BLOCKS, (_BAD if bad else _GOOD,)),
            last_failed_id=capture_id if bad and capture_id is not None else state.last_failed_id,
        )

    def _test(self, state: ErrorRateState, unix_s: float, candidate: bool, bad: bool) -> ErrorRateState:
        if self.margin is None or state.differences.n >= self.maximum_n:
            return state
        blocks, closed = state.blocks.add(unix_s, self.block_s, candidate=candidate, amounts=(int(bad), 1))
        differences, one_armed = state.differences, state.one_armed
        for sums in closed:
            difference = share_difference(sums)
            if difference is None:
                one_armed += 1
            else:
                differences = self.margins.add(differences, difference)
        return msgspec.structs.replace(state, blocks=blocks, differences=differences, one_armed=one_armed)

    def verdict(self, state: ErrorRateState, alpha: Alpha) -> Verdict:
        """Whatever was asked for: the cap, the test, or both; any fails, all must pass."""
        asked = []
        if self.maximum is not None:
            asked.append(self._of_cap(state, self.maximum))
        if self.margin is not None:
            asked.append(self._of_test(state, alpha, self.margin))
        answer = together([verdict.answer for verdict in asked])
        speakers = [verdict for verdict in asked if verdict.answer is answer]
        return msgspec.structs.replace(
            speakers[0],
            reason="; ".join(verdict.reason for verdict in speakers),
            alpha=asked[-1].alpha,
            rollback_nats=asked[-1].rollback_nats,
            promotion_nats=asked[-1].promotion_nats,
        )

    def _of_cap(self, state: ErrorRateState, maximum: float) -> Verdict:
        totals = state.candidate.totals()
        bad = totals.get(_BAD, 0)
        n = bad + totals.get(_GOOD, 0)
        rate = bad / n if n else None
        said = f"{bad} of {n} {self.source} requests of the candidate failed within {self.window_s:g} s"
        if rate is None or n < self.minimum_requests:
            answer = Answer.INCONCLUSIVE
            reason = f"{said}; {self.minimum_requests} are needed"
        elif rate > maximum:
            answer, reason = Answer.FAIL, f"{said}: {rate:.4f} is over {maximum:g}"
        else:
            answer, reason = Answer.PASS, f"{said}: {rate:.4f} is within {maximum:g}"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=rate,
            limit=maximum,
            n=n,
            reason=reason,
            deciding_id=state.last_failed_id if answer is Answer.FAIL else None,
            estimand=self.estimand,
        )

    def _of_test(self, state: ErrorRateState, alpha: Alpha, margin: float) -> Verdict:
        differences = state.differences
        excess = None if differences.mean is None else 0.0 - differences.mean
        answer = answer_of(differences.rollback_nats, differences.promotion_nats, alpha)
        reason = (
            f"the candidate's share of failed {self.source} requests is the baseline's "
            f"{'and an unknown share' if excess is None else f'{excess:+.4f}'} in {differences.n} blocks of "
            f"{self.block_s:g} s; {margin:+g} may be"
        )
        if answer is Answer.INCONCLUSIVE:
            reason += f"; {undecided(differences.n, self.maximum_n, 'blocks')}"
        if state.one_armed:
            reason += f"; {state.one_armed} blocks without one of the arms"
        if state.blocks.late:
            reason += f"; {state.blocks.late} requests came late"
        span = differences.look.span
        return Verdict(
            gate=self.name,
            answer=answer,
            value=excess,
            limit=margin,
            n=differences.n,
            reason=reason,
            alpha=alpha.rollback,
            estimand=self.estimand,
            rollback_nats=differences.rollback_nats,
            promotion_nats=differences.promotion_nats,
            interval=None if span is None else (0.0 - span[1], 0.0 - span[0]),
        )


def _shadows_failed(comparison: Comparison) -> Iterator[bool]:
    """Did the candidate fail, for each pair that says something about that."""
    for pair in comparison.candidates:
        if pair.set_aside not in NOT_ITS_FAULT and pair.right.outcome is not Outcome.ABORTED:
            yield failed(pair.right)
    if comparison.sample is None and comparison.controls and not comparison.candidates:
        yield True  # the baseline was asked twice, the candidate never answered
