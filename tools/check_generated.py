"""Fails when a generated file is not what its generator would write now. Part of ``make check``.

A generator is a function that returns path → text. To have another kind of file checked (a JSON Schema,
say), give its module a ``render()`` and add one line to :data:`GENERATORS`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from forkgate.admin import openapi
from forkgate.config import schema
from tools import chart, proto, runtime_lock, starter_suite

GENERATORS: dict[str, Callable[[], dict[Path, str]]] = {
    "make proto": proto.render,
    "make schema": schema.render,
    "python -m tools.openapi": openapi.render,
    "make chart": chart.render,
    "python -m tools.runtime_lock": runtime_lock.render,
    "python -m tools.starter_suite": starter_suite.render,
}
"""The command that writes the files, for the message, to the function that knows their content."""


def stale() -> list[str]:
    """One sentence for each file that has drifted, empty when all are current."""
    found = []
    for command, render in GENERATORS.items():
        rendered = render()
        for path, text in rendered.items():
            if not path.exists():
                found.append(f"{path}: missing; run `{command}`")
            elif path.read_text() != text:
                found.append(f"{path}: not what its source generates; run `{command}`")
        if command == "make proto":
            found += [
                f"{path}: generated once, no longer; run `{command}`"
                for path in sorted(set(proto.TARGET.glob("*.py*")) - set(rendered))
            ]
    return found


def main() -> int:
    problems = stale()
    for problem in problems:
        print(problem, file=sys.stderr)  # noqa: T201
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
