"""The OpenAPI 3.1 document, made of the table of routes and its types. Nothing in it is written twice."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from forkgate.admin.answers import ErrorAnswer
from forkgate.admin.audit import AuditLog
from forkgate.admin.general import GeneralRoutes
from forkgate.admin.port import AdminPort
from forkgate.admin.roles import Need, roles_for
from forkgate.admin.routes import Query, Route
from forkgate.admin.table import table

FILE = Path(__file__).parents[2] / "docs" / "openapi.json"
"""In the repository, for readers; a running judge serves it at ``/v1/openapi.json``."""
_JSON = "application/json"
_PARAMETER = re.compile(r"\{(\w+)\}")


def document(routes: Sequence[Route]) -> dict[str, Any]:
    """The document as plain data."""
    kinds = [ErrorAnswer, *(route.answer for route in routes)]
    kinds += [route.body for route in routes if route.body is not None]
    schemas, components = msgspec.json.schema_components(
        [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]],
        ref_template="#/components/schemas/{name}",
    )
    by_kind = dict(zip((id(kind) for kind in _once(kinds)), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, kinds, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "forkgate admin API",
            "version": importlib.metadata.version("forkgate"),
            "description": "The judge of one forkgate sidecar. docs/admin-api.md has the prose.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def document_text() -> str:
    """The document as the file in the repository holds it."""
    return msgspec.json.format(msgspec.json.encode(document(described())), indent=2).decode() + "\n"


def render() -> dict[Path, str]:
    """The generated file, for ``tools.check_generated``."""
    return {FILE: document_text()}


def described() -> tuple[Route, ...]:
    """The table with nobody behind it: to be read, not called."""
    nobody = cast(AdminPort, None)
    return table(nobody, GeneralRoutes(nobody, cast(AuditLog, None), dict, dict))


def _once(kinds: Sequence[Any]) -> list[Any]:
    return [kind for number, kind in enumerate(kinds) if kind not in kinds[:number]]


def _schema_of(kind: Any, kinds: Sequence[Any], by_kind: dict[int, Any]) -> Any:
    return by_kind[id(next(one for one in _once(kinds) if one == kind))]


def _operation(route: Route, kinds: Sequence[Any], by_kind: dict[int, Any]) -> dict[str, Any]:
    answer = _schema_of(route.answer, kinds, by_kind)
    error = _schema_of(ErrorAnswer, kinds, by_kind)
    made: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "description": _who(route),
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in _PARAMETER.findall(route.path)
        ]
        + [_parameter(query) for query in route.query],
        "responses": {
            "200": {
                "description": route.summary,
                "content": {"application/x-ndjson": {}} if route.lines else {_JSON: {"schema": answer}},
            },
            **{
                str(status): {
                    "description": meaning,
                    # Not ready is an answer of its own, and no refusal.
                    "content": {_JSON: {"schema": error if route.needs or status == 400 else answer}},
                }
                for status, meaning in sorted(statuses(route).items())
            },
        },
        "security": [{"token": []}] if route.needs else [],
    }
    if route.body is not None:
        schema = _schema_of(route.body, kinds, by_kind)
        made["requestBody"] = {"required": True, "content": {_JSON: {"schema": schema}}}
    return made


def statuses(route: Route) -> dict[int, str]:
    """Every answer that is no 200, with its meaning."""
    found: dict[int, str] = {}
    found[400] = (
        "A parameter is unknown, said twice or not what it should be, or the body is not; `param` names it."
    )
    if route.needs:
        found |= {401: "No token, or one that is not known or has expired.", 429: "Too many wrong tokens."}
        found[403] = "The token's role does not cover this."
    if "{" in route.path:
        found[404] = "There is none of this name."
    if route.method == "POST":
        found |= {408: "The body came too slowly.", 413: "The body is too large."}
    if route.action is not None:
        found[503] = "It could not be written to the audit log."
    for status, meaning in (route.statuses or {}).items():
        found[status] = f"{meaning} {found[status]}" if status in found else meaning
    return found


def _parameter(query: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": query.kind}
    if query.choices:
        schema["enum"] = list(query.choices)
    if query.pattern is not None:
        schema["pattern"] = query.pattern
    if query.least is not None:
        schema["minimum"] = query.least
    if query.most is not None:
        schema["maximum"] = query.most
    return {"name": query.name, "in": "query", "description": query.about, "schema": schema}


def _operation_id(route: Route) -> str:
    words = re.sub(r"[^a-z0-9]+", "_", route.path.removeprefix("/v1").lower()).strip("_")
    return f"{route.method.lower()}_{words}"


def _who(route: Route) -> str:
    if not route.needs:
        return "For anybody."
    roles = ", ".join(role.value for role in roles_for(*route.needs))
    logged = f" In the audit log as `{route.action}`." if route.action is not None else ""
    needs = "content" if Need.CONTENT in route.needs else "step" if Need.STEP in route.needs else "view"
    return f"For {roles} (needs {needs}).{logged}"
