"""The judge's log records for a collector, beside the JSON lines on standard error, which stay whole.

Only what cannot hold a client's or an engine's words leaves: the record's own constant sentence, and the
fields named in :data:`CARRIED`. An error's text may quote an answer, and an answer a prompt, so of an
exception its type and its place in the code are sent and its words are not.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.util.types import AnyValue

OURS = ("forkgate", "proxy", "engines", "policies", "comparator")
"""Loggers that are sent. An exporter's own trouble is not: it would be sent by the exporter."""
# fmt: off
CARRIED = frozenset(
    (
        "after", "alpha", "answer", "arm", "before", "by_s", "can_read", "capture_id", "captured",
        "check", "count", "drain_s", "durable", "edge", "edges", "epoch", "events_after", "flip_s",
        "fork_class", "fork_index", "fsync_s", "gate", "held", "hook", "incarnation", "kept",
        "kept_before", "latch_durable", "limit", "limit_s", "look", "missing", "n", "notice", "part",
        "policy_level", "pool", "promotion_nats", "replicate", "rollback_nats", "rollout", "rollouts",
        "sealed_with", "sequence", "stage", "suite", "tenant", "value", "waited_s",
    )
)
# fmt: on
"""Fields of a log line that are sent: names, numbers and states."""
_CHARS = 256
_NS = 1_000_000_000
_SEVERITY = {
    logging.DEBUG: SeverityNumber.DEBUG,
    logging.INFO: SeverityNumber.INFO,
    logging.WARNING: SeverityNumber.WARN,
    logging.ERROR: SeverityNumber.ERROR,
    logging.CRITICAL: SeverityNumber.FATAL,
}


class OtlpHandler(logging.Handler):
    """Hands records to a processor that neither waits nor grows."""

    def __init__(
        self, resource: Resource, processor: LogRecordProcessor, tenant_of: Callable[[str], str | None]
    ) -> None:
        super().__init__(logging.INFO)
        self._provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_log_record_processor(processor)
        self._logger = self._provider.get_logger("forkgate")
        self._tenant_of = tenant_of

    def emit(self, record: logging.LogRecord) -> None:
        """As ``logging`` asks it to be: an exception is ``handleError``'s."""
        if record.name.partition(".")[0] not in OURS:
            return
        try:
            self._logger.emit(
                LogRecord(
                    timestamp=int(record.created * _NS),
                    severity_number=_SEVERITY.get(record.levelno, SeverityNumber.UNSPECIFIED),
                    severity_text=record.levelname,
                    body=_sentence(record),
                    attributes=self._attributes(record),
                )
            )
        except Exception:
            self.handleError(record)

    def shut(self) -> None:
        """Send what is left. Blocks for as long as the exporter does: for a thread."""
        self._provider.shutdown()

    def _attributes(self, record: logging.LogRecord) -> dict[str, AnyValue]:
        found: dict[str, AnyValue] = {
            "code.file.path": record.pathname.rpartition("/")[2],
            "code.function.name": f"{record.name}.{record.funcName}",
            "code.line.number": record.lineno,
        }
        for key in CARRIED & vars(record).keys():
            value = getattr(record, key)
            if key == "tenant":
                value = self._tenant_of(str(value))
            if isinstance(value, bool | int | float):
                found[f"forkgate.{key}"] = value
            elif value is not None:
                found[f"forkgate.{key}"] = str(value)[:_CHARS]
        if record.exc_info and record.exc_info[0] is not None:
            found["exception.type"] = record.exc_info[0].__qualname__
            frames = traceback.extract_tb(record.exc_info[2])
            found["exception.stacktrace"] = "\n".join(
                f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames[-32:]
            )
        return found


def _sentence(record: logging.LogRecord) -> str:
    """What the line says without its arguments, which may be anybody's words."""
    sentence = str(record.msg)
    return "an event of a rollout; standard error has its words" if sentence == "%s" else sentence
