"""Servers that answer any prompt as SGLang or TensorRT-LLM do, or lie in one chosen way. No model: a hash.

The form of every answer is a recorded event's, with other IDs and numbers in it; a request is held to the
form of the recorded one: the same fields, of the same types, no others.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tests.support.recorded import RecordedServer, exchanges

MAX_LOGPROBS = 20


class LyingServer(RecordedServer):
    """The part that both engines' servers share. ``lies`` names what it does wrong."""

    engine: str
    route: str
    optional: frozenset[str] = frozenset()
    """Fields that a request may have beside the recorded ones."""

    def __init__(self, *lies: str, pause_s: float = 0.0, replayed: list[dict[str, Any]]) -> None:
        super().__init__(*replayed, pause_s=pause_s)
        self.lies = set(lies)
        self.running = 0
        self._calls = 0

    def lies_about(self, what: str) -> bool:
        return what in self.lies

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path != self.route:
            return await self.other(request)
        body = json.loads(await request.read())
        self.requests.append((request.path, body))
        refusal = self.refusal(body)
        if refusal is not None:
            return web.json_response(refusal, status=400)
        if not body["stream"]:
            return web.json_response({"text": "whole"})
        self.running += 1
        try:
            events = [*self.events(body), "[DONE]"]
            if self.lies_about("breaks off"):
                events = events[:2]
            return await self.reply(request, {**self.recorded()["response"], "events": events})
        finally:
            if not self.lies_about("runs on"):
                self.running -= 1

    async def other(self, request: web.Request) -> web.StreamResponse:
        return await super().answer(request)

    def recorded(self) -> dict[str, Any]:
        raise NotImplementedError

    def refusal(self, body: dict[str, Any]) -> dict[str, Any] | None:
        raise NotImplementedError

    def events(self, body: dict[str, Any]) -> Iterator[Any]:
        raise NotImplementedError

    def drawn(self, seed: Any, place: int, prompt: Any, temperature: float) -> int:
        if self.lies_about("ignores seed"):
            seed = self._calls
        if self.lies_about("fixed seed") or temperature == 0:
            seed = 0
        if self.lies_about("ignores prompt"):
            prompt = 0
        digest = hashlib.blake2b(f"{seed}/{place}/{prompt}".encode(), digest_size=2).digest()
        return 2000 + int.from_bytes(digest, "big")

    def top(self, drawn: int, place: int, depth: int) -> list[tuple[float, int]]:
        """Entries of a step's top-k, bent where it lies."""
        top = [(-0.5, drawn)] + [(-3.5 - one, 1000 + one) for one in range(depth - 1)]
        if self.lies_about("unsorted") and place == 2:
            top = [top[0], *reversed(top[1:])]
        if self.lies_about("shallow"):
            top = top[:1]
        if self.lies_about("twice") and place == 2 and depth:
            top[1] = (top[1][0], top[0][1])
        if self.lies_about("above zero") and place == 2:
            top[0] = (0.5, drawn)
        return top


def misshapen(recorded: Any, sent: Any, where: str = "body") -> Iterator[str]:
    """Where a request has not the recorded one's form, whatever its values."""
    if isinstance(recorded, dict) and isinstance(sent, dict):
        for name in recorded.keys() ^ sent.keys():
            yield f"{where}.{name}"
        for name in recorded.keys() & sent.keys():
            yield from misshapen(recorded[name], sent[name], f"{where}.{name}")
    elif type(recorded) is not type(sent) and {type(recorded), type(sent)} != {int, float}:
        yield where


