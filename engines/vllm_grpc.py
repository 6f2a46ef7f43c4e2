"""Adapter for vLLM's gRPC server (``vllm serve --grpc``): token IDs in, token IDs out.

Checked against vLLM 0.32 with ``smg-grpc-servicer`` 0.14.1. ``base_url`` names the gRPC server, unless
``engine.grpc_port`` does: then ``base_url`` is an HTTP server of the same model on the same host (a gateway,
or ``vllm launch render``, which needs no GPU), and it encodes. gRPC itself hands out the tokenizer's files
and encodes nothing.

The messages carry no cache salt, so cold prompts are shown by their effect: the server tells how many prompt
tokens came from its prefix cache, and with ``--no-enable-prefix-caching`` none ever do.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import ssl
import time
import uuid
import zipfile
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import msgspec

from comparator.records import Fact, Sampling
from engines import calls
from engines.base import (
    AnswerObserver,
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Encoding,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    EngineTimeout,
    Finish,
    Load,
    Probe,
    Prompt,
    Steps,
)
from engines.probe import Prober
from engines.vllm import VllmEngine
from engines.vllm_grpc_channel import GrpcChannel
from engines.vllm_grpc_wire import GrpcDecoder, protos, request_of

_NO_FIELD = "vLLM's gRPC messages have no field for it"
_NO_ENCODE = (
    "gRPC hands out the tokenizer's files and encodes nothing: name an HTTP server of the same model as the "
    "endpoint, and this one by engine.grpc_port"
)
_NEEDS_PLUGIN = "vLLM tells this only to a plugin inside the engine"
_KNOWN_FACTS = {
    "environment_digest": Fact(unknown=_NEEDS_PLUGIN),
    "artifact_digest": Fact(unknown=_NEEDS_PLUGIN),
    "attention_mask": Fact(value="causal"),
    "padding": Fact(value="none"),  # requests are packed, not padded
    "adapter": Fact(unknown="the gRPC messages name no adapter"),
    "processor_order": Fact(unknown=_NEEDS_PLUGIN),
    "batch_size": Fact(unknown=_NEEDS_PLUGIN),
    "batch_place": Fact(unknown=_NEEDS_PLUGIN),
    "logprobs_mode": Fact(unknown="the server's --logprobs-mode is not told; its default is raw_logprobs"),
}


class VllmGrpcEngine:
    """One vLLM gRPC server."""

    name: str = "vllm_grpc"

    def __init__(
        self,
        base_url: str,
        options: EngineOptions,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._options = options
        self._channel = GrpcChannel(self.base_url, options, tls, server_name)
        paired = options.grpc_port is not None
        self._http = VllmEngine(base_url, options, tls, server_name) if paired else None
        self._model: Any = None

    def observe(self, observer: AnswerObserver) -> None:
        """See :class:`engines.base.Observable`. The HTTP server beside it is another process of its own."""
        self._channel.observer = observer

    def forget(self) -> None:
        """See :class:`engines.base.Observable`."""
        self._model = None
        if self._http is not None:
            self._http.forget()

    async def close(self) -> None:
        await self._channel.close()
        if self._http is not None:
            await self._http.close()

    async def probe(self) -> Probe:
        """See :meth:`engines.base.Engine.probe`. About 100 tokens of generation."""
        messages = protos(self.base_url)
        model = await self._model_info()
        absent = {Capability.PRIORITY: _NO_FIELD, Capability.CACHE_SALT: "tried by its effect"}
        found = await Prober(self, model.served_model_name, absent=absent).run()
        for capability, lack in (
            (Capability.TOKEN_IN, await self._lacks_token_in()),
            (Capability.CACHE_SALT, await self._lacks_cold_prompts(model)),
            (Capability.DEFAULTS, await self._lacks_defaults(model)),
        ):
            if lack is None:
                found.has.add(capability)
                found.missing.pop(capability, None)
            else:
                found.has.discard(capability)
                found.missing[capability] = lack
        server = await self._channel.unary("GetServerInfo", messages.engine.GetServerInfoRequest())
        loads = await self._channel.unary("GetLoads", messages.engine.GetLoadsRequest())
        facts = {
            **found.standing_facts(),
            **await self._tokenizer_facts(),
            "model_path": _told(model.model_path),
            "dtype": _told(server.model_dtype.removeprefix("torch.")),
            "kv_cache_dtype": _told(server.kv_cache_dtype),
            "context_tokens": _told(model.max_context_length),
            "block_tokens": _told(server.block_size),
            "max_sequences": _told(server.max_num_seqs),
        }
        return Probe(
            engine=self.name,
            version=loads.version or None,
            model=model.served_model_name,
            has=frozenset(found.has),
            missing=found.missing,
            max_logprobs=found.max_logprobs,
            facts=facts,
        )

    async def encode(self, call: Call) -> Encoding:
        """See :meth:`engines.base.Engine.encode`. Without an HTTP server beside it, only IDs encode."""
        if self._http is not None:
            try:
                return await self._http.encode(call)
            except CannotEncode as error:
                raise CannotEncode(self.base_url, str(error), goes_as_itself=False) from error
        calls.check_token_form(self.base_url, call)
        prompt = call.body.get("prompt")
        if call.kind is not CallKind.COMPLETION or not isinstance(prompt, list) or not prompt:
            raise CannotEncode(self.base_url, _NO_ENCODE, goes_as_itself=False)
        model = await self._model_info()
        try:
            said = calls.sampling_said(
                call,
                room_tokens=model.max_context_length - len(prompt),
                defaults=_known_defaults(self.base_url, model),
            )
        except (msgspec.ValidationError, TypeError, ValueError) as error:
            raise CannotEncode(
                self.base_url, f"sampling parameters: {error}", goes_as_itself=False
            ) from error
        template = Fact(unknown="the client sent token IDs; no template took part")
        return Encoding(token_ids=tuple(prompt), sampling=said, template_sha256=template)

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        """See :meth:`engines.base.Engine.generate`. The request carries no salt and no priority."""
        if prompt.call is not None:
            raise CannotEncode(self.base_url, "gRPC takes token IDs alone", goes_as_itself=False)
        messages = protos(self.base_url)
        model = await self._model_info()
        request = request_of(self.base_url, messages, prompt.exchange_id, prompt.token_ids, prompt.sampling)
        parts = self._run(request, prompt, model.vocab_size or None)
        async with contextlib.aclosing(parts):
            async for part in parts:
                if isinstance(part, Finish):
                    part = msgspec.structs.replace(part, facts={**_KNOWN_FACTS, **part.facts})
                yield part

    async def load(self) -> Load:
        """Sums over the ranks that the server reports."""
        messages = protos(self.base_url)
        ranks = (await self._channel.unary("GetLoads", messages.engine.GetLoadsRequest())).loads
        if not ranks:
            raise EngineInvalid(self.base_url, "GetLoads reports no rank: are the engine's stats off?")
        return Load(
            running=sum(rank.num_running_reqs for rank in ranks),
            waiting=sum(rank.num_waiting_reqs for rank in ranks),
            kv_cache_usage=Fact(value=max(rank.token_usage for rank in ranks)),
            memory_bytes=Fact(unknown="GetLoads tells no memory"),
            generated_tokens=Fact(unknown="GetLoads tells tokens a second (gen_throughput), and no counter"),
        )

    async def refuses(self, prompt: Prompt, field: str, value: object) -> bool:
        """Nothing to refuse: a protobuf message cannot carry a field that it does not have."""
        return False

    # -- probes of its own ------------------------------------------------------------------------------

    async def _lacks_token_in(self) -> str | None:
        """With ``prompt_logprobs`` an answer names its prompt's IDs."""
        ids = (17, 29, 113, 57, 211)
        try:
            finish = await self._asked(ids, prompt_logprobs=True)
        except (EngineRefused, EngineInvalid) as error:
            return str(error)
        if finish.prompt_token_ids != ids:
            return "no prompt token IDs came back with prompt_logprobs, so nothing proves which prompt ran"
        return None

    async def _lacks_cold_prompts(self, model: Any) -> str | None:
        """One prompt twice, longer than any block of the cache: the second must find nothing of the first."""
        room = model.max_context_length - 1
        base = tuple(100 + one % 97 for one in range(min(room, 600)))
        ids = (100 + int(uuid.uuid4().hex[:2], 16), *base[1:])
        try:
            await self._asked(ids)
            cached = (await self._asked(ids)).facts["cached_tokens"].value
        except (EngineRefused, EngineInvalid) as error:
            return str(error)
        if cached:
            return (
                f"{_NO_FIELD}, and {cached} of {len(ids)} tokens of a repeated prompt came from the cache: "
                "start this server and the other arm's with --no-enable-prefix-caching"
            )
        return None

    async def _lacks_defaults(self, model: Any) -> str | None:
        if self._http is not None:
            await self._http.encode(Call(kind=CallKind.COMPLETION, body={"prompt": "a"}, model="probe"))
            if not self._http.renders:
                return "the HTTP server beside it resolves no defaults: start it with --enable-scale-out"
            return None
        try:
            _known_defaults(self.base_url, model)
        except EngineInvalid as error:
            return str(error)
        return None

    async def _asked(self, ids: tuple[int, ...], *, prompt_logprobs: bool = False) -> Finish:
        sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
        name = f"probe-{uuid.uuid4().hex}"
        prompt = Prompt(exchange_id=name, model="", token_ids=ids, sampling=sampling, cache_salt="")
        request = request_of(self.base_url, protos(self.base_url), name, ids, sampling)
        if prompt_logprobs:
            request.sampling_params.prompt_logprobs = 0
        finish = None
        async for part in self._run(request, prompt, None):
            finish = part
        assert isinstance(finish, Finish)
        return finish

    async def _tokenizer_facts(self) -> dict[str, Fact]:
        """Digest of the tokenizer's files and of the chat template among them."""
        try:
            bundle = await self._channel.tokenizer()
            names = zipfile.ZipFile(io.BytesIO(bundle))
            files = {name: names.read(name) for name in names.namelist()}
        except EngineRefused as error:
            unknown = Fact(unknown=f"the server hands out no tokenizer: {error}")
            return {"template_sha256": unknown, "tokenizer_sha256": unknown}
        except zipfile.BadZipFile as error:
            raise EngineInvalid(self.base_url, f"GetTokenizer: {error}") from error
        template: Any = None
        if "chat_template.jinja" in files:
            template = files["chat_template.jinja"].decode("utf-8", "replace")
        elif "tokenizer_config.json" in files:
            with contextlib.suppress(ValueError):
                template = json.loads(files["tokenizer_config.json"]).get("chat_template")
        tokenizer = files.get("tokenizer.json")
        return {
            "template_sha256": Fact(value=_sha256(template.encode()))
            if isinstance(template, str)
            else Fact(unknown="the tokenizer's files hold no single chat template"),
            "tokenizer_sha256": Fact(unknown="the tokenizer's files hold no tokenizer.json")
            if tokenizer is None
            else Fact(value=_sha256(tokenizer)),
        }

    # -- on the wire ------------------------------------------------------------------------------------

    async def _run(
        self, request: Any, prompt: Prompt, vocabulary: int | None
    ) -> AsyncGenerator[Steps | Finish, None]:
        depth = prompt.sampling.logprobs
        decoder = GrpcDecoder(self.base_url, depth=depth, prompt=prompt.token_ids, vocabulary=vocabulary)
        stub = await self._channel.stub()
        call = stub.Generate(request, metadata=self._channel.metadata(prompt.exchange_id, prompt.trace))
        sent_s = time.perf_counter()
        limit_s, what = self._options.first_chunk_timeout_s, "no answer"
        try:
            while True:
                try:
                    async with asyncio.timeout(limit_s):
                        message = await call.read()
                except TimeoutError as error:
                    raise EngineTimeout(self.base_url, f"Generate: {what} in {limit_s:.3g} s") from error
                except grpc.aio.AioRpcError as error:
                    raise self._channel.error("Generate", error) from error
                if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # the stubs lack it
                    break
                limit_s, what = self._options.chunk_timeout_s, "no further chunk"
                steps = decoder.feed(message, time.perf_counter() - sent_s)
                if steps:
                    yield Steps(tuple(steps))
        finally:
            call.cancel()  # the engine aborts an answer whose call is gone; one that has ended stays as it is
        yield decoder.finish()

    async def _model_info(self) -> Any:
        """Asked once. Raises :class:`~engines.base.EngineError`."""
        if self._model is None:
            asked = protos(self.base_url).engine.GetModelInfoRequest()
            model = await self._channel.unary("GetModelInfo", asked)
            if self._options.model not in (None, model.served_model_name):
                raise EngineInvalid(
                    self.base_url,
                    f"model {self._options.model!r} is not served here, but {model.served_model_name}; "
                    "set engine.model",
                )
            self._model = model
        return self._model


def _known_defaults(where: str, model: Any) -> dict[str, float]:
    """The engine's own sampling defaults, as ``GetModelInfo`` tells them."""
    told = model.default_sampling_params_json or "{}"
    try:
        return msgspec.json.decode(told, type=dict[str, float])
    except (msgspec.DecodeError, RecursionError) as error:
        raise EngineInvalid(where, f"GetModelInfo: default_sampling_params_json: {error}") from error


def _sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _told(value: Any) -> Fact:
    return Fact(value=value) if value else Fact(unknown="the server leaves this field empty")
