"""One generation under way in the engine's thread, and what each of its steps tells."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from comparator.records import Sampling
from engines.reference.text import TextOut


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One generated token of one job, or its end without one (``token_id`` None)."""

    job_id: str
    token_id: int | None
    logprob: float | None
    top_ids: list[int]
    top_logprobs: list[float]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    batch_size: int
    """Rows of the forward pass that gave this token."""
    batch_place: int
    """This job's row in it."""


@dataclasses.dataclass(slots=True, kw_only=True)
class Job:
    """Mutable, owned by the engine's thread once it is submitted."""

    job_id: str
    prompt: tuple[int, ...]
    params: Sampling
    generator: torch.Generator
    ends: frozenset[int]
    """Token IDs that end it: end-of-sequence unless ignored, and the request's own."""
    eos: frozenset[int]
    """Those of ``ends`` that are the model's own, told without a stop reason."""
    text: TextOut
    emit: Callable[[Event], None]
    priority: int = 0
    output: list[int] = dataclasses.field(default_factory=list)

    @property
    def plain(self) -> bool:
        """True when no processor changes this step's logits before the temperature."""
        params = self.params
        return (
            len(self.output) >= params.min_tokens
            and not params.logit_bias
            and params.repetition_penalty == 1.0
            and not params.frequency_penalty
            and not params.presence_penalty
        )


def generator_of(seed: int) -> torch.Generator:
    """A stream of randomness that is one request's own."""
    return torch.Generator(device="cpu").manual_seed(seed)
