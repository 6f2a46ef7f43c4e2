"""Order and soundness of top-k lists."""

from __future__ import annotations

import pytest

from engines.topk import UnsoundLogprobs, ordered, own


def test_sorted_lists_pass_as_they_are() -> None:
    assert ordered([5, 3, 9], [-0.1, -2.0, -3.0]) == ((5, 3, 9), (-0.1, -2.0, -3.0))
    assert ordered([], []) == ((), ())


def test_a_drawn_token_that_stands_first_finds_its_rank() -> None:
    assert ordered([9, 5, 3, 7], [-2.5, -0.1, -2.0, -3.0]) == ((5, 3, 9, 7), (-0.1, -2.0, -2.5, -3.0))
    assert ordered([9, 5, 3], [-8.0, -0.1, -2.0]) == ((5, 3, 9), (-0.1, -2.0, -8.0))


def test_ties_stand_by_token_id() -> None:
    assert ordered([9, 5, 3], [-1.0, -1.0, -1.0]) == ((3, 5, 9), (-1.0, -1.0, -1.0))
    assert ordered([9, 8, 3], [-2.0, -1.0, -2.0]) == ((8, 3, 9), (-1.0, -2.0, -2.0))


@pytest.mark.parametrize(
    ("ids", "logprobs", "words"),
    [
        ([1, 2, 1], [-1.0, -2.0, -3.0], "twice"),
        ([1, 2, 2], [-1.0, -2.0, -2.0], "twice"),
        ([1, 2, 2], [-3.0, -1.0, -2.0], "twice"),
        ([1, 2, 3], [-1.0, -3.0, -2.0], "rank order"),
        ([1, 2], [0.5, -2.0], "above 0"),
        ([1, 2], [-0.5, 2.0], "above 0"),
        ([1, 2], [float("inf"), -2.0], "above 0"),
    ],
)
def test_what_is_no_top_k_is_refused(ids: list[int], logprobs: list[float], words: str) -> None:
    with pytest.raises(UnsoundLogprobs, match=words):
        ordered(ids, logprobs)


def test_the_drawn_tokens_own_logprob_must_be_a_number() -> None:
    assert own(-3.5) == -3.5
    assert own(1e-7) == 1e-7
    for value, words in (
        (None, "has no logprob"),
        (-9999.0, "NaN or -inf"),
        (float("-inf"), "NaN"),
        (0.1, "above 0"),
    ):
        with pytest.raises(UnsoundLogprobs, match=words):
            own(value)
