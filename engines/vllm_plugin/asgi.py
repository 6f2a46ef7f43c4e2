"""What the plugin adds to an API server, as plain ASGI: two routes, and a stamp on every answer.

No body is read, changed or held back. An answer's head gets one header more; its events pass as they come.
"""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from engines.headers import REQUEST_ID_HEADER, SHADOW_HEADER
from engines.identity.record import IDENTITY_HEADER, Identity
from engines.vllm_plugin.book import Missing
from engines.vllm_plugin.follower import Follower

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_IDENTITY = IDENTITY_HEADER.encode("ascii")
_SHADOW = SHADOW_HEADER.encode("ascii")
_REQUEST_ID = REQUEST_ID_HEADER.encode("ascii")


class Told:
    """What is known once the server has started. Before that, and where it could not be captured, the
    identity is None and ``trouble`` says why."""

    def __init__(self) -> None:
        self.identity: Identity | None = None
        self.digest: bytes | None = None
        self.trouble = "the engine is still starting"
        self.follower: Follower | None = None

    def know(self, identity: Identity) -> None:
        """From now on every answer carries this digest."""
        self.document = json.dumps(identity.to_json()).encode()
        self.digest = identity.digest.encode("ascii")
        self.identity = identity


class Stamp:
    """ASGI middleware: the digest on each answer, and marked requests followed from head to end."""

    def __init__(self, app: App, told: Told) -> None:
        self.app = app
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = self._told
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        digest, follower = told.digest, told.follower

        async def stamped(message: Message) -> None:
            if digest is not None and message["type"] == "http.response.start":
                headers = [one for one in message.get("headers", ()) if one[0].lower() != _IDENTITY]
                message = {**message, "headers": [*headers, (_IDENTITY, digest)]}
            await send(message)

        key = None
        if follower is not None and scope["method"] == "POST":
            request_id = _marked(scope["headers"])
            key = None if request_id is None else follower.begin(request_id)
        try:
            await self.app(scope, receive, stamped)
        finally:
            if key is not None and follower is not None:
                follower.end(key)


def _marked(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The ID of a request that is ours; None for all others."""
    shadow, request_id = False, None
    for name, value in headers:
        if name == _SHADOW:
            shadow = value == b"1"
        elif name == _REQUEST_ID:
            request_id = value
    return request_id.decode("latin-1") if shadow and request_id is not None else None


class Routes:
    """ASGI application under ``/forkgate``: ``identity``, and ``batch/{request id}``, which answers once."""

    def __init__(self, told: Told) -> None:
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        status, body = self._answer(scope["method"], _path(scope))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        headers.append((b"cache-control", b"no-store"))
        if status == 405:
            headers.append((b"allow", b"GET"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, method: str, path: str) -> tuple[int, bytes]:
        told = self._told
        if method != "GET":
            return 405, _error("only GET is served here")
        if path == "/identity":
            return (200, told.document) if told.identity is not None else (404, _error(told.trouble))
        if path.startswith("/batch/"):
            if told.follower is None:
                return 404, _error(told.trouble)
            try:
                return 200, json.dumps(told.follower.take(path.removeprefix("/batch/"))).encode()
            except Missing as error:
                return 404, _error(str(error))
        return 404, _error("served here: /forkgate/identity and /forkgate/batch/{request id}")


def _path(scope: Scope) -> str:
    """The path below the mount, decoded once. An ID may hold slashes and escapes of its own."""
    raw = scope.get("raw_path")
    path = urllib.parse.unquote(raw.partition(b"?")[0].decode("latin-1")) if raw else str(scope["path"])
    return path.partition("/forkgate")[2]


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message}}).encode()
