"""The quick check's rule on real generations under known changes, cut after its 20 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.attribution import compared, read_entries, read_generations
from comparator.floor import Floor
from comparator.records import Arm
from comparator.taxonomy import Allowance, ForkClass, classify
from forkgate.checks import dominates
from forkgate.checks.report import spacing_of

BATTERY = Path(__file__).parents[2] / "data" / "battery"
TOKENS = 20


@pytest.fixture(scope="module")
def generations() -> dict[Any, Any]:
    found = read_generations(BATTERY)
    for one in found.values():
        if len(one["token_ids"]) > TOKENS:
            one["finish_reason"] = "length"
            one["token_ids"], one["top"] = one["token_ids"][:TOKENS], one["top"][:TOKENS]
    return found


@pytest.mark.parametrize(
    ("change", "damaged"),
    [
        ("same environment, run again", False),
        ("bf16, alone against concurrent: scheduling only", False),
        ("fp32 to bf16: precision only", False),
        ("3-bit weights", True),
        ("one layer silenced", True),
    ],
)
def test_damage_dominates_within_twenty_tokens_and_precision_does_not(
    change: str, damaged: bool, generations: dict[Any, Any]
) -> None:
    entry = next(one for one in read_entries(BATTERY) if one["name"] == change)
    pairs = compared(generations, entry["baseline"], entry["candidate"], Arm.CANDIDATE, entry).values()
    allowance = Allowance(
        spacing_nats=spacing_of(one for pair in pairs for one in (pair.left, pair.right)), floor=Floor()
    )
    classes = [found.fork_class for pair in pairs if (found := classify(pair, allowance)) is not None]
    assert len(classes) == 16
    assert dominates(classes.count(ForkClass.DISTRIBUTION_SHIFT), len(classes)) is damaged
