"""The reference engine's own record: one digest each time it starts, another when a setting moves numbers."""

from __future__ import annotations

import pathlib

from engines.identity.collect import capture
from engines.identity.environment import FIELDS
from engines.identity.environment_diff import compare
from engines.identity.record import Identity, UnknownField
from tests.support.engine_process import EngineProcess, reference_engine


def started(folder: pathlib.Path, *options: str) -> Identity:
    with reference_engine(folder, *options) as running:
        return capture(url=running.url)


def test_the_same_engine_started_again_has_the_same_digest(
    engine: EngineProcess, tiny_folder: pathlib.Path
) -> None:
    again = started(tiny_folder, "--served-model-name", "another", "--max-batch", "2", "--max-waiting", "7")
    assert again.digest == engine.digest


def test_beside_the_engine_its_own_record_stands(engine: EngineProcess) -> None:
    made = capture(pid=engine.process.pid, url=engine.url)
    assert made.digest == engine.digest
    assert not [note for note in made.about.get("notes", ()) if " says " in note]


def test_what_moves_numbers_moves_the_digest_and_is_named(
    engine: EngineProcess, tiny_folder: pathlib.Path
) -> None:
    other = started(
        tiny_folder, "--dtype", "bfloat16", "--matmul", "widen", "--threads", "2", "--max-batch", "3"
    )
    found = compare(capture(url=engine.url), other)
    assert [one.field for one in found.differences] == [
        "precision.dtype",
        "precision.matmul",
        "precision.kv_cache_dtype",
        "batch.max_sequences",
        "cpu.threads",
    ]
    assert found.unknown == ()


def test_it_knows_what_an_engine_can_know(engine: EngineProcess) -> None:
    fields = capture(url=engine.url).fields
    assert {row.name for row in FIELDS if "*" not in row.name} <= set(fields)
    unknown = {name for name, value in fields.items() if isinstance(value, UnknownField)}
    settings = ("precision.", "attention.", "parallel.", "prefill.", "graphs.", "speculative", "determinism.")
    assert not {name for name in unknown if name.startswith(settings)}
