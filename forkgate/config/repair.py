"""What can still be read of a file whose shape is wrong, so that one run names what else is wrong with it.

A part that is wrong is replaced by its default, or its whole section by a stand-in. A check between values
runs only when none of the sections that it reads was touched in a way that could make it say something
untrue.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from forkgate.config.model import Config
from forkgate.config.problems import Problem
from forkgate.config.shape import build

ALONE = {"limits", "timeouts"}
"""Sections whose values no check compares with another's: a default in place of a wrong one hides nothing."""
ALONE_WITHIN = {"pools": {"engine"}, "rollouts": {"shadow", "checks"}}
"""The same, within the items of a list."""
UNKNOWN_IS_HARMLESS = {"pools", "rollouts"}
"""Sections in which a check reads what is written, and nothing that an unknown key was meant to be."""

_STAND_INS: dict[str, Any] = {
    "state_dir": ".",
    "pools": [{"name": "stand-in", "endpoints": ["http://stand-in:1"]}],
    "home": "stand-in",
}
_PART = re.compile(r"[^.\[\]]+|\[\d+\]")


def readable(data: Any, problems: Iterable[Problem]) -> tuple[Config | None, frozenset[str]]:
    """The configuration as far as it can be read, and the sections that no check may rely on.

    Args:
        data: the file's, with these problems of shape.
    """
    if not isinstance(data, dict):
        return None, frozenset()
    data = copy.deepcopy(data)
    broken: set[str] = set()
    for problem in problems:
        parts = _PART.findall(problem.path)
        section = parts[0] if parts else ""
        if not _remove(data, parts) or not _harmless(problem, parts):
            broken.add(section)
    left = build(Config, data)[1]
    for section in {_PART.findall(problem.path)[0] for problem in left if problem.path}:
        broken.add(section)
        data.pop(section, None)
        if section in _STAND_INS:
            data[section] = _STAND_INS[section]
    return build(Config, data)[0], frozenset(broken)


def _harmless(problem: Problem, parts: list[str]) -> bool:
    section = parts[0]
    if section in ALONE:
        return True
    if problem.message.startswith("unknown key") and section in UNKNOWN_IS_HARMLESS:
        return True
    return len(parts) > 3 and parts[2] in ALONE_WITHIN.get(section, ())


def _remove(data: Any, parts: list[str]) -> bool:
    """Take the value at this path out. False when it is not there, or is an item of a list: the items after
    it would get other numbers."""
    for part in parts[:-1]:
        try:
            data = data[int(part[1:-1])] if part.startswith("[") else data[part]
        except (KeyError, IndexError, TypeError):
            return False
    if not parts or not isinstance(data, dict) or parts[-1] not in data:
        return False
    del data[parts[-1]]
    return True
