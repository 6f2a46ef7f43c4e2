"""Memory that an engine holds: a cap, and what cannot be measured."""

from __future__ import annotations

import math
from typing import Any

import pytest

from comparator.records import EngineSample, Fact
from policies.gates import GpuMemory
from policies.gates.base import Alpha
from policies.gates.gpu_memory import MOST_ENDPOINTS
from policies.verdict import Answer
from tests.support.exchanges import live

ALPHA = Alpha(rollback=0.01, promotion=0.05)
GIB = 2**30


def sample(
    memory: Any, *, candidate: bool = True, endpoint: str = "http://gpu-1", number: int = 0
) -> EngineSample:
    fact = memory if isinstance(memory, Fact) else Fact(value=memory)
    return EngineSample(
        rollout="old-to-new",
        pool="new" if candidate else "old",
        endpoint=endpoint,
        candidate=candidate,
        unix_s=1_700_000_000.0 + number,
        running=0,
        waiting=0,
        kv_cache_usage=Fact(value=0.1),
        memory_bytes=fact,
        generated_tokens=Fact(value=0),
    )


def judge(gate: GpuMemory, items):
    state = gate.initial()
    for item in items:
        state = gate.fold(state, item)
    return gate.verdict(state, ALPHA)


CAP = GpuMemory(maximum_bytes=40 * GIB, minimum_samples=2)
RATIO = GpuMemory(maximum_ratio=1.1, minimum_samples=2)


def test_enough_samples_within_the_cap_pass():
    verdict = judge(CAP, [sample(39 * GIB)] * 2)
    assert (verdict.answer, verdict.value, verdict.limit, verdict.n) == (
        Answer.PASS,
        39.0 * GIB,
        40.0 * GIB,
        2,
    )
    assert verdict.reason == "the candidate holds 39.000 GiB of memory, within its limits"


def test_one_moment_over_the_cap_fails_for_good():
    items = [sample(30 * GIB), sample(41 * GIB), *[sample(30 * GIB)] * 50]
    verdict = judge(CAP, items)
    assert verdict.answer is Answer.FAIL
    assert verdict.reason == "the candidate holds 41.000 GiB of memory, over 40.000 GiB"


def test_the_largest_endpoint_counts():
    items = [sample(30 * GIB), sample(45 * GIB, endpoint="http://gpu-2")]
    assert judge(CAP, items).answer is Answer.FAIL


def test_too_few_samples_of_any_endpoint_are_inconclusive():
    items = [sample(30 * GIB)] * 9 + [sample(30 * GIB, endpoint="http://gpu-2")]
    verdict = judge(CAP, items)
    assert verdict.answer is Answer.INCONCLUSIVE
    assert verdict.reason == "1 samples of the candidate's memory; 2 an endpoint are needed"
    assert judge(CAP, []).answer is Answer.INCONCLUSIVE


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        (Fact(unknown="the engine's metrics have no such gauge"), "the engine's metrics have no such gauge"),
        (math.nan, "nan is no number of bytes"),
        (math.inf, "inf is no number of bytes"),
        (-5, "-5 is no number of bytes"),
        ("many", "'many' is no number of bytes"),
        (True, "True is no number of bytes"),
    ],
)
def test_what_is_not_told_could_not_be_measured_and_never_passes(memory, why):
    verdict = judge(CAP, [*[sample(30 * GIB)] * 5, sample(memory)])
    assert verdict.answer is Answer.ERROR
    assert verdict.reason == f"could not measure the memory of the candidate at http://gpu-1: {why}"


def test_once_it_is_told_again_it_is_measured_again():
    items = [sample(Fact(unknown="starting")), *[sample(30 * GIB)] * 2]
    assert judge(CAP, items).answer is Answer.PASS


def test_over_the_cap_is_a_failure_though_it_is_no_longer_told():
    items = [sample(41 * GIB), sample(Fact(unknown="gone"))]
    assert judge(CAP, items).answer is Answer.FAIL


def test_a_ratio_is_of_the_largest_of_either_pool():
    baseline = [sample(20 * GIB, candidate=False), sample(30 * GIB, candidate=False)]
    assert judge(RATIO, [*baseline, *[sample(33 * GIB)] * 2]).answer is Answer.PASS
    verdict = judge(RATIO, [*baseline, *[sample(34 * GIB)] * 2])
    assert verdict.answer is Answer.FAIL
    assert verdict.reason == (
        "the candidate holds 34.000 GiB of memory, 1.133 x the baseline's 30.000 GiB, over 1.1 x"
    )


def test_a_ratio_to_an_unknown_baseline_could_not_be_measured():
    unknown = [sample(Fact(unknown="no gauge"), candidate=False)]
    verdict = judge(RATIO, [*unknown, *[sample(33 * GIB)] * 2])
    assert verdict.answer is Answer.ERROR
    assert "the memory of the baseline at http://gpu-1: no gauge" in verdict.reason
    assert judge(CAP, [*unknown, *[sample(33 * GIB)] * 2]).answer is Answer.PASS  # asked nothing of it
    nothing = [sample(0, candidate=False)] * 2
    assert judge(RATIO, [*nothing, *[sample(33 * GIB)] * 2]).answer is Answer.ERROR


def test_endpoints_are_bounded():
    gate, state = CAP, CAP.initial()
    for number in range(MOST_ENDPOINTS + 3):
        state = gate.fold(state, sample(1, endpoint=f"http://gpu-{number}"))
    assert (len(state.candidate), state.left_out) == (MOST_ENDPOINTS, 3)


def test_other_evidence_leaves_the_state_itself():
    before = CAP.initial()
    assert CAP.fold(before, live(canary=True)) is before


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({}, "maximum_bytes or maximum_ratio: give at least one, or the gate limits nothing"),
        ({"maximum_bytes": 0}, "maximum_bytes: 0 is under 1; no engine runs in nothing"),
        ({"maximum_ratio": -1.0}, "maximum_ratio: -1.0 is not above 0"),
        ({"maximum_ratio": 1.0, "minimum_samples": 0}, "minimum_samples: 0 is under 1; no data is no pass"),
    ],
)
def test_bad_limits_are_refused_with_a_way_out(limits, message):
    with pytest.raises(ValueError) as caught:
        GpuMemory(**limits)
    assert str(caught.value) == message
