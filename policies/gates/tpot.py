"""Time per output token of the candidate against the baseline's: :mod:`policies.gates.durations`.

From the arms of comparisons that ran without logprobs, as live traffic does: live records have no token
counts, and logprobs cost time at each token.
"""

from __future__ import annotations

from comparator.comparison import Comparison
from policies.gates.base import Alpha, Evidence
from policies.gates.durations import DurationGate, DurationState
from policies.gates.timing import timed_pairs
from policies.verdict import Verdict


class TpotState(DurationState, frozen=True, kw_only=True, tag_field="kind", tag="tpot"):
    """See :class:`DurationState`."""


class Tpot(DurationGate, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="tpot"):
    """Estimand: ``traffic``. Value: the candidate's quantile, seconds a token."""

    name: str = "tpot"

    def initial(self) -> TpotState:
        """Before any evidence."""
        return TpotState()

    def fold(self, state: TpotState, evidence: Evidence) -> TpotState:
        """Time both arms of a timing comparison, or neither; all else leaves the state alone."""
        if not isinstance(evidence, Comparison):
            return state
        for pair in timed_pairs(evidence):
            values = (pair.left.timing.tpot_s, pair.right.timing.tpot_s)
            if values[0] is None or values[1] is None:  # one token, or none: there is no gap to time
                continue
            state = self.timed(state, False, evidence.unix_s, values[0])
            state = self.timed(state, True, evidence.unix_s, values[1])
        return state

    def verdict(self, state: TpotState, alpha: Alpha) -> Verdict:
        """Whatever was asked for: the test over blocks, the caps, or all of them."""
        return self.judged(state, alpha, self.name, f"tpot p{self.quantile * 100:g}")
