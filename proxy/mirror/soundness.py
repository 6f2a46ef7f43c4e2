"""What every step must be, whatever adapter made it: the mirror's own look at an answer.

Adapters order and check what engines send (``engines.topk``); this catches an adapter that does not, before
its steps are compared and stored. A list out of rank order is refused rather than sorted: where an engine
breaks its word about the order, nothing says that these are the top of the distribution.
"""

from __future__ import annotations

import math

from comparator.records import Step
from engines.topk import ABOVE_ZERO_NATS

MOST_ID = 2**31 - 1
"""Token IDs are int32 in every engine's protocol. A model's vocabulary is smaller; no engine tells it."""


def fault_of(step: Step, depth: int) -> str | None:
    """Why this step is no legal answer to a request for a top ``depth``, or None. Half a microsecond."""
    tops = step.top_logprobs
    if (
        0 <= step.token_id <= MOST_ID
        and len(tops) == len(step.top_ids)
        and len(tops) >= depth
        and (
            not tops
            or (
                tops[0] <= ABOVE_ZERO_NATS
                and step.logprob is not None
                and step.logprob <= ABOVE_ZERO_NATS
                and list(tops) == sorted(tops, reverse=True)
                and not math.isnan(sum(tops))  # among NaNs any order is sorted
            )
        )
    ):
        return None
    return _words(step, depth)


def _words(step: Step, depth: int) -> str:
    ids, tops, drawn = step.top_ids, step.top_logprobs, step.logprob
    for token_id in (step.token_id, *ids):
        if not 0 <= token_id <= MOST_ID:
            return f"token ID {token_id} is outside 0-{MOST_ID}"
    if len(tops) != len(ids):
        return f"{len(ids)} top-k IDs came with {len(tops)} logprobs"
    if len(tops) < depth:
        return f"{depth} top logprobs were asked for and {len(tops)} came"
    if drawn is None:
        return "the drawn token has no logprob"
    for token_id, logprob in ((step.token_id, drawn), *zip(ids, tops, strict=True)):
        if math.isnan(logprob) or logprob > ABOVE_ZERO_NATS:
            return f"logprob of token {token_id} is {logprob}"
    return "top logprobs are not in descending order"
