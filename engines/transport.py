"""HTTP to one endpoint: pooled connections, a credential of the pool's own, bounded waits, our own errors.

A POST that a server dropped on a *reused* connection before any byte of an answer is sent once more on a
fresh one: the server had closed an idle connection just as we wrote. Nothing else is ever repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import re
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import aiohttp
import msgspec

from comparator.records import Fact
from engines.base import (
    AnswerObserver,
    EngineError,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
)
from engines.headers import REQUEST_ID_HEADER, SHADOW_HEADER
from engines.identity import IDENTITY_HEADER

_MAX_CONNECTIONS = 512
_KEEPALIVE_S = 4.0  # under the 5 s after which uvicorn closes an idle connection
_CREDENTIAL_S = 10.0
_MAX_JSON_BYTES = 64 << 20
_MAX_TOLD_BYTES = 2000
_MAX_FIELD_BYTES = 64 << 10
"""Of one header line of an answer: the edge passes as much on, and what it passes on must break no copy."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NO_TRACE: Mapping[str, str] = {}
_encode = msgspec.json.Encoder().encode


class _Sent:
    """What the trace hooks saw of one request."""

    __slots__ = ("last_byte_s", "new", "reused")

    def __init__(self) -> None:
        self.last_byte_s = time.perf_counter()
        self.reused = False
        self.new = False
        """Over a connection made for it. One that was reused first and was stale is both: aiohttp sends a GET
        again by itself."""


NOT_TOLD = Fact(unknown="the answer tells no environment digest")


def told_environment(values: Sequence[str]) -> Fact:
    """What the values of an answer's ``x-forkgate-environment`` lines prove: one digest, or nothing."""
    if not values:
        return NOT_TOLD
    if len(values) > 1:
        return Fact(unknown=f"the answer tells {len(values)} environment digests")
    if _DIGEST.fullmatch(values[0]) is None:
        return Fact(unknown=f"what the answer tells as its environment digest is none: {values[0][:80]!r}")
    return Fact(value=values[0])


class Reply:
    """An answer asked for with ``async with``. Leaving the block before its end drops the connection.

    A plain class, not a generator: an abandoned stream is closed by whoever closes the outer one, and by
    nobody else.
    """

    _response: aiohttp.ClientResponse
    _sent: _Sent
    _timer: asyncio.TimerHandle

    def __init__(
        self,
        endpoint: Endpoint,
        method: str,
        path: str,
        body: bytes | None,
        request_id: str | None = None,
        trace: Mapping[str, str] = _NO_TRACE,
    ) -> None:
        self._endpoint = endpoint
        self._method = method
        self._path = path
        self._body = body
        self._request_id = request_id
        self._trace = trace
        self._first = True
        self._started_s = time.perf_counter()
        self._waiting_s: float | None = None
        self._timed_out: float | None = None

    async def __aenter__(self) -> Self:
        """Send the request and wait for the head of a 200 answer. Raises :class:`EngineError` kinds."""
        endpoint = self._endpoint
        self._response, self._sent = await endpoint._open(
            self._method,
            self._path,
            self._body,
            self._request_id,
            self._trace,
            self._started_s + endpoint.options.first_chunk_timeout_s,
        )
        if self._response.status != 200:
            try:
                await endpoint._refuse(self._path, self._response)
            finally:
                self._response.close()
        self._timer = asyncio.get_running_loop().call_later(
            min(endpoint.options.chunk_timeout_s, endpoint.options.first_chunk_timeout_s), self._watch
        )
        return self

    async def __aexit__(self, *_failure: object) -> None:
        self._timer.cancel()
        # A connection goes back to the pool only when its answer was read to the end.
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()

    @property
    def headers(self) -> Mapping[str, str]:
        return self._response.headers

    @property
    def environment(self) -> Fact:
        """Digest of the environment that gives this answer, as its head tells it, or why it is not known."""
        return told_environment(self._response.headers.getall(IDENTITY_HEADER, ()))

    async def read(self) -> tuple[bytes, float]:
        """All that has come since the last read, empty at the end, and the second it came.

        Raises:
            EngineTimeout: nothing within the first or the next chunk's time.
            EngineUnavailable: the connection broke.
        """
        # One lazy timer an answer: a timeout context for each read costs more than the read.
        self._waiting_s = time.perf_counter()
        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, ConnectionError) as error:
            if self._timed_out is not None:
                raise EngineTimeout(
                    self._endpoint.where, f"no further byte of the answer in {self._timed_out:.3g} s"
                ) from error
            raise EngineUnavailable(self._endpoint.where, f"the answer broke off: {_words(error)}") from error
        finally:
            self._waiting_s = None
            self._first = False
        return data, time.perf_counter() - self._sent.last_byte_s

    def _watch(self) -> None:
        """Close the connection when a read has waited too long; look again when it could have."""
        limit_s, since_s = self._endpoint.options.chunk_timeout_s, self._waiting_s
        left_s = limit_s
        if since_s is not None:
            if self._first:
                limit_s, since_s = self._endpoint.options.first_chunk_timeout_s, self._started_s
            left_s = since_s + limit_s - time.perf_counter()
            if left_s <= 0:
                self._timed_out = limit_s
                self._response.close()  # the read under way raises
                return
        self._timer = asyncio.get_running_loop().call_later(left_s, self._watch)

    async def drain(self, limit_s: float) -> None:
        """Read on to the end, so that the connection can serve again; give up after ``limit_s``."""
        with contextlib.suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            async with asyncio.timeout(limit_s):
                while await self._response.content.readany():
                    pass


