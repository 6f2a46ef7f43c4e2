"""What the gates on durations share: a test by blocks of time, and plain caps. See ``ttft`` and ``tpot``.

*Test* (with ``margin``): tau is ``threshold_s``, or the baseline's ``quantile`` of its first ``freeze_n``
values, frozen then; what it was frozen from does not bet. Per block of time (:mod:`policies.gates.blocks`)

    D = share of the baseline's values over tau - share of the candidate's

through the core, one bet a block: requests of one slow minute are one observation. Assumption: given the
past, the arms' values in a block are exchangeable. The two arms of one question are so while their pools are
equally full: in shadow the candidate bears the copies alone, so that a pass is one at that load, and says
nothing of all the traffic. Live canary tenants ask other questions than the rest, and a difference of their
prompts is a difference here.

*Caps* (``maximum_s``, ``maximum_ratio``): the candidate's quantile within ``window_s``, absolute or relative
to the baseline's. No test: at small n they err by chance both ways, so give ``minimum_requests`` that the
quantile needs (p99 of 100 requests is one request). They have no maximum n: the newest window is always
judged.

Whichever are given must all pass, and any may fail. Values are kept in bins of 0.8 %
(:mod:`policies.gates.histogram`); the interval is the confidence sequence of the candidate's quantile over
the whole rollout, in bins; it takes requests for alike given the past, so while load drifts it is too narrow.
Block states do not merge.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, TypeVar

import msgspec

from comparator.sequential import Counts, quantile_interval
from policies.gates.base import Alpha
from policies.gates.betting import (
    INTERVAL_ALPHA,
    Differences,
    Look,
    Margins,
    answer_of,
    check_at_least,
    check_margins,
    together,
    undecided,
)
from policies.gates.blocks import Blocks, check_block_s, share_difference
from policies.gates.histogram import bin_of, middle_s, quantile_s
from policies.gates.window import BLOCKS, Window
from policies.verdict import Answer, Verdict

_STEPS = 1024


class DurationState(msgspec.Struct, frozen=True, kw_only=True):
    """Both arms' values: within the window for caps, by block for the test."""

    baseline: Window = Window()
    candidate: Window = Window()
    freezing: dict[int, int] = {}
    """The baseline's first values by bin, until tau is frozen."""
    threshold_s: float | None = None
    """Tau, once frozen."""
    blocks: Blocks = Blocks()
    differences: Differences = Differences()
    one_armed: int = 0
    """Closed blocks without a value of one arm: they do not bet."""
    values: dict[int, int] = {}
    """The candidate's values of the whole rollout by bin."""
    look: Look = Look()
    """Of the candidate's quantile, seconds."""
    unmeasured: int = 0
    """Answers that went well and have no time all the same."""


S = TypeVar("S", bound=DurationState)


