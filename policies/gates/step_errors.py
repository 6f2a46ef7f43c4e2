"""Logprob errors of steps that can be compared, and which of two arms errs more."""

from __future__ import annotations

from comparator.comparison import Triple
from comparator.fork import quick_error_nats, step_error_nats
from comparator.records import Step

MOST_NATS = 1_000.0
"""Errors count as this at most: an arm that calls a token impossible is infinitely wrong about it."""


def usable_nats(error: float | None) -> float | None:
    """An error that can be compared: NaN is none, and more than :data:`MOST_NATS` counts as that."""
    if error is None or error != error:
        return None
    return min(error, MOST_NATS)


def mean_sign(triple: Triple) -> float | None:
    """Mean sign of (candidate's error - control's) over steps up to the earlier fork; None without any."""
    candidate, control = triple.candidate, triple.control
    ends = [pair.fork.fork_index + 1 for pair in (candidate, control) if pair.fork is not None]
    last = min(ends, default=len(candidate.left.steps))
    total = steps = 0
    for baseline, mine, other in zip(
        candidate.left.steps[:last], candidate.right.steps[:last], control.right.steps[:last], strict=False
    ):
        error, floor = _step_nats(baseline, mine), _step_nats(baseline, other)
        if error is None or floor is None:
            continue
        total += (error > floor) - (error < floor)
        steps += 1
    return total / steps if steps else None


def _step_nats(left: Step, right: Step) -> float | None:
    error = quick_error_nats(left, right)  # finite where it answers at all
    return usable_nats(step_error_nats(left, right)) if error is None else error
