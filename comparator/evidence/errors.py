"""What can go wrong with a file, by what its user can do about it.

The caller goes on without evidence whichever it is: a fork was acted on before anything was stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from comparator.errors import ComparatorError


class EvidenceError(ComparatorError):
    """Base. ``path`` is the database; the message says what happened and what to do."""

    def __init__(self, path: Path | str, message: str) -> None:
        super().__init__(f"evidence {path}: {message}")
        self.path = str(path)
        self.message = message
        """Without the path before it."""


class EvidenceUnavailable(EvidenceError):  # noqa: N818
    """The file cannot be opened or created: no directory, no permission, input/output error."""


class EvidenceReadOnly(EvidenceError):  # noqa: N818
    """The disk or file is read-only."""


class EvidenceFull(EvidenceError):  # noqa: N818
    """The disk is full, or what must be kept exceeds ``max_bytes``."""


class EvidenceBusy(EvidenceError):  # noqa: N818
    """Another process held the write lock for longer than the busy timeout. Worth another try."""


class EvidenceCorrupt(EvidenceError):  # noqa: N818
    """The file is no SQLite database, or a damaged one."""


class EvidenceForeign(EvidenceError):  # noqa: N818
    """A sound database, but not one of ours, or of a newer forkgate."""


class EvidenceNotFound(EvidenceError):  # noqa: N818
    """No such capture in the store."""


class EvidencePruned(EvidenceError):  # noqa: N818
    """What is asked for made room for newer evidence."""


class EvidenceErased(EvidenceNotFound):
    """What is asked for was erased on a person's word; the erasure log has who, when and why."""


class EvidenceLocked(EvidenceError):  # noqa: N818
    """What is asked for is sealed with a key that was not given."""


class EvidenceHashed(EvidenceError):  # noqa: N818
    """What is asked for needs token IDs or text, of which this store keeps keyed hashes only."""


class EvidenceDamaged(EvidenceError):  # noqa: N818
    """What is stored of a capture does not fit together: it was changed, or part of it is missing."""


class EvidenceAmbiguous(EvidenceError):  # noqa: N818
    """More than one capture has an ID that begins so."""


_BUSY = "locked by another process; only one judge may write to a store"
_CANNOT_OPEN = "cannot be opened; check the directory and its permissions"
_DENIED = "permission denied; check the owner of the file"
_DAMAGED = "damaged; move it away (a new one is made) and salvage it with `sqlite3 FILE .recover`"

_BY_CODE: dict[int, tuple[type[EvidenceError], str]] = {
    sqlite3.SQLITE_FULL: (EvidenceFull, "the disk is full; free space or lower evidence.max_bytes"),
    sqlite3.SQLITE_READONLY: (EvidenceReadOnly, "read-only; make it writable or set another state_dir"),
    sqlite3.SQLITE_BUSY: (EvidenceBusy, _BUSY),
    sqlite3.SQLITE_LOCKED: (EvidenceBusy, _BUSY),
    sqlite3.SQLITE_CORRUPT: (EvidenceCorrupt, _DAMAGED),
    sqlite3.SQLITE_NOTADB: (
        EvidenceCorrupt,
        "not an SQLite database; move the file away or set another path",
    ),
    sqlite3.SQLITE_CANTOPEN: (EvidenceUnavailable, _CANNOT_OPEN),
    sqlite3.SQLITE_IOERR: (EvidenceUnavailable, "input/output error; check the disk"),
    sqlite3.SQLITE_PERM: (EvidenceUnavailable, _DENIED),
    sqlite3.SQLITE_AUTH: (EvidenceUnavailable, _DENIED),
}


@contextmanager
def mapped(path: Path | str) -> Iterator[None]:
    """Turn sqlite3's and the file system's errors into this module's."""
    try:
        yield
    except sqlite3.Error as exc:
        # The primary result code is the low byte of the extended one.
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        kind, advice = _BY_CODE.get(code, (EvidenceError, "unexpected; the store is left as it was"))
        raise kind(path, f"{advice} ({exc})") from exc
    except OSError as exc:
        raise EvidenceUnavailable(path, f"cannot be opened ({exc.strerror or exc})") from exc
