"""``requirements-runtime.lock``: the part of ``requirements.lock`` that a sidecar needs to run.

What ``pyproject.toml`` lists under ``dependencies``, and the messages of vLLM's gRPC server (a few files, so
that ``engine: {kind: vllm_grpc}`` works), with all that these require in turn: no torch, no tests.
Versions are the lock's own, so what the container runs is what the tests ran. ``make lock`` writes it, ``make
check`` fails when it has drifted.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
RUNTIME_LOCK = ROOT / "requirements-runtime.lock"
EXTRAS = ("vllm-grpc",)
"""Of ``project.optional-dependencies``."""


class LockError(Exception):
    """The locks do not fit together: what, where, what to do."""


def normalised(name: str) -> str:
    """A distribution's name as comparisons need it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """Normalised name → the line of the lock that pins it."""
    return {normalised(line.split("==")[0]): line for line in path.read_text().split() if "==" in line}


def render() -> dict[Path, str]:
    """The generated file, for ``tools.check_generated``.

    Raises:
        LockError: something that runs is not in ``requirements.lock``, or not installed here.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(line) for line in project["dependencies"]]
    wanted += [Requirement(line) for extra in EXTRAS for line in project["optional-dependencies"][extra]]
    locked = pins(LOCK)
    missing = (found := closure(wanted)) - locked.keys()
    if missing:
        raise LockError(f"{LOCK.name}: lacks {', '.join(sorted(missing))}, run `make lock`")
    return {RUNTIME_LOCK: "".join(f"{locked[name]}\n" for name in sorted(found))}


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Normalised names of these and of all that they require, as far as their markers hold here."""
    found: set[str] = set()
    todo = [(one, frozenset[str]()) for one in requirements]
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        requirement, extras = todo.pop()
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": one}) for one in extras or {""}):
            continue
        key = (normalised(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        found.add(key[0])
        try:
            needs = distribution(requirement.name).requires or ()
        except PackageNotFoundError:
            raise LockError(f"{requirement.name}: not installed, run `make .venv/.installed`") from None
        todo += [(Requirement(line), key[1] | {""}) for line in needs]
    return found


def main() -> None:
    for path, text in render().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
