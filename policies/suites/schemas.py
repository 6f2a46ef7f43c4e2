"""Is it a JSON Schema (2020-12), and does it stay within itself?

A schema may refer to its own parts (``#/$defs/...``) and to nothing else: a suite is frozen by its bytes, and
what is fetched from elsewhere is not. ``format`` is an annotation, as the standard has it by default, and is
not checked; write a ``pattern``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import referencing
import referencing.exceptions
import referencing.jsonschema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DATA = frozenset({"const", "enum", "examples", "default"})
"""Keywords whose values are data, in which a ``$ref`` means nothing."""


def schema_problem(schema: dict[str, Any]) -> str | None:
    """Why ``schema`` cannot be used, as ``.path: what; what to do``; None when it can."""
    if schema.get("$schema", DIALECT) != DIALECT:
        return f".$schema: {schema['$schema']!r} is another dialect; write for {DIALECT}, or leave it out"
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as exc:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in exc.absolute_path)
        return f"{path}: no valid JSON Schema (2020-12): {exc.message}"
    except RecursionError:
        return ": nested too deeply to be checked; flatten it"
    resource = referencing.jsonschema.DRAFT202012.create_resource(schema)
    base = str(schema.get("$id", ""))
    registry = referencing.Registry().with_resource(base, resource)
    for path, keyword, value in _references(schema):
        if keyword == "$id":
            if path:
                return (
                    f"{path}.$id: a schema inside a schema has no $id of its own here; refer to #/$defs/..."
                )
        elif not value.startswith("#"):
            return (
                f"{path}.{keyword}: {value!r} is outside the schema, and nothing is fetched; copy it to $defs"
            )
        else:
            try:
                registry.resolver(base).lookup(value)
            except referencing.exceptions.Unresolvable:
                return f"{path}.{keyword}: {value!r} leads nowhere in this schema"
    return None


def _references(value: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("$ref", "$dynamicRef", "$id") and isinstance(inner, str):
                yield path, key, inner
            elif key not in _DATA:
                yield from _references(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _references(inner, f"{path}[{i}]")
