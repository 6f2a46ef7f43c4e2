"""The JSON Schema of a sample takes what the reader takes, refuses what types can refuse, has not drifted."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from forkgate.config.schema import SUITE_FILE, suite_schema, suite_schema_text
from policies.suites import SuiteError, parse_suite
from tests.support.suites import lines, sample

FULL = sample(
    "full",
    max_tokens=8,
    temperature=0.7,
    top_p=0.9,
    stop=["\n"],
    rules=[{"kind": "exact", "expected": ["yes"]}, {"kind": "regex", "pattern": "y", "must_match": False}],
    answer={"kind": "numeric", "expected": 4.5},
    structured={"kind": "json_schema", "schema": {"type": "object"}},
    found={"model": "m", "margin_nats": 0.01},
)
MESSAGES = {
    "id": "m",
    "category": "short",
    "template": "t",
    "messages": [{"role": "user", "content": "hello"}],
}


@pytest.mark.parametrize("good", [sample(), FULL, MESSAGES], ids=["small", "full", "messages"])
def test_good_sample_is_accepted(good: dict[str, Any]) -> None:
    parse_suite(lines(good).encode(), "f", "f")
    jsonschema.Draft202012Validator.check_schema(suite_schema())
    jsonschema.validate(good, suite_schema())


@pytest.mark.parametrize(
    "bad",
    [
        {key: value for key, value in sample().items() if key != "category"},
        {key: value for key, value in sample().items() if key != "prompt"},
        {**MESSAGES, "prompt": "and a prompt"},
        {**MESSAGES, "messages": []},
        sample(colour="red"),
        sample(max_tokens="8"),
        sample(answer={"kind": "oracle"}),
        sample(rules=[{"kind": "regex"}]),
        {**MESSAGES, "messages": [{"role": "tool", "content": "x"}]},
    ],
    ids=["missing", "neither", "both", "no turns", "unknown", "type", "kind", "pattern", "role"],
)
def test_bad_sample_is_refused_by_schema_and_reader_alike(bad: dict[str, Any]) -> None:
    with pytest.raises(SuiteError):
        parse_suite(lines(bad).encode(), "f", "f")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(bad, suite_schema())


def test_committed_schema_is_current() -> None:
    assert SUITE_FILE.read_text() == suite_schema_text(), "stale, run `make schema`"


def test_fields_are_explained() -> None:
    properties = suite_schema()["properties"]
    assert properties["id"]["description"] == "Unique in the suite."
    assert suite_schema()["$defs"]["PythonCall"]["properties"]["scorer"]["description"].startswith(
        "Name under"
    )
