"""One answer, all the questions that its sample asks."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from policies.scoring.errors import ScoringError
from policies.scoring.json_values import matches_schema
from policies.scoring.numbers import is_number
from policies.scoring.refusal import RefusalRules
from policies.scoring.text import has_match, is_one_of
from policies.suites.sample import Check, Exact, JsonSchema, Numeric, PythonCall, Regex, Sample

Call = Callable[[PythonCall, str], float]
"""Runs a user's function on an answer. Raises ScoringError where that fails; keeps its own time limit."""

RULES, ANSWER, STRUCTURED, REFUSAL = "rules", "answer", "structured", "refusal"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """One question of a sample about one answer. Exactly one of ``value`` and ``error`` is set."""

    question: str
    """``rules`` | ``answer`` | ``structured`` | ``refusal``."""
    value: float | None = None
    """0 to 1."""
    error: str | None = None


def questions_of(sample: Sample) -> tuple[str, ...]:
    """What is asked of every answer to ``sample``; an arm that gave none owes each of these an error."""
    asked = (bool(sample.rules), sample.answer is not None, sample.structured is not None, True)
    return tuple(
        name for name, is_asked in zip((RULES, ANSWER, STRUCTURED, REFUSAL), asked, strict=True) if is_asked
    )


def score(check: Check, answer: str, call: Call | None = None) -> float:
    """What one check says of one answer, 0 to 1.

    Args:
        call: runs ``python`` checks.

    Raises:
        ScoringError: the check could not be made; that is no fault of the answer.
    """
    match check:
        case Exact(expected=expected, strip=strip, ignore_case=ignore_case):
            return float(is_one_of(answer, expected, strip=strip, ignore_case=ignore_case))
        case Regex(pattern=pattern, must_match=must_match, ignore_case=ignore_case):
            return float(has_match(answer, pattern, ignore_case=ignore_case) is must_match)
        case JsonSchema(schema=schema, fenced=in_fence):
            return float(matches_schema(answer, schema, in_fence=in_fence))
        case Numeric(expected=number, tolerance=tolerance):
            return float(is_number(answer, number, tolerance))
        case PythonCall(scorer=scorer):
            if call is None:
                raise ScoringError(f"scorer {scorer!r}: nobody runs Python scorers here")
            return _checked(call(check, answer), scorer)


def score_answer(
    sample: Sample, answer: str, *, refusal: RefusalRules, call: Call | None = None
) -> tuple[Judged, ...]:
    """Every question of :func:`questions_of`, in that order. Never raises for what an answer says.

    ``rules`` is the smallest score of the sample's rules, so that it is 1 only when each of them holds.
    """
    made = []
    for question in questions_of(sample):
        try:
            made.append(Judged(question=question, value=_value(question, sample, answer, refusal, call)))
        except ScoringError as exc:
            made.append(Judged(question=question, error=str(exc)))
    return tuple(made)


def _value(question: str, sample: Sample, answer: str, refusal: RefusalRules, call: Call | None) -> float:
    if question == RULES:
        return min(_rule(f"rules[{i}]", rule, answer, call) for i, rule in enumerate(sample.rules))
    if question == REFUSAL:
        return float(refusal.refused(answer))
    check = sample.answer if question == ANSWER else sample.structured
    assert check is not None
    return score(check, answer, call)


def _rule(where: str, check: Check, answer: str, call: Call | None) -> float:
    try:
        return score(check, answer, call)
    except ScoringError as exc:
        raise ScoringError(f"{where}: {exc}") from exc


def _checked(value: object, scorer: str) -> float:
    if isinstance(value, bool):
        return float(value)
    # A NaN is within no bounds; a whole number may have more digits than Python would print.
    if not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        is_long = isinstance(value, int) and abs(value) >= 10**18
        said = "a number of many digits" if is_long else repr(value)
        raise ScoringError(f"scorer {scorer!r}: gave {said}; a score is a number from 0 to 1")
    return float(value)
