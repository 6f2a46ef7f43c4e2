"""The SGLang adapter against recorded exchanges, and its probe against servers that lie."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from comparator.records import Fact, Sampling, Step
from engines.base import (
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Engine,
    EngineInvalid,
    EngineRefused,
    EngineUnavailable,
)
from engines.sglang_wire import SglangDecoder
from engines.sse import EventParser
from tests.support.lying import FakeSglang
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
ALWAYS = ("models", "server_info")
ADAPTER = Adapter("sglang")
with_server, generated = ADAPTER.use, ADAPTER.generated


def replaying(*features: str, **how: Any) -> RecordedServer:
    kept = () if any(name.startswith("server_info") for name in features) else ALWAYS
    return RecordedServer(*exchanges("sglang", *kept, *features), **how)


# -- recorded: encode --------------------------------------------------------------------------------


def test_a_chat_is_rendered_by_the_server_and_openais_defaults_fill_in() -> None:
    encoding = with_server(replaying("encode"), lambda e: e.encode(chat(temperature=0.2, top_k=-1)))
    assert encoding.token_ids == (1, 2, 3, 4)
    assert encoding.sampling == Sampling(max_tokens=2048 - 4, temperature=0.2)
    assert "no chat template" in encoding.template_sha256.unknown


def test_what_changes_a_rendering_goes_along_and_nothing_else() -> None:
    call = chat(chat_template_kwargs={"enable_thinking": False}, user="u", max_tokens=9)
    encoding = with_server(replaying("encode"), lambda engine: engine.encode(call))
    assert (encoding.token_ids, encoding.sampling.max_tokens) == ((1, 2, 3, 4, 5), 9)


def test_a_completion_prompt_is_tokenized_and_a_list_of_ids_is_taken_as_it_is() -> None:
    text = Call(kind=CallKind.COMPLETION, body={"prompt": "hello"}, model="m")
    encoding = with_server(replaying("encode"), lambda engine: engine.encode(text))
    assert (encoding.token_ids, encoding.sampling.max_tokens) == ((4, 5, 6), 16)
    server = replaying()
    ids = Call(kind=CallKind.COMPLETION, body={"prompt": [8, 9]}, model="m")
    assert with_server(server, lambda engine: engine.encode(ids)).token_ids == (8, 9)
    assert [path for path, _ in server.requests] == ["/v1/models"]


def test_a_refusal_to_encode_comes_in_the_servers_words() -> None:
    with pytest.raises(EngineRefused, match="HTTP 400: Chat template tokenization requires"):
        with_server(replaying("encode_refused"), lambda engine: engine.encode(chat()))


def test_a_call_around_tokens_is_skipped_since_no_ids_would_come_back() -> None:
    with pytest.raises(CannotEncode, match=r"\d: tools: .*only /generate tells logprobs") as caught:
        with_server(replaying(), lambda engine: engine.encode(chat(tools=[{"type": "function"}])))
    assert not caught.value.goes_as_itself


@pytest.mark.parametrize("ask", [lambda e: e.encode(msgspec.structs.replace(chat(), model="other"))])
def test_a_model_that_is_not_served_is_refused_though_generate_names_none(ask: Any) -> None:
    with pytest.raises(EngineRefused, match="'other' is not served here, but m"):
        with_server(replaying(), ask)
    with pytest.raises(EngineRefused, match="'other' is not served here, but m"):
        generated(replaying(), msgspec.structs.replace(PROMPT, model="other"))


def test_an_adapter_is_not_answered_by_its_base_model() -> None:
    server = RecordedServer(*exchanges("sglang", "server_info", "models_adapter"))
    with pytest.raises(EngineInvalid, match="'lora' is an adapter over m, and no lora_path is sent"):
        with_server(server, collected, model="lora")


# -- recorded: generate ------------------------------------------------------------------------------


def test_all_tokens_so_far_in_each_event_become_each_token_once() -> None:
    steps, finish = generated(replaying("generate_stream"))
    assert [(step.token_id, step.text) for step in steps] == [
        (11, "On"),
        (12, "ce"),
        (13, None),  # the text of two tokens that came together is known with the last
        (14, " upon"),
    ]
    assert (finish.finish_reason, finish.prompt_token_ids) == ("length", (4, 5, 6))
    assert finish.facts["weight_version"] == Fact(value="default")
    assert "SGLANG_RETURN_ORIGINAL_LOGPROB" in (finish.facts["logprobs_mode"].unknown or "")


def test_top_logprobs_come_with_ids_in_rank_order() -> None:
    steps, _ = generated(replaying("logprobs"), DEEP)
    assert [(step.logprob, step.top_ids, step.top_logprobs) for step in steps] == [
        (-0.5, (11, 91), (-0.5, -1.5)),
        (-0.25, (12, 92), (-0.25, -2.0)),
        (-1.0, (93, 13), (-0.75, -1.0)),
        (-0.125, (14, 94), (-0.125, -3.0)),
    ]


def test_a_server_that_sends_only_what_is_new_says_so_and_reads_the_same() -> None:
    whole, _ = generated(replaying("logprobs"), DEEP)
    server = replaying("server_info_incremental", "models", "generate_incremental")
    parts, _ = generated(server, DEEP)
    plain = [msgspec.structs.replace(step, received_s=0.0) for step in whole]
    assert [msgspec.structs.replace(step, received_s=0.0) for step in parts] == plain


def test_each_seed_is_sent_and_gives_its_own_tokens() -> None:
    first, _ = generated(replaying("seed"))
    sixth = msgspec.structs.replace(PROMPT, sampling=msgspec.structs.replace(SAMPLING, seed=6))
    other, _ = generated(replaying("seed"), sixth)
    assert [step.token_id for step in first] == [11, 12, 13, 14]
    assert [step.token_id for step in other] == [31, 32, 33, 34]


def test_the_lowest_priority_is_the_smallest_number_here() -> None:
    generated(replaying("priority"), msgspec.structs.replace(PROMPT, priority=7))


def test_a_stop_tells_what_matched() -> None:
    steps, finish = generated(replaying("stop"))
    assert (len(steps), finish.finish_reason, finish.stop_reason) == (2, "stop", "12")


@pytest.mark.parametrize(
    ("feature", "error", "words"),
    [
        ("stream_error", EngineRefused, "longer than the model's context length"),
        ("abort", EngineUnavailable, "the engine aborted the request: Aborted"),
    ],
)
def test_an_error_inside_a_good_answer_is_blamed_by_its_code(
    feature: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        generated(replaying(feature))


def test_a_request_that_breaks_the_contract_is_refused_in_its_words() -> None:
    extra = msgspec.structs.replace(SAMPLING, extra={"watering": 1})
    with pytest.raises(EngineRefused, match="HTTP 400: unknown field `watering`"):
        generated(replaying("refused"), msgspec.structs.replace(PROMPT, sampling=extra))


def test_a_call_cannot_go_as_itself() -> None:
    with pytest.raises(CannotEncode, match="only /generate"):
        generated(replaying(), msgspec.structs.replace(PROMPT, call=chat()))


@pytest.mark.parametrize("drip_bytes", [1, 7])
def test_a_stream_that_drips_reads_the_same(drip_bytes: int) -> None:
    steps, _ = generated(replaying("logprobs", drip_bytes=drip_bytes), DEEP)
    assert [step.token_id for step in steps] == [11, 12, 13, 14]


@pytest.mark.parametrize(("feature", "incremental"), [("logprobs", False), ("generate_incremental", True)])
def test_a_stream_cut_at_any_byte_reads_the_same(feature: str, incremental: bool) -> None:
    written = stream_bytes(exchanges("sglang", feature)[0]["response"]["events"])

    def read(*pieces: bytes) -> list[Step]:
        parser = EventParser()
        decoder = SglangDecoder("http://e", depth=2, prompt=(4, 5, 6), incremental=incremental)
        steps = [step for piece in pieces for step in decoder.feed(parser.feed(piece), 0.0)]
        decoder.finish()
        return steps

    check_every_cut(written, read, [11, 12, 13, 14])


def test_closing_the_generator_closes_the_connection_which_aborts() -> None:
    ADAPTER.leave_after_a_token(replaying("generate_stream", pause_s=LIMIT_S))


def test_load_is_what_the_server_counts() -> None:
    load = with_server(replaying("metrics"), lambda engine: engine.load())
    assert (load.running, load.waiting, load.kv_cache_usage.value) == (3, 1, 0.25)
    assert load.generated_tokens.value == 640
    assert "no bytes of memory" in load.memory_bytes.unknown
    with pytest.raises(EngineInvalid, match="start the server with --enable-metrics"):
        with_server(replaying("metrics_off"), lambda engine: engine.load())


# -- the probe ---------------------------------------------------------------------------------------


def probed(*lies: str) -> Any:
    return with_server(FakeSglang(*lies, pause_s=0.001), lambda engine: engine.probe())


def test_an_honest_server_has_every_capability() -> None:
    probe = probed()
    assert probe.has == ALL, probe.missing
    assert (probe.max_logprobs, probe.version, probe.model, probe.engine) == (20, "0.5.23", "m", "sglang")
    assert probe.facts["server.dtype"] == Fact(value="bfloat16")
    assert probe.facts["model_path"] == Fact(value="m")
    assert probe.facts["server.quantization"].unknown is not None


def test_what_the_flags_leave_off_is_said_with_the_flag() -> None:
    probe = probed("incremental", "ignores seed")
    assert "--sampling-defaults openai" in probe.missing[Capability.DEFAULTS]
    assert "--enable-priority-scheduling" in probe.missing[Capability.PRIORITY]
    assert "--enable-deterministic-inference" in probe.missing[Capability.SEED]
    assert {Capability.LOGPROBS, Capability.TOKEN_IN, Capability.TOKEN_OUT} <= probe.has


@pytest.mark.parametrize(
    ("lie", "lacks", "words"),
    [
        ("ignores seed", Capability.SEED, "one seed drew different tokens"),
        ("fixed seed", Capability.SEED, "three different seeds drew the same"),
        ("drops logprobs", Capability.LOGPROBS, "output_top_logprobs is missing"),
        ("shallow", Capability.LOGPROBS, "20 top logprobs were asked for and 1 came"),
        ("unsorted", Capability.LOGPROBS, "top logprobs are not in rank order"),
        ("twice", Capability.LOGPROBS, "a token ID stands twice"),
        ("nan", Capability.LOGPROBS, "the drawn token has no logprob"),
        ("literal nan", Capability.LOGPROBS, "not what was asked for"),
        ("null entry", Capability.LOGPROBS, "is null: the engine computed NaN"),
        ("above zero", Capability.LOGPROBS, "a logprob of 0.5 is above 0"),
        ("another model", Capability.LOGPROBS, "its output_token_logprobs are of"),
        ("renames ids", Capability.TOKEN_OUT, "an event holds no output_ids"),
        ("sends deltas", Capability.TOKEN_OUT, "incremental_streaming_output"),
        ("miscounts", Capability.TOKEN_OUT, "the engine counted 5 tokens and gave IDs for 4"),
        ("no echo", Capability.TOKEN_IN, "nothing proves which prompt ran"),
        ("another prompt", Capability.TOKEN_IN, "it ran another prompt"),
        ("another length", Capability.TOKEN_IN, "it ran another prompt: it counts"),
        ("ignores salt", Capability.CACHE_SALT, "turn prefix caching off"),
        ("ignores priority", Capability.PRIORITY, "so it is not read"),
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
            await collected(engine, DEEP)

    with_server(FakeSglang("breaks off"), use)
