"""Processors and filters against their definitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from comparator.records import Sampling
from engines.reference import sampling
from engines.reference.job import Job, generator_of

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, 1.0, -3.0]])


def job_of(params: Sampling, *, prompt: Sequence[int] = (0,), output: Sequence[int] = ()) -> Job:
    return Job(
        job_id="x",
        prompt=tuple(prompt),
        params=params,
        generator=generator_of(params.seed),
        ends=frozenset({5}),
        eos=frozenset({5}),
        text=None,  # type: ignore[arg-type]
        emit=lambda _event: None,
        output=list(output),
    )


def support(**params: Any) -> set[int]:
    """Every token that 400 seeds draw: at these logits none that is allowed is rarer than 1 in 60."""
    chosen = set()
    for seed in range(400):
        job = job_of(Sampling(max_tokens=9, seed=seed, **params))
        chosen.add(sampling.choose(LOGITS / 2, [job])[0])
    return chosen


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 4}),  # the tie at the third place is not broken
        ({"top_k": 2}, {0, 1, 4}),
        ({"top_k": 99}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.3}, {0}),
        ({"top_p": 0.01}, {0}),
        ({"min_p": 1.0}, {0}),
        ({"min_p": 0.55}, {0, 1, 4}),  # e^-0.5 = 0.607 of the likeliest
        ({"min_tokens": 3}, {0, 1, 2, 3, 4}),
        ({"logit_bias": {"0": -100.0, "3": -100.0}}, {1, 2, 4, 5}),
    ],
)
def test_filters_leave_exactly_the_tokens_of_their_definition(
    params: dict[str, Any], expected: set[int]
) -> None:
    assert support(**params) == expected


def test_top_p_keeps_the_smallest_set_that_holds_its_mass() -> None:
    probabilities = torch.tensor([[0.4, 0.3, 0.2, 0.1]])
    chosen = set()
    for seed in range(300):
        job = job_of(Sampling(max_tokens=9, seed=seed, top_p=0.69))
        chosen.add(sampling.choose(probabilities.log(), [job])[0])
    assert chosen == {0, 1}


def processed(params: Sampling, **job: Any) -> torch.Tensor:
    return sampling._processed(LOGITS[0], job_of(params, **job))


def test_penalties_follow_their_formulas() -> None:
    """Repetition as in Keskar et al. 2019 (CTRL), eq. 2; frequency and presence as OpenAI documents them."""
    told = processed(Sampling(max_tokens=9, repetition_penalty=2.0), prompt=(0,), output=(3, 3))
    assert told.tolist() == [1.0, 1.0, 0.5, -2.0, 1.0, -3.0]
    told = processed(
        Sampling(max_tokens=9, frequency_penalty=0.5, presence_penalty=0.25), prompt=(0,), output=(3, 3, 1)
    )
    assert told.tolist() == [2.0, 0.25, 0.5, -2.25, 1.0, -3.0]
    assert LOGITS[0].tolist() == [2.0, 1.0, 0.5, -1.0, 1.0, -3.0]  # the batch's own logits stay as they are


def test_greedy_breaks_ties_by_token_id() -> None:
    tied = torch.tensor([[1.0, 3.0, 3.0, 0.0]])
    for temperature in (0.0, 1e-6):
        assert sampling.choose(tied, [job_of(Sampling(max_tokens=1, temperature=temperature))]) == [1]


def test_top_logprobs_are_those_of_log_softmax_with_ties_by_id() -> None:
    torch.manual_seed(3)
    # bfloat16 logits tie often, also at the edge of the top k.
    logits = torch.randn(5, 2000).bfloat16().float()
    ids, values, logprobs = sampling.top_logprobs(logits, 20)
    expected = torch.log_softmax(logits, dim=-1)
    assert torch.equal(logprobs, expected)
    for row in range(5):
        ranked = sorted(range(2000), key=lambda one: (-float(expected[row, one]), one))[:20]
        assert ids[row] == ranked
        assert values[row] == [float(expected[row, one]) for one in ranked]
    assert sampling.top_logprobs(logits, 0)[:2] == ([[]] * 5, [[]] * 5)


def test_a_step_of_noise_is_used_whatever_the_step_does() -> None:
    """Draw t of a seed is the same noise whether a filter stood before it or not."""
    plain, filtered = job_of(Sampling(max_tokens=9, seed=4)), job_of(Sampling(max_tokens=9, seed=4, top_k=1))
    sampling.choose(LOGITS, [plain])
    sampling.choose(LOGITS, [filtered])
    assert torch.equal(plain.generator.get_state(), filtered.generator.get_state())
