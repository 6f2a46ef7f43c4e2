"""The adapter and a whole comparison against a real llama-server: one with 8-bit keys and values beside it.

The forks found here are real: same weights, same prompts, another precision of the KV cache.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import transformers

from comparator.floor import floor_of
from comparator.precision import spacing_nats
from comparator.records import Sampling
from comparator.taxonomy import Allowance, ForkClass, classify
from engines import (
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Engine,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    Finish,
    Prompt,
    Steps,
    open_engine,
)
from engines.model import ensure_smollm2
from tests.support.engines import FakeEndpoint
from tests.support.llama_server import CONTEXT_TOKENS, MODEL, PLAIN, QUANTISED_CACHE, SLOTS, LlamaServers
from tests.support.mirror import Rig
from tests.support.vllm_server import PROMPTS
from tests.support.waiting import PATIENCE_S

# generous: a busy machine runs this model at a tenth of its speed
pytestmark = [pytest.mark.timeout(1200), pytest.mark.llamacpp]

MESSAGES = [{"role": "user", "content": PROMPTS[0]}]


def use(llama: LlamaServers, what: Callable[[Engine], Awaitable[Any]], flags: tuple[str, ...] = PLAIN) -> Any:
    async def main() -> Any:
        engine = open_engine(llama.url(flags), EngineOptions(kind="llamacpp"))
        try:
            return await what(engine)
        finally:
            await engine.close()

    return asyncio.run(main())


def chat(**body: Any) -> Call:
    return Call(kind=CallKind.CHAT, body={"messages": MESSAGES, **body}, model=MODEL)


async def prompt_of(engine: Engine, sampling: Sampling, text: str | None = None) -> Prompt:
    call = chat() if text is None else Call(kind=CallKind.COMPLETION, body={"prompt": text}, model=MODEL)
    ids = (await engine.encode(call)).token_ids
    return Prompt(exchange_id="x", model=MODEL, token_ids=ids, sampling=sampling, cache_salt="salt")


async def run(engine: Engine, prompt: Prompt) -> tuple[list[Any], Finish]:
    parts = [part async for part in engine.generate(prompt)]
    finish = parts[-1]
    assert isinstance(finish, Finish)
    return [step for part in parts if isinstance(part, Steps) for step in part.steps], finish


def ids_of(steps: list[Any]) -> list[int]:
    return [step.token_id for step in steps]


async def busy_slots(engine: Any) -> int:
    told = msgspec.json.decode(await engine.endpoint.get("/slots"))
    return sum(slot["is_processing"] for slot in told)


GREEDY = Sampling(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=20)


def test_the_probe_finds_all_but_priorities(llama: LlamaServers) -> None:
    probe = use(llama, lambda engine: engine.probe())
    assert probe.has == frozenset(Capability) - {Capability.PRIORITY}
    assert set(probe.missing) == {Capability.PRIORITY}
    assert (probe.engine, probe.model, probe.max_logprobs) == ("llamacpp", MODEL, 100)
    assert probe.facts["dtype"].value == "Q4_1"
    assert probe.facts["context_tokens"].value == CONTEXT_TOKENS
    assert probe.facts["slots"].value == SLOTS
    assert "temperature" in probe.facts["processor_order"].value


def test_encoding_is_what_the_models_own_tokenizer_and_template_give(llama: LlamaServers) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(ensure_smollm2(), local_files_only=True)
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    chinese = "天空为什么是蓝色的? 😀"

    async def what(engine: Engine) -> None:
        told = await engine.encode(chat(max_tokens=7, top_p=0.5, stop="\n"))
        assert list(told.token_ids) == tokenizer.encode(text, add_special_tokens=False)
        assert (told.sampling.max_tokens, told.sampling.top_p, told.sampling.stop) == (7, 0.5, ("\n",))
        # What the client did not say, the server's own defaults do.
        assert (told.sampling.temperature, told.sampling.top_k, told.sampling.min_p) == (0.8, 40, 0.05)
        plain = await engine.encode(Call(kind=CallKind.COMPLETION, body={"prompt": chinese}, model=MODEL))
        assert list(plain.token_ids) == tokenizer.encode(chinese, add_special_tokens=False)
        assert plain.sampling.max_tokens == CONTEXT_TOKENS - len(plain.token_ids)
        with pytest.raises(CannotEncode, match="no token IDs") as caught:
            await engine.encode(chat(tools=[{"type": "function"}]))
        assert not caught.value.goes_as_itself

    use(llama, what)


def test_the_chat_route_runs_the_prompt_that_was_encoded(llama: LlamaServers) -> None:
    """The server's own OpenAI route, asked for the same answer, counts the same tokens and says the same."""

    async def what(engine: Any) -> None:
        prompt = await prompt_of(engine, GREEDY)
        steps, _ = await run(engine, prompt)
        body = {"messages": MESSAGES, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
        told = await engine.endpoint.post("/v1/chat/completions", {**body, "cache_prompt": False})
        answer = msgspec.json.decode(told)
        assert answer["usage"]["prompt_tokens"] == len(prompt.token_ids)
        assert answer["choices"][0]["message"]["content"] == "".join(step.text for step in steps)

    use(llama, what)


def test_greedy_repeats_and_a_seed_is_honoured(llama: LlamaServers) -> None:
    async def what(engine: Engine) -> None:
        prompt = await prompt_of(engine, GREEDY)
        first, finish = await run(engine, prompt)
        again, _ = await run(engine, prompt)
        assert [(one.token_id, one.logprob, one.top_logprobs) for one in first] == [
            (one.token_id, one.logprob, one.top_logprobs) for one in again
        ]
        assert finish.finish_reason == "length"
        assert finish.facts["cached_tokens"].value == 0
        drawn = [
            ids_of((await run(engine, await prompt_of(engine, Sampling(max_tokens=24, seed=seed))))[0])
            for seed in (7, 7, 8)
        ]
        assert drawn[0] == drawn[1] != drawn[2]

    use(llama, what)


def test_logprobs_are_the_raw_top_20_whatever_is_sampled(llama: LlamaServers) -> None:
    async def what(engine: Engine) -> None:
        prompt = await prompt_of(engine, GREEDY)
        greedy, _ = await run(engine, prompt)
        assert all(len(step.top_ids) == 20 for step in greedy)
        assert all(step.top_ids[0] == step.token_id for step in greedy)
        # Another temperature and a top-k of 1 change what may be drawn, not what is told.
        narrow = msgspec.structs.replace(GREEDY, temperature=3.0, top_k=1, seed=5)
        cut, _ = await run(engine, msgspec.structs.replace(prompt, sampling=narrow))
        assert [one.top_logprobs for one in cut] == [one.top_logprobs for one in greedy]

    use(llama, what)


def test_a_stream_holds_the_tokens_of_the_whole_answer(llama: LlamaServers) -> None:
    async def what(engine: Any) -> None:
        prompt = await prompt_of(engine, GREEDY)
        steps, _ = await run(engine, prompt)
        _, body, _ = engine.request_of(prompt)
        whole = msgspec.json.decode(await engine.endpoint.post("/completion", {**body, "stream": False}))
        assert whole["tokens"] == ids_of(steps)
        told = whole["completion_probabilities"]
        assert [one["id"] for one in told] == ids_of(steps)
        assert [one["logprob"] for one in told] == [step.logprob for step in steps]

    use(llama, what)


def test_stop_words_and_the_end_of_the_text_keep_their_tokens(llama: LlamaServers) -> None:
    async def what(engine: Engine) -> None:
        base = await prompt_of(engine, GREEDY)
        steps, _ = await run(engine, base)
        word = (steps[3].text + steps[4].text).strip()
        stopped, finish = await run(
            engine, msgspec.structs.replace(base, sampling=msgspec.structs.replace(GREEDY, stop=(word,)))
        )
        assert ids_of(stopped) == ids_of(steps)[:5]  # held-back text, but no token is held back
        assert (finish.finish_reason, finish.stop_reason) == ("stop", word)
        end = msgspec.structs.replace(GREEDY, ignore_eos=False, logit_bias={"2": 100.0})
        ended, finish = await run(engine, msgspec.structs.replace(base, sampling=end))
        assert (ids_of(ended), finish.finish_reason, finish.stop_reason) == ([2], "stop", None)

    use(llama, what)


def test_a_token_inside_a_character_refuses_the_answer(llama: LlamaServers) -> None:
    async def what(engine: Engine) -> None:
        prompt = await prompt_of(engine, GREEDY, text="Repeat: 😀😀😀😀😀😀😀😀😀😀")
        with pytest.raises(EngineInvalid, match="ends inside a character"):
            await run(engine, prompt)

    use(llama, what)


def test_what_the_server_would_leave_out_is_refused_here_and_the_rest_by_itself(llama: LlamaServers) -> None:
    async def what(engine: Engine) -> None:
        for change, words in (
            ({"min_tokens": 3}, "min_tokens"),
            ({"stop_token_ids": (9,)}, "stop_token_ids"),
            ({"extra": {"bad_words": ["x"]}}, "bad_words"),
        ):
            with pytest.raises(EngineRefused, match=words):
                await run(engine, await prompt_of(engine, msgspec.structs.replace(GREEDY, **change)))
        strange = msgspec.structs.replace(GREEDY, extra={"samplers": ["no_such_sampler", "temperature"]})
        with pytest.raises(EngineInvalid, match="samplers"):
            await run(engine, await prompt_of(engine, strange))
        long = msgspec.structs.replace(await prompt_of(engine, GREEDY), token_ids=(1,) * (CONTEXT_TOKENS + 1))
        with pytest.raises(EngineRefused, match="exceeds the available context size"):
            await run(engine, long)

    use(llama, what)


def test_an_abort_reaches_the_engine(llama: LlamaServers) -> None:
    async def what(engine: Any) -> None:
        sampling = msgspec.structs.replace(GREEDY, max_tokens=900, logprobs=0)
        async with contextlib.aclosing(engine.generate(await prompt_of(engine, sampling))) as stream:
            await anext(stream)
            assert await busy_slots(engine) == 1
            assert (await engine.load()).running == 1
        async with asyncio.timeout(PATIENCE_S):
            while await busy_slots(engine) or (await engine.load()).running:
                await asyncio.sleep(0.1)
        assert (await engine.load()).generated_tokens.value < 900

    use(llama, what)


def test_a_quantised_kv_cache_forks_through_the_mirror_and_every_fork_gets_a_class(
    llama: LlamaServers,
) -> None:
    """Both arms and the control arm over every prompt: the floor is 0, the forks are real shifts or drift."""

    async def main() -> list[Any]:
        engines = [
            open_engine(llama.url(flags), EngineOptions(kind="llamacpp"))
            for flags in (PLAIN, QUANTISED_CACHE)
        ]
        try:
            endpoints = [FakeEndpoint(engine, await engine.probe()) for engine in engines]
            rig = Rig(
                *endpoints, control_percent=100.0, logprobs=20, in_flight=1, queue_age_s=600.0, max_tokens=48
            )
            for text in PROMPTS:
                body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "temperature": 0}
                rig.submit(target="/v1/chat/completions", body=msgspec.json.encode(body))
            async with asyncio.timeout(540):
                while len(rig.sink.comparisons) + len(rig.sink.drops) < len(PROMPTS):
                    await asyncio.sleep(0.1)
            await rig.mirror.close(0.0)
            assert rig.sink.drops == {}
            assert rig.ledger.balance().balanced
            return list(rig.sink.comparisons.values())
        finally:
            for engine in engines:
                await engine.close()

    compared = asyncio.run(main())
    valid = [pair for one in compared for pair in one.candidates if pair.set_aside is None]
    assert len(valid) >= len(PROMPTS) - 2  # an answer with a torn character is set aside
    controls = [pair for one in compared for pair in one.controls if pair.set_aside is None]
    assert [pair.fork for pair in controls] == [None] * len(controls)
    assert len(controls) >= len(PROMPTS) - 2
    forked = [pair for pair in valid if pair.fork is not None]
    assert len(forked) >= 3
    for pair in forked:
        spacing = spacing_nats(None, pair.left.steps)
        found = classify(pair, Allowance(spacing_nats=spacing, floor=floor_of(controls)))
        assert found is not None
        assert found.fork_class not in (
            ForkClass.NONE,
            ForkClass.ENCODING_MISMATCH,
            ForkClass.CONFIGURATION_MISMATCH,
        )
        assert pair.fork.max_error_nats > 1e-3  # another precision, not another batch
