"""Whatever a file or an answer holds: a suite or a SuiteError, a score or a ScoringError, nothing else."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.scoring import (
    ScoringError,
    last_number,
    matches_schema,
    parse_refusal_rules,
    score_answer,
    shipped_refusal_rules,
)
from policies.scoring.errors import RefusalError
from policies.suites import Exact, JsonSchema, Numeric, Regex, Sample, SuiteError, parse_suite

REFUSAL = shipped_refusal_rules()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from([*Sample.__struct_fields__, "zap"])
SAMPLE = Sample(
    id="a",
    category="c",
    template="t",
    prompt="x",
    rules=(Regex(pattern=r"\d+"), Exact(expected=("42",), ignore_case=True)),
    answer=Numeric(expected=42.0),
    structured=JsonSchema(schema={"type": "object", "required": ["a"]}, fenced=True),
)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_suite_or_told_what_is_wrong(data: bytes):
    with pytest.raises(SuiteError) as caught:
        parse_suite(data, "f", "mine")
    assert all(problem.startswith("f:") for problem in caught.value.problems)


@given(st.lists(st.dictionaries(fields, values, max_size=6), min_size=1, max_size=4))
def test_any_objects_are_a_suite_or_told_their_lines(objects: list[dict[str, object]]):
    data = "\n".join(json.dumps(each) for each in objects).encode()
    try:
        parse_suite(data, "f", "mine")
    except SuiteError as error:
        lines = {int(problem.split(":")[1]) for problem in error.problems}
        assert lines <= set(range(1, len(objects) + 1))


names = st.text(st.characters(codec="utf-8", categories=("L", "N")), min_size=1, max_size=12)


@given(st.lists(names, min_size=1, max_size=5, unique=True), st.floats(-1e9, 1e9))
def test_a_suite_that_is_written_is_read_back(ids: list[str], expected: float):
    samples = [
        Sample(id=one, category="c", template="t", prompt="x", answer=Numeric(expected=expected))
        for one in ids
    ]
    data = b"\n".join(msgspec.json.encode(each) for each in samples)
    assert parse_suite(data, "f", "mine").samples == tuple(samples)


@given(st.text(max_size=200))
def test_any_answer_has_a_score_for_every_question(answer: str):
    judged = score_answer(SAMPLE, answer, refusal=REFUSAL)
    assert [each.question for each in judged] == ["rules", "answer", "structured", "refusal"]
    assert all(each.value in (0.0, 1.0) for each in judged)


@given(values, values)
def test_any_schema_accepts_refuses_or_is_named_as_the_trouble(schema: object, value: object):
    if not isinstance(schema, dict):
        return
    line = {"id": "a", "category": "c", "template": "t", "prompt": "x"}
    line["structured"] = {"kind": "json_schema", "schema": schema}  # type: ignore[assignment]
    try:
        parse_suite(json.dumps(line).encode(), "f", "mine")
        matches_schema(json.dumps(value), schema)
    except (SuiteError, ScoringError):
        pass


@given(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["{}", "答案是{}。", "= {} kg", "**{}**"]),
)
def test_a_number_that_is_written_is_read_back(number: float, around: str):
    assert last_number(around.format(repr(number))) == number


@given(st.integers(-(10**15), 10**15), st.integers(0, 3))
def test_thousands_are_read_as_written(number: int, places: int):
    assert last_number(f"in all {number:,.{places}f} of them") == float(number)


@given(st.text(max_size=300))
def test_a_last_number_is_finite_or_none(answer: str):
    found = last_number(answer)
    assert found is None or math.isfinite(found)


@given(st.binary(max_size=120))
def test_any_bytes_are_refusal_rules_or_told_what_is_wrong(data: bytes):
    with pytest.raises(RefusalError) as caught:
        parse_refusal_rules(data, "r")
    assert caught.value.problems
