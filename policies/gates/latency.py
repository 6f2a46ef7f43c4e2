"""A plain cap on a quantile of the candidate's latency, absolute and/or relative to the baseline's.

``ttft`` from live records is the first byte of *streamed* answers that went well (an unstreamed answer's
first byte is its last token); from shadow pairs it is the arms' own. ``tpot`` needs token counts, hence
shadow pairs; all arms carry the same logprob load, so that a ratio is fair where an absolute value is not
that of live traffic.

State: integer counts by block of time and bin of duration (:mod:`policies.gates.window`,
:mod:`policies.gates.histogram`): bounded, mergeable in any order, quantiles to 0.4 %. A cap, not a test: give
``minimum_requests`` that the quantile needs (p99 of 100 requests is one request).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.latency import latency_of
from comparator.pair import Pair
from comparator.records import LiveRecord, Outcome
from policies.gates.base import Alpha, Evidence
from policies.gates.error_rate import live_failed
from policies.gates.histogram import bin_of, quantile_s
from policies.gates.window import BLOCKS, Window
from policies.verdict import Answer, Verdict


class LatencyState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="latency"):
    """Times of both sides within the window, binned."""

    baseline: Window = Window()
    candidate: Window = Window()

    def merge(self, other: LatencyState) -> LatencyState:
        """Times of both, in any order."""
        return LatencyState(
            baseline=self.baseline.merge(other.baseline), candidate=self.candidate.merge(other.candidate)
        )


class Latency(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="latency"
):
    """Estimand: ``traffic``, requests of the last ``window_s`` on either pool."""

    spends_alpha: ClassVar[bool] = False
    performance: ClassVar[bool] = True

    name: str = "latency"
    estimand: Literal["traffic"] = "traffic"
    source: Literal["live", "shadow"]
    metric: Literal["ttft", "tpot"]
    quantile: float = 0.95
    maximum_s: float | None = None
    maximum_ratio: float | None = None
    """Candidate's quantile over the baseline's."""
    minimum_requests: int = 100
    """Fewer in the window, on the candidate or (for a ratio) on the baseline: inconclusive."""
    window_s: float = 600.0

    def __post_init__(self) -> None:
        if self.maximum_s is None and self.maximum_ratio is None:
            raise ValueError("maximum_s or maximum_ratio: give at least one, or the gate limits nothing")
        for field in ("maximum_s", "maximum_ratio"):
            value = getattr(self, field)
            if value is not None and not 0.0 < value < float("inf"):
                raise ValueError(f"{field}: {value} is not above 0")
        if not 0.0 < self.quantile < 1.0:
            raise ValueError(f"quantile: {self.quantile} is outside 0-1, both excluded")
        if self.source == "live" and self.metric == "tpot":
            raise ValueError("metric: tpot needs token counts, which live records lack; set source: shadow")
        if self.minimum_requests < 1:
            raise ValueError(f"minimum_requests: {self.minimum_requests} is under 1; no data is no pass")
        if not 1.0 <= self.window_s <= 604_800.0:
            raise ValueError(f"window_s: {self.window_s} is outside 1-604800 seconds")

    def initial(self) -> LatencyState:
        """Before any evidence."""
        return LatencyState()

    def fold(self, state: LatencyState, evidence: Evidence) -> LatencyState:
        """Time a request, or a pair, that this gate's source reads; all else leaves the state alone."""
        if isinstance(evidence, LiveRecord):
            if self.source != "live" or not evidence.streamed or live_failed(evidence) is not False:
                return state
            return self._add(state, evidence.canary, evidence.started_unix_s, evidence.first_byte_s)
        if isinstance(evidence, Comparison) and self.source == "shadow":
            for pair in evidence.candidates:
                if pair.valid:
                    state = self._add_pair(state, pair)
        return state

    def _add_pair(self, state: LatencyState, pair: Pair) -> LatencyState:
        # Both or neither: a pair is one question asked of two pools, and its ratio must stay one.
        values = []
        for exchange in (pair.left, pair.right):
            latency = latency_of(exchange)
            value_s = latency.ttft_s if self.metric == "ttft" else latency.tpot_s
            # A token-only arm may be cut after a fork, which censors its timing: left out whole.
            if exchange.token_only or exchange.outcome is not Outcome.COMPLETED or value_s is None:
                return state
            values.append((exchange.timing.started_unix_s, value_s))
        for candidate, (unix_s, value_s) in zip((False, True), values, strict=True):
            state = self._add(state, candidate, unix_s, value_s)
        return state

    def _add(self, state: LatencyState, candidate: bool, unix_s: float, value_s: float) -> LatencyState:
        if not value_s >= 0.0:  # also NaN: no byte came
            return state
        block_s, bins = self.window_s / BLOCKS, (bin_of(value_s),)
        if candidate:
            return msgspec.structs.replace(state, candidate=state.candidate.add(unix_s, block_s, bins))
        return msgspec.structs.replace(state, baseline=state.baseline.add(unix_s, block_s, bins))

    def verdict(self, state: LatencyState, alpha: Alpha) -> Verdict:
        """Candidate's quantile within the window against the baseline's; inconclusive under the minimum."""
        candidate, baseline = state.candidate.totals(), state.baseline.totals()
        n, n_baseline = sum(candidate.values()), sum(baseline.values())
        mine, other = quantile_s(candidate, self.quantile), quantile_s(baseline, self.quantile)
        what = f"{self.source} {self.metric} p{self.quantile * 100:g}"
        if mine is None or n < self.minimum_requests:
            return self._verdict(
                Answer.INCONCLUSIVE,
                mine,
                n,
                f"{what}: {n} requests on the candidate; {self.minimum_requests} are needed",
            )
        if self.maximum_s is not None and mine > self.maximum_s:
            return self._verdict(
                Answer.FAIL, mine, n, f"{what} of the candidate is {mine:.4g} s, over {self.maximum_s:g} s"
            )
        if self.maximum_ratio is not None:
            if other is None or n_baseline < self.minimum_requests:
                return self._verdict(
                    Answer.INCONCLUSIVE,
                    mine,
                    n,
                    f"{what}: {n_baseline} requests on the baseline; {self.minimum_requests} are needed",
                )
            ratio = mine / other
            if ratio > self.maximum_ratio:
                return self._verdict(
                    Answer.FAIL,
                    ratio,
                    n,
                    f"{what} of the candidate is {mine:.4g} s, {ratio:.3f} x the baseline's {other:.4g} s, "
                    f"over {self.maximum_ratio:g} x",
                    relative=True,
                )
        return self._verdict(
            Answer.PASS, mine, n, f"{what} of the candidate is {mine:.4g} s, within its limits"
        )

    def _verdict(
        self, answer: Answer, value: float | None, n: int, reason: str, *, relative: bool = False
    ) -> Verdict:
        limit = self.maximum_ratio if relative else self.maximum_s
        return Verdict(gate=self.name, answer=answer, value=value, limit=limit, n=n, reason=reason)
