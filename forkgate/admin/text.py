"""One pair in one line of text."""

from __future__ import annotations

import datetime

from comparator.evidence import StoredPair
from comparator.records import Arm, Outcome


def pair_line(pair: StoredPair) -> str:
    """``ID  time  tenant  rollout  what came of it``."""
    at = datetime.datetime.fromtimestamp(pair.started_unix_s, tz=datetime.UTC)
    who = pair.tenant or f"{pair.suite}/{pair.sample_id}#{pair.passage}"
    came = _came_of_it(pair) + _aside(pair)
    return f"{pair.capture_id}  {at:%Y-%m-%dT%H:%M:%SZ}  {who}  {pair.rollout}  {came}"


def _aside(pair: StoredPair) -> str:
    """In brackets, what sets it apart from a first pair of baseline and candidate."""
    words = []
    if pair.right_arm != Arm.CANDIDATE:
        words.append(pair.right_arm)
    if pair.replicate:
        words.append(f"replicate {pair.replicate}")
    if pair.repeat:
        words.append("repeat")
    if pair.timing:
        words.append("timing")
    return f" ({', '.join(words)})" if words else ""


def _came_of_it(pair: StoredPair) -> str:
    if pair.set_aside is not None:
        return f"set aside: {pair.set_aside}" + (
            f", {pair.set_aside_reason}" if pair.set_aside_reason else ""
        )
    error = f", largest error {pair.max_error_nats:.4g} nats" if pair.max_error_nats is not None else ""
    if pair.fork_index is None:
        arms = ((pair.left_arm, pair.left_outcome), (pair.right_arm, pair.right_outcome))
        short = [f"{arm} {outcome}" for arm, outcome in arms if outcome != Outcome.COMPLETED]
        # An arm that failed half-way was equal as far as it went, and that shows nothing.
        return f"not compared to an end: {', '.join(short)}" if short else f"equal{error}"
    kind = "one stream ended" if pair.proper_prefix else "fork"
    return f"{kind} at token {pair.fork_index}{error}"
