"""JSON as the standard has it: no key twice in one object, none of Python's NaN and Infinity."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def strict_json(text: str) -> Any:
    """The value that ``text`` is.

    Raises:
        ValueError: it is none. :class:`json.JSONDecodeError`, with its place, where Python would not take it
            either.
        RecursionError: it is nested without end.
    """
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{twice}: given twice in one object; keep one")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number; leave it out, or write a finite one")