class DurationGate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a gate on one kind of duration; subclasses say what they read."""

    performance: ClassVar[bool] = True
    metric: ClassVar[str]

    estimand: Literal["traffic"] = "traffic"
    quantile: float = 0.95
    margin: float | None = None
    """Tolerated share of values over tau beyond the baseline's; not given: no test."""
    promotion_margin: float | None = None
    threshold_s: float | None = None
    """Tau; not given: frozen from the baseline's first values."""
    freeze_n: int = 200
    block_s: float = 60.0
    """Longer than an outage, or a load peak, lasts."""
    maximum_n: int = 5_000
    """Blocks; then the test stays as it is."""
    maximum_s: float | None = None
    maximum_ratio: float | None = None
    """Candidate's quantile over the baseline's."""
    minimum_requests: int = 100
    """Fewer in the window, on the candidate or (for a ratio) on the baseline: inconclusive. For caps."""
    window_s: float = 600.0

    def __post_init__(self) -> None:
        if self.margin is None and not self._caps:
            raise ValueError(
                "margin or maximum_s: give at least one (or maximum_ratio), or the gate limits nothing"
            )
        if self.margin is not None:
            check_margins(self.margin, self.promotion_margin, _STEPS, "a share over the threshold")
        elif self.promotion_margin is not None or self.threshold_s is not None:
            field = "promotion_margin" if self.promotion_margin is not None else "threshold_s"
            raise ValueError(f"{field}: given without margin, so that nothing is tested; give a margin too")
        for field in ("maximum_s", "maximum_ratio", "threshold_s"):
            value = getattr(self, field)
            if value is not None and not 0.0 < value < math.inf:
                raise ValueError(f"{field}: {value} is not above 0")
        if not 0.0 < self.quantile < 1.0:
            raise ValueError(f"quantile: {self.quantile} is outside 0-1, both excluded")
        check_at_least("minimum_requests", self.minimum_requests, 1, "no data is no pass")
        fewest = math.ceil(1.0 / min(self.quantile, 1.0 - self.quantile))
        check_at_least(
            "freeze_n", self.freeze_n, fewest, f"the {self.quantile:g} quantile needs that many values"
        )
        check_at_least("maximum_n", self.maximum_n, 10, "fewer blocks decide nothing")
        check_block_s(self.block_s)
        if not 1.0 <= self.window_s <= 604_800.0:
            raise ValueError(f"window_s: {self.window_s} is outside 1-604800 seconds")

    @property
    def spends_alpha(self) -> bool:
        """Only its test does."""
        return self.margin is not None

    @property
    def _caps(self) -> bool:
        return self.maximum_s is not None or self.maximum_ratio is not None

    @property
    def margins(self) -> Margins:
        """Both tests, where there is a margin to test."""
        assert self.margin is not None
        return Margins(
            margin=self.margin, promotion_margin=self.promotion_margin, steps=_STEPS, symmetric=False
        )

    def timed(self, state: S, candidate: bool, ended_unix_s: float, value_s: float) -> S:
        """``state`` with one more value of either arm; one that is no duration is counted as not measured."""
        if not (0.0 <= value_s < math.inf and math.isfinite(ended_unix_s)):
            return msgspec.structs.replace(state, unmeasured=state.unmeasured + 1)
        index = bin_of(value_s)
        if self._caps:
            window = state.candidate if candidate else state.baseline
            window = window.add(ended_unix_s, self.window_s / BLOCKS, (index,))
            field = "candidate" if candidate else "baseline"
            state = msgspec.structs.replace(state, **{field: window})
        if candidate:
            state = self._look(state, index)
        if self.margin is not None and state.differences.n < self.maximum_n:
            state = self._test(state, candidate, ended_unix_s, value_s)
        return state

    def _look(self, state: S, index: int) -> S:
        values = {**state.values, index: state.values.get(index, 0) + 1}
        n, look = sum(values.values()), state.look
        if look.due(n):
            order = sorted(values)
            counts = Counts(
                values=tuple(middle_s(number) for number in order),
                counts=tuple(values[number] for number in order),
            )
            found = quantile_interval(counts, self.quantile, INTERVAL_ALPHA)
            look = Look(n=n, span=None)
            if found.low is not None and found.high is not None:
                look = Look(n=n, span=(found.low, found.high))
        return msgspec.structs.replace(state, values=values, look=look)

    def _test(self, state: S, candidate: bool, ended_unix_s: float, value_s: float) -> S:
        threshold_s = self.threshold_s or state.threshold_s
        if threshold_s is None:
            if candidate:
                return state
            index = bin_of(value_s)
            freezing = {**state.freezing, index: state.freezing.get(index, 0) + 1}
            if sum(freezing.values()) < self.freeze_n:
                return msgspec.structs.replace(state, freezing=freezing)
            frozen = quantile_s(freezing, self.quantile)
            return msgspec.structs.replace(state, freezing={}, threshold_s=frozen)
        amounts = (int(value_s > threshold_s), 1)
        blocks, closed = state.blocks.add(ended_unix_s, self.block_s, candidate=candidate, amounts=amounts)
        differences, one_armed = state.differences, state.one_armed
        for sums in closed:
            difference = share_difference(sums)
            if difference is None:
                one_armed += 1
            else:
                differences = self.margins.add(differences, difference)
        return msgspec.structs.replace(state, blocks=blocks, differences=differences, one_armed=one_armed)

    def judged(self, state: DurationState, alpha: Alpha, name: str, what: str) -> Verdict:
        """All questions together: the first that fails speaks, else whatever is still open, else all."""
        asked = []
        if self.margin is not None:
            asked.append(self._of_test(state, alpha, what))
        if self._caps:
            asked.append(self._of_caps(state, what))
        answer = together([verdict.answer for verdict in asked])
        speakers = [verdict for verdict in asked if verdict.answer is answer]
        reason = "; ".join(verdict.reason for verdict in speakers)
        if state.unmeasured:
            reason += f"; {state.unmeasured} answers without a time"
        test = asked[0] if self.margin is not None else None
        return msgspec.structs.replace(
            speakers[0],
            gate=name,
            estimand=self.estimand,
            reason=reason,
            interval=state.look.span,
            alpha=alpha.rollback if test is not None else None,
            rollback_nats=None if test is None else test.rollback_nats,
            promotion_nats=None if test is None else test.promotion_nats,
        )

    def _of_test(self, state: DurationState, alpha: Alpha, what: str) -> Verdict:
        differences = state.differences
        threshold_s = self.threshold_s or state.threshold_s
        answer = answer_of(differences.rollback_nats, differences.promotion_nats, alpha)
        if threshold_s is None:
            reason = (
                f"{what}: {sum(state.freezing.values())} of {self.freeze_n} baseline values for a threshold"
            )
        else:
            excess = None if differences.mean is None else 0.0 - differences.mean
            reason = (
                f"{what}: the candidate's share over {threshold_s:.4g} s is the baseline's "
                f"{'and an unknown share' if excess is None else f'{excess:+.4f}'} in {differences.n} blocks "
                f"of {self.block_s:g} s; {self.margin:+g} may be"
            )
            if answer is Answer.INCONCLUSIVE:
                reason += f"; {undecided(differences.n, self.maximum_n, 'blocks')}"
            if state.one_armed:
                reason += f"; {state.one_armed} blocks without one of the arms"
            if state.blocks.late:
                reason += f"; {state.blocks.late} values came late"
        return Verdict(
            gate="",
            answer=answer,
            value=quantile_s(state.values, self.quantile),
            limit=threshold_s,
            n=differences.n,
            reason=reason,
            rollback_nats=differences.rollback_nats,
            promotion_nats=differences.promotion_nats,
        )

    def _of_caps(self, state: DurationState, what: str) -> Verdict:
        candidate, baseline = state.candidate.totals(), state.baseline.totals()
        n, n_baseline = sum(candidate.values()), sum(baseline.values())
        mine, other = quantile_s(candidate, self.quantile), quantile_s(baseline, self.quantile)
        verdict = Verdict(
            gate="", answer=Answer.INCONCLUSIVE, value=mine, limit=self.maximum_s, n=n, reason=""
        )

        def said(answer: Answer, reason: str) -> Verdict:
            return msgspec.structs.replace(verdict, answer=answer, reason=f"{what} {reason}")

        if mine is None or n < self.minimum_requests:
            return said(
                Answer.INCONCLUSIVE, f"of the candidate: {n} requests; {self.minimum_requests} are needed"
            )
        if self.maximum_s is not None and mine > self.maximum_s:
            return said(Answer.FAIL, f"of the candidate is {mine:.4g} s, over {self.maximum_s:g} s")
        if self.maximum_ratio is not None:
            if other is None or n_baseline < self.minimum_requests:
                return said(
                    Answer.INCONCLUSIVE,
                    f"of the baseline: {n_baseline} requests; {self.minimum_requests} are needed",
                )
            ratio = mine / other
            if ratio > self.maximum_ratio:
                failed = said(
                    Answer.FAIL,
                    f"of the candidate is {mine:.4g} s, {ratio:.3f} x the baseline's {other:.4g} s, "
                    f"over {self.maximum_ratio:g} x",
                )
                return msgspec.structs.replace(failed, value=ratio, limit=self.maximum_ratio)
        return said(Answer.PASS, f"of the candidate is {mine:.4g} s, within its limits")
