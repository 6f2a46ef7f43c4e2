"""The llama-server adapter: what was recorded from the real one, and servers that lie in one way each."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from comparator.records import Sampling, Step
from engines import (
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
    open_engine,
)
from engines.llamacpp_wire import shortest
from tests.support.fake_llamacpp import FakeLlama
from tests.support.recorded import RecordedServer, exchanges
from tests.support.waiting import LIMIT_S, eventually

ALL = frozenset(Capability) - {Capability.PRIORITY}
GREEDY = Sampling(max_tokens=4, temperature=0.0, ignore_eos=True)


def use(server: RecordedServer, what: Callable[[Engine], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        async with server.serving(), asyncio.timeout(LIMIT_S):
            engine = open_engine(server.url, EngineOptions(kind="llamacpp", **options))
            try:
                return await what(engine)
            finally:
                await engine.close()

    return asyncio.run(main())


def prompt_of(sampling: Sampling = GREEDY, ids: tuple[int, ...] = (4, 5, 6)) -> Prompt:
    return Prompt(exchange_id="x", model="m", token_ids=ids, sampling=sampling, cache_salt="salt")


async def run(engine: Engine, prompt: Prompt) -> tuple[list[Step], Finish]:
    parts = [part async for part in engine.generate(prompt)]
    assert isinstance(parts[-1], Finish)
    return [step for part in parts if isinstance(part, Steps) for step in part.steps], parts[-1]


# -- what the real server said -----------------------------------------------------------------------


def replayed(feature: str, sampling: Sampling, *, drip_bytes: int | None = None) -> tuple[list[Step], Finish]:
    """The adapter's own request must be the recorded one to the letter, or the server answers 500."""
    told = exchanges("llamacpp", "server", feature)
    ids = tuple(told[-1]["request"]["body"]["prompt"])
    server = RecordedServer(*told, drip_bytes=drip_bytes)
    return use(server, lambda engine: run(engine, prompt_of(sampling, ids)))


@pytest.mark.parametrize("drip_bytes", [None, 1, 7])
def test_a_recorded_stream_becomes_its_steps(drip_bytes: int | None) -> None:
    steps, finish = replayed("logprobs", msgspec.structs.replace(GREEDY, logprobs=3), drip_bytes=drip_bytes)
    events = exchanges("llamacpp", "logprobs")[0]["response"]["events"]
    assert [step.token_id for step in steps] == [event["tokens"][0] for event in events[:-1]]
    assert [step.text for step in steps] == [event["content"] for event in events[:-1]]
    told = [event["completion_probabilities"][0] for event in events[:-1]]
    assert [step.logprob for step in steps] == [one["logprob"] for one in told]
    assert [list(step.top_ids) for step in steps] == [
        [top["id"] for top in one["top_logprobs"]] for one in told
    ]
    assert finish.finish_reason == "length"
    assert finish.facts["processor_order"].value == events[-1]["generation_settings"]["samplers"]
    assert finish.facts["cached_tokens"].value == 0
    assert finish.facts["logprobs_mode"].value == "raw_logprobs"
    assert finish.prompt_token_ids is None


def test_a_recorded_stream_without_logprobs_has_bare_steps() -> None:
    steps, _ = replayed("generate_stream", GREEDY)
    assert len(steps) == 4
    assert all(step.logprob is None and step.top_ids == () for step in steps)


def test_a_recorded_stop_word_and_end_of_text() -> None:
    stop = msgspec.structs.replace(GREEDY, max_tokens=40, stop=(" a",), ignore_eos=False)
    steps, finish = replayed("stop", stop)
    assert (finish.finish_reason, finish.stop_reason) == ("stop", " a")
    assert len(steps) == exchanges("llamacpp", "stop")[0]["response"]["events"][-1]["tokens_predicted"]
    end = msgspec.structs.replace(GREEDY, ignore_eos=False, logit_bias={"2": 100.0})
    steps, finish = replayed("end_of_text", end)
    assert ([step.token_id for step in steps], finish.finish_reason) == ([2], "stop")


def test_recorded_draws_differ_by_seed() -> None:
    seven, eight = exchanges("llamacpp", "seed")
    server = RecordedServer(*exchanges("llamacpp", "server"), seven, eight)
    ids = tuple(seven["request"]["body"]["prompt"])

    async def what(engine: Engine) -> None:
        drawn = []
        for seed in (7, 8):
            sampling = msgspec.structs.replace(GREEDY, temperature=1.0, seed=seed)
            steps, finish = await run(engine, prompt_of(sampling, ids))
            assert finish.facts["seed"].value == seed
            drawn.append([step.token_id for step in steps])
        assert drawn[0] != drawn[1]

    use(server, what)


def test_a_recorded_answer_with_a_torn_character_is_refused_with_the_reason() -> None:
    with pytest.raises(EngineInvalid, match="no token that ends inside a character, 2 such near token 1"):
        replayed("torn_character", msgspec.structs.replace(GREEDY, max_tokens=6))


def test_recorded_refusals_keep_the_servers_words() -> None:
    long, strange = exchanges("llamacpp", "refused")
    for told, words in ((long, "exceeds the available context size"), (strange, "invalid tokens")):
        ids = tuple(told["request"]["body"]["prompt"])
        server = RecordedServer(*exchanges("llamacpp", "server"), told)
        with pytest.raises(EngineRefused, match=words):
            use(server, lambda engine, ids=ids: run(engine, prompt_of(ids=ids)))


