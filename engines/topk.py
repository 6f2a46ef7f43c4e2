"""Order and soundness of a step's top-k list, as every adapter hands it on.

Engines give the drawn token first and the others by rank (vLLM), or all by rank. Records hold them by
descending logprob, ties by token ID. What is no probability at all is refused here, before it can reach a
comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

ABOVE_ZERO_NATS = 1e-3
"""A logprob may round to a hair above 0; more is no probability."""
FLOOR_NATS = -9999.0
"""What vLLM writes for -inf and for NaN."""


class UnsoundLogprobs(ValueError):  # noqa: N818
    """The list breaks its contract; the message says how."""


def ordered(ids: Sequence[int], logprobs: Sequence[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Sort by descending logprob, ties by ID.

    Raises:
        UnsoundLogprobs: an ID twice, a value above 0, or the entries after the first out of rank order.
    """
    if len(set(ids)) != len(ids):
        raise UnsoundLogprobs(f"a token ID stands twice in {list(ids)}")
    return ordered_unique(tuple(ids), list(logprobs))


def ordered_unique(ids: tuple[int, ...], logprobs: list[float]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """:func:`ordered`, for IDs that are known to be unique (the keys of a mapping)."""
    descending = sorted(logprobs, reverse=True)
    if not descending:
        return (), ()
    if descending[0] > ABOVE_ZERO_NATS:
        raise UnsoundLogprobs(f"a logprob of {descending[0]} is above 0")
    if descending == logprobs:
        if len(set(descending)) == len(descending):
            return ids, tuple(descending)
    else:
        rest = logprobs[1:]
        if sorted(rest, reverse=True) != rest:
            raise UnsoundLogprobs("top logprobs are not in rank order")
    pairs = sorted(zip(logprobs, ids, strict=True), key=_rank)
    return tuple([one for _, one in pairs]), tuple([value for value, _ in pairs])


def own(logprob: float | None) -> float:
    """The drawn token's logprob. Raises :class:`UnsoundLogprobs` where it is missing, NaN or -inf."""
    if logprob is None:
        raise UnsoundLogprobs("the drawn token has no logprob")
    if not logprob > FLOOR_NATS:  # NaN, which protobuf carries, is not above anything
        raise UnsoundLogprobs(f"the drawn token's logprob is {logprob}: the engine computed NaN or -inf")
    if logprob > ABOVE_ZERO_NATS:
        raise UnsoundLogprobs(f"the drawn token's logprob is {logprob}, above 0")
    return logprob


def _rank(pair: tuple[float, int]) -> tuple[float, int]:
    return -pair[0], pair[1]
