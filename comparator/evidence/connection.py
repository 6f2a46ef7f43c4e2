"""A store's file, opened for reading; what every question to it is asked through."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from comparator.evidence.errors import EvidenceForeign, EvidenceUnavailable, mapped
from comparator.evidence.keys import NO_KEYS, Keyring
from comparator.evidence.schema import prepare
from comparator.evidence.seal import Sealer

BUSY_TIMEOUT_S = 2.0
"""How long a statement waits for another process' lock before :class:`EvidenceBusy`."""

PAGE_ROWS = 500
"""Rows read at a time by what streams."""

_MAGIC = b"SQLite format 3\0"

Rows = list[Any]


class Connection:
    """Opens and closes, and runs statements."""

    def __init__(self, path: Path | str, keys: Keyring = NO_KEYS) -> None:
        """Open an existing store.

        Args:
            keys: what sealed values are read with; one that is missing is told when such a value is read.

        Raises:
            EvidenceUnavailable: no such file, or no permission.
            EvidenceForeign: not a store, or a newer forkgate's.
        """
        self.path = Path(path)
        with mapped(self.path):
            _check_file(self.path)
            self._db = sqlite3.connect(
                f"file:{quote(str(self.path.absolute()))}?mode=ro",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            self._seal = Sealer(self._db, self.path, keys)
            try:
                self._db.execute("PRAGMA temp_store = MEMORY")  # no content in files of SQLite's own
                prepare(self._db, self.path, writable=False)
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with mapped(self.path):
            self._db.close()

    def _pages(self, statement: str, values: Rows) -> Iterator[Any]:
        """Rows by rising ID, the statement's first column and first parameter; its last is a page's size.

        A page at a time: a long read transaction would keep the log from shrinking.
        """
        last = 0
        while rows := self._all(statement, [last, *values, PAGE_ROWS]):
            last = rows[-1][0]
            yield from rows

    def _all(self, statement: str, values: Rows) -> Rows:
        with mapped(self.path):
            return self._db.execute(statement, values).fetchall()


def _check_file(path: Path) -> None:
    """What SQLite would call a bad disk, or say in its own words. An empty file is left to it."""
    if path.is_dir():
        raise EvidenceUnavailable(path, "is a directory; name the evidence.db in it")
    if not path.exists():
        raise EvidenceUnavailable(path, "no such file; it is STATE_DIR/evidence.db, made by a judge")
    with path.open("rb") as opened:
        begins = opened.read(len(_MAGIC))
    if begins and begins != _MAGIC:
        raise EvidenceForeign(path, "not an SQLite database; name the evidence.db of a state_dir, or a copy")
