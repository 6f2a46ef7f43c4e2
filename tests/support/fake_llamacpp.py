"""A server that answers any prompt as the recorded llama-server does, or lies in one chosen way."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from tests.support.recorded import RecordedServer, exchanges

VOCABULARY = 49152


class FakeLlama(RecordedServer):
    """``lies`` names what it does wrong; see the uses of :meth:`lies_about`."""

    def __init__(self, *lies: str, pause_s: float = 0.0) -> None:
        super().__init__(*exchanges("llamacpp", "server"), pause_s=pause_s)
        self.lies = set(lies)
        self.running = 0
        self._calls = 0

    def lies_about(self, what: str) -> bool:
        return what in self.lies

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET" and request.path != "/metrics":
            return await super().answer(request)
        if request.path == "/metrics":
            return self._metrics()
        body = json.loads(await request.read())
        self.requests.append((request.path, body))
        if request.path == "/apply-template":
            said = body["messages"][0]["content"]
            return web.json_response({"prompt": said if self.lies_about("no template") else f"<{said}>"})
        if request.path == "/tokenize":
            return web.json_response({"tokens": list(body["content"].encode())})
        if request.path == "/detokenize":
            return web.json_response({"content": bytes(body["tokens"]).decode("utf-8", "replace")})
        assert request.path == "/completion", request.path
        events = list(self._events(body))
        if not body["stream"]:
            return web.json_response(events[-1])
        self.running += 1
        try:
            if self.lies_about("breaks off"):
                events = events[:2]
            if self.lies_about("error in the stream"):
                events[1:] = [{"error": {"code": 500, "message": "decode failed", "type": "server_error"}}]
            recorded = exchanges("llamacpp", "logprobs")[0]["response"]
            return await self.reply(request, {**recorded, "events": events})
        finally:
            if not self.lies_about("runs on"):
                self.running -= 1

    def _metrics(self) -> web.Response:
        recorded = exchanges("llamacpp", "metrics")[0]["response"]["text"]
        if self.lies_about("no metrics"):
            told = {"error": {"code": 501, "message": "This server does not support metrics endpoint."}}
            return web.json_response(told, status=501)
        text = recorded.replace("requests_processing 0", f"requests_processing {self.running}")
        return web.Response(text=text)

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._calls += 1
        recorded = exchanges("llamacpp", "logprobs")[0]["response"]["events"]
        shape, last = recorded[0], recorded[-1]
        count = body["n_predict"]
        for place in range(count):
            yield self._bent(self._token(copy.deepcopy(shape), body, place), place)
        end = copy.deepcopy(last)
        own = exchanges("llamacpp", "server")[0]["response"]["body"]["default_generation_settings"]["params"]
        ran = {**own, **{name: value for name, value in body.items() if name in own}}
        if self.lies_about("ignores top_p"):
            ran["top_p"] = 0.95
        if self.lies_about("renames a setting"):
            ran["sampler_order"] = ran.pop("samplers")
        if self.lies_about("other defaults") and "temperature" not in body:
            ran["temperature"] = 0.1
        prompt = bytes(one % 256 for one in body["prompt"]).decode("utf-8", "replace")
        end |= {
            "generation_settings": ran,
            "prompt": "other words" if self.lies_about("another text") else prompt,
            "tokens_evaluated": len(body["prompt"]) - self.lies_about("goes by text"),
            "tokens_predicted": count,
            "timings": {**end["timings"], "cache_n": 5 if self.lies_about("warm") else 0},
        }
        if self.lies_about("another model"):
            end["model"] = "other"
        yield end

    def _token(self, event: dict[str, Any], body: dict[str, Any], place: int) -> dict[str, Any]:
        seed = body.get("seed")
        if self.lies_about("ignores seed"):
            seed = self._calls
        if self.lies_about("fixed seed") or body.get("temperature") == 0:
            seed = 0
        digest = hashlib.blake2b(f"{seed}/{place}/{body['prompt']}".encode(), digest_size=2).digest()
        drawn = 2000 + int.from_bytes(digest, "big") % 40_000
        event |= {
            "tokens": [drawn],
            "tokens_predicted": place + 1,
            "tokens_evaluated": len(body["prompt"]) - self.lies_about("goes by text"),
        }
        depth = body.get("n_probs", 0)
        top = [{"id": drawn, "logprob": -0.5}]
        top += [{"id": 1000 + one, "logprob": -3.5 - one} for one in range(depth - 1)]
        event["completion_probabilities"] = [{"id": drawn, "logprob": -0.5, "top_logprobs": top}]
        if not depth:
            del event["completion_probabilities"]
        return event

    def _bent(self, event: dict[str, Any], place: int) -> dict[str, Any]:
        if self.lies_about("drops ids"):
            event["tokens"] = []
        if self.lies_about("renames ids"):
            event["token_ids"] = event.pop("tokens")
        if self.lies_about("beyond the vocabulary"):
            event["tokens"] = [VOCABULARY + 7]
        if self.lies_about("torn") and place:
            event["tokens_predicted"] += 1
        told = event.get("completion_probabilities")
        if told is None:
            return event
        if self.lies_about("drops logprobs"):
            del event["completion_probabilities"]
        if self.lies_about("shallow"):
            told[0]["top_logprobs"] = told[0]["top_logprobs"][:1]
        if self.lies_about("after sampling"):
            told[0]["top_probs"] = told[0].pop("top_logprobs")
        if self.lies_about("of another token"):
            told[0]["id"] += 1
        if self.lies_about("nan") and place == 2:
            told[0]["logprob"] = None
        if self.lies_about("unsorted") and place == 2:
            told[0]["top_logprobs"][1:] = reversed(told[0]["top_logprobs"][1:])
        return event
