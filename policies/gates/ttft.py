"""Time to first token of the candidate against the baseline's: :mod:`policies.gates.durations`.

``live``: the first byte of *streamed* answers that went well (an unstreamed answer's first byte is its last
token), as clients saw it. ``shadow``: the arms of comparisons that ran without logprobs, as live traffic
does; before a canary there is nothing else, and both arms were asked the same.
"""

from __future__ import annotations

from typing import Literal

from comparator.comparison import Comparison
from comparator.outcomes import ended_unix_s, live_failed
from comparator.records import LiveRecord
from policies.gates.base import Alpha, Evidence
from policies.gates.durations import DurationGate, DurationState
from policies.gates.timing import timed_pairs
from policies.verdict import Verdict


class TtftState(DurationState, frozen=True, kw_only=True, tag_field="kind", tag="ttft"):
    """See :class:`DurationState`."""


class Ttft(DurationGate, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="ttft"):
    """Estimand: ``traffic``. Value: the candidate's quantile, seconds."""

    name: str = "ttft"
    source: Literal["live", "shadow"] = "live"

    def initial(self) -> TtftState:
        """Before any evidence."""
        return TtftState()

    def fold(self, state: TtftState, evidence: Evidence) -> TtftState:
        """Time a request, or a comparison, that this gate's source reads; all else leaves the state alone."""
        if isinstance(evidence, LiveRecord):
            if self.source != "live" or not evidence.streamed or live_failed(evidence) is not False:
                return state
            return self.timed(state, evidence.canary, ended_unix_s(evidence), evidence.first_byte_s)
        if isinstance(evidence, Comparison) and self.source == "shadow":
            for pair in timed_pairs(evidence):
                values = (pair.left.timing.ttft_s, pair.right.timing.ttft_s)
                if values[0] is None or values[1] is None:  # an answer of no token has no first one
                    continue
                state = self.timed(state, False, evidence.unix_s, values[0])
                state = self.timed(state, True, evidence.unix_s, values[1])
        return state

    def verdict(self, state: TtftState, alpha: Alpha) -> Verdict:
        """Whatever was asked for: the test over blocks, the caps, or all of them."""
        return self.judged(state, alpha, self.name, f"{self.source} ttft p{self.quantile * 100:g}")
