"""Adapter for the reference engine. It speaks vLLM's completions and render routes; no torch here."""

from __future__ import annotations

import hashlib
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
)
from engines.openai import OpenAIEngine, record_facts
from engines.probe import Prober


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    sampling_params: dict[str, Any]


class _Card(msgspec.Struct):
    chat_template: str | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Version(msgspec.Struct):
    version: str


class ReferenceEngine(OpenAIEngine):
    """One process of ``forkgate engine``."""

    name: str = "reference"
    asks_facts: ClassVar[dict[str, Any]] = {"forkgate_facts": True}
    known_facts: ClassVar[dict[str, Fact]] = {"attention_mask": Fact(value="causal")}
    _template: Fact | None = None

    def forget(self) -> None:
        """See :class:`engines.base.Observable`."""
        super().forget()
        self._template = None

    async def probe(self) -> Probe:
        """See :meth:`engines.base.Engine.probe`. About 80 tokens of generation."""
        card = await self.card()
        found = await Prober(self, card.id, deepest=card.max_logprobs).run()
        found.has.add(Capability.DEFAULTS)
        version = self._decoded(await self.endpoint.get("/version"), _Version, "/version").version
        record = await self.own_record()
        if record is None:
            raise EngineInvalid(
                self.base_url, "/forkgate/identity is not served: is this a reference engine of this version?"
            )
        facts = {**found.standing_facts(), **record_facts(record)}
        return Probe(
            engine=self.name,
            version=version,
            model=card.id,
            has=frozenset(found.has),
            missing=found.missing,
            max_logprobs=found.max_logprobs,
            facts={**facts, "template_sha256": await self._template_sha256()},
            record=record,
            artifact=await self.own_artifact(),
        )

    async def encode(self, call: Call) -> Encoding:
        """See :meth:`engines.base.Engine.encode`."""
        calls.check_token_form(self.base_url, call)
        chat = calls.chat_of(self.base_url, call)
        path = calls.PATHS[chat.kind] + "/render"
        body = {**chat.body, "model": self.model_for(call.model)}
        try:
            told = await self.endpoint.post(path, body)
        except EngineRefused as error:
            if error.status == 400:  # it would refuse the client's request itself in the same words
                raise CannotEncode(self.base_url, str(error), goes_as_itself=False) from error
            raise
        if chat.kind is CallKind.COMPLETION:
            (rendered,) = self._decoded(told, list[_Rendered], path)
            template = Fact(unknown="a completion prompt goes through no template")
        else:
            rendered = self._decoded(told, _Rendered, path)
            template = await self._template_sha256()
        params = {**rendered.sampling_params, "seed": 0, "logprobs": 0}  # both are the caller's to set
        try:
            sampling = msgspec.convert(params, Sampling)
        except msgspec.ValidationError as error:
            raise EngineInvalid(self.base_url, f"{path}: {error}") from error
        return Encoding(token_ids=tuple(rendered.token_ids), sampling=sampling, template_sha256=template)

    async def load(self) -> Load:
        metrics = await self.metrics()
        memory = metrics.get("forkgate_reference_memory_bytes")
        try:
            return Load(
                running=int(metrics["forkgate_reference_requests_running"]),
                waiting=int(metrics["forkgate_reference_requests_waiting"]),
                kv_cache_usage=Fact(value=metrics["forkgate_reference_kv_cache_usage_ratio"]),
                memory_bytes=Fact(unknown="the engine's system tells no memory")
                if memory is None
                else Fact(value=int(memory)),
                generated_tokens=Fact(value=int(metrics["forkgate_reference_generated_tokens_total"])),
            )
        except KeyError as error:
            raise EngineInvalid(
                self.base_url, f"/metrics has no {error}: is this a reference engine?"
            ) from error

    async def _template_sha256(self) -> Fact:
        if self._template is None:
            card = self._decoded(await self.endpoint.get("/v1/models"), _Cards, "/v1/models").data[0]
            if card.chat_template is None:
                self._template = Fact(unknown="the model has no chat template")
            else:
                self._template = Fact(
                    value="sha256:" + hashlib.sha256(card.chat_template.encode()).hexdigest()
                )
        return self._template

    def _decoded(self, body: bytes | None, kind: Any, path: str) -> Any:
        try:
            return msgspec.json.decode(body or b"", type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise EngineInvalid(self.base_url, f"{path}: {error}") from error
