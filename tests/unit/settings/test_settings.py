"""The rows of each engine: whole, found by version and level, and written so that a shell takes them."""

from __future__ import annotations

import json
import pathlib
import stat
import subprocess

import pytest

from engines.settings import text
from engines.settings.choose import (
    SHEETS,
    NotVerified,
    UnknownEngine,
    for_level,
    numbers_of,
    sheet_of,
)
from engines.settings.values import Batch, Choice, Level, NotOffered, Setting, Sheet

ENGINES = sorted(SHEETS)
CHOICE = Choice(seed=7, dtype="float16", threads=3)


def rows(engine: str, level: Level = Level.TOKEN, choice: Choice = CHOICE) -> tuple[Setting, ...]:
    return for_level(sheet_of(engine, choice), level)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_is_one_thing_with_a_reason_a_cost_and_a_source(engine: str) -> None:
    sheet = sheet_of(engine, CHOICE)
    names = [row.name for row in sheet.settings]
    assert len(set(names)) == len(names)
    for row in sheet.settings:
        kinds = [row.flag, row.variable, row.key, row.absent, row.request]
        assert sum(kind is not None for kind in kinds) == 1, row.name
        assert row.reason, row.name
        assert row.cost, row.name
        assert row.source, row.name
        assert row.levels, row.name
        assert row.variable is None or row.value is not None, row.name


@pytest.mark.parametrize("engine", ENGINES)
def test_level_token_holds_all_that_level_environment_does(engine: str) -> None:
    named = {level: {row.name for row in rows(engine, level)} for level in Level}
    assert named[Level.ARTIFACT] <= named[Level.ENVIRONMENT] < named[Level.TOKEN]
    assert named[Level.STATISTICAL] < named[Level.TOKEN]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp", "reference"])
def test_the_seed_is_set_at_the_engine(engine: str) -> None:
    flags = text.arguments(rows(engine))
    seed = "--random-seed" if engine == "sglang" else "--seed"
    assert flags[flags.index(seed) + 1] == "7"


def test_an_engine_without_a_seed_of_its_own_asks_for_it_in_each_request() -> None:
    told = text.to_json(sheet_of("tensorrt-llm", CHOICE), rows("tensorrt-llm"), Level.TOKEN)
    assert "--seed" not in told["arguments"]
    assert told["requests"] == ['"seed"']


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_python_engines_get_a_hash_seed(engine: str) -> None:
    told = text.to_json(sheet_of(engine, CHOICE), rows(engine), Level.TOKEN)
    assert told["environment"]["PYTHONHASHSEED"] == "7"


def test_batch_invariance_stands_for_one_request_at_a_time_and_names_its_condition() -> None:
    one = {row.shown() for row in rows("vllm")}
    invariant = rows("vllm", choice=Choice(batch=Batch.INVARIANT))
    assert "--max-num-seqs 1" in one
    assert "VLLM_BATCH_INVARIANT=1" not in one
    assert "--max-num-seqs 1" not in {row.shown() for row in invariant}
    row = next(row for row in invariant if row.variable == "VLLM_BATCH_INVARIANT")
    assert "compute capability 8.0" in row.condition


@pytest.mark.parametrize("engine", ["llama.cpp", "tensorrt-llm"])
def test_a_mode_that_an_engine_lacks_is_refused(engine: str) -> None:
    with pytest.raises(NotOffered, match=r"--batch invariant: .*use --batch one"):
        sheet_of(engine, Choice(batch=Batch.INVARIANT))


@pytest.mark.parametrize(
    ("engine", "version"),
    [
        ("vllm", "0.32.0"),
        ("vllm", "v0.32.1+cpu"),
        ("sglang", "0.5.23"),
        ("tensorrt-llm", "1.2.0rc6"),
        ("llama.cpp", "b11434"),
        ("trtllm", "1.2.0"),
    ],
)
def test_a_version_that_was_looked_up_is_taken(engine: str, version: str) -> None:
    assert sheet_of(engine, CHOICE, version).settings


@pytest.mark.parametrize(
    ("engine", "version", "words"),
    [
        ("vllm", "0.31.9", "nothing was looked up for vllm 0.31.9, only for 0.32.0"),
        ("vllm", "0.33", "nothing is guessed"),
        ("llama.cpp", "b9000", "nothing was looked up"),
        ("sglang", "main", "'main' is no version"),
        ("sglang", "", "'' is no version"),
    ],
)
def test_a_version_that_was_not_is_said_and_nothing_guessed(engine: str, version: str, words: str) -> None:
    with pytest.raises(NotVerified, match=words):
        sheet_of(engine, CHOICE, version)


def test_an_unknown_engine_names_those_that_are_known() -> None:
    with pytest.raises(UnknownEngine, match="'ollama' is not one of vllm, sglang"):
        sheet_of("ollama", CHOICE)


@pytest.mark.parametrize("change", [{"seed": -1}, {"seed": 2**31}, {"threads": 0}])
def test_a_choice_out_of_range_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"--{next(iter(change))}: "):
        Choice(**change)


@pytest.mark.parametrize(
    ("version", "numbers"),
    [("0.32.0+cpu", (0, 32, 0)), ("b11434", (11434, 0, 0)), ("v1.2", (1, 2, 0)), ("x", None)],
)
def test_numbers_of_a_version(version: str, numbers: tuple[int, ...] | None) -> None:
    assert numbers_of(version) == numbers


@pytest.mark.parametrize("engine", ENGINES)
def test_the_script_starts_the_engine_with_exactly_these_settings(
    engine: str, tmp_path: pathlib.Path
) -> None:
    """Run for real, with a program in the engine's place that writes down how it was started."""
    sheet = sheet_of(engine, CHOICE)
    chosen = rows(engine)
    program = tmp_path / "bin" / sheet.command[0]
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\nfor one in "$@"; do printf "%s\\n" "$one"; done > started\nenv > variables\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "start.sh").write_text(text.script(sheet, chosen, Level.TOKEN))
    subprocess.run(
        ["sh", "start.sh", "a model", "--more", "x y"],
        cwd=tmp_path,
        env={"PATH": f"{program.parent}:/usr/bin:/bin"},
        check=True,
    )
    started = (tmp_path / "started").read_text().splitlines()
    before = [one if one != "MODEL" else "a model" for one in sheet.command[1:]]
    file = [sheet.file_flag, text.FILE] if any(row.key for row in chosen) else []
    assert started == [*before, *text.arguments(chosen), *file, "--more", "x y"]
    variables = (tmp_path / "variables").read_text().splitlines()
    for row in chosen:
        if row.variable is not None:
            assert f"{row.variable}={row.value}" in variables
    if file:
        written = json.loads((tmp_path / text.FILE).read_text())
        assert written["kv_cache_config"]["enable_block_reuse"] is False
        assert written["dtype"] == "float16"


def test_a_script_without_a_model_says_so(tmp_path: pathlib.Path) -> None:
    (tmp_path / "start.sh").write_text(text.script(sheet_of("vllm", CHOICE), rows("vllm"), Level.TOKEN))
    done = subprocess.run(["sh", "start.sh"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "a model folder is needed" in done.stderr


def test_the_table_has_every_row_with_its_reason_cost_and_source() -> None:
    sheet: Sheet = sheet_of("sglang", CHOICE)
    shown = text.table(sheet, rows("sglang"), Level.TOKEN)
    for row in rows("sglang"):
        assert row.shown() in shown
        assert f"{row.name}: {row.reason}" in shown
        assert f"cost: {row.cost}" in shown
        assert f"source: {row.source}" in shown
    assert all(f"note: {note}" in shown for note in sheet.notes)
