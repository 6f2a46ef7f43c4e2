"""The first rule that fits: each class, its border, and the order of the rules."""

from __future__ import annotations

import math
import random

import pytest

from comparator.compare import compare
from comparator.distribution import common_tv
from comparator.floor import Floor, floor_of
from comparator.pair import Pair
from comparator.precision import SPACING_NATS, lattice_step_nats, spacing_nats
from comparator.records import Arm, Outcome, Sampling, Step
from comparator.taxonomy import Allowance, Attribution, ForkClass, classify
from tests.support.exchanges import exchange, pair, plain_steps, step

GREEDY = Sampling(max_tokens=8, temperature=0.0, logprobs=20)
SAMPLED = Sampling(max_tokens=8, temperature=0.8, logprobs=20)

FP32 = Allowance(spacing_nats=SPACING_NATS["fp32"], floor=Floor())
BF16 = Allowance(spacing_nats=SPACING_NATS["bf16"], floor=Floor())

Top = list[tuple[int, float]]


def logprobs(*weights: float) -> Top:
    """Tokens 1, 2, ... with probabilities in the proportion of ``weights``."""
    total = sum(weights)
    return [(i, math.log(weight / total)) for i, weight in enumerate(weights, 1)]


def forked(left: Top, right: Top, *, chose: tuple[int, int] = (1, 2), sampling: Sampling = GREEDY) -> Pair:
    """A pair that agrees on one plain token and then forks on these distributions."""
    return compare(
        exchange(steps=[*plain_steps([50]), step(chose[0], left)], sampling=sampling),
        exchange(steps=[*plain_steps([50]), step(chose[1], right)], sampling=sampling, arm=Arm.CANDIDATE),
    )


def class_of(made: Pair, allowance: Allowance) -> ForkClass:
    attribution = classify(made, allowance)
    assert isinstance(attribution, Attribution)
    assert attribution.reason
    return attribution.fork_class


def shifted(top: Top, *nats: float) -> Top:
    return [(i, x + d) for (i, x), d in zip(top, [*nats, *[0.0] * len(top)], strict=False)]


BASE = logprobs(40, 38, 5, 4, 3, 2, 1)
CLEAR = logprobs(60, 20, 5, 4, 3, 2, 1)


def test_equal_streams_are_none():
    assert class_of(pair(), FP32) is ForkClass.NONE


def test_rules_one_and_two_come_before_none():
    assert class_of(pair(right={"prompt": (1,)}), FP32) is ForkClass.ENCODING_MISMATCH
    assert class_of(pair(right={"sampling": SAMPLED}), FP32) is ForkClass.CONFIGURATION_MISMATCH


def test_a_pair_set_aside_for_another_reason_has_no_class():
    assert classify(pair((1,), (1,), left={"outcome": Outcome.FAILED}), FP32) is None


@pytest.mark.parametrize(("left", "right"), [((1, 2), (1,)), ((1,), (1, 2)), ((), (1,))])
def test_a_proper_prefix_is_a_truncation_whatever_the_numbers(left, right):
    assert class_of(pair(left, right), FP32) is ForkClass.TRUNCATION


def test_without_logprobs_nothing_can_be_said():
    made = compare(exchange(steps=[step(1)]), exchange(steps=[step(2)], arm=Arm.CANDIDATE))
    assert class_of(made, BF16) is ForkClass.UNCLASSIFIABLE


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_one_distribution_and_two_choices_is_another_sampling_stream(sampling):
    assert class_of(forked(CLEAR, CLEAR, sampling=sampling), FP32) is ForkClass.SAMPLING_STREAM


def test_a_displaced_entry_does_not_hide_the_same_distribution():
    wide = logprobs(*[60, 20, *[3] * 18])
    left = [(7, -9.0), *wide[:19]]
    assert class_of(forked(left, wide, sampling=SAMPLED), FP32) is ForkClass.SAMPLING_STREAM


def test_a_greedy_swap_within_the_precision_is_a_tie_flip_even_of_equal_distributions():
    assert class_of(forked(BASE, BASE), BF16) is ForkClass.TIE_FLIP


def test_a_greedy_exact_tie_is_a_tie_flip_at_any_precision():
    tie = logprobs(40, 40, 5, 4, 3, 2, 1)
    attribution = classify(forked(tie, tie), FP32)
    assert attribution is not None
    assert attribution.fork_class is ForkClass.TIE_FLIP
    assert attribution.reason.startswith("exact tie")