class Endpoint:
    """Requests to one base URL. Made anywhere, used inside one event loop."""

    def __init__(
        self,
        base_url: str,
        options: EngineOptions,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.where = self.base_url
        self.options = options
        self._tls = tls
        self._server_name = server_name
        self.observer: AnswerObserver | None = None
        """Told of the head of every answer, whatever was asked."""
        self._session: aiohttp.ClientSession | None = None
        self._credential: str | None = None
        self._credential_read_s = -_CREDENTIAL_S

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, *, optional: bool = False) -> bytes | None:
        """Body of a 200 answer. ``optional``: None where the route does not exist (403, 404, 405).

        Raises:
            EngineError: any kind of it.
        """
        return await self._whole("GET", path, None, optional)

    async def post(self, path: str, body: Any, *, optional: bool = False) -> bytes | None:
        """As :meth:`get`, with a JSON body."""
        return await self._whole("POST", path, _encode(body), optional)

    async def _whole(self, method: str, path: str, body: bytes | None, optional: bool) -> bytes | None:
        try:
            async with Reply(self, method, path, body) as reply:
                parts, size = [], 0
                while data := (await reply.read())[0]:
                    size += len(data)
                    if size > _MAX_JSON_BYTES:
                        raise EngineInvalid(self.where, f"{path}: an answer of over {_MAX_JSON_BYTES} bytes")
                    parts.append(data)
                return b"".join(parts)
        except EngineRefused as error:
            if optional and error.status in (403, 404, 405, 501):
                return None
            raise

    def stream(self, path: str, body: Any, *, request_id: str, trace: Mapping[str, str] = _NO_TRACE) -> Reply:
        """POST under this name, and read the answer as it comes, inside ``async with``."""
        return Reply(self, "POST", path, _encode(body), request_id, trace)

    async def _open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        request_id: str | None,
        trace: Mapping[str, str],
        deadline_s: float,
    ) -> tuple[aiohttp.ClientResponse, _Sent]:
        for attempt in (1, 2):
            sent = _Sent()
            try:
                async with asyncio.timeout(deadline_s - time.perf_counter()):
                    response = await self._open_session().request(
                        method,
                        self.base_url + path,
                        data=body,
                        headers=self.headers(request_id, trace, has_body=body is not None),
                        allow_redirects=False,
                        server_hostname=self._server_name,
                        trace_request_ctx=sent,
                    )
            except aiohttp.ServerTimeoutError as error:
                raise EngineTimeout(
                    self.where, f"no connection in {self.options.connect_timeout_s} s"
                ) from error
            except TimeoutError as error:
                raise EngineTimeout(
                    self.where, f"{path}: no answer in {self.options.first_chunk_timeout_s} s"
                ) from error
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if sent.reused and attempt == 1:
                    continue
                raise EngineUnavailable(self.where, f"{path}: {_words(error)}") from error
            except (aiohttp.ClientError, OSError) as error:
                raise EngineUnavailable(self.where, f"{path}: {_words(error)}") from error
            if self.observer is not None:
                told = told_environment(response.headers.getall(IDENTITY_HEADER, ()))
                self.observer.answered_by(told, new_connection=sent.new)
            return response, sent
        raise AssertionError("unreachable")

    async def _refuse(self, path: str, response: aiohttp.ClientResponse) -> None:
        try:
            async with asyncio.timeout(self.options.chunk_timeout_s):
                told = await response.content.read(_MAX_TOLD_BYTES)
        except (TimeoutError, aiohttp.ClientError, ConnectionError):
            told = b""  # the status alone says enough
        message = f"{path}: HTTP {response.status}: {_error_message(told)}"
        if response.status >= 500 and response.status != 501:  # 501: it is up, and never will do this
            raise EngineUnavailable(self.where, message)
        if response.status >= 400:
            raise EngineRefused(self.where, message, response.status)
        raise EngineInvalid(self.where, f"{message} (200 was expected)")

    def headers(
        self, request_id: str | None, trace: Mapping[str, str] = _NO_TRACE, *, has_body: bool = False
    ) -> dict[str, str]:
        """What every request to this endpoint carries. Raises :class:`EngineError`: no credential to read."""
        # Lower case, so that a configured header of the same name is replaced and never sent beside ours.
        headers = {name.lower(): value for name, value in self.options.headers.items()}
        headers.update(trace)
        headers[SHADOW_HEADER] = "1"
        if request_id is not None:
            headers[REQUEST_ID_HEADER] = request_id
        if has_body:
            headers["content-type"] = "application/json"
        credential = self._read_credential()
        if credential is not None:
            headers["authorization"] = f"Bearer {credential}"
        return headers

    def _read_credential(self) -> str | None:
        # Read again now and then: tokens in mounted secrets are rotated under a running judge.
        path, now_s = self.options.credential_file, time.perf_counter()
        if path is None or now_s - self._credential_read_s < _CREDENTIAL_S:
            return self._credential
        try:
            self._credential = pathlib.Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise EngineError(self.where, f"credential_file {path}: {error.strerror}") from error
        if not self._credential:
            raise EngineError(self.where, f"credential_file {path}: it is empty")
        self._credential_read_s = now_s
        return self._credential

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            hooks = aiohttp.TraceConfig()
            hooks.on_request_chunk_sent.append(_on_sent)
            hooks.on_request_headers_sent.append(_on_sent)
            hooks.on_connection_reuseconn.append(_on_reused)
            hooks.on_connection_create_end.append(_on_created)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=_MAX_CONNECTIONS, keepalive_timeout=_KEEPALIVE_S, ssl=self._tls or True
                ),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self.options.connect_timeout_s),
                trace_configs=[hooks],
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=("user-agent", "accept-encoding"),
                read_bufsize=1 << 20,
                max_line_size=_MAX_FIELD_BYTES,
                max_field_size=_MAX_FIELD_BYTES,
            )
        return self._session


async def _on_sent(_session: aiohttp.ClientSession, context: Any, _event: Any) -> None:
    context.trace_request_ctx.last_byte_s = time.perf_counter()


async def _on_reused(_session: aiohttp.ClientSession, context: Any, _event: Any) -> None:
    context.trace_request_ctx.reused = True


async def _on_created(_session: aiohttp.ClientSession, context: Any, _event: Any) -> None:
    context.trace_request_ctx.new = True


def _words(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError):
        return "connection refused, is it running?"
    return str(error) or type(error).__name__


def _error_message(body: bytes) -> str:
    """The words of an OpenAI-shaped error, else the body's beginning."""
    try:
        decoded = msgspec.json.decode(body)
        error = decoded.get("error", decoded) if isinstance(decoded, dict) else {}
        message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        if isinstance(message, str):
            return message
    except (msgspec.DecodeError, RecursionError):
        pass
    return body.decode("utf-8", "replace") or "no explanation"
