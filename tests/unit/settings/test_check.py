"""A running engine against its settings: met, not met, cannot be known."""

from __future__ import annotations

from typing import Any

import pytest

from engines.identity.record import UnknownField
from engines.settings import text
from engines.settings.check import Finding, Seen, State, check
from engines.settings.choose import for_level, sheet_of
from engines.settings.values import Choice, Level, Setting

CHOICE = Choice(seed=7)
VLLM = for_level(sheet_of("vllm", CHOICE), Level.TOKEN)
FAR = UnknownField("only the endpoint was asked")
GOOD = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", *text.arguments(VLLM))
VARIABLES = {row.variable: row.value or "" for row in VLLM if row.variable is not None}


def states(found: list[Finding]) -> dict[str, State]:
    return {one.name: one.state for one in found}


def one(row: str, seen: Seen, rows: tuple[Setting, ...] = VLLM) -> Finding:
    return next(found for found in check(rows, seen) if found.name == row)


def started(*more: str, drop: str | None = None, variables: dict[str, str] | None = None) -> Seen:
    arguments = list(GOOD)
    if drop is not None:
        place = arguments.index(drop)
        value = next(row.value for row in VLLM if row.flag == drop)
        del arguments[place : place + (1 if value is None else 2)]
    return Seen(arguments=(*arguments, *more), variables=VARIABLES if variables is None else variables)


def test_an_engine_started_as_written_meets_all_but_what_requests_must_carry() -> None:
    found = states(check(VLLM, started()))
    assert found.pop("a seed in each request") is State.UNKNOWN
    assert set(found.values()) == {State.MET}


@pytest.mark.parametrize("row", [row for row in VLLM if row.flag is not None], ids=lambda row: row.name)
def test_each_flag_left_out_is_not_met(row: Setting) -> None:
    found = check(VLLM, started(drop=row.flag))
    assert [other.name for other in found if other.state is State.NOT_MET] == [row.name]


@pytest.mark.parametrize("row", [row for row in VLLM if row.variable is not None], ids=lambda row: row.name)
def test_each_variable_left_out_or_set_otherwise_is_not_met(row: Setting) -> None:
    assert row.variable is not None
    less = {name: value for name, value in VARIABLES.items() if name != row.variable}
    for variables in (less, {**less, row.variable: "other"}):
        found = check(VLLM, started(variables=variables))
        assert [other.name for other in found if other.state is State.NOT_MET] == [row.name]


@pytest.mark.parametrize(
    ("more", "row", "why"),
    [
        (("--seed", "8"), "engine seed (torch, numpy, random)", "given as 8"),
        (("--seed=8",), "engine seed (torch, numpy, random)", "given as 8"),
        (("--enable-prefix-caching",), "no prefix caching", "--enable-prefix-caching is given"),
        (("--speculative-config", "{}"), "no speculative decoding", "--speculative-config is given"),
        (("-sc", "{}"), "no speculative decoding", "-sc is given"),
        (("-q", "fp8"), "no quantization on the fly", "-q is given"),
        (("--max_num_seqs", "16"), "one request at a time", "given as 16"),
    ],
)
def test_what_is_given_against_it_is_not_met(more: tuple[str, ...], row: str, why: str) -> None:
    found = one(row, started(*more))
    assert (found.state, found.why) == (State.NOT_MET, why)


def test_from_afar_only_what_endpoints_tell_is_known() -> None:
    fields: dict[str, Any] = {
        "sampler.seed": 7,
        "batch.max_sequences": 16,
        "precision.dtype": "torch.bfloat16",
        "precision.kv_cache_dtype": "bfloat16",
        "cache.prefix": False,
        "speculative": UnknownField("no endpoint tells it"),
    }
    seen = Seen(arguments=FAR, variables=FAR, fields=fields)
    assert one("engine seed (torch, numpy, random)", seen).state is State.MET
    assert one("one request at a time", seen).state is State.NOT_MET
    assert one("precision", seen).state is State.MET
    assert one("key/value cache precision", seen).state is State.MET
    assert one("no prefix caching", seen).state is State.MET
    spec = one("no speculative decoding", seen)
    assert (spec.state, spec.why) == (State.UNKNOWN, "no endpoint tells it")
    hashes = one("hash seed", seen)
    assert (hashes.state, hashes.why) == (State.UNKNOWN, "only the endpoint was asked")


def test_an_endpoint_that_contradicts_the_command_line_is_believed() -> None:
    seen = Seen(arguments=started().arguments, variables=VARIABLES, fields={"cache.prefix": True})
    found = one("no prefix caching", seen)
    assert found.state is State.NOT_MET
    assert "cache.prefix True" in found.why


def test_keys_of_a_file_cannot_be_known() -> None:
    rows = for_level(sheet_of("tensorrt-llm", CHOICE), Level.TOKEN)
    seen = Seen(arguments=("trtllm-serve", "m"), variables={})
    assert one("no reuse of cached blocks", seen, rows).state is State.UNKNOWN
    assert one("deterministic kernels", seen, rows).state is State.NOT_MET
    assert one("prompts in one piece", seen, rows).state is State.MET


def test_negative_numbers_are_values() -> None:
    rows = for_level(sheet_of("llama.cpp", CHOICE), Level.TOKEN)
    found = one("engine seed", Seen(arguments=("llama-server", "--seed", "-1"), variables={}), rows)
    assert (found.state, found.why) == (State.NOT_MET, "given as -1")