def test_a_tie_of_three_may_flip_to_its_third():
    tie = logprobs(30, 30, 30, 4, 3, 2, 1)
    assert class_of(forked(tie, tie, chose=(1, 3)), FP32) is ForkClass.TIE_FLIP


def test_a_wide_margin_on_one_side_is_no_tie():
    right = shifted(BASE, -0.6)
    assert class_of(forked(BASE, right), BF16) is ForkClass.PRECISION_DRIFT


def test_the_floor_widens_what_may_flip():
    right = shifted(BASE, -0.6)
    widened = Allowance(spacing_nats=2e-6, floor=Floor(sigma_nats=0.15))
    assert class_of(forked(BASE, right), widened) is ForkClass.TIE_FLIP


def test_a_sampled_fork_between_near_distributions_is_a_coupled_flip():
    right = shifted(BASE, -0.15)
    assert class_of(forked(BASE, right, sampling=SAMPLED), BF16) is ForkClass.COUPLED_FLIP
    assert class_of(forked(BASE, right, sampling=SAMPLED), FP32) is ForkClass.PRECISION_DRIFT


def test_the_aa_quantile_allows_what_the_precision_does_not():
    floor = Floor(tv_q99=0.2)
    made = forked(BASE, shifted(BASE, -0.15), sampling=SAMPLED)
    assert class_of(made, Allowance(spacing_nats=2e-6, floor=floor)) is ForkClass.COUPLED_FLIP


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("error", "expected"), [(0.99, ForkClass.PRECISION_DRIFT), (1.01, ForkClass.DISTRIBUTION_SHIFT)]
)
def test_the_cap_parts_drift_from_shift(sampling, error, expected):
    assert class_of(forked(CLEAR, shifted(CLEAR, -error), sampling=sampling), FP32) is expected


def test_the_cap_is_the_policys():
    strict = Allowance(spacing_nats=2e-6, floor=Floor(), cap_nats=0.1)
    assert class_of(forked(CLEAR, shifted(CLEAR, -0.5)), strict) is ForkClass.DISTRIBUTION_SHIFT


def test_an_error_before_the_fork_counts():
    left = [step(9, logprobs(50, 20, 10, 5, 4, 3)), step(1, CLEAR)]
    right = [step(9, shifted(logprobs(50, 20, 10, 5, 4, 3), -2.0)), step(2, shifted(CLEAR, -0.3))]
    made = compare(
        exchange(steps=left, sampling=GREEDY), exchange(steps=right, sampling=GREEDY, arm=Arm.CANDIDATE)
    )
    assert class_of(made, FP32) is ForkClass.DISTRIBUTION_SHIFT


def test_a_greedy_token_outside_the_others_list_is_a_shift():
    right = [(99, -0.1), *shifted(CLEAR[1:], -0.1)]
    assert class_of(forked(CLEAR, right, chose=(1, 99)), BF16) is ForkClass.DISTRIBUTION_SHIFT


def test_lists_without_a_common_token_are_a_shift():
    right = [(i + 100, x) for i, x in CLEAR]
    assert class_of(forked(CLEAR, right, chose=(1, 101)), BF16) is ForkClass.DISTRIBUTION_SHIFT


def test_impossible_tokens_do_not_upset_the_arithmetic():
    top = [(1, 0.0), (2, -math.inf), (3, -math.inf)]
    assert class_of(forked(top, top, sampling=SAMPLED), FP32) is ForkClass.SAMPLING_STREAM
    assert class_of(forked(top, [(2, 0.0), (1, -math.inf)]), FP32) is ForkClass.DISTRIBUTION_SHIFT


def sides(left: Top, right: Top):
    return tuple((tuple(i for i, _ in top), tuple(x for _, x in top)) for top in (left, right))


