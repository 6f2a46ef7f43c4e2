"""What leaves the sidecar as metrics: OpenTelemetry instruments, and a Prometheus page that shows them.

The judge owns them all, since edges report every live request to it. Names follow OpenTelemetry's conventions
(dots, units apart); Prometheus sees them as ``forkgate_live_requests_total`` and so on.
"""

from forkgate.telemetry.instruments import Instruments
from forkgate.telemetry.observed import Observed, RolloutObserved
from forkgate.telemetry.page import MetricsPage, PageError

__all__ = ["Instruments", "MetricsPage", "Observed", "PageError", "RolloutObserved"]
