"""The aligner: one fork, at its deciding token, and nothing after it."""

from __future__ import annotations

import math

import pytest

from comparator.align import PairAligner
from comparator.errors import AlignmentError
from comparator.records import Arm
from tests.support.exchanges import plain_steps, step

LEFT, RIGHT = Arm.BASELINE, Arm.CANDIDATE


def test_equal_streams_make_no_fork():
    aligner = PairAligner()
    assert aligner.push(LEFT, plain_steps([1, 2])) is None
    assert aligner.push(RIGHT, plain_steps([1, 2])) is None
    assert aligner.finish(LEFT) is None
    assert aligner.finish(RIGHT) is None
    alignment = aligner.alignment()
    assert (alignment.fork, alignment.max_error_nats, alignment.compared_tokens) == (None, 0.0, 2)


def test_the_fork_comes_from_the_push_that_brought_the_deciding_token():
    aligner = PairAligner()
    assert aligner.push(LEFT, plain_steps([1, 2, 3])) is None
    assert aligner.push(RIGHT, plain_steps([1])) is None
    fork = aligner.push(RIGHT, plain_steps([9]))
    assert fork is not None
    assert fork.fork_index == 1
    assert (fork.left.token_id, fork.right.token_id) == (2, 9)
    assert not fork.proper_prefix


def test_the_fork_is_reported_once_and_later_tokens_are_ignored():
    aligner = PairAligner()
    aligner.push(LEFT, plain_steps([1]))
    assert aligner.push(RIGHT, plain_steps([2])) is not None
    before = aligner.alignment()
    assert aligner.push(RIGHT, plain_steps([3, 4], shift_nats=5.0)) is None
    assert aligner.push(LEFT, [step(3, [(3, math.nan)])]) is None
    assert aligner.finish(LEFT) is None
    assert aligner.finish(RIGHT) is None
    assert aligner.alignment() == before


def test_a_stream_that_ends_while_the_other_has_gone_on_forks_at_its_end():
    aligner = PairAligner()
    aligner.push(LEFT, plain_steps([1, 2]))
    aligner.push(RIGHT, plain_steps([1]))
    fork = aligner.finish(RIGHT)
    assert fork is not None
    assert fork.proper_prefix
    assert fork.fork_index == 1
    assert (fork.left.token_id, fork.right.token_id) == (2, None)
    assert fork.right.top_ids == ()


def test_a_token_after_the_others_end_is_a_fork_at_once():
    aligner = PairAligner()
    aligner.push(LEFT, plain_steps([1]))
    aligner.push(RIGHT, plain_steps([1]))
    assert aligner.finish(LEFT) is None
    fork = aligner.push(RIGHT, plain_steps([2, 3]))
    assert fork is not None
    assert (fork.fork_index, fork.left.token_id, fork.right.token_id) == (1, None, 2)


def test_an_empty_answer_against_a_token_is_a_fork_at_zero():
    aligner = PairAligner()
    aligner.finish(LEFT)
    fork = aligner.push(RIGHT, plain_steps([4]))
    assert fork is not None
    assert fork.fork_index == 0
    assert fork.max_error_nats is None


def test_two_empty_answers_are_equal():
    aligner = PairAligner()
    aligner.finish(LEFT)
    assert aligner.finish(RIGHT) is None
    assert aligner.alignment().fork is None


@pytest.mark.parametrize("end_first", [True, False])
def test_an_arm_that_was_broken_off_has_no_end_to_fork_at(end_first):
    aligner = PairAligner()
    aligner.push(RIGHT, plain_steps([1]))
    if end_first:
        aligner.finish(RIGHT, completed=False)
        assert aligner.push(LEFT, plain_steps([1, 2])) is None
    else:
        aligner.push(LEFT, plain_steps([1, 2]))
        assert aligner.finish(RIGHT, completed=False) is None
    assert aligner.finish(LEFT) is None
    assert aligner.alignment().fork is None
    assert aligner.alignment().compared_tokens == 1


def test_tokens_already_there_when_an_arm_breaks_off_still_count():
    aligner = PairAligner()
    aligner.push(LEFT, plain_steps([1, 2]))
    aligner.finish(LEFT, completed=False)
    fork = aligner.push(RIGHT, plain_steps([1, 3]))
    assert fork is not None
    assert fork.fork_index == 1


def test_the_error_includes_the_fork_step_and_nothing_after_it():
    left = [*plain_steps([1, 2]), *plain_steps([3])]
    right = [*plain_steps([1], shift_nats=0.125), *plain_steps([2]), *plain_steps([4])]
    right[2] = step(4, [(3, -0.75), (4, -0.5), (5, -2.0), (6, -3.0), (7, -4.0), (8, -5.0)])
    aligner = PairAligner()
    aligner.push(LEFT, left)
    fork = aligner.push(RIGHT, right)
    assert fork is not None
    assert fork.max_error_nats == 0.5
    assert fork.max_error_index == 2


