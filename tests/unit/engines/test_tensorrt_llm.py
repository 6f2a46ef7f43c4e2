"""The TensorRT-LLM adapter against recorded exchanges, and its probe against servers that lie."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from comparator.records import Sampling, Step
from engines.base import (
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Engine,
    EngineInvalid,
    EngineRefused,
    EngineUnavailable,
    Prompt,
)
from engines.sse import EventParser
from engines.tensorrt_llm_wire import TensorRtDecoder
from tests.support.lying import FakeTensorRtLlm
from tests.support.recorded import (
    DEEP,
    PROMPT,
    SAMPLING,
    Adapter,
    RecordedServer,
    chat,
    check_every_cut,
    collected,
    exchanges,
    stream_bytes,
)
from tests.support.waiting import LIMIT_S

ALL = frozenset(Capability)
NOT_IN_ITS_API = {Capability.LOGPROBS, Capability.CACHE_SALT, Capability.DEFAULTS}
ADAPTER = Adapter("tensorrt_llm")
with_server, generated = ADAPTER.use, ADAPTER.generated


def replaying(*features: str, **how: Any) -> RecordedServer:
    return RecordedServer(*exchanges("tensorrt_llm", *features), **how)


# -- recorded: encode --------------------------------------------------------------------------------


def test_the_render_routes_give_the_ids_of_a_chat_and_of_a_prompt() -> None:
    encoding = with_server(replaying("encode"), lambda e: e.encode(chat(max_tokens=9, user="u")))
    assert (encoding.token_ids, encoding.sampling) == ((1, 2, 3, 4), Sampling(max_tokens=9))
    assert "digest of its whole rendering" in encoding.template_sha256.unknown
    text = Call(kind=CallKind.COMPLETION, body={"prompt": "hello"}, model="m")
    encoding = with_server(replaying("encode"), lambda engine: engine.encode(text))
    assert (encoding.token_ids, encoding.sampling.max_tokens) == ((4, 5, 6), 16)


def test_tokens_that_the_server_does_not_vouch_for_are_not_used() -> None:
    with pytest.raises(CannotEncode, match="does not vouch for its tokens: a named tool_choice"):
        with_server(replaying("encode_untrusted"), lambda engine: engine.encode(chat()))


def test_without_render_routes_the_reason_says_what_to_do() -> None:
    with pytest.raises(CannotEncode, match="TRTLLM_ENABLE_RENDER_ENDPOINTS=1") as caught:
        with_server(replaying("encode_missing"), lambda engine: engine.encode(chat()))
    assert not caught.value.goes_as_itself


def test_token_ids_need_no_render_route() -> None:
    ids = Call(kind=CallKind.COMPLETION, body={"prompt": [8, 9]}, model="m")
    server = replaying()
    assert with_server(server, lambda engine: engine.encode(ids)).token_ids == (8, 9)
    assert server.requests == []


def test_nothing_goes_as_itself_since_chat_answers_carry_no_ids() -> None:
    with pytest.raises(CannotEncode, match=r"\d: tools: .*chat answers carry no token IDs") as caught:
        with_server(replaying(), lambda engine: engine.encode(chat(tools=[{"type": "function"}])))
    assert not caught.value.goes_as_itself
    with pytest.raises(CannotEncode, match="chat answers carry no token IDs"):
        generated(replaying(), msgspec.structs.replace(PROMPT, call=chat()))


# -- recorded: generate ------------------------------------------------------------------------------


def test_ids_come_in_place_of_text_and_a_chunk_is_not_a_token() -> None:
    steps, finish = generated(replaying("generate_stream"))
    assert [(step.token_id, step.text) for step in steps] == [(11, None), (12, None), (13, None), (14, None)]
    assert (finish.finish_reason, finish.prompt_token_ids) == ("length", None)
    assert "their number was checked" in (finish.facts["prompt_echo"].unknown or "")


def test_a_stop_tells_which_token() -> None:
    steps, finish = generated(replaying("stop"))
    assert (len(steps), finish.finish_reason, finish.stop_reason) == (4, "stop", "14")


def test_each_seed_is_sent_and_gives_its_own_tokens() -> None:
    first, _ = generated(replaying("seed"))
    sixth = msgspec.structs.replace(PROMPT, sampling=msgspec.structs.replace(SAMPLING, seed=6))
    other, _ = generated(replaying("seed"), sixth)
    assert [step.token_id for step in first] == [11, 12, 13, 14]
    assert [step.token_id for step in other] == [31, 32, 33, 34]


def test_greedy_is_asked_for_in_the_words_of_every_version() -> None:
    greedy = msgspec.structs.replace(SAMPLING, temperature=0.0)
    steps, _ = generated(replaying("greedy"), msgspec.structs.replace(PROMPT, sampling=greedy))
    assert [step.token_id for step in steps] == [11, 12, 13, 14]


def test_the_lowest_priority_is_zero_whatever_number_others_use() -> None:
    generated(replaying("priority"), msgspec.structs.replace(PROMPT, priority=1_000_000_000))


def test_logprobs_named_by_text_are_refused() -> None:
    with pytest.raises(EngineInvalid, match="name tokens by their text"):
        generated(replaying("logprobs_by_text"), DEEP)


@pytest.mark.parametrize(
    ("feature", "prompt", "words"),
    [
        ("logprobs_refused", DEEP, "HTTP 400: 1 validation error: Value error, logprobs is not supported"),
        (
            "refused",
            msgspec.structs.replace(PROMPT, sampling=msgspec.structs.replace(SAMPLING, max_tokens=99_999)),
            "HTTP 400: The sum of prompt length and max_tokens",
        ),
    ],
)
def test_a_refusal_comes_in_the_servers_words(feature: str, prompt: Prompt, words: str) -> None:
    with pytest.raises(EngineRefused, match=words):
        generated(replaying(feature), prompt)


@pytest.mark.parametrize("drip_bytes", [1, 7])
def test_a_stream_that_drips_reads_the_same(drip_bytes: int) -> None:
    steps, _ = generated(replaying("generate_stream", drip_bytes=drip_bytes))
    assert [step.token_id for step in steps] == [11, 12, 13, 14]


def test_a_stream_cut_at_any_byte_reads_the_same() -> None:
    written = stream_bytes(exchanges("tensorrt_llm", "generate_stream")[0]["response"]["events"])

    def read(*pieces: bytes) -> list[Step]:
        parser, decoder = EventParser(), TensorRtDecoder("http://e", depth=0, prompt=(4, 5, 6))
        steps = [step for piece in pieces for step in decoder.feed(parser.feed(piece), 0.0)]
        decoder.finish()
        return steps

    check_every_cut(written, read, [11, 12, 13, 14])


def test_closing_the_generator_closes_the_connection_which_aborts() -> None:
    ADAPTER.leave_after_a_token(replaying("generate_stream", pause_s=LIMIT_S))


# -- recorded: load ----------------------------------------------------------------------------------


def test_load_is_what_prometheus_counts() -> None:
    load = with_server(replaying("metrics"), lambda engine: engine.load())
    assert (load.running, load.waiting, load.kv_cache_usage.value) == (2, 1, 0.5)
    assert (load.memory_bytes.value, load.generated_tokens.value) == (76_665_782_272, 640)


def test_without_it_the_last_iteration_is_read() -> None:
    load = with_server(replaying("metrics_iterations"), lambda engine: engine.load())
    assert (load.running, load.waiting, load.kv_cache_usage.value) == (1, 0, 3 / 101_256)
    assert load.memory_bytes.value == 76_665_782_272
    assert "count no tokens" in load.generated_tokens.unknown


def test_no_iteration_is_no_sign_of_idleness() -> None:
    with pytest.raises(EngineInvalid, match="set return_perf_metrics: true"):
        with_server(replaying("metrics_none"), lambda engine: engine.load())


# -- the probe ---------------------------------------------------------------------------------------


def probed(*lies: str) -> Any:
    return with_server(FakeTensorRtLlm(*lies, pause_s=0.001), lambda engine: engine.probe())


def test_an_honest_server_has_all_that_its_api_has() -> None:
    probe = probed()
    assert probe.has == ALL - NOT_IN_ITS_API, probe.missing
    assert probe.missing.keys() == NOT_IN_ITS_API
    assert (probe.max_logprobs, probe.version, probe.model) == (0, "1.2.0rc2", "m")
    assert "waiting_queue_policy" in (probe.facts["priority"].unknown or "")
    assert "name tokens by their text" in probe.missing[Capability.LOGPROBS]
    assert "enable_block_reuse to false" in probe.missing[Capability.CACHE_SALT]
    assert "OpenAI's defaults stand in" in probe.missing[Capability.DEFAULTS]


def test_an_older_server_lacks_what_came_later_and_the_reason_says_so() -> None:
    probe = probed("old", "no render")
    assert "top-1 was refused: " in probe.missing[Capability.LOGPROBS]
    assert "logprobs is not supported" in probe.missing[Capability.LOGPROBS]
    assert "upgrade" in probe.missing[Capability.PRIORITY]
    assert "TRTLLM_ENABLE_RENDER_ENDPOINTS=1" in probe.missing[Capability.ENCODE]
    assert {Capability.TOKEN_IN, Capability.TOKEN_OUT, Capability.SEED, Capability.ABORT} == probe.has


@pytest.mark.parametrize(
    ("lie", "lacks", "words"),
    [
        ("ignores seed", Capability.SEED, "one seed drew different tokens"),
        ("fixed seed", Capability.SEED, "three different seeds drew the same"),
        ("drops logprobs", Capability.LOGPROBS, "logprobs are missing"),
        ("ignores prompt", Capability.TOKEN_IN, "two prompts got the same tokens"),
        ("another length", Capability.TOKEN_IN, "it ran another prompt: it counts"),
        ("no usage", Capability.TOKEN_IN, "it ignores stream_options"),
        ("detokenizes", Capability.TOKEN_OUT, "the engine ignores detokenize: false"),
        ("renames ids", Capability.TOKEN_OUT, "the engine ignores detokenize: false"),
        ("miscounts", Capability.TOKEN_OUT, "the engine counted 5 tokens and gave IDs for 4"),
        ("no load", Capability.ABORT, "tells no load to see it by"),
    ],
)
def test_a_lie_is_caught_and_said(lie: str, lacks: Capability, words: str) -> None:
    probe = probed(lie)
    assert lacks not in probe.has
    assert words in probe.missing[lacks]
    assert probe.has | probe.missing.keys() == ALL
    assert not probe.has & probe.missing.keys()


def test_a_server_that_runs_on_after_a_disconnect_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engines.probe._ABORT_TRIES", 3)
    assert "a request still ran" in probed("runs on").missing[Capability.ABORT]


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    async def use(engine: Engine) -> None:
        with pytest.raises(EngineUnavailable, match="ended after 2 tokens, unfinished"):
            await collected(engine)

    with_server(FakeTensorRtLlm("breaks off"), use)
