"""The arithmetic of one step: sorted top-k, margin, largest logprob error.

Shapes: a step's top-k is two tuples of length k, ``ids_k`` and ``logprobs_k`` (nats). All functions take
raw engine output: lists may come unsorted, an ID may come twice (its largest logprob counts), a logprob may
be ``-inf`` (the engine says: impossible). NaN and ``+inf`` are no logprobs; :func:`step_fault` names them,
and whoever aligns makes the pair invalid.
"""

from __future__ import annotations

from comparator.pair import Fork, ForkSide
from comparator.records import Arm, Step

TOP_TOKENS = 5
"""Errors are taken over tokens that stand in both arms' first five."""

Top = tuple[tuple[int, ...], tuple[float, ...]]


def sorted_top(ids_k: tuple[int, ...], logprobs_k: tuple[float, ...]) -> Top:
    """The list by descending logprob, ties by ascending ID, each ID once with its largest logprob."""
    best: dict[int, float] = {}
    for token_id, logprob in zip(ids_k, logprobs_k, strict=True):
        if token_id not in best or logprob > best[token_id]:
            best[token_id] = logprob
    order = sorted(best, key=lambda token_id: (-best[token_id], token_id))
    return tuple(order), tuple(best[token_id] for token_id in order)


def step_fault(step: Step) -> str | None:
    """Why this step is no legal answer, or None. Checked: equal list lengths, no NaN, no ``+inf``."""
    if len(step.top_ids) != len(step.top_logprobs):
        return f"{len(step.top_ids)} top-k IDs but {len(step.top_logprobs)} logprobs"
    for token_id, logprob in zip(step.top_ids, step.top_logprobs, strict=True):
        if logprob != logprob or logprob == float("inf"):
            return f"logprob of token {token_id} is {logprob}"
    drawn = step.logprob
    if drawn is not None and (drawn != drawn or drawn == float("inf")):
        return f"logprob of the drawn token {step.token_id} is {drawn}"
    return None


def margin_nats(step: Step) -> float | None:
    """First minus second logprob of a step; None under two distinct tokens.

    The softmax normaliser cancels, so this is a difference of two logits. ``inf`` when everything but the
    first token is impossible.
    """
    ids, logprobs = step.top_ids, step.top_logprobs
    # Nearly every list is sorted, and then two entries are all that is needed.
    if not (
        len(ids) == len(logprobs) > 2 and ids[0] != ids[1] and logprobs[0] > logprobs[1] > max(logprobs[2:])
    ):
        ids, logprobs = sorted_top(ids, logprobs)
    if len(logprobs) < 2:
        return None
    if logprobs[0] == logprobs[1]:  # also -inf against -inf, where the difference would be NaN
        return 0.0
    return logprobs[0] - logprobs[1]


def step_error_nats(left: Step, right: Step) -> float | None:
    """Largest |Δ logprob| over tokens in both arms' top five; None when they share none.

    ``-inf`` on both arms is agreement (0); on one arm it is an infinite error.
    """
    if not left.top_ids or not right.top_ids:
        return None
    left_ids, left_logprobs = _first_five(left)
    right_ids, right_logprobs = _first_five(right)
    mine = dict(zip(left_ids, left_logprobs, strict=True))
    worst: float | None = None
    for token_id, logprob in zip(right_ids, right_logprobs, strict=True):
        if token_id not in mine:
            continue
        error = 0.0 if mine[token_id] == logprob else abs(mine[token_id] - logprob)
        if worst is None or error > worst:
            worst = error
    return worst


def _first_five(step: Step) -> Top:
    """The first five of :func:`sorted_top`, which a list that is plainly sorted shows by itself."""
    ids, logprobs = step.top_ids, step.top_logprobs
    if len(ids) == len(logprobs) > TOP_TOKENS:
        a0, a1, a2, a3, a4, *rest = logprobs
        five = ids[:TOP_TOKENS]
        if a0 > a1 > a2 > a3 > a4 > max(rest) and len(set(five)) == TOP_TOKENS:
            return five, logprobs[:TOP_TOKENS]
    ids, logprobs = sorted_top(ids, logprobs)
    return ids[:TOP_TOKENS], logprobs[:TOP_TOKENS]


def quick_error_nats(left: Step, right: Step) -> float | None:
    """:func:`step_error_nats` where both steps are plainly legal and agree on their top five.

    None means "look closer", not "no error". Quick needs more than five entries, all finite, the first five
    sorted and strictly above the rest, so that no tie can move a token across the border.
    """
    a, b = left.top_logprobs, right.top_logprobs
    ids = left.top_ids
    five = ids[:TOP_TOKENS]
    if five != right.top_ids[:TOP_TOKENS] or len(a) <= TOP_TOKENS or len(b) <= TOP_TOKENS:
        return None
    a0, a1, a2, a3, a4, *a_rest = a
    b0, b1, b2, b3, b4, *b_rest = b
    # A sum is finite only if every term is: one chain of additions rules out NaN and both infinities.
    total = sum(a) + sum(b) + (left.logprob or 0.0) + (right.logprob or 0.0)
    if (
        total - total == 0.0
        and len(ids) == len(a)
        and len(right.top_ids) == len(b)
        and a0 >= a1 >= a2 >= a3 >= a4 > max(a_rest)
        and b0 >= b1 >= b2 >= b3 >= b4 > max(b_rest)
        and len(set(five)) == TOP_TOKENS
    ):
        return max(abs(a0 - b0), abs(a1 - b1), abs(a2 - b2), abs(a3 - b3), abs(a4 - b4))
    return None


def fork_side(arm: Arm, step: Step | None) -> ForkSide:
    """One arm at the fork step; ``step`` is None where that arm had already ended."""
    if step is None:
        return ForkSide(
            arm=arm, token_id=None, text=None, logprob=None, margin_nats=None, top_ids=(), top_logprobs=()
        )
    ids, logprobs = sorted_top(step.top_ids, step.top_logprobs)
    return ForkSide(
        arm=arm,
        token_id=step.token_id,
        text=step.text,
        logprob=step.logprob,
        margin_nats=margin_nats(step),
        top_ids=ids,
        top_logprobs=logprobs,
    )


def make_fork(
    index: int,
    left: ForkSide,
    right: ForkSide,
    max_error_nats: float | None,
    max_error_index: int | None,
) -> Fork:
    """The fork at output position ``index``; a side without a token makes it a proper prefix."""
    return Fork(
        fork_index=index,
        left=left,
        right=right,
        max_error_nats=max_error_nats,
        max_error_index=max_error_index,
        proper_prefix=left.token_id is None or right.token_id is None,
    )
