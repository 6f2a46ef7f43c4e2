"""From a batch of logits to one token a row, each row by its own parameters and its own generator.

The order of processors is fixed and told with every answer: :data:`PROCESSOR_ORDER`. Draws use the
exponential race (``argmax p_i / e_i`` with ``e_i ~ Exp(1)``, the Gumbel-max trick): the noise of step ``t``
is a function of the request's seed and ``t`` alone, so neighbours in the batch and their number cannot move
it.

Shape legend: B rows, V vocabulary, K top logprobs.
"""

from __future__ import annotations

import torch

from engines.reference.job import Job

PROCESSOR_ORDER = (
    "min_tokens",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "temperature",
    "min_p",
    "top_k",
    "top_p",
)
LOGPROBS_MODE = "raw_logprobs"
"""Logprobs are told as the model gave them, before any processor (vLLM's name for it)."""
_GREEDY_BELOW = 1e-5
"""Temperatures under this mean greedy, as in vLLM."""


def choose(logits_BV: torch.Tensor, jobs: list[Job]) -> list[int]:
    """One token ID for each row. ``logits_BV`` is float32 and is not changed."""
    greedy = logits_BV.argmax(dim=-1).tolist()
    chosen = []
    for row, job in enumerate(jobs):
        if job.plain and job.params.temperature < _GREEDY_BELOW:
            chosen.append(greedy[row])
            continue
        logits_V = logits_BV[row] if job.plain else _processed(logits_BV[row], job)
        if job.params.temperature < _GREEDY_BELOW:
            chosen.append(int(logits_V.argmax()))
        else:
            chosen.append(_drawn(logits_V / job.params.temperature, job))
    return chosen


def top_logprobs(logits_BV: torch.Tensor, k: int) -> tuple[list[list[int]], list[list[float]], torch.Tensor]:
    """The k likeliest tokens of each row before any processor, ties by token ID.

    Returns:
        IDs and natural-log probabilities ``[B][k]``, and the full log-softmax ``[B, V]``.
    """
    logprobs_BV = torch.log_softmax(logits_BV, dim=-1)
    if k == 0:
        empty: list[list[int]] = [[] for _ in range(logits_BV.shape[0])]
        return empty, [[] for _ in empty], logprobs_BV
    # topk breaks ties as it likes, also at its edge; a stable sort of all is too slow. So: take every token
    # that is not below the k-th value, and order those few.
    kth_B1 = logprobs_BV.topk(k, dim=-1).values[:, -1:]
    ids, values = [], []
    for row_V, kth in zip(logprobs_BV, kth_B1, strict=True):
        candidates = (row_V >= kth).nonzero().squeeze(-1)
        held = row_V[candidates]
        order = torch.sort(held, descending=True, stable=True).indices[:k]
        ids.append(candidates[order].tolist())
        values.append(held[order].tolist())
    return ids, values, logprobs_BV


def _processed(logits_V: torch.Tensor, job: Job) -> torch.Tensor:
    params = job.params
    logits_V = logits_V.clone()
    if len(job.output) < params.min_tokens:
        logits_V[list(job.ends)] = -torch.inf
    if params.logit_bias:
        ids = torch.tensor([int(key) for key in params.logit_bias], device=logits_V.device)
        logits_V[ids] += torch.tensor(list(params.logit_bias.values()), device=logits_V.device)
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*job.prompt, *job.output}), device=logits_V.device)
        held = logits_V[seen]
        logits_V[seen] = torch.where(
            held > 0, held / params.repetition_penalty, held * params.repetition_penalty
        )
    if job.output and (params.frequency_penalty or params.presence_penalty):
        ids, counts = torch.tensor(job.output, device=logits_V.device).unique(return_counts=True)
        logits_V[ids] -= params.frequency_penalty * counts + params.presence_penalty
    return logits_V


def _drawn(logits_V: torch.Tensor, job: Job) -> int:
    params = job.params
    if params.min_p > 0:
        floor = logits_V.max() + torch.log(torch.tensor(params.min_p, device=logits_V.device))
        logits_V = logits_V.masked_fill(logits_V < floor, -torch.inf)
    if params.top_k > 0:
        kth = logits_V.topk(min(params.top_k, logits_V.shape[0])).values[-1]
        logits_V = logits_V.masked_fill(logits_V < kth, -torch.inf)
    if params.top_p < 1:
        ordered, order = torch.sort(logits_V, descending=True, stable=True)
        # Summed on the CPU: CUDA's cumsum adds in no fixed order, and PyTorch refuses it in strict mode.
        mass = torch.softmax(ordered, dim=-1).cpu()
        beyond = (mass.cumsum(dim=-1) - mass >= params.top_p).to(order.device)  # the likeliest token is kept
        logits_V = logits_V.index_fill(0, order[beyond], -torch.inf)
    # Drawn on the CPU whatever the device, so that one seed means one noise everywhere.
    race_V = torch.empty(logits_V.shape, dtype=torch.float32).exponential_(generator=job.generator)
    return int((torch.softmax(logits_V, dim=-1) / race_V.to(logits_V.device)).argmax())
