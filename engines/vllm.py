"""Adapter for vLLM over HTTP. Field names checked against vLLM 0.32 (``vllm/entrypoints``).

Encode: with ``--enable-scale-out`` vLLM renders any call itself (``/v1/.../render``) and tells token IDs and
the effective parameters. Without it ``/tokenize`` gives the IDs, and OpenAI's defaults stand in for
``generation_config.json``, which the server does not tell: the probe then misses ``DEFAULTS``, and says so.

Generate: ``/v1/completions`` with token IDs. It gives the drawn token *and* the whole top-k (k + 1 entries
where the drawn one stands outside), text, and the system fingerprint; ``/inference/v1/generate`` squeezes the
drawn token into the k-th place and tells neither text nor fingerprint, so it serves only where the first is
missing (``--tokens-only``).

With our plugin in the server (docs/engine-plugin.md) the probe finds ``/forkgate/identity``; each request
then carries a mark, and its steps are asked for at its end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

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
    Load,
    Probe,
    Prompt,
)
from engines.identity import Identity, UnknownField
from engines.identity.collect_http import metrics_fields
from engines.openai import OpenAIEngine, explicit, record_facts
from engines.probe import Prober
from engines.vllm_plugin.marks import MARK
from engines.wire import Decoder, GenerateDecoder

_NO_RENDER = (
    "the server resolves no defaults over HTTP without --enable-scale-out; OpenAI's stand in for the model's "
    "generation_config.json (the same on all arms)"
)
_NO_MEMORY = Fact(
    unknown="vLLM's /metrics tells no memory: process_resident_memory_bytes there is its HTTP front's alone"
)
_NEEDS_PLUGIN = "vLLM tells this only to a plugin inside the engine"
_OF_RECORD = {
    "dtype": "precision.dtype",
    "processor_order": "sampler.order",
    "logprobs_mode": "sampler.logprobs_mode",
    "artifact_digest": "artifact.digest",
}
"""Facts of an exchange that the plugin's record tells, by its field."""
# Parameters of vLLM's SamplingParams that a completions request takes under the same name.
_SAME_NAME = frozenset(
    [
        "allowed_token_ids",
        "bad_words",
        "include_stop_str_in_output",
        "repetition_detection",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "thinking_token_budget",
        "watermarking",
    ]
)
# Those that say how the answer is delivered, not which tokens it has.
_DELIVERY = frozenset(
    [
        "detokenize",
        "flat_logprobs",
        "logprobs",
        "output_kind",
        "output_text_buffer_length",
        "prompt_logprobs",
        "seed",
        "skip_clone",
        "skip_reading_prefix_cache",
        "stream_interval",
    ]
)


_LATER_RENDERED = frozenset({CallKind.RESPONSE, CallKind.MESSAGE})


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    sampling_params: dict[str, Any]


class _Tokenized(msgspec.Struct):
    tokens: list[int]
    max_model_len: int


class _TokenizerInfo(msgspec.Struct):
    chat_template: str | None = None


class _Version(msgspec.Struct):
    version: str