def test_recorded_encoding_takes_the_servers_template_and_defaults() -> None:
    template, tokenized = exchanges("llamacpp", "encode")
    call = Call(kind=CallKind.CHAT, body={**template["request"]["body"], "max_tokens": 9}, model="m")
    server = RecordedServer(*exchanges("llamacpp", "server", "encode"))
    told = use(server, lambda engine: engine.encode(call))
    assert list(told.token_ids) == tokenized["response"]["body"]["tokens"]
    assert (told.sampling.max_tokens, told.sampling.temperature, told.sampling.min_p) == (9, 0.8, 0.05)
    assert told.sampling.extra["samplers"][0] == "penalties"
    assert told.template_sha256.value.startswith("sha256:")


def test_recorded_metrics_are_the_load() -> None:
    server = RecordedServer(*exchanges("llamacpp", "metrics"))
    load = use(server, lambda engine: engine.load())
    assert (load.running, load.waiting) == (0, 0)
    assert load.generated_tokens.value > 0
    assert load.memory_bytes.unknown


# -- probing, honest and lying ---------------------------------------------------------------------------


def test_an_honest_server_has_all_but_priorities() -> None:
    probe = use(FakeLlama(), lambda engine: engine.probe())
    assert probe.has == ALL
    assert set(probe.missing) == {Capability.PRIORITY}
    assert probe.max_logprobs == 100


@pytest.mark.parametrize(
    ("lie", "capability", "words"),
    [
        ("goes by text", Capability.TOKEN_IN, "were sent"),
        ("another text", Capability.TOKEN_IN, "reads"),
        ("drops ids", Capability.TOKEN_OUT, "ignores return_tokens"),
        ("renames ids", Capability.TOKEN_OUT, "ignores return_tokens"),
        ("beyond the vocabulary", Capability.TOKEN_OUT, "outside the model's vocabulary"),
        ("another model", Capability.TOKEN_OUT, "'other' answered"),
        ("ignores top_p", Capability.TOKEN_OUT, "top_p 1.0 was asked for"),
        ("renames a setting", Capability.TOKEN_OUT, "tells no samplers"),
        ("torn", Capability.TOKEN_OUT, "inside a character"),
        ("drops logprobs", Capability.LOGPROBS, "logprobs are missing"),
        ("shallow", Capability.LOGPROBS, "came"),
        ("after sampling", Capability.LOGPROBS, "top_logprobs"),
        ("of another token", Capability.LOGPROBS, "of another token"),
        ("nan", Capability.LOGPROBS, "logprob"),
        ("unsorted", Capability.LOGPROBS, "rank order"),
        ("ignores seed", Capability.SEED, "different tokens each time"),
        ("fixed seed", Capability.SEED, "drew the same tokens"),
        ("no template", Capability.ENCODE, "no template is used"),
        ("other defaults", Capability.DEFAULTS, "temperature 0.8"),
        ("warm", Capability.CACHE_SALT, "cache_prompt false is not read"),
        ("no metrics", Capability.ABORT, "--metrics"),
    ],
)
def test_a_server_that_lies_is_caught(lie: str, capability: Capability, words: str) -> None:
    probe = use(FakeLlama(lie), lambda engine: engine.probe())
    assert capability not in probe.has
    assert words in probe.missing[capability]


def test_a_server_that_runs_on_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.probe._ABORT_TRIES", 2)
    monkeypatch.setattr("engines.probe._ABORT_PAUSE_S", 0.01)
    probe = use(FakeLlama("runs on"), lambda engine: engine.probe())
    assert "still ran" in probe.missing[Capability.ABORT]


@pytest.mark.parametrize(
    ("lie", "words"), [("breaks off", "unfinished"), ("error in the stream", "decode failed")]
)
def test_a_broken_stream_is_no_answer(lie: str, words: str) -> None:
    with pytest.raises(EngineUnavailable, match=words):
        use(FakeLlama(lie), lambda engine: run(engine, prompt_of()))


# -- requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"min_tokens": 3}, "min_tokens"),
        ({"stop_token_ids": (9,)}, "stop_token_ids"),
        ({"extra": {"bad_words": ["x"]}}, "bad_words"),
    ],
)
def test_what_the_server_would_leave_out_is_refused(change: dict[str, Any], words: str) -> None:
    server = FakeLlama()
    with pytest.raises(EngineRefused, match=words):
        use(server, lambda engine: run(engine, prompt_of(msgspec.structs.replace(GREEDY, **change))))
    assert "/completion" not in [path for path, _ in server.requests]


def test_no_call_goes_as_itself() -> None:
    call = Call(kind=CallKind.CHAT, body={"messages": [], "tools": [{"type": "function"}]}, model="m")
    for what in (
        lambda engine: engine.encode(call),
        lambda engine: run(engine, msgspec.structs.replace(prompt_of(), call=call)),
    ):
        with pytest.raises(CannotEncode, match="no token IDs") as caught:
            use(FakeLlama(), what)
        assert not caught.value.goes_as_itself


def test_another_model_than_the_configured_one_is_named() -> None:
    with pytest.raises(EngineInvalid, match=r"'large' is not served here, but smollm2; set engine\.model"):
        use(FakeLlama(), lambda engine: engine.probe(), model="large")


def test_leaving_a_stream_drops_its_connection() -> None:
    server = FakeLlama(pause_s=LIMIT_S)

    async def what(engine: Engine) -> None:
        async with contextlib.aclosing(engine.generate(prompt_of(GREEDY))) as stream:
            await anext(stream)
        await eventually(lambda: server.aborted == 1, "the server to see the connection go")

    use(server, what)


@pytest.mark.parametrize(
    ("told", "plain"), [(0.800000011920929, 0.8), (0.05000000074505806, 0.05), (1.0, 1.0)]
)
def test_defaults_are_the_numbers_that_an_operator_wrote(told: float, plain: float) -> None:
    assert shortest(told) == plain