def test_total_variation_is_taken_on_common_tokens_renormalised():
    left, right = sides(logprobs(50, 30, 20), [*logprobs(50, 30, 20)[:2], (77, -0.1)])
    assert common_tv(left, right, GREEDY) == pytest.approx(0.0, abs=1e-15)
    left, right = sides(logprobs(50, 50), logprobs(75, 25))
    assert common_tv(left, right, GREEDY) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temperature": 1.0}, 0.125),
        ({"temperature": 1.0, "top_k": 1}, 1.0),
        ({"temperature": 1.0, "top_p": 0.4}, 1.0),
        ({"temperature": 1.0, "min_p": 0.9}, 1.0),
        ({"temperature": 1e9}, 0.0),
    ],
)
def test_a_sampled_distribution_is_tempered_and_truncated_as_it_was_drawn_from(sampling, expected):
    left, right = sides(logprobs(50, 37.5, 12.5), logprobs(37.5, 50, 12.5))
    tv = common_tv(left, right, Sampling(max_tokens=1, **sampling))
    assert tv == pytest.approx(expected, abs=1e-6)


def test_the_quick_distance_is_the_careful_one():
    rng = random.Random(8)
    for temperature in (0.0, 0.7, 1.0):
        plain = Sampling(max_tokens=1, temperature=temperature)
        # truncation that keeps everything takes the careful road
        careful = Sampling(max_tokens=1, temperature=temperature or 1.0, top_k=10_000)
        for _ in range(50):
            lists = []
            for _ in range(2):
                ids = rng.sample(range(30), 20)
                lists.append(
                    (tuple(ids), tuple(rng.choice([-math.inf, *[rng.uniform(-9, 0)] * 9]) for _ in ids))
                )
            assert common_tv(lists[0], lists[1], plain) == pytest.approx(
                common_tv(lists[0], lists[1], careful), rel=1e-12
            )


def test_nothing_in_common_has_no_distance():
    left, right = sides([(1, -0.1)], [(2, -0.1)])
    assert common_tv(left, right, GREEDY) is None


def test_the_floor_is_the_rms_of_margin_changes_zeros_included():
    left = plain_steps([1, 2, 3, 4])
    right = [*plain_steps([1, 2, 3]), *plain_steps([4], shift_nats=0.5)]
    made = compare(exchange(steps=left), exchange(steps=right, arm=Arm.CONTROL))
    floor = floor_of([made])
    assert floor.sigma_nats == pytest.approx(0.25)
    assert floor.tv_q99 == 0.0  # at temperature 0 nothing is drawn


def test_the_floor_of_drawn_tokens_has_their_total_variation():
    left = plain_steps([1, 2])
    right = [*plain_steps([1]), *plain_steps([2], shift_nats=0.5)]
    drawn = Sampling(max_tokens=16, temperature=1.0)
    made = compare(
        exchange(steps=left, sampling=drawn), exchange(steps=right, sampling=drawn, arm=Arm.CONTROL)
    )
    assert floor_of([made]).tv_q99 == common_tv(
        (left[1].top_ids, left[1].top_logprobs), (right[1].top_ids, right[1].top_logprobs), drawn
    )


def test_the_floor_stops_at_the_fork():
    left = plain_steps([1, 2, 3])
    right = [*plain_steps([1]), *plain_steps([9]), *plain_steps([3], shift_nats=5.0)]
    floor = floor_of([compare(exchange(steps=left), exchange(steps=right, arm=Arm.CONTROL))])
    assert floor.sigma_nats == 0.0


def test_no_control_excuses_nothing():
    assert floor_of([]) == Floor()
    assert Allowance(spacing_nats=2e-6, floor=Floor()).margin_nats == 2e-6


def grid_steps(grid: float, offset: float = -0.123456, n: int = 20) -> list[Step]:
    return [step(1, [(k, round(offset - grid * (k * (k + i) % 37), 6)) for k in range(20)]) for i in range(n)]


@pytest.mark.parametrize("grid", [0.25, 0.125, 0.0625, 2**-7])
def test_the_lattice_of_an_undeclared_precision_is_seen(grid):
    assert lattice_step_nats(grid_steps(grid)) == grid
    assert spacing_nats(None, grid_steps(grid)) == grid
    assert spacing_nats("int3", grid_steps(grid)) == grid


def test_a_declared_precision_wins_over_what_is_seen():
    assert spacing_nats("bf16", grid_steps(2**-7)) == 0.25


def test_without_a_lattice_or_enough_differences_the_precision_is_fp32s():
    irrational = grid_steps(math.pi / 50)
    assert lattice_step_nats(irrational) is None
    assert spacing_nats(None, irrational) == SPACING_NATS["fp32"]
    assert lattice_step_nats([]) is None
