"""Exporters to a collector, as the configuration asks for them. What its file leaves out, the SDK reads from
``OTEL_EXPORTER_OTLP_*``."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import grpc
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs.export import LogRecordExporter
from opentelemetry.sdk.metrics.export import MetricExporter
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.util.re import parse_env_headers

from forkgate.config.telemetry import Otlp, OtlpProtocol, OtlpTLS
from forkgate.telemetry.bounded_http import BoundedSession

_LARGEST_POINTS = 4_096
"""Data points of one request: a collector refuses gRPC messages above 4 MiB by default."""


class OtlpError(Exception):
    """An exporter cannot be made: what, where, what to do."""


class Exporters:
    """Makes one exporter a signal."""

    def __init__(self, section: Otlp) -> None:
        """Raises OtlpError: a file cannot be read."""
        self._section = section
        self._headers = _headers(section.headers_file)
        self._grpc = section.protocol is OtlpProtocol.GRPC
        for path in (section.tls.ca_file, section.tls.certificate_file, section.tls.key_file):
            if path is not None:
                _read("tls", path)

    def metrics(self) -> MetricExporter:
        if self._grpc:
            return GrpcMetrics(**self._over_grpc(), max_export_batch_size=_LARGEST_POINTS)
        return HttpMetrics(**self._over_http("metrics"), max_export_batch_size=_LARGEST_POINTS)

    def spans(self) -> SpanExporter:
        return GrpcSpans(**self._over_grpc()) if self._grpc else HttpSpans(**self._over_http("traces"))

    def logs(self) -> LogRecordExporter:
        return GrpcLogs(**self._over_grpc()) if self._grpc else HttpLogs(**self._over_http("logs"))

    def _over_grpc(self) -> dict[str, Any]:
        section = self._section
        options: dict[str, Any] = {
            "endpoint": section.endpoint,
            "headers": dict(self._headers) or None,
            "timeout": section.timeout_s,
        }
        if section.tls != OtlpTLS():
            options["credentials"] = grpc.ssl_channel_credentials(
                *(
                    None if path is None else _read("tls", path)
                    for path in (section.tls.ca_file, section.tls.key_file, section.tls.certificate_file)
                )
            )
        return options

    def _over_http(self, signal: str) -> dict[str, Any]:
        section = self._section
        endpoint = section.endpoint
        return {
            "endpoint": None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}",
            "certificate_file": section.tls.ca_file,
            "client_certificate_file": section.tls.certificate_file,
            "client_key_file": section.tls.key_file,
            "headers": dict(self._headers),
            "timeout": section.timeout_s,
            "session": BoundedSession(section.timeout_s),
        }


def _read(key: str, path: str) -> bytes:
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as error:
        raise OtlpError(f"telemetry.otlp.{key}: {path}: {error.strerror or error}") from error


def _headers(path: str | None) -> Mapping[str, str]:
    if path is None:
        return {}
    headers = parse_env_headers(_read("headers_file", path).decode("utf-8", "replace").strip(), liberal=True)
    if not headers:
        raise OtlpError(
            f"telemetry.otlp.headers_file: {path}: holds no name=value, write one or drop the key"
        )
    return headers
