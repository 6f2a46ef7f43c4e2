"""The floor as it grows: what binning costs, that shards merge, and that nothing is excused in silence."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import msgspec
import pytest

from comparator.compare import compare
from comparator.comparison import CONCURRENCY
from comparator.floor import MOST_FLOORS, STEPS, Floor, Floors, FloorTally, floor_of
from comparator.pair import Pair
from comparator.records import Arm, Fact, Outcome, Sampling, Step
from tests.support.exchanges import exchange, pair, step


def noisy_pair(rng: random.Random, noise_nats: float, *, tokens: int = 30, k: int = 8, concurrency: int = 1):
    """A baseline and a control that say the same tokens with a little other logprobs."""
    sides: tuple[list[Step], list[Step]] = ([], [])
    for index in range(tokens):
        logits = sorted((rng.gauss(0.0, 2.0) for _ in range(k)), reverse=True)
        for side in sides:
            moved = [logit + rng.gauss(0.0, noise_nats) for logit in logits]
            total = math.log(math.fsum(map(math.exp, moved)))
            side.append(step(index, [(index + j, logit - total) for j, logit in enumerate(moved)]))
    given: dict[str, Any] = {
        "facts": {CONCURRENCY: Fact(value=concurrency)},
        "sampling": Sampling(max_tokens=tokens, temperature=1.0),
    }
    return compare(exchange(steps=sides[0], **given), exchange(steps=sides[1], arm=Arm.CONTROL, **given))


def tally(pairs: list[Pair]) -> FloorTally:
    made = FloorTally()
    for one in pairs:
        made = made.add(one)
    return made


@pytest.mark.parametrize("noise_nats", [1e-7, 1e-5, 1e-3, 0.05, 0.7])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_binning_costs_no_more_than_is_said(noise_nats: float, seed: int):
    rng = random.Random(seed)
    pairs = [noisy_pair(rng, noise_nats) for _ in range(20)]
    exact, counted = floor_of(pairs), tally(pairs).floor()
    assert exact.sigma_nats > 0.0
    assert abs(counted.sigma_nats - exact.sigma_nats) <= exact.sigma_nats / (2 * STEPS) + 2.0**-20
    assert exact.tv_q99 <= counted.tv_q99 <= max(exact.tv_q99 * (1 + 1 / STEPS), 2.0**-14)
    assert counted.n == exact.n == 20


def test_arms_that_agree_to_the_bit_have_a_floor_of_zero_with_a_number_of_pairs():
    assert tally([pair(right_arm=Arm.CONTROL)] * 3).floor() == Floor(sigma_nats=0.0, tv_q99=0.0, n=3)


def test_zeros_are_counted():
    moved = pair(left={"steps": [step(1, [(1, -0.1), (2, -2.1)])] * 1},
                 right={"steps": [step(1, [(1, -0.1), (2, -2.6)])]}, right_arm=Arm.CONTROL)  # fmt: skip
    still = pair((1, 1, 1), (1, 1, 1), right_arm=Arm.CONTROL)
    assert tally([moved, still]).floor().sigma_nats == pytest.approx(0.25, rel=1 / 32)


@pytest.mark.parametrize(
    "nothing",
    [
        pair(right={"prompt": (0,)}),
        pair(left={"outcome": Outcome.FAILED}),
        pair(left={"steps": [step(1)]}, right={"steps": [step(1)]}),
    ],
    ids=["set aside", "failed", "no logprobs"],
)
def test_what_says_nothing_leaves_the_tally_itself(nothing: Pair):
    before = FloorTally()
    assert before.add(nothing) is before
    assert floor_of([nothing]) == Floor()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_no_logprob_measures_nothing_and_stops_nothing(wrong: float):
    broken = pair(right_arm=Arm.CONTROL)
    steps = (step(1, [(1, -0.1), (2, wrong), (3, -3.0)]), *broken.right.steps[1:])
    right = msgspec.structs.replace(broken.right, steps=steps)
    made = tally([msgspec.structs.replace(broken, right=right)])
    assert math.isfinite(made.floor().sigma_nats)
    assert math.isfinite(made.floor().tv_q99)


def test_shards_merge_in_any_order_to_the_whole():
    rng = random.Random(4)
    pairs = [noisy_pair(rng, 0.02) for _ in range(12)]
    shards = [tally(pairs[:3]), tally(pairs[3:8]), tally(pairs[8:])]
    whole = tally(pairs)
    for one, two, three in itertools.permutations(shards):
        merged = one.merge(two).merge(three)
        assert (merged.margins, merged.distances, merged.n) == (whole.margins, whole.distances, whole.n)
        assert merged.floor() == whole.floor()


def test_a_tally_survives_serialisation_bit_for_bit():
    floors = Floors().add(noisy_pair(random.Random(5), 0.02))
    again = msgspec.json.decode(msgspec.json.encode(floors), type=Floors)
    assert again == floors
    key = next(iter(floors.tallies))
    assert again.tallies[key].floor() == floors.tallies[key].floor()


def test_a_tally_stays_small_whatever_comes():
    rng = random.Random(6)
    made = tally([noisy_pair(rng, 10.0 ** rng.uniform(-9, 2), tokens=60) for _ in range(60)])
    assert len(made.margins) + len(made.distances) <= 657


class TestFloors:
    def control(self, concurrency: int = 1, seed: int = 7) -> Pair:
        return noisy_pair(random.Random(seed), 0.02, concurrency=concurrency)

    def candidate(self, concurrency: int | None) -> Pair:
        facts = {} if concurrency is None else {CONCURRENCY: Fact(value=concurrency)}
        return pair(right={"facts": facts, "engine": "another 2.0"})

    def test_a_candidate_finds_the_floor_of_its_band_and_its_baselines_path(self):
        found = Floors().add(self.control(5)).of(self.candidate(7))
        assert found.missing is None
        assert found.floor == floor_with_bins(self.control(5))

    @pytest.mark.parametrize(
        ("concurrency", "why"),
        [
            (2, "no noise floor for vllm 0.32.0/tokens band 1: no control ran there yet"),
            (None, "no noise floor: the candidate's concurrency is unknown"),
        ],
    )
    def test_where_no_control_ran_the_floor_is_empty_and_says_so(self, concurrency, why):
        found = Floors().add(self.control(1)).of(self.candidate(concurrency))
        assert found.floor == Floor()
        assert found.missing == why

    def test_a_control_of_unknown_band_is_counted_as_left_out(self):
        assert Floors().add(pair(right_arm=Arm.CONTROL)) == Floors(left_out=1)

    def test_keys_are_bounded_and_what_is_beyond_is_told(self):
        floors = Floors()
        for index in range(MOST_FLOORS + 3):
            one = self.control()
            left = msgspec.structs.replace(one.left, engine=f"engine {index:02}")
            floors = floors.add(msgspec.structs.replace(one, left=left))
        assert (len(floors.tallies), floors.left_out) == (MOST_FLOORS, 3)
        assert floors.of(self.candidate(1)).missing == (
            f"no noise floor for vllm 0.32.0/tokens band 0: {MOST_FLOORS} others are kept, no more"
        )

    def test_shards_merge_in_any_order_to_the_whole(self):
        pairs = [self.control(concurrency, seed) for seed, concurrency in enumerate((1, 1, 2, 4, 5, 9))]
        whole = Floors()
        for one in pairs:
            whole = whole.add(one)
        halves = [Floors(), Floors()]
        for index, one in enumerate(pairs):
            halves[index % 2] = halves[index % 2].add(one)
        assert halves[0].merge(halves[1]) == halves[1].merge(halves[0]) == whole


def floor_with_bins(one: Pair) -> Floor:
    return FloorTally().add(one).floor()
