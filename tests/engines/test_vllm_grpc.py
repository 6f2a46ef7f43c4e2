"""The gRPC adapter against vLLM's real gRPC server, and beside the same model over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from comparator.records import Sampling
from engines import (
    Call,
    CallKind,
    Capability,
    Engine,
    EngineOptions,
    EngineRefused,
    Finish,
    Prompt,
    Steps,
    open_engine,
)
from tests.support.vllm_grpc_server import DTYPE, VllmGrpc
from tests.support.vllm_server import MODEL, PROMPTS, Vllm

# the first test waits for the server to start
pytestmark = [pytest.mark.timeout(1200), pytest.mark.vllm_grpc]

IDS = (1, 4093, 198, 4898, 536, 7680, 47, 2, 198, 1, 520, 9531, 198)
GREEDY = Sampling(max_tokens=16, temperature=0.0, ignore_eos=True, logprobs=20)


def use(url: str, what: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        engine = open_engine(url, EngineOptions(kind="vllm_grpc", model=MODEL, **options))
        try:
            return await what(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def prompt_of(sampling: Sampling = GREEDY, name: str = "x") -> Prompt:
    return Prompt(exchange_id=name, model=MODEL, token_ids=IDS, sampling=sampling, cache_salt="salt")


async def run(engine: Engine, prompt: Prompt) -> tuple[list[Any], Finish]:
    parts = [part async for part in engine.generate(prompt)]
    finish = parts[-1]
    assert isinstance(finish, Finish)
    return [step for part in parts if isinstance(part, Steps) for step in part.steps], finish


def test_the_probe_finds_what_the_messages_can_carry(vllm_grpc: VllmGrpc) -> None:
    probe = use(vllm_grpc.url, lambda engine: engine.probe())
    assert set(probe.missing) == {Capability.ENCODE, Capability.PRIORITY}
    assert probe.has == frozenset(Capability) - {Capability.ENCODE, Capability.PRIORITY}
    assert "grpc_port" in probe.missing[Capability.ENCODE]
    assert (probe.version, probe.model, probe.max_logprobs) == ("0.32.0", MODEL, 20)
    assert probe.facts["dtype"].value == DTYPE
    assert probe.facts["template_sha256"].value.startswith("sha256:")


def test_greedy_repeats_and_a_seed_is_honoured(vllm_grpc: VllmGrpc) -> None:
    async def what(engine: Engine) -> None:
        first, finish = await run(engine, prompt_of(name="a"))
        again, _ = await run(engine, prompt_of(name="b"))
        assert [(one.token_id, one.top_ids) for one in first] == [
            (one.token_id, one.top_ids) for one in again
        ]
        assert len(first) == 16
        assert all(len(step.top_ids) == 20 and step.token_id == step.top_ids[0] for step in first)
        assert finish.finish_reason == "length"
        drawn = []
        for seed in (7, 7, 8):
            steps, _ = await run(engine, prompt_of(Sampling(max_tokens=16, seed=seed, ignore_eos=True)))
            drawn.append([step.token_id for step in steps])
        assert drawn[0] == drawn[1] != drawn[2]

    use(vllm_grpc.url, what)


def test_biases_and_penalties_reach_the_engine(vllm_grpc: VllmGrpc) -> None:
    """A bias of 100 draws one token for ever; a penalty of 2 for each time wears its lead of 40 down."""

    async def what(engine: Engine) -> None:
        biased = msgspec.structs.replace(GREEDY, max_tokens=48, logit_bias={"260": 100.0, "282": 60.0})
        plain, _ = await run(engine, prompt_of(biased, name="a"))
        assert {step.token_id for step in plain} == {260}
        worn = msgspec.structs.replace(biased, frequency_penalty=2.0)
        moved, _ = await run(engine, prompt_of(worn, name="b"))
        assert {step.token_id for step in moved} == {260, 282}

    use(vllm_grpc.url, what)


def test_a_stop_word_ends_the_answer(vllm_grpc: VllmGrpc) -> None:
    async def what(engine: Engine) -> None:
        stop = msgspec.structs.replace(GREEDY, stop=(" the",), max_tokens=200)
        steps, finish = await run(engine, prompt_of(stop))
        assert (finish.finish_reason, finish.stop_reason) == ("stop", " the")
        assert 0 < len(steps) < 200

    use(vllm_grpc.url, what)


def test_what_cannot_run_is_refused_in_the_engines_own_words(vllm_grpc: VllmGrpc) -> None:
    async def what(engine: Engine) -> None:
        for ids, words in (((1, 99_999_999), "vocabulary"), ((1,) * 3000, "maximum model length")):
            with pytest.raises(EngineRefused, match=words) as caught:
                await run(engine, msgspec.structs.replace(prompt_of(), token_ids=ids))
            assert caught.value.status == 400
        extra = msgspec.structs.replace(GREEDY, extra={"bad_words": ["x"]})
        with pytest.raises(EngineRefused, match="bad_words"):
            await run(engine, prompt_of(extra))

    use(vllm_grpc.url, what)


def test_an_abort_reaches_the_engine(vllm_grpc: VllmGrpc) -> None:
    async def what(engine: Engine) -> None:
        long = msgspec.structs.replace(GREEDY, max_tokens=1500, logprobs=0)
        async with contextlib.aclosing(engine.generate(prompt_of(long))) as stream:
            await anext(stream)
            load = await engine.load()
            assert load.running + load.waiting == 1
        async with asyncio.timeout(30):  # 1,500 tokens would take longer
            while (load := await engine.load()).running + load.waiting:
                await asyncio.sleep(0.1)

    use(vllm_grpc.url, what)


def test_beside_an_http_server_it_encodes_and_says_what_that_one_says(
    vllm: Vllm, vllm_grpc: VllmGrpc
) -> None:
    """One endpoint, two servers of one model: HTTP renders, gRPC generates the same float32 tokens."""
    port = urllib.parse.urlsplit(vllm_grpc.url).port
    call = Call(
        kind=CallKind.CHAT,
        body={"messages": [{"role": "user", "content": PROMPTS[0]}], "temperature": 0},
        model=MODEL,
    )

    async def what(engine: Engine) -> list[int]:
        encoding = await engine.encode(call)
        prompt = msgspec.structs.replace(prompt_of(), token_ids=encoding.token_ids)
        steps, _ = await run(engine, prompt)
        return [step.token_id for step in steps]

    async def by_http() -> list[int]:
        engine = open_engine(vllm.url(DTYPE), EngineOptions(kind="vllm", model=MODEL))
        try:
            return await what(engine)
        finally:
            await engine.close()

    assert use(vllm.url(DTYPE), what, grpc_port=port) == asyncio.run(by_http())
