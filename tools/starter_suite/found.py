"""What running the model has found, as it is kept beside the generator, so that a rebuild needs no model.

``found.jsonl``: a line a near call, nearest first within its template. ``rules.json``: which samples keep
their rules. Both name a sample by the digest of what the model is given; a template that changes afterwards
no longer matches, and the suite is not written until the search has run again.
"""

from __future__ import annotations

import pathlib
from typing import Literal

import msgspec

HERE = pathlib.Path(__file__).parent
FOUND = HERE / "found.jsonl"
RULES = HERE / "rules.json"
CANDIDATES = 16
"""Instances run of a template of the two searched categories."""
KEPT = 10
"""Near calls kept of a template: no template gives more samples."""
PARTS = ("near_stop", "low_margin", "rules")
"""What the search is made of; each can be run alone."""
RULE_INSTANCES = 3
"""Instances of a template whose rules are tried. They are enough: a broken environment breaks many."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    text: str


class Near(msgspec.Struct, frozen=True, kw_only=True):
    """A step at which two tokens are nearly equally likely, on the model's own greedy path."""

    template: str
    digest: str
    position: int
    """Output position, 0-based."""
    first: Token
    second: Token
    margin_nats: float
    """Logprob of the first minus that of the second, rounded to 1e-4."""
    end_of_turn: Literal["first", "second"] | None = None
    """Which of the two ends the answer, if one does."""


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The model that was run, and the digests of the samples whose rules were tried and kept in every run."""

    model: str
    weights_sha256: str
    dtype: str
    tried: tuple[str, ...]
    kept: tuple[str, ...]


def read_found() -> list[Near]:
    return [msgspec.json.decode(line, type=Near) for line in FOUND.read_bytes().splitlines()]


def read_rules() -> Rules:
    return msgspec.json.decode(RULES.read_bytes(), type=Rules)


def write_found(near: list[Near]) -> None:
    ordered = sorted(near, key=lambda one: (one.template, one.margin_nats, one.digest))
    FOUND.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in ordered))


def write_rules(rules: Rules) -> None:
    RULES.write_bytes(msgspec.json.format(msgspec.json.encode(rules), indent=1) + b"\n")