class FakeSglang(LyingServer):
    """As SGLang 0.5.23. Lies change ``/server_info`` too: see :meth:`other`."""

    engine, route = "sglang", "/generate"
    optional = frozenset({"priority"})

    def __init__(self, *lies: str, pause_s: float = 0.0) -> None:
        kept = ["model_info", "models"]
        info = "server_info_incremental" if "incremental" in lies else "server_info"
        super().__init__(*lies, pause_s=pause_s, replayed=exchanges("sglang", *kept, info))

    def recorded(self) -> dict[str, Any]:
        return exchanges("sglang", "logprobs")[0]

    async def other(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/tokenize":
            body = json.loads(await request.read())
            text = body.get("prompt") or json.dumps(body["messages"])
            ids = list(text.encode())
            return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 2048})
        if request.path == "/metrics":
            text = exchanges("sglang", "metrics")[0]["response"]["text"]
            return web.Response(text=text.replace("} 3.0", f"}} {self.running}.0"))
        return await super().other(request)

    def refusal(self, body: dict[str, Any]) -> dict[str, Any] | None:
        # Its own contract: unknown fields of the body are ignored, types are checked.
        if not isinstance(body["cache_salt"], str) and not self.lies_about("ignores salt"):
            return {"error": "invalid type: integer `7`, expected a value or an array of values"}
        if not isinstance(body.get("priority", 0), int) and not self.lies_about("ignores priority"):
            return {"error": 'invalid type: string "nonsense", expected i64'}
        if body["stream"]:
            asked = {name: body[name] for name in body.keys() - self.optional}
            self.faults += misshapen(self.recorded()["request"]["body"], asked)
        return None

    def events(self, body: dict[str, Any]) -> Iterator[Any]:
        params, prompt, depth = body["sampling_params"], body["input_ids"], body["top_logprobs_num"]
        self._calls += 1
        ids: list[int] = []
        own: list[Any] = []
        tops: list[Any] = []
        shape, last = self.recorded()["response"]["events"][0], params["max_new_tokens"] - 1
        for place in range(last + 1):
            drawn = self.drawn(params["sampling_seed"], place, prompt, params["temperature"])
            top = self.top(drawn, place, depth)
            ids.append(drawn)
            own.append([top[0][0], drawn, None])
            tops.append([[value, one, None] for value, one in top])
            event = copy.deepcopy(shape)
            event |= {"text": "t" * (place + 1), "output_ids": list(ids), "prompt_token_ids": prompt}
            meta = event["meta_info"]
            meta |= {"prompt_tokens": len(prompt), "completion_tokens": place + 1}
            meta |= {"output_token_logprobs": list(own), "output_top_logprobs": list(tops)}
            meta["finish_reason"] = {"type": "length", "length": last + 1} if place == last else None
            if not depth:
                for name in ("output_token_logprobs", "output_top_logprobs", "input_top_logprobs"):
                    del meta[name]
            yield self._bent(event, meta, place, last)

    def _bent(self, event: dict[str, Any], meta: dict[str, Any], place: int, last: int) -> dict[str, Any]:
        if self.lies_about("incremental") or self.lies_about("sends deltas"):
            event |= {"output_ids": event["output_ids"][-1:], "text": "t"}
            for name in ("output_token_logprobs", "output_top_logprobs"):
                if name in meta:
                    meta[name] = meta[name][-1:]
        if self.lies_about("drops logprobs"):
            meta.pop("output_top_logprobs", None)
        if self.lies_about("renames ids"):
            event["token_ids"] = event.pop("output_ids")
        if self.lies_about("no echo"):
            del event["prompt_token_ids"]
        if self.lies_about("another prompt"):
            event["prompt_token_ids"] = [*event["prompt_token_ids"][:-1], 7]
        if self.lies_about("another length"):
            meta["prompt_tokens"] += 1
        if self.lies_about("miscounts") and place == last:
            meta["completion_tokens"] += 1
        if place == 2 and "output_token_logprobs" in meta:
            own = meta["output_token_logprobs"][-1]
            if self.lies_about("nan"):
                own[0] = None  # what orjson makes of NaN
            if self.lies_about("literal nan"):
                own[0] = float("nan")
            if self.lies_about("another model"):
                own[1] += 1
            if self.lies_about("null entry"):
                meta["output_top_logprobs"][-1][1][0] = None
        return event


