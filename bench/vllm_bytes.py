"""What vLLM 0.32 would say, byte for byte in shape, rendered before any clock starts.

Shapes are those of ``vllm/entrypoints/openai/completion`` (a streamed completion with ``return_token_ids``,
``return_tokens_as_token_ids`` and ``logprobs: 20``) and of its render routes. Numbers are seeded noise.
"""

from __future__ import annotations

import math
import random

import orjson

from bench.payloads import MODEL

TOKENS = 64
"""Events rendered for each draw; a longer answer goes round."""
TOP = 20
DRAWS = 8
"""Different answers, chosen by the request's seed, so that a probe sees the seed honoured."""
PROMPT_TOKENS = 431
_VOCABULARY = 49_152
_ID = "cmpl-8f14e45fceea167a5a36dedd4bea2543"
_CREATED = 1767225600


def prompt_ids(tokens: int, key: str) -> list[int]:
    """Token IDs of a prompt: the same for the same text."""
    drawn = random.Random(key)
    return [drawn.randrange(_VOCABULARY) for _ in range(tokens)]


def _step(drawn: random.Random) -> tuple[int, dict[int, float]]:
    """A token and the top 20 of its step, in the engine's order: the drawn token first, then by rank."""
    weights = sorted((drawn.expovariate(1.0) ** 3 for _ in range(TOP)), reverse=True)
    total = sum(weights) * 1.05
    tokens = drawn.sample(range(_VOCABULARY), TOP)
    return tokens[0], {token: math.log(weight / total) for token, weight in zip(tokens, weights, strict=True)}


def _event(token: int, top: dict[int, float], offset: int, first: bytes, finish: str | None) -> bytes:
    chunk = {
        "id": _ID,
        "object": "text_completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "text": f" w{token}",
                "logprobs": {
                    "text_offset": [offset],
                    "token_logprobs": [top[token]],
                    "tokens": [f"token_id:{token}"],
                    "top_logprobs": [{f"token_id:{one}": value for one, value in top.items()}],
                },
                "finish_reason": finish,
                "stop_reason": None,
                "prompt_token_ids": None,
                "token_ids": [token],
            }
        ],
    }
    text = b"data: " + orjson.dumps(chunk) + b"\n\n"
    return text.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":' + first)


def http_chunk(body: bytes) -> bytes:
    """One chunk of a chunked body (RFC 9112 section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class Draw:
    """One rendered answer."""

    def __init__(self, number: int) -> None:
        drawn = random.Random(number)
        self._steps = [_step(drawn) for _ in range(TOKENS)]
        self._events = [
            http_chunk(_event(token, top, 7 * place, b"null", None))
            for place, (token, top) in enumerate(self._steps)
        ]
        self._last = [
            http_chunk(_event(token, top, 7 * place, b"null", "length"))
            for place, (token, top) in enumerate(self._steps)
        ]

    def first(self, prompt: list[int]) -> bytes:
        """The first event: it alone repeats the prompt."""
        token, top = self._steps[0]
        return http_chunk(_event(token, top, 0, orjson.dumps(prompt), None))

    def event(self, place: int, *, last: bool) -> bytes:
        """The ``place``-th event (0-based), in its chunk."""
        return (self._last if last else self._events)[place % TOKENS]


def ending(prompt_tokens: int, tokens: int) -> bytes:
    """The usage chunk, ``[DONE]``, and the end of the body."""
    usage = {
        "id": _ID,
        "object": "text_completion",
        "created": _CREATED,
        "model": MODEL,
        "choices": [],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "total_tokens": prompt_tokens + tokens,
            "completion_tokens": tokens,
        },
        "system_fingerprint": "vllm-0.32.0-5d3f1a2b",
    }
    return (
        http_chunk(b"data: " + orjson.dumps(usage) + b"\n\n") + http_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
    )


def models() -> bytes:
    """``GET /v1/models``."""
    card = {"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 8192}
    return orjson.dumps({"object": "list", "data": [card]})


def metrics(running: int) -> bytes:
    """The lines of ``GET /metrics`` that an adapter reads."""
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    return (
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{labels} {running}.0\n"
        f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{labels} 0.0\n"
        f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc{labels} 0.01\n"
    ).encode()


def rendered(call: dict[str, object]) -> dict[str, object]:
    """What ``/render`` makes of a call: token IDs and effective parameters, defaults left out."""
    told = call.get("messages", call.get("prompt"))
    text = orjson.dumps(told).decode()
    tokens = PROMPT_TOKENS if "messages" in call else 16
    kept = ("temperature", "top_p", "seed", "max_tokens")
    params = {name: call[name] for name in kept if call.get(name) is not None}
    return {"request_id": "render-1", "token_ids": prompt_ids(tokens, text), "sampling_params": params}
