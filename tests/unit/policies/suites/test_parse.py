"""Suite files: what is read, and that everything wrong is told at once, by its line."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import jsonschema
import pytest

from policies.suites import (
    Exact,
    Message,
    PythonCall,
    SuiteError,
    digest_of,
    parse_suite,
    sample_schema,
    shipped,
)
from policies.suites.errors import MOST_PROBLEMS


def sample(**changes: Any) -> dict[str, Any]:
    """A right sample; a change to None takes the field out."""
    value: dict[str, Any] = {"id": "a", "category": "short", "template": "t", "prompt": "Once"}
    return {key: given for key, given in (value | changes).items() if given is not None}


def lines(*samples: Any) -> bytes:
    return "".join(json.dumps(each) + "\n" for each in samples).encode()


def problems(*samples: Any, scorers: tuple[str, ...] = ()) -> tuple[str, ...]:
    with pytest.raises(SuiteError) as caught:
        parse_suite(lines(*samples), "s.jsonl", "mine", scorers)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return caught.value.problems


def test_a_suite_is_its_samples_in_order_under_the_digest_of_its_bytes():
    data = lines(
        sample(answer={"kind": "exact", "expected": ["42"]}),
        sample(id="b", prompt=None, messages=[{"role": "user", "content": "Hi"}], template="u"),
    )
    suite = parse_suite(data, "s.jsonl", "mine")
    assert (suite.name, suite.digest) == ("mine", "sha256:" + hashlib.sha256(data).hexdigest())
    assert [each.id for each in suite.samples] == ["a", "b"]
    assert suite.samples[0].answer == Exact(expected=("42",))
    assert suite.samples[1].messages == (Message(role="user", content="Hi"),)
    assert digest_of(data) == suite.digest != digest_of(data + b"\n")


def test_blank_lines_and_a_missing_last_newline_are_no_matter_but_count_as_lines():
    data = b"\n" + lines(sample()) + b"  \r\n" + lines(sample(id="b"))[:-1]
    assert len(parse_suite(data, "s", "mine").samples) == 2
    with pytest.raises(SuiteError, match=r"^s:5: id: 'a' is already the id of line 2;"):
        parse_suite(data + b"\n" + lines(sample()), "s", "mine")


def test_the_summary_counts_by_category_template_and_question():
    summary = parse_suite(
        lines(
            sample(id="1", category="code", rules=[{"kind": "regex", "pattern": "x"}]),
            sample(id="2", category="short", structured={"kind": "json_schema", "schema": {}}),
            sample(id="3", category="short", template="u", answer={"kind": "numeric", "expected": 2}),
        ),
        "s",
        "mine",
    ).summary()
    assert list(summary.categories.items()) == [("short", 2), ("code", 1)]
    assert list(summary.templates.items()) == [("t", 2), ("u", 1)]
    assert (summary.with_rules, summary.with_answer, summary.with_structured) == (1, 1, 1)
    assert summary.largest_template_share == 2 / 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": None}, "s.jsonl:1: id: missing; every sample needs it"),
        ({"category": None}, "s.jsonl:1: category: missing; every sample needs it"),
        ({"id": 7}, "s.jsonl:1: id: expected `str`, got `int`"),
        ({"zap": 1}, "s.jsonl:1: zap: unknown field; take it out, or see the schema for its name"),
        (
            {"id": " a"},
            "s.jsonl:1: id: ' a' is not 1-200 printable characters, no space at the ends; give a short name",
        ),
        ({"category": ""}, "s.jsonl:1: category: empty; name it, tables are made by it"),
        ({"prompt": None}, "s.jsonl:1: messages, prompt: neither given; a sample has exactly one of them"),
        (
            {"messages": [{"role": "user", "content": "x"}]},
            "s.jsonl:1: messages, prompt: both given; a sample has exactly one of them",
        ),
        ({"prompt": ""}, "s.jsonl:1: prompt: empty; there is nothing to continue"),
        (
            {"prompt": None, "messages": [{"role": "tool", "content": "x"}]},
            "s.jsonl:1: messages[0].role: invalid enum value 'tool'",
        ),
        (
            {"prompt": None, "messages": [{"role": "assistant", "content": "x"}]},
            "s.jsonl:1: messages[0].role: assistant; the last message is the user's question",
        ),
        (
            {
                "prompt": None,
                "messages": [
                    {"role": "user", "content": "x"},
                    {"role": "system", "content": "y"},
                    {"role": "user", "content": "z"},
                ],
            },
            "s.jsonl:1: messages[1].role: system after the first message; chat templates refuse or drop it",
        ),
        (
            {"prompt": None, "messages": [{"role": "user", "content": ""}]},
            "s.jsonl:1: messages[0].content: empty; there is nothing to answer",
        ),
        ({"max_tokens": 0}, "s.jsonl:1: max_tokens: 0 is outside 1-131072"),
        (
            {"temperature": -0.5},
            "s.jsonl:1: temperature: -0.5 is outside 0-2; 0 takes the likeliest token",
        ),
        ({"top_p": 0}, "s.jsonl:1: top_p: 0 is outside 0-1, 0 excluded; 1 leaves every token in"),
        ({"stop": [""]}, "s.jsonl:1: stop[0]: empty; it would stop before the first token"),
        ({"stop": ["x"] * 17}, "s.jsonl:1: stop: 17 texts are more than 16"),
        (
            {"answer": {"kind": "exact", "expected": []}},
            "s.jsonl:1: answer.expected: empty; name at least one text that is right",
        ),
        (
            {"rules": [{"kind": "regex", "pattern": "a"}, {"kind": "regex", "pattern": "("}]},
            (
                "s.jsonl:1: rules[1].pattern: '(' is no regular expression of Python's re: "
                "missing ), unterminated subpattern at position 0"
            ),
        ),
        (
            {"answer": {"kind": "guess"}},
            (
                "s.jsonl:1: answer.kind: 'guess' is unknown; "
                "known are exact, regex, json_schema, numeric, python"
            ),
        ),
        (
            {"answer": {"kind": "numeric", "expected": 1, "tolerance": -1}},
            "s.jsonl:1: answer.tolerance: -1.0 is not a finite number of at least 0",
        ),
        (
            {"structured": {"kind": "json_schema", "schema": {"properties": {"a": {"type": "text"}}}}},
            (
                "s.jsonl:1: structured.schema.properties.a.type: no valid JSON Schema (2020-12): "
                "'text' is not valid under any of the given schemas"
            ),
        ),
        (
            {"structured": {"kind": "json_schema", "schema": {"items": {"$ref": "https://x.test/s"}}}},
            (
                "s.jsonl:1: structured.schema.items.$ref: 'https://x.test/s' is outside the schema, "
                "and nothing is fetched; copy it to $defs"
            ),
        ),
        (
            {"structured": {"kind": "json_schema", "schema": {"$ref": "#/$defs/none"}}},
            "s.jsonl:1: structured.schema.$ref: '#/$defs/none' leads nowhere in this schema",
        ),
        (
            {
                "structured": {
                    "kind": "json_schema",
                    "schema": {"$schema": "http://json-schema.org/draft-07/schema#"},
                }
            },
            (
                "s.jsonl:1: structured.schema.$schema: 'http://json-schema.org/draft-07/schema#' is another "
                "dialect; write for https://json-schema.org/draft/2020-12/schema, or leave it out"
            ),
        ),
        (
            {"rules": [{"kind": "python", "scorer": "tone"}]},
            (
                "s.jsonl:1: rules[0].scorer: 'tone' is unknown; the policy names none: "
                "add it to the policy under suites.NAME.scorers"
            ),
        ),
    ],
)
def test_one_fault_gives_one_problem_with_its_place(changes: dict[str, Any], message: str):
    assert problems(sample(**changes)) == (message,)


def test_every_fault_of_every_line_is_told_at_once():
    found = problems(
        sample(max_tokens=0, temperature=3),
        [],
        sample(category=None),
        sample(id="c"),
        sample(id="c", answer={"kind": "python", "scorer": "x"}),
        scorers=("tone",),
    )
    assert found == (
        "s.jsonl:1: max_tokens: 0 is outside 1-131072",
        "s.jsonl:1: temperature: 3 is outside 0-2; 0 takes the likeliest token",
        "s.jsonl:2: list where a JSON object is expected; one sample a line",
        "s.jsonl:3: category: missing; every sample needs it",
        (
            "s.jsonl:5: answer.scorer: 'x' is unknown; known are tone: "
            "add it to the policy under suites.NAME.scorers"
        ),
        "s.jsonl:5: id: 'c' is already the id of line 4; give each sample its own",
    )


def test_every_misfit_of_a_line_is_told_and_what_it_has_is_checked_all_the_same():
    bad = {"id": " ", "messages": "hi", "temprature": 0, "max_tokens": "9", "prompt": "", "stop": [""]}
    assert problems(bad | {"answer": {"kind": "python", "scorer": "x"}, "rules": [{"kind": "exat"}]}) == (
        "s.jsonl:1: temprature: unknown field; take it out, or see the schema for its name",
        "s.jsonl:1: category: missing; every sample needs it",
        "s.jsonl:1: template: missing; every sample needs it",
        "s.jsonl:1: messages: expected `array`, got `str`",
        "s.jsonl:1: max_tokens: expected `int`, got `str`",
        "s.jsonl:1: rules[0].kind: 'exat' is unknown; known are exact, regex, json_schema, numeric, python",
        "s.jsonl:1: id: ' ' is not 1-200 printable characters, no space at the ends; give a short name",
        "s.jsonl:1: prompt: empty; there is nothing to continue",
        "s.jsonl:1: stop[0]: empty; it would stop before the first token",
        (
            "s.jsonl:1: answer.scorer: 'x' is unknown; the policy names none: "
            "add it to the policy under suites.NAME.scorers"
        ),
    )


def test_problems_are_bounded_and_the_rest_is_counted():
    found = problems(*[sample(id=f"{i}", max_tokens=0) for i in range(MOST_PROBLEMS + 7)])
    assert len(found) == MOST_PROBLEMS + 1
    assert found[-1] == "... and 7 problems more"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "s: no sample in the file; write one JSON object a line"),
        (b"\n \n", "s: no sample in the file; write one JSON object a line"),
        (b"{", "s:1: column 2: no JSON: Expecting property name enclosed in double quotes"),
        (b'{"id": "\xff"}', "s:1: byte 9 is no UTF-8; save the file as UTF-8"),
        (b'{"id": "a", "id": "b"}', "s:1: id: given twice in one object; keep one"),
        (b'{"top_p": NaN}', "s:1: NaN is no JSON number; leave it out, or write a finite one"),
        (b"[" * 100_000, "s:1: brackets in brackets without end; no sample is nested that deep"),
        (b'{"max_tokens": ' + b"1" * 5_000 + b"}", None),
        (
            b'{"id": "a", "category": "c", "template": "t", "prompt": "say \\ud83d", "max_tokens": 4}',
            (
                "s:1: 'say \\ud83d' has half of a character (a lone surrogate, \\ud800-\\udfff), which no "
                "text can hold; write the whole character"
            ),
        ),
        (b'{"answer": {"\\udc00": [1]}}', None),
    ],
)
def test_lines_that_are_no_json_object(data: bytes, message: str | None):
    with pytest.raises(SuiteError) as caught:
        parse_suite(data, "s", "mine")
    assert message is None or caught.value.problems == (message,)


def test_a_byte_order_mark_is_named():
    with pytest.raises(SuiteError, match="byte order mark"):
        parse_suite(b"\xef\xbb\xbf" + lines(sample()), "s", "mine")


def test_python_checks_are_taken_for_the_scorers_that_exist():
    check = {"kind": "python", "scorer": "tone", "arguments": {"strict": True}}
    suite = parse_suite(lines(sample(answer=check)), "s", "mine", ("tone",))
    assert suite.samples[0].answer == PythonCall(scorer="tone", arguments={"strict": True})


def test_a_schema_may_refer_to_its_own_parts_and_hold_references_as_data():
    schema = {
        "$id": "https://x.test/whole",
        "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "$ref": "#/$defs/tree",
        "examples": [{"$ref": "https://x.test/data"}],
    }
    parse_suite(lines(sample(structured={"kind": "json_schema", "schema": schema})), "s", "mine")


RIGHT = [
    sample(),
    sample(prompt=None, messages=[{"role": "user", "content": "x"}]),
    sample(stop=["\n"], rules=[{"kind": "regex", "pattern": "x", "must_match": False}]),
    sample(answer={"kind": "numeric", "expected": 1.5}, found={"margin_nats": 0.01}),
]
WRONG = [
    sample(prompt=None),
    sample(messages=[{"role": "user", "content": "x"}]),
    sample(id=None),
    sample(zap=1),
    sample(answer={"kind": "guess"}),
    sample(max_tokens="many"),
]


@pytest.mark.parametrize("value", RIGHT)
def test_the_published_schema_takes_what_the_reader_takes(value: dict[str, Any]):
    jsonschema.Draft202012Validator.check_schema(sample_schema())
    jsonschema.validate(value, sample_schema(), cls=jsonschema.Draft202012Validator)
    parse_suite(lines(value), "s", "mine")


@pytest.mark.parametrize("value", WRONG)
def test_the_published_schema_refuses_what_the_reader_refuses(value: dict[str, Any]):
    assert not jsonschema.Draft202012Validator(sample_schema()).is_valid(value)
    assert problems(value)


@pytest.mark.parametrize("name", ["none-such", "../starter", ""])
def test_a_suite_that_is_not_shipped_is_an_error_with_a_way_out(name: str):
    with pytest.raises(SuiteError, match=r"no shipped suite of that name; .*give the path of a `file`"):
        shipped(name)
