"""``values.schema.json``: closed at every level that the chart owns, with forkgate's configuration inlined.

Helm refuses a release whose values do not fit, so a misspelt key is an error at ``helm install`` and not a
setting that silently did nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from forkgate.config.schema import DIALECT
from forkgate.config.schema import schema as configuration
from tools.chart.values import Value

SET_BY_CHART: dict[str, tuple[str, ...]] = {
    "Config": ("state_dir",),
    "AdminSection": ("listen",),
    "Listen": ("host", "port", "tls"),
    "JudgeSection": ("address", "tls"),
    "Telemetry": ("prometheus",),
}
"""Keys of the configuration that follow from other values: setting them is refused, not overwritten in
silence."""


def text(values: Iterable[Value]) -> str:
    return json.dumps(schema(values), indent=2, ensure_ascii=False) + "\n"


def schema(values: Iterable[Value]) -> dict[str, Any]:
    return {
        "$schema": DIALECT,
        "title": "Values of the forkgate chart",
        **_object(values),
        "$defs": {
            "Object": {"type": "object", "description": "Goes into the manifest as it is."},
            "Reference": {
                "type": "object",
                "properties": {"name": {"type": "string", "minLength": 1}},
                "required": ["name"],
                "additionalProperties": False,
            },
            **_configuration(),
        },
    }


def _object(values: Iterable[Value]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {value.path[-1]: _of(value) for value in values},
        "additionalProperties": False,
    }


def _of(value: Value) -> dict[str, Any]:
    told: dict[str, Any] = {"description": value.sentence} if value.sentence else {}
    if value.schema is not None:
        return {**told, "default": value.default, **value.schema}
    if value.children:
        return {**told, **_object(value.children)}
    return {**told, "type": _type(value.default), "default": value.default}


def _type(default: object) -> str:
    match default:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
    raise AssertionError(f"read_values lets no {type(default).__name__} through without a schema")


def _configuration() -> dict[str, Any]:
    """forkgate's own definitions, less what the chart sets and what it lets wait.

    ``pools`` may be empty here, so that `helm lint` works on the defaults; rendering refuses it.
    """
    definitions: dict[str, Any] = configuration()["$defs"]
    for name, keys in SET_BY_CHART.items():
        definition = definitions[name]
        for key in keys:
            del definition["properties"][key]
    definitions["Config"]["required"] = []
    definitions["Config"]["properties"]["pools"].pop("minItems")
    return definitions
