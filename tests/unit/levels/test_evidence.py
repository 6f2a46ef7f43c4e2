"""Which comparisons count for two environments, and what they show."""

from __future__ import annotations

from typing import Any

import pytest

from comparator.comparison import Comparison
from comparator.records import Arm, Fact, Outcome, Sampling
from forkgate.levels.evidence import Prompts, Seen, Tally, needed
from tests.support.exchanges import comparison, pair

A, B, C = ("sha256:" + one * 64 for one in "abc")


def asked(
    name: str,
    right_ids: tuple[int, ...] = (1, 2, 3),
    *,
    left: str | None = A,
    right: str | None = B,
    right_arm: Arm = Arm.CANDIDATE,
    cluster: str | None = None,
    **changes: Any,
) -> Comparison:
    made = pair(
        right_ids=right_ids,
        capture_id=name,
        right_arm=right_arm,
        left={"digest": fact(left)},
        right={"digest": fact(right), **changes},
    )
    return comparison(made, cluster=cluster or name)


def fact(digest: str | None) -> Fact:
    return Fact(unknown="the engine tells none") if digest is None else Fact(value=digest)


def seen(*comparisons: Comparison, a: str | None = A, b: str | None = B, vouched: bool = False) -> Seen:
    tally = Tally(a, b, vouched=vouched)
    for one in comparisons:
        tally.add(one)
    return tally.seen()


def test_an_equal_answer_and_a_fork_are_a_prompt_each() -> None:
    found = seen(asked("one"), asked("two", (1, 2, 9)))
    assert found.between == Prompts(equal=1, forked=1)
    assert found.first is not None
    assert (found.first.capture_id, found.first.fork_index) == ("two", 2)
    assert sum(found.classes.values()) == 1
    assert found.only_ours


def test_the_first_fork_tells_its_kind() -> None:
    (kind,) = seen(asked("two", (1, 2, 9))).classes
    first = seen(asked("two", (1, 2, 9))).first
    assert first is not None
    assert first.fork_class == kind
    assert first.reason


def test_a_prompt_counts_once_however_often_it_is_asked() -> None:
    found = seen(*(asked(f"capture-{n}", cluster="same") for n in range(5)))
    assert found.between == Prompts(equal=1)
    assert found.comparisons == 5


def test_a_prompt_that_forked_once_forked() -> None:
    found = seen(
        asked("one", cluster="same"), asked("two", (1, 9, 3), cluster="same"), asked("three", cluster="same")
    )
    assert found.between == Prompts(forked=1)


def test_the_two_may_have_swapped_their_arms() -> None:
    assert seen(asked("one", left=B, right=A)).between == Prompts(equal=1)


def test_a_control_is_one_environment_against_itself() -> None:
    found = seen(
        asked("one", right=A, right_arm=Arm.CONTROL),
        asked("two", (9,), left=B, right=B, right_arm=Arm.CONTROL),
    )
    assert (found.between, found.within) == (Prompts(), Prompts(equal=1, forked=1))


def test_an_environment_may_be_compared_with_itself_on_two_pools() -> None:
    assert seen(asked("one", right=A), b=A).between == Prompts(equal=1)


def test_answers_of_other_environments_are_left_out_and_named() -> None:
    found = seen(asked("one", right=C), asked("two", left=C, right=C))
    assert (found.between.n, found.comparisons, found.foreign) == (0, 0, {C: 2})
    assert not found.only_ours


def test_a_candidate_that_is_the_baseline_itself_is_not_one_against_the_other() -> None:
    assert seen(asked("one", right=A)).foreign == {"swapped": 1}


@pytest.mark.parametrize(("left", "right"), [(None, B), (A, None), (None, None)])
def test_unsigned_answers_are_left_out_unless_somebody_vouches(left: str | None, right: str | None) -> None:
    one = asked("one", left=left, right=right)
    assert (seen(one).between.n, seen(one).unproved) == (0, 1)
    found = seen(one, vouched=True)
    assert (found.between, found.vouched, found.unproved) == (Prompts(equal=1), 1, 0)


def test_nobody_can_vouch_for_an_answer_that_somebody_else_signed() -> None:
    found = seen(asked("one", left=None, right=C), vouched=True)
    assert (found.between.n, found.foreign) == (0, {C: 1})


def test_without_a_record_nothing_is_proved() -> None:
    assert seen(asked("one"), a=None).unproved == 1


def test_pairs_that_were_set_aside_say_nothing_and_are_counted() -> None:
    other = Sampling(max_tokens=16, temperature=0.5, seed=5, logprobs=20)
    found = seen(asked("one", sampling=other), asked("two", prompt=(7,)))
    assert found.between.n == 0
    assert found.set_aside == {"configuration_mismatch": 1, "encoding_mismatch": 1}


@pytest.mark.parametrize(
    "changes", [{"outcome": Outcome.TIMED_OUT}, {"right_ids": (), "left_ids": ()}], ids=["cut short", "empty"]
)
def test_equal_as_far_as_it_went_is_not_equal(changes: dict[str, Any]) -> None:
    ids = changes.pop("left_ids", (1, 2, 3)), changes.pop("right_ids", (1, 2, 3))
    made = pair(*ids, left={"digest": fact(A)}, right={"digest": fact(B), **changes})
    found = seen(comparison(made))
    assert (found.between.n, found.unfinished) == (0, 1)


def test_replicates_are_one_prompt_and_one_that_forks_is_enough() -> None:
    signed = {"left": {"digest": fact(A)}, "right": {"digest": fact(B)}}
    found = seen(comparison(pair(**signed), pair(right_ids=(1, 9), **signed)))
    assert found.between == Prompts(forked=1)


def test_greedy_and_drawn_comparisons_are_told_apart() -> None:
    warm = Sampling(max_tokens=16, temperature=0.9, seed=5)
    drawn = pair(left={"digest": fact(A), "sampling": warm}, right={"digest": fact(B), "sampling": warm})
    found = seen(asked("one"), comparison(drawn, cluster="two"))
    assert (found.greedy, found.drawn) == (1, 1)


class TestBound:
    def test_nothing_bounds_nothing(self) -> None:
        assert Prompts().unseen(0.05) == Prompts().most_forks(0.05) == 1.0

    def test_a_thousand_equal_prompts_bound_the_share_at_the_rule_of_three(self) -> None:
        assert Prompts(equal=1_000).unseen(0.05) == pytest.approx(0.0029913, abs=1e-7)

    def test_it_is_the_share_at_which_so_many_equal_prompts_have_probability_alpha(self) -> None:
        bound = Prompts(equal=57).unseen(0.01)
        assert (1 - bound) ** 57 == pytest.approx(0.01)

    @pytest.mark.parametrize(("at_most", "alpha"), [(0.003, 0.05), (0.01, 0.01), (0.3, 0.05)])
    def test_needed_is_the_least_that_bounds_it(self, at_most: float, alpha: float) -> None:
        count = needed(at_most, alpha)
        assert Prompts(equal=count).unseen(alpha) <= at_most
        assert Prompts(equal=count - 1).unseen(alpha) > at_most

    def test_forks_widen_it_and_it_stays_above_the_share_seen(self) -> None:
        bounds = [Prompts(equal=1_000 - forks, forked=forks).most_forks(0.05) for forks in (0, 1, 10, 100)]
        assert bounds == sorted(bounds)
        assert all(bound > forks / 1_000 for bound, forks in zip(bounds, (0, 1, 10, 100), strict=True))

    def test_all_forked_bounds_nothing(self) -> None:
        assert Prompts(forked=10).unseen(0.05) == Prompts(forked=10).most_forks(0.05) == 1.0
