"""What an audit runs: the reference engine's own steps, with the bits of every logit kept.

A request here is a :class:`~engines.reference.job.Job` of the engine, run by the engine's batch, so what is
audited is what would be served: chunked prefill, decoding, joining and leaving, every sampling processor.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch

from comparator.records import Sampling
from engines.reference.alone import AloneBatch
from engines.reference.batch import Batch
from engines.reference.job import Event, Job, generator_of
from engines.reference.model import LoadedModel
from engines.reference.text import TextOut

_TEXTS = (
    "Explain to a new colleague why two runs of one program can print different numbers.",
    "def mean(values):\n    total = 0.0\n    for value in values:\n        total +=",
    "请用三句话说明什么是浮点数舍入误差。",
    'Answer as JSON with the keys "city" and "country": where is the Rialto bridge?',
    "List the first ten prime numbers, then say which of them are even.",
    "The ship left the harbour at dawn, and by noon the wind had",
    "Translate into French: the order in which numbers are added changes their sum.",
    "Once upon a time there was a scheduler that never ran the same batch twice.",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How the engine would be run."""

    max_batch: int
    prefill_chunk: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request of the workload."""

    prompt: tuple[int, ...]
    params: Sampling


@dataclasses.dataclass(slots=True)
class Run:
    """What one request gave."""

    tokens: list[int] = dataclasses.field(default_factory=list)
    logits: list[torch.Tensor] = dataclasses.field(default_factory=list)
    """A step's logits ``[V]``, float32 on the CPU."""
    logprobs: list[tuple[float, ...]] = dataclasses.field(default_factory=list)
    batch_sizes: list[int] = dataclasses.field(default_factory=list)
    first_s: float = 0.0
    """From the first step of the whole run to this request's first token."""
    last_s: float = 0.0
    finished: bool = False


def greedy(model: LoadedModel, *, count: int, max_tokens: int) -> list[Ask]:
    """Requests of different lengths, decoded greedily to their full length."""
    params = Sampling(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, logprobs=5)
    return [Ask(prompt=_prompt(model, place, max_tokens), params=params) for place in range(count)]


def neighbours(model: LoadedModel, asks: Sequence[Ask], how: How, *, count: int) -> list[Ask]:
    """Requests that are still running when ``asks`` have been read, and stay as long as those do."""
    pieces = max(-(-len(ask.prompt) // how.prefill_chunk) for ask in asks)
    wanted = max(ask.params.max_tokens for ask in asks) + pieces + count
    long = greedy(model, count=count, max_tokens=min(wanted, model.max_model_len - 1))
    # Read in one piece, so that they join while the others are still decoding.
    return [Ask(prompt=ask.prompt[: how.prefill_chunk], params=ask.params) for ask in long]


def sampled(model: LoadedModel, *, max_tokens: int) -> list[Ask]:
    """Requests that take every path of the sampler, each by a seed of its own."""
    ways: tuple[dict[str, Any], ...] = (
        {"temperature": 0.8},
        {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "logprobs": 20},
        {
            "temperature": 0.7,
            "repetition_penalty": 1.1,
            "frequency_penalty": 0.5,
            "presence_penalty": 0.5,
            "logit_bias": {"1": -5.0, "2": 1.0},
            "min_tokens": 2,
            "logprobs": 1,
        },
    )
    return [
        Ask(
            prompt=_prompt(model, place, max_tokens),
            params=Sampling(max_tokens=max_tokens, seed=17 + place, ignore_eos=place != 2, **way),
        )
        for place, way in enumerate(ways)
    ]


def _prompt(model: LoadedModel, place: int, max_tokens: int) -> tuple[int, ...]:
    # Repeated by a number of its own, so that lengths differ and some span several pieces of prefill.
    text = " ".join([_TEXTS[place % len(_TEXTS)]] * (1 + place % 3))
    ids = model.tokenizer.encode(text) or [0]
    room = model.max_model_len - max_tokens
    if room < 1:
        raise ValueError(f"--max-model-len {model.max_model_len} leaves no room for {max_tokens} tokens")
    return tuple(int(one) for one in ids[:room])


def run(
    model: LoadedModel,
    asks: Sequence[Ask],
    how: How,
    *,
    alone: bool,
    keep_logits: bool = False,
    before: Sequence[Ask] = (),
) -> list[Run]:
    """Run requests to their ends, on this thread.

    Args:
        alone: a forward pass for each request (:class:`AloneBatch`); else they share passes.
        before: requests that are under way, one token each, when ``asks`` arrive; they are run too, and their
            results stand first in the answer.
    """
    kind = _KeepingAlone if alone else _Keeping
    batch = kind(model, max_batch=how.max_batch, prefill_chunk=how.prefill_chunk)
    began = time.perf_counter()
    runs = [Run() for _ in (*before, *asks)]
    batch.kept = {str(place): one for place, one in enumerate(runs)} if keep_logits else {}
    for place, ask in enumerate(before):
        batch.submit(_job(model, ask, str(place), runs[place], began))
    while any(not one.tokens for one in runs[: len(before)]):
        batch.step()
    for place, ask in enumerate(asks, len(before)):
        batch.submit(_job(model, ask, str(place), runs[place], began))
    while not batch.idle:
        batch.step()
    return runs


def _job(model: LoadedModel, ask: Ask, job_id: str, told: Run, began: float) -> Job:
    def emit(event: Event) -> None:
        assert event.token_id is not None
        assert event.logprob is not None
        now_s = time.perf_counter() - began
        if not told.tokens:
            told.first_s = now_s
        told.last_s = now_s
        told.tokens.append(event.token_id)
        told.logprobs.append((event.logprob, *event.top_logprobs))
        told.batch_sizes.append(event.batch_size)
        told.finished = event.finish_reason is not None

    eos: frozenset[int] = frozenset() if ask.params.ignore_eos else frozenset(model.eos_token_ids)
    return Job(
        job_id=job_id,
        prompt=ask.prompt,
        params=ask.params,
        generator=generator_of(ask.params.seed),
        ends=eos.union(ask.params.stop_token_ids),
        eos=eos,
        text=TextOut(model.tokenizer, ask.prompt, ask.params.stop),
        emit=emit,
    )


class _Keeping(Batch):
    kept: dict[str, Run] = {}  # noqa: RUF012 -- run() gives each instance its own

    @torch.inference_mode()
    def _emit(self, logits_BV: torch.Tensor, jobs: list[Job], *, first_place: int) -> list[int]:
        for row, job in enumerate(jobs):
            if job.job_id in self.kept:
                self.kept[job.job_id].logits.append(logits_BV[row].to("cpu", copy=True))
        ended: list[int] = super()._emit(logits_BV, jobs, first_place=first_place)
        return ended


class _KeepingAlone(_Keeping, AloneBatch):
    """The same, a forward pass for each request."""
