"""Client requests, decoded and validated once: what is not honoured here is refused, never ignored.

Every field of the OpenAI completions and chat APIs (and of vLLM's extensions to them) that this engine
gives effect to is a field of a struct below; any other is refused with its name. A few fields are known only
in their neutral value (``n: 1``, ``echo: false``), which clients send by habit.
"""

from __future__ import annotations

import re
import secrets
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from comparator.records import Sampling
from engines.reference.model import LoadedModel

NonNegative = Annotated[int, Meta(ge=0)]
Probability = Annotated[float, Meta(gt=0, le=1)]
_GREATEST_SEED = 2**63 - 1


class BadRequest(ValueError):  # noqa: N818
    """HTTP 400 in the OpenAI error shape. ``param`` is the field to blame."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class StreamOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False


class ResponseFormat(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]


class _Request(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Fields that completions and chat share."""

    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    min_tokens: NonNegative = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[NonNegative] | None = None
    ignore_eos: bool = False
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=0, le=_GREATEST_SEED)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    cache_salt: Annotated[str, Meta(min_length=1, max_length=1024)] | None = None
    """Honoured as it stands: no request reads what another left in memory."""
    priority: int = 0
    n: Literal[1] | None = None
    user: str | None = None
    """No effect on an answer anywhere; OpenAI's own clients send it."""
    response_format: ResponseFormat | None = None
    forkgate_facts: bool = False


class CompletionRequest(_Request, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/completions``. ``prompt``: one text or one list of token IDs."""

    prompt: str | list[NonNegative]
    logprobs: NonNegative | None = None
    add_special_tokens: bool = True
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: None = None


class ChatRequest(_Request, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: NonNegative | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Any], Meta(max_length=0)] | None = None
    tool_choice: Literal["none"] | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """``POST /tokenize``: a ``prompt``, or ``messages`` through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = None


def decode(body: bytes, kind: type[Any]) -> Any:
    """Raises :class:`BadRequest` that names the field and what to do."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _readable(str(error)) from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error


def _readable(message: str) -> BadRequest:
    unknown = re.search(r"unknown field `([^`]*)`", message)
    if unknown:
        name = unknown.group(1)
        return BadRequest(f"{name}: the reference engine does not honour this field; leave it out", name)
    words, _, place = message.partition(" - at `$")
    param = place.rstrip("`").removeprefix(".")
    return BadRequest(f"{param or 'the body'}: {words}", param.partition("[")[0] or None)


def prompt_ids(request: CompletionRequest | ChatRequest | TokenizeRequest, model: LoadedModel) -> list[int]:
    """Token IDs of what the client sent, by the model's own tokenizer and template."""
    if isinstance(request, ChatRequest):
        return _chat_ids(request, model)
    if isinstance(request, TokenizeRequest):
        if (request.prompt is None) == (request.messages is None):
            raise BadRequest("send either prompt or messages", "prompt")
        if request.messages is not None:
            return _chat_ids(request, model)
    if isinstance(request.prompt, list):
        beyond = [one for one in request.prompt if one >= model.vocab_size]
        if beyond:
            raise BadRequest(f"prompt: token ID {beyond[0]} is not below {model.vocab_size}", "prompt")
        if not request.prompt:
            raise BadRequest("prompt: no token ID in it", "prompt")
        return request.prompt
    ids: list[int] = model.tokenizer.encode(
        request.prompt, add_special_tokens=request.add_special_tokens is not False
    )
    if not ids:
        raise BadRequest("prompt: it encodes to no token", "prompt")
    return ids


def _chat_ids(request: ChatRequest | TokenizeRequest, model: LoadedModel) -> list[int]:
    if model.chat_template is None:
        raise BadRequest("this model has no chat template; use /v1/completions", "messages")
    messages = [_message(place, one) for place, one in enumerate(request.messages or [])]
    try:
        text = model.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=request.add_generation_prompt,
            **(request.chat_template_kwargs or {}),
        )
    except Exception as error:  # a template is a program of the model's; whatever it raises is its own words
        raise BadRequest(f"messages: the chat template refuses them: {error}", "messages") from error
    ids: list[int] = model.tokenizer.encode(text, add_special_tokens=bool(_special(request)))
    return ids


