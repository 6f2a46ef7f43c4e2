"""Laws of the tests on sampled answers: swapped arms, stored states."""

from __future__ import annotations

import math

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.sequential import MmdState, MmdTest, PositionsState, PositionsTest

MMD, POSITIONS = MmdTest(buckets=32), PositionsTest(positions=3, buckets=8)


@st.composite
def comparisons(draw: st.DrawFn) -> list[tuple[list[list[int]], list[list[int]]]]:
    answer = st.lists(st.integers(0, 5), min_size=1, max_size=5)
    found = []
    for _ in range(draw(st.integers(5, 14))):
        replicates = draw(st.integers(1, 3))
        arms = st.lists(answer, min_size=replicates, max_size=replicates)
        found.append((draw(arms), draw(arms)))
    return found


@settings(max_examples=60, deadline=None)
@given(comparisons())
def test_swapping_the_arms_of_every_comparison_changes_no_bit_of_the_wealth(stream):
    here, there = MMD.initial(), MMD.initial()
    for baseline, candidate in stream:
        here = MMD.step(here, baseline, candidate)
        there = MMD.step(there, candidate, baseline)
        assert MMD.log_e(here).hex() == MMD.log_e(there).hex()
    one, other = POSITIONS.initial(), POSITIONS.initial()
    for baseline, candidate in stream:
        one = POSITIONS.step(one, baseline, candidate)
        other = POSITIONS.step(other, candidate, baseline)
    assert one.log_wealths == other.log_wealths


@settings(max_examples=60, deadline=None)
@given(comparisons())
def test_swapping_the_last_arms_turns_each_bet_around(stream):
    """Each factor and its mirror image sum to 2: under a fair swap the mean of every factor is exactly 1."""
    state = MMD.initial()
    for baseline, candidate in stream[:-1]:
        state = MMD.step(state, baseline, candidate)
    before = state.log_wealths or (0.0,) * (8 * len(MMD.bets))
    baseline, candidate = stream[-1]
    straight = MMD.step(state, baseline, candidate).log_wealths
    swapped = MMD.step(state, candidate, baseline).log_wealths
    for then, one, other in zip(before, straight, swapped, strict=True):
        assert abs(math.exp(one - then) + math.exp(other - then) - 2.0) < 1e-9
    assert MMD.step(state, baseline, candidate).squares == MMD.step(state, candidate, baseline).squares


@settings(max_examples=40, deadline=None)
@given(comparisons(), st.integers(0, 13))
def test_a_state_stored_at_any_point_goes_on_to_the_same_bits(stream, cut):
    whole, parts = MMD.initial(), MMD.initial()
    positions, stored = POSITIONS.initial(), POSITIONS.initial()
    for index, (baseline, candidate) in enumerate(stream):
        if index == cut:
            parts = msgspec.json.decode(msgspec.json.encode(parts), type=MmdState)
            stored = msgspec.json.decode(msgspec.json.encode(stored), type=PositionsState)
        whole = MMD.step(whole, baseline, candidate)
        parts = MMD.step(parts, baseline, candidate)
        positions = POSITIONS.step(positions, baseline, candidate)
        stored = POSITIONS.step(stored, baseline, candidate)
    assert whole == parts
    assert positions == stored


@settings(max_examples=40, deadline=None)
@given(comparisons())
def test_the_order_of_replicates_says_nothing(stream):
    here, there = MMD.initial(), MMD.initial()
    for baseline, candidate in stream:
        here = MMD.step(here, baseline, candidate)
        there = MMD.step(there, baseline[::-1], candidate[::-1])
    assert here == there
