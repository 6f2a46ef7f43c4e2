"""Adapter for SGLang over HTTP. Field names checked against SGLang 0.5.23.

Encode: ``/tokenize`` renders a chat as SGLang's own ``/v1/chat/completions`` does and gives token IDs. It
tells no sampling parameters; a server started with ``--sampling-defaults openai`` uses OpenAI's, which are
then known, else the model's ``generation_config.json``, which nothing tells.

Generate: ``/generate`` with ``input_ids``. Its answer holds token IDs, the prompt's IDs back, and top-k
logprobs with token IDs. It has no ``model`` field, so the name asked for is compared with ``/v1/models``.

What is odd: a ``sampling_seed`` acts only with ``--enable-deterministic-inference``; a *higher* priority goes
first unless ``--schedule-low-priority-values-first`` says otherwise; logprobs are those after temperature.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
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
    Finish,
    Load,
    Probe,
    Prompt,
    Steps,
)
from engines.openai import OpenAIEngine
from engines.probe import Prober
from engines.sglang_wire import SglangDecoder
from engines.wire import StreamDecoder

_NO_DEFAULTS = (
    "the server takes its sampling defaults from the model's generation_config.json and tells them nowhere: "
    "start it with --sampling-defaults openai"
)
_NO_SEED = "start the server with --enable-deterministic-inference, sampling_seed acts only there"
_NO_PRIORITY = (
    "priorities are off: start the server with --enable-priority-scheduling to let shadows stand back"
)
_NO_METRICS = "/metrics is missing: start the server with --enable-metrics"
_NO_IDS_BACK = (
    "SGLang's chat and completion streams are not read: only /generate tells logprobs with token IDs"
)
_NOT_TOLD = "SGLang's /generate does not tell it"
_OPENAI_DEFAULTS = "openai"
# A server that reads cache_salt takes an empty one for none, but refuses what is no string.
_FALSE_SALT = 7
# What of /server_info may move tokens. The rest is addresses, ports and counters.
_SERVER_FACTS = (
    "attention_backend",
    "disable_radix_cache",
    "dtype",
    "enable_deterministic_inference",
    "kv_cache_dtype",
    "preferred_sampling_params",
    "quantization",
    "random_seed",
    "sampling_backend",
    "sampling_defaults",
    "tp_size",
)


class _Server(msgspec.Struct):
    """The part of ``/server_info`` that decides how the server is spoken to."""

    version: str | None = None
    incremental_streaming_output: bool = False
    enable_deterministic_inference: bool = False
    enable_priority_scheduling: bool = False
    schedule_low_priority_values_first: bool = False
    sampling_defaults: str | None = None


class _Model(msgspec.Struct):
    model_path: str
    weight_version: str | None = None


class _Tokenized(msgspec.Struct):
    tokens: list[int]


class SglangEngine(OpenAIEngine):
    """One SGLang server."""

    name: str = "sglang"
    known_facts: ClassVar[dict[str, Fact]] = {
        "environment_digest": Fact(unknown=_NOT_TOLD),
        "artifact_digest": Fact(unknown=_NOT_TOLD),
        "attention_mask": Fact(value="causal"),
        "padding": Fact(value="none"),  # requests are packed, not padded
        "adapter": Fact(unknown="no adapter is asked for: requests of this adapter carry no lora_path"),
        "processor_order": Fact(unknown=_NOT_TOLD),
        "batch_size": Fact(unknown=_NOT_TOLD),
        "batch_place": Fact(unknown=_NOT_TOLD),
        "logprobs_mode": Fact(
            unknown="after temperature, before top-k, top-p and min-p, unless the server's environment sets "
            "SGLANG_RETURN_ORIGINAL_LOGPROB, which nothing tells"
        ),
    }
    _server: _Server | None = None
    _server_told: Mapping[str, Any] = {}

    async def probe(self) -> Probe:
        """See :meth:`engines.base.Engine.probe`. About 80 tokens of generation."""
        self._server = None  # it may have been started anew with other flags
        server, card = await self._ask_server(), await self.card()
        absent = {} if server.enable_priority_scheduling else {Capability.PRIORITY: _NO_PRIORITY}
        found = await Prober(self, card.id, absent=absent, false_salt=_FALSE_SALT).run()
        if server.sampling_defaults == _OPENAI_DEFAULTS:
            found.has.add(Capability.DEFAULTS)
        else:
            found.missing[Capability.DEFAULTS] = _NO_DEFAULTS
        if Capability.SEED in found.missing and not server.enable_deterministic_inference:
            found.missing[Capability.SEED] += f"; {_NO_SEED}"
        model = self._decoded(await self.endpoint.get("/model_info"), _Model, "/model_info")
        return Probe(
            engine=self.name,
            version=server.version,
            model=card.id,
            has=frozenset(found.has),
            missing=found.missing,
            max_logprobs=found.max_logprobs,
            facts={**found.standing_facts(), **self._identity(model)},
        )

    async def encode(self, call: Call) -> Encoding:
        """See :meth:`engines.base.Engine.encode`."""
        calls.check_token_form(self.base_url, call, no_ids_back=_NO_IDS_BACK)
        await self._check_model(call.model)
        chat = calls.chat_of(self.base_url, call)
        template = Fact(unknown="SGLang tells no chat template over HTTP")
        if chat.kind is CallKind.COMPLETION:
            template = Fact(unknown="a completion prompt goes through no template")
        tokens = await self._tokenize(chat)
        card = await self.card()
        try:
            room = (card.max_model_len or len(tokens) + 16) - len(tokens)
            sampling = calls.sampling_said(chat, room_tokens=room)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise CannotEncode(
                self.base_url, f"sampling parameters: {error}", goes_as_itself=False
            ) from error
        return Encoding(token_ids=tuple(tokens), sampling=sampling, template_sha256=template)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        """See :meth:`engines.base.Engine.generate`."""
        await self._ask_server()
        await self._check_model(prompt.model)
        async with contextlib.aclosing(super().generate(prompt)) as parts:
            async for part in parts:
                yield part

    async def load(self) -> Load:
        try:
            metrics = await self.metrics()
        except EngineRefused as error:
            raise EngineInvalid(self.base_url, _NO_METRICS) from error
        try:
            running, waiting = metrics["sglang:num_running_reqs"], metrics["sglang:num_queue_reqs"]
        except KeyError as error:
            raise EngineInvalid(self.base_url, f"/metrics has no {error}: is this SGLang?") from error
        usage, generated = metrics.get("sglang:token_usage"), metrics.get("sglang:generation_tokens_total")
        kv_cache_usage = Fact(unknown="/metrics has no sglang:token_usage")
        if usage is not None and usage <= 1.0:
            kv_cache_usage = Fact(value=usage)
        elif usage is not None:
            kv_cache_usage = Fact(unknown=f"several ranks tell their shares, together {usage:g}")
        return Load(
            running=int(running),
            waiting=int(waiting),
            kv_cache_usage=kv_cache_usage,
            memory_bytes=Fact(unknown="SGLang's /metrics tells tokens of the KV cache, no bytes of memory"),
            generated_tokens=Fact(unknown="/metrics has no sglang:generation_tokens_total")
            if generated is None
            else Fact(value=int(generated)),
        )

    def request_of(self, prompt: Prompt) -> tuple[str, dict[str, Any], StreamDecoder]:
        if prompt.call is not None:
            raise CannotEncode(self.base_url, _NO_IDS_BACK, goes_as_itself=False)
        server = self._server or _Server()
        depth = prompt.sampling.logprobs
        body: dict[str, Any] = {
            "rid": prompt.exchange_id,
            "input_ids": prompt.token_ids,
            "sampling_params": sampling_params(prompt.sampling),
            "return_logprob": depth > 0,
            "top_logprobs_num": depth,
            "logprob_start_len": -1,  # of output tokens alone
            "return_text_in_logprobs": False,
            "return_prompt_token_ids": True,
            "cache_salt": prompt.cache_salt,
            "stream": True,
        }
        if prompt.priority is not None:
            # Ours counts like vLLM's, the lowest value first.
            first = server.schedule_low_priority_values_first
            body["priority"] = prompt.priority if first else -prompt.priority
        decoder = SglangDecoder(
            self.base_url,
            depth=depth,
            prompt=prompt.token_ids,
            incremental=server.incremental_streaming_output,
        )
        return "/generate", body, decoder

    async def _tokenize(self, call: Call) -> list[int]:
        body = call.body
        if call.kind is CallKind.COMPLETION:
            if isinstance(body.get("prompt"), list):
                return list(body["prompt"])
            asked: dict[str, Any] = {"prompt": body.get("prompt"), "add_special_tokens": True}
        else:
            asked = {"messages": body.get("messages")}
            for field in ("continue_final_message", "chat_template_kwargs", "reasoning_effort"):
                if body.get(field) is not None:
                    asked[field] = body[field]
        told = await self.endpoint.post("/tokenize", {"model": self.model_for(call.model), **asked})
        tokens: list[int] = self._decoded(told, _Tokenized, "/tokenize").tokens
        return tokens

    async def _check_model(self, asked: str) -> None:
        """``/generate`` names no model, so that a wrong name would be answered by whatever is served."""
        card = await self.card()
        if card.parent is not None:
            raise EngineInvalid(
                self.base_url,
                f"model {card.id!r} is an adapter over {card.parent}, and no lora_path is sent: set "
                "engine.model to the base model",
            )
        if self.model_for(asked) != card.id:
            raise EngineRefused(
                self.base_url, f"model {self.model_for(asked)!r} is not served here, but {card.id}", 404
            )

    async def _ask_server(self) -> _Server:
        if self._server is None:
            told = await self.endpoint.get("/server_info")
            self._server_told = self._decoded(told, dict[str, Any], "/server_info")
            try:
                self._server = msgspec.convert(self._server_told, _Server)
            except msgspec.ValidationError as error:
                raise EngineInvalid(self.base_url, f"/server_info: {error}") from error
        return self._server

    def _identity(self, model: _Model) -> dict[str, Fact]:
        facts = {"model_path": Fact(value=model.model_path)}
        if model.weight_version is not None:
            facts["weight_version"] = Fact(value=model.weight_version)
        for name in _SERVER_FACTS:
            value = self._server_told.get(name)
            facts[f"server.{name}"] = (
                Fact(unknown="/server_info leaves it unset") if value is None else Fact(value=value)
            )
        return facts

    def _decoded(self, body: bytes | None, kind: Any, path: str) -> Any:
        try:
            return msgspec.json.decode(body or b"", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineInvalid(self.base_url, f"{path}: {error}") from error


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """``sampling_params`` of ``/generate``, every value explicit, so that no server's default counts."""
    params: dict[str, Any] = {
        **sampling.extra,
        "max_new_tokens": sampling.max_tokens,
        "min_new_tokens": sampling.min_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": sampling.stop,
        "stop_token_ids": sampling.stop_token_ids,
        "ignore_eos": sampling.ignore_eos,
        "n": 1,
        "skip_special_tokens": True,
        "sampling_seed": sampling.seed,
    }
    if sampling.logit_bias:
        params["logit_bias"] = sampling.logit_bias
    return params
