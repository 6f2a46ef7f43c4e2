"""Controls, replicates and a suite's question on a real engine: a transformers model in its own process."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from comparator.comparison import CONCURRENCY, Comparison
from comparator.records import Arm
from engines import EngineOptions, open_engine
from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.engines import FakeEndpoint
from tests.support.mirror import Rig, rig, sample_ask
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, EngineProcess]]:
    """The same weights in two precisions."""
    folder: pathlib.Path = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    name = ("--served-model-name", "m")
    with (
        reference_engine(folder, *name) as baseline,
        reference_engine(folder, *name, "--dtype", "bfloat16") as candidate,
    ):
        yield baseline, candidate


@asynccontextmanager
async def real_rig(engines: tuple[EngineProcess, EngineProcess], **settings: Any) -> AsyncIterator[Rig]:
    adapters = [open_engine(one.url, EngineOptions(kind="reference")) for one in engines]
    try:
        ends = [FakeEndpoint(one, await one.probe()) for one in adapters]
        for one in adapters:
            one.active = 0  # type: ignore[attr-defined]
        async with rig(*ends, control_percent=100.0, logprobs=20, **settings) as made:
            yield made
    finally:
        for one in adapters:
            await one.close()


async def alone(made: Rig, fields: dict[str, Any]) -> Comparison:
    """A comparison whose arms each ran alone by their engine's own count, which is up to a second old: an arm
    that an engine had not seen the end of when it was read counts as a stranger, and another try follows."""
    for _ in range(20):
        comparison = await made.comparison(fields=fields)
        exchanges = [one for pair in comparison.pairs for one in (pair.left, pair.right)]
        if {exchange.facts[CONCURRENCY].value for exchange in exchanges} == {1}:
            return comparison
    raise AssertionError("no arm ever ran alone")


def test_the_floor_is_flat_where_the_engine_is_alone_and_the_candidate_stands_out(
    engines: tuple[EngineProcess, EngineProcess],
) -> None:
    """float32, one request at a time, repeats itself; bfloat16 differs in every logprob."""

    async def main() -> None:
        async with real_rig(engines, replicates=3, in_flight=1) as made:
            comparison = await alone(made, fields={"temperature": 0.9, "max_tokens": 24})
            assert len(comparison.triples) == 3
            for triple in comparison.triples:
                assert triple.valid
                assert triple.control.fork is None
                assert triple.control.max_error_nats == 0.0
                assert triple.candidate.max_error_nats is not None
                assert triple.candidate.max_error_nats > 0.0
                assert triple.band == 0  # alone on its engine, by the engine's own count
            assert len({pair.left.token_ids for pair in comparison.candidates}) > 1

    asyncio.run(main())


def test_a_suites_question_meets_the_baseline_twice(engines: tuple[EngineProcess, EngineProcess]) -> None:
    async def main() -> None:
        async with real_rig(engines) as made:
            comparison = await made.mirror.run_sample(
                "old-to-new", sample_ask(model="", candidate=False, control=True, fields={"temperature": 0})
            )
            (pair,) = comparison.pairs
            assert (pair.left.arm, pair.right.arm) == (Arm.BASELINE, Arm.CONTROL)
            assert pair.left.token_ids == pair.right.token_ids
            assert pair.left.environment_digest == pair.right.environment_digest
            assert "".join(step.text or "" for step in pair.left.steps)

    asyncio.run(main())
