"""The reference model, run over many prompts in batches: tokens, and at each step the two likeliest.

torch and transformers are imported here alone, so that the suite is rebuilt and checked without them.

Shape legend: B prompts of a batch, T positions, V vocabulary.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
import transformers

from engines.model import ensure_smollm2
from policies.suites.sample import Sample

MODEL = "SmolLM2-135M-Instruct"
_BATCH_TOKENS = 24_000
"""Prompt tokens and tokens to come, of a batch, padding included; some 550 MB of keys and values."""
_BATCH_MOST = 64


class Step(msgspec.Struct, frozen=True):
    """One step's two likeliest tokens; ``margin_nats`` is the first's logprob minus the second's."""

    first: int
    second: int
    margin_nats: float


class Generation(msgspec.Struct, frozen=True):
    """``text`` is without special tokens; ``steps`` is one longer than ``tokens`` where the model stopped."""

    text: str
    tokens: list[int]
    steps: list[Step]


class ReferenceModel:
    """SmolLM2-135M-Instruct on the CPU, as the reference engine asks it: same template, same end tokens."""

    def __init__(self) -> None:
        # One thread: the result does not hang on their number, and a busy machine stalls a pool of them.
        torch.set_num_threads(1)
        transformers.utils.logging.disable_progress_bar()
        folder = ensure_smollm2()
        mark = json.loads((folder / "forkgate-model.json").read_text(encoding="utf-8"))
        self.weights_sha256: str = mark["gguf_sha256"]
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.end: int = self.tokenizer.eos_token_id
        self._folder: pathlib.Path = folder
        self._networks: dict[torch.dtype, Any] = {}

    def encode(self, sample: Sample) -> list[int]:
        if sample.prompt is not None:
            ids: list[int] = self.tokenizer.encode(sample.prompt, add_special_tokens=False)
            return ids
        turns = [{"role": turn.role, "content": turn.content} for turn in sample.messages]
        text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        templated: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return templated

    def run(
        self,
        samples: Sequence[Sample],
        most_tokens: Sequence[int],
        *,
        dtype: torch.dtype = torch.float32,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> list[Generation]:
        """One generation a sample, in their order.

        ``temperature`` 0 is greedy. Stop strings are not applied: they cut a text, they do not change it.
        """
        prompts = [self.encode(sample) for sample in samples]
        out: list[Generation | None] = [None] * len(samples)
        noise = torch.Generator().manual_seed(seed)
        for batch in _batches(prompts, most_tokens):
            made = self._batch(
                [prompts[at] for at in batch], [most_tokens[at] for at in batch], dtype, temperature, noise
            )
            for at, generation in zip(batch, made, strict=True):
                out[at] = generation
        return [generation for generation in out if generation is not None]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def _batch(
        self,
        prompts: list[list[int]],
        most: list[int],
        dtype: torch.dtype,
        temperature: float,
        noise: torch.Generator,
    ) -> list[Generation]:
        network = self._network(dtype)
        width = max(len(prompt) for prompt in prompts)
        tokens_BT = torch.tensor([[self.end] * (width - len(one)) + one for one in prompts])
        mask_BT = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in prompts])
        positions_BT = (mask_BT.cumsum(-1) - 1).clamp(min=0)
        cache = transformers.DynamicCache(config=network.config)
        made: list[list[int]] = [[] for _ in prompts]
        steps: list[list[Step]] = [[] for _ in prompts]
        rows = list(range(len(prompts)))  # rows[k]: which prompt the k-th row of the tensors is
        running = set(rows)
        while running:
            logits_BV = network(
                input_ids=tokens_BT, attention_mask=mask_BT, position_ids=positions_BT, cache=cache,
                use_cache=True, logits_to_keep=1,
            ).logits[:, -1].float()  # fmt: skip
            logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
            values_B2, ids_B2 = logprobs_BV.topk(2, dim=-1)
            chosen = ids_B2[:, 0]
            if temperature > 0:
                chosen = torch.multinomial((logits_BV / temperature).softmax(-1), 1, generator=noise)[:, 0]
            tops = zip(rows, chosen.tolist(), ids_B2.tolist(), values_B2.tolist(), strict=True)
            for at, token, (first, second), (high, low) in tops:
                if at not in running:
                    continue
                steps[at].append(Step(first, second, high - low))
                if token != self.end:
                    made[at].append(token)
                if token == self.end or len(made[at]) == most[at]:
                    running.remove(at)
            tokens_BT = chosen[:, None]
            mask_BT = torch.cat([mask_BT, torch.ones_like(tokens_BT)], dim=-1)
            positions_BT = positions_BT[:, -1:] + 1
            if running and len(running) < 0.8 * len(rows):
                left = torch.tensor([k for k, at in enumerate(rows) if at in running])
                rows = [rows[k] for k in left.tolist()]
                cache.batch_select_indices(left)
                tokens_BT, mask_BT, positions_BT = tokens_BT[left], mask_BT[left], positions_BT[left]
        texts = [self.tokenizer.decode(ids, skip_special_tokens=True) for ids in made]
        return [Generation(*parts) for parts in zip(texts, made, steps, strict=True)]

    def _network(self, dtype: torch.dtype) -> Any:
        if dtype not in self._networks:
            loaded = transformers.AutoModelForCausalLM.from_pretrained(
                self._folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
            )
            self._networks[dtype] = loaded.eval()
        return self._networks[dtype]


def _batches(prompts: list[list[int]], most: Sequence[int]) -> Iterator[list[int]]:
    """Indices of prompts that run for as long, and of like length, so that little is run for nothing."""
    batch: list[int] = []
    width = 0
    for at in sorted(range(len(prompts)), key=lambda at: (most[at], len(prompts[at]))):
        wider = max(width, len(prompts[at]) + most[at])
        if batch and (len(batch) == _BATCH_MOST or wider * (len(batch) + 1) > _BATCH_TOKENS):
            yield batch
            batch, wider = [], len(prompts[at]) + most[at]
        batch.append(at)
        width = wider
    if batch:
        yield batch
