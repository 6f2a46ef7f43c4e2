"""Which calls have a token form, and what the others are told."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from comparator.records import Sampling
from engines import calls
from engines.base import Call, CallKind, CannotEncode, Prompt

IMAGE = {"messages": [{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url"}]}]}
HELLO = {"messages": [{"role": "user", "content": "hello"}]}


def call_of(kind: CallKind, body: dict[str, Any]) -> Call:
    return Call(kind=kind, body=body, model="m")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CallKind.CHAT, HELLO),
        (
            CallKind.CHAT,
            {**HELLO, "tools": [], "tool_choice": "auto", "n": 1, "response_format": {"type": "text"}},
        ),
        (CallKind.CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
        (CallKind.COMPLETION, {"prompt": "hello", "best_of": 1, "echo": False, "suffix": None}),
        (CallKind.COMPLETION, {"prompt": [1, 2, 3]}),
        (CallKind.RESPONSE, {"input": "hello", "text": {"format": {"type": "text"}}}),
        (CallKind.MESSAGE, {**HELLO, "max_tokens": 4, "thinking": {"type": "disabled"}}),
    ],
)
def test_plain_text_has_a_token_form(kind: CallKind, body: dict[str, Any]) -> None:
    calls.check_token_form("http://e", call_of(kind, body))


@pytest.mark.parametrize(
    ("kind", "body", "words", "as_itself"),
    [
        (CallKind.CHAT, {**HELLO, "tools": [{}]}, "tools: ", True),
        (CallKind.CHAT, {**HELLO, "functions": [{}]}, "functions: ", True),
        (CallKind.CHAT, {**HELLO, "tool_choice": "required"}, "tool_choice: ", True),
        (
            CallKind.CHAT,
            {**HELLO, "response_format": {"type": "json_object"}},
            "response_format: a grammar",
            True,
        ),
        (CallKind.CHAT, {**HELLO, "structured_outputs": {"json": "{}"}}, "structured_outputs: ", True),
        (CallKind.CHAT, {**HELLO, "guided_regex": "a+"}, "guided_regex: ", True),
        (CallKind.COMPLETION, {"prompt": "a", "logits_processors": ["x"]}, "logits_processors: ", True),
        (CallKind.CHAT, IMAGE, "'image_url' is not text", True),
        (CallKind.CHAT, {**HELLO, "n": 2}, "n: more than one choice", False),
        (CallKind.COMPLETION, {"prompt": "a", "best_of": 3}, "best_of: ", False),
        (CallKind.COMPLETION, {"prompt": "a", "echo": True}, "echo: ", False),
        (CallKind.COMPLETION, {"prompt": "a", "suffix": "b"}, "suffix: ", False),
        (CallKind.COMPLETION, {"prompt": ["a", "b"]}, "several prompts", False),
        (CallKind.COMPLETION, {"prompt": [[1], [2]]}, "several prompts", False),
        (CallKind.COMPLETION, {"prompt_embeds": "xx"}, "prompt_embeds: ", False),
        (CallKind.CHAT, {**HELLO, "use_beam_search": True, "tools": [{}]}, "use_beam_search: ", False),
        (CallKind.RESPONSE, {"input": "a", "previous_response_id": "r"}, "previous_response_id: ", False),
        (CallKind.RESPONSE, {"input": "a", "tools": [{}]}, "tools: ", False),
        (
            CallKind.RESPONSE,
            {"input": "a", "text": {"format": {"type": "json_schema"}}},
            r"text\.format",
            False,
        ),
        (CallKind.MESSAGE, {**HELLO, "thinking": {"type": "enabled"}}, "thinking: ", False),
        (
            CallKind.MESSAGE,
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "'image'",
            False,
        ),
    ],
)
def test_what_has_none_says_why_and_whether_it_goes_as_itself(
    kind: CallKind, body: dict[str, Any], words: str, as_itself: bool
) -> None:
    with pytest.raises(CannotEncode, match=words) as caught:
        calls.check_token_form("http://e", call_of(kind, body))
    assert caught.value.goes_as_itself is as_itself


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (
            CallKind.RESPONSE,
            {"input": "a", "reasoning": {"effort": "high"}},
            "reasoning: the Responses API has it",
        ),
        (CallKind.RESPONSE, {"input": [{"type": "function_call_output"}]}, "an item that is no message"),
        (CallKind.MESSAGE, {**HELLO, "container": "c"}, "container: the Messages API has it"),
    ],
)
def test_what_chat_has_no_words_for_is_not_put_in_them(
    kind: CallKind, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(CannotEncode, match=words):
        calls.chat_of("http://e", call_of(kind, body))


def test_a_messages_call_in_the_words_of_chat() -> None:
    body = {
        "system": [{"type": "text", "text": "be brief"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
        ],
        "max_tokens": 7,
        "stop_sequences": ["x"],
        "top_k": 3,
        "metadata": {"user_id": "u"},
    }
    assert calls.chat_of("http://e", call_of(CallKind.MESSAGE, body)).body == {
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\nb"}],
        "max_completion_tokens": 7,
        "stop": ["x"],
        "top_k": 3,
    }


def test_a_completion_that_goes_as_itself_is_the_clients_with_ids_asked_back() -> None:
    call = call_of(
        CallKind.COMPLETION, {"prompt": "a", "logits_processors": ["x"], "temperature": 0.3, "stream": False}
    )
    prompt = Prompt(
        exchange_id="x",
        model="m",
        token_ids=(),
        sampling=Sampling(max_tokens=5, seed=9, logprobs=4),
        cache_salt="s",
        priority=3,
        call=call,
    )
    path, body = calls.as_itself(prompt, "served")
    assert path == "/v1/completions"
    assert body == {
        "prompt": "a",
        "logits_processors": ["x"],
        "temperature": 0.3,
        "model": "served",
        "seed": 9,
        "max_tokens": 5,
        "logprobs": 4,
        "priority": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": "s",
    }


def test_a_clients_words_stand_over_defaults() -> None:
    body = {
        "prompt": "a",
        "temperature": 0.0,
        "stop": "x",
        "top_k": -1,
        "logit_bias": {"5": 1},
        "top_p": None,
    }
    said = calls.sampling_said(
        call_of(CallKind.COMPLETION, body), room_tokens=100, defaults={"temperature": 0.6, "top_p": 0.9}
    )
    assert said == Sampling(max_tokens=16, temperature=0.0, top_p=0.9, stop=("x",), logit_bias={"5": 1.0})
    with pytest.raises(msgspec.ValidationError, match="temperature"):
        calls.sampling_said(call_of(CallKind.COMPLETION, {"temperature": "hot"}), room_tokens=100)
