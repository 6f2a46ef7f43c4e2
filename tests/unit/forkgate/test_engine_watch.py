"""Engines of rollouts that copy are sampled; what an engine is, is told at every probe that it answers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from comparator.evidence import RecordSeen
from comparator.records import EngineSample, Fact
from engines.base import Engine, EngineOptions, EngineUnavailable, Load, Probe
from engines.identity import Identity, artifact_json
from engines.identity.artifact import ArtifactRecord
from engines.identity.canonical import parse
from engines.identity.record import from_json
from forkgate.fleet import Fleet
from forkgate.judge.engine_watch import EngineWatch, facts_of
from policies.rollout import RolloutState, Stage, start
from tests.support.engines import FakeEngine, load
from tests.support.judging import config
from tests.support.waiting import eventually
from tests.unit.policies.test_rollout import plan

RECORD = Identity(fields={"engine": "vllm"}, about={"captured_at": "2026-11-30"})
ARTIFACT = ArtifactRecord(files=(), templates=(), image={"unknown": "not given"}, about={})


class Told:
    def __init__(self) -> None:
        self.samples: list[EngineSample] = []
        self.seen: list[tuple[str, str, dict[str, str]]] = []

    def engine_sampled(self, sample: EngineSample) -> None:
        self.samples.append(sample)

    def environment_seen(self, pool: str, endpoint: str, facts: dict[str, str]) -> None:
        self.seen.append((pool, endpoint, facts))


class Recorded(FakeEngine):
    async def probe(self) -> Probe:
        return msgspec.structs.replace(await super().probe(), record=RECORD, artifact=ARTIFACT)


class Silent(FakeEngine):
    async def load(self) -> Load:
        raise EngineUnavailable(self.base_url, "connection refused")


def open_engine(base_url: str, _options: EngineOptions, **_tls: Any) -> Engine:
    return Silent(base_url) if base_url.endswith("9002") else FakeEngine(base_url)


async def watched(tmp_path: Path, state: RolloutState) -> tuple[Told, EngineWatch, Fleet]:
    told = Told()
    fleet = Fleet(config(tmp_path), open_engine)
    watch = EngineWatch(fleet, lambda: [state], told)
    fleet.start()
    await eventually(lambda: not fleet.unprobed())
    return told, watch, fleet


def test_engine_that_tells_its_load_is_sampled_and_one_that_does_not_is_left_out(tmp_path: Path) -> None:
    async def main() -> None:
        told, watch, fleet = await watched(tmp_path, start(plan()))
        await watch.sample()
        (sample,) = told.samples
        assert (sample.rollout, sample.pool, sample.candidate) == ("old-to-new", "old", False)
        assert sample.endpoint == "http://127.0.0.1:9001"
        assert sample.unix_s > 1.7e9
        await fleet.close()

    asyncio.run(main())


def test_engine_that_is_gone_is_probed_again_soon(tmp_path: Path) -> None:
    async def main() -> None:
        _, watch, fleet = await watched(tmp_path, start(plan()))
        (engine,) = fleet.endpoints("new")
        await watch.sample()
        assert engine.trouble is not None
        assert "connection refused" in engine.trouble
        assert engine.doubted.is_set()
        assert fleet.endpoints("old")[0].trouble is None
        await fleet.close()

    asyncio.run(main())


def test_nothing_is_sampled_while_nothing_is_copied(tmp_path: Path) -> None:
    async def main() -> None:
        state = msgspec.structs.replace(start(plan()), stage=Stage.QUICK_CHECK)
        told, watch, fleet = await watched(tmp_path, state)
        await watch.sample()
        assert told.samples == []
        assert {(pool, endpoint) for pool, endpoint, _ in told.seen} == {
            ("old", "http://127.0.0.1:9001"),
            ("new", "http://127.0.0.1:9002"),
        }
        await fleet.close()

    asyncio.run(main())


def test_facts_are_what_stands_and_is_known() -> None:
    probe = Probe(
        engine="vllm",
        version="0.11",
        model=None,
        has=frozenset(),
        missing={},
        max_logprobs=20,
        facts={
            "dtype": Fact(value="bfloat16"),
            "batch_size": Fact(value=[1, 2]),
            "adapter": Fact(unknown="not told"),
        },
    )
    assert facts_of(probe) == {
        "engine": "vllm",
        "max_logprobs": "20",
        "version": "0.11",
        "dtype": "bfloat16",
    }


class Counting(FakeEngine):
    """Tells how much it has generated since it started."""

    async def load(self) -> Load:
        return msgspec.structs.replace(load(), generated_tokens=Fact(value=self.length))


def test_a_count_that_went_back_is_of_another_start_and_has_the_engine_probed_soon(tmp_path: Path) -> None:
    async def main() -> None:
        told, engines = Told(), []

        def open_counting(base_url: str, _options: EngineOptions, **_tls: Any) -> Engine:
            engines.append(Counting(base_url, length=1_000))
            return engines[-1]

        fleet = Fleet(config(tmp_path), open_counting)
        watch = EngineWatch(fleet, lambda: [start(plan())], told)
        fleet.start()
        await eventually(lambda: not fleet.unprobed())
        old, new = fleet.endpoints("old")[0], fleet.endpoints("new")[0]
        for count in (1_000, 1_000, 2_000):
            engines[1].length = count
            await watch.sample()
            assert not new.doubted.is_set()
        engines[1].length = 30
        await watch.sample()
        assert new.doubted.is_set()
        assert not old.doubted.is_set()
        await fleet.close()

    asyncio.run(main())


def test_samples_say_which_environment_was_there(tmp_path: Path) -> None:
    async def main() -> None:
        told, watch, fleet = await watched(tmp_path, start(plan()))
        await watch.sample()
        fleet.endpoints("old")[0].told("sha256:" + "a" * 64, 2e9)
        await watch.sample()
        of_old = [sample.environment for sample in told.samples if sample.pool == "old"]
        assert of_old == ["", "sha256:" + "a" * 64]
        assert ("old", "http://127.0.0.1:9001", {"environment_digest": "sha256:" + "a" * 64}) in told.seen
        await fleet.close()

    asyncio.run(main())


def test_records_that_an_engine_serves_are_handed_on_whole(tmp_path: Path) -> None:
    async def main() -> None:
        records: list[RecordSeen] = []
        fleet = Fleet(config(tmp_path), lambda base_url, _options, **_tls: Recorded(base_url))
        watch = EngineWatch(fleet, list, Told())
        watch.on_record = records.append
        fleet.start()
        await eventually(lambda: len(records) == 4)
        await fleet.close()
        assert {(one.pool, one.endpoint) for one in records} == {
            ("old", "http://127.0.0.1:9001"),
            ("new", "http://127.0.0.1:9002"),
        }
        for one in records:
            if one.kind == "environment/1":
                assert (from_json(parse(one.document)), one.digest) == (RECORD, RECORD.digest)
            else:
                told = artifact_json.from_json(parse(one.document))
                assert (one.kind, told, one.digest) == ("artifact/1", ARTIFACT, ARTIFACT.digest)

    asyncio.run(main())
