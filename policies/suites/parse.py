"""JSON Lines → a suite, with everything that is wrong told at once and by its line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from comparator.misfit import Misfit, misfit_of
from policies.strict_json import strict_json
from policies.suites.checks import problems_of
from policies.suites.errors import SuiteError
from policies.suites.sample import Check, Sample
from policies.suites.suite import Suite

MOST_SAMPLES = 20_000
MOST_BYTES = 64 * 2**20
_FIELDS = get_type_hints(Sample)
_REQUIRED = Sample.__struct_fields__[: -len(Sample.__struct_defaults__)]
_WORD = re.compile(r"\w+")
_KINDS = ", ".join(str(kind.__struct_config__.tag) for kind in get_args(Check))


def parse_suite(data: bytes, where: str, name: str, scorers: Collection[str] = ()) -> Suite:
    """The suite that a file holds: one JSON object a line; blank lines are passed over.

    Args:
        data: the file's bytes; their SHA-256 is the suite's digest.
        where: the file's name, for messages.
        name: the suite's key in the policy.
        scorers: the names under ``suites.NAME.scorers``, which ``python`` checks may use.

    Raises:
        SuiteError: everything that is wrong, each problem as ``where:line: field: what; what to do``.
    """
    if len(data) > MOST_BYTES:
        raise SuiteError([f"{where}: {len(data)} bytes are more than {MOST_BYTES}; split the suite"])
    problems: list[str] = []
    samples: list[Sample] = []
    first_line: dict[str, int] = {}
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        at = f"{where}:{number}"
        sample = _decode(line, at, problems, scorers)
        if sample is None:
            continue
        if sample.id in first_line:
            problems.append(
                f"{at}: id: {sample.id!r} is already the id of line {first_line[sample.id]}; "
                "give each sample its own"
            )
        first_line.setdefault(sample.id, number)
        samples.append(sample)
    if not samples and not problems:
        problems.append(f"{where}: no sample in the file; write one JSON object a line")
    if len(samples) > MOST_SAMPLES:
        problems.append(f"{where}: {len(samples)} samples are more than {MOST_SAMPLES}; split the suite")
    if problems:
        raise SuiteError(problems)
    return Suite(name=name, digest=digest_of(data), samples=tuple(samples))


def digest_of(data: bytes) -> str:
    """``sha256:`` and the hex SHA-256 of a suite's bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def sample_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of one line of a suite, for editors and for those who generate samples."""
    (schema,), components = msgspec.json.schema_components([Sample], ref_template="#/$defs/{name}")
    name = str(schema["$ref"]).rpartition("/")[2]
    whole = components.pop(name)
    whole["oneOf"] = [
        {"required": ["messages"], "properties": {"messages": {"minItems": 1}, "prompt": {"type": "null"}}},
        {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"maxItems": 0}}},
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "title": "A sample of a forkgate suite: one line of JSON Lines",
        "$defs": components,
    }


def _decode(line: bytes, at: str, problems: list[str], scorers: Collection[str]) -> Sample | None:
    try:
        value = strict_json(line.decode("utf-8"))
    except UnicodeDecodeError as exc:
        problems.append(f"{at}: byte {exc.start + 1} is no UTF-8; save the file as UTF-8")
        return None
    except json.JSONDecodeError as exc:
        hint = (
            "; the file starts with a byte order mark, save it without" if line[:3] == b"\xef\xbb\xbf" else ""
        )
        problems.append(f"{at}: column {exc.colno}: no JSON: {exc.msg}{hint}")
        return None
    except RecursionError:
        problems.append(f"{at}: brackets in brackets without end; no sample is nested that deep")
        return None
    except ValueError as exc:  # ours, or a whole number of thousands of digits
        problems.append(f"{at}: {exc}")
        return None
    if (half := _half_character(value)) is not None:
        problems.append(
            f"{at}: {half!r} has half of a character (a lone surrogate, \\ud800-\\udfff), which no text can "
            "hold; write the whole character"
        )
        return None
    if not isinstance(value, dict):
        problems.append(f"{at}: {type(value).__name__} where a JSON object is expected; one sample a line")
        return None
    found = _sample_of(value, scorers)
    problems.extend(f"{at}: {problem}" for problem in found.problems)
    return found.sample


class _Found(NamedTuple):
    sample: Sample | None
    """None where a field is missing, unknown or of another type."""
    problems: list[str]


def _sample_of(value: dict[str, Any], scorers: Collection[str]) -> _Found:
    """Field by field, since msgspec alone tells of a line's first misfit; within a field it still does."""
    unknown = [field for field in value if field not in _FIELDS]
    problems = [f"{field}: unknown field; take it out, or see the schema for its name" for field in unknown]
    fits: dict[str, Any] = dict.fromkeys(_REQUIRED, "x")  # stands in for what is told of already
    bad: set[str] = set()
    for field, kind in _FIELDS.items():
        if field in value:
            try:
                fits[field] = msgspec.convert(value[field], kind)
            except msgspec.ValidationError as exc:
                bad.add(field)
                problems.append(_placed(misfit_of(exc), field))
        elif field in _REQUIRED:
            bad.add(field)
            problems.append(f"{field}: missing; every sample needs it")
    sample = Sample(**fits)
    for problem in problems_of(sample, scorers):
        # A problem that names a field of which nothing is known may come of the stand-in alone.
        if bad.isdisjoint(_WORD.findall(problem.partition(": ")[0])):
            problems.append(problem)
    return _Found(None if bad or unknown else sample, problems)


def _placed(found: Misfit, field: str) -> str:
    """A misfit within a field, in the suite's words, the place first."""
    dot = "." if found.path and found.path[0] != "[" else ""
    found = msgspec.structs.replace(found, path=f"{field}{dot}{found.path}")
    if found.missing is not None:
        return f"{found.field(found.missing)}: missing; every sample needs it"
    if found.unknown is not None:
        return f"{found.field(found.unknown)}: unknown field; take it out, or see the schema for its name"
    if found.path.endswith(".kind"):
        return f"{found.path}: {found.text.removeprefix('Invalid value ')} is unknown; known are {_KINDS}"
    return f"{found.path}: {found.lowered}"


_LONE = re.compile("[\ud800-\udfff]")


def _half_character(value: Any) -> str | None:
    """Some characters around a lone surrogate, in any text or key of a decoded value: neither an engine nor
    the evidence could be told it."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            if (found := _LONE.search(one)) is not None:
                return one[max(found.start() - 10, 0) : found.end() + 10]
        elif isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one
    return None
