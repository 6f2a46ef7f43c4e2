"""A plain cap on the candidate's share of failed requests, over a sliding window.

Live: canary requests. Failed are 5xx answers, answers that the upstream or a timeout broke off, and
requests that home answered after the candidate failed (``retried``): the client was served, the candidate
was not. 4xx is the client's doing, and a client or a drain that left says nothing: those are not counted at
all. Shadow: candidate arms. Failed are those that were refused, failed, timed out or gave an invalid
answer; pairs whose question differed, or whose baseline failed, are not counted.

This is a cap, not a test: at small n it errs by chance both ways. Its state is integer counts by block of
time, mergeable in any order (:mod:`policies.gates.window`).
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.outcomes import failed
from comparator.pair import Pair, SetAside
from comparator.records import LiveRecord, Outcome
from policies.gates.base import Alpha, Evidence
from policies.gates.window import BLOCKS, Window
from policies.verdict import Answer, Verdict

_GOOD, _BAD = 0, 1
_NOT_ITS_FAULT = (
    SetAside.ENCODING_MISMATCH,
    SetAside.CONFIGURATION_MISMATCH,
    SetAside.DIGEST_MISMATCH,
    SetAside.BASELINE_FAILED,
)


class ErrorRateState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="error_rate"):
    """Good and failed requests of the candidate within the window."""

    candidate: Window = Window()
    """Bins: 0 good, 1 failed."""
    last_failed_id: str | None = None
    """Capture ID of the newest failed pair (live records have none)."""

    def merge(self, other: ErrorRateState) -> ErrorRateState:
        """Counts of both; this one's newest failed pair comes first."""
        return ErrorRateState(
            candidate=self.candidate.merge(other.candidate),
            last_failed_id=self.last_failed_id or other.last_failed_id,
        )


class ErrorRate(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="error_rate"
):
    """Estimand: ``traffic``, the candidate's requests of the last ``window_s``."""

    spends_alpha: ClassVar[bool] = False
    performance: ClassVar[bool] = False

    name: str = "error_rate"
    estimand: Literal["traffic"] = "traffic"
    source: Literal["live", "shadow"]
    maximum: float
    """Share of failed requests above which the gate fails, 0 to 1."""
    minimum_requests: int = 50
    """Fewer in the window: inconclusive."""
    window_s: float = 600.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.maximum < 1.0:
            raise ValueError(
                f"maximum: {self.maximum} is outside 0-1 (a share of requests; 1 could never fail)"
            )
        if self.minimum_requests < 1:
            raise ValueError(f"minimum_requests: {self.minimum_requests} is under 1; no data is no pass")
        if not 1.0 <= self.window_s <= 604_800.0:
            raise ValueError(f"window_s: {self.window_s} is outside 1-604800 seconds")

    def initial(self) -> ErrorRateState:
        """Before any evidence."""
        return ErrorRateState()

    def fold(self, state: ErrorRateState, evidence: Evidence) -> ErrorRateState:
        """Count a request of the candidate that this gate's source reads; all else leaves the state alone."""
        if isinstance(evidence, LiveRecord) and self.source == "live" and evidence.canary:
            bad = live_failed(evidence)
            return state if bad is None else self._count(state, evidence.started_unix_s, bad, None)
        if isinstance(evidence, Comparison) and self.source == "shadow":
            for pair in evidence.candidates:
                bad = _shadow_failed(pair)
                if bad is not None:
                    state = self._count(state, pair.right.timing.started_unix_s, bad, pair.capture_id)
        return state

    def _count(
        self, state: ErrorRateState, unix_s: float, bad: bool, capture_id: str | None
    ) -> ErrorRateState:
        return ErrorRateState(
            candidate=state.candidate.add(unix_s, self.window_s / BLOCKS, (_BAD if bad else _GOOD,)),
            last_failed_id=capture_id if bad and capture_id is not None else state.last_failed_id,
        )

    def verdict(self, state: ErrorRateState, alpha: Alpha) -> Verdict:
        """Failures within the window against the limit; inconclusive under ``minimum_requests``."""
        totals = state.candidate.totals()
        bad = totals.get(_BAD, 0)
        n = bad + totals.get(_GOOD, 0)
        rate = bad / n if n else None
        said = f"{bad} of {n} {self.source} requests of the candidate failed within {self.window_s:g} s"
        if rate is None or n < self.minimum_requests:
            answer = Answer.INCONCLUSIVE
            reason = f"{said}; {self.minimum_requests} are needed"
        elif rate > self.maximum:
            answer, reason = Answer.FAIL, f"{said}: {rate:.4f} is over {self.maximum:g}"
        else:
            answer, reason = Answer.PASS, f"{said}: {rate:.4f} is within {self.maximum:g}"
        return Verdict(
            gate=self.name,
            answer=answer,
            value=rate,
            limit=self.maximum,
            n=n,
            reason=reason,
            deciding_id=state.last_failed_id if answer is Answer.FAIL else None,
        )


def _shadow_failed(pair: Pair) -> bool | None:
    """Did the candidate fail this shadow request? None: the pair says nothing about that."""
    if pair.set_aside in _NOT_ITS_FAULT or pair.right.outcome is Outcome.ABORTED:
        return None
    return failed(pair.right)


def live_failed(record: LiveRecord) -> bool | None:
    """Did the pool that the record was routed to fail it? None: it says nothing about that pool."""
    if record.retried or record.aborted_by in ("upstream", "timeout") or record.status >= 500:
        return True
    if record.aborted_by in ("client", "drain") or record.status == 0 or 400 <= record.status < 500:
        return None
    return False
