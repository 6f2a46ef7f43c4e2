"""The HTTP face: OpenAI's routes over one :class:`~engines.reference.batch.BatchThread`.

Routes: ``/v1/completions``, ``/v1/chat/completions`` (each also ``/render``: the token IDs and the effective
parameters, without generating), ``/v1/models``, ``/tokenize``, ``/health``, ``/version``, ``/metrics``,
``/forkgate/identity``, ``/forkgate/artifact``, ``/forkgate/batch/{request id}`` (once, of a request that was
marked as a shadow's). Every answer carries the environment's digest in a header.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from comparator.records import Sampling
from engines.headers import REQUEST_ID_HEADER, SHADOW_HEADER
from engines.identity import IDENTITY_HEADER
from engines.reference import answers, requests
from engines.reference.alone import AloneBatch
from engines.reference.batch import Batch, BatchThread, QueueFull
from engines.reference.job import Event, Job, generator_of
from engines.reference.memory import held_bytes
from engines.reference.model import LoadedModel
from engines.reference.options import EngineServerOptions
from engines.reference.requests import BadRequest, ChatRequest, CompletionRequest, TokenizeRequest
from engines.reference.text import TextOut
from engines.vllm_plugin.book import Book, Missing

_MAX_BODY_BYTES = 16 << 20
ENGINE_VERSION = importlib.metadata.version("forkgate")
_encode = msgspec.json.Encoder().encode


class ReferenceServer:
    """One model behind HTTP. Build it, then serve :attr:`app`; :meth:`close` ends the batch thread.

    ``on_crash`` is called from the event loop when the engine's thread dies: nothing can be served then.
    """

    def __init__(
        self,
        model: LoadedModel,
        options: EngineServerOptions,
        *,
        model_name: str,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._model = model
        self._options = options
        self._model_name = model_name
        self._digest = model.identity.digest
        self._fingerprint = f"forkgate-reference-{ENGINE_VERSION}-{self._digest.removeprefix('sha256:')[:12]}"
        self._loop = asyncio.get_running_loop()
        self._crashed: BaseException | None = None
        self._on_crash = on_crash
        self._open: dict[str, asyncio.Queue[Event | None]] = {}
        self._book = Book(time.monotonic)
        kind = AloneBatch if options.deterministic else Batch
        self._batch = BatchThread(
            kind(model, max_batch=options.max_batch, prefill_chunk=options.prefill_chunk),
            max_waiting=options.max_waiting,
            on_crash=self._crashed_in_thread,
        )
        self._batch.start()
        self.app = self._build()

    def close(self) -> None:
        self._batch.stop()

    def _build(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[self._errors])
        app.on_response_prepare.append(self._sign)
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions/render", self._render_completions),
                web.post("/v1/chat/completions/render", self._render_chat),
                web.post("/tokenize", self._tokenize),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.get("/forkgate/identity", self._identity),
                web.get("/forkgate/artifact", self._artifact),
                web.get("/forkgate/batch/{request_id:.+}", self._steps),
            ]
        )
        return app

    # -- generation ---------------------------------------------------------------------------------

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, requests.decode(await http.read(), CompletionRequest), "cmpl")

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._generate(http, requests.decode(await http.read(), ChatRequest), "chatcmpl")

    async def _generate(
        self, http: web.Request, request: CompletionRequest | ChatRequest, prefix: str
    ) -> web.StreamResponse:
        self._check_model(request.model)
        prompt = tuple(requests.prompt_ids(request, self._model))
        params = self._sampling(request, len(prompt))
        job_id = f"{prefix}-{uuid.uuid4().hex}"
        writer = answers.Writer(
            answer_id=job_id,
            request=request,
            model_name=self._model_name,
            model=self._model,
            prompt=prompt,
            seed=params.seed,
            fingerprint=self._fingerprint,
        )
        own = frozenset(self._model.eos_token_ids)
        eos = frozenset() if params.ignore_eos else own
        job = Job(
            job_id=job_id,
            prompt=prompt,
            params=params,
            generator=generator_of(params.seed),
            ends=eos.union(params.stop_token_ids),
            eos=eos,
            text=TextOut(self._model.tokenizer, prompt, params.stop),
            emit=lambda event: self._from_thread(job_id, event),
            priority=request.priority,
        )
        key = None
        if http.headers.get(SHADOW_HEADER) == "1":
            key = self._book.open(http.headers.get(REQUEST_ID_HEADER, ""))
        events = self._events(job, key)
        try:
            if not request.stream:
                return web.json_response(body=_encode(writer.whole([event async for event in events])))
            return await self._stream(http, writer, events)
        finally:
            await events.aclose()
            if key is not None:
                self._book.end(key)

    def _sampling(self, request: CompletionRequest | ChatRequest, prompt_tokens: int) -> Sampling:
        params = requests.sampling_of(request, self._model, prompt_tokens, self._options.max_logprobs)
        if request.seed is None and self._options.deterministic:
            return msgspec.structs.replace(params, seed=self._options.seed)
        return params

    async def _events(self, job: Job, key: bytes | None) -> AsyncGenerator[Event, None]:
        """A job's events to the end. Leaving early, as on a client's disconnect, aborts the job.

        ``key``: of a marked request, whose steps are noted.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue()
        if self._crashed is not None:
            raise _Crashed(self._crashed)
        self._batch.submit(job)
        self._open[job.job_id] = queue
        ended = False
        position = 0
        try:
            while not ended:
                event = await queue.get()
                if event is None:
                    raise _Crashed(self._crashed)
                ended = event.finish_reason is not None
                if key is not None:
                    self._book.note(key, position, event.batch_size, event.batch_place)
                    position += 1
                yield event
        finally:
            del self._open[job.job_id]
            if not ended:
                self._batch.abort(job.job_id)

    async def _stream(
        self, http: web.Request, writer: answers.Writer, events: AsyncGenerator[Event, None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        )
        # The head goes out with the first token, so that a request refused in the queue is a clean error.
        first = await anext(events)
        await response.prepare(http)
        opening = writer.opening()
        if opening is not None:
            await response.write(_event(opening))
        await response.write(_event(writer.chunk(first)))
        async for event in events:
            await response.write(_event(writer.chunk(event)))
        closing = writer.closing()
        if closing is not None:
            await response.write(_event(closing))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _from_thread(self, job_id: str, event: Event) -> None:
        self._loop.call_soon_threadsafe(self._deliver, job_id, event)

    def _deliver(self, job_id: str, event: Event) -> None:
        queue = self._open.get(job_id)
        if queue is not None:  # its client may have left a moment ago
            queue.put_nowait(event)

    def _crashed_in_thread(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._crash, error)

    def _crash(self, error: BaseException) -> None:
        self._crashed = error
        for queue in self._open.values():
            queue.put_nowait(None)
        self._on_crash(error)

    # -- everything else ----------------------------------------------------------------------------

    async def _render_completions(self, http: web.Request) -> web.Response:
        # vLLM answers a list here, one entry a prompt.
        return web.json_response(
            body=_encode([self._render(requests.decode(await http.read(), CompletionRequest))])
        )

    async def _render_chat(self, http: web.Request) -> web.Response:
        return web.json_response(body=_encode(self._render(requests.decode(await http.read(), ChatRequest))))

    def _render(self, request: CompletionRequest | ChatRequest) -> dict[str, Any]:
        self._check_model(request.model)
        ids = requests.prompt_ids(request, self._model)
        params = self._sampling(request, len(ids))
        told: dict[str, Any] = msgspec.to_builtins(params)
        told.pop("extra")
        if request.seed is None and not self._options.deterministic:
            told["seed"] = None  # nothing was drawn for a request that is not run
        return {"token_ids": ids, "sampling_params": told, "model": self._model_name}

    async def _tokenize(self, http: web.Request) -> web.Response:
        request = requests.decode(await http.read(), TokenizeRequest)
        self._check_model(request.model)
        ids = requests.prompt_ids(request, self._model)
        answer = {"tokens": ids, "count": len(ids), "max_model_len": self._model.max_model_len}
        return web.json_response(body=_encode(answer))

    async def _models(self, _http: web.Request) -> web.Response:
        card = {
            "id": self._model_name,
            "object": "model",
            "created": 0,
            "owned_by": "forkgate",
            "max_model_len": self._model.max_model_len,
            "max_logprobs": self._options.max_logprobs,
            "chat_template": self._model.chat_template,
        }
        return web.json_response(body=_encode({"object": "list", "data": [card]}))

    async def _health(self, _http: web.Request) -> web.Response:
        return web.Response(status=200 if self._crashed is None else 503)

    async def _version(self, _http: web.Request) -> web.Response:
        return web.json_response(body=_encode({"version": ENGINE_VERSION, "engine": "forkgate-reference"}))

    async def _identity(self, _http: web.Request) -> web.Response:
        return web.json_response(body=_encode(self._model.identity.to_json()))

    async def _artifact(self, _http: web.Request) -> web.Response:
        return web.json_response(body=_encode(self._model.artifact))

    async def _steps(self, http: web.Request) -> web.Response:
        try:
            return web.json_response(body=_encode(self._book.take(http.match_info["request_id"])))
        except Missing as error:
            return _refusal(404, str(error), "invalid_request_error")

    async def _metrics(self, _http: web.Request) -> web.Response:
        running, waiting, held, generated = self._batch.load()
        room = self._options.max_batch * self._model.max_model_len
        lines = [
            "# TYPE forkgate_reference_requests_running gauge",
            f"forkgate_reference_requests_running {running}",
            "# TYPE forkgate_reference_requests_waiting gauge",
            f"forkgate_reference_requests_waiting {waiting}",
            "# TYPE forkgate_reference_kv_cache_usage_ratio gauge",
            f"forkgate_reference_kv_cache_usage_ratio {held / room:.6f}",
            "# TYPE forkgate_reference_generated_tokens_total counter",
            f"forkgate_reference_generated_tokens_total {generated}",
        ]
        memory = held_bytes(self._options.device)
        if memory is not None:
            lines += [
                "# TYPE forkgate_reference_memory_bytes gauge",
                f"forkgate_reference_memory_bytes {memory}",
            ]
        lines.append("")
        return web.Response(text="\n".join(lines), content_type="text/plain")

    def _check_model(self, name: str | None) -> None:
        if name is not None and name != self._model_name:
            raise _NoSuchModel(f"the model {name!r} is not served here; this is {self._model_name!r}")

    async def _sign(self, _http: web.Request, response: web.StreamResponse) -> None:
        response.headers[IDENTITY_HEADER] = self._digest

    @web.middleware
    async def _errors(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        http = request
        try:
            return await handler(http)
        except BadRequest as error:
            return _refusal(400, str(error), "invalid_request_error", param=error.param)
        except _NoSuchModel as error:
            return _refusal(404, str(error), "invalid_request_error", param="model", code="model_not_found")
        except QueueFull as error:
            return _refusal(429, f"{error}; try again later", "rate_limit_error")
        except _Crashed as error:
            return _refusal(500, f"the engine died: {error}", "server_error")
        except web.HTTPException as error:
            return _refusal(
                error.status, f"{http.method} {http.path}: {error.reason}", "invalid_request_error"
            )


class _NoSuchModel(Exception):  # noqa: N818
    pass


class _Crashed(Exception):  # noqa: N818
    pass


def _refusal(
    status: int, message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> web.Response:
    body = answers.error(message, kind=kind, param=param, code=code or status)
    return web.json_response(body=_encode(body), status=status)


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + _encode(chunk) + b"\n\n"
