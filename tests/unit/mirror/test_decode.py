from __future__ import annotations

import gzip
import zlib
from typing import Any

import orjson
import pytest

from engines.base import CallKind
from proxy.mirror.decode import decode, recognise
from proxy.mirror.errors import Dropped
from tests.support.mirror import capture

CHAT = {"model": "m", "messages": [{"role": "user", "content": "你好"}]}
RAW = orjson.dumps(CHAT)
LIMIT = 10_000


def deflate(data: bytes, window: int) -> bytes:
    packer = zlib.compressobj(wbits=window)
    return packer.compress(data) + packer.flush()


def encoded(body: bytes, *encodings: bytes) -> Any:
    headers = tuple((b"content-encoding", encoding) for encoding in encodings)
    return capture(1, body=body, headers=headers)


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        ("/v1/chat/completions", CallKind.CHAT),
        ("/v1/completions", CallKind.COMPLETION),
        ("/v1/responses/", CallKind.RESPONSE),
        ("/v1/messages?beta=true", CallKind.MESSAGE),
    ],
)
def test_an_api_is_known_by_its_path(target: str, kind: CallKind) -> None:
    assert recognise(target) is kind


@pytest.mark.parametrize("target", ["/v1/embeddings", "/", "/v1/chat/completions/x", "/metrics", "*"])
def test_any_other_path_is_not_recognised(target: str) -> None:
    with pytest.raises(Dropped, match=r"^not_recognised: .*the path of no API"):
        recognise(target)


@pytest.mark.parametrize(
    "body",
    [
        encoded(RAW),
        encoded(RAW, b"identity"),
        encoded(gzip.compress(RAW), b"gzip"),
        encoded(gzip.compress(RAW), b"X-GZIP"),
        encoded(gzip.compress(RAW), b"identity, gzip"),
        encoded(deflate(RAW, 15), b"deflate"),
        encoded(deflate(RAW, -15), b"deflate"),
    ],
)
def test_content_encodings_are_undone(body: Any) -> None:
    call = decode(body, CallKind.CHAT, LIMIT)
    assert (call.kind, call.model, call.body) == (CallKind.CHAT, "m", CHAT)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (encoded(RAW, b"br"), "content-encoding 'br' is not undone here"),
        (encoded(gzip.compress(gzip.compress(RAW)), b"gzip, gzip"), "'gzip, gzip' is not undone"),
        (encoded(gzip.compress(RAW), b"gzip", b"br"), "'gzip, br' is not undone"),
        (encoded(RAW, b"gzip"), "compressed body is broken"),
        (encoded(gzip.compress(RAW)[:-5], b"gzip"), "compressed body ends early"),
        (encoded(gzip.compress(RAW) + b"more", b"gzip"), "goes on after its end"),
        (encoded(gzip.compress(bytes(10**7)), b"gzip"), "exceeds 10000 bytes once decompressed"),
        (encoded(deflate(bytes(10**7), -15), b"deflate"), "exceeds 10000 bytes once decompressed"),
        (encoded(b" " * 10_001), "body of 10001 bytes exceeds 10000"),
    ],
)
def test_what_cannot_be_undone_within_bounds_is_unsupported(body: Any, reason: str) -> None:
    with pytest.raises(Dropped, match=f"^unsupported: .*{reason}"):
        decode(body, CallKind.CHAT, LIMIT)


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (CallKind.CHAT, b"", "body is not JSON"),
        (CallKind.CHAT, b"{", "body is not JSON"),
        (CallKind.CHAT, b"\xff", "body is not JSON"),
        (CallKind.CHAT, b"[" * 100_000, "body of 100000 bytes"),
        (CallKind.CHAT, b"[" * 9_000, "body is not JSON"),
        (CallKind.CHAT, b"[1]", "body is a JSON list"),
        (CallKind.CHAT, b'{"messages": []}', "body names no model"),
        (CallKind.CHAT, b'{"model": 7, "messages": []}', "body names no model"),
        (CallKind.CHAT, b'{"model": "m", "prompt": "x"}', "body has no 'messages'"),
        (CallKind.COMPLETION, b'{"model": "m", "messages": []}', "body has no 'prompt'"),
        (CallKind.RESPONSE, b'{"model": "m"}', "body has no 'input'"),
        (CallKind.MESSAGE, b'{"model": "m", "messages": null}', "body has no 'messages'"),
    ],
)
def test_a_body_that_is_no_call_is_dropped_with_what_is_missing(
    kind: CallKind, body: bytes, reason: str
) -> None:
    with pytest.raises(Dropped, match=reason):
        decode(capture(1, body=body), kind, LIMIT)
