"""The edge's own counters, in a file that survives the edge.

One writer, the edge worker. The kernel keeps a dirty page of a shared mapping after the process is killed, so
that the supervisor can read what the dead worker had counted. The file is no defence against a power cut,
and needs none: then both sides are gone.

Layout: a JSON header (identity and the names of the counters, in order) padded with spaces to 2,048 bytes,
then one little-endian unsigned 64-bit cell a counter. Cells are aligned, so a store is never seen half done.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from proxy.ledger.reasons import DropReason

_LOG = logging.getLogger(__name__)

_MAGIC = "forkgate-ledger-1"
_HEADER_BYTES = 2_048
_FILE_BYTES = 4_096
_CAPTURED, _DELIVERED, _FIRST_REASON = 0, 1, 2
_REASONS = tuple(DropReason)
_NAMES = ("captured", "delivered", *_REASONS)


class LedgerFileError(Exception):
    """A ledger file that cannot be read, with the file's name and what is wrong."""


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    magic: str
    sidecar: str
    worker: int
    incarnation: str
    counters: tuple[str, ...]


class EdgeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """An edge incarnation's counters at one moment."""

    sidecar: str
    worker: int
    incarnation: str
    captured: int
    delivered: int
    """Captures in batches that a judge acknowledged."""
    dropped: dict[str, int]
    """By :class:`DropReason` value; zeros left out."""
    held: int | None = None
    """Begun or queued or on their way, counted from the edge's containers. None in a file's copy."""

    @property
    def dropped_total(self) -> int:
        return sum(self.dropped.values())


class EdgeLedger:
    """Counters of this process life. Each method is one increment of a mapped cell."""

    def __init__(self, sidecar: str, worker: int, incarnation: str, path: str | None) -> None:
        """Create the file; it must not exist, since it has one writer and one life.

        A file that cannot be made (full or read-only disk) is an error in the log and ``durable`` False:
        the worker counts in memory and serves all the same, because the client's answer comes first. If
        it is then killed, its captures cannot be told apart from lost ones.
        """
        self.durable = False
        self._identity = (sidecar, worker, incarnation)
        self._map: mmap.mmap | None = None
        cells: memoryview | None = None
        if path is not None:
            try:
                self._map = _create(path, sidecar, worker, incarnation)
            except OSError as error:
                _LOG.error(
                    "the ledger cannot be written, counting in memory only",
                    extra={"file": str(path), "error": str(error)},
                )
            else:
                self.durable = True
                cells = memoryview(self._map)[_HEADER_BYTES:].cast("Q")
        self._cells = memoryview(bytearray(_FILE_BYTES - _HEADER_BYTES)).cast("Q") if cells is None else cells

    @property
    def captured(self) -> int:
        return int(self._cells[_CAPTURED])

    def count_captured(self) -> None:
        self._cells[_CAPTURED] += 1

    def count_delivered(self, captures: int) -> None:
        self._cells[_DELIVERED] += captures

    def count_dropped(self, reason: DropReason) -> None:
        self._cells[_INDEX[reason]] += 1

    def counts(self, held: int | None = None) -> EdgeCounts:
        sidecar, worker, incarnation = self._identity
        return _counts(sidecar, worker, incarnation, _NAMES, self._cells.tolist(), held)

    def close(self) -> None:
        """Unmap. The file stays, for the supervisor to read and remove; later increments are lost."""
        if self._map is not None:
            kept = memoryview(bytearray(self._cells.tobytes())).cast("Q")
            self._cells.release()
            self._cells = kept
            self._map.close()
            self._map = None


_INDEX = {reason: _FIRST_REASON + place for place, reason in enumerate(_REASONS)}


def _create(path: str, sidecar: str, worker: int, incarnation: str) -> mmap.mmap:
    header = msgspec.json.encode(
        _Header(magic=_MAGIC, sidecar=sidecar, worker=worker, incarnation=incarnation, counters=_NAMES)
    )
    if len(header) > _HEADER_BYTES:
        raise OSError(f"its header takes {len(header)} bytes of {_HEADER_BYTES}; shorten the sidecar's name")
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        # Written out, not left sparse: a store into a hole of a full disk would be SIGBUS.
        os.write(fd, header.ljust(_HEADER_BYTES) + bytes(_FILE_BYTES - _HEADER_BYTES))
        return mmap.mmap(fd, _FILE_BYTES)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _counts(
    sidecar: str, worker: int, incarnation: str, names: tuple[str, ...], cells: list[int], held: int | None
) -> EdgeCounts:
    by_name = dict(zip(names, cells, strict=False))
    captured, delivered = by_name.pop("captured"), by_name.pop("delivered")
    return EdgeCounts(
        sidecar=sidecar,
        worker=worker,
        incarnation=incarnation,
        captured=captured,
        delivered=delivered,
        dropped={str(name): count for name, count in by_name.items() if count},
        held=held,
    )


def read_ledger(path: str | Path) -> EdgeCounts:
    """The counters of a file whose writer may be dead.

    Raises:
        LedgerFileError: no such file, or not one of ours.
    """
    try:
        raw = Path(path).read_bytes()
        header = msgspec.json.decode(raw[:_HEADER_BYTES].rstrip(b" "), type=_Header)
    except (OSError, msgspec.DecodeError) as error:
        raise LedgerFileError(f"{path}: not a readable ledger: {error}") from error
    if header.magic != _MAGIC or len(raw) != _FILE_BYTES:
        raise LedgerFileError(f"{path}: a ledger of {header.magic!r} with {len(raw)} bytes; want {_MAGIC!r}")
    cells = memoryview(raw)[_HEADER_BYTES:].cast("Q").tolist()
    return _counts(header.sidecar, header.worker, header.incarnation, header.counters, cells, None)


def find_ledgers(directory: str | Path) -> Iterator[tuple[Path, EdgeCounts]]:
    """Every readable ledger of a directory: what earlier lives left behind. Others are logged, not raised."""
    for path in sorted(Path(directory).glob("*.ledger")):
        try:
            yield path, read_ledger(path)
        except LedgerFileError as error:
            _LOG.warning(
                "a ledger cannot be read, left alone", extra={"file": str(path), "error": str(error)}
            )
