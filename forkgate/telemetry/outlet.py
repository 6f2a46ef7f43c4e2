"""Everything that leaves for a collector, built once: metrics, spans and log records over OTLP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping

from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor

from forkgate.config.telemetry import Signal, Telemetry
from forkgate.telemetry.exports import BoundedLogs, BoundedSpans, MetricsPush, Tally, in_thread
from forkgate.telemetry.logs import OtlpHandler
from forkgate.telemetry.otlp import Exporters, OtlpError
from forkgate.telemetry.tracing import Tracing

log = logging.getLogger(__name__)

CLOSE_S = 3.0
"""What the last exports may take at the end, all signals side by side."""


def resource_of(sidecar: str) -> Resource:
    """Who tells. ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` win over our ``service.name``."""
    told = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    named = os.environ.get("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in told.replace(" ", "")
    ours = {SERVICE_INSTANCE_ID: sidecar}
    return Resource.create(ours if named else {SERVICE_NAME: "forkgate", **ours})


class Outlet:
    """What goes to a collector; nothing where the configuration names none."""

    def __init__(
        self, section: Telemetry, resource: Resource, tenant_of: Callable[[str], str | None]
    ) -> None:
        """Sends spans and log records from now on, where it is asked to. Where an exporter cannot be made,
        :attr:`trouble` says why, and nothing is sent: judging matters more than being watched."""
        self.trouble: str | None = None
        self.tracing: Tracing | None = None
        self.tallies: tuple[Tally, ...] = ()
        self._push: MetricsPush | None = None
        self._logs: OtlpHandler | None = None
        self._pushing: asyncio.Task[None] | None = None
        otlp = section.otlp
        if otlp is None:
            return
        try:
            exporters = Exporters(otlp)
            tallies = {signal: Tally(signal.value) for signal in Signal if signal in otlp.signals}
            processors: list[SpanProcessor] = []
            if Signal.METRICS in tallies:
                self._push = MetricsPush(
                    exporters.metrics(), otlp.export_interval_s, otlp.timeout_s, tallies[Signal.METRICS]
                )
            if Signal.TRACES in tallies:
                processors.append(BoundedSpans(exporters.spans(), tallies[Signal.TRACES]))
                self.tracing = Tracing(section.traces, resource, processors, tenant_of)
            if Signal.LOGS in tallies:
                self._logs = OtlpHandler(
                    resource, BoundedLogs(exporters.logs(), tallies[Signal.LOGS]), tenant_of
                )
                logging.getLogger().addHandler(self._logs)
        except (OtlpError, OSError, ValueError, RuntimeError) as error:
            self.trouble = str(error) if isinstance(error, OtlpError) else f"telemetry.otlp: {error}"
            self._push, self.tracing = None, None
            log.error("running without a collector", extra={"error": self.trouble})
            return
        self.tallies = tuple(tallies.values())

    @property
    def readers(self) -> list[MetricReader]:
        """For the meter provider."""
        return [self._push.reader] if self._push is not None else []

    def counts(self) -> Mapping[tuple[str, str], int]:
        """(signal, what became of it) → how many."""
        return {
            (tally.signal, outcome): count
            for tally in self.tallies
            for outcome, count in tally.counts().items()
        }

    def start(self) -> None:
        """Begin with metrics, once a meter provider has the readers."""
        if self._push is not None:
            self._pushing = asyncio.create_task(self._push.run(), name="metrics push")

    async def close(self, limit_s: float = CLOSE_S) -> None:
        """Send what is left, for ``limit_s`` seconds at most; what is not taken by then is lost."""
        if self._pushing is not None:
            self._pushing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._pushing
        if self._logs is not None:
            logging.getLogger().removeHandler(self._logs)
        ends: list[Awaitable[None]] = []
        if self._push is not None:
            ends.append(self._last_metrics(self._push))
        if self.tracing is not None:
            ends.append(in_thread(self.tracing.close, "last spans"))
        if self._logs is not None:
            ends.append(in_thread(self._logs.shut, "last log records"))
        await asyncio.gather(*(_within(limit_s, end) for end in ends))

    async def _last_metrics(self, push: MetricsPush) -> None:
        await push.once()
        push.shutdown()


async def _within(limit_s: float, end: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await end
