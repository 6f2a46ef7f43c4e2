"""What the HTTP adapters have in common: OpenAI's completions, with token IDs, and the ways around them.

:class:`OpenAIEngine` runs a prompt and streams its steps; subclasses say how a call is encoded, where the
endpoint tells its load, and what else is known of its answers.
"""

from __future__ import annotations

import asyncio
import ssl
import urllib.parse
from collections.abc import AsyncGenerator
from typing import Any, ClassVar

import msgspec

from comparator.records import Fact, Sampling
from engines import calls
from engines.base import (
    AnswerObserver,
    CallKind,
    EngineError,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    Finish,
    Load,
    Prompt,
    Steps,
)
from engines.sse import EventParser, EventTooLong
from engines.transport import NOT_TOLD, Endpoint
from engines.wire import ChatDecoder, CompletionDecoder, Decoder

_DRAIN_S = 0.5


class ModelCard(msgspec.Struct, frozen=True):
    """The part of ``/v1/models`` that is used."""

    id: str
    parent: str | None = None
    """The base model, where this is an adapter over one."""
    max_model_len: int | None = None
    max_logprobs: int | None = None


class _Models(msgspec.Struct):
    data: list[ModelCard]


class OpenAIEngine:
    """Base of the adapters that speak OpenAI's completions API with token IDs in and out."""

    name: str
    asks_facts: ClassVar[dict[str, Any]] = {}
    """Request fields that make the engine tell more about an answer."""
    known_facts: ClassVar[dict[str, Fact]] = {}
    """What is true of every answer of this engine, or why it cannot be known."""

    def __init__(
        self,
        base_url: str,
        options: EngineOptions,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.endpoint = Endpoint(base_url, options, tls, server_name)
        self.base_url = self.endpoint.base_url
        self._model_name = options.model
        self._card: ModelCard | None = None

    async def close(self) -> None:
        await self.endpoint.close()

    def observe(self, observer: AnswerObserver) -> None:
        """See :class:`engines.base.Observable`."""
        self.endpoint.observer = observer

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        """See :meth:`engines.base.Engine.generate`."""
        path, body, decoder = self.request_of(prompt)
        parser = EventParser()
        async with self.endpoint.stream(path, body, request_id=prompt.exchange_id) as reply:
            if not reply.headers.get("content-type", "").startswith("text/event-stream"):
                kind = reply.headers.get("content-type", "nothing")
                raise EngineInvalid(self.base_url, f"{path}: a stream was asked for and {kind} came")
            environment = reply.environment
            while not decoder.done:
                data, received_s = await reply.read()
                if not data:
                    break
                try:
                    payloads = parser.feed(data)
                except EventTooLong as error:
                    raise EngineInvalid(self.base_url, str(error)) from error
                steps = decoder.feed(payloads, received_s)
                if steps:
                    yield Steps(tuple(steps), environment)
            finish = decoder.finish()
            await reply.drain(_DRAIN_S)
        facts = {**self.known_facts, **finish.facts}
        if environment is not NOT_TOLD:
            facts["environment_digest"] = environment
        yield msgspec.structs.replace(finish, facts=facts)

    def request_of(self, prompt: Prompt) -> tuple[str, dict[str, Any], Decoder]:
        """Path, body and decoder for one prompt."""
        depth = prompt.sampling.logprobs
        if prompt.call is not None:
            path, body = calls.as_itself(prompt, self.model_for(prompt.model))
            kind = ChatDecoder if prompt.call.kind is CallKind.CHAT else CompletionDecoder
            return path, {**body, **self.asks_facts}, kind(self.base_url, depth=depth, prompt=None)
        body = self.completion_body(prompt)
        decoder = CompletionDecoder(self.base_url, depth=depth, prompt=prompt.token_ids)
        return "/v1/completions", body, decoder

    def completion_body(self, prompt: Prompt) -> dict[str, Any]:
        """Every parameter explicit, so that no default of a server can differ between arms."""
        body = {
            "model": self.model_for(prompt.model),
            "prompt": prompt.token_ids,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "cache_salt": prompt.cache_salt,
            **explicit(prompt.sampling),
            **self.asks_facts,
        }
        if prompt.priority is not None:
            body["priority"] = prompt.priority
        return body

    def model_for(self, asked: str) -> str:
        """The pool's own model name where one is configured, else what the client asked for."""
        return self._model_name or asked

    async def card(self) -> ModelCard:
        """The endpoint's first model, asked once. Raises :class:`EngineError`."""
        if self._card is None:
            body = await self.endpoint.get("/v1/models")
            try:
                models = msgspec.json.decode(body or b"", type=_Models).data
            except msgspec.DecodeError as error:
                raise EngineInvalid(self.base_url, f"/v1/models: {error}") from error
            named = [card for card in models if self._model_name in (None, card.id)]
            if not named:
                served = ", ".join(card.id for card in models) or "none"
                raise EngineInvalid(
                    self.base_url,
                    f"model {self._model_name!r} is not served here, but {served}; set engine.model",
                )
            self._card = named[0]
        return self._card

    async def load(self) -> Load:
        raise NotImplementedError

    async def metrics(self, path: str = "/metrics") -> dict[str, float]:
        """A page of Prometheus text: name without labels → sum over its series."""
        body = await self.endpoint.get(path)
        sums: dict[str, float] = {}
        for line in (body or b"").decode("utf-8", "replace").splitlines():
            if line and not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name = series.partition("{")[0]
                try:
                    sums[name] = sums.get(name, 0.0) + float(value)
                except ValueError as error:
                    raise EngineInvalid(self.base_url, f"{path}: {line!r} is no sample") from error
        return sums

    async def refuses(self, prompt: Prompt, field: str, value: object) -> bool:
        """Whether this prompt is refused when ``field`` of its request has this value. For the probe."""
        path, body, _ = self.request_of(prompt)
        body.pop("stream_options", None)
        try:
            await self.endpoint.post(path, {**body, "stream": False, field: value})
        except EngineRefused:
            return True
        return False


def explicit(sampling: Sampling) -> dict[str, Any]:
    """Fields of a completions request for these parameters."""
    body: dict[str, Any] = {
        **sampling.extra,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "min_tokens": sampling.min_tokens,
        "stop": sampling.stop,
        "stop_token_ids": sampling.stop_token_ids,
        "ignore_eos": sampling.ignore_eos,
        "seed": sampling.seed,
    }
    if sampling.logit_bias:
        body["logit_bias"] = sampling.logit_bias
    if sampling.logprobs:
        body["logprobs"] = sampling.logprobs
    return body
