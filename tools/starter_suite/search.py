"""Runs the reference model: which prompts lead to a near call, and which rules it keeps.

About ten minutes of one core. Greedy, float32; what is found holds for this model and says nothing of
another: the samples are a place to look, not a proof.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

from policies.scoring.score import score
from policies.suites.sample import Sample
from tools.starter_suite.found import (
    CANDIDATES,
    KEPT,
    RULE_INSTANCES,
    Near,
    Rules,
    Token,
    read_found,
    write_found,
    write_rules,
)
from tools.starter_suite.run_model import MODEL, Generation, ReferenceModel
from tools.starter_suite.template import Template, digest, instances
from tools.starter_suite.templates import TEMPLATES

NEAR_STOP_TOKENS = 40
NEAR_STOP_NATS = 1.0
LOW_MARGIN_TOKENS = 20
LOW_MARGIN_NATS = 0.05
SAMPLED_RUNS = 2
SAMPLED_TEMPERATURE = 0.7


def search(part: str) -> None:
    """Run one of :data:`PARTS`, or ``all``, and write what it finds in place of what stood there."""
    model = ReferenceModel()
    near = [] if part == "all" else read_found()
    for category in ("near_stop", "low_margin"):
        if part in (category, "all"):
            near = [one for one in near if not one.template.startswith(f"{category}/")]
            near += _near_calls(model, category)
            write_found(near)
    if part in ("rules", "all"):
        tried, kept = _rules_kept(model)
        write_rules(
            Rules(
                model=MODEL,
                weights_sha256=model.weights_sha256,
                dtype="float32",
                tried=tuple(sorted(digest(one) for one in tried)),
                kept=tuple(sorted(digest(one) for one in kept)),
            )
        )


def _near_calls(model: ReferenceModel, category: str) -> list[Near]:
    pool = [one for template in _of(category) for one in instances(template, CANDIDATES)]
    most = NEAR_STOP_TOKENS if category == "near_stop" else LOW_MARGIN_TOKENS
    _tell(f"{category}: {len(pool)} candidates, {most} tokens each")
    met: dict[str, list[Near]] = {}
    for sample, generation in zip(pool, model.run(pool, [most] * len(pool)), strict=True):
        near = _nearest(model, category, sample, generation)
        if near is not None:
            met.setdefault(sample.template, []).append(near)
    best = [sorted(found, key=lambda one: (one.margin_nats, one.digest))[:KEPT] for found in met.values()]
    _tell(
        f"{category}: {sum(map(len, met.values()))} found, {sum(map(len, best))} kept, {len(best)} templates"
    )
    return [one for of_template in best for one in of_template]


def _nearest(model: ReferenceModel, category: str, sample: Sample, generation: Generation) -> Near | None:
    """The smallest margin of a generation, if it is small enough for its category.

    Position 0 is no near stop: an empty answer is another fault.
    """
    stopping = category == "near_stop"
    steps = [
        (step.margin_nats, position, step)
        for position, step in enumerate(generation.steps)
        if (model.end in (step.first, step.second)) == stopping and not (stopping and position == 0)
    ]
    if not steps:
        return None
    margin, position, step = min(steps, key=lambda one: one[:2])
    if margin > (NEAR_STOP_NATS if stopping else LOW_MARGIN_NATS):
        return None
    first, second = (Token(id=at, text=model.tokenizer.decode([at])) for at in (step.first, step.second))
    return Near(
        template=sample.template,
        digest=digest(sample),
        position=position,
        first=first,
        second=second,
        margin_nats=round(margin, 4),
        end_of_turn=("first" if step.first == model.end else "second") if stopping else None,
    )


def _rules_kept(model: ReferenceModel) -> tuple[list[Sample], list[Sample]]:
    """Samples whose rules hold in float32 greedy, in bfloat16 greedy, and in several sampled runs.

    The last two are there because a rule that one near tie decides would blame a healthy candidate.
    """
    tried = [one for template in TEMPLATES if template.rules for one in instances(template, RULE_INSTANCES)]
    kept = tried
    runs: list[tuple[torch.dtype, float, int]] = [(torch.float32, 0.0, 0), (torch.bfloat16, 0.0, 0)]
    runs += [(torch.float32, SAMPLED_TEMPERATURE, seed) for seed in range(SAMPLED_RUNS)]
    for dtype, temperature, seed in runs:
        _tell(f"rules: {len(kept)} samples, {dtype}, temperature {temperature}")
        made = model.run(
            kept, [one.max_tokens for one in kept], dtype=dtype, temperature=temperature, seed=seed
        )
        kept = [
            sample
            for sample, generation in zip(kept, made, strict=True)
            if all(score(rule, _cut(generation.text, sample.stop)) == 1.0 for rule in sample.rules)
        ]
    _tell(f"rules: {len(tried)} tried, {len(kept)} kept")
    return tried, kept


def _cut(text: str, stops: Iterable[str]) -> str:
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def _of(category: str) -> list[Template]:
    return [template for template in TEMPLATES if template.category == category]


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)  # noqa: T201
