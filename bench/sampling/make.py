"""``python -m bench.sampling.make [DIR]``: sampled answers of a real model under known changes.

SmolLM2-135M answers forty prompts with 32 seeds each in every environment of :data:`ENVIRONMENTS`, up to
24 tokens, in process: about ten minutes on two cores with AMX. Draws are an exponential race whose noise is a
function of prompt, seed and position alone, so that two environments with the same seeds are coupled as two
endpoints of one engine are. Beside the answers the script stores what the truth is: the total variation
distance between baseline and environment over whole answers, estimated without bias as the mean of max(0, 1 -
q/p) over the baseline's own answers, q and p their probabilities under both.

Weights "rounded to b bits" are rounded to the nearest of 2^b levels in groups of 32 values along the input,
symmetrically, and computed with as bfloat16 again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers

from bench.sampling.data import FOLDER, Environment
from bench.sampling.prompts import PROMPTS
from engines.model import ensure_smollm2

SEEDS = 32
TOKENS = 24
ROWS = 256
"""Answers in one forward pass."""
OTHER_ROWS = 96
"""And where the same seeds run in other batches: a machine's own noise."""
GROUP = 32
"""Values that share a scale where weights are rounded."""
NUCLEUS = 4_096
SCORED = 8
"""Answers of each prompt whose probability is asked for: enough for a distance to about .02."""

ENVIRONMENTS = (
    Environment(name="baseline", temperature=1.0),
    Environment(name="temperature .9", temperature=0.9),
    Environment(name="top-p .9", temperature=1.0, top_p=0.9),
    Environment(name="again", temperature=1.0, first_seed=SEEDS),
    Environment(name="rebatched", temperature=1.0, rows=OTHER_ROWS),
    Environment(name="float32", temperature=1.0, dtype="float32"),
    Environment(name="baseline, T .7", temperature=0.7, of="baseline, T .7"),
    Environment(name="again, T .7", temperature=0.7, first_seed=SEEDS, of="baseline, T .7"),
    Environment(name="4 bits", temperature=1.0, bits=4),
    Environment(name="3 bits", temperature=1.0, bits=3),
    Environment(name="3 bits, T .7", temperature=0.7, bits=3, of="baseline, T .7"),
)


