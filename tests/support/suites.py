"""Suites for tests: as files that a policy names, and loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forkgate.config.suites import LoadedSuite, load_suite, read_suite
from policies.suite_section import ScorerSection, SuiteSection


def sample(name: str = "s1", **fields: Any) -> dict[str, Any]:
    """One line of a suite, as plain data."""
    return {"id": name, "category": "short", "template": "t", "prompt": f"Say {name}.", **fields}


def lines(*samples: dict[str, Any]) -> str:
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in samples)


def loaded(
    folder: Path,
    *samples: dict[str, Any],
    passes: int = 1,
    scorers: dict[str, str] | None = None,
    timeout_s: float = 5.0,
) -> LoadedSuite:
    """A suite called ``mine``, read from files in ``folder``; ``scorers`` maps a name to its code."""
    (folder / "mine.jsonl").write_text(lines(*samples), encoding="utf-8")
    sections = {}
    for name, code in (scorers or {}).items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        sections[name] = ScorerSection(python=f"{name}.py:score", timeout_s=timeout_s)
    source, problems = read_suite(
        "mine", SuiteSection(file="mine.jsonl", passes=passes, scorers=sections), folder
    )
    assert source is not None, problems
    return load_suite(source)
