"""The vLLM adapter against a server that speaks vLLM's words, honest or lying."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from comparator.records import Fact, Sampling
from engines import open_engine
from engines.base import (
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Engine,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    EngineUnavailable,
    Finish,
    Prompt,
    Steps,
)
from tests.support.fake_vllm import FakeVllm
from tests.support.waiting import LIMIT_S, eventually

ALL = frozenset(Capability)
SAMPLING = Sampling(max_tokens=6, temperature=0.7, seed=5, logprobs=3)


def with_server(server: FakeVllm, use: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with server.serving(), asyncio.timeout(LIMIT_S):
            engine = open_engine(server.url, EngineOptions(kind="vllm", **options))
            try:
                return await use(engine)
            finally:
                await engine.close()

    return asyncio.run(main())


def prompt_of(**changes: Any) -> Prompt:
    base = Prompt(exchange_id="x1", model="m", token_ids=(4, 5, 6), sampling=SAMPLING, cache_salt="salt")
    return msgspec.structs.replace(base, **changes)


async def collected(engine: Engine, prompt: Prompt) -> tuple[list[int], list[Steps | Finish]]:
    parts = [part async for part in engine.generate(prompt)]
    ids = [step.token_id for part in parts if isinstance(part, Steps) for step in part.steps]
    return ids, parts


# -- probing ----------------------------------------------------------------------------------------


def test_an_honest_server_has_every_capability() -> None:
    probe = with_server(FakeVllm(pause_s=0.001), lambda engine: engine.probe())
    assert probe.has == ALL
    assert probe.missing == {}
    assert (probe.max_logprobs, probe.version, probe.model, probe.engine) == (20, "0.32.0", "m", "vllm")
    assert probe.facts["system_fingerprint"] == Fact(value="vllm-0.32.0-abc")
    assert probe.facts["priority"].unknown is not None
    # Flags that the metrics tell; the number of blocks follows free memory and is none.
    assert probe.facts["kv_cache_dtype"] == Fact(value="auto")
    assert probe.facts["cache.prefix"].value is not None
    assert not any("364" in str(fact.value) for fact in probe.facts.values())


@pytest.mark.parametrize(
    ("lie", "lacks", "words"),
    [
        ("ignores seed", Capability.SEED, "one seed drew different tokens"),
        ("fixed seed", Capability.SEED, "three different seeds drew the same"),
        ("drops logprobs", Capability.LOGPROBS, "logprobs are missing"),
        ("shallow logprobs", Capability.LOGPROBS, "20 top logprobs were asked for and 2 came"),
        ("names by text", Capability.LOGPROBS, "logprobs near token 1"),
        ("drops ids", Capability.TOKEN_OUT, "text came without token_ids"),
        ("renames ids", Capability.TOKEN_OUT, "text came without token_ids"),
        ("echoes another prompt", Capability.TOKEN_IN, "another prompt"),
        ("no echo", Capability.TOKEN_IN, "nothing proves which prompt ran"),
        ("ignores salt", Capability.CACHE_SALT, "turn prefix caching off"),
        ("ignores priority", Capability.PRIORITY, "not read"),
        ("no metrics", Capability.ABORT, "tells no load"),
        ("no scale-out", Capability.DEFAULTS, "--enable-scale-out"),
        ("no stream", Capability.TOKEN_OUT, "a stream was asked for and application/json"),
        ("miscounts", Capability.TOKEN_OUT, "the engine counted"),
        ("refuses all", Capability.TOKEN_OUT, "HTTP 400"),
    ],
)
def test_a_lie_is_caught_and_said(lie: str, lacks: Capability, words: str) -> None:
    probe = with_server(FakeVllm(lie, pause_s=0.001), lambda engine: engine.probe())
    assert lacks not in probe.has
    assert words in probe.missing[lacks]
    assert probe.has | probe.missing.keys() == ALL
    assert not probe.has & probe.missing.keys()


def test_a_server_that_runs_on_after_a_disconnect_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.probe._ABORT_TRIES", 3)
    probe = with_server(FakeVllm("runs on", pause_s=0.02), lambda engine: engine.probe())
    assert "a request still ran" in probe.missing[Capability.ABORT]


def test_the_deepest_top_k_that_is_accepted_is_found() -> None:
    probe = with_server(FakeVllm("max 3 logprobs"), lambda engine: engine.probe())
    assert Capability.LOGPROBS in probe.has
    assert probe.max_logprobs == 1


def test_a_server_without_completions_is_driven_by_tokens_alone() -> None:
    server = FakeVllm("no completions", pause_s=0.001)
    probe = with_server(server, lambda engine: engine.probe())
    assert probe.has == ALL
    assert {path for path, body in server.requests if body.get("stream")} == {"/inference/v1/generate"}


def test_an_unreachable_server_has_no_findings() -> None:
    async def main() -> None:
        engine = open_engine("http://127.0.0.1:9", EngineOptions(kind="vllm"))
        with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:9"):
            await engine.probe()
        await engine.close()

    asyncio.run(main())


def test_a_model_that_is_not_served_is_named() -> None:
    async def use(engine: Engine) -> None:
        with pytest.raises(EngineInvalid, match="'other' is not served here, but m"):
            await engine.probe()

    with_server(FakeVllm(), use, model="other")


# -- encoding ---------------------------------------------------------------------------------------


def chat(**body: Any) -> Call:
    return Call(kind=CallKind.CHAT, body={"messages": [{"role": "user", "content": "hi"}], **body}, model="m")


def test_the_servers_own_rendering_gives_ids_and_effective_parameters() -> None:
    encoding = with_server(FakeVllm("tells template"), lambda e: e.encode(chat(max_tokens=9, stop=["x"])))
    assert encoding.token_ids == tuple(b'[{"role": "user", "content": "hi"}]')
    assert encoding.sampling == Sampling(max_tokens=9, temperature=0.6, repetition_penalty=1.1, stop=("x",))
    assert encoding.template_sha256.value.startswith("sha256:")


def test_max_tokens_left_out_of_a_rendering_means_vllms_default() -> None:
    call = Call(kind=CallKind.COMPLETION, body={"prompt": "hi"}, model="m")
    encoding = with_server(FakeVllm(), lambda engine: engine.encode(call))
    assert encoding.sampling.max_tokens == 16
    assert "no template" in (encoding.template_sha256.unknown or "")


def test_engine_parameters_without_a_name_of_ours_travel_as_extra() -> None:
    says = {"allowed_token_ids": [1, 2], "extra_args": {"k": 1}, "skip_special_tokens": False}
    encoding = with_server(FakeVllm(), lambda engine: engine.encode(chat(render_says=says)))
    assert encoding.sampling.extra == {
        "allowed_token_ids": [1, 2],
        "vllm_xargs": {"k": 1},
        "skip_special_tokens": False,
    }


def test_a_parameter_that_no_completions_request_carries_goes_as_itself() -> None:
    async def use(engine: Engine) -> None:
        with pytest.raises(CannotEncode, match="structured_outputs") as caught:
            await engine.encode(chat(render_says={"structured_outputs": {"json": "{}"}}))
        assert caught.value.goes_as_itself

    with_server(FakeVllm(), use)


def test_a_call_for_a_model_that_is_not_served_leaves_the_next_call_as_it_was() -> None:
    async def use(engine: Engine) -> None:
        call = chat(max_tokens=9)
        with pytest.raises(EngineRefused, match="HTTP 404"):
            await engine.encode(msgspec.structs.replace(call, model="other"))
        assert (await engine.encode(call)).sampling.temperature == 0.6

    with_server(FakeVllm(), use)


def test_without_scale_out_tokenize_and_openais_defaults_stand_in() -> None:
    server = FakeVllm("no scale-out")
    encoding = with_server(server, lambda engine: engine.encode(chat(temperature=0.2, stop="x", top_k=-1)))
    assert encoding.sampling == Sampling(
        max_tokens=2048 - len(encoding.token_ids), temperature=0.2, stop=("x",)
    )
    assert [path for path, _ in server.requests] == ["/v1/chat/completions/render", "/tokenize"]
    assert "--enable-tokenizer-info-endpoint" in (encoding.template_sha256.unknown or "")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CallKind.RESPONSE, {"input": "hi", "max_output_tokens": 9, "instructions": "be brief"}),
        (
            CallKind.MESSAGE,
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "system": "be brief"},
        ),
    ],
)
def test_other_apis_are_rendered_by_the_server_or_put_in_the_words_of_chat(
    kind: CallKind, body: dict[str, Any]
) -> None:
    server = FakeVllm()
    with_server(server, lambda engine: engine.encode(Call(kind=kind, body=body, model="m")))
    assert server.requests[-1][0] in ("/v1/responses/render", "/v1/messages/render")
    server = FakeVllm("no scale-out")
    encoding = with_server(server, lambda engine: engine.encode(Call(kind=kind, body=body, model="m")))
    assert encoding.sampling.max_tokens == 9
    assert server.requests[-1][1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]


# -- generating -------------------------------------------------------------------------------------


def test_a_prompt_goes_with_every_parameter_and_comes_back_as_steps() -> None:
    server = FakeVllm()
    ids, parts = with_server(server, lambda engine: collected(engine, prompt_of(priority=7)))
    assert len(ids) == 6
    finish = parts[-1]
    assert isinstance(finish, Finish)
    assert (finish.finish_reason, finish.prompt_token_ids) == ("length", (4, 5, 6))
    assert finish.facts["environment_digest"].unknown is not None
    assert finish.facts["system_fingerprint"].value == "vllm-0.32.0-abc"
    path, body = server.requests[0]
    assert path == "/v1/completions"
    sent = {
        "prompt": [4, 5, 6],
        "seed": 5,
        "temperature": 0.7,
        "logprobs": 3,
        "cache_salt": "salt",
        "priority": 7,
    }
    assert sent.items() <= body.items()
    assert {
        field for field in Sampling.__struct_fields__ if field not in ("extra", "logit_bias")
    } <= body.keys()
    first = next(part for part in parts if isinstance(part, Steps)).steps[0]
    assert len(first.top_ids) == 3
    assert first.received_s > 0


def test_a_call_that_goes_as_itself_keeps_its_words_and_asks_for_ids() -> None:
    server = FakeVllm()
    call = chat(tools=[{"type": "function"}], temperature=0.1, max_tokens=400)
    ids, _ = with_server(server, lambda engine: collected(engine, prompt_of(call=call)))
    assert len(ids) == 6
    path, body = server.requests[0]
    assert path == "/v1/chat/completions"
    assert body["tools"] == [{"type": "function"}]
    assert body["temperature"] == 0.1
    assert (body["max_completion_tokens"], body["top_logprobs"], body["seed"]) == (6, 3, 5)
    assert "max_tokens" not in body


@pytest.mark.parametrize(
    ("lie", "error", "words"),
    [
        ("breaks off", None, ""),  # without [DONE], but finished: whole
        ("never finishes", EngineUnavailable, "unfinished"),
        ("nan at token 2", EngineInvalid, "near token 3|not what was asked"),
        ("fails at token 2", EngineUnavailable, "EngineCore died"),
        ("miscounts", EngineInvalid, "counted 7"),
        ("echoes another prompt", EngineInvalid, "another prompt"),
        ("no stream", EngineInvalid, "application/json.* came"),
        ("refuses all", EngineRefused, "HTTP 400: no"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(lie: str, error: type[Exception] | None, words: str) -> None:
    async def use(engine: Engine) -> None:
        if error is None:
            assert len((await collected(engine, prompt_of()))[0]) == 6
            return
        with pytest.raises(error, match=words):
            await collected(engine, prompt_of())

    with_server(FakeVllm(lie), use)


def test_closing_the_generator_aborts_the_request() -> None:
    server = FakeVllm(pause_s=LIMIT_S)

    async def use(engine: Engine) -> None:
        stream = engine.generate(prompt_of())
        await anext(stream)
        assert server.running == 1
        await stream.aclose()
        await eventually(lambda: server.aborted == 1 and server.running == 0)

    with_server(server, use)


def test_finished_answers_leave_their_connection_for_the_next() -> None:
    server = FakeVllm()

    async def use(engine: Engine) -> None:
        for _ in range(5):
            await collected(engine, prompt_of())
        connector = engine.endpoint._session.connector  # type: ignore[attr-defined]
        assert sum(len(held) for held in connector._conns.values()) == 1

    with_server(server, use)


def test_load_is_what_the_server_counts() -> None:
    load = with_server(FakeVllm(), lambda engine: engine.load())
    assert (load.running, load.waiting, load.kv_cache_usage.value) == (0, 0, 0.25)
    assert load.generated_tokens.value == 640
    assert "tells no memory" in str(load.memory_bytes.unknown)
    with pytest.raises(EngineInvalid, match="vllm:num_requests_running"):
        with_server(FakeVllm("no metrics"), lambda engine: engine.load())


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.kind: 'tgi' is not one of vllm, .*sglang"):
        open_engine("http://e", EngineOptions(kind="tgi"))
