"""Client calls: which have a faithful token form, which go as themselves, and what they say in numbers.

A *token form* is a prompt of token IDs plus sampling parameters. What an engine does around the tokens
(grammars, tool parsers, image encoders, several choices) has none: such a call goes as the client sent it,
with token IDs asked back, where the answer can still be one token stream; else it is skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from comparator.records import Sampling
from engines.base import Call, CallKind, CannotEncode, Prompt

PATHS = {
    CallKind.CHAT: "/v1/chat/completions",
    CallKind.COMPLETION: "/v1/completions",
    CallKind.RESPONSE: "/v1/responses",
    CallKind.MESSAGE: "/v1/messages",
}

# Field → why it has no token form. Neutral values (None, empty, and those named below) do not count.
_AROUND_TOKENS = {
    "tools": "tools: the answer goes through a tool parser",
    "functions": "functions: the answer goes through a tool parser",
    "tool_choice": "tool_choice: the answer goes through a tool parser",
    "response_format": "response_format: a grammar constrains the tokens",
    "structured_outputs": "structured_outputs: a grammar constrains the tokens",
    "guided_json": "guided_json: a grammar constrains the tokens",
    "guided_regex": "guided_regex: a grammar constrains the tokens",
    "guided_choice": "guided_choice: a grammar constrains the tokens",
    "guided_grammar": "guided_grammar: a grammar constrains the tokens",
    "logits_processors": "logits_processors: the server's own code changes the logits",
    "prediction": "prediction: speculated text takes part",
}
_NOT_ONE_STREAM = {
    "n": "n: more than one choice is more than one token stream",
    "best_of": "best_of: the answer is picked among several token streams",
    "use_beam_search": "use_beam_search: the answer is picked among several token streams",
    "echo": "echo: the prompt's tokens come back as output",
    "suffix": "suffix: the prompt is built around a gap by the server",
    "prompt_embeds": "prompt_embeds: the prompt is not made of tokens",
    "audio": "audio: the answer is not made of text tokens",
    "previous_response_id": "previous_response_id: the prompt lies in the server's own store",
    "conversation": "conversation: the prompt lies in the server's own store",
    "background": "background: the answer is not on this connection",
    "thinking": "thinking: the answer goes through a reasoning parser",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("none", "auto"),  # auto without tools does nothing
    "n": (1,),
    "best_of": (1,),
    "thinking": ({"type": "disabled"},),
}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


def check_token_form(where: str, call: Call, *, no_ids_back: str | None = None) -> None:
    """Raises :class:`CannotEncode` for a call without a faithful token form, saying why.

    ``no_ids_back``: why this engine's answers to a client's own request carry no token IDs, where they carry
    none; nothing goes as itself then.
    """
    body = call.body
    for field, reason in _NOT_ONE_STREAM.items():
        if _is_set(body, field):
            raise CannotEncode(where, reason, goes_as_itself=False)
    if call.kind is CallKind.COMPLETION and _is_batch(body.get("prompt")):
        raise CannotEncode(where, "prompt: several prompts are several token streams", goes_as_itself=False)
    # The Responses and Messages APIs give no token IDs back, so nothing of theirs can go as itself.
    as_itself = no_ids_back is None and call.kind in (CallKind.CHAT, CallKind.COMPLETION)
    also = "" if no_ids_back is None else f"; {no_ids_back}"
    for field, reason in _AROUND_TOKENS.items():
        if field == "response_format" and _is_plain_text(body.get(field)):
            continue
        if _is_set(body, field):
            raise CannotEncode(where, reason + also, goes_as_itself=as_itself)
    if call.kind is CallKind.RESPONSE and not _is_plain_text((body.get("text") or {}).get("format")):
        raise CannotEncode(where, "text.format: a grammar constrains the tokens", goes_as_itself=False)
    for message in _messages(body):
        kind = _odd_part(message.get("content"))
        if kind is not None:
            raise CannotEncode(
                where, f"messages: a part of type {kind!r} is not text{also}", goes_as_itself=as_itself
            )


def chat_of(where: str, call: Call) -> Call:
    """A Responses or Messages call in the words of chat completions; chat and completion calls as they are.

    Raises:
        CannotEncode: it holds something that these words do not have.
    """
    if call.kind is CallKind.RESPONSE:
        body = _chat_of_response(where, call.body)
    elif call.kind is CallKind.MESSAGE:
        body = _chat_of_message(where, call.body)
    else:
        return call
    return Call(kind=CallKind.CHAT, body=body, model=call.model)


def as_itself(prompt: Prompt, model: str) -> tuple[str, dict[str, Any]]:
    """Path and body of a call that goes as the client sent it, with one seed and token IDs asked back."""
    assert prompt.call is not None
    call, sampling = prompt.call, prompt.sampling
    body = {
        **call.body,
        "model": model,
        "seed": sampling.seed,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "cache_salt": prompt.cache_salt,
    }
    if call.kind is CallKind.CHAT:
        body.pop("max_tokens", None)
        body["max_completion_tokens"] = sampling.max_tokens
        body["logprobs"] = sampling.logprobs > 0
        body["top_logprobs"] = sampling.logprobs
    else:
        body["max_tokens"] = sampling.max_tokens
        body["logprobs"] = sampling.logprobs or None
    if prompt.priority is not None:
        body["priority"] = prompt.priority
    return PATHS[call.kind], body


def sampling_said(call: Call, *, room_tokens: int, defaults: Mapping[str, float] | None = None) -> Sampling:
    """Sampling parameters of a chat or completion call: the client's words over ``defaults`` over OpenAI's.

    ``room_tokens`` is what the model has left after the prompt: a chat call's output limit when it says none.

    Raises:
        msgspec.ValidationError: a value of the wrong type, which an engine would refuse as well.
    """
    body = call.body
    known = defaults or {}
    chat = call.kind is CallKind.CHAT
    told: dict[str, Any] = {"max_tokens": min(room_tokens, 16) if not chat else room_tokens, **known}
    for field in _SAMPLING_FIELDS:
        if body.get(field) is not None:
            told[field] = body[field]
    if chat and body.get("max_completion_tokens") is not None:
        told["max_tokens"] = body["max_completion_tokens"]
    if isinstance(told.get("stop"), str):
        told["stop"] = (told["stop"],)
    told["top_k"] = max(int(told.get("top_k", 0)), 0)  # -1 and 0 both mean no limit
    return msgspec.convert(told, Sampling)


_SAMPLING_FIELDS = (
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "logit_bias",
)


def _is_set(body: Mapping[str, Any], field: str) -> bool:
    value = body.get(field)
    return bool(value) and value not in _NEUTRAL.get(field, ())


def _is_plain_text(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and value.get("type", "text") == "text")


def _is_batch(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = body.get("messages", body.get("input"))
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _odd_part(content: Any) -> str | None:
    """Type of the first part that is not text."""
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind not in _TEXT_PARTS:
            return str(kind)
    return None


def _text_of(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content)
    return str(content)


_RESPONSE_KNOWN = frozenset(
    [
        "model",
        "input",
        "instructions",
        "max_output_tokens",
        "temperature",
        "top_p",
        "stream",
        "store",
        "metadata",
        "user",
        "tool_choice",
        "tools",
        "text",
        "truncation",
        "seed",
    ]
)
_MESSAGE_KNOWN = frozenset(
    [
        "model",
        "messages",
        "system",
        "max_tokens",
        "stop_sequences",
        "temperature",
        "top_p",
        "top_k",
        "stream",
        "metadata",
        "tools",
        "tool_choice",
        "thinking",
    ]
)


def _chat_of_response(where: str, body: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unknown(where, body, _RESPONSE_KNOWN, "the Responses API")
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    given = body.get("input")
    if isinstance(given, str):
        messages.append({"role": "user", "content": given})
    else:
        for item in given or ():
            if not isinstance(item, dict) or item.get("type", "message") != "message":
                raise CannotEncode(where, "input: an item that is no message", goes_as_itself=False)
            messages.append({"role": item.get("role"), "content": _text_of(item.get("content"))})
    renamed = {"max_output_tokens": "max_completion_tokens", "temperature": "temperature", "top_p": "top_p"}
    return {"messages": messages, **_renamed(body, renamed)}


def _chat_of_message(where: str, body: Mapping[str, Any]) -> dict[str, Any]:
    _refuse_unknown(where, body, _MESSAGE_KNOWN, "the Messages API")
    messages: list[dict[str, Any]] = []
    if body.get("system"):
        messages.append({"role": "system", "content": _text_of(body["system"])})
    for one in _messages(body):
        messages.append({"role": one.get("role"), "content": _text_of(one.get("content"))})
    renamed = {
        "max_tokens": "max_completion_tokens",
        "stop_sequences": "stop",
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
    }
    return {"messages": messages, **_renamed(body, renamed)}


def _refuse_unknown(where: str, body: Mapping[str, Any], known: frozenset[str], api: str) -> None:
    unknown = sorted(field for field in body.keys() - known if body[field])
    if unknown:
        raise CannotEncode(
            where, f"{unknown[0]}: {api} has it, chat completions do not", goes_as_itself=False
        )


def _renamed(body: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {new: body[old] for old, new in names.items() if body.get(old) is not None}
