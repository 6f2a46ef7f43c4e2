"""Events to steps: every shape, and everything that an engine can get wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from comparator.records import Fact, Step
from engines.base import EngineInvalid, EngineUnavailable
from engines.sse import DONE
from engines.wire import ChatDecoder, CompletionDecoder, GenerateDecoder, StreamDecoder
from tests.support.wire import chat_event, completion_event, generate_event, payload, usage_event

TOP = ((7, -0.5), (3, -1.0))
OUTSIDE = ((9, -4.0), (7, -0.5), (3, -1.0))  # the drawn token first, then the top by rank
PROMPT = (1, 2, 3)


def completions(depth: int = 2) -> CompletionDecoder:
    return CompletionDecoder("http://e", depth=depth, prompt=PROMPT)


def test_a_completion_stream_becomes_steps_and_a_finish() -> None:
    decoder = completions()
    steps = decoder.feed([payload(completion_event([(7, TOP)], text="a", prompt=PROMPT))], 0.25)
    steps += decoder.feed(
        [
            payload(completion_event([(9, OUTSIDE)], text="b", finish="stop", stop_reason=9)),
            payload(usage_event(2)),
            DONE,
        ],
        0.5,
    )
    assert steps == [
        Step(7, -0.5, (7, 3), (-0.5, -1.0), 0.25, "a"),
        Step(9, -4.0, (7, 3, 9), (-0.5, -1.0, -4.0), 0.5, "b"),
    ]
    finish = decoder.finish()
    assert decoder.done
    assert (finish.finish_reason, finish.stop_reason, finish.prompt_token_ids) == ("stop", "9", PROMPT)
    assert finish.facts == {"system_fingerprint": Fact(value="vllm-0.32.0-abc")}


def test_a_chunk_of_several_tokens_is_several_steps() -> None:
    steps = completions().feed([payload(completion_event([(7, TOP), (3, TOP)], text="ab"))], 1.0)
    assert [(step.token_id, step.text) for step in steps] == [(7, None), (3, "ab")]


def test_a_chunk_without_tokens_is_no_step() -> None:
    """A server holds text back for a stop string, and sends it with no new token."""
    assert completions().feed([payload(completion_event([], text="held back"))], 1.0) == []


def test_without_logprobs_a_step_has_its_token_alone() -> None:
    decoder = completions(depth=0)
    assert decoder.feed([payload(completion_event([(7, TOP)], logprobs=False))], 1.0) == [
        Step(7, None, (), (), 1.0, "t")
    ]


def test_a_chat_stream_becomes_steps() -> None:
    decoder = ChatDecoder("http://e", depth=2, prompt=None)
    opening = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None}]}
    assert decoder.feed([payload(opening | {"prompt_token_ids": [5, 6]})], 0.1) == []
    steps = decoder.feed([payload(chat_event([(9, OUTSIDE)], text="x", finish="length"))], 0.2)
    assert steps == [Step(9, -4.0, (7, 3, 9), (-0.5, -1.0, -4.0), 0.2, "x")]
    assert decoder.finish().prompt_token_ids == (5, 6)


def test_a_generate_stream_becomes_steps() -> None:
    decoder = GenerateDecoder("http://e", depth=2, prompt=PROMPT)
    steps = decoder.feed([payload(generate_event([(7, TOP)], prompt=PROMPT, finish="length"))], 0.2)
    assert steps == [Step(7, -0.5, (7, 3), (-0.5, -1.0), 0.2, None)]
    assert decoder.finish().finish_reason == "length"


def test_facts_that_the_reference_engine_tells_are_kept() -> None:
    decoder = completions()
    event = completion_event([(7, TOP)], finish="stop")
    decoder.feed([payload(event | {"forkgate_facts": {"batch_size": [1, 2], "padding": "none"}})], 0.1)
    assert decoder.finish().facts == {"batch_size": Fact(value=[1, 2]), "padding": Fact(value="none")}


@pytest.mark.parametrize("text", ['"token_id:5":1', "token_id:5", 'a\\"token_id:7"'])
def test_text_that_looks_like_a_token_name_is_left_alone(text: str) -> None:
    event = completion_event([(7, TOP)], text=text)
    assert completions().feed([payload(event)], 0.1) == [Step(7, -0.5, (7, 3), (-0.5, -1.0), 0.1, text)]


def test_the_flat_road_and_the_general_one_give_the_same_steps() -> None:
    """Each event alone, which may take the flat road, against all in one chunk, which never does."""
    tops = [TOP, OUTSIDE, ((3, -1.0), (7, -1.0)), ((5, -0.0), (6, -30.0))]
    drawn = [(top[0][0], top) for top in tops]
    flat = completions().feed([payload(completion_event([one])) for one in drawn], 0.1)
    general = completions().feed([payload(completion_event(drawn))], 0.1)
    assert [(s.token_id, s.logprob, s.top_ids, s.top_logprobs) for s in flat] == [
        (s.token_id, s.logprob, s.top_ids, s.top_logprobs) for s in general
    ]
    assert flat[2].top_ids == (3, 7)


def _with(change: dict[str, Any], where: str = "logprobs") -> bytes:
    event = completion_event([(7, TOP)])
    choice = event["choices"][0]
    if where == "logprobs":
        choice["logprobs"] |= change
    elif where == "choice":
        choice |= change
    else:
        event |= change
    return payload(event)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        pytest.param(_with({"logprobs": None}, "choice"), "logprobs are missing", id="dropped logprobs"),
        pytest.param(_with({"top_logprobs": None}), "7|tokens came with logprobs", id="dropped top-k"),
        pytest.param(
            _with({"top_logprobs": [{"token_id:7": -0.5}]}), "2 top logprobs were asked", id="shallow"
        ),
        pytest.param(_with({"top_logprobs": [{" a": -0.5, " b": -1}]}), "logprobs near", id="names by text"),
        pytest.param(_with({"top_logprobs": [{"7": -0.5, "3": -1}]}), "named by text", id="digits as text"),
        pytest.param(_with({"tokens": [" a"]}), "named by text", id="drawn token by text"),
        pytest.param(_with({"token_logprobs": [None]}), "no logprob", id="null logprob"),
        pytest.param(_with({"token_logprobs": [-9999.0]}), "NaN or -inf", id="clamped NaN"),
        pytest.param(
            _with({"top_logprobs": [{"token_id:7": None, "token_id:3": -1}]}), "near", id="null entry"
        ),
        pytest.param(
            _with({"top_logprobs": [{"token_id:7": -1, "token_id:3": -3, "token_id:4": -2}]}),
            "rank order",
            id="out of order",
        ),
        pytest.param(
            _with({"top_logprobs": [{"token_id:7": 2.0, "token_id:3": -1}]}), "above 0", id="above 0"
        ),
        pytest.param(
            _with({"token_logprobs": [-0.5, -0.5]}), "1 tokens came with logprobs for 2", id="count"
        ),
        pytest.param(_with({"token_ids": None}, "choice"), "text came without token_ids", id="no IDs"),
        pytest.param(_with({"token_ids": ["a"]}, "choice"), "not what was asked for", id="IDs of text"),
        pytest.param(_with({"prompt_token_ids": [1, 2, 4]}, "choice"), "another prompt", id="other prompt"),
        pytest.param(_with({"prompt_token_ids": [1, 2]}, "event"), "another prompt", id="cut prompt"),
        pytest.param(_with({"index": 1}, "choice"), "choice 1", id="second choice"),
        pytest.param(payload(completion_event([(7, TOP)])).replace(b"-0.5", b"NaN"), "not|near", id="NaN"),
        pytest.param(b'{"choices": [', "not what was asked for", id="cut JSON"),
        pytest.param(b"\xff\xfe", "not what was asked for", id="not UTF-8"),
    ],
)
def test_an_unsound_event_is_refused_with_the_reason(event: bytes, words: str) -> None:
    with pytest.raises(EngineInvalid, match=words) as caught:
        completions().feed([event], 0.1)
    assert str(caught.value).startswith("http://e: ")


def test_logprobs_of_other_tokens_than_the_ids_are_refused() -> None:
    event = chat_event([(7, TOP)])
    event["choices"][0]["token_ids"] = [3]
    with pytest.raises(EngineInvalid, match="other tokens"):
        ChatDecoder("http://e", depth=2, prompt=None).feed([payload(event)], 0.1)
    event = generate_event([(7, TOP)])
    event["choices"][0]["token_ids"] = [3]
    with pytest.raises(EngineInvalid, match="other tokens"):
        GenerateDecoder("http://e", depth=2, prompt=PROMPT).feed([payload(event)], 0.1)


def test_tokens_after_the_finish_are_refused() -> None:
    decoder = completions()
    decoder.feed([payload(completion_event([(7, TOP)], finish="stop"))], 0.1)
    with pytest.raises(EngineInvalid, match="after the finish"):
        decoder.feed([payload(completion_event([(7, TOP)]))], 0.2)


def test_tokens_that_the_engine_counted_but_gave_no_ids_for_are_noticed() -> None:
    decoder = completions()
    decoder.feed([payload(completion_event([(7, TOP)], finish="stop")), payload(usage_event(3)), DONE], 0.1)
    with pytest.raises(EngineInvalid, match="counted 3 tokens and gave IDs for 1"):
        decoder.finish()


def test_an_error_inside_the_stream_is_the_engines_failure() -> None:
    error = json.dumps({"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}})
    with pytest.raises(EngineUnavailable, match="out of memory"):
        completions().feed([error.encode()], 0.1)


@pytest.mark.parametrize("done", [True, False])
def test_a_stream_that_ends_without_a_finish_reason_broke_off(done: bool) -> None:
    decoder: StreamDecoder = completions()
    decoder.feed([payload(completion_event([(7, TOP)]))] + [DONE] * done, 0.1)
    with pytest.raises(EngineUnavailable, match="after 1 tokens, unfinished"):
        decoder.finish()


@pytest.mark.parametrize("kind", [CompletionDecoder, ChatDecoder, GenerateDecoder])
def test_an_event_that_is_nested_without_end_is_refused(kind: type[StreamDecoder]) -> None:
    """A parser that gives up on depth is the engine's fault, and no bug of ours."""
    deep = b'{"choices": [], "x": ' + b"[" * 100_000
    with pytest.raises(EngineInvalid, match="recursion"):
        kind("http://e", depth=2, prompt=PROMPT).feed([deep], 0.1)
