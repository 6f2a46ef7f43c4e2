"""Blocks of time: when one closes, what comes late, and what a clock that stepped does."""

from __future__ import annotations

import msgspec
import pytest

from policies.gates.blocks import LATE_RUN, Blocks, Sums, check_block_s, share_difference


def feed(items: list[tuple[float, bool, int]], blocks: Blocks | None = None) -> tuple[Blocks, list[Sums]]:
    """Items of (second, candidate, bad), in blocks of 10 s."""
    blocks, closed = blocks or Blocks(), []
    for unix_s, candidate, bad in items:
        blocks, more = blocks.add(unix_s, 10.0, candidate=candidate, amounts=(bad, 1))
        closed += more
    return blocks, closed


def test_a_block_closes_once_something_of_the_block_after_the_next_has_come():
    blocks, closed = feed([(100.0, True, 1), (101.0, False, 0), (112.0, True, 0), (119.9, True, 0)])
    assert closed == []
    blocks, closed = feed([(120.0, True, 0)], blocks)
    assert closed == [Sums(baseline=(0, 1), candidate=(1, 1))]
    assert sorted(blocks.open) == [11, 12]


def test_items_out_of_order_count_where_they_belong():
    _, closed = feed(
        [(112.0, True, 0), (103.0, True, 1), (125.0, False, 0), (117.0, False, 1), (131.0, True, 0)]
    )
    assert closed == [Sums(candidate=(1, 1)), Sums(baseline=(1, 1), candidate=(0, 1))]


def test_a_late_item_is_counted_and_does_not_bet():
    blocks, _ = feed([(100.0, True, 0), (130.0, True, 0)])
    blocks, closed = feed([(100.5, True, 1)], blocks)
    assert (blocks.late, closed) == (1, [])
    assert 10 not in blocks.open


def test_a_gap_closes_everything_behind_it_in_order():
    _, closed = feed([(100.0, True, 1), (110.0, True, 0), (10_000.0, True, 0)])
    assert closed == [Sums(candidate=(1, 1)), Sums(candidate=(0, 1))]


def test_a_clock_that_stepped_ahead_blinds_nothing_for_good():
    blocks, _ = feed([(100.0, True, 0), (1e9, True, 0)])
    items = [(110.0 + 0.01 * i, True, 1) for i in range(LATE_RUN)]
    blocks, closed = feed(items, blocks)
    assert (blocks.late, blocks.late_run, closed) == (LATE_RUN, 0, [])
    _, closed = feed([(115.0, False, 0), (140.0, True, 0)], blocks)
    assert closed == [Sums(baseline=(0, 1), candidate=(1, 1))]  # the item that settled it counts again


def test_late_items_that_are_not_in_a_row_change_nothing():
    blocks, _ = feed([(1_000.0, True, 0)])
    for _ in range(3 * LATE_RUN):
        blocks, _ = feed([(100.0, True, 1), (1_000.0, False, 0)], blocks)
    assert (blocks.late, sorted(blocks.open)) == (3 * LATE_RUN, [100])


def test_at_most_two_blocks_are_ever_open():
    blocks = Blocks()
    for unix_s in (5.0, 17.0, 23.0, 1e6, 3.0, *range(0, 2_000, 7), -50.0):
        blocks, _ = feed([(float(unix_s), True, 0)], blocks)
        assert len(blocks.open) <= 2


def test_folding_never_changes_the_blocks_it_was_given():
    blocks, _ = feed([(100.0, True, 1)])
    before = msgspec.json.encode(blocks)
    feed([(101.0, True, 1), (150.0, False, 1)], blocks)
    assert msgspec.json.encode(blocks) == before
    assert msgspec.json.decode(before, type=Blocks) == blocks


@pytest.mark.parametrize(
    ("baseline", "candidate", "difference"),
    [((1, 4), (3, 4), -0.5), ((0, 9), (0, 1), 0.0), ((0, 0), (1, 1), None), ((1, 1), (0, 0), None)],
)
def test_the_difference_of_two_shares(baseline, candidate, difference):
    assert share_difference(Sums(baseline=baseline, candidate=candidate)) == difference


@pytest.mark.parametrize("block_s", [0.0, 0.5, 86_401.0, float("nan")])
def test_a_length_that_makes_no_block_is_refused(block_s):
    with pytest.raises(ValueError, match=r"^block_s: .* is outside 1-86400 seconds; longer than an outage"):
        check_block_s(block_s)
