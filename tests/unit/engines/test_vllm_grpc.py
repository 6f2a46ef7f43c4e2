"""The gRPC adapter against a server of the published messages, honest or lying in one way."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from comparator.records import Fact, Sampling, Step
from engines import (
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Engine,
    EngineError,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Finish,
    Prompt,
    Steps,
    open_engine,
)
from engines.base import Observable
from tests.support.fake_vllm import FakeVllm
from tests.support.fake_vllm_grpc import FakeVllmGrpc
from tests.support.waiting import LIMIT_S, eventually

ALL = frozenset(Capability) - {Capability.PRIORITY, Capability.ENCODE}
SAMPLING = Sampling(max_tokens=6, temperature=0.7, seed=5, logprobs=3)


def use(server: FakeVllmGrpc, what: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with server.serving(), asyncio.timeout(LIMIT_S):
            engine = open_engine(server.url, EngineOptions(kind="vllm_grpc", **options))
            try:
                return await what(engine)
            finally:
                await engine.close()

    return asyncio.run(main())


def prompt_of(sampling: Sampling = SAMPLING) -> Prompt:
    return Prompt(exchange_id="x1", model="m", token_ids=(4, 5, 6), sampling=sampling, cache_salt="salt")


async def run(engine: Engine, prompt: Prompt) -> tuple[list[Step], Finish]:
    parts = [part async for part in engine.generate(prompt)]
    assert isinstance(parts[-1], Finish)
    return [step for part in parts if isinstance(part, Steps) for step in part.steps], parts[-1]


# -- probing ----------------------------------------------------------------------------------------------


def test_an_honest_server_has_all_that_its_messages_can_carry() -> None:
    probe = use(FakeVllmGrpc(), lambda engine: engine.probe())
    assert probe.has == ALL
    assert "no field" in probe.missing[Capability.PRIORITY]
    assert "grpc_port" in probe.missing[Capability.ENCODE]
    assert (probe.version, probe.model, probe.max_logprobs) == ("0.32.0", "m", 20)
    assert probe.facts["dtype"].value == "float32"
    assert probe.facts["template_sha256"].value.startswith("sha256:")
    assert "cached_tokens" not in probe.facts


@pytest.mark.parametrize(
    ("lie", "capability", "words"),
    [
        ("no echo", Capability.TOKEN_IN, "nothing proves which prompt ran"),
        ("another prompt", Capability.TOKEN_IN, "ran another prompt"),
        ("another length", Capability.TOKEN_IN, "ran another prompt"),
        ("drops ids", Capability.TOKEN_OUT, "gave IDs for 0"),
        ("beyond the vocabulary", Capability.TOKEN_OUT, "outside the vocabulary"),
        ("loses a chunk", Capability.TOKEN_OUT, "one is missing"),
        ("drops logprobs", Capability.LOGPROBS, "logprobs are missing"),
        ("of another token", Capability.LOGPROBS, "of other tokens"),
        ("shallow", Capability.LOGPROBS, "1 came"),
        ("unsorted", Capability.LOGPROBS, "rank order"),
        ("nan", Capability.LOGPROBS, "computed NaN"),
        ("nan in the top", Capability.LOGPROBS, "is NaN"),
        ("ignores seed", Capability.SEED, "different tokens each time"),
        ("fixed seed", Capability.SEED, "drew the same tokens"),
        ("warm", Capability.CACHE_SALT, "--no-enable-prefix-caching"),
        ("defaults are no JSON", Capability.DEFAULTS, "default_sampling_params_json"),
        ("no load", Capability.ABORT, "reports no rank"),
    ],
)
def test_a_server_that_lies_is_caught(lie: str, capability: Capability, words: str) -> None:
    probe = use(FakeVllmGrpc(lie), lambda engine: engine.probe())
    assert capability not in probe.has
    assert words in probe.missing[capability]


def test_a_server_that_runs_on_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.probe._ABORT_TRIES", 2)
    monkeypatch.setattr("engines.probe._ABORT_PAUSE_S", 0.01)
    probe = use(FakeVllmGrpc("runs on"), lambda engine: engine.probe())
    assert "still ran" in probe.missing[Capability.ABORT]


def test_a_shallow_limit_is_found() -> None:
    assert use(FakeVllmGrpc("max 3 logprobs"), lambda engine: engine.probe()).max_logprobs == 1


def test_a_server_without_tokenizer_files_tells_no_template() -> None:
    probe = use(FakeVllmGrpc("no tokenizer"), lambda engine: engine.probe())
    assert "no tokenizer here" in probe.facts["template_sha256"].unknown


# -- generating ------------------------------------------------------------------------------------------


def test_every_scalar_is_set_and_the_closing_message_adds_no_token() -> None:
    server = FakeVllmGrpc()
    sampling = msgspec.structs.replace(SAMPLING, logit_bias={"9": 1.5}, stop=("a",), stop_token_ids=(3,))
    steps, finish = use(server, lambda engine: run(engine, prompt_of(sampling)))
    assert len(steps) == 6
    assert all(len(step.top_ids) == 3 and step.top_ids[0] == step.token_id for step in steps)
    assert (finish.finish_reason, finish.facts["cached_tokens"].value) == ("length", 0)
    (request,) = server.requests
    params = request.sampling_params
    assert (params.top_p, params.repetition_penalty, params.seed, params.n) == (1.0, 1.0, 5, 1)
    assert params.HasField("temperature")
    assert (dict(params.logit_bias), list(params.stop), list(params.stop_token_ids)) == ({9: 1.5}, ["a"], [3])
    assert request.stream
    assert (server.metadata[0]["x-forkgate-shadow"], server.metadata[0]["x-request-id"]) == ("1", "x1")


def test_a_pools_credential_travels_as_metadata(tmp_path: pathlib.Path) -> None:
    server, file = FakeVllmGrpc(), tmp_path / "token"
    file.write_text("s3cret\n")
    use(server, lambda engine: run(engine, prompt_of()), credential_file=str(file))
    assert server.metadata[0]["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize(
    ("lie", "kind", "words"),
    [
        ("breaks off", EngineUnavailable, "unfinished"),
        ("gives up", EngineUnavailable, "'abort'"),
        ("crashes", EngineUnavailable, "INTERNAL: EngineCore died"),
        ("max 3 logprobs", EngineRefused, "INVALID_ARGUMENT"),
    ],
)
def test_failures_are_of_the_kind_that_they_are(lie: str, kind: type[EngineError], words: str) -> None:
    deep = msgspec.structs.replace(SAMPLING, logprobs=20)
    with pytest.raises(kind, match=words):
        use(FakeVllmGrpc(lie), lambda engine: run(engine, prompt_of(deep)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"extra": {"bad_words": ["x"]}}, "bad_words"),
        ({"seed": 1 << 31}, "int32"),
        ({"logit_bias": {"x": 1.0}}, "no field can hold"),
        ({"top_k": -1}, "no field can hold"),
    ],
)
def test_what_no_field_can_carry_is_refused(change: dict[str, Any], words: str) -> None:
    server = FakeVllmGrpc()
    with pytest.raises(EngineRefused, match=words):
        use(server, lambda engine: run(engine, prompt_of(msgspec.structs.replace(SAMPLING, **change))))
    assert server.requests == []


def test_leaving_a_stream_aborts_it() -> None:
    server = FakeVllmGrpc(pause_s=LIMIT_S)

    async def what(engine: Engine) -> None:
        async with contextlib.aclosing(engine.generate(prompt_of())) as stream:
            await anext(stream)
        await eventually(lambda: server.aborted == 1 and server.running == 0, "the server to see the call go")

    use(server, what)


def test_a_silent_server_is_left_after_the_chunk_timeout() -> None:
    with pytest.raises(EngineTimeout, match=r"no further chunk in 0\.05 s"):
        use(FakeVllmGrpc(pause_s=20.0), lambda engine: run(engine, prompt_of()), chunk_timeout_s=0.05)


def test_nobody_listening_is_unavailable() -> None:
    async def main() -> None:
        engine = open_engine("http://127.0.0.1:1", EngineOptions(kind="vllm_grpc"))
        try:
            with pytest.raises(EngineUnavailable, match="is it running"):
                await engine.load()
        finally:
            await engine.close()

    asyncio.run(main())


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(importlib, "import_module", missing)
    from engines.vllm_grpc_wire import protos

    with pytest.raises(EngineError, match=r"forkgate\[vllm-grpc\]"):
        protos("http://here")


# -- encoding ----------------------------------------------------------------------------------------------


def test_token_ids_encode_to_themselves_with_the_engines_defaults() -> None:
    call = Call(kind=CallKind.COMPLETION, body={"prompt": [4, 5], "max_tokens": 9}, model="m")
    told = use(FakeVllmGrpc(), lambda engine: engine.encode(call))
    assert (told.token_ids, told.sampling.top_p, told.sampling.max_tokens) == ((4, 5), 0.9, 9)


def test_text_cannot_be_encoded_without_an_http_server() -> None:
    call = Call(kind=CallKind.CHAT, body={"messages": [{"role": "user", "content": "x"}]}, model="m")
    with pytest.raises(CannotEncode, match="grpc_port") as caught:
        use(FakeVllmGrpc(), lambda engine: engine.encode(call))
    assert not caught.value.goes_as_itself


def test_an_http_server_beside_it_encodes() -> None:
    async def main() -> Any:
        web, own = FakeVllm(), FakeVllmGrpc()
        async with web.serving(), own.serving(), asyncio.timeout(LIMIT_S):
            port = int(own.url.rpartition(":")[2])
            engine = open_engine(web.url, EngineOptions(kind="vllm_grpc", model="m", grpc_port=port))
            try:
                return await engine.probe()
            finally:
                await engine.close()

    probe = asyncio.run(main())
    assert probe.has == ALL | {Capability.ENCODE}


def test_another_model_than_the_configured_one_is_named() -> None:
    with pytest.raises(EngineInvalid, match="'large' is not served here, but m"):
        use(FakeVllmGrpc(), lambda engine: engine.probe(), model="large")


# -- who is there -----------------------------------------------------------------------------------------


class Connections:
    """An observer that counts."""

    def __init__(self) -> None:
        self.made = 0

    def answered_by(self, environment: Fact, *, new_connection: bool) -> None:
        assert environment.value is None
        self.made += new_connection


def test_each_new_connection_is_told_for_another_server_may_be_at_its_end() -> None:
    """gRPC answers tell no environment; that a connection had to be made anew is all that can be known."""

    async def main() -> None:
        seen = Connections()
        first, second = FakeVllmGrpc(), FakeVllmGrpc()
        async with asyncio.timeout(LIMIT_S):
            async with first.serving():
                engine = open_engine(first.url, EngineOptions(kind="vllm_grpc"))
                assert isinstance(engine, Observable)
                engine.observe(seen)
                for _ in range(3):
                    await run(engine, prompt_of())
                assert seen.made == 1
            async with second.serving(int(first.url.rpartition(":")[2])):
                while True:
                    with contextlib.suppress(EngineUnavailable):  # while gRPC backs off
                        await run(engine, prompt_of())
                        break
                    await asyncio.sleep(0.02)
                assert seen.made == 2
            await engine.close()

    asyncio.run(main())
