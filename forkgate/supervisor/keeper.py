"""Writes route tables on a thread of its own: a disk that hangs holds up no restart of a child.

Only the newest table waits; one that was superseded while the disk was busy is never written. The thread is
a daemon: a supervisor that stops leaves one that hangs behind.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from forkgate.state.table_file import write_table

log = logging.getLogger(__name__)


class TableKeeper:
    """Keeps the newest table in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._news = threading.Condition()
        self._next: tuple[int, bytes] | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="route table", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def keep(self, epoch: int, encoded: bytes) -> None:
        """Have a table written; returns at once. A disk that refuses is logged.

        Args:
            encoded: the table as JSON, as the judge wrote it.
        """
        with self._news:
            self._next = epoch, encoded
            self._news.notify()

    def close(self, limit_s: float) -> None:
        """Wait that long for the newest table to be on disk, and let the thread end."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(limit_s)
        if self._thread.is_alive():
            log.error(
                "the disk still holds the route table up, left behind",
                extra={"file": str(self._path), "waited_s": limit_s},
            )

    def _run(self) -> None:
        while True:
            with self._news:
                while self._next is None and not self._closing:
                    self._news.wait()
                waiting, self._next = self._next, None
            if waiting is None:
                return
            epoch, encoded = waiting
            try:
                write_table(self._path, encoded)
            except OSError as error:
                log.error("route table not kept on disk", extra={"epoch": epoch, "error": str(error)})
