"""Adapter for TensorRT-LLM's ``trtllm-serve`` over HTTP.

Field names checked against ``tensorrt_llm/serve`` of 2026; where an older server differs, the probe says so.

Encode: the render routes, which a worker has where ``TRTLLM_ENABLE_RENDER_ENDPOINTS=1`` is set. Without them
only a prompt that came as token IDs can be encoded; such a server can still be the candidate of a baseline
that encodes. Effective sampling parameters are told nowhere.

Generate: ``/v1/completions`` with token IDs and ``detokenize: false``, which is what makes it send token IDs,
in place of text. It echoes no prompt: ``usage.prompt_tokens`` must be the number sent, and the probe compares
the effects of two prompts. Its top logprobs name tokens by their *text*, in which different tokens look
alike: they are refused. Chat answers carry no token IDs, so nothing goes as itself.

Unknown fields are refused, not ignored: nothing but what the protocol has is sent. An unset seed is a fixed
one, so one is always set.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from comparator.records import Fact
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
from engines.openai import OpenAIEngine, explicit
from engines.probe import Prober
from engines.tensorrt_llm_wire import TensorRtDecoder
from engines.wire import StreamDecoder

_NO_RENDER = (
    "the server encodes nothing over HTTP: start trtllm-serve with TRTLLM_ENABLE_RENDER_ENDPOINTS=1 (in a "
    "version that has the render routes), or make it the candidate of a baseline that encodes"
)
_NO_DEFAULTS = (
    "trtllm-serve tells no effective parameters; OpenAI's defaults stand in, sent explicitly to all arms"
)
_NO_SALT = (
    "/v1/completions takes no cache_salt (chat does, without token IDs): set "
    "kv_cache_config.enable_block_reuse to false"
)
_NO_PRIORITY = "this version's /v1/completions takes no priority, upgrade to one that does"
_NO_IDS_BACK = "trtllm-serve's chat answers carry no token IDs"
_NO_LOAD = (
    "neither /prometheus/metrics (return_perf_metrics: true) nor an iteration of /metrics "
    "(enable_iter_perf_stats: true; each is told once, to whoever asks first) tells the load: set "
    "return_perf_metrics: true"
)
_NOT_TOLD = "trtllm-serve does not tell it"
_LOWEST_PRIORITY = 0.0
"""Of [0, 1]; higher is served first, where ``waiting_queue_policy`` is ``priority``."""
_ROOM_TOKENS = 1 << 20
"""The server tells no context length. A call without a limit of its own is cut by the mirror's anyway."""
_RENDERED_FIELDS = (
    "messages",
    "prompt",
    "add_generation_prompt",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "add_special_tokens",
)


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    fingerprint: dict[str, Any]
    tokens_trusted: bool = True
    untrusted_reason: str | None = None


class _Version(msgspec.Struct):
    version: str


class _KvCache(msgspec.Struct, rename="camel"):
    used_num_blocks: int | None = None
    max_num_blocks: int | None = None


class _Iteration(msgspec.Struct, rename="camel"):
    num_active_requests: int
    num_queued_requests: int
    gpu_mem_usage: int | None = None
    kv_cache_stats: _KvCache | None = None


