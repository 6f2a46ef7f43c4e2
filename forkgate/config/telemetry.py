"""The ``telemetry:`` section. Apart from the exporters, so that reading a file imports no OpenTelemetry."""

from __future__ import annotations

import enum
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta


class Prometheus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a Prometheus server scrapes ``/metrics``."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 9464
    """0 asks the system for a free one; ``forkgate status`` tells which."""


class OtlpProtocol(enum.StrEnum):
    """How a collector is spoken to; the names are those of ``OTEL_EXPORTER_OTLP_PROTOCOL``."""

    GRPC = "grpc"
    HTTP = "http/protobuf"


class Signal(enum.StrEnum):
    """What can be exported."""

    METRICS = "metrics"
    TRACES = "traces"
    LOGS = "logs"


class OtlpTLS(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For an ``https://`` endpoint. Read once, when the judge starts."""

    ca_file: str | None = None
    """PEM; the system's authorities when absent."""
    certificate_file: str | None = None
    """PEM chain by which the judge shows who it is; with ``key_file``."""
    key_file: str | None = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together, set both or neither")


class Otlp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collector that takes OTLP. What stands here wins over ``OTEL_EXPORTER_OTLP_*`` in the judge's
    environment; a key that is absent is read from there."""

    endpoint: str | None = None
    """``http://HOST:PORT`` or ``https://HOST:PORT``, for HTTP with a path before ``/v1/traces`` and so on."""
    protocol: OtlpProtocol = OtlpProtocol.GRPC
    headers_file: str | None = None
    """``name=value,name=value`` in the form of ``OTEL_EXPORTER_OTLP_HEADERS``: a collector's credential. Read
    once, when the judge starts."""
    tls: OtlpTLS = OtlpTLS()
    timeout_s: Annotated[float, Meta(gt=0, le=60)] = 10.0
    """Of one export, retries included. What was not taken by then is dropped and counted."""
    export_interval_s: Annotated[float, Meta(ge=0.1, le=3_600)] = 60.0
    """Between two exports of metrics."""
    signals: tuple[Signal, ...] = (Signal.METRICS, Signal.TRACES, Signal.LOGS)

    def __post_init__(self) -> None:
        if self.endpoint is not None:
            parts = urlsplit(self.endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
                raise ValueError(f"endpoint: {self.endpoint!r} is not http://HOST:PORT or https://HOST:PORT")


class Traces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which shadows make spans."""

    sample_percent: Annotated[float, Meta(ge=0, le=100)] = 100.0
    """Share of the copies without a client's trace context that make a trace of their own, by its ID."""
    obey_clients: bool = True
    """A copy whose client sent a ``traceparent`` is traced if its sampled flag says so. False: it joins the
    client's trace all the same, and ``sample_percent`` decides."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What leaves the sidecar as metrics, traces and logs. None of them holds prompts, tokens or text."""

    prometheus: Prometheus | None = None
    """No page when absent."""
    otlp: Otlp | None = None
    """Nothing is sent when absent."""
    traces: Traces = Traces()
    tenant_attribute: bool = False
    """Put the name of a configured tenant on metrics, spans and log records. A tenant that the configuration
    does not name is ``other``."""