class VllmEngine(OpenAIEngine):
    """One vLLM server."""

    name: str = "vllm"
    known_facts: ClassVar[dict[str, Fact]] = {
        "environment_digest": Fact(unknown=_NEEDS_PLUGIN),
        "artifact_digest": Fact(unknown=_NEEDS_PLUGIN),
        "dtype": Fact(unknown=_NEEDS_PLUGIN),
        "attention_mask": Fact(value="causal"),
        "padding": Fact(value="none"),  # requests are packed, not padded
        "adapter": Fact(unknown="vLLM names an adapter only by the model asked for"),
        "processor_order": Fact(unknown=_NEEDS_PLUGIN),
        "batch_size": Fact(unknown=_NEEDS_PLUGIN),
        "batch_place": Fact(unknown=_NEEDS_PLUGIN),
        "logprobs_mode": Fact(
            unknown="the server's --logprobs-mode is not told over HTTP; its default is raw_logprobs"
        ),
    }
    _renders: bool | None = None
    _tokens_only = False
    _template: Fact | None = None

    def forget(self) -> None:
        """See :class:`engines.base.Observable`."""
        super().forget()
        self._renders = self._template = None

    @property
    def renders(self) -> bool:
        """Whether the server resolves defaults itself, as far as it was asked yet."""
        return bool(self._renders)

    async def probe(self) -> Probe:
        """See :meth:`engines.base.Engine.probe`. About 80 tokens of generation."""
        card = await self.card()
        record = await self.own_record()
        recorded = {} if record is None else _recorded(record)
        # What the record tells stands in the probe's facts alone: they fall with the digest that they are of.
        # The digest itself is each answer's to tell.
        self._standing = {
            name: fact
            for name, fact in self.known_facts.items()
            if name not in recorded or name == "environment_digest"
        }
        self._tells_steps = record is not None
        self._tokens_only = not await self._has_route("/v1/completions")
        found = await Prober(self, card.id).run()
        if self._renders:
            found.has.add(Capability.DEFAULTS)
        else:
            found.missing[Capability.DEFAULTS] = _NO_RENDER
        version = await self.endpoint.get("/version", optional=True)
        facts = {**await self._flags(), **found.standing_facts(), **recorded}
        if Capability.PRIORITY in found.has:
            facts["priority"] = Fact(unknown="vLLM takes a priority also where its scheduler does not use it")
        return Probe(
            engine=self.name,
            version=_version(version),
            model=card.id,
            has=frozenset(found.has),
            missing=found.missing,
            max_logprobs=found.max_logprobs,
            facts={**facts, "template_sha256": await self._template_sha256()},
            record=record,
        )

    async def _flags(self) -> dict[str, Fact]:
        """Launch flags that its metrics tell, so that another one in mid-rollout is noticed."""
        told = await self.endpoint.get("/metrics", optional=True)
        fields = metrics_fields((told or b"").decode("utf-8", "replace"))
        return {
            name.removeprefix("precision."): Fact(value=value)
            for name, value in fields.items()
            if not isinstance(value, UnknownField)
        }

    async def encode(self, call: Call) -> Encoding:
        """See :meth:`engines.base.Engine.encode`."""
        calls.check_token_form(self.base_url, call)
        if self._renders is None:
            self._renders = await self._has_route("/v1/chat/completions/render")
        if not self._renders:
            return await self._tokenize(calls.chat_of(self.base_url, call))
        # The other APIs got their render routes later than chat; where one is missing, chat's words serve.
        rendered = await self._render(call, optional=True) if call.kind in _LATER_RENDERED else None
        if rendered is None:
            rendered = await self._render(calls.chat_of(self.base_url, call), optional=False)
        assert rendered is not None
        return rendered

    async def load(self) -> Load:
        metrics = await self.metrics()
        try:
            running, waiting = metrics["vllm:num_requests_running"], metrics["vllm:num_requests_waiting"]
        except KeyError as error:
            raise EngineInvalid(
                self.base_url, f"/metrics has no {error}: is this vLLM with its stats on?"
            ) from error
        usage, generated = (
            metrics.get("vllm:kv_cache_usage_perc"),
            metrics.get("vllm:generation_tokens_total"),
        )
        return Load(
            running=int(running),
            waiting=int(waiting),
            kv_cache_usage=Fact(unknown="/metrics has no vllm:kv_cache_usage_perc")
            if usage is None
            else Fact(value=usage),
            memory_bytes=_NO_MEMORY,
            generated_tokens=Fact(unknown="/metrics has no vllm:generation_tokens_total")
            if generated is None
            else Fact(value=int(generated)),
        )

    def request_of(self, prompt: Prompt) -> tuple[str, dict[str, Any], Decoder]:
        if prompt.call is not None or not self._tokens_only:
            path, body, told = super().request_of(prompt)
            if self._tells_steps:
                body["vllm_xargs"] = {**(body.get("vllm_xargs") or {}), MARK: prompt.exchange_id}
            return path, body, told
        params = explicit(prompt.sampling)
        if self._tells_steps:
            params["extra_args"] = {**(params.pop("vllm_xargs", None) or {}), MARK: prompt.exchange_id}
        body = {
            "model": self.model_for(prompt.model),
            "token_ids": prompt.token_ids,
            "sampling_params": params,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "cache_salt": prompt.cache_salt,
        }
        if prompt.priority is not None:
            body["priority"] = prompt.priority
        decoder = GenerateDecoder(self.base_url, depth=prompt.sampling.logprobs, prompt=prompt.token_ids)
        return "/inference/v1/generate", body, decoder

    async def _render(self, call: Call, *, optional: bool) -> Encoding | None:
        """What the server makes of a call; None where ``optional`` and it has no route for this API."""
        path = calls.PATHS[call.kind] + "/render"
        body = {**call.body, "model": self.model_for(call.model), "stream": False}
        body.pop("stream_options", None)
        told = await self.endpoint.post(path, body, optional=optional)
        if told is None:
            return None
        try:
            if call.kind is CallKind.COMPLETION:
                (rendered,) = msgspec.json.decode(told, type=list[_Rendered])
            else:
                rendered = msgspec.json.decode(told, type=_Rendered)
        except (msgspec.DecodeError, RecursionError, ValueError) as error:
            raise EngineInvalid(self.base_url, f"{path}: {error}") from error
        return Encoding(
            token_ids=tuple(rendered.token_ids),
            sampling=self._effective(rendered.sampling_params),
            template_sha256=await self._template_of(call),
        )

    def _effective(self, params: Mapping[str, Any]) -> Sampling:
        """vLLM's SamplingParams, as it tells them: a field at its default is left out."""
        known, extra = {"max_tokens": 16, "top_k": 0}, {}
        for name, value in params.items():
            if name in Sampling.__struct_fields__ and name not in ("seed", "logprobs", "extra"):
                known[name] = value
            elif name == "extra_args":
                if value:
                    extra["vllm_xargs"] = value
            elif name in _SAME_NAME:
                if value not in (None, [], {}):
                    extra[name] = value
            elif name not in _DELIVERY and value not in (None, [], {}, False) and (name, value) != ("n", 1):
                raise CannotEncode(
                    self.base_url, f"{name}: no completions request can carry it", goes_as_itself=True
                )
        known["top_k"] = max(known["top_k"], 0)
        try:
            return msgspec.convert({**known, "extra": extra}, Sampling)
        except msgspec.ValidationError as error:
            raise EngineInvalid(self.base_url, f"rendered sampling_params: {error}") from error

    async def _tokenize(self, call: Call) -> Encoding:
        """The way without scale-out: IDs by ``/tokenize``, parameters by the client's words alone."""
        body = call.body
        if call.kind is CallKind.CHAT:
            asked = {"messages": body.get("messages")}
            for field in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
                if field in body:
                    asked[field] = body[field]
        elif isinstance(body.get("prompt"), list):
            card = await self.card()
            ids = body["prompt"]
            told = _Tokenized(tokens=ids, max_model_len=card.max_model_len or len(ids) + 16)
            return self._said(call, told, Fact(unknown="the client sent token IDs; no template took part"))
        else:
            asked = {"prompt": body.get("prompt")}
        asked["model"] = self.model_for(call.model)
        answer = await self.endpoint.post("/tokenize", asked)
        try:
            tokenized = msgspec.json.decode(answer or b"", type=_Tokenized)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineInvalid(self.base_url, f"/tokenize: {error}") from error
        return self._said(call, tokenized, await self._template_of(call))

    def _said(self, call: Call, tokenized: _Tokenized, template: Fact) -> Encoding:
        room = tokenized.max_model_len - len(tokenized.tokens)
        try:
            sampling = calls.sampling_said(call, room_tokens=room)
        except msgspec.ValidationError as error:
            raise CannotEncode(
                self.base_url, f"sampling parameters: {error}", goes_as_itself=False
            ) from error
        return Encoding(token_ids=tuple(tokenized.tokens), sampling=sampling, template_sha256=template)

    async def _template_of(self, call: Call) -> Fact:
        if call.kind is CallKind.COMPLETION:
            return Fact(unknown="a completion prompt goes through no template")
        return await self._template_sha256()

    async def _template_sha256(self) -> Fact:
        if self._template is None:
            told = await self.endpoint.get("/tokenizer_info", optional=True)
            template = None
            if told is not None:
                try:
                    template = msgspec.json.decode(told, type=_TokenizerInfo).chat_template
                except (msgspec.DecodeError, RecursionError) as error:
                    raise EngineInvalid(self.base_url, f"/tokenizer_info: {error}") from error
            if template is None:
                self._template = Fact(
                    unknown="the server tells its chat template only with --enable-tokenizer-info-endpoint"
                )
            else:
                self._template = Fact(value="sha256:" + hashlib.sha256(template.encode()).hexdigest())
        return self._template

    async def _has_route(self, path: str) -> bool:
        """Whether a POST route exists: an empty request is then refused for what is in it."""
        try:
            await self.endpoint.post(path, {})
        except EngineRefused as error:
            return error.status not in (403, 404, 405)  # 403: behind --enable-scale-out
        return True


def _recorded(record: Identity) -> dict[str, Fact]:
    """What the plugin's record says of every answer of this endpoint."""
    facts = record_facts(record)
    for name, field in _OF_RECORD.items():
        value = record.fields.get(field, UnknownField(f"the plugin's record has no {field}"))
        if isinstance(value, UnknownField):
            facts[name] = Fact(unknown=value.reason)
        elif value is not None:
            facts[name] = Fact(value=value)
    return facts


def _version(told: bytes | None) -> str | None:
    if told is None:
        return None
    try:
        return msgspec.json.decode(told, type=_Version).version
    except (msgspec.DecodeError, RecursionError):
        return None