class TensorRtLlmEngine(OpenAIEngine):
    """One ``trtllm-serve`` process."""

    name: str = "tensorrt_llm"
    known_facts: ClassVar[dict[str, Fact]] = {
        "environment_digest": Fact(unknown=_NOT_TOLD),
        "artifact_digest": Fact(unknown=_NOT_TOLD),
        "dtype": Fact(unknown=_NOT_TOLD),
        "attention_mask": Fact(value="causal"),
        "padding": Fact(value="none"),  # in-flight batching packs requests
        "adapter": Fact(unknown="no adapter is asked for: requests of this adapter carry no lora_request"),
        "processor_order": Fact(unknown=_NOT_TOLD),
        "batch_size": Fact(unknown=_NOT_TOLD),
        "batch_place": Fact(unknown=_NOT_TOLD),
        "prompt_echo": Fact(unknown="completions echo no prompt token IDs; their number was checked"),
        "text": Fact(unknown="completions give token IDs in place of text"),
    }

    async def probe(self) -> Probe:
        """See :meth:`engines.base.Engine.probe`. About 100 tokens of generation."""
        card = await self.card()
        absent = {Capability.CACHE_SALT: _NO_SALT}
        found = await Prober(self, card.id, absent=absent, echoes=False).run()
        found.missing[Capability.DEFAULTS] = _NO_DEFAULTS
        if Capability.PRIORITY in found.missing and Capability.TOKEN_OUT in found.has:
            found.missing[Capability.PRIORITY] = _NO_PRIORITY
        version = self._decoded(await self.endpoint.get("/version"), _Version, "/version").version
        facts = found.standing_facts()
        if Capability.PRIORITY in found.has:
            facts["priority"] = Fact(
                unknown="trtllm-serve takes a priority also where waiting_queue_policy is not priority"
            )
        return Probe(
            engine=self.name,
            version=version,
            model=card.id,
            has=frozenset(found.has),
            missing=found.missing,
            max_logprobs=found.max_logprobs,
            facts=facts,
        )

    async def encode(self, call: Call) -> Encoding:
        """See :meth:`engines.base.Engine.encode`."""
        calls.check_token_form(self.base_url, call, no_ids_back=_NO_IDS_BACK)
        chat = calls.chat_of(self.base_url, call)
        if chat.kind is CallKind.COMPLETION and isinstance(chat.body.get("prompt"), list):
            token_ids = tuple(chat.body["prompt"])
            template = Fact(unknown="the client sent token IDs; no template took part")
        else:
            rendered = await self._render(chat)
            token_ids, template = tuple(rendered.token_ids), _template(chat, rendered)
        try:
            sampling = calls.sampling_said(chat, room_tokens=_ROOM_TOKENS)
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise CannotEncode(
                self.base_url, f"sampling parameters: {error}", goes_as_itself=False
            ) from error
        return Encoding(token_ids=token_ids, sampling=sampling, template_sha256=template)

    async def load(self) -> Load:
        try:
            metrics = await self.metrics("/prometheus/metrics")
        except EngineRefused:
            return await self._load_of_iterations()
        try:
            running, waiting = metrics["trtllm_num_requests_running"], metrics["trtllm_num_requests_waiting"]
        except KeyError as error:
            raise EngineInvalid(
                self.base_url,
                f"/prometheus/metrics has no {error}: set enable_iter_perf_stats: true beside "
                "return_perf_metrics: true",
            ) from error

        def told(name: str) -> Fact:
            value = metrics.get(name)
            return Fact(unknown=f"/prometheus/metrics has no {name}") if value is None else Fact(value=value)

        return Load(
            running=int(running),
            waiting=int(waiting),
            kv_cache_usage=told("trtllm_kv_cache_utilization"),
            memory_bytes=_whole(told("trtllm_gpu_memory_usage_bytes")),
            generated_tokens=_whole(told("trtllm_generation_tokens_total")),
        )

    def request_of(self, prompt: Prompt) -> tuple[str, dict[str, Any], StreamDecoder]:
        if prompt.call is not None:
            raise CannotEncode(self.base_url, _NO_IDS_BACK, goes_as_itself=False)
        body = {
            "model": self.model_for(prompt.model),
            "prompt": prompt.token_ids,
            "detokenize": False,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": False},
            **explicit(prompt.sampling),
        }
        if prompt.sampling.temperature == 0:
            body["top_k"] = 1  # older versions are greedy by this alone
        if prompt.priority is not None:
            body["priority"] = _LOWEST_PRIORITY
        decoder = TensorRtDecoder(self.base_url, depth=prompt.sampling.logprobs, prompt=prompt.token_ids)
        return "/v1/completions", body, decoder

    async def _render(self, call: Call) -> _Rendered:
        path = calls.PATHS[call.kind] + "/render"
        # What does not change the prompt stays away: a field that this version lacks would be refused.
        body = {name: call.body[name] for name in _RENDERED_FIELDS if call.body.get(name) is not None}
        told = await self.endpoint.post(path, {"model": self.model_for(call.model), **body}, optional=True)
        if told is None:
            raise CannotEncode(self.base_url, _NO_RENDER, goes_as_itself=False)
        rendered: _Rendered
        if call.kind is CallKind.COMPLETION:
            listed = self._decoded(told, list[_Rendered], path)
            if len(listed) != 1:
                raise EngineInvalid(self.base_url, f"{path}: {len(listed)} prompts came of one")
            rendered = listed[0]
        else:
            rendered = self._decoded(told, _Rendered, path)
        if not rendered.tokens_trusted:
            raise CannotEncode(
                self.base_url,
                f"{path}: the server does not vouch for its tokens: {rendered.untrusted_reason}",
                goes_as_itself=False,
            )
        return rendered

    async def _load_of_iterations(self) -> Load:
        """The last iteration that nobody has been told yet; to have none is no sign of idleness."""
        told = await self.endpoint.get("/metrics", optional=True)
        iterations = [] if told is None else self._decoded(told, list[_Iteration], "/metrics")
        if not iterations:
            raise EngineInvalid(self.base_url, _NO_LOAD)
        last: _Iteration = iterations[-1]
        cache = last.kv_cache_stats or _KvCache()
        usage = Fact(unknown="/metrics tells no kvCacheStats")
        if cache.used_num_blocks is not None and cache.max_num_blocks:
            usage = Fact(value=cache.used_num_blocks / cache.max_num_blocks)
        return Load(
            running=last.num_active_requests,
            waiting=last.num_queued_requests,
            kv_cache_usage=usage,
            memory_bytes=Fact(unknown="/metrics tells no gpuMemUsage")
            if last.gpu_mem_usage is None
            else Fact(value=last.gpu_mem_usage),
            generated_tokens=Fact(unknown="iterations of /metrics count no tokens"),
        )

    def _decoded(self, body: bytes | None, kind: Any, path: str) -> Any:
        try:
            return msgspec.json.decode(body or b"", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineInvalid(self.base_url, f"{path}: {error}") from error


def _template(call: Call, rendered: _Rendered) -> Fact:
    if call.kind is CallKind.COMPLETION:
        return Fact(unknown="a completion prompt goes through no template")
    digest = rendered.fingerprint.get("digest")
    return Fact(unknown=f"the server tells a digest of its whole rendering instead: {digest}")


def _whole(fact: Fact) -> Fact:
    return fact if fact.value is None else Fact(value=int(fact.value))
