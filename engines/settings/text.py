"""Settings as a shell script, a table, or JSON values."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from engines.settings.values import Level, Setting, Sheet

FILE = "reproducible.yaml"
"""Name that the script gives the engine's own configuration file."""


def table(sheet: Sheet, rows: Sequence[Setting], level: Level) -> str:
    """For a person: every row with its reason, cost and source."""
    lines = [f"{sheet.engine} {sheet.since} up to {sheet.before}, level {level}"]
    for row in rows:
        lines += ["", row.shown(), f"  {row.name}: {row.reason}", f"  cost: {row.cost}"]
        if row.condition:
            lines.append(f"  only on: {row.condition}")
        lines.append(f"  source: {row.source}")
    lines += ["", *(f"note: {note}" for note in sheet.notes)]
    return "\n".join(lines)


def script(sheet: Sheet, rows: Sequence[Setting], level: Level) -> str:
    """For a shell: variables exported, the file written, the engine started; MODEL is the first argument."""
    lines = [
        "#!/bin/sh",
        f"# {sheet.engine} {sheet.since} up to {sheet.before}, level {level}: made by `forkgate settings`.",
        "# usage: sh THIS MODEL [more flags]",
        "set -eu",
        "model=${1:?a model folder is needed}; shift",
    ]
    for row in rows:
        if row.variable is not None:
            lines += [*_comment(row), f"export {row.variable}={shlex.quote(row.value or '')}"]
    keys = {row.key: row.key_value for row in rows if row.key is not None}
    if keys:
        lines += ["# what has no flag goes into the engine's own file"]
        lines += [f"cat > {FILE} <<'END'", json.dumps(nested(keys), indent=2), "END"]
    for row in rows:
        if row.absent is not None or row.request is not None:
            lines += [f"# {row.shown()}", *_comment(row)]
    command = [shlex.quote(one) if one != "MODEL" else '"$model"' for one in sheet.command]
    words = [_flag(row) for row in rows if row.flag is not None]
    if keys:
        words.append(f"{sheet.file_flag} {FILE}")
    lines += ["exec " + " \\\n  ".join([" ".join(command), *words, '"$@"'])]
    return "\n".join(lines)


def arguments(rows: Sequence[Setting]) -> list[str]:
    """The flags alone, as an argument list."""
    pairs = [(row.flag, row.value) for row in rows if row.flag is not None]
    return [word for pair in pairs for word in pair if word is not None]


def to_json(sheet: Sheet, rows: Sequence[Setting], level: Level) -> dict[str, Any]:
    keys = {row.key: row.key_value for row in rows if row.key is not None}
    return {
        "engine": sheet.engine,
        "versions": {"since": sheet.since, "before": sheet.before},
        "level": level.value,
        "command": list(sheet.command),
        "arguments": arguments(rows),
        "environment": {row.variable: row.value for row in rows if row.variable is not None},
        "file": {"flag": sheet.file_flag, "content": nested(keys)} if keys else None,
        "absent": [row.absent for row in rows if row.absent is not None],
        "requests": [row.request for row in rows if row.request is not None],
        "settings": [
            {
                "name": row.name,
                "setting": row.shown(),
                "reason": row.reason,
                "cost": row.cost,
                "condition": row.condition or None,
                "source": row.source,
            }
            for row in rows
        ],
        "notes": list(sheet.notes),
    }


def nested(keys: dict[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` → ``{"a": {"b": 1}}``."""
    told: dict[str, Any] = {}
    for key, value in keys.items():
        *path, last = key.split(".")
        place = told
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    return told


def _flag(row: Setting) -> str:
    assert row.flag is not None
    return row.flag if row.value is None else f"{row.flag} {shlex.quote(row.value)}"


def _comment(row: Setting) -> list[str]:
    only = f" (only on: {row.condition})" if row.condition else ""
    return [f"# {row.name}: {row.reason}{only}"]
