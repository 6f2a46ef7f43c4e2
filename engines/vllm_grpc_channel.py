"""The channel to one gRPC server: connected in bounded time, with the pool's headers, our own errors."""

from __future__ import annotations

import asyncio
import ssl
import urllib.parse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import grpc

from engines.base import (
    AnswerObserver,
    EngineError,
    EngineInvalid,
    EngineOptions,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
)
from engines.transport import NOT_TOLD, Endpoint
from engines.vllm_grpc_wire import protos

_MAX_MESSAGE_BYTES = 64 << 20
_MAX_TOKENIZER_BYTES = 256 << 20
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.OUT_OF_RANGE: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.UNIMPLEMENTED: 404,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
}
"""The HTTP status that means the same; any other code says that the engine failed, not the request."""


class GrpcChannel:
    """Made anywhere, used inside one event loop."""

    def __init__(
        self, base_url: str, options: EngineOptions, tls: ssl.SSLContext | None, server_name: str | None
    ) -> None:
        self._where = base_url
        self._endpoint = Endpoint(base_url, options, tls, server_name)  # for its headers and credential
        self._options = options
        self._tls = tls
        self._server_name = server_name
        self._channel: grpc.aio.Channel | None = None
        self.observer: AnswerObserver | None = None
        """Told of every new connection; a gRPC answer tells no environment."""

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(None)
            self._channel = None
        await self._endpoint.close()

    async def stub(self) -> Any:
        if self._channel is None:
            self._channel = self._open()
        channel = self._channel
        stood = channel.get_state() is grpc.ChannelConnectivity.READY
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.READY:
                    if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                        raise EngineUnavailable(
                            self._where, f"no gRPC connection to {self._target()}, is it running?"
                        )
                    await channel.wait_for_state_change(state)
        except TimeoutError as error:
            limit_s = self._options.connect_timeout_s
            raise EngineTimeout(self._where, f"no connection in {limit_s} s") from error
        if not stood and self.observer is not None:
            self.observer.answered_by(NOT_TOLD, new_connection=True)
        return protos(self._where).services.VllmEngineStub(channel)

    def _open(self) -> grpc.aio.Channel:
        options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES)]
        if urllib.parse.urlsplit(self._where).scheme != "https":
            return grpc.aio.insecure_channel(self._target(), options=options)
        if self._tls is not None:
            raise EngineError(
                self._where,
                "a pool's own certificates cannot be used over gRPC: take one that the system trusts, or "
                "plain http on a private network",
            )
        if self._server_name is not None:
            options.append(("grpc.ssl_target_name_override", self._server_name))
        return grpc.aio.secure_channel(self._target(), grpc.ssl_channel_credentials(), options=options)

    def _target(self) -> str:
        url = urllib.parse.urlsplit(self._where)
        host = f"[{url.hostname}]" if url.hostname and ":" in url.hostname else url.hostname
        port = self._options.grpc_port or url.port or (443 if url.scheme == "https" else 80)
        return f"{host}:{port}"

    def metadata(
        self, request_id: str | None, trace: Mapping[str, str] = MappingProxyType({})
    ) -> list[tuple[str, str]]:
        return list(self._endpoint.headers(request_id, trace).items())

    def error(self, method: str, error: grpc.aio.AioRpcError) -> EngineError:
        code = error.code()
        message = f"{method}: {code.name}: {error.details() or 'no explanation'}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return EngineTimeout(self._where, message)
        if code in _STATUS:
            return EngineRefused(self._where, message, _STATUS[code])
        return EngineUnavailable(self._where, message)

    async def unary(self, method: str, request: Any) -> Any:
        stub = await self.stub()
        try:
            return await getattr(stub, method)(
                request, metadata=self.metadata(None), timeout=self._options.first_chunk_timeout_s
            )
        except grpc.aio.AioRpcError as error:
            raise self.error(method, error) from error

    async def tokenizer(self) -> bytes:
        stub = await self.stub()
        call = stub.GetTokenizer(
            protos(self._where).common.GetTokenizerRequest(),
            metadata=self.metadata(None),
            timeout=self._options.first_chunk_timeout_s,
        )
        parts, size = [], 0
        try:
            async for chunk in call:
                size += len(chunk.data)
                if size > _MAX_TOKENIZER_BYTES:
                    raise EngineInvalid(self._where, f"GetTokenizer: over {_MAX_TOKENIZER_BYTES} bytes")
                parts.append(chunk.data)
        except grpc.aio.AioRpcError as error:
            raise self.error("GetTokenizer", error) from error
        finally:
            call.cancel()
        return b"".join(parts)
