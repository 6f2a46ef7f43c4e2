"""The batch is part of the environment: its size moves the real model's bfloat16 logits, by rounding."""

from __future__ import annotations

import torch

from comparator.records import Sampling
from engines.model import ensure_smollm2
from engines.reference import model
from engines.reference.batch import Batch
from engines.reference.job import Event, Job, generator_of
from engines.reference.model import LoadedModel
from engines.reference.options import DType, EngineServerOptions
from engines.reference.text import TextOut

PROMPTS = [
    "The history of the lighthouse begins",
    "A good loaf of bread needs",
    "When the snow had melted, they",
    "The committee could not agree on",
    "In the middle of the night a sound",
    "Two of the three sisters lived",
]
STEPS = 10


def load(dtype: DType) -> LoadedModel:
    return model.load(EngineServerOptions(model_dir=str(ensure_smollm2()), dtype=dtype))


def answers(loaded: LoadedModel, prompts: list[str]) -> list[list[Event]]:
    """Greedy answers of prompts that share every decoding pass."""
    batch = Batch(loaded, max_batch=len(prompts), prefill_chunk=512)
    events: list[list[Event]] = [[] for _ in prompts]
    for place, text in enumerate(prompts):
        prompt = tuple(loaded.tokenizer.encode(text))
        batch.submit(
            Job(
                job_id=str(place),
                prompt=prompt,
                params=Sampling(max_tokens=STEPS + place, temperature=0.0, logprobs=5, ignore_eos=True),
                generator=generator_of(0),
                ends=frozenset(),
                eos=frozenset(),
                text=TextOut(loaded.tokenizer, prompt, ()),
                emit=events[place].append,
            )
        )
    while not batch.idle:
        batch.step()
    return [one[:STEPS] for one in events]


def moved_nats(alone: list[Event], crowd: list[Event]) -> float:
    """Largest change of a drawn token's logprob while the two answers still have one prefix."""
    moved = 0.0
    for one, other in zip(alone, crowd, strict=True):
        if one.token_id != other.token_id:
            break
        assert one.logprob is not None
        assert other.logprob is not None
        moved = max(moved, abs(one.logprob - other.logprob))
    return moved


def test_the_batch_size_changes_bfloat16_logits_and_repeating_does_not() -> None:
    loaded = load(DType.BFLOAT16)
    assert loaded.network.dtype is torch.bfloat16
    alone = [answers(loaded, [text])[0] for text in PROMPTS]
    again = [answers(loaded, [text])[0] for text in PROMPTS[:2]]
    crowd = answers(loaded, PROMPTS)
    assert {event.batch_size for one in alone for event in one} == {1}
    assert max(event.batch_size for one in crowd for event in one) == len(PROMPTS)
    assert [[e.logprob for e in one] for one in again] == [[e.logprob for e in one] for one in alone[:2]]
    moved = [moved_nats(one, other) for one, other in zip(alone, crowd, strict=True)]
    assert max(moved) > 1e-3
    assert max(moved) < 1.0  # rounding, not another model


def test_float32_logits_hardly_move_with_the_batch() -> None:
    loaded = load(DType.FLOAT32)
    alone = [answers(loaded, [text])[0] for text in PROMPTS[:3]]
    crowd = answers(loaded, PROMPTS[:3])
    for one, other in zip(alone, crowd, strict=True):
        assert [event.token_id for event in one] == [event.token_id for event in other]
        assert moved_nats(one, other) < 1e-3


def test_bfloat16_is_the_same_model_as_float32_within_its_precision() -> None:
    text = PROMPTS[:1]
    narrow, wide = answers(load(DType.BFLOAT16), text)[0], answers(load(DType.FLOAT32), text)[0]
    assert narrow[0].token_id == wide[0].token_id
    assert 1e-6 < moved_nats(narrow, wide) < 0.5
