"""A collector that takes OTLP over real gRPC and real HTTP, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
from aiohttp import web
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2_grpc as logs_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces_grpc

from tests.support.certificates import Certificate

_REQUESTS: dict[str, Any] = {
    "traces": traces.ExportTraceServiceRequest,
    "metrics": metrics.ExportMetricsServiceRequest,
    "logs": logs.ExportLogsServiceRequest,
}
_ANSWERS: dict[str, Any] = {
    "traces": traces.ExportTraceServiceResponse,
    "metrics": metrics.ExportMetricsServiceResponse,
    "logs": logs.ExportLogsServiceResponse,
}


class Collector:
    """What came, as messages of OTLP. ``stall`` holds answers back for as long as it is set."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.raw: list[bytes] = []
        """Every message as bytes: what a test looks through for what must not be there."""
        self.headers: list[dict[str, str]] = []
        self.stall = asyncio.Event()
        self.stall.set()
        self.lies: str | None = None
        """``endless``: an HTTP answer without an end."""
        self.endpoint = ""

    # -- what was sent ------------------------------------------------------------------------------------

    def spans(self) -> list[Any]:
        return [
            span
            for signal, request in self.requests
            if signal == "traces"
            for of_resource in request.resource_spans
            for scope in of_resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> dict[str, Any]:
        """Name → the metric, as sent last."""
        return {
            metric.name: metric
            for signal, request in self.requests
            if signal == "metrics"
            for of_resource in request.resource_metrics
            for scope in of_resource.scope_metrics
            for metric in scope.metrics
        }

    def logs(self) -> list[Any]:
        return [
            record
            for signal, request in self.requests
            if signal == "logs"
            for of_resource in request.resource_logs
            for scope in of_resource.scope_logs
            for record in scope.log_records
        ]

    async def _take(self, signal: str, request: Message, headers: dict[str, str]) -> None:
        self.requests.append((signal, request))
        self.raw.append(request.SerializeToString())
        self.headers.append(headers)
        await self.stall.wait()

    # -- servers ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def over_grpc(self, tls: Certificate | None = None) -> AsyncIterator[Collector]:
        server = grpc.aio.server()
        for signal, add in (
            ("traces", traces_grpc.add_TraceServiceServicer_to_server),
            ("metrics", metrics_grpc.add_MetricsServiceServicer_to_server),
            ("logs", logs_grpc.add_LogsServiceServicer_to_server),
        ):
            add(_Service(self, signal), server)
        if tls is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            pair = (Path(tls.key_file).read_bytes(), Path(tls.cert_file).read_bytes())
            port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        await server.start()
        self.endpoint = f"{'http' if tls is None else 'https'}://localhost:{port}"
        try:
            yield self
        finally:
            self.stall.set()
            await server.stop(0.1)

    @contextlib.asynccontextmanager
    async def over_http(self, tls: Certificate | None = None) -> AsyncIterator[Collector]:
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.cert_file, tls.key_file)
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/{signal}", self._posted)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        self.endpoint = f"{'http' if tls is None else 'https'}://localhost:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.stall.set()
            await runner.cleanup()

    async def _posted(self, request: web.Request) -> web.StreamResponse:
        signal = request.match_info["signal"]
        message = _REQUESTS[signal]()
        message.ParseFromString(await request.read())
        await self._take(signal, message, {key.lower(): value for key, value in request.headers.items()})
        if self.lies == "endless":
            response = web.StreamResponse()
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                while True:
                    await response.write(b"x" * 4_096)
            return response
        return web.Response(
            body=_ANSWERS[signal]().SerializeToString(), content_type="application/x-protobuf"
        )


class _Service:
    def __init__(self, collector: Collector, signal: str) -> None:
        self._collector = collector
        self._signal = signal

    async def Export(self, request: Message, context: grpc.aio.ServicerContext[Any, Any]) -> Message:  # noqa: N802
        headers = {str(key): str(value) for key, value in context.invocation_metadata() or ()}
        await self._collector._take(self._signal, request, headers)
        answer: Message = _ANSWERS[self._signal]()
        return answer


def attributes(of: Any) -> dict[str, Any]:
    """Attributes of a span, a data point, a log record or a resource."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}


def points(metric: Any) -> Iterator[Any]:
    """Data points of a metric, of whatever kind."""
    return iter(getattr(metric, metric.WhichOneof("data")).data_points)
