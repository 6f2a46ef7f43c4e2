"""One JSON object a line on standard error: what happened, where, and the numbers that belong to it.

For every process of the sidecar, edge workers too, so it stands here. Standard library and msgspec alone.
"""

from __future__ import annotations

import datetime
import logging
import sys
from typing import Any

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """``{"time": ..., "level": ..., "process": ..., "event": ..., ...extra}``."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process
        self._encoder = msgspec.json.Encoder(enc_hook=repr)

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, tz=datetime.UTC)
        line: dict[str, Any] = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "event": record.getMessage(),
        }
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return self._encoder.encode(line).decode("utf-8", "replace")


def log_to_stderr(process: str, level: int = logging.INFO) -> None:
    """Send this process's log to standard error. Called once, by the process's entry point."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(process))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for noisy in ("aiohttp.access", "asyncio", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
