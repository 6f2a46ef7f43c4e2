"""What leaves the sidecar as metrics, traces and logs: OTLP to a collector, and a page for Prometheus.

The judge owns them all, since edges report every live request to it. Names follow OpenTelemetry's conventions
(dots, units apart); Prometheus sees them as ``forkgate_live_requests_total`` and so on. ``docs/telemetry.md``
lists each.
"""

from forkgate.telemetry.instruments import Instruments
from forkgate.telemetry.observed import Observed, RolloutObserved
from forkgate.telemetry.outlet import Outlet, resource_of
from forkgate.telemetry.page import MetricsPage, PageError
from forkgate.telemetry.tenants import Tenants
from forkgate.telemetry.tracing import Tracing

__all__ = [
    "Instruments",
    "MetricsPage",
    "Observed",
    "Outlet",
    "PageError",
    "RolloutObserved",
    "Tenants",
    "Tracing",
    "resource_of",
]
