"""JSON Schemas of the files that people write: the configuration, and a suite's samples.

Each key's meaning comes from the docstring beside it. A schema cannot drift from the code: types and ranges
come from the structs, prose from the string that follows each field in the source.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec

from forkgate.config.model import Config
from policies.suites import Sample, sample_schema

TITLE = "forkgate configuration"
FILE = Path(__file__).parents[2] / "docs" / "forkgate.schema.json"
"""In the repository, for editors; an installed forkgate prints it with `forkgate config schema`."""
SUITE_FILE = FILE.with_name("suite.schema.json")
"""Of one line of a suite; `forkgate suite schema` prints it."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """The schema as plain data, keys in the order of the source."""
    found: dict[str, type] = {}

    def remember(kind: msgspec.inspect.Type) -> None:
        for struct in _structs(kind):
            found.setdefault(struct.__name__, struct)

    remember(msgspec.inspect.type_info(Config))
    made = msgspec.json.schema(Config)
    definitions: dict[str, Any] = made["$defs"]
    for name, definition in definitions.items():
        if name in found:
            _describe(definition, found[name])
    return {"$schema": DIALECT, "title": TITLE, **made}


def schema_text() -> str:
    """The schema as the file in the repository holds it."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=2).decode() + "\n"


def suite_schema() -> dict[str, Any]:
    """The schema of one line of a suite, with prose."""
    made = sample_schema()
    kinds = {kind.__name__: kind for kind in _structs(msgspec.inspect.type_info(Sample))}
    _describe(made, Sample)
    for name, definition in made["$defs"].items():
        if name in kinds:
            _describe(definition, kinds[name])
    return made


def suite_schema_text() -> str:
    """The same as the file in the repository holds it."""
    return msgspec.json.format(msgspec.json.encode(suite_schema()), indent=2).decode() + "\n"


def render() -> dict[Path, str]:
    """The generated files, for ``tools.check_generated``."""
    return {FILE: schema_text(), SUITE_FILE: suite_schema_text()}


def _structs(kind: Any, seen: set[type] | None = None) -> list[type]:
    seen = set() if seen is None else seen
    if isinstance(kind, msgspec.inspect.StructType):
        if kind.cls in seen:
            return []
        seen.add(kind.cls)
        return [kind.cls, *(one for field in kind.fields for one in _structs(field.type, seen))]
    children = getattr(kind, "types", None) or [
        getattr(kind, name) for name in ("type", "item_type", "value_type") if hasattr(kind, name)
    ]
    return [one for child in children for one in _structs(child, seen)]


def _describe(definition: dict[str, Any], struct: type) -> None:
    docs = field_docs(struct)
    for key, entry in definition.get("properties", {}).items():
        if key in docs:
            entry["description"] = docs[key]


@functools.cache
def field_docs(struct: type) -> dict[str, str]:
    """Field name → the docstring under it, or the comment-free ``Attributes`` line of the class."""
    source = inspect.getsource(sys.modules[struct.__module__])
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == struct.__name__:
            return _docs_of(node)
    return {}


def _docs_of(node: ast.ClassDef) -> dict[str, str]:
    docs: dict[str, str] = {}
    for field, after in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[field.target.id] = " ".join(textwrap.dedent(after.value.value).split())
    return docs
