"""Over HTTP, with the endpoints as the judge watches them: an engine that was put in place of another on its
port is known by its next answer, and what it says is not taken for the other's."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from comparator.compare import DIGEST_BY
from comparator.pair import SetAside
from comparator.records import Digest, Fact
from engines import open_engine
from engines.base import Capability, EngineOptions
from forkgate import fleet as fleet_module
from forkgate.endpoint import Endpoint
from forkgate.fleet import Fleet
from tests.support.engine_process import reference_engine
from tests.support.fake_vllm import MODEL, FakeVllm
from tests.support.judging import config
from tests.support.mirror import Rig, rig
from tests.support.tiny_model import write_tiny_model
from tests.support.waiting import LIMIT_S, eventually

A = "sha256:" + "a" * 64
B = "sha256:" + "b" * 64


class Seen:
    """What the fleet tells of who answers."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, str, str]] = []
        self.probes: list[tuple[str, str]] = []


@asynccontextmanager
async def watched(tmp_path: Path, old: FakeVllm, new: FakeVllm) -> AsyncIterator[tuple[Fleet, Seen]]:
    """Both engines serve, probed and watched."""
    async with old.serving(), new.serving(), fleet_of(tmp_path, old.url, new.url) as made:
        yield made


@asynccontextmanager
async def fleet_of(
    tmp_path: Path, old: str, new: str, kind: str = "vllm"
) -> AsyncIterator[tuple[Fleet, Seen]]:
    plain = config(tmp_path)
    urls = {"old": old, "new": new}
    pools = tuple(
        msgspec.structs.replace(
            pool, endpoints=(urls[pool.name],), engine=EngineOptions(kind=kind, model=MODEL)
        )
        for pool in plain.pools
    )
    fleet = Fleet(msgspec.structs.replace(plain, pools=pools), open_engine)
    seen = Seen()
    fleet.on_change = lambda pool, url, digest: seen.changes.append((pool, url, digest))
    fleet.on_probe = lambda pool, one: seen.probes.append((pool, str(one.environment.value)))
    fleet.start()
    try:
        await eventually(lambda: not fleet.unprobed())
        yield fleet, seen
    finally:
        await fleet.close()


@asynccontextmanager
async def comparing(fleet: Fleet, compared: str | None) -> AsyncIterator[Rig]:
    """A mirror between them, whose candidate began with environment ``compared``."""

    def pool_of(made: Rig, name: str) -> Any:
        pool = made.rollout.baseline if name == "old" else made.rollout.candidate
        digest = None if compared is None or name == "old" else Digest(compared)
        return msgspec.structs.replace(
            pool, endpoints=tuple(fleet.endpoints(name)), compared_digest=lambda: digest
        )

    async with rig(
        token_only_percent=0.0, change=lambda made: (pool_of(made, "old"), pool_of(made, "new"))
    ) as made:
        yield made


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await main()

    asyncio.run(bounded())


def port_of(engine: FakeVllm) -> int:
    return int(engine.url.rpartition(":")[2])


@pytest.mark.parametrize("keeps_alive", [True, False])
def test_an_engine_that_was_swapped_is_known_by_its_first_answer_and_sets_its_pair_aside(
    tmp_path: Path, keeps_alive: bool
) -> None:
    """Whether the swap ends the connections, or stands behind a balancer that keeps them."""

    async def main() -> None:
        baseline, first = FakeVllm(digest=A), FakeVllm(digest=A)
        swapped = FakeVllm("forks at token 2", digest=B)
        async with (
            watched(tmp_path, baseline, first) as (fleet, seen),
            comparing(fleet, A) as made,
        ):
            pair = await made.pair()
            assert pair.valid
            assert pair.right.environment_digest == Fact(value=A)
            assert pair.right.facts[DIGEST_BY] == Fact(value="answer")
            seen.changes.clear()
            if keeps_alive:
                first.digest, first.lies = B, swapped.lies
                await told_of(made, seen, first.url)
            else:
                await first.stop()
                async with swapped.serving(port=port_of(first)):
                    await told_of(made, seen, first.url)

    async def told_of(made: Rig, seen: Seen, url: str) -> None:
        pair = await made.pair()
        assert pair.set_aside is SetAside.DIGEST_MISMATCH
        assert pair.set_aside_reason == f"candidate: {A} is compared but {B} answered"
        assert pair.fork is not None
        assert made.sink.forks == []  # it rolls nothing back: its head told before its first token
        assert seen.changes == [("new", url, B)]

    run(main)


def test_an_engine_that_tells_nothing_any_more_is_vouched_for_by_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        baseline, first = FakeVllm(digest=A), FakeVllm(digest=A)
        async with watched(tmp_path, baseline, first) as (fleet, _), comparing(fleet, A) as made:
            first.digest = None
            pair = await made.pair()
            assert pair.set_aside is SetAside.DIGEST_MISMATCH
            assert "its answers tell digests, and this one tells none" in str(pair.set_aside_reason)

    run(main)


