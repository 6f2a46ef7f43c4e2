"""Real answers of a real engine under known changes, compared.

``tests/data/generations.jsonl.gz``: one prompt on vLLM 0.32.0 (CPU) with SmolLM2-135M-Instruct, greedy,
top-20 raw logprobs a step, the sampled token first. Engines: fp32, bf16, and ``drop`` (one layer's
output projection zeroed). ``greedy_concurrent``: among 32 requests in flight.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from comparator.align import PairAligner
from comparator.compare import compare
from comparator.evidence import Batch, ComparisonDone, EvidenceStore
from comparator.evidence.explain import explain
from comparator.pair import Pair, SetAside
from comparator.records import Arm, Exchange, Sampling, Step
from tests.support.exchanges import comparison, exchange

DATA = Path(__file__).resolve().parents[2] / "data" / "generations.jsonl.gz"


def generations() -> dict[tuple[str, str], dict[str, Any]]:
    with gzip.open(DATA, "rt", encoding="utf-8") as file:
        return {(line["engine"], line["variant"]): line for line in map(json.loads, file)}


GENERATIONS = generations()


def as_exchange(engine: str, variant: str, arm: Arm) -> Exchange:
    said = GENERATIONS[engine, variant]
    steps = [
        Step(
            token_id=token_id,
            logprob=top[0][1],
            top_ids=tuple(entry[0] for entry in top),
            top_logprobs=tuple(entry[1] for entry in top),
            received_s=0.0,
        )
        for token_id, top in zip(said["token_ids"], said["top"], strict=True)
    ]
    return exchange(
        steps=steps,
        arm=arm,
        prompt=said["prompt_token_ids"],
        sampling=Sampling(max_tokens=48, temperature=0.0, logprobs=20),
        finish_reason=said["finish_reason"],
    )


def compared(left: tuple[str, str], right: tuple[str, str]) -> Pair:
    return compare(as_exchange(*left, Arm.BASELINE), as_exchange(*right, Arm.CANDIDATE))


def test_batching_alone_forks_bf16_at_a_tie():
    made = compared(("bf16", "greedy"), ("bf16", "greedy_concurrent"))
    assert made.valid
    assert made.fork is not None
    assert made.fork.fork_index == 9
    assert made.fork.left.margin_nats == 0.0
    assert made.fork.left.top_ids[:2] != made.fork.right.top_ids[:2]
    assert set(made.fork.left.top_ids[:2]) == set(made.fork.right.top_ids[:2])
    assert made.fork.max_error_nats == pytest.approx(0.125, abs=1e-3)


def test_another_precision_forks_with_a_small_error():
    made = compared(("fp32", "greedy"), ("bf16", "greedy"))
    assert made.fork is not None
    assert made.fork.fork_index == 9
    assert made.fork.max_error_nats == pytest.approx(0.133, abs=1e-3)


def test_a_damaged_layer_forks_with_a_large_error():
    made = compared(("bf16", "greedy"), ("drop", "greedy"))
    assert made.fork is not None
    assert made.fork.max_error_nats is not None
    assert made.fork.max_error_nats > 2.0


def test_another_system_prompt_is_an_encoding_mismatch():
    made = compared(("fp32", "greedy"), ("fp32", "system_prompt_changed"))
    assert made.set_aside is SetAside.ENCODING_MISMATCH
    assert made.fork is None


@pytest.mark.parametrize(
    ("mine", "others"),
    [(("bf16", "greedy"), ("bf16", "greedy_concurrent")), (("fp32", "greedy"), ("bf16", "greedy"))],
)
def test_streaming_token_by_token_says_the_same(mine, others):
    left, other = as_exchange(*mine, Arm.BASELINE), as_exchange(*others, Arm.CANDIDATE)
    aligner = PairAligner()
    seen_at = None
    for index in range(48):
        aligner.push(Arm.BASELINE, left.steps[index : index + 1])
        if aligner.push(Arm.CANDIDATE, other.steps[index : index + 1]) is not None:
            seen_at = index
    made = compare(left, other)
    assert made.fork is not None
    assert aligner.fork == made.fork
    assert seen_at == made.fork.fork_index


def test_stored_and_compared_again_it_is_the_same_fork(tmp_path):
    made = compared(("fp32", "greedy"), ("bf16", "greedy"))
    with EvidenceStore(tmp_path / "e", 10_000_000) as store:
        store.add(
            Batch(comparisons=(ComparisonDone(comparison=comparison(made), incarnation="e", sequence=1),))
        )
        shown = store.show("capture")
    left, right = (stored.exchange for stored in shown.exchanges)
    assert compare(left, right) == made
    assert explain(shown)[0].stored_matches_recomputed is True
