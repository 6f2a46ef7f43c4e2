"""What the HTTP adapters have in common: OpenAI's completions, with token IDs, and the ways around them.

:class:`OpenAIEngine` runs a prompt and streams its steps; subclasses say how a call is encoded, where the
endpoint tells its load, and what else is known of its answers.
"""

from __future__ import annotations

import asyncio
import itertools
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
from engines.identity import Identity, UnknownField, artifact_json
from engines.identity.artifact import ArtifactRecord
from engines.identity.canonical import CanonicalError, parse
from engines.identity.environment import LIKELY, row_of
from engines.identity.record import from_json
from engines.identity.trouble import BadRecord
from engines.sse import EventParser, EventTooLong
from engines.transport import NOT_TOLD, Endpoint
from engines.wire import ChatDecoder, CompletionDecoder, Decoder

_DRAIN_S = 0.5
_STEPS_S = 2.0
"""How long the engine may take to tell an ended answer's steps; an answer is never lost for want of them."""
_NOT_WATCHED = (
    "the plugin saw no step of this answer: vLLM shows a plugin none with speculative decoding, on a TPU, or "
    "on another machine than its API server's"
)


class ModelCard(msgspec.Struct, frozen=True):
    """The part of ``/v1/models`` that is used."""

    id: str
    parent: str | None = None
    """The base model, where this is an adapter over one."""
    max_model_len: int | None = None
    max_logprobs: int | None = None


class _Models(msgspec.Struct):
    data: list[ModelCard]


class _Batch(msgspec.Struct):
    """``/forkgate/batch/{request id}``: (first output token, batch size, place), each until the next."""

    runs: list[tuple[int, int, int]] = []
    unknown: str | None = None


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
        self._standing: dict[str, Fact] = self.known_facts
        """``known_facts``, less what a record of the engine's own tells."""
        self._tells_steps = False
        """Whether :meth:`_steps_of` is asked after each answer."""

    async def close(self) -> None:
        await self.endpoint.close()

    def observe(self, observer: AnswerObserver) -> None:
        """See :class:`engines.base.Observable`."""
        self.endpoint.observer = observer

    def forget(self) -> None:
        """See :class:`engines.base.Observable`."""
        self._card = None

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        """See :meth:`engines.base.Engine.generate`."""
        path, body, decoder = self.request_of(prompt)
        parser = EventParser()
        tokens = 0
        async with self.endpoint.stream(
            path, body, request_id=prompt.exchange_id, trace=prompt.trace
        ) as reply:
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
                    tokens += len(steps)
                    yield Steps(tuple(steps), environment)
            finish = decoder.finish()
            await reply.drain(_DRAIN_S)
        facts = {**self._standing, **finish.facts}
        if self._tells_steps:
            facts |= await self._steps_of(prompt.exchange_id, tokens)
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
            except (msgspec.DecodeError, RecursionError) as error:
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

    async def own_record(self) -> Identity | None:
        """The environment record that the engine makes of itself; None where it serves none.

        Raises:
            EngineError: also for a record whose digest is not that of its fields.
        """
        body = await self.endpoint.get("/forkgate/identity", optional=True)
        if body is None:
            return None
        try:
            return from_json(parse(body))
        except (CanonicalError, BadRecord) as error:
            raise EngineInvalid(self.base_url, f"/forkgate/identity: {error}") from error

    async def own_artifact(self) -> ArtifactRecord | None:
        """The record of the files that the engine serves; None where it serves none.

        Raises:
            EngineError: also for a record whose digest is not that of its content.
        """
        body = await self.endpoint.get("/forkgate/artifact", optional=True)
        if body is None:
            return None
        try:
            return artifact_json.from_json(parse(body))
        except (CanonicalError, BadRecord) as error:
            raise EngineInvalid(self.base_url, f"/forkgate/artifact: {error}") from error

    async def _steps_of(self, request_id: str, tokens: int) -> dict[str, Fact]:
        """Batch size and place of the step that gave each token, as the engine kept them; or why not."""
        path = "/forkgate/batch/" + urllib.parse.quote(request_id, safe="")
        try:
            async with asyncio.timeout(_STEPS_S):
                told = msgspec.json.decode(await self.endpoint.get(path) or b"", type=_Batch)
        except TimeoutError:
            return _no_steps(f"the engine did not tell it within {_STEPS_S:g} s")
        except (EngineError, msgspec.DecodeError, RecursionError) as error:
            return _no_steps(str(error))
        if told.unknown is not None:
            return _no_steps(told.unknown)
        return steps_facts(told.runs, tokens)

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


def record_facts(record: Identity) -> dict[str, Fact]:
    """What an exchange says of its engine's record. The digest proves the whole of it; facts stand in every
    exchange that is kept, so they are few: the digest, and what is likely to move tokens."""
    facts = {"environment_digest": Fact(value=record.digest)}
    for name, value in record.fields.items():
        if not isinstance(value, UnknownField) and value is not None and row_of(name)[1].moves == LIKELY:
            facts[f"identity.{name}"] = Fact(value=value)
    return facts


def steps_facts(runs: list[tuple[int, int, int]], tokens: int) -> dict[str, Fact]:
    """Runs of (first output token, batch size, place), as one value a token. What is after the last token was
    computed and thrown away, or never: an engine that schedules ahead runs a pass too many."""
    if not runs:
        return _no_steps(_NOT_WATCHED)
    starts = [run[0] for run in runs]
    if starts[0] != 0 or any(one >= other for one, other in itertools.pairwise(starts)):
        return _no_steps("the steps that the engine told are in no order")
    sizes: list[int] = []
    places: list[int] = []
    for (first, size, place), end in zip(runs, [*starts[1:], tokens], strict=True):
        count = min(end, tokens) - first
        sizes += [size] * count
        places += [place] * count
    return {"batch_size": Fact(value=sizes), "batch_place": Fact(value=places)}


def _no_steps(reason: str) -> dict[str, Fact]:
    return {"batch_size": Fact(unknown=reason), "batch_place": Fact(unknown=reason)}


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
