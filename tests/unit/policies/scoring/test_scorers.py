"""Scorers: exact texts, patterns, numbers, JSON; and that no error of a scorer becomes a score."""

from __future__ import annotations

import math
from typing import Any

import pytest

from policies.scoring import (
    Judged,
    ScoringError,
    fenced,
    json_of,
    last_number,
    matches_schema,
    questions_of,
    score,
    score_answer,
    shipped_refusal_rules,
)
from policies.suites import Check, Exact, JsonSchema, Numeric, PythonCall, Regex, Sample

REFUSAL = shipped_refusal_rules()
PERSON = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}


@pytest.mark.parametrize(
    ("check", "answer", "value"),
    [
        (Exact(expected=("Paris",)), " Paris\n", 1.0),
        (Exact(expected=("Paris",), strip=False), "Paris\n", 0.0),
        (Exact(expected=("Paris",)), "paris", 0.0),
        (Exact(expected=("a", "Straße")), "x", 0.0),
        (Exact(expected=("a", "Straße"), ignore_case=True), "STRASSE", 1.0),
        (Exact(expected=("caf\u00e9",)), "cafe\u0301", 1.0),
        (Regex(pattern=r"\bdef \w+"), "code:\ndef run():", 1.0),
        (Regex(pattern="^Dear"), "My Dear", 0.0),
        (Regex(pattern="dear", ignore_case=True), "My Dear", 1.0),
        (Regex(pattern="dear", must_match=False), "My Dear", 1.0),
        (Regex(pattern="Dear", must_match=False), "My Dear", 0.0),
        (Numeric(expected=42), "It is 42.", 1.0),
        (Numeric(expected=42), "It is 41 or so", 0.0),
        (Numeric(expected=42, tolerance=1), "41", 1.0),
        (Numeric(expected=42), "forty-two", 0.0),
        (Numeric(expected=42, tolerance=1e300), "1e999", 0.0),
        (JsonSchema(schema=PERSON), ' {"age": 3}\n', 1.0),
        (JsonSchema(schema=PERSON), '{"age": "3"}', 0.0),
        (JsonSchema(schema=PERSON), 'Here: {"age": 3}', 0.0),
        (JsonSchema(schema=PERSON), 'Here:\n```json\n{"age": 3}\n```\nDone.', 0.0),
        (JsonSchema(schema=PERSON, fenced=True), 'Here:\n```json\n{"age": 3}\n```\nDone.', 1.0),
        (JsonSchema(schema=PERSON, fenced=True), '```\n{"age": 3}', 0.0),
        (JsonSchema(schema=PERSON), '{"age": 3, "age": 4}', 0.0),
        (JsonSchema(schema={}), "NaN", 0.0),
        (JsonSchema(schema={}), "[" * 100_000, 0.0),
    ],
)
def test_what_a_check_says_of_an_answer(check: Check, answer: str, value: float):
    assert score(check, answer) == value


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("42", 42.0),
        ("the answer is 42.", 42.0),
        ("first 1, then 2", 2.0),
        ("-3.5", -3.5),
        ("x = −7", -7.0),
        ("+8 degrees", 8.0),
        ("1,234,567.89 in all", 1234567.89),
        ("$1,000", 1000.0),
        ("1,23", 23.0),
        ("1234,567", 567.0),
        ("12,5", 5.0),
        ("6.02e23", 6.02e23),
        ("1.5E-3.", 1.5e-3),
        ("3e", 3.0),
        (".5", 0.5),
        ("well...5", 5.0),
        ("45%", 45.0),
        ("3-5", 5.0),
        ("between 3 - 5", 5.0),
        ("(3)-5", 5.0),
        ("[-5]", -5.0),
        ("3/4", 4.0),
        (r"\boxed{42}", 42.0),
        ("**42**", 42.0),
        ("答案是42个。", 42.0),
        ("答案是－4２。", -42.0),
        ("共１，２三项", 2.0),
        ("٤٢", 42.0),
        ("42 kg of CO2", 42.0),
        ("42 in v1.2.3", 42.0),
        ("10⁸", 10.0),
        ("10^8", 8.0),
        ("四十二", None),
        ("none", None),
        ("", None),
        ("1e999", None),
    ],
)
def test_the_last_number_of_an_answer(answer: str, number: float | None):
    assert last_number(answer) == number


