"""What a test remembers: order does not matter, shards add up, bad values never get in."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.sequential import Counts, RatioState, SequentialError, Tally, on_grid

differences = st.lists(st.sampled_from([-1.0, -0.5, -1 / 3, -0.0, 0.0, 0.25, 1 / 3, 1.0]), max_size=40)


@settings(max_examples=50, deadline=None)
@given(differences, st.randoms(use_true_random=False))
def test_one_by_one_all_at_once_and_shuffled_give_the_same_state(values: list[float], random):
    shuffled = list(values)
    random.shuffle(shuffled)
    grown = Counts()
    for value in shuffled:
        grown = grown.add(value)
    assert grown == Counts.of(values)
    assert grown.n == len(values)


@settings(max_examples=50, deadline=None)
@given(differences, differences, differences)
def test_shards_merge_in_any_order_and_grouping(a, b, c):
    one, two, three = Counts.of(a), Counts.of(b), Counts.of(c)
    whole = Counts.of(a + b + c)
    assert one.merge(two).merge(three) == three.merge(one.merge(two)) == whole


@settings(max_examples=50, deadline=None)
@given(differences)
def test_json_and_msgpack_bring_the_same_state_back(values):
    state = Counts.of(values)
    assert msgspec.json.decode(msgspec.json.encode(state), type=Counts) == state
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=Counts) == state


def test_both_zeros_are_one_value():
    assert Counts.of([0.0, -0.0]) == Counts(values=(0.0,), counts=(2,))
    assert math.copysign(1.0, Counts.of([-0.0]).values[0]) == 1.0


def test_add_leaves_the_old_state_alone():
    before = Counts.of([0.5])
    before.add(0.5)
    assert before == Counts(values=(0.5,), counts=(1,))


def test_the_mean_is_exact():
    assert Counts(values=(-1.0, 0.1, 1.0), counts=(10**9, 10, 10**9)).mean == 1.0 / (2 * 10**9 + 10)
    with pytest.raises(SequentialError, match="no observation yet"):
        _ = Counts().mean


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_gets_in(value: float):
    with pytest.raises(SequentialError, match=r"observation: .* is not finite; set it aside"):
        Counts().add(value)
    with pytest.raises(SequentialError, match="is not finite"):
        Counts.of([0.0, value])


def test_a_state_stays_small():
    grid = Counts(values=tuple(float(k) for k in range(4096)), counts=(1,) * 4096)
    with pytest.raises(SequentialError, match=r"4097 distinct ones are more than 4096; round observations"):
        grid.add(0.5)


@pytest.mark.parametrize(
    "text",
    [
        '{"values":[0.5],"counts":[]}',
        '{"values":[0.5],"counts":[0]}',
        '{"values":[0.5],"counts":[-2]}',
        '{"values":[0.5,0.5],"counts":[1,1]}',
        '{"values":[0.5,0.1],"counts":[1,1]}',
        '{"values":[1e999],"counts":[1]}',
        '{"values":[0.5],"counts":[1.5]}',
    ],
)
def test_a_damaged_state_is_not_decoded(text: str):
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(text, type=Counts)


@pytest.mark.parametrize(
    ("value", "steps", "expected"), [(0.126, 64, 0.125), (-1.0, 3, -1.0), (-1e-9, 8, 0.0)]
)
def test_a_grid_rounds_to_its_nearest_step(value: float, steps: int, expected: float):
    assert on_grid(value, steps) == expected
    with pytest.raises(SequentialError, match="steps: 0"):
        on_grid(value, 0)


def test_a_tally_keeps_ties_but_they_do_not_bet():
    tally = Tally().add(True).add(False).add(None).add(True)
    assert tally == Tally(ones=2, zeros=1, ties=1)
    assert tally.n == 3
    assert tally.merge(Tally(ones=1, ties=2)) == Tally(ones=3, zeros=1, ties=3)
    with pytest.raises(SequentialError, match="zeros: -1"):
        Tally(zeros=-1)


def test_ratio_states_of_other_categories_do_not_merge():
    with pytest.raises(SequentialError, match="2 categories with 3"):
        RatioState(counts=(1, 2)).merge(RatioState(counts=(1, 2, 3)))
    with pytest.raises(SequentialError, match=r"category: 2 is not one of 0\.\.1"):
        RatioState(counts=(1, 2)).add(2)
    with pytest.raises(SequentialError, match="times: 0"):
        RatioState(counts=(1, 2)).add(0, 0)
    assert RatioState(counts=(1, 2)).merge(RatioState(counts=(3, 4))).add(0) == RatioState(counts=(5, 6))
