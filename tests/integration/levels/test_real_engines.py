"""``forkgate compare`` on engines that run: by URL, by pool, and from the bundle of what they answered."""

from __future__ import annotations

import asyncio
import json
import pathlib
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

from comparator.comparison import Comparison
from comparator.evidence import Batch, ComparisonDone, EvidenceReader, EvidenceStore, RecordSeen
from comparator.evidence.export import read_comparisons
from engines import EngineOptions, open_engine
from forkgate.cli.app import app
from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.engines import FakeEndpoint
from tests.support.link import ROLLOUT
from tests.support.mirror import rig
from tests.support.tiny_model import write_tiny_model

PROMPTS = (
    "a",
    "bc",
    "the sea",
    "1 2 3",
    "def f(x):",
    "河流",
    "why",
    "list:",
    "x = ",
    "good morning",
    "ö",
    "!?",
)
ASKED = "0.3"
"""Twelve equal prompts bound the share of forks at 22 %."""
CONFIG = """
pools:
  - {{name: old, endpoints: ["{old}"], engine: {{kind: reference}}}}
  - {{name: new, endpoints: ["{new}"], engine: {{kind: reference}}}}
  - {{name: mixed, endpoints: ["{old}", "{new}"], engine: {{kind: reference}}}}
home: old
state_dir: state
"""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, EngineProcess]]:
    """One model: twice in one environment, which runs deterministically, and once in another precision."""
    model = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    name = ("--served-model-name", "m", "--deterministic")
    with ExitStack() as stack:
        yield {
            "old": stack.enter_context(reference_engine(model, *name)),
            "same": stack.enter_context(reference_engine(model, *name)),
            "new": stack.enter_context(reference_engine(model, *name, "--dtype", "bfloat16")),
        }


def answers(old: EngineProcess, new: EngineProcess) -> list[Comparison]:
    """Every prompt asked of both, and of the first again."""

    async def ask() -> list[Comparison]:
        adapters = [open_engine(one.url, EngineOptions(kind="reference")) for one in (old, new)]
        try:
            ends = [FakeEndpoint(one, await one.probe()) for one in adapters]
            for one in adapters:
                one.active = 0  # type: ignore[attr-defined]
            async with rig(*ends, control_percent=100.0, logprobs=20, in_flight=1) as made:
                return [
                    await made.comparison(fields={"prompt": prompt, "temperature": 0, "max_tokens": 16})
                    for prompt in PROMPTS
                ]
        finally:
            for one in adapters:
                await one.close()

    return asyncio.run(ask())


def bundle_of(folder: pathlib.Path, old: EngineProcess, new: EngineProcess) -> pathlib.Path:
    """What a rollout of these two leaves: a store with the records that the engines serve, and its export."""
    records = []
    for pool, engine in (("old", old), ("new", new)):
        for path in ("/forkgate/identity", "/forkgate/artifact"):
            with urllib.request.urlopen(engine.url + path) as answer:
                document = answer.read()
            told = json.loads(document)
            records.append(
                RecordSeen(
                    kind=told["record"],
                    digest=told["digest"],
                    document=document,
                    pool=pool,
                    endpoint=engine.url,
                    unix_s=1.0,
                )
            )
    done = [
        ComparisonDone(comparison=one, incarnation="e", sequence=place)
        for place, one in enumerate(answers(old, new), 1)
    ]
    with EvidenceStore(folder / "evidence.db", 50_000_000) as store:
        store.add(Batch(comparisons=tuple(done), records=tuple(records)))
    with EvidenceReader(folder / "evidence.db") as reader:
        (folder / "bundle.ndjson").write_bytes(b"".join(reader.export(rollout=ROLLOUT)))
    return folder / "bundle.ndjson"


def compare(*arguments: Any, status: int = 0) -> Any:
    result = CliRunner().invoke(app, ["compare", *map(str, arguments), "--json"])
    assert result.exit_code == status, (result.output, result.exception)
    return json.loads(result.stdout)


def test_two_starts_of_one_environment_show_the_token_level(
    engines: dict[str, EngineProcess], tmp_path: pathlib.Path
) -> None:
    bundle = bundle_of(tmp_path, engines["old"], engines["same"])
    told = compare("--evidence", bundle, "--level", "token", "--forks-at-most", ASKED)
    assert told["a"]["environment"] == told["b"]["environment"] == engines["old"].digest
    assert told["evidence"]["between"] == {"equal": len(PROMPTS), "forked": 0}
    assert told["evidence"]["within"] == {"equal": len(PROMPTS), "forked": 0}
    assert told["levels"]["token"]["shown"] is True
    assert told["levels"]["artifact"]["can"] == "unknown"  # no image was told
    assert compare("--evidence", bundle, "--level", "artifact", "--vouch", "container.image")
    assert compare("--evidence", bundle, "--level", "environment", "--vouch", "*")


def test_another_precision_is_seen_by_records_and_by_tokens(
    engines: dict[str, EngineProcess], tmp_path: pathlib.Path
) -> None:
    bundle = bundle_of(tmp_path, engines["old"], engines["new"])
    told = compare("--evidence", bundle, "--level", "token", status=1)
    assert (told["a"]["environment"], told["b"]["environment"]) == (
        engines["old"].digest,
        engines["new"].digest,
    )
    differing = [one["what"] for one in told["in_the_way"] if one["weight"] == "by nature"]
    assert differing == ["precision.dtype", "precision.kv_cache_dtype"]
    between, within = told["evidence"]["between"], told["evidence"]["within"]
    assert between["forked"] > 0, "bfloat16 forks this model somewhere in twelve prompts"
    assert within == {"equal": len(PROMPTS), "forked": 0}
    assert told["in_the_way"][0]["what"] == "forks"
    # What the bundle begins with is no comparison to whoever reads comparisons.
    with bundle.open("rb") as lines:
        assert len(list(read_comparisons(lines))) == len(PROMPTS)


def test_running_engines_are_asked_by_url_and_by_pool(
    engines: dict[str, EngineProcess], tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "forkgate.yaml"
    config.write_text(CONFIG.format(old=engines["old"].url, new=engines["new"].url))
    by_url = compare(engines["old"].url, engines["new"].url, "--level", "environment", status=1)
    by_pool = compare("old", "new", "--config", config, "--level", "environment", status=1)
    for told in (by_url, by_pool):
        assert told["a"]["environment"] == engines["old"].digest
        assert told["b"]["artifact"] == told["a"]["artifact"]
        assert told["levels"]["token"]["can"] == "no"
    assert by_pool["a"]["name"] == "old"


def test_a_pool_of_two_environments_is_none(
    engines: dict[str, EngineProcess], tmp_path: pathlib.Path
) -> None:
    config = tmp_path / "forkgate.yaml"
    config.write_text(CONFIG.format(old=engines["old"].url, new=engines["new"].url))
    result = CliRunner().invoke(app, ["compare", "old", "mixed", "--config", str(config)])
    assert result.exit_code == 2
    assert "mixed: its endpoints are not one environment" in result.stderr
    assert engines["new"].digest in result.stderr


def test_a_matrix_of_running_engines(engines: dict[str, EngineProcess]) -> None:
    told = compare(*(engines[name].url for name in ("old", "same", "new")))
    assert [one["can"] for one in told["pairs"]] == ["token", "statistical", "statistical"]
