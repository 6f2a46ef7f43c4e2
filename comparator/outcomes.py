"""How two exchanges ended, side by side: finish reasons, lengths, failures."""

from __future__ import annotations

import msgspec

from comparator.records import Exchange, Outcome

FAILURES = frozenset({Outcome.REFUSED, Outcome.FAILED, Outcome.TIMED_OUT, Outcome.INVALID})
"""Ends that are the engine's doing. A timeout is a failure; an arm that we cut or aborted is not."""


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
