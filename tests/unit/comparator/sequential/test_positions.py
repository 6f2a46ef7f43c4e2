"""Which output position has moved: one test each, and a correction for their number."""

from __future__ import annotations

import random

import pytest

from comparator.sequential import PositionsTest, SequentialError, threshold_nats

TEST = PositionsTest(positions=4, buckets=16)


def drawn(rng: random.Random, moved: int | None) -> list[list[int]]:
    said = [[rng.randrange(6) for _ in range(6)] for _ in range(2)]
    if moved is not None:
        for answer in said:
            answer[moved] = min(answer[moved], rng.randrange(6))
    return said


@pytest.mark.parametrize("moved", [0, 2, 3])
def test_the_position_that_moved_is_named_and_no_other(moved: int):
    rng, state = random.Random(moved), TEST.initial()
    for _ in range(300):
        state = TEST.step(state, drawn(rng, None), drawn(rng, moved))
    assert TEST.moved(state, 0.01) == (moved,)
    others = [TEST.share_moved(state, position) for position in range(4) if position != moved]
    assert TEST.share_moved(state, moved) > 2 * max(others)


def test_a_position_beyond_the_last_is_not_looked_at():
    rng, state = random.Random(5), TEST.initial()
    for _ in range(300):
        state = TEST.step(state, drawn(rng, None), drawn(rng, 5))
    assert TEST.moved(state, 0.01) == ()


def test_the_correction_is_for_all_positions():
    rng, state = random.Random(9), TEST.initial()
    while TEST.corrected_nats(state) < threshold_nats(0.01):
        assert not TEST.moved(state, 0.01)
        state = TEST.step(state, drawn(rng, None), drawn(rng, 1))
    assert max(state.highest_nats) >= threshold_nats(0.01 / 4)
    assert TEST.moved(state, 0.01) == (1,)


def test_answers_that_ended_have_no_token_there():
    state = TEST.step(TEST.initial(), [[1]], [[2, 3]])
    assert TEST.share_moved(state, 0) == 1.0
    assert TEST.share_moved(state, 1) == 0.0


def test_limits_are_checked():
    with pytest.raises(SequentialError, match="1-256"):
        PositionsTest(positions=0)
    with pytest.raises(SequentialError, match="power of two"):
        PositionsTest(buckets=10)
    with pytest.raises(SequentialError, match="start anew"):
        PositionsTest(positions=5).step(TEST.initial(), [[1]], [[2]])
    with pytest.raises(SequentialError, match="as many on both"):
        TEST.step(TEST.initial(), [[1]], [])
