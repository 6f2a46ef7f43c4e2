"""JSON in an answer: alone or in a fenced block, held against a JSON Schema (2020-12).

Nothing is ever fetched: a schema may refer to itself (``#/$defs/...``) and to nothing else. ``format`` is an
annotation, as the standard has it by default, and is not checked; write a ``pattern``.
"""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import referencing
import referencing.exceptions

from policies.scoring.errors import ScoringError
from policies.strict_json import strict_json

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)^[ \t]*\1[ \t]*$", re.DOTALL | re.MULTILINE)


def fenced(answer: str) -> str | None:
    """What stands in the first closed ```` ``` ```` (or ``~~~``) block of ``answer``; None without one."""
    found = _FENCE.search(answer)
    return None if found is None else found[2]


def json_of(answer: str, *, in_fence: bool = False) -> Any:
    """The one JSON value that ``answer`` is.

    Args:
        answer: the whole text; space around the value is no matter.
        in_fence: where the whole is no JSON, take the first fenced block.

    Raises:
        ValueError: it is none: not JSON, a key given twice, or one of Python's NaN and Infinity.
    """
    try:
        return strict_json(answer)
    except ValueError:
        inside = fenced(answer) if in_fence else None
        if inside is None:
            raise
        return strict_json(inside)


def matches_schema(answer: str, schema: dict[str, Any], *, in_fence: bool = False) -> bool:
    """Whether ``answer`` is one JSON value that ``schema`` accepts.

    Raises:
        ScoringError: the schema refers to something outside itself, or calls itself without end. The answer
            is not to blame.
    """
    try:
        value = json_of(answer, in_fence=in_fence)
    except (ValueError, RecursionError):
        return False
    # An empty registry: by default the validator would fetch what a schema refers to.
    validator = jsonschema.Draft202012Validator(schema, registry=referencing.Registry())
    try:
        return bool(validator.is_valid(value))
    except referencing.exceptions.Unresolvable as exc:
        raise ScoringError(f"schema: $ref {exc.ref!r} leads nowhere; refer to #/$defs/... only") from exc
    except RecursionError as exc:
        raise ScoringError("schema: it refers to itself without end for this answer") from exc
