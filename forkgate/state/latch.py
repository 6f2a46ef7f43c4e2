"""The rollback latch: a small file, its space taken beforehand, that survives whatever happens next.

Two slots of fixed size hold the whole latch as JSON under a checksum and a rising sequence number. A write
goes to the slot that is *not* current and is synced before it counts, so a crash in the middle leaves the
other slot whole. The space is allocated when the file is made: on a disk that filled up since, a rollback
can still be latched.

Only :meth:`Latch.lifted` opens a latch again, and only a person calls it.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import msgspec

from policies.rollout import Latch as Rollback

SLOT_BYTES = 65_536
SLOTS = 2
_HEAD = struct.Struct("<8sQII")  # magic, sequence, length of the body, CRC-32 of the body
_MAGIC = b"fglatch1"
MAX_BODY_BYTES = SLOT_BYTES - _HEAD.size
MAX_LIFTED = 32
"""Lifted latches kept for people to read; older ones leave first."""


class LatchCorrupt(Exception):  # noqa: N818 - reads as the fact that it is
    """The file is there and neither slot is whole. Nobody can say what was latched."""


class Latched(msgspec.Struct, frozen=True, kw_only=True):
    """One rollback that stands until a person lifts it."""

    rollback: Rollback
    """Verdict, policy and time: why it was rolled back."""
    epoch: int
    """Route table that carried the flip."""


class Lifted(msgspec.Struct, frozen=True, kw_only=True):
    """A latch that a person opened, and why."""

    latched: Latched
    reason: str
    at_unix_s: float


class Latch(msgspec.Struct, frozen=True, kw_only=True):
    """All that the file says."""

    epoch: int = 0
    """Highest epoch ever announced; the next one is above it."""
    latched: dict[str, Latched] = {}
    lifted: tuple[Lifted, ...] = ()

    def with_latched(self, rollback: Rollback, epoch: int) -> Latch:
        """This latch with one more rollback. The first reason stands when there are several."""
        latched = self.latched
        if rollback.rollout not in latched:
            latched = {**latched, rollback.rollout: Latched(rollback=rollback, epoch=epoch)}
        return msgspec.structs.replace(self, epoch=max(self.epoch, epoch), latched=latched)

    def with_lifted(self, rollout: str, reason: str, at_unix_s: float) -> Latch:
        """This latch without ``rollout``'s. Raises KeyError when it is not latched."""
        entry = self.latched[rollout]
        rest = {name: other for name, other in self.latched.items() if name != rollout}
        lifted = (*self.lifted, Lifted(latched=entry, reason=reason, at_unix_s=at_unix_s))[-MAX_LIFTED:]
        return msgspec.structs.replace(self, latched=rest, lifted=lifted)


class LatchFile:
    """The file itself. One process writes (the judge); anybody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._sequence = 0

    def open(self) -> Latch:
        """Open for writing, making and allocating the file when it is not there.

        Raises:
            LatchCorrupt: neither slot is whole.
            OSError: read-only or full disk; :func:`read_latch` may still work.
        """
        fresh = not self.path.exists()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if fresh or os.fstat(fd).st_size < SLOTS * SLOT_BYTES:
                os.posix_fallocate(fd, 0, SLOTS * SLOT_BYTES)
                os.fsync(fd)
                _sync_directory(self.path.parent)
            sequence, latch = _current(fd, self.path)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._sequence = fd, sequence
        return latch

    @property
    def writable(self) -> bool:
        return self._fd is not None

    def write(self, latch: Latch) -> None:
        """Make ``latch`` durable before returning. Raises OSError; what stood before still stands."""
        if self._fd is None:
            raise OSError(f"{self.path}: not open for writing")
        body = msgspec.json.encode(latch)
        if len(body) > MAX_BODY_BYTES:
            # Only the lifted history can be long; what is latched must always fit.
            body = msgspec.json.encode(msgspec.structs.replace(latch, lifted=()))
        if len(body) > MAX_BODY_BYTES:
            raise OSError(f"{self.path}: {len(body)} bytes do not fit a slot of {MAX_BODY_BYTES}")
        sequence = self._sequence + 1
        slot = _HEAD.pack(_MAGIC, sequence, len(body), zlib.crc32(body)) + body
        written = os.pwrite(self._fd, slot, (sequence % SLOTS) * SLOT_BYTES)
        if written != len(slot):
            raise OSError(f"{self.path}: {written} of {len(slot)} bytes written")
        os.fdatasync(self._fd)
        self._sequence = sequence

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_latch(path: Path) -> Latch:
    """What the file says; an empty latch when there is no file.

    Raises:
        LatchCorrupt: neither slot is whole.
        OSError: it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Latch()
    try:
        return _current(fd, path)[1]
    finally:
        os.close(fd)


def _current(fd: int, path: Path) -> tuple[int, Latch]:
    found: list[tuple[int, Latch]] = []
    blank = 0
    for index in range(SLOTS):
        raw = os.pread(fd, SLOT_BYTES, index * SLOT_BYTES)
        if not raw.strip(b"\0"):
            blank += 1
            continue
        slot = _slot(raw)
        if slot is not None:
            found.append(slot)
    if found:
        return max(found, key=lambda slot: slot[0])
    if blank == SLOTS:
        return 0, Latch()
    raise LatchCorrupt(f"{path}: neither slot is whole; what was latched is unknown")


def _slot(raw: bytes) -> tuple[int, Latch] | None:
    """The slot's sequence and latch; None when it was torn."""
    if len(raw) < _HEAD.size:
        return None
    magic, sequence, length, checksum = _HEAD.unpack_from(raw)
    body = raw[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(body) != length or zlib.crc32(body) != checksum:
        return None
    try:
        return sequence, msgspec.json.decode(body, type=Latch)
    except msgspec.DecodeError:
        return None


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
