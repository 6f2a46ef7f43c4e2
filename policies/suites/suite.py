"""A suite: its samples, frozen by the digest of the bytes that they were read from."""

from __future__ import annotations

import importlib.resources
import re
from collections import Counter

import msgspec

from policies.suites.errors import SuiteError
from policies.suites.sample import Sample


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a suite holds, counted. Mappings run from the most to the least frequent, then by name."""

    samples: int
    categories: dict[str, int]
    templates: dict[str, int]
    with_rules: int
    with_answer: int
    with_structured: int

    @property
    def largest_template_share(self) -> float:
        """Of the samples, 0-1: how far one way of asking decides the result."""
        return max(self.templates.values()) / self.samples


class Suite(msgspec.Struct, frozen=True, kw_only=True):
    """Checked samples. Made by :func:`policies.suites.parse_suite`."""

    name: str
    """Its key in the policy."""
    digest: str
    """``sha256:`` and the hex SHA-256 of the file's bytes, order and spaces included: they are the suite."""
    samples: tuple[Sample, ...]

    def summary(self) -> Summary:
        """Counts by category, template and question."""
        return Summary(
            samples=len(self.samples),
            categories=_ranked(Counter(sample.category for sample in self.samples)),
            templates=_ranked(Counter(sample.template for sample in self.samples)),
            with_rules=sum(bool(sample.rules) for sample in self.samples),
            with_answer=sum(sample.answer is not None for sample in self.samples),
            with_structured=sum(sample.structured is not None for sample in self.samples),
        )


def shipped(name: str = "starter") -> bytes:
    """The bytes of a suite that comes with the package; :func:`parse_suite` makes samples of them.

    Raises:
        SuiteError: there is no such suite.
    """
    at = importlib.resources.files("policies.suites").joinpath("shipped")
    names = (
        sorted(entry.name.removesuffix(".jsonl") for entry in at.iterdir() if entry.name.endswith(".jsonl"))
        if at.is_dir()
        else []
    )
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or name not in names:
        known = f"shipped are {', '.join(names)}" if names else "none is shipped"
        raise SuiteError(
            [f"suites.{name}: no shipped suite of that name; {known}, else give the path of a `file`"]
        )
    return at.joinpath(f"{name}.jsonl").read_bytes()


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