class FakeTensorRtLlm(LyingServer):
    """As ``trtllm-serve`` of 2026 with its render routes and Prometheus metrics on."""

    engine, route = "tensorrt_llm", "/v1/completions"
    optional = frozenset({"priority", "logprobs"})

    def __init__(self, *lies: str, pause_s: float = 0.0) -> None:
        super().__init__(*lies, pause_s=pause_s, replayed=exchanges("tensorrt_llm", "models", "version"))

    def recorded(self) -> dict[str, Any]:
        return exchanges("tensorrt_llm", "generate_stream")[0]

    async def other(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/render"):
            return await self._render(request)
        if request.path == "/prometheus/metrics":
            if self.lies_about("no load"):
                return web.json_response({"detail": "Not Found"}, status=404)
            text = exchanges("tensorrt_llm", "metrics")[0]["response"]["text"]
            return web.Response(text=text.replace("} 2.0", f"}} {self.running}.0"))
        if request.path == "/metrics":
            return web.json_response([])
        return await super().other(request)

    async def _render(self, request: web.Request) -> web.Response:
        if self.lies_about("no render"):
            return web.json_response({"detail": "Not Found"}, status=404)
        body = json.loads(await request.read())
        chat = "messages" in body
        shape = exchanges("tensorrt_llm", "encode")[0 if chat else 1]["response"]["body"]
        answer = copy.deepcopy(shape if chat else shape[0])
        answer["token_ids"] = list((json.dumps(body["messages"]) if chat else body["prompt"]).encode())
        return web.json_response(answer if chat else [answer])

    def refusal(self, body: dict[str, Any]) -> dict[str, Any] | None:
        # Its models forbid what they do not name.
        named = self.recorded()["request"]["body"].keys() | self.optional
        if self.lies_about("old"):
            named -= {"priority"}
            if body.get("logprobs"):
                return {"error": "1 validation error: Value error, logprobs is not supported"}
        unknown = body.keys() - named
        if unknown:
            return {"error": f"1 validation error: {unknown} Extra inputs are not permitted"}
        if not isinstance(body.get("priority", 0.0), int | float):
            return {"error": "1 validation error: priority: Input should be a valid number"}
        if body["stream"]:
            asked = {name: body[name] for name in body.keys() - self.optional}
            self.faults += misshapen(self.recorded()["request"]["body"], asked)
        return None

    def events(self, body: dict[str, Any]) -> Iterator[Any]:
        prompt, last = body["prompt"], body["max_tokens"] - 1
        self._calls += 1
        *_, shape, usage, _ = copy.deepcopy(self.recorded()["response"]["events"])
        for place in range(last + 1):
            drawn = self.drawn(body["seed"], place, prompt, body["temperature"])
            event = copy.deepcopy(shape)
            choice = event["choices"][0]
            choice |= {"token_ids": [drawn], "finish_reason": "length" if place == last else None}
            if body.get("logprobs") and not self.lies_about("drops logprobs"):
                names = exchanges("tensorrt_llm", "logprobs_by_text")[0]["response"]["events"][0]
                choice["logprobs"] = copy.deepcopy(names["choices"][0]["logprobs"])
            if self.lies_about("detokenizes"):
                choice |= {"text": "t", "token_ids": None}
            if self.lies_about("renames ids"):
                choice |= {"text": "t", "output_ids": choice["token_ids"]}
                del choice["token_ids"]
            yield event
        usage["usage"] |= {"prompt_tokens": len(prompt), "completion_tokens": last + 1}
        if self.lies_about("another length"):
            usage["usage"]["prompt_tokens"] += 1
        if self.lies_about("miscounts"):
            usage["usage"]["completion_tokens"] += 1
        if not self.lies_about("no usage"):
            yield usage
