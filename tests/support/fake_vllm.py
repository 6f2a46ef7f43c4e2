"""A server that answers like vLLM 0.32, or lies in one chosen way. No model: tokens are a hash."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiohttp import web

from engines.identity import IDENTITY_HEADER
from tests.support.ports import free_port
from tests.support.wire import chat_event, completion_event, generate_event, usage_event

MAX_LOGPROBS = 20
MODEL = "m"


class FakeVllm:
    """``lies`` names what it does wrong; see the uses of :meth:`lies_about`."""

    def __init__(self, *lies: str, pause_s: float = 0.0, digest: str | None = None) -> None:
        self.lies = set(lies)
        self.digest = digest
        """Of its environment, told with every answer, as forkgate's plugin in vLLM does; None: no plugin."""
        self.pause_s = pause_s
        """Between two tokens."""
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.posted: list[dict[str, str]] = []
        """Headers of :attr:`requests`, one for one."""
        self.running = 0
        self.aborted = 0
        self._calls = 0
        self._runner: web.AppRunner | None = None
        self.url = ""

    def lies_about(self, what: str) -> bool:
        return what in self.lies

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._record])
        app.on_response_prepare.append(self._sign)
        app.add_routes(
            [
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/metrics", self._metrics),
                web.post("/tokenize", self._tokenize),
                web.post("/v1/chat/completions", self._generate),
            ]
        )
        if not self.lies_about("no completions"):
            app.add_routes([web.post("/v1/completions", self._generate)])
        if not self.lies_about("no scale-out"):
            app.add_routes(
                [
                    web.post("/v1/chat/completions/render", self._render),
                    web.post("/v1/responses/render", self._render),
                    web.post("/v1/messages/render", self._render),
                    web.post("/v1/completions/render", self._render),
                    web.post("/inference/v1/generate", self._generate),
                ]
            )
        if self.lies_about("tells template"):
            app.add_routes([web.get("/tokenizer_info", self._tokenizer_info)])
        return app

    @contextlib.asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[FakeVllm]:
        runner = web.AppRunner(
            self.app(), handler_cancellation=not self.lies_about("runs on"), shutdown_timeout=0.1
        )
        await runner.setup()
        # Never one of those that the kernel gives away: another engine may be put in this one's place.
        site = web.TCPSite(runner, "127.0.0.1", port or free_port(), ssl_context=tls)
        await site.start()
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        self._runner = runner
        try:
            yield self
        finally:
            await self.stop()

    async def stop(self) -> None:
        """End it, connections and all, before the block does."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        silent = request.path == "/metrics" and self.lies_about("silent metrics")
        if self.digest is not None and not silent:
            response.headers[IDENTITY_HEADER] = self.digest

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.headers.append(headers)
        if request.can_read_body:
            body = json.loads(await request.read())
            self.requests.append((request.path, body))
            self.posted.append(headers)
        response: web.StreamResponse = await handler(request)
        return response

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "max_model_len": 2048}]})

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _tokenizer_info(self, _request: web.Request) -> web.Response:
        return web.json_response({"tokenizer_class": "x", "chat_template": "{{ messages }}"})

    async def _metrics(self, _request: web.Request) -> web.Response:
        if self.lies_about("no metrics"):
            return web.Response(text="# nothing\n")
        return web.Response(
            text=f'vllm:num_requests_running{{engine="0"}} {self.running}.0\n'
            'vllm:num_requests_waiting{engine="0"} 0.0\nvllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            'vllm:generation_tokens_total{engine="0"} 640.0\n'
            'vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",'
            'engine="0",num_gpu_blocks="364"} 1.0\n'
        )

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        return web.json_response({"tokens": self._ids(body), "max_model_len": 2048, "count": 1})

    def _ids(self, body: dict[str, Any]) -> list[int]:
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            return prompt
        given = body.get("messages", body.get("input"))
        text = prompt if prompt is not None else json.dumps(given) if given else ""
        return list(text.encode())

    async def _render(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if not self._ids(body):
            return web.json_response({"error": {"message": "nothing to render", "code": 400}}, status=400)
        if body.get("model") != MODEL:
            return web.json_response({"error": {"message": "no such model", "code": 404}}, status=404)
        params: dict[str, Any] = {"temperature": body.get("temperature", 0.6), "top_p": 1.0, "min_p": 0.0}
        params |= {
            "repetition_penalty": 1.1,
            "stop": body.get("stop", []),
            "stop_token_ids": [],
            "bad_words": [],
        }
        params |= {"output_kind": 2, "skip_clone": True, **body.get("render_says", {})}
        if "max_tokens" in body:
            params["max_tokens"] = body["max_tokens"]
        rendered = {"token_ids": self._ids(body), "sampling_params": params}
        return web.json_response([rendered] if request.path == "/v1/completions/render" else rendered)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        params = body.get("sampling_params", body)
        refused = self._refusal(body, params)
        if refused is not None:
            return web.json_response({"error": {"message": refused, "code": 400}}, status=400)
        if self.lies_about("no stream") or not body.get("stream"):
            return web.json_response({"choices": [{"text": "whole"}]})
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        self.running += 1
        try:
            for event in self._events(request.path, body, params):
                with contextlib.suppress(*([ConnectionError] if self.lies_about("runs on") else [])):
                    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                await asyncio.sleep(self.pause_s)
            if not self.lies_about("breaks off"):
                await response.write(b"data: [DONE]\n\n")
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1
        return response

    def _refusal(self, body: dict[str, Any], params: dict[str, Any]) -> str | None:
        if self.lies_about("refuses all"):
            return "no"
        if not body.get("prompt") and not body.get("messages") and not body.get("token_ids"):
            return "prompt is missing"
        if body.get("cache_salt") == "" and not self.lies_about("ignores salt"):
            return "cache_salt: too short"
        if not isinstance(body.get("priority", 0), int) and not self.lies_about("ignores priority"):
            return "priority: not an integer"
        depth = params.get("top_logprobs", params.get("logprobs")) or 0
        limit = 3 if self.lies_about("max 3 logprobs") else MAX_LOGPROBS
        if depth > limit:
            return f"Requested sample logprobs of {depth}, which is greater than max allowed: {limit}"
        return None

    def _events(self, path: str, body: dict[str, Any], params: dict[str, Any]) -> Iterator[dict[str, Any]]:
        prompt = body.get("token_ids") or self._ids(body)
        depth = params.get("top_logprobs", params.get("logprobs")) or 0
        limit = params.get("max_completion_tokens", params.get("max_tokens")) or 16
        self._calls += 1
        for place in range(limit):
            seed = params.get("seed")
            if self.lies_about("ignores seed"):
                seed = self._calls
            if self.lies_about("fixed seed") or params.get("temperature") == 0:
                seed = 0
            drawn = _hash(seed, place, prompt)
            if self.lies_about("forks at token 2") and place >= 2:
                drawn += 1
            top = [(drawn, -0.5 - place % 3)] + [(1000 + one, -3.5 - one) for one in range(max(depth - 1, 0))]
            finish = "length" if place == limit - 1 and not self.lies_about("never finishes") else None
            event = self._shaped(path, [(drawn, top)], finish, prompt if place == 0 else None)
            yield self._bent(event, place)
        yield usage_event(limit + (1 if self.lies_about("miscounts") else 0))

    def _shaped(
        self, path: str, steps: list[tuple[int, list[tuple[int, float]]]], finish: str | None, prompt: Any
    ) -> dict[str, Any]:
        if self.lies_about("echoes another prompt") and prompt is not None:
            prompt = [*prompt[:-1], prompt[-1] + 1]
        if self.lies_about("no echo"):
            prompt = None
        if path == "/v1/completions":
            return completion_event(steps, finish=finish, prompt=prompt)
        if path == "/v1/chat/completions":
            return chat_event(steps, finish=finish, prompt=prompt)
        return generate_event(steps, finish=finish, prompt=prompt)

    def _bent(self, event: dict[str, Any], place: int) -> dict[str, Any]:
        choice = event["choices"][0]
        if self.lies_about("drops logprobs"):
            choice["logprobs"] = None
        if self.lies_about("drops ids"):
            del choice["token_ids"]
        if self.lies_about("renames ids"):
            choice["output_token_ids"] = choice.pop("token_ids")
        if self.lies_about("shallow logprobs"):
            tops = choice["logprobs"]["top_logprobs"]
            choice["logprobs"]["top_logprobs"] = [dict(list(top.items())[:2]) for top in tops]
        if self.lies_about("names by text"):
            choice["logprobs"] = json.loads(json.dumps(choice["logprobs"]).replace("token_id:", "tok "))
        if self.lies_about("nan at token 2") and place == 2:
            choice["logprobs"]["token_logprobs"] = [float("nan")]
        if self.lies_about("out of order at token 2") and place == 2:
            tops = choice["logprobs"]["top_logprobs"]
            choice["logprobs"]["top_logprobs"] = [
                dict([first, *reversed(rest)]) for first, *rest in (list(top.items()) for top in tops)
            ]
        if self.lies_about("above zero at token 2") and place == 2:
            choice["logprobs"]["token_logprobs"] = [0.5]
        if self.lies_about("fails at token 2") and place == 2:
            return {"error": {"message": "EngineCore died", "code": 500}}
        return event


def _hash(seed: Any, place: int, prompt: Any) -> int:
    digest = hashlib.blake2b(f"{seed}/{place}/{prompt}".encode(), digest_size=2).digest()
    return 2000 + int.from_bytes(digest, "big")
