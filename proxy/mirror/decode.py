"""From a captured request to a call of a known API. Done once; nothing here asks an engine."""

from __future__ import annotations

import asyncio
import zlib

import orjson

from engines.base import Call, CallKind
from engines.calls import PATHS
from proxy.ledger import DropReason
from proxy.link.values import Capture
from proxy.mirror.errors import Dropped

_KINDS = {path: kind for kind, path in PATHS.items()}
_NEEDS = {
    CallKind.CHAT: ("messages",),
    CallKind.COMPLETION: ("prompt", "prompt_embeds"),
    CallKind.RESPONSE: ("input", "previous_response_id"),
    CallKind.MESSAGE: ("messages",),
}
_THREAD_BYTES = 131_072
"""A larger body is decoded on a thread: a decompression must not hold up a flip."""
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for a gzip header
_ZLIB = zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


def recognise(target: str) -> CallKind:
    """Which API a path belongs to.

    Raises:
        Dropped: none that is known; it only passes through the edge.
    """
    path = target.partition("?")[0].rstrip("/")
    kind = _KINDS.get(path)
    if kind is None:
        raise Dropped(DropReason.NOT_RECOGNISED, f"{path[:100]}: the path of no API that is mirrored")
    return kind


async def read_call(capture: Capture, kind: CallKind, limit_bytes: int) -> Call:
    """:func:`decode`, off the event loop where the body is large."""
    if len(capture.body) > _THREAD_BYTES:
        return await asyncio.to_thread(decode, capture, kind, limit_bytes)
    return decode(capture, kind, limit_bytes)


def decode(capture: Capture, kind: CallKind, limit_bytes: int) -> Call:
    """The call in a capture's body.

    Raises:
        Dropped: the body cannot be decoded within ``limit_bytes``, or is no call of this API.
    """
    body = _identity(capture, limit_bytes)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Dropped(DropReason.NOT_RECOGNISED, f"body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Dropped(DropReason.NOT_RECOGNISED, f"body is a JSON {type(value).__name__}, not an object")
    model = value.get("model")
    if not isinstance(model, str):
        raise Dropped(DropReason.NOT_RECOGNISED, "body names no model")
    if not any(value.get(name) is not None for name in _NEEDS[kind]):
        raise Dropped(DropReason.NOT_RECOGNISED, f"body has no {_NEEDS[kind][0]!r}, which {kind} needs")
    return Call(kind=kind, body=value, model=model)


def _identity(capture: Capture, limit_bytes: int) -> bytes:
    """The body with its content-encoding undone (RFC 9110, section 8.4)."""
    encodings = [
        one.strip().lower()
        for name, value in capture.headers
        if name == b"content-encoding"
        for one in value.split(b",")
    ]
    encodings = [one for one in encodings if one not in (b"identity", b"")]
    body = capture.body
    if not encodings:
        if len(body) > limit_bytes:
            raise Dropped(DropReason.UNSUPPORTED, f"body of {len(body)} bytes exceeds {limit_bytes}")
        return body
    if encodings in ([b"gzip"], [b"x-gzip"]):
        return _inflate(body, _GZIP, limit_bytes)
    if encodings == [b"deflate"]:
        # Some clients send it without the zlib header that RFC 9110 asks for: a zlib header's first byte
        # has 8 in its low half, and the first two are a multiple of 31 (RFC 1950, section 2.2).
        zlib_header = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
        return _inflate(body, _ZLIB if zlib_header else _RAW, limit_bytes)
    named = b", ".join(encodings).decode("latin-1")
    raise Dropped(DropReason.UNSUPPORTED, f"content-encoding {named[:100]!r} is not undone here")


def _inflate(body: bytes, window: int, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj(window)
    try:
        plain = inflater.decompress(body, limit_bytes + 1)
    except zlib.error as error:
        raise Dropped(DropReason.UNSUPPORTED, f"compressed body is broken: {error}") from error
    if len(plain) > limit_bytes:
        raise Dropped(DropReason.UNSUPPORTED, f"body exceeds {limit_bytes} bytes once decompressed")
    if not inflater.eof:
        raise Dropped(DropReason.UNSUPPORTED, "compressed body ends early")
    if inflater.unused_data:
        raise Dropped(DropReason.UNSUPPORTED, "compressed body goes on after its end")
    return plain