class Model:
    """One network, its prompts encoded, and where it ends."""

    def __init__(self, folder: Path, dtype: str, bits: int | None) -> None:
        self.network = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), local_files_only=True
        ).eval()
        if bits is not None:
            _round_weights(self.network, bits)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.end_id = int(tokenizer.eos_token_id)
        self.prompts = [
            tokenizer.encode(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
                ),
                add_special_tokens=False,
            )
            for text in PROMPTS
        ]

    @torch.inference_mode()
    def prefill(self, which: list[int], repeats: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Cache, first logits [B, V] and mask [B, T] of these prompts, each ``repeats`` times in a row."""
        longest = max(len(self.prompts[i]) for i in which)
        ids = torch.full((len(which), longest), self.end_id)
        mask = torch.zeros((len(which), longest), dtype=torch.long)
        for row, prompt in enumerate(which):
            tokens = self.prompts[prompt]
            ids[row, longest - len(tokens) :] = torch.tensor(tokens)
            mask[row, longest - len(tokens) :] = 1
        said = self.network(
            input_ids=ids,
            attention_mask=mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
        )
        said.past_key_values.batch_repeat_interleave(repeats)
        first = said.logits[:, -1].float().repeat_interleave(repeats, 0)
        return said.past_key_values, first, mask.repeat_interleave(repeats, 0)

    @torch.inference_mode()
    def more(self, cache: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Logits [B, Q, V] after each of Q further tokens; the mask holds them already."""
        positions = (mask.cumsum(1) - 1)[:, -ids.shape[1] :]
        logits = self.network(
            input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True
        ).logits
        return logits.float()


def _round_weights(network: Any, bits: int) -> None:
    most = 2 ** (bits - 1) - 1
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            weight = module.weight.data
            groups = weight.float().reshape(weight.shape[0], -1, GROUP)
            step = groups.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
            rounded = (groups / step).round().clamp(-most, most) * step
            module.weight.data = rounded.reshape(weight.shape).to(weight.dtype)


def processed(logits: torch.Tensor, environment: Environment) -> torch.Tensor:
    """Log-probabilities that are drawn from, the last axis being the vocabulary."""
    logprobs = torch.log_softmax(logits / environment.temperature, dim=-1)
    if environment.top_p < 1.0:
        # The nucleus is nearly always within the first few thousand; a full sort of all rows costs minutes.
        ordered = logprobs.topk(NUCLEUS, dim=-1).values
        if bool((ordered.exp().sum(-1) < environment.top_p).any()):
            ordered = logprobs.sort(dim=-1, descending=True).values
        mass = ordered.exp()
        kept = (mass.cumsum(-1) - mass < environment.top_p).sum(-1, keepdim=True)
        last = ordered.gather(-1, kept - 1)
        logprobs = torch.log_softmax(logprobs.masked_fill(logprobs < last, -torch.inf), dim=-1)
    return logprobs


def _clocks(prompt: int, seed: int, step: int, size: int) -> torch.Tensor:
    """log of the race's exponential clocks."""
    generator = torch.Generator().manual_seed((prompt * 1_000 + seed) * 1_000 + step)
    return (-(torch.rand(size, generator=generator).clamp(min=1e-12).log())).log()


def generate(model: Model, environment: Environment) -> list[list[list[int]]]:
    """Token IDs by prompt and seed; a closing end-of-turn token is among them."""
    found: list[list[list[int]]] = [[[] for _ in range(SEEDS)] for _ in model.prompts]
    at_once = max(1, environment.rows // SEEDS) if environment.rows else ROWS // SEEDS
    for start in range(0, len(model.prompts), at_once):
        which = list(range(start, min(start + at_once, len(model.prompts))))
        cache, logits, mask = model.prefill(which, SEEDS)
        rows = [(prompt, seed) for prompt in which for seed in range(SEEDS)]
        open_rows = [True] * len(rows)
        for step in range(TOKENS):
            scores = processed(logits, environment)
            for row, (prompt, seed) in enumerate(rows):
                if open_rows[row]:
                    scores[row] -= _clocks(prompt, seed + environment.first_seed, step, scores.shape[1])
            drawn = scores.argmax(-1)
            for row, (prompt, seed) in enumerate(rows):
                if open_rows[row]:
                    token = int(drawn[row])
                    found[prompt][seed].append(token)
                    open_rows[row] = token != model.end_id
            if step + 1 == TOKENS or not any(open_rows):
                break
            mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
            logits = model.more(cache, drawn[:, None], mask)[:, -1]
    return found


def score(model: Model, answers: list[list[list[int]]], environments: list[Environment]) -> list[list[float]]:
    """log-probability of every answer under each environment that this network serves, prompt by prompt."""
    found: list[list[float]] = [[] for _ in environments]
    for prompt, every in enumerate(answers):
        said = every[:SCORED]
        cache, first, mask = model.prefill([prompt], len(said))
        ids = torch.zeros((len(said), TOKENS), dtype=torch.long)
        held = torch.zeros((len(said), TOKENS), dtype=torch.bool)
        for row, tokens in enumerate(said):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            held[row, : len(tokens)] = True
        mask = torch.cat([mask, torch.ones((len(said), TOKENS - 1), dtype=torch.long)], dim=1)
        logits = torch.cat([first[:, None], model.more(cache, ids[:, :-1], mask)], dim=1)
        for into, environment in zip(found, environments, strict=True):
            logprobs = processed(logits, environment).gather(-1, ids[..., None])[..., 0]
            into.extend(torch.where(held, logprobs, 0.0).sum(1).tolist())
    return found


def main(arguments: list[str] | None = None) -> int:
    """Make the folder; what was done is told on stderr."""
    parser = argparse.ArgumentParser(prog="python -m bench.sampling.make", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument(
        "--threads", type=int, default=2, help="torch's; more than idle cores is slower than one"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    weights = ensure_smollm2()
    answers: dict[str, list[list[list[int]]]] = {}
    scored: dict[tuple[str, str], list[float]] = {}
    networks = sorted({(e.dtype, e.bits or 0) for e in ENVIRONMENTS}, key=lambda one: (one[1] != 0, one))
    networks.sort(key=lambda one: one != ("bfloat16", 0))  # the baseline first: all others score its answers
    for dtype, bits in networks:
        model = Model(weights, dtype, bits or None)
        mine = [e for e in ENVIRONMENTS if (e.dtype, e.bits or 0) == (dtype, bits)]
        for environment in mine:
            started_s = time.monotonic()
            answers[environment.name] = generate(model, environment)
            tokens = sum(len(said) for prompt in answers[environment.name] for said in prompt)
            sys.stderr.write(f"{environment.name}: {tokens} tokens in {time.monotonic() - started_s:.0f} s\n")
        for of in sorted({e.of for e in mine}):
            judged = [e for e in mine if e.of == of]
            started_s = time.monotonic()
            for environment, values in zip(judged, score(model, answers[of], judged), strict=True):
                scored[environment.name, of] = values
            sys.stderr.write(f"  answers of {of!r} scored in {time.monotonic() - started_s:.0f} s\n")
    _write(options.folder, answers, scored)
    return 0


def _write(
    folder: Path, answers: dict[str, list[list[list[int]]]], scored: dict[tuple[str, str], list[float]]
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    told = []
    for environment in ENVIRONMENTS:
        ours, theirs = scored[environment.of, environment.of], scored[environment.name, environment.of]
        apart = [max(0.0, 1.0 - math.exp(q - p)) for p, q in zip(ours, theirs, strict=True)]
        tv = statistics.fmean(apart)
        error = statistics.stdev(apart) / math.sqrt(len(apart))
        same = [
            a == b
            for mine, other in zip(answers[environment.of], answers[environment.name], strict=True)
            for a, b in zip(mine, other, strict=True)
        ]
        sys.stderr.write(
            f"{environment.name:<16} TV of whole answers {tv:.3f} ± {error:.3f}, "
            f"answers equal {statistics.fmean(same):.3f}\n"
        )
        told.append(
            {
                "name": environment.name,
                "temperature": environment.temperature,
                "top_p": environment.top_p,
                "dtype": environment.dtype,
                "bits": environment.bits,
                "first_seed": environment.first_seed,
                "rows": environment.rows,
                "of": environment.of,
                "tv": round(tv, 5),
                "tv_error": round(error, 5),
            }
        )
    (folder / "environments.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    path = folder / "generations.jsonl.gz"
    with path.open("wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as file:
        for name, prompts in answers.items():
            for prompt, said in enumerate(prompts):
                line = {"environment": name, "prompt": prompt, "answers": said}
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    sys.stderr.write(f"{path}: {path.stat().st_size / 1e6:.2f} MB\n")


if __name__ == "__main__":
    raise SystemExit(main())