def test_of_equal_errors_the_first_is_named():
    aligner = PairAligner()
    aligner.push(LEFT, plain_steps([1, 2, 3]))
    aligner.push(RIGHT, plain_steps([1, 2, 3], shift_nats=0.25))
    assert aligner.alignment().max_error_index == 0


def test_margins_of_both_sides_stand_in_the_fork():
    aligner = PairAligner()
    aligner.push(LEFT, [step(1, [(1, -0.5), (2, -0.75)])])
    fork = aligner.push(RIGHT, [step(2, [(2, -0.25), (1, -1.25)])])
    assert fork is not None
    assert (fork.left.margin_nats, fork.right.margin_nats) == (0.25, 1.0)


def test_engines_that_put_the_drawn_token_first_are_sorted_first():
    aligner = PairAligner()
    aligner.push(LEFT, [step(9, [(9, -3.0), (1, -0.5), (2, -1.0)])])
    fork = aligner.push(RIGHT, [step(1, [(1, -0.5), (2, -1.0), (3, -4.0)])])
    assert fork is not None
    assert fork.left.top_ids == (1, 2, 9)
    assert fork.left.margin_nats == 0.5
    assert fork.left.logprob == -3.0
    assert fork.max_error_nats == 0.0


def test_without_logprobs_the_fork_is_still_found():
    aligner = PairAligner()
    aligner.push(LEFT, [step(1), step(2)])
    fork = aligner.push(RIGHT, [step(1), step(3)])
    assert fork is not None
    assert (fork.max_error_nats, fork.left.margin_nats) == (None, None)


def test_one_arm_without_logprobs_gives_no_error():
    aligner = PairAligner()
    aligner.push(LEFT, plain_steps([1]))
    aligner.push(RIGHT, [step(1)])
    assert aligner.alignment().max_error_nats is None


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (step(1, [(1, math.nan), (2, -1.0)], logprob=-0.1), "logprob of token 1 is nan"),
        (step(1, [(1, math.inf)], logprob=-0.1), "logprob of token 1 is inf"),
        (step(1, [(1, -0.1)], logprob=math.nan), "logprob of the drawn token 1 is nan"),
    ],
)
@pytest.mark.parametrize("arm", [LEFT, RIGHT])
def test_a_step_that_is_no_legal_answer_is_a_fault_and_no_fork(bad, word, arm):
    aligner = PairAligner()
    other = RIGHT if arm is LEFT else LEFT
    aligner.push(other, plain_steps([2]))
    assert aligner.push(arm, [bad]) is None
    assert aligner.alignment().fault == f"{arm} step 0: {word}"
    assert aligner.push(other, plain_steps([3])) is None


def test_a_top_k_with_more_ids_than_logprobs_is_a_fault():
    aligner = PairAligner()
    bad = step(1, [(1, -0.5)])
    bad = type(bad)(1, -0.5, (1, 2), (-0.5,), 0.0)
    aligner.push(LEFT, [bad])
    aligner.push(RIGHT, plain_steps([1]))
    assert aligner.alignment().fault == "baseline step 0: 2 top-k IDs but 1 logprobs"


def test_minus_infinity_is_a_legal_logprob():
    impossible = [(1, -0.1), (2, -math.inf), (3, -math.inf), (4, -math.inf), (5, -math.inf), (6, -math.inf)]
    aligner = PairAligner()
    aligner.push(LEFT, [step(1, impossible)])
    aligner.push(RIGHT, [step(1, impossible)])
    assert aligner.alignment().max_error_nats == 0.0
    aligner.push(LEFT, [step(1, impossible)])
    aligner.push(RIGHT, [step(1, [(1, -0.1), (2, -9.0)])])
    assert aligner.alignment().max_error_nats == math.inf


def test_a_repeated_id_counts_with_its_largest_logprob():
    aligner = PairAligner()
    aligner.push(LEFT, [step(1, [(1, -0.5), (1, -9.0), (2, -1.0)], logprob=-0.5)])
    aligner.push(RIGHT, [step(1, [(1, -0.5), (2, -1.0)])])
    assert aligner.alignment().max_error_nats == 0.0


def test_misuse_is_told():
    aligner = PairAligner()
    with pytest.raises(AlignmentError, match="control is not of this pair"):
        aligner.push(Arm.CONTROL, [])
    aligner.finish(LEFT)
    with pytest.raises(AlignmentError, match="baseline: tokens after the end"):
        aligner.push(LEFT, plain_steps([1]))
    with pytest.raises(AlignmentError, match="baseline: ended twice"):
        aligner.finish(LEFT)
    with pytest.raises(AlignmentError, match="a pair needs two arms"):
        PairAligner(LEFT, LEFT)


def test_baseline_and_control_can_be_aligned_too():
    aligner = PairAligner(Arm.BASELINE, Arm.CONTROL)
    aligner.push(Arm.CONTROL, plain_steps([1]))
    fork = aligner.push(Arm.BASELINE, plain_steps([2]))
    assert fork is not None
    assert (fork.left.arm, fork.right.arm) == (Arm.BASELINE, Arm.CONTROL)
