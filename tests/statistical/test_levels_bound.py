"""The bounds of `forkgate compare` hold whenever one looks. Seeded; each test states what it tolerates."""

from __future__ import annotations

import random

import pytest

from forkgate.levels.evidence import Prompts

STREAMS = 200
LOOKS = 10
ALPHA = 0.1
TOLERATED = 0.17
"""Above alpha by over three standard errors of so many streams."""


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_a_stream_looked_at_repeatedly_is_seldom_bounded_below_its_share(share: float) -> None:
    draws = random.Random(20_260_729)
    wrong = 0
    for _ in range(STREAMS):
        equal = forked = 0
        for _ in range(LOOKS):
            forks = sum(draws.random() < share for _ in range(50))
            equal, forked = equal + 50 - forks, forked + forks
            if Prompts(equal=equal, forked=forked).most_forks(ALPHA) < share:
                wrong += 1
                break
    assert wrong / STREAMS <= TOLERATED


def test_unseen_forks_are_bounded_as_often_as_promised_and_not_much_more_often() -> None:
    """The probability that the bound falls below the share before the first fork is just under alpha."""
    share, alpha = 0.05, 0.1
    looks = next(n for n in range(1, 1_000) if Prompts(equal=n).unseen(alpha) < share)
    assert alpha * (1 - share) < (1 - share) ** looks <= alpha
