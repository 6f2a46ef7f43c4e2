"""Two records side by side, and the table that orders what differs."""

from __future__ import annotations

import pathlib
import re
from typing import Any

import pytest

from engines.identity.canonical import digest_of
from engines.identity.environment import FIELDS, MOVES, complete, row_of, unseen
from engines.identity.environment_diff import NOT_SET, compare
from engines.identity.record import Identity, UnknownField

DOCS = pathlib.Path(__file__).parents[3] / "docs" / "environment-record.md"
EVERYTHING = {
    row.name.replace("*", "0"): "x"
    for row in FIELDS
    if row.name not in ("variables", "engine.flags_unlisted")
} | {"variables": 1, "engine.flags_unlisted": []}


def both(a: dict[str, Any], b: dict[str, Any]) -> Any:
    return compare(Identity(fields={**EVERYTHING, **a}), Identity(fields={**EVERYTHING, **b}))


def test_the_likeliest_comes_first_and_says_why() -> None:
    other = {"os.kernel": "6", "precision.dtype": "float16", "gpu.driver": "550", "cuda.torch": "12.4"}
    found = both({}, other)
    assert [one.field for one in found.differences] == [
        "precision.dtype",
        "cuda.torch",
        "gpu.driver",
        "os.kernel",
    ]
    assert [one.moves for one in found.differences] == ["likely", "likely", "perhaps", "rarely"]
    assert all(one.why for one in found.differences)
    assert not found.equal


def test_the_order_is_the_one_that_is_promised() -> None:
    """Precision, KV cache, attention, engine, speculation, parallelism, batch, GPU, libraries, the rest."""
    promised = ["precision.dtype", "precision.quantization", "precision.kv_cache_dtype", "attention.backend"]
    promised += ["engine.version", "engine.commit", "speculative", "parallel.tensor", "batch.max_sequences"]
    promised += ["prefill.chunked", "cache.prefix", "gpu.0.name", "cublas.version", "cudnn.version"]
    promised += ["nccl.version", "cpu.threads", "gpu.driver", "python.version", "os.kernel"]
    found = both({}, dict.fromkeys(promised, "y"))
    assert [one.field for one in found.differences] == promised


def test_a_side_that_is_unknown_is_not_a_difference() -> None:
    found = both({"cudnn.version": UnknownField("no library")}, {"cudnn.version": "9.1"})
    assert found.differences == ()
    assert [one.field for one in found.unknown] == ["cudnn.version"]
    assert not found.equal
    assert found.to_json()["unknown"][0]["a"] == {"unknown": "no library"}


def test_unknown_on_both_sides_is_equal_and_told() -> None:
    found = both({"cudnn.version": UnknownField("x")}, {"cudnn.version": UnknownField("x")})
    assert found.equal
    assert found.unknown_in_both == ("cudnn.version",)
    assert not both({"cudnn.version": UnknownField("x")}, {"cudnn.version": UnknownField("y")}).equal


@pytest.mark.parametrize(("a", "b", "same"), [(1, True, False), (1, 1.0, True), ([0], [False], False)])
def test_values_are_compared_as_json_compares_them(a: Any, b: Any, same: bool) -> None:
    found = both({"sampler.seed": a}, {"sampler.seed": b})
    assert found.equal is same
    assert (found.a.digest == found.b.digest) is same


def test_a_variable_that_is_not_set_differs_from_one_that_was_not_seen() -> None:
    set_there = {"variable.NCCL_P2P_DISABLE": "1"}
    found = both(set_there, {})
    assert found.differences[0].b is NOT_SET
    assert found.to_json()["differences"][0]["b"] == {"not_set": True}
    unseen_there = both(set_there, {"variables": UnknownField("not allowed")})
    assert unseen_there.differences == ()
    assert {one.field for one in unseen_there.unknown} == {"variable.NCCL_P2P_DISABLE", "variables"}


def with_packages(packages: dict[str, str], told: dict[str, str] | None = None) -> Identity:
    digest = digest_of(packages).removeprefix("sha256:")
    about = {"packages": packages if told is None else told}
    return Identity(fields={**EVERYTHING, "python.packages_sha256": digest}, about=about)


def test_packages_that_differ_are_named() -> None:
    a, b = with_packages({"x": "1", "y": "1", "z": "1"}), with_packages({"x": "1", "y": "2"})
    (one,) = compare(a, b).differences
    assert (one.a, one.b) == ({"y": "1", "z": "1"}, {"y": "2"})


def test_a_list_of_packages_that_is_not_the_digest_s_is_not_believed() -> None:
    lying = with_packages({"x": "2"}, told={"x": "1"})
    (one,) = compare(with_packages({"x": "1"}), lying).differences
    assert one.a == with_packages({"x": "1"}).fields["python.packages_sha256"]
    assert one.b == lying.fields["python.packages_sha256"]


def test_a_field_of_a_later_version_is_compared_and_comes_in_the_middle() -> None:
    found = both({"new.field": 1, "os.kernel": "6", "precision.dtype": "y"}, {"new.field": 2})
    assert [one.field for one in found.differences] == ["precision.dtype", "new.field", "os.kernel"]


def test_a_record_has_every_field_or_says_why_not() -> None:
    made = complete({"precision.dtype": "float32"})
    assert made["precision.dtype"] == "float32"
    for row in FIELDS:
        assert row.moves in MOVES
        if "*" not in row.name:
            told = made[row.name]
            assert told == "float32" or (isinstance(told, UnknownField) and told.reason)


def test_wildcards_find_their_row() -> None:
    assert row_of("gpu.12.name")[1].why == "another GPU has other units, tile sizes and kernels"
    assert row_of("python.packages.flash-attn")[1].name == "python.packages.*"
    assert row_of("python.packages_sha256")[1].name == "python.packages_sha256"
    assert unseen({"gpu.count": UnknownField("no NVML")}, "gpu.0.name") == UnknownField("no NVML")
    assert unseen({"gpu.count": 0}, "gpu.0.name") is None


def test_the_documentation_names_every_field_with_its_label() -> None:
    told = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE))
    assert told == {row.name: row.moves for row in FIELDS}
