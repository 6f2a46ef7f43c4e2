"""What travels: one realistic chat call, its answer, and its answer as a stream.

The call is what the official ``openai`` client sends (its headers, its order), its body 2 KiB on average; the
answer is vLLM's shape, 1 KiB on average; a stream's chunk is vLLM's, 200 bytes. No two bodies of a kind
have the same length, so that stub and load know by its length what a body must be, byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import orjson

TENANT = "acme"
API_KEY = "sk-bench-5f0c1d7e9a3b42d68c1f"  # an API key of this bench's own tenant; it opens nothing
API_KEY_SHA256 = hashlib.sha256(API_KEY.encode()).hexdigest()
PATH = "/v1/chat/completions"
MODEL = "smollm2-135m-instruct"

_SYSTEM = (
    "You are a careful assistant of a support desk. Answer in plain words, quote the article that you "
    "rely on, and say so when you do not know. "
)
_QUESTION = (
    "Our nightly batch moved from one pool of accelerators to another and the same prompt now continues with "
    "another word after the ninth token. What should we compare first, and in which order? "
)


def _body(*, stream: bool, size: int) -> bytes:
    """A chat call of exactly ``size`` bytes."""
    call: dict[str, object] = {
        "messages": [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": ""}],
        "model": MODEL,
        "max_tokens": 64,
        "temperature": 0.7,
        "top_p": 0.95,
        "seed": 7,
        "stream": stream,
    }
    missing = size - len(orjson.dumps(call))
    question = (_QUESTION * (missing // len(_QUESTION) + 1))[:missing]
    call["messages"] = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": question}]
    body = orjson.dumps(call)
    assert len(body) == size
    return body


def _head(length: int, *, accept: str, traced: bool) -> bytes:
    """The official client's head, in its order; traced, with a place ``@`` for a trace context."""
    head = (
        f"POST {PATH} HTTP/1.1\r\n"
        "Host: inference.internal:8080\r\n"
        "Accept-Encoding: gzip, deflate\r\n"
        "Connection: keep-alive\r\n"
        f"Accept: {accept}\r\n"
        "Content-Type: application/json\r\n"
        "User-Agent: OpenAI/Python 3.57.0\r\n"
        "X-Stainless-Lang: python\r\n"
        "X-Stainless-Package-Version: 3.57.0\r\n"
        "X-Stainless-OS: Linux\r\n"
        "X-Stainless-Arch: x64\r\n"
        "X-Stainless-Runtime: CPython\r\n"
        "X-Stainless-Runtime-Version: 3.11.9\r\n"
        f"Authorization: Bearer {API_KEY}\r\n"
        "X-Stainless-Async: false\r\n"
        "x-stainless-retry-count: 0\r\n"
        "x-stainless-read-timeout: 600\r\n" + ("traceparent: 00-@-01\r\n" if traced else "") + "\r\n"
    )
    return head.replace("\r\n\r\n", f"\r\nContent-Length: {length}\r\n\r\n").encode()


REQUEST_SIZES = range(1536, 2560, 33)
"""Bytes of body, 2 KiB on average: prompts differ in length."""
REQUEST_BODIES = {size: _body(stream=False, size=size) for size in REQUEST_SIZES}
STREAM_BODY = _body(stream=True, size=2048)
assert len(STREAM_BODY) not in REQUEST_BODIES
REQUEST_BODY = REQUEST_BODIES[REQUEST_SIZES[16]]
"""One of them."""
_NUMBER = 16
_BEFORE, _, _AFTER = REQUEST_BODY.partition(_QUESTION[:_NUMBER].encode())
assert _AFTER


def another_body(number: int) -> bytes:
    """:data:`REQUEST_BODY` as another conversation, of the same length: no two numbers ask the same."""
    return b"%s%0*d%s" % (_BEFORE, _NUMBER, number, _AFTER)


_STRIDE = 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251
"""Odd, so that all of 2^192 trace and span ids come before one comes again."""
_MASK = (1 << 192) - 1


class Requests:
    """Calls as they go over the wire, in a fixed round of different lengths."""

    def __init__(self, bodies: Sequence[bytes], *, accept: str, traced: bool = False) -> None:
        """
        Args:
            traced: with a ``traceparent`` of its own each time (W3C Trace Context), as an instrumented client
                sends it; without, two heads differ in Content-Length alone.
        """
        self._traced = traced
        self._parts = []
        for body in bodies:
            before, _, after = _head(len(body), accept=accept, traced=traced).partition(b"@")
            self._parts.append((before, after + body))
        self._sent = 0

    def render(self) -> bytes:
        """The next one."""
        self._sent += 1
        before, after = self._parts[self._sent * 7 % len(self._parts)]
        if not self._traced:
            return before + after
        identity = b"%048x" % (self._sent * _STRIDE & _MASK)
        return b"%b%b-%b%b" % (before, identity[:32], identity[32:], after)


def chat_requests(*, traced: bool = False) -> Requests:
    """Non-streamed chat calls."""
    return Requests([*REQUEST_BODIES.values()], accept="application/json", traced=traced)


STREAM_REQUESTS = Requests([STREAM_BODY], accept="text/event-stream")
"""The streamed chat call."""


def _answer_body(size: int) -> bytes:
    def render(text: str) -> bytes:
        return orjson.dumps(
            {
                "id": "chatcmpl-8a6f2d4b9c1e4f70",
                "object": "chat.completion",
                "created": 1767225600,
                "model": MODEL,
                "choices": [
                    {
                        "index": 0,
                        "message": {"role": "assistant", "content": text, "refusal": None, "tool_calls": []},
                        "logprobs": None,
                        "finish_reason": "length",
                        "stop_reason": None,
                    }
                ],
                "system_fingerprint": "vllm-0.32.0-5d3f1a2b",
                "usage": {"prompt_tokens": 431, "total_tokens": 495, "completion_tokens": 64},
            }
        )

    sentence = "Compare the weights first, then sampling and seed, then precision, then the engine. "
    missing = size - len(render(""))
    body = render((sentence * (missing // len(sentence) + 1))[:missing])
    assert len(body) == size
    return body


ANSWER_SIZES = range(768, 1280, 17)
"""Bytes of body, 1 KiB on average."""
ANSWER_BODIES = {size: _answer_body(size) for size in ANSWER_SIZES}
ANSWERS = [
    b"HTTP/1.1 200 OK\r\n"
    b"date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    b"server: uvicorn\r\n"
    b"content-length: %d\r\n"
    b"content-type: application/json\r\n"
    b"\r\n%b" % (size, body)
    for size, body in ANSWER_BODIES.items()
]
"""Whole answers, in the order of their lengths."""

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"date: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
    b"server: uvicorn\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n"
    b"\r\n"
)

_EVENT_BEFORE = (
    b'data: {"id":"chatcmpl-8a6f2d4b9c1e4f70","object":"chat.completion.chunk","created":1767225600,"model":"'
    + MODEL.encode()
    + b'","choices":[{"index":0,"delta":{"content":"t'
)
_EVENT_AFTER = b'"},"logprobs":null}]}\n\n'


def event(number: int) -> bytes:
    """The ``number``-th event of every stream, about 200 bytes."""
    return b"%b%08d%b" % (_EVENT_BEFORE, number, _EVENT_AFTER)


EVENT_BYTES = len(event(0))


def chunk(number: int) -> bytes:
    """:func:`event` as one chunk of a chunked body (RFC 9112 section 7.1)."""
    return b"%x\r\n%b%08d%b\r\n" % (EVENT_BYTES, _EVENT_BEFORE, number, _EVENT_AFTER)
