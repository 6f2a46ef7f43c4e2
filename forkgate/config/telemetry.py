"""The ``telemetry:`` section. Apart from the exporters, so that reading a file imports no OpenTelemetry."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Prometheus(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a Prometheus server scrapes ``/metrics``."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 9464
    """0 asks the system for a free one; ``forkgate status`` tells which."""


class Telemetry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What leaves the sidecar as metrics."""

    prometheus: Prometheus | None = None
    """No exporter when absent."""
