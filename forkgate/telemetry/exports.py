"""Bounds around the SDK's exporters, and counts of what became of everything that was to be sent.

A collector that is away, slow or lying costs a fixed amount of memory and one thread a signal, and no wait on
the judge's event loop::

    span, log record ─▶ admitted? ─▶ SDK's batch processor ─▶ its thread ─▶ exporter ─▶ sent | refused
                            └─ full: dropped
    metrics          ─▶ collected on the loop ─▶ a thread, one export at a time ─▶ sent | refused
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk._logs import LogRecordProcessor, ReadableLogRecord, ReadWriteLogRecord
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, MetricReader, MetricsData
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

WAITING_ITEMS = 2_048
"""Spans, and log records, that wait for a collector; a further one is dropped. Their attributes are bounded,
so this is a few megabytes at most."""
BATCH_ITEMS = 512
BATCH_DELAY_MS = 2_000


class Tally:
    """What became of one signal. Called from the judge's loop and from export threads."""

    def __init__(self, signal: str) -> None:
        self.signal = signal
        self._lock = threading.Lock()
        self._waiting = 0
        self._counts = {"sent": 0, "refused": 0, "dropped": 0}

    def admit(self) -> bool:
        """One more to be sent; False, and counted as dropped, when too many wait."""
        with self._lock:
            if self._waiting >= WAITING_ITEMS:
                self._counts["dropped"] += 1
                return False
            self._waiting += 1
            return True

    def taken(self, count: int) -> None:
        """Out of the queue: their export begins."""
        with self._lock:
            self._waiting -= count

    def ended(self, count: int, *, sent: bool) -> None:
        with self._lock:
            self._counts["sent" if sent else "refused"] += count

    def counts(self) -> Mapping[str, int]:
        """``sent``: a collector took them. ``refused``: it did not, or not in time. ``dropped``: too many
        were waiting for it."""
        with self._lock:
            return dict(self._counts)


class CountedSpans(SpanExporter):
    def __init__(self, exporter: SpanExporter, tally: Tally) -> None:
        self._exporter = exporter
        self._tally = tally

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._tally.taken(len(spans))
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._tally.ended(len(spans), sent=result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class CountedLogs(LogRecordExporter):
    def __init__(self, exporter: LogRecordExporter, tally: Tally) -> None:
        self._exporter = exporter
        self._tally = tally

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        self._tally.taken(len(batch))
        result = LogRecordExportResult.FAILURE
        try:
            result = self._exporter.export(batch)
        finally:
            self._tally.ended(len(batch), sent=result is LogRecordExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class BoundedSpans(SpanProcessor):
    """Batches of spans that were sampled, in a queue that drops and counts."""

    def __init__(self, exporter: SpanExporter, tally: Tally) -> None:
        self._tally = tally
        self._batches = BatchSpanProcessor(
            CountedSpans(exporter, tally),
            max_queue_size=WAITING_ITEMS,
            max_export_batch_size=BATCH_ITEMS,
            schedule_delay_millis=BATCH_DELAY_MS,
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._batches.on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        if span.context is not None and span.context.trace_flags.sampled and self._tally.admit():
            self._batches.on_end(span)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)


class BoundedLogs(LogRecordProcessor):
    """As :class:`BoundedSpans`, of log records."""

    def __init__(self, exporter: LogRecordExporter, tally: Tally) -> None:
        self._tally = tally
        self._batches = BatchLogRecordProcessor(
            CountedLogs(exporter, tally),
            max_queue_size=WAITING_ITEMS,
            max_export_batch_size=BATCH_ITEMS,
            schedule_delay_millis=BATCH_DELAY_MS,
        )

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        if self._tally.admit():
            self._batches.on_emit(log_record)

    def shutdown(self) -> None:
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._batches.force_flush(timeout_millis)


class Snapshot(MetricReader):
    """Collects when asked. The SDK's periodic reader collects on a thread of its own, and what the judge's
    instruments read belongs to its event loop."""

    def __init__(self, exporter: MetricExporter) -> None:
        # What an exporter prefers is told to a reader in no other way; the SDK's own reader does the same.
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._last: MetricsData | None = None

    def take(self) -> MetricsData | None:
        """All metrics now; None when there are none."""
        self._last = None
        self.collect()
        return self._last

    def _receive_metrics(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_kwargs: Any
    ) -> None:
        self._last = metrics_data

    def shutdown(self, timeout_millis: float = 30_000, **_kwargs: Any) -> None:
        return


class MetricsPush:
    """Sends all metrics at an interval. An export that is still under way holds up the next: metrics are
    totals, so what a slow collector misses is resolution."""

    def __init__(self, exporter: MetricExporter, interval_s: float, timeout_s: float, tally: Tally) -> None:
        self._exporter = exporter
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._tally = tally
        self.reader = Snapshot(exporter)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            await self.once()

    async def once(self) -> None:
        """One export. Never raises."""
        data = self.reader.take()
        if data is not None:
            await in_thread(lambda: self._export(data), "metrics export")

    def _export(self, data: MetricsData) -> None:
        result = MetricExportResult.FAILURE
        try:
            result = self._exporter.export(data, timeout_millis=self._timeout_s * 1e3)
        finally:
            self._tally.ended(1, sent=result is MetricExportResult.SUCCESS)

    def shutdown(self) -> None:
        self._exporter.shutdown()


async def in_thread(work: Callable[[], object], name: str) -> None:
    """Run it beside the loop. The thread is a daemon, which no exit of the process waits for: an executor's
    would be waited for, whatever hangs in it."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def run() -> None:
        try:
            work()
        finally:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, name=name, daemon=True).start()
    await done.wait()