def _special(request: ChatRequest | TokenizeRequest) -> bool:
    # A template writes its own special tokens; only an explicit wish adds more.
    return bool(request.add_special_tokens) if isinstance(request, TokenizeRequest) else False


def _message(place: int, message: dict[str, Any]) -> dict[str, str]:
    where = f"messages[{place}]"
    unknown = sorted(message.keys() - {"role", "content", "name"})
    if unknown:
        raise BadRequest(f"{where}.{unknown[0]}: the reference engine serves plain text messages only", where)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise BadRequest(f"{where}.role: a text is needed", where)
    if isinstance(content, list):
        content = "\n".join(_part(where, part) for part in content)
    if not isinstance(content, str):
        raise BadRequest(f"{where}.content: a text is needed", where)
    return {"role": role, "content": content}


def _part(where: str, part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise BadRequest(f"{where}.content: only parts of type text are served", where)


def sampling_of(
    request: CompletionRequest | ChatRequest, model: LoadedModel, prompt_tokens: int, max_logprobs: int
) -> Sampling:
    """Every parameter explicit: the client's, else the model's own, else OpenAI's default.

    A seed that the client left out is drawn here, so that it is told and can be replayed.
    """

    def pick(name: str, default: float) -> float:
        sent = getattr(request, name)
        return float(model.sampling_defaults.get(name, default) if sent is None else sent)

    top_k = int(pick("top_k", 0))
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if "" in stop:
        raise BadRequest("stop: an empty text would stop before the first token", "stop")
    max_tokens = _max_tokens(request, model, prompt_tokens)
    if request.min_tokens > max_tokens:
        raise BadRequest(f"min_tokens: {request.min_tokens} is over max_tokens {max_tokens}", "min_tokens")
    for key in request.logit_bias or {}:
        if not key.isdecimal() or int(key) >= model.vocab_size:
            raise BadRequest(f"logit_bias: {key!r} is no token ID below {model.vocab_size}", "logit_bias")
    for token_id in request.stop_token_ids or ():
        if token_id >= model.vocab_size:
            raise BadRequest(f"stop_token_ids: {token_id} is not below {model.vocab_size}", "stop_token_ids")
    return Sampling(
        max_tokens=max_tokens,
        temperature=pick("temperature", 1.0),
        top_p=pick("top_p", 1.0),
        top_k=max(top_k, 0),
        min_p=pick("min_p", 0.0),
        repetition_penalty=pick("repetition_penalty", 1.0),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        min_tokens=request.min_tokens,
        stop=tuple(stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=request.ignore_eos,
        logit_bias=request.logit_bias or {},
        seed=secrets.randbelow(2**31) if request.seed is None else request.seed,
        logprobs=_depth(request, max_logprobs),
    )


def wants_logprobs(request: CompletionRequest | ChatRequest) -> bool:
    """Whether the answer has a ``logprobs`` part, were it with no alternatives."""
    return request.logprobs is not None and request.logprobs is not False


def _max_tokens(request: CompletionRequest | ChatRequest, model: LoadedModel, prompt_tokens: int) -> int:
    room = model.max_model_len - prompt_tokens
    if room < 1:
        raise BadRequest(
            f"the prompt has {prompt_tokens} tokens; with one to generate that is over {model.max_model_len}",
            "prompt",
        )
    sent = request.max_tokens
    if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
        sent = request.max_completion_tokens
    if sent is None:
        return room if isinstance(request, ChatRequest) else min(16, room)
    if sent > room:
        raise BadRequest(
            f"max_tokens: {sent} and a prompt of {prompt_tokens} tokens are over {model.max_model_len}",
            "max_tokens",
        )
    return sent


def _depth(request: CompletionRequest | ChatRequest, max_logprobs: int) -> int:
    if isinstance(request, ChatRequest):
        if request.top_logprobs and not request.logprobs:
            raise BadRequest("top_logprobs: needs logprobs: true", "top_logprobs")
        depth, name = request.top_logprobs or 0, "top_logprobs"
    else:
        depth, name = request.logprobs or 0, "logprobs"
    if depth > max_logprobs:
        raise BadRequest(f"{name}: {depth} is over this server's --max-logprobs {max_logprobs}", name)
    return depth