@pytest.mark.parametrize("lie", ["sha256:short", "x" * 10_240, A.upper(), ""])
def test_a_digest_that_is_none_proves_nothing_and_harms_nobody(tmp_path: Path, lie: str) -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(digest=A), FakeVllm(digest=lie)
        async with watched(tmp_path, baseline, candidate) as (fleet, _):
            async with comparing(fleet, None) as made:
                pair = await made.pair()
                assert pair.valid
                assert "as its environment digest is none" in str(pair.right.environment_digest.unknown)
            (one,) = fleet.endpoints("new")
            assert one.view()["odd_environments"] > 0
            assert one.trouble is None

    run(main)


def test_a_new_connection_to_an_engine_that_tells_nothing_has_it_probed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "RETRY_S", 0.0)
    monkeypatch.setattr("forkgate.endpoint.IDENTITY_S", 0.0)

    async def main() -> None:
        baseline, first = FakeVllm(digest=A), FakeVllm()
        second = FakeVllm("ignores priority", "tells template")
        async with (
            watched(tmp_path, baseline, first) as (fleet, _),
            comparing(fleet, None) as made,
        ):
            one = fleet.endpoints("new")[0]
            assert isinstance(one, Endpoint)
            assert one.probe is not None
            assert Capability.PRIORITY in one.probe.has
            assert one.probe.facts["template_sha256"].value is None
            port = port_of(first)
            await first.stop()
            async with second.serving(port=port):
                await made.pair()
                await eventually(lambda: one.probe and Capability.PRIORITY in one.probe.missing)
                # Nor is it taken for the old one where an adapter asks but once.
                assert one.probe.facts["template_sha256"].value is not None

    run(main)


def test_who_answers_is_looked_at_though_nobody_asks_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "RETRY_S", 0.0)
    monkeypatch.setattr(fleet_module, "IDENTITY_S", 0.02)

    async def main() -> None:
        baseline, first = FakeVllm(digest=A), FakeVllm(digest=A)
        async with watched(tmp_path, baseline, first) as (_, seen):
            seen.probes.clear()
            first.digest = B
            await eventually(lambda: ("new", first.url, B) in seen.changes)
            await eventually(lambda: ("new", B) in seen.probes)  # and what it is, is asked at once

    run(main)


def test_behind_one_address_each_answer_counts_as_whose_it_is(tmp_path: Path) -> None:
    """Two environments behind a balancer: a pair is evidence by its own answer's head, and so is its fork."""

    async def main() -> None:
        baseline, balanced = FakeVllm(digest=A), Balanced(digest=A)
        async with (
            watched(tmp_path, baseline, balanced) as (fleet, _),
            comparing(fleet, A) as made,
        ):
            balanced.turns = itertools.cycle([(B, {"forks at token 2"}), (A, set())])
            pairs = [await made.pair() for _ in range(6)]
            assert [pair.right.environment_digest.value for pair in pairs] == [B, A] * 3
            assert [pair.set_aside for pair in pairs] == [SetAside.DIGEST_MISMATCH, None] * 3
            assert [pair.fork is None for pair in pairs] == [False, True] * 3
            assert made.sink.forks == []
            (line,) = [line for line in fleet.troubles() if "in turn" in line]
            assert A in line
            assert B in line

    run(main)


class Balanced(FakeVllm):
    """Another one answers each generation, once ``turns`` says who."""

    turns: Iterator[tuple[str, set[str]]] | None = None

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        if self.turns is not None:
            self.digest, self.lies = next(self.turns)
        return await super()._generate(request)


def test_a_real_engine_that_is_started_anew_in_another_precision_is_another_one(tmp_path: Path) -> None:
    """Reference engines, each a process: float32 is stopped and bfloat16 started on its port."""
    folder = write_tiny_model(tmp_path / "model")
    name = ("--served-model-name", MODEL)

    async def compared(fleet: Fleet, made: Rig, seen: Seen, port: int, stop: Callable[[], None]) -> None:
        pair = await made.pair(fields={"max_tokens": 8})
        assert pair.valid
        assert pair.fork is None
        (one,) = fleet.endpoints("new")
        assert one.probe is not None
        precision = next(name for name, fact in one.probe.facts.items() if fact.value == "float32")
        await asyncio.to_thread(stop)
        seen.changes.clear()
        with reference_engine(folder, *name, "--dtype", "bfloat16", "--port", str(port)) as swapped:
            pair = await made.pair(fields={"max_tokens": 8})
            assert pair.set_aside is SetAside.DIGEST_MISMATCH
            assert pair.right.environment_digest == Fact(value=swapped.digest)
            assert pair.right.facts[precision].value in (None, "bfloat16")  # probed anew by then, or not
            assert seen.changes == [("new", one.url, swapped.digest)]
            await eventually(lambda: one.probe.facts[precision].value == "bfloat16")

    async def main() -> None:
        with contextlib.ExitStack() as first, reference_engine(folder, *name) as baseline:
            candidate = first.enter_context(reference_engine(folder, *name))
            assert candidate.digest == baseline.digest
            port = int(candidate.url.rpartition(":")[2])
            async with (
                fleet_of(tmp_path, baseline.url, candidate.url, "reference") as (fleet, seen),
                comparing(fleet, candidate.digest) as made,
            ):
                await compared(fleet, made, seen, port, first.close)

    asyncio.run(main())
