"""JSON Lines → a suite, with everything that is wrong told at once and by its line."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from typing import Any, get_args

import msgspec

from comparator.misfit import Misfit, misfit_of
from policies.strict_json import strict_json
from policies.suites.checks import problems_of
from policies.suites.errors import SuiteError
from policies.suites.sample import Check, Sample
from policies.suites.suite import Suite

MOST_SAMPLES = 20_000
MOST_BYTES = 64 * 2**20
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
        sample = _decode(line, at, problems)
        if sample is None:
            continue
        problems.extend(f"{at}: {problem}" for problem in problems_of(sample, scorers))
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


def _decode(line: bytes, at: str, problems: list[str]) -> Sample | None:
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
    try:
        return msgspec.convert(value, Sample)
    except msgspec.ValidationError as exc:
        problems.append(f"{at}: {_placed(misfit_of(exc))}")
        return None


def _placed(found: Misfit) -> str:
    """A misfit in the suite's words, the place first."""
    if found.missing is not None:
        return f"{found.field(found.missing)}: missing; every sample needs it"
    if found.unknown is not None:
        return f"{found.field(found.unknown)}: unknown field; take it out, or see the schema for its name"
    if found.path.endswith(".kind"):
        return f"{found.path}: {found.text.removeprefix('Invalid value ')} is unknown; known are {_KINDS}"
    return f"{found.path or 'sample'}: {found.lowered}"


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
