"""What types cannot say about a sample: ranges, patterns that compile, schemas that are schemas.

Each check yields ``field: what; what to do``, so that a whole file can be told what is wrong with it at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator

from policies.suites.sample import Check, Exact, JsonSchema, Numeric, PythonCall, Regex, Sample
from policies.suites.schemas import schema_problem

MOST_TOKENS = 131_072
MOST_STOPS = 16
_ID = re.compile(r"[^\s\x00-\x1f](?:[^\x00-\x1f]{0,198}[^\s\x00-\x1f])?")


def problems_of(sample: Sample, scorers: Collection[str]) -> Iterator[str]:
    """Everything that is wrong with ``sample``.

    Args:
        sample: decoded, so that its types are right.
        scorers: names that a ``python`` check may use.
    """
    if not _ID.fullmatch(sample.id):
        yield f"id: {sample.id!r} is not 1-200 printable characters, no space at the ends; give a short name"
    for field in ("category", "template"):
        if not getattr(sample, field).strip():
            yield f"{field}: empty; name it, tables are made by it"
    yield from _question(sample)
    if not 1 <= sample.max_tokens <= MOST_TOKENS:
        yield f"max_tokens: {sample.max_tokens} is outside 1-{MOST_TOKENS}"
    if not 0.0 <= sample.temperature <= 2.0:
        yield f"temperature: {sample.temperature:g} is outside 0-2; 0 takes the likeliest token"
    if not 0.0 < sample.top_p <= 1.0:
        yield f"top_p: {sample.top_p:g} is outside 0-1, 0 excluded; 1 leaves every token in"
    if len(sample.stop) > MOST_STOPS:
        yield f"stop: {len(sample.stop)} texts are more than {MOST_STOPS}"
    for i, text in enumerate(sample.stop):
        if not text:
            yield f"stop[{i}]: empty; it would stop before the first token"
    for i, rule in enumerate(sample.rules):
        yield from check_problems(rule, f"rules[{i}]", scorers)
    if sample.answer is not None:
        yield from check_problems(sample.answer, "answer", scorers)
    if sample.structured is not None:
        yield from check_problems(sample.structured, "structured", scorers)


def _question(sample: Sample) -> Iterator[str]:
    if bool(sample.messages) == (sample.prompt is not None):
        both = "both given" if sample.messages else "neither given"
        yield f"messages, prompt: {both}; a sample has exactly one of them"
    if sample.prompt == "":
        yield "prompt: empty; there is nothing to continue"
    for i, message in enumerate(sample.messages):
        if message.role == "system" and i > 0:
            yield f"messages[{i}].role: system after the first message; chat templates refuse or drop it"
        if message.role == "user" and not message.content:
            yield f"messages[{i}].content: empty; there is nothing to answer"
    if sample.messages and sample.messages[-1].role != "user":
        last = len(sample.messages) - 1
        yield f"messages[{last}].role: {sample.messages[-1].role}; the last message is the user's question"


def check_problems(check: Check, where: str, scorers: Collection[str]) -> Iterator[str]:
    """Everything that is wrong with one check."""
    match check:
        case Exact(expected=expected):
            if not expected:
                yield f"{where}.expected: empty; name at least one text that is right"
        case Regex(pattern=pattern, ignore_case=ignore_case):
            try:
                re.compile(pattern, re.IGNORECASE if ignore_case else 0)
            except (re.error, OverflowError, RecursionError) as exc:
                yield f"{where}.pattern: {pattern!r} is no regular expression of Python's re: {exc}"
        case JsonSchema(schema=schema):
            problem = schema_problem(schema)
            if problem is not None:
                yield f"{where}.schema{problem}"
        case Numeric(expected=number, tolerance=tolerance):
            if not math.isfinite(number):
                yield f"{where}.expected: {number} is not finite"
            if not 0.0 <= tolerance < math.inf:
                yield f"{where}.tolerance: {tolerance} is not a finite number of at least 0"
        case PythonCall(scorer=scorer):
            if scorer not in scorers:
                known = f"known are {', '.join(sorted(scorers))}" if scorers else "the policy names none"
                yield (
                    f"{where}.scorer: {scorer!r} is unknown; {known}: "
                    f"add it to the policy under suites.NAME.scorers"
                )
