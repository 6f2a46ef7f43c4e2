"""How an exchange or a live request ended, and two side by side: finish reasons, lengths, failures."""

from __future__ import annotations

import math

import msgspec

from comparator.pair import SetAside
from comparator.records import Exchange, LiveRecord, Outcome

FAILURES = frozenset({Outcome.REFUSED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INVALID})
"""Ends that are the engine's doing. A timeout is a failure; an arm that we cut or aborted is not."""
NOT_ITS_FAULT = frozenset(
    {
        SetAside.ENCODING_MISMATCH,
        SetAside.CONFIGURATION_MISMATCH,
        SetAside.DIGEST_MISMATCH,
        SetAside.BASELINE_FAILED,
    }
)
"""Reasons for which a pair says nothing of whether its right arm fails."""


class OutcomeDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Left against right. Lengths are output tokens; a cut or aborted arm has no length of its own (None)."""

    left: Outcome
    right: Outcome
    left_tokens: int | None
    right_tokens: int | None
    finish_reasons_differ: bool
    """Both completed, and for different reasons: also without a fork (``stop`` against ``length``)."""


def failed(exchange: Exchange) -> bool:
    """True when the engine, not we, ended the exchange without an answer."""
    return exchange.outcome in FAILURES


def compare_outcomes(left: Exchange, right: Exchange) -> OutcomeDifference:
    """How ``left`` ended against ``right``. Lengths are of the steps at hand: a pruned exchange has 0."""
    both = left.outcome is Outcome.COMPLETED and right.outcome is Outcome.COMPLETED
    return OutcomeDifference(
        left=left.outcome,
        right=right.outcome,
        left_tokens=len(left.steps) if left.outcome is Outcome.COMPLETED else None,
        right_tokens=len(right.steps) if right.outcome is Outcome.COMPLETED else None,
        finish_reasons_differ=both
        and (left.finish_reason, left.stop_reason) != (right.finish_reason, right.stop_reason),
    )


def ended_unix_s(record: LiveRecord) -> float:
    """When a live request ended, by its edge's clock; its start where it has no length."""
    ended = record.started_unix_s + record.total_s
    return ended if math.isfinite(ended) else record.started_unix_s


def live_failed(record: LiveRecord) -> bool | None:
    """Did the pool that the record was routed to fail it? None: it says nothing about that pool."""
    if record.aborted_by == "flip":
        return None  # taken from its pool by ours, whatever became of it then
    if record.retried or record.aborted_by in ("upstream", "timeout") or record.status >= 500:
        return True
    if record.aborted_by in ("client", "drain") or record.status == 0 or 400 <= record.status < 500:
        return None
    return False
