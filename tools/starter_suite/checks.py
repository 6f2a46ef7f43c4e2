"""Short names for the checks that templates use."""

from __future__ import annotations

import re
from typing import Any

from policies.suites.sample import Exact, JsonSchema, Numeric, Regex

Schema = dict[str, Any]

CJK = "[\\u4e00-\\u9fff]"


def only(*texts: str) -> Exact:
    """The answer is one of these and nothing else; a full stop after it is forgiven."""
    return Exact(expected=tuple(text + end for text in texts for end in ("", ".")), ignore_case=True)


def only_zh(*texts: str) -> Exact:
    """The same, with the Chinese full stop."""
    return Exact(expected=tuple(text + end for text in texts for end in ("", "。")))


def says(text: object, *, ignore_case: bool = True) -> Regex:
    """The answer has this word or phrase, not as a part of a longer word."""
    return Regex(pattern=rf"(?<![A-Za-z0-9]){re.escape(str(text))}(?![A-Za-z0-9])", ignore_case=ignore_case)


def match(pattern: str, *, ignore_case: bool = False) -> Regex:
    return Regex(pattern=pattern, ignore_case=ignore_case)


def never(pattern: str, *, ignore_case: bool = True) -> Regex:
    return Regex(pattern=pattern, must_match=False, ignore_case=ignore_case)


def number(expected: float, tolerance: float = 0.0) -> Numeric:
    return Numeric(expected=float(expected), tolerance=tolerance)


def shape(schema: Schema, *, fenced: bool = False) -> JsonSchema:
    return JsonSchema(schema=schema, fenced=fenced)


def obj(properties: Schema, *, optional: tuple[str, ...] = (), closed: bool = True) -> Schema:
    """An object whose properties are required unless named ``optional``."""
    made: Schema = {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
    }
    if closed:
        made["additionalProperties"] = False
    return made


def arr(items: Schema, least: int = 0, most: int | None = None, *, unique: bool = False) -> Schema:
    made: Schema = {"type": "array", "items": items, "minItems": least}
    if most is not None:
        made["maxItems"] = most
    if unique:
        made["uniqueItems"] = True
    return made


def one_of(*values: str) -> Schema:
    return {"enum": list(values)}


def whole(low: int | None = None, high: int | None = None) -> Schema:
    made: Schema = {"type": "integer"}
    if low is not None:
        made["minimum"] = low
    if high is not None:
        made["maximum"] = high
    return made


TEXT: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
NO_TEMPLATE_TOKENS = never(r"<\|?(im_start|im_end|endoftext|eot_id|assistant|user)\|?>|\[/?INST\]")
"""What a broken chat template leaks into an answer."""
