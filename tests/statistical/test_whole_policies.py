"""A whole shipped policy on arms whose load and difficulty drift: every gate, through the rollout's own step.

Each test states its own false-alarm bound. Seeds are fixed, so that a run repeats.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
from scipy import stats

from comparator.comparison import Comparison
from comparator.pair import Pair
from comparator.records import Arm
from policies.policy import load_policy
from policies.rollout import Hold, Observed, RollBack, RolloutPlan, ShadowStage, Widening
from policies.rollout.judging import ask_gates
from tests.support.exchanges import pair, plain_steps
from tests.support.plans import in_first_step
from tests.support.suite_answers import answer, ref, scores
from tests.support.triples import steps_of, triple

CHANCE = 1e-6
TOKENS = 12
SAMPLES, PASSES = 24, 5


@functools.lru_cache
def plan(name: str) -> RolloutPlan:
    policy = load_policy(name)
    policy = policy.with_suites(dict.fromkeys(policy.suites, "sha256:" + 64 * "0"))
    return RolloutPlan(
        name="old-to-new",
        baseline="old",
        candidate="new",
        policy=policy,
        percent=10,
        shadow_stage=ShadowStage(skip=True),
        steps=(Widening(tenants=("acme",)),),
    )


def drift(rng: np.random.Generator, n: int) -> np.ndarray:
    """A load of mean 0 and standard deviation 1 that moves over some fifty requests."""
    found, now = np.empty(n), float(rng.standard_normal())
    for index, noise in enumerate(rng.standard_normal(n)):
        found[index] = now = 0.98 * now + 0.199 * noise
    return found


@functools.lru_cache(maxsize=4096)
def greedy(
    candidate: int | None, control: int | None, shifted: tuple[bool, bool], with_control: bool
) -> Comparison:
    arms = [
        steps_of(TOKENS, fork_at=at, error_nats=0.5 * shift, gap_nats=1.0 if shift else 0.2)
        for at, shift in zip((candidate, control), shifted, strict=True)
    ]
    made = triple("k", candidate=arms[0], control=arms[1], tokens=TOKENS)
    return made if with_control else msgspec.structs.replace(made, pairs=made.pairs[:1])


def traffic(
    rng: np.random.Generator, n: int, *, shifts: float = 0.0, hazard: float = 1.0
) -> Iterator[Comparison]:
    """Live comparisons, half of them with a control; under load both arms fork and shift more often."""
    chances = np.minimum(0.02 * np.exp(0.7 * drift(rng, n)), 0.5)
    for chance in chances:
        first = rng.geometric([min(0.9, hazard * chance), chance]) - 1
        forks = [int(at) if at < TOKENS else None for at in first]
        shifted = (bool(rng.random() < chance + shifts), bool(rng.random() < chance))
        forks = [
            int(rng.integers(TOKENS)) if shift and at is None else at
            for at, shift in zip(forks, shifted, strict=True)
        ]
        yield greedy(forks[0], forks[1], shifted, bool(rng.random() < 0.5))


@functools.lru_cache(maxsize=512)
def lengths(candidate: int, baseline: int) -> tuple[Pair, Pair]:
    return (
        pair(left={"steps": plain_steps(range(baseline))}, right={"steps": plain_steps(range(candidate))}),
        pair(right_arm=Arm.CONTROL),
    )


def suite(rng: np.random.Generator, *, lost: float = 0.0) -> Iterator[Comparison]:
    """A frozen suite: some samples flip from run to run on either arm, and passes shift their lengths."""
    flips = np.where(rng.random(SAMPLES) < 0.7, 0.0, rng.choice([0.02, 0.1, 0.5], SAMPLES))
    right, tokens = rng.random(SAMPLES) < 0.7, rng.integers(3, 14, SAMPLES)
    for passage in range(PASSES):
        load = 0.1 * rng.standard_normal(2)
        for index in range(SAMPLES):
            said = [bool(right[index]) ^ bool(flip) for flip in rng.random(2) < flips[index]]
            said[0] = said[0] and bool(rng.random() >= lost)
            refused = rng.random(2) < 0.5 * flips[index]
            spread = 0.2 * rng.standard_normal(2) * (flips[index] > 0)
            long = np.clip(np.rint(tokens[index] * np.exp(spread + load)), 1, 16).astype(int).tolist()
            yield answer(
                ref(f"s{index}", passage, samples=SAMPLES, stage="canary"),
                *scores("rules", candidate=1.0, baseline=1.0, control=1.0),
                *scores("answer", candidate=float(said[0]), baseline=float(said[1])),
                *scores("structured", candidate=float(said[0]), baseline=float(said[1])),
                *scores("refusal", candidate=float(refused[0]), baseline=float(refused[1])),
                pairs=lengths(long[0], long[1]),
            )


def outcome(name: str, items: Iterable[Comparison]) -> tuple[str | None, set[str]]:
    """The gate that rolled it back, and those that held it; holds are lifted in passing, states kept."""
    state, held = in_first_step(plan(name)), set()
    for item in items:
        state, effects = ask_gates(state, Observed(items=(item,), unix_s=0.0))
        for effect in effects:
            if isinstance(effect, RollBack):
                return effect.latch.verdict.gate, held
            if isinstance(effect, Hold) and effect.verdict is not None:
                held.add(effect.verdict.gate)
                state = msgspec.structs.replace(state, held=None)
    return None, held


def test_equal_arms_are_not_rolled_back():
    """60 streams of a suite and 150 requests at the policy's alpha .05; false alarm at most 1e-6."""
    wrong = 0
    for seed in range(60):
        rng = np.random.default_rng([41, seed])
        gate, _ = outcome("open-answers", [*suite(rng), *traffic(rng, 150)])
        wrong += gate is not None
    assert wrong <= int(stats.binom.isf(CHANCE, 60, 0.05))


def test_one_effect_a_kind_is_found_by_the_gate_that_is_there_for_it():
    """10 streams each, at least seven of them found; of 40 simulated, 39 were at least. False alarm 1e-4."""
    expected = {
        "distribution_shift": lambda rng: traffic(rng, 300, shifts=0.2),
        "fork_hazard": lambda rng: traffic(rng, 600, hazard=5.0),
        "accuracy": lambda rng: suite(rng, lost=0.5),
    }
    for gate, items in expected.items():
        found = 0
        for seed in range(10):
            rolled_back, held = outcome("open-answers", items(np.random.default_rng([42, seed])))
            found += gate in {rolled_back, *held}
        assert found >= 7, gate
