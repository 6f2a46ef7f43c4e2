"""Gates over real generations of a real engine under known changes (``tests/data/battery``).

Each entry of the battery has a baseline, a candidate and a control; their prompts are folded as a rollout's
comparisons, over and over under new capture IDs, since sixteen prompts are few: what a gate says of them is a
check of its wiring on real logprobs, no statistics.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.attribution import compared, read_entries, read_generations
from comparator.comparison import CONCURRENCY, Comparison
from comparator.pair import Pair
from comparator.records import Arm, Fact
from policies.gates import DistributionShift, ForkHazard, LogitError, TokenEquality
from policies.gates.base import Alpha
from policies.verdict import Answer, Verdict
from tests.support.exchanges import comparison

BATTERY = Path(__file__).parents[3] / "data" / "battery"
ALPHA = Alpha(rollback=0.01, promotion=0.05)
PASSES = 3

ENTRIES: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in read_entries(BATTERY)}


@lru_cache(maxsize=1)
def generations():
    return read_generations(BATTERY)


def rollout(name: str, *, matched: bool = False) -> list[Comparison]:
    """``matched``: as if candidate and control had run under one load; some entries have no such control."""
    entry = ENTRIES[name]
    candidates = compared(generations(), entry["baseline"], entry["candidate"], Arm.CANDIDATE, entry)
    controls = compared(generations(), entry["baseline"], entry["control"], Arm.CONTROL, entry)

    def placed(pair: Pair, role: str) -> Pair:
        shared = 32 if entry[role][1].endswith("_concurrent") and not matched else 1
        right = msgspec.structs.replace(pair.right, facts={CONCURRENCY: Fact(value=shared)})
        return msgspec.structs.replace(pair, right=right)

    return [
        comparison(
            placed(candidates[prompt], "candidate"),
            placed(controls[prompt], "control"),
            capture_id=f"{turn}/{prompt}",
        )
        for turn in range(PASSES)
        for prompt in candidates
    ]


def judge(gate: Any, name: str, *, matched: bool = False) -> Verdict:
    state = gate.initial()
    for item in rollout(name, matched=matched):
        state = gate.fold(state, item)
    verdict: Verdict = gate.verdict(state, ALPHA)
    return verdict


@pytest.mark.parametrize("name", ["3-bit weights", "one layer silenced"])
@pytest.mark.parametrize(
    "gate",
    [
        ForkHazard(),
        LogitError(exceedance=None),
        LogitError(maximum_nats=1.0),
        DistributionShift(),
        TokenEquality(),
    ],
    ids=["hazard", "sign", "cap", "shift", "tokens"],
)
def test_damaged_weights_fail_every_gate_on_forks(gate: Any, name: str):
    verdict = judge(gate, name)
    assert verdict.answer is Answer.FAIL, verdict.reason


@pytest.mark.parametrize(
    "name",
    [
        "same environment, run again",
        "fp32, alone against 32 concurrent",
        "bf16, run again",
        "bf16, alone against concurrent: scheduling only",
        "T=0.8, same seed, alone against concurrent, fp32",
        "T=0.8, bf16, alone against concurrent",
    ],
)
@pytest.mark.parametrize(
    "gate",
    [ForkHazard(), LogitError(maximum_nats=1.0), DistributionShift()],
    ids=["hazard", "logits", "shift"],
)
def test_what_only_scheduling_does_fails_none(gate: Any, name: str):
    verdict = judge(gate, name)
    assert verdict.answer is not Answer.FAIL, verdict.reason


@pytest.mark.parametrize("name", ["fp32 to bf16: precision only", "T=0.8, fp32 to bf16"])
def test_another_precision_is_no_distribution_shift_and_is_warned_of(name: str):
    verdict = judge(DistributionShift(), name, matched=True)
    assert verdict.answer is not Answer.FAIL
    assert verdict.value == 0.0
    sign = judge(LogitError(exceedance=None), name, matched=True)
    assert sign.answer is Answer.FAIL  # it does err more than a control
    meant = LogitError(maximum_nats=1.0, exceedance=None, margin=None, minimum_pairs=16)
    assert judge(meant, name).answer is Answer.PASS


@pytest.mark.parametrize(
    "name", ["another system prompt in the template", "one leading space in the user text",
             "max_tokens 48 against 32, declared"],
)  # fmt: skip
def test_another_question_is_no_evidence(name: str):
    for gate in (ForkHazard(), LogitError(maximum_nats=1.0), DistributionShift(), TokenEquality()):
        verdict = judge(gate, name)
        assert (verdict.answer, verdict.n) == (Answer.INCONCLUSIVE, 0)


def test_another_seed_is_told_as_another_sampling_stream_and_disables_the_hazard():
    name = "T=0.8, another seed, not declared"
    hazard, shift = judge(ForkHazard(), name), judge(DistributionShift(), name, matched=True)
    assert hazard.answer is Answer.INCONCLUSIVE
    assert hazard.reason.startswith("disabled: ")
    assert shift.value == 0.0
    assert "draw from another sampling stream, which disables same-seed gates" in shift.reason


def test_a_control_of_another_load_is_no_control():
    """32 concurrent, with a control that ran alone and so has none of the noise of batching."""
    verdict = judge(LogitError(exceedance=None), "fp32, alone against 32 concurrent")
    assert (verdict.answer, verdict.n) == (Answer.INCONCLUSIVE, 0)
    assert "48 triples in unmatched bands of concurrency" in verdict.reason


def test_the_battery_is_the_one_that_these_names_are_of():
    assert len(ENTRIES) == len(json.loads((BATTERY / "pairs.json").read_text("utf-8"))) == 18
