"""``values.yaml`` as a tree: each key with its default, the sentences above it, and its schema line.

The line that a key stands on comes from the YAML reader; its comment is the block of ``#`` lines right above.
Below a key with a schema of its own (a probe, say) the default is one value.
"""

from __future__ import annotations

from typing import Any

import msgspec
from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, ScalarNode

SCHEMA = "schema:"
"""Begins the comment line whose rest is a piece of JSON Schema in YAML's flow style."""


class ValuesError(Exception):
    """``values.yaml`` does not say what it must: what, where, what to do."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the file."""

    path: tuple[str, ...]
    default: Any
    sentence: str
    schema: dict[str, Any] | None
    """What its comment says beyond the default's type."""
    children: tuple[Value, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)


def read_values(text: str) -> tuple[Value, ...]:
    """The keys at the top, in the order of the file.

    Raises:
        ValuesError: a key without a sentence, or whose default tells no type and whose comment none either.
    """
    reader = YAML(typ="safe", pure=True)
    node = reader.compose(text)
    assert isinstance(node, MappingNode)
    return _children(node, reader.load(text), text.splitlines(), ())


def _children(
    node: MappingNode, data: dict[str, Any], lines: list[str], above: tuple[str, ...]
) -> tuple[Value, ...]:
    found = []
    for key, child in node.value:
        assert isinstance(key, ScalarNode)
        path = (*above, key.value)
        default = data[key.value]
        sentence, schema = _comment(lines, key.start_mark.line, ".".join(path))
        inner = isinstance(child, MappingNode) and bool(child.value)
        opaque = schema is not None and schema.get("$ref") != "#/$defs/Config"
        children = (
            _children(child, default, lines, path)
            if isinstance(child, MappingNode) and inner and not opaque
            else ()
        )
        if not sentence and not children:
            raise ValuesError(f"values.yaml: {'.'.join(path)}: no comment above it, say what it is")
        if schema is None and not children and default in (None, {}, []) and above != ("config",):
            raise ValuesError(
                f"values.yaml: {'.'.join(path)}: {default!r} tells no type, add a line `# schema: {{...}}`"
            )
        found.append(
            Value(path=path, default=default, sentence=sentence, schema=schema, children=tuple(children))
        )
    return tuple(found)


def _comment(lines: list[str], line: int, path: str) -> tuple[str, dict[str, Any] | None]:
    """The sentence and the schema that stand above 0-based ``line``."""
    block: list[str] = []
    while line and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        block.insert(0, lines[line].lstrip().removeprefix("#").strip())
    schema = None
    if block and block[-1].startswith(SCHEMA):
        schema = YAML(typ="safe", pure=True).load(block.pop().removeprefix(SCHEMA))
        if not isinstance(schema, dict):
            raise ValuesError(f"values.yaml: {path}: its schema is not a mapping in braces")
    return " ".join(block), schema
