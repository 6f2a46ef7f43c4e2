"""Answers as counts: what a witness sees of the token sequences that two arms drew.

An answer is a sequence of token IDs, ended by :data:`END` where the model ended it. Two families of features:

- *positions*: which token stands where. The inner product of two answers' features is the number of places at
  which they agree, the Hamming kernel of Model Equality Testing (Gao, Liang & Guestrin, ICLR 2025).
- *words*: which tokens, and which pairs of neighbours, occur at all: a spectrum kernel. One token more at the
  front shifts every position, and hardly these.

Features are hashed into a fixed number of buckets, so that a state has one size whatever the vocabulary. Two
features in one bucket cost power, never validity. The hash is written out: the same buckets on every machine
and in every process. Features that come again are remembered, not hashed again.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence

from comparator.sequential.errors import SequentialError

END = -1
"""Stands for the end of an answer that the model ended by itself; one that was cut off has none."""

Answer = Sequence[int]
"""Token IDs, not negative, then :data:`END` or not."""

_MASK = (1 << 64) - 1
_POSITION, _TOKEN, _NEIGHBOURS = 1, 2, 3


@functools.lru_cache(maxsize=1 << 15)
def bucket(kind: int, first: int, second: int, buckets: int) -> int:
    """Where a feature is counted: 64-bit multiply and shift (after Steele, Lea & Flood's SplitMix, 2014).

    Args:
        kind: family of the feature.
        first: token ID, or :data:`END`.
        second: position, or another token ID.
        buckets: a power of two.
    """
    mixed = (first + 2) * 0x9E3779B97F4A7C15 + (second + 2) * 0xC2B2AE3D27D4EB4F + kind * 0x165667B19E3779F9
    mixed &= _MASK
    mixed ^= mixed >> 30
    mixed = mixed * 0xBF58476D1CE4E5B9 & _MASK
    mixed ^= mixed >> 27
    mixed = mixed * 0x94D049BB133111EB & _MASK
    return (mixed ^ (mixed >> 31)) & (buckets - 1)


def positions_of(answer: Answer, buckets: int) -> Iterator[int]:
    """Buckets of "this token stands here", one a token."""
    for index, token in enumerate(answer):
        yield bucket(_POSITION, token, index, buckets)


def words_of(answer: Answer, buckets: int) -> Iterator[int]:
    """Buckets of the tokens and of the pairs of neighbours; the first token's neighbour is the beginning."""
    before = END
    for token in answer:
        yield bucket(_TOKEN, token, 0, buckets)
        yield bucket(_NEIGHBOURS, token, before, buckets)
        before = token


def difference(
    baseline: Sequence[Answer], candidate: Sequence[Answer], buckets: int, *, words: bool
) -> dict[int, tuple[int, int]]:
    """How often each bucket came on either arm, over the replicates of one comparison."""
    found: dict[int, tuple[int, int]] = {}
    for arm, answers in enumerate((baseline, candidate)):
        for answer in answers:
            for index in words_of(answer, buckets) if words else positions_of(answer, buckets):
                first, second = found.get(index, (0, 0))
                found[index] = (first + (arm == 0), second + (arm == 1))
    return found


def likeness(answers: Sequence[Answer], *, words: bool) -> int:
    """Over all pairs of one arm's replicates: places at which they agree, or words that they share.

    The more an arm's answers resemble each other, the narrower is the distribution that they are drawn from:
    a lower temperature, a smaller top-p. Shared words are counted as often as both answers have them.
    """
    if not words:
        return sum(
            sum(first == second for first, second in zip(answer, other, strict=False))
            for index, answer in enumerate(answers)
            for other in answers[:index]
        )
    bags = [Counter(answer) for answer in answers]
    return sum(
        sum(min(times, other[token]) for token, times in bag.items())
        for index, bag in enumerate(bags)
        for other in bags[:index]
    )


def check_answers(baseline: Sequence[Answer], candidate: Sequence[Answer]) -> None:
    """Refuse a comparison that cannot bet.

    Raises:
        SequentialError: no replicate, or not as many on both arms (one arm would be known by its number).
    """
    if not baseline or len(baseline) != len(candidate):
        raise SequentialError(
            f"answers: {len(baseline)} of the baseline and {len(candidate)} of the candidate; "
            "a comparison has as many on both, at least one"
        )