def test_the_first_closed_fence_is_taken():
    assert fenced("a\n```json\n1\n```\n```\n2\n```") == "1\n"
    assert fenced("~~~\n```\n~~~") == "```\n"
    assert fenced("```1```") is None
    assert json_of("x\n```\n[1]\n```", in_fence=True) == [1]
    with pytest.raises(ValueError):
        json_of("x\n```\nno\n```", in_fence=True)


def test_a_schema_that_leads_outside_is_an_error_and_is_not_fetched(monkeypatch: pytest.MonkeyPatch):
    def fetched(*_: Any, **__: Any) -> None:
        pytest.fail("a schema was fetched")

    monkeypatch.setattr("urllib.request.urlopen", fetched)
    monkeypatch.setattr("socket.socket.connect", fetched)
    with pytest.raises(ScoringError, match=r"^schema: \$ref 'https://x.test/s' leads nowhere; refer to"):
        matches_schema("1", {"$ref": "https://x.test/s"})


def test_a_schema_without_end_is_an_error():
    with pytest.raises(ScoringError, match="refers to itself without end"):
        matches_schema("1", {"$ref": "#"})


SAMPLE = Sample(
    id="a",
    category="c",
    template="t",
    prompt="x",
    rules=(Regex(pattern="e"), PythonCall(scorer="tone")),
    answer=Numeric(expected=3),
    structured=JsonSchema(schema=PERSON),
)


def test_every_question_of_a_sample_is_judged_in_order():
    judged = score_answer(SAMPLE, "three: 3", refusal=REFUSAL, call=lambda check, answer: 0.5)
    assert judged == (
        Judged(question="rules", value=0.5),
        Judged(question="answer", value=1.0),
        Judged(question="structured", value=0.0),
        Judged(question="refusal", value=0.0),
    )
    assert tuple(each.question for each in judged) == questions_of(SAMPLE)


def test_a_plain_sample_is_still_asked_for_refusal():
    plain = Sample(id="a", category="c", template="t", prompt="x")
    assert score_answer(plain, "I can't help with that.", refusal=REFUSAL) == (
        Judged(question="refusal", value=1.0),
    )


def test_a_scorer_that_breaks_gives_an_error_with_its_place_and_no_score():
    def hangs(check: PythonCall, answer: str) -> float:
        raise ScoringError(f"scorer {check.scorer!r}: no answer within 5 s")

    judged = score_answer(SAMPLE, "three: 3", refusal=REFUSAL, call=hangs)
    assert judged[0] == Judged(question="rules", error="rules[1]: scorer 'tone': no answer within 5 s")
    assert [each.value for each in judged[1:]] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("value", [1.5, -0.1, math.nan, "1", None])
def test_a_scorer_that_gives_no_score_is_an_error(value: Any):
    with pytest.raises(ScoringError) as caught:
        score(PythonCall(scorer="tone"), "x", lambda check, answer: value)
    assert str(caught.value) == f"scorer 'tone': gave {value!r}; a score is a number from 0 to 1"


@pytest.mark.parametrize("value", [10**400, -(10**5_000)], ids=["long", "longer than Python prints"])
def test_a_score_of_more_digits_than_a_float_holds_is_an_error_like_any(value: int):
    with pytest.raises(ScoringError, match="gave a number of many digits; a score is a number from 0 to 1"):
        score(PythonCall(scorer="tone"), "x", lambda check, answer: value)


@pytest.mark.parametrize(("given", "value"), [(True, 1.0), (0, 0.0), (0.25, 0.25)])
def test_a_scorer_may_answer_with_a_truth_or_a_number(given: Any, value: float):
    assert score(PythonCall(scorer="tone"), "x", lambda check, answer: given) == value


def test_python_checks_need_somebody_to_run_them():
    with pytest.raises(ScoringError, match=r"^scorer 'tone': nobody runs Python scorers here$"):
        score(PythonCall(scorer="tone"), "x")


def test_a_pattern_that_does_not_compile_is_no_fault_of_the_answer():
    with pytest.raises(ScoringError, match=r"^pattern '\(': missing \)"):
        score(Regex(pattern="("), "x")
