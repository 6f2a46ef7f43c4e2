"""The engine stub is as capable as vLLM in the eyes of the adapter, and misbehaves on command."""

from __future__ import annotations

import asyncio
import os

import orjson
import pytest

from bench import payloads
from bench.engine_stub import Mode
from bench.machine import Cores
from bench.sidecar import EngineStub, engine_stub
from comparator.records import Sampling, Step
from engines import (
    Call,
    CallKind,
    Capability,
    Engine,
    EngineOptions,
    EngineTimeout,
    Finish,
    Prompt,
    open_engine,
)
from tests.support.waiting import until

CORES = Cores(proxy=min(os.sched_getaffinity(0)), load=max(os.sched_getaffinity(0)))


def _prompt(token_ids: tuple[int, ...], seed: int, tokens: int = 64) -> Prompt:
    return Prompt(
        exchange_id="e",
        model=payloads.MODEL,
        token_ids=token_ids,
        sampling=Sampling(max_tokens=tokens, seed=seed, logprobs=20),
        cache_salt="salt",
    )


async def _answer(engine: Engine, prompt: Prompt) -> tuple[list[Step], Finish]:
    steps: list[Step] = []
    async for part in engine.generate(prompt):
        if isinstance(part, Finish):
            return steps, part
        steps += part.steps
    raise AssertionError("no finish")


def _with_stub(play: object, **options: float) -> object:
    assert callable(play)

    async def run() -> object:
        with engine_stub(CORES, step_s=0.001) as stub:
            engine = open_engine(stub.url, EngineOptions(**options))
            try:
                return await play(stub, engine)
            finally:
                await engine.close()

    return asyncio.run(run())


def test_probe_finds_everything_that_vllm_has() -> None:
    async def play(_stub: EngineStub, engine: Engine) -> None:
        probe = await engine.probe()
        assert probe.missing == {}
        assert probe.has == frozenset(Capability)
        assert probe.max_logprobs == 20

    _with_stub(play)


def test_equal_seeds_give_equal_tokens_with_twenty_alternatives_each() -> None:
    async def play(_stub: EngineStub, engine: Engine) -> None:
        call = Call(kind=CallKind.CHAT, body=orjson.loads(payloads.REQUEST_BODY), model=payloads.MODEL)
        encoding = await engine.encode(call)
        first, finish = await _answer(engine, _prompt(encoding.token_ids, 3))
        again, _ = await _answer(engine, _prompt(encoding.token_ids, 3))
        other, _ = await _answer(engine, _prompt(encoding.token_ids, 4))
        ids = [step.token_id for step in first]
        assert ids == [step.token_id for step in again]
        assert ids != [step.token_id for step in other]
        assert len(ids) == 64
        assert {len(step.top_ids) for step in first} == {20}
        assert finish.finish_reason == "length"
        assert finish.prompt_token_ids == encoding.token_ids

    _with_stub(play)


def test_stalled_stub_takes_the_request_and_says_nothing() -> None:
    async def play(stub: EngineStub, engine: Engine) -> None:
        stub.become(Mode.STALL)
        with pytest.raises(EngineTimeout):
            await _answer(engine, _prompt((1, 2, 3), 1))
        until(lambda: stub.counts()["stalled"] == 1, "the stub to have read it")

    _with_stub(play, first_chunk_timeout_s=0.3)


def test_endless_stub_goes_on_past_the_limit_it_was_given() -> None:
    async def play(stub: EngineStub, engine: Engine) -> None:
        stub.become(Mode.ENDLESS)
        seen = 0
        async for part in engine.generate(_prompt((1, 2, 3), 1, tokens=8)):
            assert not isinstance(part, Finish)
            seen += len(part.steps)
            if seen > 100:
                break

    _with_stub(play)
