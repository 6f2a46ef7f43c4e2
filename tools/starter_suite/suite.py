"""Which samples make the suite, and its bytes. Needs no model: what a search found is read from its files."""

from __future__ import annotations

import pathlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from policies.suites.sample import Sample
from tools.starter_suite.found import CANDIDATES, KEPT, RULE_INSTANCES, Near, Rules, read_found, read_rules
from tools.starter_suite.template import Template, digest, instances
from tools.starter_suite.templates import TEMPLATES

TARGET = pathlib.Path(__file__).parents[2] / "policies" / "suites" / "shipped" / "starter.jsonl"
SIZES = {
    "short": 160,
    "long_context": 120,
    "chinese": 150,
    "code": 155,
    "structured_output": 155,
    "near_stop": 120,
    "low_margin": 140,
}
"""Samples a category: 1,000 in all."""
MOST_OF_A_TEMPLATE = KEPT
"""10: 1 % of the suite."""
_AFTER_TOKENS = 12
"""How far a searched sample runs beyond its near call, so that what follows it is seen."""


class SuiteError(RuntimeError):
    """The suite cannot be made from its templates and what was found; the message says what to do."""


def render() -> dict[pathlib.Path, str]:
    """Path to text, for ``tools.check_generated``."""
    lines = [msgspec.json.encode(sample) for sample in samples()]
    return {TARGET: b"".join(line + b"\n" for line in lines).decode()}


def samples() -> list[Sample]:
    """The whole suite, category by category, template by template.

    Raises:
        SuiteError: a category has too few samples, or a template changed since the search.
    """
    rules, near = read_rules(), read_found()
    by_template: dict[str, list[Near]] = {}
    for one in near:
        by_template.setdefault(one.template, []).append(one)
    out: list[Sample] = []
    for category, wanted in SIZES.items():
        templates = [template for template in TEMPLATES if template.category == category]
        if category in ("near_stop", "low_margin"):
            made = [_searched(template, by_template.get(template.name, []), rules) for template in templates]
            chosen = _nearest(wanted, made)
        else:
            made = [_plain(template, rules) for template in templates]
            chosen = _shared_out(wanted, made)
        if len(chosen) != wanted:
            raise SuiteError(f"{category}: {len(chosen)} of {wanted} samples; add templates or slot values")
        out += chosen
    return out


def _plain(template: Template, rules: Rules) -> list[Sample]:
    """Its first instances; rules stay on those on which the model was seen to keep them."""
    made = instances(template, MOST_OF_A_TEMPLATE)
    untried = [one for one in made[:RULE_INSTANCES] if one.rules and digest(one) not in rules.tried]
    if untried:
        raise SuiteError(_changed(template, len(untried)))
    return [one if digest(one) in rules.kept else msgspec.structs.replace(one, rules=()) for one in made]


def _searched(template: Template, near: list[Near], rules: Rules) -> list[Sample]:
    """The found instances of a template, nearest call first."""
    known = {digest(one): one for one in instances(template, CANDIDATES)}
    gone = [one.digest for one in near if one.digest not in known]
    if gone:
        raise SuiteError(_changed(template, len(gone)))
    return [
        msgspec.structs.replace(
            known[one.digest],
            max_tokens=one.position + _AFTER_TOKENS,
            found=_told(one, rules),
        )
        for one in near
    ]


def _told(near: Near, rules: Rules) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(near)
    del told["template"], told["digest"]  # the first stands beside it; the second is the search's own
    return {"model": rules.model, "weights_sha256": rules.weights_sha256, "dtype": rules.dtype, **told}


def _changed(template: Template, prompts: int) -> str:
    return (
        f"{template.name}: changed since the model was run on it ({prompts} of its prompts are unknown); "
        "run `python -m tools.starter_suite --search all`"
    )


def _nearest(wanted: int, made: list[list[Sample]]) -> list[Sample]:
    """The ``wanted`` nearest calls of all templates, in the templates' order."""
    margins = sorted(one.found["margin_nats"] for of_template in made for one in of_template)
    limit = margins[:wanted][-1] if margins else 0.0
    return [one for of_template in made for one in of_template if one.found["margin_nats"] <= limit][:wanted]


def _shared_out(wanted: int, made: list[list[Sample]]) -> list[Sample]:
    """``wanted`` of them, as evenly over templates as these allow: each gives one, then each a second."""
    takes = [0] * len(made)
    for round_ in range(MOST_OF_A_TEMPLATE):
        for at, of_template in enumerate(made):
            takes[at] += sum(takes) < wanted and len(of_template) > round_
    return [one for of_template, take in zip(made, takes, strict=True) for one in of_template[:take]]


def counts(suite: list[Sample]) -> str:
    """A table by category: samples, templates, how they are scored, output tokens at most."""
    columns: dict[str, Callable[[Sample], int]] = {
        "samples": lambda one: 1,
        "rules": lambda one: bool(one.rules),
        "answer": lambda one: one.answer is not None,
        "structured": lambda one: one.structured is not None,
        "sampled": lambda one: one.temperature > 0,
        "prompt": lambda one: one.prompt is not None,
        "max_tokens": lambda one: one.max_tokens,
    }
    templates = Counter(category for category, _ in {(one.category, one.template) for one in suite})
    lines = [f"{'category':<18}{'templates':>10}" + "".join(f"{name:>11}" for name in columns)]
    for category in (*SIZES, "all"):
        among = [one for one in suite if category in (one.category, "all")]
        number = templates.total() if category == "all" else templates[category]
        sums = "".join(f"{sum(map(count, among)):>11,}" for count in columns.values())
        lines.append(f"{category:<18}{number:>10}{sums}")
    return "\n".join(lines)
